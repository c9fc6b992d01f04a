"""Clients' rows in RAM and on disk: the same values for any budget, wherever a run is killed."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from helpers import killed_run
from helpers.small_federation import make_federation, run_rounds
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine import checkpoint
from fedwmsam.engine import client_state as stores
from fedwmsam.engine.checkpoint import Checkpoint
from fedwmsam.engine.client_state import PAGE, ClientMemory, Store, index_of
from fedwmsam.engine.rounds import first_state, run_round, train_client
from fedwmsam.engine.run_folder import RunFolder, is_run
from fedwmsam.methods import METHODS, FedWMSAM

SIZE = 5 * 8 + 2
"""Bytes of a row."""


def make_row(value):
    return {
        "c_k": torch.full((5,), float(value), dtype=torch.float64),
        "n": torch.tensor(value, dtype=torch.int16),
    }


def values(memory):
    """Return the value of each client's row, on which both vectors of the row must agree."""
    result = {}
    for client, row in memory.items():
        result[client] = row["n"].item()
        assert set(row["c_k"].tolist()) == {float(result[client])}
    return result


def update(memory, changed):
    """Return the memory with a new row for each of the clients."""
    builder = memory.start_update()
    for client, value in changed.items():
        builder.put(client, make_row(value))
    return builder.build()


def slots(memory):
    return {client: row.slot.number for client, row in memory.rows.items() if row.slot}


def in_ram(memory):
    return {client for client, row in memory.rows.items() if row.vectors is not None}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Disk:
    """A run folder without the training: rounds that only change the memory."""

    def __init__(self, path, budget=0):
        if is_run(path):
            self.folder = RunFolder.open(path)
        else:
            self.folder = RunFolder.create(path, {"rounds": 9})
        self.memory = ClientMemory(self.folder.store, budget)
        self.round = 0
        saved = self.folder.rewind_to_checkpoint()
        if saved:
            self.memory = self.folder.restore_memory(saved, self.memory)
            self.round = saved.notes["round"]

    def train(self, changed):
        self.memory = update(self.memory, changed)
        self.round += 1
        self.folder.append("metrics.jsonl", {"round": self.round})

    def save(self):
        self.folder.save(Checkpoint({}, {"round": self.round}), self.memory)


@pytest.fixture
def disk(tmp_path):
    opened = []

    def open_again(budget=0):
        for earlier in opened:
            earlier.folder.close()
        opened.append(Disk(tmp_path / "run", budget))
        return opened[-1]

    yield open_again
    opened[-1].folder.close()


# A memory is a value


@pytest.mark.parametrize("budget", [0, SIZE, 3 * SIZE, float("inf")])
def test_an_earlier_memory_keeps_its_rows(budget):
    first = update(ClientMemory(budget=budget), {1: 10, 2: 20})
    second = update(first, {2: 21, 3: 31})
    third = update(second, {1: 12, 2: 22})
    assert values(first) == {1: 10, 2: 20}
    assert values(second) == {1: 10, 2: 21, 3: 31}
    assert values(third) == {1: 12, 2: 22, 3: 31}


def test_changes_given_up_leave_no_trace():
    memory = update(ClientMemory(budget=0), {1: 10, 2: 20})
    builder = memory.start_update()
    builder.put(1, make_row(11))
    builder.put(3, make_row(31))
    assert memory.store.slot_count == 4
    del builder
    assert values(memory) == {1: 10, 2: 20}
    assert set(slots(update(memory, {3: 32, 4: 42})).values()) == {0, 1, 2, 3}


def test_ram_is_used_up_to_the_budget_and_no_further():
    memory = update(ClientMemory(budget=3 * SIZE), {client: client for client in range(5)})
    assert in_ram(memory) == {0, 1, 2} and set(slots(memory)) == {3, 4}
    # The row to be replaced is in RAM until the round is done.
    memory = update(memory, {0: 10, 4: 14})
    assert in_ram(memory) == {1, 2}
    memory = update(memory, {3: 23})
    assert in_ram(memory) == {1, 2, 3}
    assert values(memory) == {0: 10, 1: 1, 2: 2, 3: 23, 4: 14}


def test_within_the_budget_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "open_unnamed", lambda: pytest.fail("a file was made"))
    rows = {client: client for client in range(5)}
    assert values(update(ClientMemory(budget=5 * SIZE), rows)) == rows


def test_clients_of_which_nothing_is_kept_have_no_row():
    builder = ClientMemory(budget=0).start_update()
    builder.put(1, {})
    memory = builder.build()
    assert not memory and memory.get(1) is None


def test_rows_come_back_bit_for_bit_and_aligned():
    odd = torch.tensor(
        [0x7FC00123, 0x7F800001, -(2**31), 0x00000001, 0x3F800000], dtype=torch.int32
    )
    vectors = {
        "bytes": torch.arange(3, dtype=torch.uint8),  # what follows lies on no boundary in the slot
        "odd": odd.view(torch.float32),  # NaNs with a payload, −0, the smallest number
        "half": torch.randn(7).bfloat16(),
        "matrix": torch.randn(3, 4, dtype=torch.float64).t(),
        "yes": torch.tensor([True, False, True]),
        "scalar": torch.tensor(0.1),
        "none": torch.empty(0, 3),
        "complex": torch.randn(2, dtype=torch.complex64),
    }
    builder = ClientMemory(budget=0).start_update()
    for client in range(3):
        builder.put(client, vectors)
    for row in builder.build().values():
        assert list(row) == list(vectors)
        for name, value in row.items():
            assert value.dtype == vectors[name].dtype and value.shape == vectors[name].shape
            assert stores.as_bytes(value) == stores.as_bytes(vectors[name])
            assert value.data_ptr() % 64 == 0


def test_a_row_of_another_kind_is_refused():
    builder = ClientMemory(budget=0).start_update()
    builder.put(1, make_row(1))
    with pytest.raises(
        InputError, match=r"was c_k torch.float64\[5\], n .* is now c_k torch.float32\[5\], n "
    ):
        builder.put(2, {"c_k": torch.zeros(5), "n": torch.tensor(1, dtype=torch.int16)})
    builder.put(3, dict(reversed(make_row(3).items())))  # the order of names is no difference
    assert values(builder.build()) == {1: 1, 3: 3}


def test_a_temporary_file_has_no_name_and_goes_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = open_files()
    observed = []
    references = []

    def observe(progress):
        references.append(progress)  # a reference to the run does not keep the file open
        temporary = [file for file in open_files() if str(tmp_path) in file]
        observed.append((len(temporary), list(tmp_path.iterdir())))

    data = list(killed_run.make_clients())
    fedwmsam.fit(torch.nn.Linear(8, 3), data, rounds=3, memory_budget=0, callbacks=[observe])
    assert observed == [(1, [])] * 3
    assert open_files() == before


def open_files():
    paths = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            paths.append(str(link.readlink()))
    return sorted(paths)


# Slots and checkpoints


def test_a_slot_is_used_again_only_when_no_kept_checkpoint_needs_it(disk):
    d = disk()
    used = []
    for value in range(7):
        d.train({5: value})
        used.append(slots(d.memory)[5])
        d.save()
    assert used == [0, 1, 2, 0, 1, 2, 0]


def test_versions_that_no_checkpoint_has_free_their_slots_at_once(disk):
    d = disk()
    for value in range(10):
        d.train({5: value})
    assert d.folder.store.slot_count == 2


def test_after_a_crash_both_checkpoints_keep_their_slots(disk):
    d = disk()
    d.train({1: 10, 2: 20})
    d.save()
    d.train({1: 11})
    d.save()
    d.train({2: 22, 3: 32})  # lost
    d = disk()
    assert values(d.memory) == {1: 11, 2: 20}
    taken = slots_on_disk(d, 1) | slots_on_disk(d, 2)
    assert len(taken) == 3
    d.train({1: 12, 2: 23, 3: 33})
    assert taken.isdisjoint(slots(d.memory).values())
    damage(d, slot=next(iter(slots_on_disk(d, 2) - slots_on_disk(d, 1))))
    assert values(disk().memory) == {1: 10, 2: 20}


def test_slots_that_were_free_before_a_crash_are_used_after_it(disk):
    d = disk()
    for value in (10, 11, 12):
        d.train({1: value})
        d.save()
    d = disk()
    assert slots(d.memory) == {1: 2}
    d.train({2: 20, 3: 30})
    assert slots(d.memory) == {1: 2, 2: 0, 3: 3}
    assert values(d.memory) == {1: 12, 2: 20, 3: 30}


def slots_on_disk(d, round):
    """Return the slots that the checkpoint of a round names."""
    saved = checkpoint.read_checkpoint(checkpoint.path_of(d.folder.checkpoints, round))
    return {slot for _, slot, _ in index_of(saved)}


def damage(d, slot, byte=0):
    with d.folder.store.path.open("r+b") as file:
        file.seek(slot * PAGE + byte)
        old = file.read(1)
        file.seek(slot * PAGE + byte)
        file.write(bytes([old[0] ^ 1]))


@pytest.mark.parametrize("byte", [0, 17, SIZE - 1])
def test_a_damaged_row_makes_the_checkpoint_before_it_the_right_one(disk, caplog, byte):
    d = disk()
    d.train({1: 10})
    d.save()
    d.train({2: 20})
    d.save()
    damage(d, slots(d.memory)[2], byte)
    d = disk()
    assert values(d.memory) == {1: 10} and d.round == 1
    assert "memory.rows is damaged where the memory of client 2 lies" in caplog.text
    d.train({3: 30})
    d.save()
    assert values(disk().memory) == {1: 10, 3: 30}


ROWS_BY_LENGTH = [
    (PAGE + SIZE, {1: 10, 2: 20}),
    (PAGE + SIZE - 1, {1: 10}),
    (SIZE, {1: 10}),
    (SIZE - 1, {}),
    (0, {}),
    (None, {}),
]


@pytest.mark.parametrize(("length", "left"), ROWS_BY_LENGTH)
def test_a_truncated_or_removed_file_loses_only_the_rows_that_it_lacks(disk, length, left):
    d = disk()
    d.train({1: 10})
    d.save()
    d.train({2: 20})
    d.save()
    if length is None:
        d.folder.store.path.unlink()
    else:
        os.truncate(d.folder.store.path, length)
    d = disk()
    assert values(d.memory) == left
    d.train({1: 11, 2: 21})
    d.save()
    assert values(disk().memory) == {1: 11, 2: 21}


def test_a_file_that_may_not_be_read_is_not_a_damaged_one(disk, monkeypatch):
    d = disk()
    d.train({1: 10})
    d.save()
    d.train({1: 11})
    d.save()
    metrics = (d.folder.path / "metrics.jsonl").read_bytes()

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched, pytest.raises(PermissionError):
        patched.setattr(stores, "open_to_update", refuse)
        d.folder.close()
        Disk(d.folder.path)
    assert (d.folder.path / "metrics.jsonl").read_bytes() == metrics
    assert values(disk().memory) == {1: 11}


def test_checkpoints_that_cannot_be_used_give_way_to_new_ones(disk):
    d = disk()
    for value in range(4):
        d.train({1: value})
        d.save()
    for round in checkpoint.rounds_in(d.folder.checkpoints):
        checkpoint.path_of(d.folder.checkpoints, round).write_bytes(b"nonsense")
    d = disk()
    d.train({1: 7})
    d.save()
    assert checkpoint.rounds_in(d.folder.checkpoints) == [1]
    assert values(disk().memory) == {1: 7}


def test_a_checkpoint_that_comes_back_does_no_harm(disk):
    """After a power cut the file that was deleted last may be there again.

    Its slots hold other rows by now.
    """
    d = disk()
    d.train({1: 10, 2: 20})
    d.save()
    old = checkpoint.path_of(d.folder.checkpoints, 1)
    content = old.read_bytes()
    for value in (11, 12, 13):  # the last in the slot of the first
        d.train({1: value})
        d.save()
    old.write_bytes(content)
    d = disk()
    assert values(d.memory) == {1: 13, 2: 20}
    d.train({3: 30})
    d.save()
    assert not old.exists()
    d = disk()
    assert values(d.memory) == {1: 13, 2: 20, 3: 30} and d.round == 5


def test_a_checkpoint_does_not_grow_with_the_rows(disk):
    d = disk(budget=float("inf"))
    d.train({0: 0})
    d.save()
    d.train({client: client for client in range(200)})
    d.save()
    sizes = [checkpoint.path_of(d.folder.checkpoints, round).stat().st_size for round in (1, 2)]
    assert sizes[1] - sizes[0] < 199 * SIZE  # an index, here of rows no larger than its own entries


def test_a_row_is_written_once(disk, monkeypatch):
    d = disk(budget=float("inf"))
    written = []
    write = Store.write

    def note_write(self, row):
        written.append(int(row["n"]))
        return write(self, row)

    monkeypatch.setattr(Store, "write", note_write)
    d.train({1: 10, 2: 20})
    d.save()
    d.train({2: 21})
    d.save()
    d.save()
    assert written == [10, 20, 21]
    assert in_ram(d.memory) == {1, 2}


def test_rows_are_durable_before_the_checkpoint_that_names_them(disk, monkeypatch):
    d = disk()
    events = []
    fsync = os.fsync
    rename = Path.replace

    def note_fsync(descriptor):
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def note_rename(self, target):
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_rename)
    d.train({1: 10})
    d.save()
    temporary = next(name for name in events if name.startswith(".round-0000001.checkpoint."))
    assert events.index("memory.rows") < events.index(temporary) < events.index("rename")
    assert events.index("checkpoints") < events.index("rename")  # the new file's own name


# Against a dictionary


class AgainstADictionary(RuleBasedStateMachine):
    """Rounds, checkpoints, kills and damage in any order; kept checkpoints always stay intact."""

    budgets = st.sampled_from([0, SIZE, 3 * SIZE, float("inf")])
    clients = st.sets(st.integers(0, 6), max_size=4)

    @initialize(budget=budgets)
    def begin(self, budget):
        self.temporary = tempfile.TemporaryDirectory()
        self.disk = Disk(Path(self.temporary.name) / "run", budget)
        self.expected = {}
        """What the memory should hold now."""
        self.values = iter(range(1, 9999))  # no two rows are equal
        self.saved = {}
        """What each checkpoint on disk should hold."""
        self.earlier = []
        """The last memories before this one, with what they should hold."""

    @rule(clients=clients)
    def round(self, clients):
        changed = dict(zip(sorted(clients), self.values, strict=False))
        self.earlier = [*self.earlier[-2:], (self.disk.memory, self.expected)]
        self.disk.train(changed)
        self.expected = self.expected | changed

    @rule(clients=clients)
    def round_given_up(self, clients):
        update(self.disk.memory, dict.fromkeys(clients, next(self.values)))

    @precondition(lambda self: self.disk.round not in self.saved)
    @rule()
    def save(self):
        self.disk.save()
        self.saved[self.disk.round] = self.expected
        self.saved = dict(sorted(self.saved.items())[-2:])

    @rule(budget=budgets)
    def kill(self, budget):
        self.earlier = []
        self.disk.folder.close()
        self.disk = Disk(self.disk.folder.path, budget)
        round = max(self.saved, default=0)
        self.expected = self.saved.get(round, {})
        assert self.disk.round == round

    @precondition(lambda self: any(self.saved.values()))
    @rule(data=st.data(), byte=st.integers(0, SIZE - 1), budget=budgets)
    def damage_and_kill(self, data, byte, budget):
        named = {round: slots_on_disk(self.disk, round) for round in self.saved}
        slot = data.draw(st.sampled_from(sorted(set().union(*named.values()))))
        damage(self.disk, slot, byte)
        self.saved = {
            round: saved for round, saved in self.saved.items() if slot not in named[round]
        }
        self.kill(budget)

    @invariant()
    def the_memory_is_the_dictionary(self):
        if hasattr(self, "disk"):
            assert values(self.disk.memory) == self.expected
            assert all(values(memory) == expected for memory, expected in self.earlier)

    @invariant()
    def every_kept_checkpoint_is_intact(self):
        for round, expected in getattr(self, "saved", {}).items():
            path = checkpoint.path_of(self.disk.folder.checkpoints, round)
            saved = checkpoint.read_checkpoint(path)
            reader = Store(self.disk.folder.store.path)
            reader.check(saved)
            memory = ClientMemory(reader).with_slots(reader.restore_slots([saved])[0])
            assert values(memory) == expected
            reader.close()

    @invariant()
    def the_file_does_not_grow_for_ever(self):
        """There are seven rows now and in each of two checkpoints, and four per other memory."""
        if hasattr(self, "disk"):
            assert self.disk.folder.store.slot_count <= 3 * 7 + 4 * 4

    def teardown(self):
        if hasattr(self, "disk"):
            self.disk.folder.close()
            self.temporary.cleanup()


class TestAgainstADictionary(AgainstADictionary.TestCase):
    settings = settings(max_examples=15, stateful_step_count=25)


@pytest.mark.slow
class TestAgainstADictionaryForLong(AgainstADictionary.TestCase):
    settings = settings(max_examples=500, stateful_step_count=40)


# Whole runs


def test_a_round_holds_few_rows_at_a_time(monkeypatch):
    """A row is read for the downlink and again to settle the update, however large the cohort."""
    federation = make_federation(FedWMSAM(), sizes=(5,) * 30, per_round=30)
    state = replace(first_state(federation), memory=ClientMemory(budget=0))
    state, _ = run_round(federation, state)
    alive = weakref.WeakSet()
    counts = []
    read = Store.read
    write = Store.write

    def note_read(self, number):
        row = read(self, number)
        alive.update(row.values())
        counts.append(len(alive))
        return row

    def note_write(self, row):
        alive.update(row.values())
        counts.append(len(alive))
        return write(self, row)

    monkeypatch.setattr(Store, "read", note_read)
    monkeypatch.setattr(Store, "write", note_write)
    run_round(federation, state)
    assert len(counts) == 90 and max(counts) <= 3


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method().memory_init(torch.ones(3))]
)
def test_the_budget_changes_no_result(name):
    federation = make_federation(METHODS[name]())
    states, expected_records = run_rounds(federation, 5)
    expected = states[-1]
    state = replace(first_state(federation), memory=ClientMemory(budget=0))
    records = []
    for _ in range(5):
        state, record = run_round(federation, state)
        records.append(record)
    assert not in_ram(state.memory)
    assert records == expected_records and same(state.server, expected.server)
    assert all(same(state.memory[client], row) for client, row in expected.memory.items())


SETTINGS = {
    "rounds": 6,
    "participation": 0.6,
    "batch_size": 10,
    "local_epochs": 1,
    "checkpoint_every": 2,
    "seed": 4,
}


def fit(folder=None, method="fedwmsam", **changed):
    data = list(killed_run.make_clients())
    model = killed_run.NETWORKS["plain"]
    return fedwmsam.fit(
        model, data[:7], method, test=data[7], run_folder=folder, **SETTINGS | changed
    )


def test_the_budget_may_change_when_a_run_goes_on(tmp_path):
    for rounds, budget in ((3, 1000), (4, 0), (5, 0.004), (6, 1000)):
        result = fit(tmp_path / "run", rounds=rounds, memory_budget=budget, resume=True)
    whole = fit()
    assert result.rows == whole.rows and same(result.model, whole.model)


def test_making_later_jobs_before_earlier_ones_are_settled_changes_nothing():
    """Workers take later jobs before earlier clients have returned their results."""

    def train_all_at_once(federation, jobs):
        yield from [(job, train_client(federation, job)) for job in list(jobs)]

    federation = make_federation(FedWMSAM())
    expected = run_rounds(federation, 4)[0][-1]
    state = replace(first_state(federation), memory=ClientMemory(budget=0))
    for _ in range(4):
        state, _ = run_round(replace(federation, trainer=train_all_at_once), state)
    assert same(state.server, expected.server)


def test_a_warm_start_with_rows_on_disk_changes_no_result(tmp_path):
    weights = {k: v + 0.1 for k, v in killed_run.NETWORKS["plain"]().state_dict().items()}
    fit(tmp_path / "run", rounds=3, initial_weights=weights, memory_budget=0)
    result = fit(tmp_path / "run", initial_weights=weights, memory_budget=0, resume=True)
    assert same(result.model, fit(initial_weights=weights).model)


def test_a_diverged_run_keeps_its_last_good_memory(tmp_path):
    extreme = {"lr": 1e18, "clip_norm": None, "method": "scaffold"}
    result = fit(tmp_path / "run", memory_budget=0, **extreme)
    assert result.status.startswith("diverged") and result.status == fit(**extreme).status
    folder = RunFolder.open(tmp_path / "run")
    saved = folder.rewind_to_checkpoint()
    folder.close()
    assert saved.notes["round"] == len(result.rows)


def test_a_run_killed_before_any_write_or_rename_ends_as_one_never_killed(tmp_path, monkeypatch):
    """Copies of the folder are what kill -9 leaves.

    A row is half written, a checkpoint not yet renamed, or an old one not yet removed.
    """
    folder = tmp_path / "run"
    snapshots = tmp_path / "snapshots"

    def snapshot():
        shutil.copytree(folder, snapshots / str(len(list(snapshots.iterdir()))))

    def write_in_halves(file, part):
        file.write(part[: len(part) // 2])
        snapshot()
        file.write(part[len(part) // 2 :])

    def snapshot_before(function):
        def wrapped(*arguments, **options):
            snapshot()
            return function(*arguments, **options)

        return wrapped

    snapshots.mkdir()
    often = {"rounds": 5, "participation": 0.3, "checkpoint_every": 1, "memory_budget": 0}
    fit(folder, **often | {"rounds": 1})
    with monkeypatch.context() as patched:
        patched.setattr(stores, "write_all", write_in_halves)
        patched.setattr(Path, "replace", snapshot_before(Path.replace))
        patched.setattr(Path, "unlink", snapshot_before(Path.unlink))
        fit(folder, **often, resume=True)
    whole = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")}
    copies = list(snapshots.iterdir())
    assert len(copies) > 20
    for copy in copies:
        fit(copy, **often, resume=True)
        assert {name: (copy / name).read_bytes() for name in whole} == whole, copy.name


def test_a_full_disk_is_one_sentence_and_nothing_saved_is_lost(tmp_path, cli):
    settings = [
        "--model",
        "linear",
        "--rounds",
        "6",
        "--local-epochs",
        "1",
        "--checkpoint-every",
        "1",
        "--out",
        tmp_path,
    ]
    settings += ["--set", "memory_budget=0", "-q"]
    arguments = [sys.executable, "-m", "fedwmsam", "run", "--name", "full", *settings]
    command = f"ulimit -f 48; exec {' '.join(map(str, arguments))}"
    full = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert full.returncode == 2 and "Traceback" not in full.stderr, full.stderr
    assert "File too large" in full.stderr and "memory.rows" in full.stderr.replace("\n", "")
    done = checkpoint.rounds_in(tmp_path / "full" / "checkpoints")
    assert done and done[0] < 6
    assert cli("resume", tmp_path / "full", "--memory-budget", "0.01", "-q").code == 0
    assert cli("run", "--name", "whole", *settings[:-3], "-q").code == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
