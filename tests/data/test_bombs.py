"""Small files that claim much: none takes more than 1 GB and four times its size to read.

Every file here took more, or hours, before the readers had limits.
"""

import gzip
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from helpers.data_files import encode_idx
from helpers.memory import Measurement, Reading, measure_readings

MAX_ADDED_BYTES = 1_000_000_000
MAX_FACTOR = 4
MAX_SECONDS = 60
"""Seconds for reading one file; the honest ones of these tests take three on a busy machine."""


@dataclass(frozen=True)
class Bomb:
    """A data set with one file that claims much."""

    reading: Reading
    size: int
    """Bytes of that file."""


def write_cifar(folder: Path, content: bytes) -> Bomb:
    """Write CIFAR-10's pickled files, all good but the first, whose content is given."""
    good = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}, 2)
    files = folder / "cifar-10-batches-py"
    files.mkdir(parents=True)
    for name in [*(f"data_batch_{i}" for i in range(2, 6)), "test_batch"]:
        (files / name).write_bytes(good)
    (files / "data_batch_1").write_bytes(content)
    return Bomb(Reading("cifar-10", str(folder)), len(content))


def repeated_encoding(folder: Path) -> Bomb:
    text = b"X" + struct.pack("<I", 2_000_000) + b"a" * 2_000_000
    encode = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    return write_cifar(folder, b"\x80\x02}" + text + b"q\x00](" + encode * 2000 + b"es.")


def many_empty_lists(folder: Path) -> Bomb:
    return write_cifar(folder, b"\x80\x02(" + b"]" * 20_000_000 + b"l.")


def endless_shape(folder: Path) -> Bomb:
    size = b"\x8a\xff" + b"\xff" * 254 + b"\x7f"
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R"
    dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85R"
    state = b"(K\x01(" + size * 120_000 + b"t" + dtype + b"K\x00X\x01\x00\x00\x00atb"
    return write_cifar(folder, b"\x80\x02}X\x04\x00\x00\x00data" + array + state + b"s.")


def write_mnist(folder: Path, name: str, shape: tuple[int, ...], mebibytes: int) -> Bomb:
    """Write MNIST's files, of which the one called `name` is packed and holds so many zeros."""
    files = folder / "mnist"
    files.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = encode_idx(np.zeros((4, 28, 28), np.uint8))
        labels = encode_idx(np.zeros(4, np.uint8))
        (files / f"{part}-images-idx3-ubyte").write_bytes(images)
        (files / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    (files / name).unlink()
    header = struct.pack(f">2xBB{len(shape)}I", 8, len(shape), *shape)
    # A gzip file may consist of many, one after the other.
    content = gzip.compress(header) + gzip.compress(bytes(1 << 20)) * mebibytes
    (files / f"{name}.gz").write_bytes(content)
    return Bomb(Reading("mnist", str(folder)), len(content))


def packed_images(folder: Path) -> Bomb:
    return write_mnist(folder, "train-images-idx3-ubyte", (3_000_000, 28, 28), 2000)


def packed_images_of_another_shape(folder: Path) -> Bomb:
    return write_mnist(folder, "train-images-idx3-ubyte", (4, 500 << 20), 2000)


def packed_labels(folder: Path) -> Bomb:
    return write_mnist(folder, "train-labels-idx1-ubyte", (2000 << 20,), 2000)


def write_npz(path: Path, arrays: dict[str, np.ndarray | tuple[str, tuple[int, ...]]]) -> Bomb:
    """Write an archive of arrays, or of zeros of a type and shape."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                if isinstance(array, np.ndarray):
                    np.save(stream, array)
                    continue
                dtype, shape = array
                header = {"descr": dtype, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                row = bytes(int(np.prod(shape[1:])) * np.dtype(dtype).itemsize)
                for _ in range(shape[0]):
                    stream.write(row)
    return Bomb(Reading(str(path)), path.stat().st_size)


LABELS = np.arange(100) % 2


def zeros_in_an_archive(folder: Path) -> Bomb:
    return write_npz(folder / "zeros.npz", {"x": ("<f4", (100, 2_000_000)), "y": LABELS})


def zeros_that_grow_when_converted(folder: Path) -> Bomb:
    return write_npz(folder / "zeros.npz", {"x": ("<u2", (100, 1_200_000)), "y": LABELS})


def write_text(path: Path, text: str) -> Bomb:
    path.write_text(text, encoding="utf-8")
    return Bomb(Reading(str(path)), path.stat().st_size)


def endless_row(folder: Path) -> Bomb:
    return write_text(folder / "a.csv", "a,label\n" + "ā," * 16_000_000 + "\n")


def long_client(folder: Path) -> Bomb:
    rows = "1,x,a\n1,x,b\n" * 3000
    return write_text(folder / "a.csv", f"a,client,label\n1,{'x' * 130_000},a\n{rows}")


def line_of_lists(folder: Path) -> Bomb:
    return write_text(folder / "a.jsonl", "[" + "[]," * 16_000_000 + "[]]")


def write_speech(folder: Path, characters: int) -> Bomb:
    """Write a long text that begins with so many rare characters."""
    rare = "".join(map(chr, range(0x20000, 0x20000 + characters)))
    line = json.dumps({"speaker": "a", "text": "Now is the winter of our discontent. " * 3000})
    first_line = json.dumps({"speaker": "a", "text": rare})
    return write_text(folder / "a.jsonl", first_line + f"\n{line}" * 300)


def long_text(folder: Path) -> Bomb:
    return write_speech(folder, 300)


def long_text_of_rare_characters(folder: Path) -> Bomb:
    return write_speech(folder, 33_000)


BOMBS: list[Callable[[Path], Bomb]] = [
    repeated_encoding,
    many_empty_lists,
    endless_shape,
    packed_images,
    packed_images_of_another_shape,
    packed_labels,
    zeros_in_an_archive,
    zeros_that_grow_when_converted,
    endless_row,
    long_client,
    line_of_lists,
    long_text,
    long_text_of_rare_characters,
]
READ = {"long_client", "long_text"}
"""The files with nothing wrong in them: they are read, the others refused."""


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[Bomb, Measurement]]]:
    """Return each bomb with what reading it took, all measured by one process."""
    folders = [tmp_path_factory.mktemp(make.__name__) for make in BOMBS]
    bombs = [make(folder) for make, folder in zip(BOMBS, folders, strict=True)]
    cache = tmp_path_factory.mktemp("cache")
    measurements = measure_readings([bomb.reading for bomb in bombs], cache)
    names = [make.__name__ for make in BOMBS]
    yield dict(zip(names, zip(bombs, measurements, strict=True), strict=True))


@pytest.mark.parametrize("name", [make.__name__ for make in BOMBS])
def test_a_small_file_takes_little_memory(
    measured: dict[str, tuple[Bomb, Measurement]], name: str
) -> None:
    bomb, measurement = measured[name]
    assert bomb.size <= 50_000_000
    assert measurement.added_bytes <= MAX_ADDED_BYTES + MAX_FACTOR * bomb.size
    assert measurement.seconds < MAX_SECONDS
    assert measurement.was_refused == (name not in READ), measurement.outcome
    assert measurement.was_refused or not measurement.outcome
    assert "\n" not in measurement.outcome
