"""Whatever the bytes are, a reader succeeds or raises InputError, and never hangs."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.data_files import encode_idx, is_accepted
from helpers.fuzzing import damaged_copies, limit_memory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedwmsam.data import load_dataset
from fedwmsam.data.cifar import RELEASES, read_binary, read_pickled
from fedwmsam.data.download import DownloadError, extract_members
from fedwmsam.data.idx import read_idx
from fedwmsam.data.npy import memmap_npy

fuzz = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(path: Path, content: bytes, read: Callable[[Path], object]) -> None:
    path.write_bytes(content)
    with limit_memory():
        is_accepted(lambda: read(path))


IDX = encode_idx(np.arange(30, dtype=np.uint8).reshape(5, 2, 3))


@fuzz
@given(content=damaged_copies(IDX), packed=st.booleans())
def test_idx(tmp_path: Path, content: bytes, packed: bool) -> None:
    check(
        tmp_path / ("a.gz" if packed else "a"),
        gzip.compress(content) if packed else content,
        read_idx,
    )


@fuzz
@given(content=damaged_copies(gzip.compress(IDX, mtime=0)))
def test_packed_idx(tmp_path: Path, content: bytes) -> None:
    check(tmp_path / "a.gz", content, read_idx)


@fuzz
@given(
    records=st.lists(st.integers(0, 255), max_size=4),
    extra=st.integers(-2, 2),
    name=st.sampled_from(list(RELEASES)),
)
def test_cifar_records(tmp_path: Path, records: list[int], extra: int, name: str) -> None:
    release = RELEASES[name]
    content = b"".join(bytes([label]) * release.label_bytes + bytes(3072) for label in records)
    content = content[:extra] if extra < 0 else content + bytes(extra)
    (tmp_path / "a.bin").write_bytes(content)
    good = bool(records) and extra == 0 and max(records) < release.num_classes
    assert is_accepted(lambda: read_binary(tmp_path / "a.bin", release)) == good


PICKLES = [
    pickle.dumps(
        {b"data": np.zeros((2, 3072), np.uint8)[:, :3072], b"labels": [1, 2], b"filenames": [b"a"]},
        protocol,
    )
    for protocol in (0, 2, 4)
]


@fuzz
@given(
    content=st.sampled_from(PICKLES).flatmap(lambda good: damaged_copies(good[:200] + good[-200:]))
    | st.one_of(*map(damaged_copies, PICKLES))
)
def test_pickled_cifar(tmp_path: Path, content: bytes) -> None:
    check(tmp_path / "a", content, lambda path: read_pickled(path, RELEASES["cifar-10"]))


OPCODES = st.sampled_from(
    [
        bytes([code])
        for code in b"(.0123FIJKLMNPQRSTUVXabcdeghijlopqrstu}])\x80\x81\x82\x85\x86"
        b"\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98BC"
    ]
)
WORDS = st.sampled_from(
    [
        b"cos\nsystem\n",
        b"cnumpy\ndtype\n",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        b"S'a'\n",
        b"\x8c\x02os\x8c\x06system\x93",
        b"U\x04data",
        b"K\x01",
        b"q\x00",
        b"h\x00",
        b"I1\n",
        b"Va\n",
        b"c_codecs\nencode\n",
        b"X\x01\x00\x00\x00a",
    ]
)


@settings(fuzz, max_examples=200)
@given(parts=st.lists(OPCODES | WORDS, max_size=30))
def test_random_pickle_programs(tmp_path: Path, parts: list[bytes]) -> None:
    check(tmp_path / "a", b"".join(parts), lambda path: read_pickled(path, RELEASES["cifar-10"]))


CSV = "a,b,client,label\n" + "".join(f"{i},{i / 3:.2f},c{i % 2},{i % 3}\n" for i in range(8))


@fuzz
@given(content=damaged_copies(CSV.encode()))
def test_csv(tmp_path: Path, content: bytes) -> None:
    check(tmp_path / "a.csv", content, lambda path: load_dataset(str(path)))


CELLS = st.sampled_from(
    [
        "",
        "1",
        "-2.5",
        "nan",
        "inf",
        "1e400",
        "1e-320",
        "3e38",
        "x",
        '"',
        "\0",
        "é",
        "0x1",
        "1_0",
        " ",
    ]
)


@fuzz
@given(
    rows=st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=6),
    header=st.sampled_from(["a,b,label", "a,b,c"]),
)
def test_csv_cells(tmp_path: Path, rows: list[list[str]], header: str) -> None:
    text = "\n".join([header, *map(",".join, rows)])
    check(tmp_path / "a.csv", text.encode(), lambda path: load_dataset(str(path)))


JSONL = "".join(
    json.dumps({"speaker": f"s{i % 2}", "text": "hello there " * 3}) + "\n" for i in range(4)
)


@fuzz
@given(content=damaged_copies(JSONL.encode()), context=st.integers(1, 30))
def test_jsonl(tmp_path: Path, content: bytes, context: int) -> None:
    check(tmp_path / "a.jsonl", content, lambda path: load_dataset(str(path), context=context))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["speaker", "text", "x"]), inner)
    ),
    max_leaves=6,
)


@fuzz
@given(lines=st.lists(JSON, max_size=5))
def test_jsonl_of_other_things(tmp_path: Path, lines: list[object]) -> None:
    content = "\n".join(map(json.dumps, lines)).encode()
    check(tmp_path / "a.jsonl", content, lambda path: load_dataset(str(path), context=1))


def npz(compression: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, array in (
            ("x", np.arange(20.0).reshape(5, 4)),
            ("y", np.arange(5) % 2),
            ("../groups", np.zeros(5)),
        ):
            member = io.BytesIO()
            np.save(member, array)
            archive.writestr(
                zipfile.ZipInfo(name + ".npy"), member.getvalue(), compress_type=compression
            )
    return stream.getvalue()


@settings(fuzz, max_examples=150)
@given(content=damaged_copies(npz(zipfile.ZIP_STORED)) | damaged_copies(npz(zipfile.ZIP_DEFLATED)))
def test_npz(tmp_path: Path, content: bytes) -> None:
    check(tmp_path / "a.npz", content, lambda path: load_dataset(str(path)))


HEADERS = st.tuples(
    st.sampled_from(
        ["<f4", "|u1", "|O", "<U3", ">i8", "<c8", "<f16", "<M8", "|V5", "<f3", "|b1", "<U999999"]
    ),
    st.sampled_from(["True", "False", "None", "__import__('os')"]),
    st.sampled_from(
        [
            "(4, 2)",
            "()",
            "(0,)",
            "(-1,)",
            "(99999999999999999999,)",
            "(4,)",
            "4",
            "(1,) * 9",
            "(" * 99,
        ]
    ),
    st.binary(max_size=40),
)


@fuzz
@given(parts=HEADERS, version=st.integers(0, 4))
def test_npy_headers(tmp_path: Path, parts: tuple[str, str, str, bytes], version: int) -> None:
    code, fortran, shape, content = parts
    text = f"{{'descr': '{code}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    check(
        tmp_path / "a.npy", b"\x93NUMPY" + bytes([version, 0]) + length + text + content, memmap_npy
    )


@fuzz
@given(content=damaged_copies(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"x" * 50))
def test_npy(tmp_path: Path, content: bytes) -> None:
    check(tmp_path / "a.npy", content, memmap_npy)


def tar(compressed: bool) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for name in ("../evil", "c/" + "long" * 40, "c/good"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    return gzip.compress(stream.getvalue(), mtime=0) if compressed else stream.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
@fuzz
@given(data=st.data())
def test_archives(tmp_path: Path, compressed: bool, data: st.DataObject) -> None:
    """Damaged inside of the compression, where no checksum protects it, and outside."""
    content = data.draw(damaged_copies(tar(compressed)))
    (tmp_path / "a.tar.gz").write_bytes(content if compressed else gzip.compress(content, 1))
    with suppress(DownloadError):
        extract_members(tmp_path / "a.tar.gz", ["c/good"], tmp_path / "target", max_bytes=10)
    names = {
        path.name
        for path in tmp_path.rglob("*")
        if path.is_file() and "own-cache" not in path.parts
    }
    assert names <= {"a.tar.gz", "good", ".lock"}


@fuzz
@given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG", "BMP", "WEBP"]))
def test_pictures(tmp_path: Path, data: st.DataObject, kind: str) -> None:
    from PIL import Image

    from fedwmsam.data.image_folder import decode_image, read_limited

    stream = io.BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(stream, kind)
    content = data.draw(damaged_copies(stream.getvalue()))
    check(tmp_path / "a.png", content, lambda path: decode_image(read_limited(path, "a"), "a", 4))
