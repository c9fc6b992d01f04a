"""Arrays saved by numpy: names, layouts, labels, groups, and archives that lie about their size."""

import io
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.data_files import catch_refusal

from fedwmsam.data import load_dataset
from fedwmsam.data.npy import memmap_npy

FLOATS = np.arange(40, dtype=np.float32).reshape(10, 4)
LABELS = np.arange(10) % 3


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_x_and_y_are_divided(tmp_path: Path) -> None:
    data = load_dataset(
        save(tmp_path / "mine.npz", x=FLOATS, y=LABELS, groups=np.array([7, 9] * 5))
    )
    assert (len(data.train), len(data.test), data.num_classes, data.name) == (8, 2, 3, "mine")
    together = torch.cat([data.train.inputs, data.test.inputs])
    labels = torch.cat([data.train.labels, data.test.labels])
    groups = torch.cat([data.train.groups, data.test.groups])
    for row, label, group in zip(together, labels, groups, strict=True):
        index = int(row[0]) // 4
        assert label == LABELS[index] and data.group_names[group] == ("7", "9")[index % 2]
    assert sorted(together[:, 0].tolist()) == FLOATS[:, 0].tolist()
    assert data.transform(data.train.inputs).dtype == torch.float32 and data.input_shape == (4,)


@pytest.mark.parametrize("compressed", [False, True])
def test_four_arrays_are_taken_as_they_are(tmp_path: Path, compressed: bool) -> None:
    write = np.savez_compressed if compressed else np.savez
    write(
        tmp_path / "a.npz",
        x_train=FLOATS,
        y_train=LABELS,
        x_test=FLOATS[:3],
        y_test=LABELS[:3, None],
        client_train=np.array(["b", "a"] * 5),
        client_test=np.array(["b", "z", "a"]),
    )
    data = load_dataset(str(tmp_path / "a.npz"))
    assert torch.equal(
        data.train.inputs, torch.from_numpy(FLOATS)
    ) and data.test.labels.tolist() == [0, 1, 2]
    assert data.group_names == ("a", "b", "z")
    assert data.train.groups is not None and data.train.groups.tolist() == [1, 0] * 5
    assert data.test.groups is not None and data.test.groups.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("dtype", "shape", "stored", "input_shape"),
    [
        (np.uint8, (10, 8, 8), torch.uint8, (1, 8, 8)),
        (np.uint8, (10, 8, 9, 3), torch.uint8, (3, 8, 9)),
        (np.uint8, (10, 3, 8, 9), torch.uint8, (3, 8, 9)),
        (np.uint8, (10, 1, 8, 9), torch.uint8, (1, 8, 9)),
        (np.float32, (10, 8, 9, 1), torch.float32, (1, 8, 9)),
        (np.float64, (10, 3, 8, 9), torch.float64, (3, 8, 9)),
        (np.float16, (10, 5), torch.float16, (5,)),
        (np.dtype(">f4"), (10, 5), torch.float32, (5,)),
        (np.int32, (10, 5), torch.int32, (5,)),
        (np.uint16, (10, 5), torch.int64, (5,)),
        (np.bool_, (10, 5), torch.bool, (5,)),
        (np.uint8, (10, 5), torch.uint8, (5,)),
    ],
)
def test_layouts(
    tmp_path: Path, dtype: Any, shape: tuple[int, ...], stored: torch.dtype, input_shape: Any
) -> None:
    data = load_dataset(save(tmp_path / "a.npz", x=np.ones(shape, dtype), y=LABELS))
    assert data.train.inputs.dtype == stored and data.input_shape == input_shape
    batch = data.transform(data.train.inputs[torch.tensor([1, 0])])
    assert batch.dtype == torch.float32 and torch.isfinite(batch).all()


def test_channels_are_moved_not_mixed(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    arrays = {"x_train": pixels, "y_train": LABELS[:4], "x_test": pixels, "y_test": LABELS[:4]}
    data = load_dataset(save(tmp_path / "a.npz", **arrays))
    assert data.train.inputs.tolist() == pixels.transpose(0, 3, 1, 2).tolist()
    arrays = {**arrays, "x_train": np.asfortranarray(pixels)}
    fortran = load_dataset(save(tmp_path / "b.npz", **arrays))
    assert fortran.train.inputs.tolist() == data.train.inputs.tolist()


def test_tokens_stay_whole_numbers(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", x=np.full((10, 5), 300, np.uint16), y=LABELS)
    data = load_dataset(path, tokens=True)
    assert (
        data.transform(data.train.inputs).dtype == torch.int64
        and int(data.transform(data.train.inputs).max()) == 300
    )
    assert "tokens" in catch_refusal(
        lambda: load_dataset(save(tmp_path / "b.npz", x=FLOATS, y=LABELS), tokens=True)
    )


def test_text_labels_become_classes(tmp_path: Path) -> None:
    data = load_dataset(save(tmp_path / "a.npz", x=FLOATS, y=np.array(["dog", "cat"] * 5)))
    assert data.class_names == ("cat", "dog") and data.num_classes == 2


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": FLOATS}, "x and y"),
        ({"a": FLOATS, "b": LABELS}, "none of them"),
        ({"x_train": FLOATS, "y_train": LABELS}, "x_test"),
        ({"x": FLOATS, "y": LABELS[:9]}, "10 rows"),
        ({"x": FLOATS, "y": LABELS, "groups": LABELS[:2]}, "groups"),
        ({"x": FLOATS[:, 0], "y": LABELS}, "row for each sample"),
        ({"x": np.array([["a"]] * 10), "y": LABELS}, "numbers"),
        ({"x": FLOATS, "y": LABELS - 1}, "labels from -1"),
        ({"x": FLOATS, "y": LABELS + 0.5}, "whole numbers"),
        ({"x": FLOATS, "y": np.full(10, np.nan)}, "whole numbers"),
        ({"x": FLOATS, "y": LABELS + 10**6}, "below 65536"),
        ({"x": FLOATS, "y": np.full(10, 2**63, np.uint64)}, "below 65536"),
        ({"x": np.where(FLOATS == 20, np.nan, FLOATS), "y": LABELS}, "row 5"),
        ({"x": np.where(FLOATS == 20, 1e300, FLOATS.astype(np.float64)), "y": LABELS}, "row 5"),
        ({"x": FLOATS[:1], "y": LABELS[:1]}, "one sample"),
        ({"x": FLOATS.astype(complex), "y": LABELS}, "c16"),
        ({"x": FLOATS, "y": np.array([None] * 10)}, "pickled objects"),
        ({"x": np.zeros((10, 0)), "y": LABELS}, "one item or more"),
        ({"x": np.float64(3), "y": LABELS}, "dimensions"),
        (
            {"x_train": FLOATS, "y_train": LABELS, "x_test": FLOATS[:, :3], "y_test": LABELS},
            "the same",
        ),
        (
            {
                "x_train": FLOATS,
                "y_train": LABELS,
                "x_test": FLOATS,
                "y_test": np.array(["a"] * 10),
            },
            "one kind",
        ),
        (
            {
                "x_train": FLOATS,
                "y_train": LABELS,
                "x_test": FLOATS,
                "y_test": LABELS,
                "groups_train": LABELS,
            },
            "both",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    message = catch_refusal(lambda: load_dataset(save(tmp_path / "a.npz", **arrays)))
    assert words in message and str(tmp_path / "a.npz") in message


def npy_bytes(shape: tuple[int, ...], content: bytes, dtype: str = "|u1") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def lying_zip(path: Path, content: bytes, claimed: int | None = None) -> str:
    """Write an archive whose member x claims `claimed` bytes in both headers of a zip file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", npy_bytes((4,), bytes(4)))
    if claimed is not None:
        raw = path.read_bytes()
        path.write_bytes(raw.replace(struct.pack("<I", len(content)), struct.pack("<I", claimed)))
    return str(path)


def peak_memory(call: Any) -> int:
    """Return the most bytes that Python had allocated at once during the call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(4, 10**9), (2**40, 2**20), (4, 5), (4, 3)])
def test_a_header_that_lies_takes_no_memory(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = lying_zip(tmp_path / "a.npz", npy_bytes(shape, bytes(16)))
    assert peak_memory(lambda: catch_refusal(lambda: load_dataset(path))) < 4 << 20
    (tmp_path / "x.npy").write_bytes(npy_bytes(shape, bytes(16)))
    np.save(tmp_path / "y.npy", LABELS[:4])
    assert (
        peak_memory(lambda: catch_refusal(lambda: load_dataset(str(tmp_path / "x.npy")))) < 4 << 20
    )


def test_a_zip_and_a_header_that_lie_together_take_no_memory(tmp_path: Path) -> None:
    claimed = 99 << 20
    header = npy_bytes((4, (claimed - 128) // 4), b"")
    content = header + bytes(64)
    exact = 4 * ((claimed - 128) // 4) + len(header)
    path = lying_zip(tmp_path / "a.npz", content, claimed=exact)
    assert peak_memory(lambda: catch_refusal(lambda: load_dataset(path))) < 8 << 20


def test_bombs_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    rows = (101 << 20) // 4
    path = lying_zip(tmp_path / "a.npz", npy_bytes((4, rows), bytes(4 * rows)))
    assert "times as many" in catch_refusal(lambda: load_dataset(path))
    small = str(tmp_path / "b.npz")
    np.savez_compressed(small, x=np.zeros((len(LABELS), 100_000)), y=LABELS)
    assert "max_gigabytes" in catch_refusal(lambda: load_dataset(small, max_gigabytes=1e-9))
    for value in (0, -1, float("nan"), "8", True):
        assert "max_gigabytes" in catch_refusal(
            lambda value=value: load_dataset(small, max_gigabytes=value)
        )


def test_unusual_archives_are_refused(tmp_path: Path) -> None:
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", kind) as archive:
            archive.writestr("x.npy", npy_bytes((4, 4), bytes(16)))
        assert "unusual" in catch_refusal(lambda: load_dataset(str(tmp_path / "a.npz")))
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 not really")
    assert "not a complete" in catch_refusal(lambda: load_dataset(str(tmp_path / "b.npz")))
    (tmp_path / "c.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-30])
    assert "not a complete" in catch_refusal(lambda: load_dataset(str(tmp_path / "c.npz")))


def test_names_that_lead_elsewhere_are_never_written(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    with zipfile.ZipFile(tmp_path / "deep" / "a.npz", "w") as archive:
        for name in ("../../evil.npy", "/evil.npy", "x.npy"):
            archive.writestr(name, npy_bytes((4, 4), bytes(16)))
        archive.writestr("y.npy", npy_bytes((4,), bytes(4)))
    load_dataset(str(tmp_path / "deep" / "a.npz"))
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["a.npz"]


def test_npy_pairs_are_mapped(tmp_path: Path) -> None:
    for name, array in {"x": FLOATS, "y": LABELS, "client": LABELS}.items():
        np.save(tmp_path / f"{name}.npy", array)
    data = load_dataset(str(tmp_path / "x.npy"))
    assert (len(data.train), len(data.test), data.group_names) == (8, 2, ("0", "1", "2"))
    for name, array in {
        "x_train": FLOATS,
        "y_train": LABELS,
        "x_test": FLOATS,
        "y_test": LABELS,
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert len(load_dataset(str(tmp_path / "x_train.npy")).test) == 10
    assert "rename" in catch_refusal(lambda: load_dataset(str(tmp_path / "y.npy")))
    (tmp_path / "y.npy").unlink()
    assert "x and y" in catch_refusal(lambda: load_dataset(str(tmp_path / "x.npy")))
    (tmp_path / "y.npy").mkdir()
    assert "not a file" in catch_refusal(lambda: load_dataset(str(tmp_path / "x.npy")))


def test_pickled_npy_files_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "made"),)

    np.save(tmp_path / "x.npy", np.array([Malicious()], dtype=object), allow_pickle=True)
    np.save(tmp_path / "y.npy", LABELS)
    assert "pickled objects" in catch_refusal(lambda: load_dataset(str(tmp_path / "x.npy")))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_the_header(tmp_path: Path, version: tuple[int, int]) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, FLOATS, version=version)
    (tmp_path / "a.npy").write_bytes(stream.getvalue())
    assert memmap_npy(tmp_path / "a.npy").tolist() == FLOATS.tolist()
