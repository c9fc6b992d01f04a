"""A run folder after faults: intact files are used, altered ones noticed, foreign ones refused."""

import contextlib
import hashlib
import json
import os

import pytest
import safetensors.torch
import torch
from helpers.fuzzing import damaged_copies, limit_memory
from helpers.small_federation import limit_file_size
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedwmsam import InputError, files
from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError
from fedwmsam.engine.client_state import ClientMemory, Store
from fedwmsam.engine.records import read_json, read_lines
from fedwmsam.engine.run_folder import RunFolder, is_run
from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve_config


def make_folder(path, rounds, every=2):
    """Make a run folder with a line for each round and checkpoints; return its path."""
    folder = RunFolder.create(path, {"rounds": rounds})
    memory = ClientMemory(folder.store)
    for round in range(1, rounds + 1):
        folder.append("metrics.jsonl", {"round": round, "loss": 1 / round})
        folder.append("timings.jsonl", {"round": round})
        if round % every == 0:
            bundles = {"server": {"w": torch.arange(3.0) * round}}
            folder.save(Checkpoint(bundles, {"round": round}), memory)
    folder.close()
    return path


@pytest.fixture
def reopen():
    """Return a function that opens a folder, which is closed after the test."""
    opened = []

    def open_folder(path):
        opened.append(RunFolder.open(path))
        return opened[-1]

    yield open_folder
    for folder in opened:
        folder.close()


def newest_round(reopen, path):
    """Return the round of the newest intact checkpoint, None if there is none."""
    saved = reopen(path).rewind_to_checkpoint()
    return saved and saved.notes["round"]


def contents(path):
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_folder_is_a_run_only_once_all_it_needs_is_there(tmp_path, monkeypatch):
    experiment = prepare(resolve_config({"rounds": 1, "local_epochs": 1, "model": "linear"}))

    def interrupt(self, name, record):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunFolder, "write_json", interrupt)
        experiment.create(tmp_path / "run")
    assert not is_run(tmp_path / "run")
    experiment.create(tmp_path / "run").close()
    experiment.reopen(tmp_path / "run").close()


def test_what_a_killed_process_left_half_written_is_removed(tmp_path, reopen):
    path = make_folder(tmp_path / "run", 4)
    (path / "states").mkdir()
    for leftover in (
        ".model.safetensors.new",
        "checkpoints/.round-0000003.checkpoint.new",
        "states/.round-0.new",
    ):
        (path / leftover).write_bytes(b"half")
    reopen(path).rewind_to_checkpoint()
    assert not list(path.rglob("*.new"))


def test_a_line_cut_short_is_not_continued(tmp_path, reopen):
    """A full disk may leave half a line of timings next to an intact checkpoint."""
    path = make_folder(tmp_path / "run", 4)
    lines = (path / "timings.jsonl").read_bytes().splitlines(keepends=True)
    (path / "timings.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:5])
    folder = reopen(path)
    folder.rewind_to_checkpoint()
    folder.append("timings.jsonl", {"round": 5})
    assert [line["round"] for line in read_lines(path / "timings.jsonl")] == [1, 2, 3, 5]


def test_a_folder_is_given_back_even_if_its_last_line_cannot_be_written(
    tmp_path, reopen, monkeypatch
):
    path = make_folder(tmp_path / "run", 2)
    folder = RunFolder.open(path)
    descriptor = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(files, "open_to_append", lambda path: os.fdopen(descriptor, "a"))
    with pytest.raises(OSError, match="No space left") as first:
        folder.append("recordings.jsonl", {"round": 3})
    with pytest.raises(OSError, match="No space left") as second:
        folder.close()
    assert first.value.errno == second.value.errno
    reopen(path)


def flip_bit(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_altered_metrics_make_an_older_checkpoint_the_right_one(tmp_path, reopen, caplog):
    path = make_folder(tmp_path / "run", 4)
    flip_bit(path / "metrics.jsonl", -3)  # a digit of the last loss
    assert newest_round(reopen, path) == 2
    assert "damaged before its line 5" in caplog.text
    assert len(read_lines(path / "metrics.jsonl")) == 2


@pytest.mark.parametrize("harm", ["altered", "emptied", "removed"])
def test_metrics_that_fit_no_checkpoint_are_refused_and_nothing_is_thrown_away(
    tmp_path, reopen, harm
):
    path = make_folder(tmp_path / "run", 4)
    metrics = path / "metrics.jsonl"
    good = metrics.read_bytes()
    if harm == "altered":
        flip_bit(metrics, 20)
    elif harm == "emptied":
        metrics.write_bytes(b"")
    else:
        metrics.unlink()
    before = contents(path)
    folder = RunFolder.open(path)
    with pytest.raises(
        InputError, match=r"metrics\.jsonl is not as it was written, not even up to round 2"
    ):
        folder.rewind_to_checkpoint()
    folder.close()
    assert contents(path) == before
    metrics.write_bytes(good)
    assert newest_round(reopen, path) == 4


def test_the_digest_of_metrics_goes_on_over_resumes_and_interrupts(tmp_path, reopen):
    path = make_folder(tmp_path / "run", 4)
    folder = RunFolder.open(path)
    folder.rewind_to_checkpoint()
    records = [{"round": round, "loss": 1 / round} for round in range(1, 7)]
    with (path / "metrics.jsonl").open("a") as file:  # interrupted before the digest was updated
        file.write(json.dumps(records[4]) + "\n")
    folder.append_missing_metrics(records)
    folder.save(Checkpoint({}, {"round": 6}), ClientMemory(folder.store))
    folder.close()
    assert newest_round(reopen, path) == 6 and read_lines(path / "metrics.jsonl") == records


def test_a_checkpoint_under_another_rounds_name_is_not_used(tmp_path, reopen):
    path = make_folder(tmp_path / "run", 5)
    newer = checkpoint.path_of(path / "checkpoints", 5)
    checkpoint.path_of(path / "checkpoints", 4).rename(newer)
    assert newest_round(reopen, path) == 2


def test_a_full_disk_under_the_model_is_an_error_of_the_system(tmp_path):
    """The command line turns it into a sentence; safetensors' own writer would hide it."""
    with limit_file_size(1000), pytest.raises(OSError, match="File too large"):
        checkpoint.write_tensors(tmp_path / "model.safetensors", {"w": torch.ones(1000)})
    assert not list(tmp_path.iterdir())


# Any bytes

GOOD = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
fuzz = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


def checkpoint_bytes(folder):
    path = folder / "round-0000001.checkpoint"
    checkpoint.write_checkpoint(path, Checkpoint({"server": GOOD}, {"round": 1}))
    return path.read_bytes()


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Return the bytes of an intact checkpoint."""
    return checkpoint_bytes(tmp_path_factory.mktemp("intact"))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@fuzz
@given(data=st.data())
def test_an_edited_checkpoint_is_refused_or_the_same(tmp_path, intact, data):
    content = data.draw(damaged_copies(intact))
    (tmp_path / "a").write_bytes(content)
    try:
        with limit_memory():
            saved = checkpoint.read_checkpoint(tmp_path / "a")
    except DamagedFileError:
        assert content != intact
    else:
        assert content == intact
        assert same(saved.bundles["server"], GOOD) and saved.notes == {"round": 1}


def add_digest(payload):
    """Return the payload as a checkpoint file, with the right digest."""
    digest = hashlib.blake2b(payload, digest_size=checkpoint.DIGEST_BYTES).digest()
    return checkpoint.MAGIC + digest + payload


@fuzz
@given(data=st.data())
def test_a_forged_checkpoint_is_refused_or_holds_tensors(tmp_path, intact, data):
    """Whoever forges one can also make its digest right."""
    payload = intact[len(checkpoint.MAGIC) + checkpoint.DIGEST_BYTES :]
    (tmp_path / "a").write_bytes(add_digest(data.draw(damaged_copies(payload))))
    try:
        with limit_memory():
            saved = checkpoint.read_checkpoint(tmp_path / "a")
    except DamagedFileError:
        return
    for bundle in saved.bundles.values():
        assert all(isinstance(value, torch.Tensor) for value in bundle.values())


NOTES = [
    {"c": ["load", [3]]},
    {"c": ["float32", [10**15]]},
    {"c": ["float32", [-1]]},
    {"c": ["float32", "ab"]},
    {"c": []},
    {"c": [3, 4]},
    {"c": ["float32", [2**62, 2**62]]},
]


@pytest.mark.parametrize("notes", NOTES)
def test_rows_that_a_checkpoint_merely_claims_take_no_memory(tmp_path, notes):
    index = {
        "clients": torch.tensor([1]),
        "slots": torch.tensor([0]),
        "digests": torch.zeros(16, dtype=torch.uint8),
    }
    (tmp_path / "rows").write_bytes(bytes(100))
    store = Store(tmp_path / "rows")
    with limit_memory(), pytest.raises(DamagedFileError):
        store.check(Checkpoint({"memory": index}, {"memory": notes}))
    store.close()


@pytest.mark.parametrize("part", ["clients", "slots", "digests"])
def test_an_index_that_lacks_a_part_is_damage(tmp_path, part):
    index = {name: torch.zeros(1, dtype=torch.uint8) for name in ("clients", "slots", "digests")}
    del index[part]
    saved = Checkpoint({"memory": index}, {"memory": {"c": ["float32", [3]]}})
    with pytest.raises(DamagedFileError):
        Store(tmp_path / "rows").check(saved)


@fuzz
@given(data=st.data())
def test_an_edited_model_is_refused_or_holds_tensors(tmp_path, data):
    content = data.draw(damaged_copies(safetensors.torch.save(GOOD)))
    (tmp_path / "model.safetensors").write_bytes(content)
    try:
        with limit_memory():
            tensors = checkpoint.read_tensors(tmp_path / "model.safetensors")
    except InputError as refusal:
        assert "model.safetensors cannot be read" in str(refusal)
    else:
        assert all(isinstance(value, torch.Tensor) for value in tensors.values())


@fuzz
@given(data=st.data())
def test_json_files_hold_objects_or_are_refused(tmp_path, data):
    content = data.draw(
        damaged_copies(b'{"round": 1, "loss": 0.25}\n{"round": 2, "loss": null}\n')
        | st.just(b"[" * 100_000)
    )
    (tmp_path / "a").write_bytes(content)
    for read in (read_lines, lambda path: [read_json(path)]):
        with contextlib.suppress(InputError):
            assert all(isinstance(record, dict) for record in read(tmp_path / "a"))
