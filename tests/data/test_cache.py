"""The cache of decoded arrays: written once, mapped, repaired, shared by processes, not needed."""

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwmsam.data import cache
from fedwmsam.data.cache import Decoded, load_or_decode


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"something")
    return path


class Decoder:
    """Decodes to known arrays and counts how often it had to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Decoded:
        self.calls += 1
        pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
        arrays = {
            "train_inputs": pixels,
            "train_labels": np.array([1, 0]),
            "train_groups": np.array([0, 1]),
        }
        return Decoded(arrays, {"names": ["ä", "b"], "dropped": 2})


def only_entry(tmp_path: Path) -> Path:
    folder = tmp_path / "own-cache/fedwmsam/decoded"
    (entry,) = [path for path in folder.iterdir() if path.name[0] != "."]
    return entry


def check(decoded: Decoded) -> None:
    expected = Decoder()()
    assert decoded.metadata == expected.metadata
    assert decoded.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert decoded.arrays[name].tolist() == array.tolist()


def test_the_second_time_is_mapped(source: Path) -> None:
    decode = Decoder()
    for _ in range(3):
        decoded = load_or_decode("kind", [source], {"size": 3}, decode)
        check(decoded)
        assert isinstance(decoded.arrays["train_inputs"], np.memmap), (
            "mapped even by the process that has written it"
        )
    assert decode.calls == 1
    split = decoded.split("train")
    assert split.inputs.shape == (2, 3, 4) and split.inputs.dtype == torch.uint8
    assert (
        split.labels.tolist() == [1, 0]
        and split.groups is not None
        and split.groups.tolist() == [0, 1]
    )


def test_writing_to_a_mapped_tensor_does_not_reach_the_cache(
    source: Path, recwarn: pytest.WarningsRecorder
) -> None:
    load_or_decode("kind", [source], {}, Decoder())
    load_or_decode("kind", [source], {}, Decoder()).split("train").inputs.zero_()
    check(load_or_decode("kind", [source], {}, Decoder()))
    assert not recwarn.list, "torch warns about arrays that must not be written to"


def test_other_files_options_or_kinds_have_entries_of_their_own(
    source: Path, tmp_path: Path
) -> None:
    decode = Decoder()
    load_or_decode("kind", [source], {"size": 3}, decode)
    load_or_decode("kind", [source], {"size": 4}, decode)
    load_or_decode("other", [source], {"size": 3}, decode)
    source.write_bytes(b"something else")
    load_or_decode("kind", [source], {"size": 3}, decode)
    os.utime(source, ns=(1, 1))
    load_or_decode("kind", [source], {"size": 3}, decode)
    (tmp_path / "copy").write_bytes(source.read_bytes())
    os.utime(tmp_path / "copy", ns=(1, 1))
    load_or_decode("kind", [tmp_path / "copy"], {"size": 3}, decode)
    assert decode.calls == 6


def truncate(folder: Path) -> None:
    content = (folder / "train_inputs.npy").read_bytes()
    (folder / "train_inputs.npy").write_bytes(content[:-1])


def flip_bit(folder: Path, name: str, position: int) -> None:
    content = bytearray((folder / name).read_bytes())
    content[position] ^= 1
    (folder / name).write_bytes(content)


DAMAGE = {
    "truncated": truncate,
    "emptied": lambda folder: (folder / "train_labels.npy").write_bytes(b""),
    "removed": lambda folder: (folder / "train_labels.npy").unlink(),
    "a changed label": lambda folder: flip_bit(folder, "train_labels.npy", -8),
    "a changed header": lambda folder: flip_bit(folder, "train_inputs.npy", 30),
    "a changed manifest": lambda folder: flip_bit(folder, cache.MANIFEST, -80),
    "a changed note": lambda folder: (folder / cache.MANIFEST).write_text(
        (folder / cache.MANIFEST).read_text().replace("dropped", "dripped")
    ),
    "no manifest": lambda folder: (folder / cache.MANIFEST).unlink(),
    "another manifest": lambda folder: (folder / cache.MANIFEST).write_text(json.dumps({"a": 1})),
    "another array": lambda folder: np.save(
        folder / "train_inputs.npy", np.zeros((2, 3, 5), np.uint8)
    ),
    "pickled objects": lambda folder: np.save(
        folder / "train_inputs.npy", np.array([{}]), allow_pickle=True
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_again(source: Path, tmp_path: Path, damage: str) -> None:
    decode = Decoder()
    load_or_decode("kind", [source], {}, decode)
    DAMAGE[damage](only_entry(tmp_path))
    check(load_or_decode("kind", [source], {}, decode))
    check(load_or_decode("kind", [source], {}, decode))
    assert decode.calls == 2
    assert len(list((tmp_path / "own-cache/fedwmsam/decoded").iterdir())) == 1, (
        "nothing is left lying about"
    )


def test_without_a_writable_cache_everything_works(source: Path, tmp_path: Path) -> None:
    (tmp_path / "own-cache").touch()  # a file in its place stops root too, which permissions do not
    decode = Decoder()
    check(load_or_decode("kind", [source], {}, decode))
    check(load_or_decode("kind", [source], {}, decode))
    assert decode.calls == 2


def test_a_full_disk_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(cache.os, "fsync", full)
    check(load_or_decode("kind", [source], {}, Decoder()))
    assert list((tmp_path / "own-cache/fedwmsam/decoded").iterdir()) == []


def test_many_at_once(source: Path, tmp_path: Path) -> None:
    results: list[Decoded] = []

    def load() -> None:
        results.append(load_or_decode("kind", [source], {}, Decoder()))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for decoded in results:
        check(decoded)
    assert len(list((tmp_path / "own-cache/fedwmsam/decoded").iterdir())) == 1


def test_only_old_leftovers_are_swept(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own-cache/fedwmsam/decoded"
    for name, age in (("old", 2 * cache.STALE_SECONDS), ("young", 0)):
        (folder / f".part-{name}").mkdir(parents=True)
        os.utime(folder / f".part-{name}", (time.time() - age,) * 2)
    load_or_decode("kind", [source], {}, Decoder())
    assert not (folder / ".part-old").exists() and (folder / ".part-young").exists()
