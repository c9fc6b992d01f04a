"""What is written comes back, bit for bit, or not at all."""

import hashlib
import os

import pytest
import safetensors.torch
import torch

from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError
from fedwmsam.files import atomic_replace


def test_bundles_come_back_as_they_were(tmp_path):
    zero = torch.zeros(3)
    grid = torch.arange(6.0).reshape(2, 3)
    bundles = {
        "server": {
            "w": zero,
            "Delta": zero,
            "c": zero,
            "alpha": torch.tensor(0.25, dtype=torch.float64),
        },
        "buffers": {"block|1.mean": grid.T, "n|a|b": torch.tensor(7)},
        "nothing": {},
    }
    notes = {"round": 3, "words": ["ü", None], "deep": {"bundle": 1.5}}
    checkpoint.write_checkpoint(tmp_path / "file", Checkpoint(bundles, notes))
    saved = checkpoint.read_checkpoint(tmp_path / "file")
    assert saved.notes == notes and saved.bundles.keys() == bundles.keys()
    for bundle, vectors in bundles.items():
        assert saved.bundles[bundle].keys() == vectors.keys()
        for name, value in vectors.items():
            again = saved.bundles[bundle][name]
            assert again.dtype == value.dtype and torch.equal(again, value)
    saved.bundles["server"]["w"].add_(1)
    assert not saved.bundles["server"]["Delta"].any()  # what shared memory does so no more


def test_another_format_is_refused_and_named(tmp_path):
    path = tmp_path / "file"
    checkpoint.write_checkpoint(path, Checkpoint({"server": {"w": torch.ones(4)}}, {}))
    content = path.read_bytes()
    other = b"fedwmsam checkpoint 9\n"
    assert content.startswith(checkpoint.MAGIC) and len(other) == len(checkpoint.MAGIC)
    path.write_bytes(other + content[len(other) :])
    with pytest.raises(DamagedFileError, match=r"file is damaged$"):
        checkpoint.read_checkpoint(path)
    digest = content[len(checkpoint.MAGIC) :][:32]
    payload = content[len(checkpoint.MAGIC) + 32 :]
    assert digest == hashlib.blake2b(payload, digest_size=32).digest()


def test_a_file_and_then_its_name_are_on_the_disk(tmp_path, monkeypatch):
    """A file is flushed before it is renamed, and its folder after.

    So a power cut leaves the old file or the complete new one.
    """
    path = tmp_path / "file"
    flushed = []
    fsync = os.fsync
    path.write_text("old")

    def note_fsync(descriptor):
        fsync(descriptor)
        flushed.append((os.fstat(descriptor).st_ino, path.read_text()))

    monkeypatch.setattr(os, "fsync", note_fsync)
    with atomic_replace(path) as temporary:
        temporary.write_text("new")
    assert flushed == [(path.stat().st_ino, "old"), (tmp_path.stat().st_ino, "new")]


def test_tensors_move_to_the_device_asked_for():
    moved = checkpoint.to_device({"w": torch.ones(2)}, torch.device("meta"))
    assert moved["w"].device.type == "meta" and moved["w"].shape == (2,)


def test_pruning_keeps_what_is_named_and_what_is_no_checkpoint(tmp_path):
    rounds = (3, 12, 1_000_000, 12_345_678)
    for round in rounds:
        checkpoint.path_of(tmp_path, round).touch()
    (tmp_path / "memory.rows").touch()
    assert checkpoint.rounds_in(tmp_path) == sorted(rounds, reverse=True)

    class Kept:
        def __contains__(self, round):
            # Somebody removes files at the same time.
            checkpoint.path_of(tmp_path, 3).unlink(missing_ok=True)
            return round == 12

    checkpoint.prune(tmp_path, Kept())
    assert checkpoint.rounds_in(tmp_path) == [12]
    assert (tmp_path / "memory.rows").exists()


def test_a_models_tensors_are_a_file_that_others_read(tmp_path):
    grid = torch.arange(6.0).reshape(2, 3)
    path = tmp_path / "model.safetensors"
    checkpoint.write_tensors(path, {"rows": grid, "columns": grid.T.clone().T})
    tensors = safetensors.torch.load_file(path)
    assert tensors.keys() == {"rows", "columns"}
    assert all(torch.equal(value, grid) for value in tensors.values())
    assert list(tmp_path.iterdir()) == [path]
