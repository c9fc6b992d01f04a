"""Clients' rows in RAM and on disk: the same values, whatever the budget and wherever a run is killed."""

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
from helpers.small_federation import make, run
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine import checkpoint
from fedwmsam.engine import client_state as stores
from fedwmsam.engine.checkpoint import Checkpoint
from fedwmsam.engine.client_state import PAGE, ClientMemory, Store, index_of
from fedwmsam.engine.rounds import first_state, run_round, train_client
from fedwmsam.engine.run_folder import RunFolder
from fedwmsam.methods import METHODS, FedWMSAM

SIZE = 5 * 8 + 2
"""Bytes of a row."""


def row(value):
    return {
        "c_k": torch.full((5,), float(value), dtype=torch.float64),
        "n": torch.tensor(value, dtype=torch.int16),
    }


def values(memory):
    """What is remembered, as plain numbers; both parts of a row must agree."""
    rows = {
        client: (set(found["c_k"].tolist()), found["n"].item()) for client, found in memory.items()
    }
    assert all(numbers == {float(n)} for numbers, n in rows.values())
    return {client: n for client, (_, n) in rows.items()}


def after(memory, changed):
    changes = memory.changing()
    for client, value in changed.items():
        changes.put(client, row(value))
    return changes.done()


def slots(memory):
    return {client: found.slot.number for client, found in memory.rows.items() if found.slot}


def in_ram(memory):
    return {client for client, found in memory.rows.items() if found.vectors is not None}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Disk:
    """A run folder without the training: rounds that only change the memory."""

    def __init__(self, path, budget=0):
        self.folder = (
            RunFolder.open(path)
            if (path / "config.toml").exists()
            else RunFolder.create(path, {"rounds": 9})
        )
        found = self.folder.newest()
        self.memory = ClientMemory(self.folder.store, budget)
        self.memory = self.folder.recall(found, self.memory) if found else self.memory
        self.round = found.notes["round"] if found else 0

    def train(self, changed):
        self.memory = after(self.memory, changed)
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
    first = after(ClientMemory(budget=budget), {1: 10, 2: 20})
    second = after(first, {2: 21, 3: 31})
    third = after(second, {1: 12, 2: 22})
    assert values(first) == {1: 10, 2: 20}
    assert values(second) == {1: 10, 2: 21, 3: 31}
    assert values(third) == {1: 12, 2: 22, 3: 31}


def test_changes_given_up_leave_no_trace():
    memory = after(ClientMemory(budget=0), {1: 10, 2: 20})
    changes = memory.changing()
    changes.put(1, row(11))
    changes.put(3, row(31))
    assert memory.store.count == 4
    del changes
    assert values(memory) == {1: 10, 2: 20}
    assert set(slots(after(memory, {3: 32, 4: 42})).values()) == {0, 1, 2, 3}


def test_ram_is_used_up_to_the_budget_and_no_further():
    memory = after(ClientMemory(budget=3 * SIZE), {client: client for client in range(5)})
    assert in_ram(memory) == {0, 1, 2} and set(slots(memory)) == {3, 4}
    memory = after(
        memory, {0: 10, 4: 14}
    )  # the row to be replaced is in RAM until the round is done
    assert in_ram(memory) == {1, 2}
    memory = after(memory, {3: 23})
    assert in_ram(memory) == {1, 2, 3}
    assert values(memory) == {0: 10, 1: 1, 2: 2, 3: 23, 4: 14}


def test_within_the_budget_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "unnamed_file", lambda: pytest.fail("a file was made"))
    assert values(after(ClientMemory(budget=5 * SIZE), {k: k for k in range(5)})) == {
        k: k for k in range(5)
    }


def test_clients_of_which_nothing_is_kept_have_no_row():
    changes = ClientMemory(budget=0).changing()
    changes.put(1, {})
    assert not changes.done() and changes.done().get(1) is None


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
    memory, changes = None, ClientMemory(budget=0).changing()
    for client in range(3):
        changes.put(client, vectors)
    memory = changes.done()
    for found in memory.values():
        assert list(found) == list(vectors)
        for name, value in found.items():
            assert value.dtype == vectors[name].dtype and value.shape == vectors[name].shape
            assert stores.as_bytes(value) == stores.as_bytes(vectors[name])
            assert value.data_ptr() % 64 == 0


def test_a_row_of_another_kind_is_refused():
    changes = ClientMemory(budget=0).changing()
    changes.put(1, row(1))
    with pytest.raises(
        InputError, match=r"was c_k torch.float64\[5\], n .* is now c_k torch.float32\[5\], n "
    ):
        changes.put(2, {"c_k": torch.zeros(5), "n": torch.tensor(1, dtype=torch.int16)})
    changes.put(3, dict(reversed(row(3).items())))  # the order of names is no difference
    assert values(changes.done()) == {1: 1, 3: 3}


def test_a_temporary_file_has_no_name_and_goes_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before, found, held = open_files(), [], []

    def look(progress):
        held.append(progress)  # a callback that holds on to the run does not keep the file open
        found.append(
            (sum(str(tmp_path) in file for file in open_files()), list(tmp_path.iterdir()))
        )

    data = list(killed_run.clients())
    fedwmsam.fit(torch.nn.Linear(8, 3), data, rounds=3, memory_budget=0, callbacks=[look])
    assert found == [(1, [])] * 3
    assert open_files() == before


def open_files():
    paths = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            paths.append(str(link.readlink()))
    return sorted(paths)


# Slots and checkpoints


def test_a_slot_is_used_again_only_when_no_kept_checkpoint_needs_it(disk):
    d, used = disk(), []
    for value in range(7):
        d.train({5: value})
        used.append(slots(d.memory)[5])
        d.save()
    assert used == [0, 1, 2, 0, 1, 2, 0]


def test_versions_that_no_checkpoint_has_free_their_slots_at_once(disk):
    d = disk()
    for value in range(10):
        d.train({5: value})
    assert d.folder.store.count == 2


def test_after_a_crash_both_checkpoints_keep_their_slots(disk):
    d = disk()
    d.train({1: 10, 2: 20})
    d.save()
    d.train({1: 11})
    d.save()
    d.train({2: 22, 3: 32})  # lost
    d = disk()
    assert values(d.memory) == {1: 11, 2: 20}
    taken = {slot for round in (1, 2) for slot in slots_on_disk(d, round)}
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
    return {
        slot
        for _, slot, _ in index_of(
            checkpoint.read_checkpoint(checkpoint.path_of(d.folder.checkpoints, round))
        )
    }


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


CUTS = [
    (PAGE + SIZE, {1: 10, 2: 20}),
    (PAGE + SIZE - 1, {1: 10}),
    (SIZE, {1: 10}),
    (SIZE - 1, {}),
    (0, {}),
    (None, {}),
]


@pytest.mark.parametrize(("length", "left"), CUTS)
def test_a_file_cut_short_or_gone(disk, length, left):
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
        patched.setattr(stores, "named_file", refuse)
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
    """After a power cut a file may be there again that was deleted last; its slots hold other rows by now."""
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
    d, written = disk(budget=float("inf")), []
    write = Store.write
    monkeypatch.setattr(
        Store,
        "write",
        lambda self, vectors: written.append(int(vectors["n"])) or write(self, vectors),
    )
    d.train({1: 10, 2: 20})
    d.save()
    d.train({2: 21})
    d.save()
    d.save()
    assert written == [10, 20, 21]
    assert in_ram(d.memory) == {1, 2}


def test_rows_are_durable_before_the_checkpoint_that_names_them(disk, monkeypatch):
    d, events = disk(), []
    fsync, replace_ = os.fsync, Path.replace

    def noted(descriptor):
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(
        Path, "replace", lambda self, target: events.append("rename") or replace_(self, target)
    )
    d.train({1: 10})
    d.save()
    assert (
        events.index("memory.rows")
        < events.index(".round-0000001.checkpoint.new")
        < events.index("rename")
    )
    assert events.index("checkpoints") < events.index("rename")  # the new file's own name


# Against a dictionary


class AgainstADictionary(RuleBasedStateMachine):
    """Rounds, checkpoints, kills and damage in any order; every kept checkpoint stays whole all the time."""

    budgets = st.sampled_from([0, SIZE, 3 * SIZE, float("inf")])
    clients = st.sets(st.integers(0, 6), max_size=4)

    @initialize(budget=budgets)
    def begin(self, budget):
        self.place = tempfile.TemporaryDirectory()
        self.disk, self.now = Disk(Path(self.place.name) / "run", budget), {}
        self.numbers = iter(range(1, 9999))  # no two rows alike
        self.saved = {}
        """What each checkpoint on disk remembers."""
        self.earlier = []

    @rule(clients=clients)
    def round(self, clients):
        changed = dict(zip(sorted(clients), self.numbers, strict=False))
        self.earlier = [*self.earlier[-2:], (self.disk.memory, self.now)]
        self.disk.train(changed)
        self.now = self.now | changed

    @rule(clients=clients)
    def round_given_up(self, clients):
        after(self.disk.memory, dict.fromkeys(clients, next(self.numbers)))

    @precondition(lambda self: self.disk.round not in self.saved)
    @rule()
    def save(self):
        self.disk.save()
        self.saved = dict(sorted((self.saved | {self.disk.round: self.now}).items())[-2:])

    @rule(budget=budgets)
    def kill(self, budget):
        self.earlier = []
        self.disk.folder.close()
        self.disk = Disk(self.disk.folder.path, budget)
        round = max(self.saved, default=0)
        self.now = self.saved.get(round, {})
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
            assert values(self.disk.memory) == self.now
            assert all(values(memory) == then for memory, then in self.earlier)

    @invariant()
    def every_kept_checkpoint_is_whole(self):
        for round, saved in getattr(self, "saved", {}).items():
            found = checkpoint.read_checkpoint(
                checkpoint.path_of(self.disk.folder.checkpoints, round)
            )
            reader = Store(self.disk.folder.store.path)
            reader.check(found)
            memory = ClientMemory(reader).stored(reader.adopt([found])[0])
            assert values(memory) == saved
            reader.close()

    @invariant()
    def the_file_does_not_grow_for_ever(self):
        """Seven rows now and in two checkpoints; four of each memory before, and of the one in the making."""
        if hasattr(self, "disk"):
            assert self.disk.folder.store.count <= 3 * 7 + 4 * 4

    def teardown(self):
        if hasattr(self, "disk"):
            self.disk.folder.close()
            self.place.cleanup()


class TestAgainstADictionary(AgainstADictionary.TestCase):
    settings = settings(max_examples=15, stateful_step_count=25)


@pytest.mark.slow
class TestAgainstADictionaryForLong(AgainstADictionary.TestCase):
    settings = settings(max_examples=500, stateful_step_count=40)


# Whole runs


def test_a_round_holds_few_rows_at_a_time(monkeypatch):
    """However large the cohort: a row is read when its client is asked and again when it has answered."""
    federation = make(FedWMSAM(), sizes=(5,) * 30, per_round=30)
    state = replace(first_state(federation), memory=ClientMemory(budget=0))
    state, _ = run_round(federation, state)
    alive, most = weakref.WeakSet(), []
    read, write = Store.read, Store.write

    def reading(self, number):
        found = read(self, number)
        alive.update(found.values())
        most.append(len(alive))
        return found

    def writing(self, vectors):
        alive.update(vectors.values())
        most.append(len(alive))
        return write(self, vectors)

    monkeypatch.setattr(Store, "read", reading)
    monkeypatch.setattr(Store, "write", writing)
    run_round(federation, state)
    assert len(most) == 90 and max(most) <= 3


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method().memory_init(torch.ones(3))]
)
def test_the_budget_changes_no_number(name):
    federation = make(METHODS[name]())
    expected, records = run(federation, 5)
    state, found = replace(first_state(federation), memory=ClientMemory(budget=0)), []
    for _ in range(5):
        state, record = run_round(federation, state)
        found.append(record)
    assert not in_ram(state.memory)
    assert found == records and same(state.server, expected[-1].server)
    assert all(same(state.memory[k], vectors) for k, vectors in expected[-1].memory.items())


SETTINGS = {
    "rounds": 6,
    "participation": 0.6,
    "batch_size": 10,
    "local_epochs": 1,
    "checkpoint_every": 2,
    "seed": 4,
}


def fitted(folder=None, method="fedwmsam", **changed):
    data = list(killed_run.clients())
    model = killed_run.NETWORKS["plain"]
    return fedwmsam.fit(
        model, data[:7], method, test=data[7], run_folder=folder, **SETTINGS | changed
    )


def test_the_budget_may_change_when_a_run_goes_on(tmp_path):
    for rounds, budget in ((3, 1000), (4, 0), (5, 0.004), (6, 1000)):
        result = fitted(tmp_path / "run", rounds=rounds, memory_budget=budget, resume=True)
    whole = fitted()
    assert result.rows == whole.rows and same(result.model, whole.model)


def test_the_order_in_which_clients_are_asked_and_answer_changes_nothing():
    """With workers later clients are asked before earlier ones have answered."""

    def all_at_once(federation, jobs):
        yield from [(job, train_client(federation, job)) for job in list(jobs)]

    federation = make(FedWMSAM())
    expected = run(federation, 4)[0][-1]
    state = replace(first_state(federation), memory=ClientMemory(budget=0))
    for _ in range(4):
        state, _ = run_round(replace(federation, trainer=all_at_once), state)
    assert same(state.server, expected.server)


def test_a_warm_start_with_rows_on_disk(tmp_path):
    weights = {k: v + 0.1 for k, v in killed_run.NETWORKS["plain"]().state_dict().items()}
    fitted(tmp_path / "run", rounds=3, initial_weights=weights, memory_budget=0)
    result = fitted(tmp_path / "run", initial_weights=weights, memory_budget=0, resume=True)
    assert same(result.model, fitted(initial_weights=weights).model)


def test_a_diverged_run_keeps_its_last_good_memory(tmp_path):
    extreme = {"lr": 1e18, "clip_norm": None, "method": "scaffold"}
    result = fitted(tmp_path / "run", memory_budget=0, **extreme)
    assert result.status.startswith("diverged") and result.status == fitted(**extreme).status
    folder = RunFolder.open(tmp_path / "run")
    found = folder.newest()
    folder.close()
    assert found.notes["round"] == len(result.rows)


def test_killed_before_any_write_or_rename(tmp_path, monkeypatch):
    """The folder as kill -9 leaves it: a row half written, a checkpoint not yet in place, old ones not yet gone."""
    folder, snapshots = tmp_path / "run", tmp_path / "snapshots"

    def snapshot():
        shutil.copytree(folder, snapshots / str(len(list(snapshots.iterdir()))))

    def half(file, part):
        file.write(part[: len(part) // 2])
        snapshot()
        file.write(part[len(part) // 2 :])

    def before(function):
        return lambda *arguments, **named: (snapshot(), function(*arguments, **named))[1]

    snapshots.mkdir()
    often = {"rounds": 5, "participation": 0.3, "checkpoint_every": 1, "memory_budget": 0}
    fitted(folder, **often | {"rounds": 1})
    with monkeypatch.context() as patched:
        patched.setattr(stores, "write_whole", half)
        patched.setattr(Path, "replace", before(Path.replace))
        patched.setattr(Path, "unlink", before(Path.unlink))
        fitted(folder, **often, resume=True)
    whole = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")}
    copies = list(snapshots.iterdir())
    assert len(copies) > 20
    for copy in copies:
        fitted(copy, **often, resume=True)
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
    words = " ".join(
        map(str, [sys.executable, "-m", "fedwmsam", "run", "--name", "full", *settings])
    )
    full = subprocess.run(
        ["bash", "-c", f"ulimit -f 48; exec {words}"], capture_output=True, text=True
    )
    assert full.returncode == 2 and "Traceback" not in full.stderr, full.stderr
    assert "File too large" in full.stderr and "memory.rows" in full.stderr.replace("\n", "")
    done = checkpoint.rounds_in(tmp_path / "full" / "checkpoints")
    assert done and done[0] < 6
    assert cli("resume", tmp_path / "full", "--memory-budget", "0.01", "-q").code == 0
    assert cli("run", "--name", "whole", *settings[:-3], "-q").code == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
