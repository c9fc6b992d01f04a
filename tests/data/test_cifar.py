"""CIFAR-10 and CIFAR-100: binary and pickled files, damage, malicious pickles, archives."""

import hashlib
import io
import os
import pickle
import tarfile
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_files import REAL_DATA, catch_refusal, needs_dataset

from fedwmsam.data import cifar, load_dataset
from fedwmsam.data.download import DownloadError, extract_members
from fedwmsam.data.safe_pickle import read_plain_pickle

BINARY = ("cifar-10", "cifar-100")
ROWS = 4


def samples(name: str, file: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and pixels that the tests put into a file."""
    generator = np.random.default_rng(len(file))
    labels = generator.integers(0, cifar.RELEASES[name].num_classes, ROWS)
    return labels, generator.integers(0, 256, (ROWS, 3072), np.uint8)


def write_binary(folder: Path, name: str) -> Path:
    release = cifar.RELEASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    for file in (*release.binary.train, *release.binary.test):
        labels, pixels = samples(name, file)
        coarse = [np.full((ROWS, 1), 7, np.uint8)] * (release.label_bytes - 1)
        records = np.concatenate([*coarse, labels[:, None].astype(np.uint8), pixels], axis=1)
        records.tofile(folder / file)
    return folder


def write_pickled(folder: Path, name: str, protocol: int = 2) -> Path:
    release = cifar.RELEASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    for file in (*release.pickled.train, *release.pickled.test):
        labels, pixels = samples(name, file)
        content = {
            b"data": pixels,
            release.label_key.encode(): labels.tolist(),
            b"filenames": [b"a.png"] * ROWS,
        }
        (folder / file).write_bytes(pickle.dumps(content, protocol))
    return folder


@pytest.mark.parametrize("name", BINARY)
def test_binary_records(tmp_path: Path, name: str) -> None:
    release = cifar.RELEASES[name]
    folder = write_binary(tmp_path / release.binary.folder, name)
    data = load_dataset(name, tmp_path)
    labels, pixels = samples(name, release.binary.test[0])
    assert data.source == str(folder)
    assert data.num_classes == len(data.class_names) == len(release.class_names)
    assert data.test.labels.tolist() == labels.tolist() and data.test.labels.dtype == torch.int64
    assert torch.equal(data.test.inputs, torch.from_numpy(pixels.reshape(-1, 3, 32, 32)))
    assert len(data.train) == ROWS * len(release.binary.train)
    assert torch.equal(load_dataset(name, folder).train.inputs, data.train.inputs), (
        "directly in the folder too"
    )


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("name", BINARY)
def test_pickled_rows(tmp_path: Path, name: str, protocol: int) -> None:
    write_pickled(tmp_path / cifar.RELEASES[name].pickled.folder, name, protocol)
    data = load_dataset(name, tmp_path)
    labels, pixels = samples(name, cifar.RELEASES[name].pickled.test[0])
    assert data.test.labels.tolist() == labels.tolist()
    assert torch.equal(data.test.inputs, torch.from_numpy(pixels.reshape(-1, 3, 32, 32)))


def python_2_pickle(pixels: np.ndarray, labels: list[int], fortran: bool) -> bytes:
    """Return the instructions that Python 2 and the numpy of 2009 wrote.

    No Python of today can be made to write them.
    """
    content = pixels.tobytes(order="F" if fortran else "C")
    rows, columns = (b"M" + size.to_bytes(2, "little") for size in pixels.shape)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
        b"K\x00\x85U\x01b\x87Rq\x05(K\x01"
        + rows
        + columns
        + b"\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb"
        + (b"\x88" if fortran else b"\x89")
        + b"T"
        + len(content).to_bytes(4, "little")
        + content
        + b"tb"
    )
    label_list = b"]q\x02(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}q\x01(U\x04data"
        + array
        + b"U\x06labels"
        + label_list
        + b"U\x0bbatch_labelq\x08U\x05batchu."
    )


@pytest.mark.parametrize("fortran", [False, True])
def test_files_as_python_2_wrote_them(tmp_path: Path, fortran: bool) -> None:
    labels, pixels = samples("cifar-10", "test_batch")
    content = python_2_pickle(pixels, labels.tolist(), fortran)
    assert (pickle.loads(content, encoding="bytes")[b"data"] == pixels).all(), "it is a good pickle"
    for name in (*cifar.RELEASES["cifar-10"].pickled.train, "test_batch"):
        (tmp_path / name).write_bytes(content)
    data = load_dataset("cifar-10", tmp_path)
    assert (
        data.test.inputs.flatten(1).tolist() == pixels.tolist()
        and data.test.labels.tolist() == labels.tolist()
    )


def test_the_normalisation_is_that_of_the_released_code(tmp_path: Path) -> None:
    write_binary(tmp_path, "cifar-10")
    data = load_dataset("cifar-10", tmp_path)
    transformed = data.transform(data.test.inputs)
    mean = torch.tensor([0.491, 0.482, 0.447]).double().view(3, 1, 1)
    std = torch.tensor([0.247, 0.243, 0.262]).double().view(3, 1, 1)
    expected = (data.test.inputs.double() / 255 - mean) / std
    assert transformed.dtype == torch.float32
    assert torch.allclose(transformed.double(), expected, atol=1e-6)
    assert data.input_shape == (3, 32, 32)


def test_class_names_are_in_the_order_of_their_numbers() -> None:
    assert (
        list(cifar.CIFAR100_NAMES) == sorted(cifar.CIFAR100_NAMES)
        and len(set(cifar.CIFAR100_NAMES)) == 100
    )
    assert cifar.CIFAR10_NAMES[3] == "cat"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes"),
        (bytes(3073 + 1), "records of 3073 bytes"),
        (bytes(100), "100 bytes"),
        (b"\x0a" + bytes(3072), "label 10"),
    ],
)
def test_damaged_binary_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    write_binary(tmp_path, "cifar-10")
    (tmp_path / "data_batch_3.bin").write_bytes(content)
    message = catch_refusal(lambda: load_dataset("cifar-10", tmp_path))
    assert words in message and "data_batch_3.bin" in message and "expected" in message


def test_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    write_binary(tmp_path, "cifar-10")
    with (tmp_path / "data_batch_1.bin").open("wb") as stream:
        stream.truncate(3073 * 10**8)
    assert "records" in catch_refusal(lambda: load_dataset("cifar-10", tmp_path))


# --- pickles


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_malicious_pickle_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    folder = write_pickled(tmp_path / "cifar-10-batches-py", "cifar-10")
    made = tmp_path / "made"
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Malicious(made)}, 2))
    message = catch_refusal(lambda: load_dataset("cifar-10", tmp_path))
    assert "mkdir" in message and "data_batch_1" in message and not made.exists()


GADGETS = {
    "another function": b"cos\nsystem\n(S'true'\ntR.",
    "a function by its dotted name": b"cnumpy\ncore.multiarray._reconstruct\n(S'true'\ntR.",
    "numpy's own loader": b"cnumpy\nload\n(S'/etc/passwd'\ntR.",
    "an instance": b"(S'true'\nios\nsystem\n.",
    "an extension code": b"\x82\x01.",
    "a persistent name": b"Pname\n.",
    "a huge array by its claim": (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I99999999999\ntS'b'\ntR."
    ),
    "a huge memo": b"]r\xff\xff\xff\x7f.",
    "claimed bytes": b"\x8e" + (2**40).to_bytes(8, "little") + b"x.",
    "a claimed bytearray": b"\x96" + (2**40).to_bytes(8, "little") + b"x.",
    "a claimed number": b"\x8b" + (2**31 - 1).to_bytes(4, "little") + b"x.",
    "an empty stack": b"a.",
    "no end": b"}",
    "a list": b"].",
    "an object with a state": b"}}b.",
    "a call of a call": b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.",
}


@pytest.mark.parametrize("gadget", GADGETS)
def test_pickles_that_ask_for_more_than_plain_data_are_refused(tmp_path: Path, gadget: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(GADGETS[gadget])
    tracemalloc.start()
    try:
        catch_refusal(lambda: read_plain_pickle(path, 1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_nested_references_take_no_exponential_time(tmp_path: Path) -> None:
    """A tuple of one tuple twice, a hundred times over: hashing it as a key would never end."""
    nest = b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(100))
    (tmp_path / "file").write_bytes(b"}(" + nest + b"K\x01u.")
    started = time.perf_counter()
    catch_refusal(lambda: read_plain_pickle(tmp_path / "file", 1 << 20))
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({b"data": np.zeros((4, 3071), np.uint8), b"labels": [0] * 4}, "3072"),
        ({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0] * 3}, "3 labels"),
        ({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, 10]}, "label 10"),
        ({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, -1]}, "'labels'"),
        ({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, "x"]}, "'labels'"),
        ({b"data": np.zeros((4, 3072), np.float64), b"labels": [0] * 4}, "dtype"),
        ({b"data": [1, 2], b"labels": [0] * 4}, "'data'"),
        ({b"labels": [0] * 4}, "'data'"),
        ([1, 2], "dictionary"),
    ],
)
def test_pickles_of_something_else_are_refused(tmp_path: Path, content: object, words: str) -> None:
    folder = write_pickled(tmp_path / "cifar-10-batches-py", "cifar-10")
    (folder / "test_batch").write_bytes(pickle.dumps(content, 2))
    message = catch_refusal(lambda: load_dataset("cifar-10", tmp_path))
    assert words in message and "test_batch" in message


# --- archives


def write_archive(
    path: Path, members: dict[str, bytes], links: dict[str, str] | None = None
) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type = tarfile.SYMTYPE
            link.linkname = target
            tar.addfile(link)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def cifar_members(tmp_path: Path) -> dict[str, bytes]:
    folder = write_binary(tmp_path / "files", "cifar-10")
    return {
        f"cifar-10-batches-bin/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())
    }


def test_an_archive_in_the_data_folder_is_unpacked_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    archive = write_archive(folder / "cifar-10-binary.tar.gz", cifar_members(tmp_path))
    assert "MD5" in catch_refusal(lambda: load_dataset("cifar-10", folder)), (
        "another archive of the same name"
    )
    checksum = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(
        cifar.RELEASES, "cifar-10", replace(cifar.RELEASES["cifar-10"], md5=checksum)
    )
    data = load_dataset("cifar-10", folder)
    assert (
        data.source.endswith("own-cache/fedwmsam/cifar-10-batches-bin")
        and len(data.train) == 5 * ROWS
    )
    assert list(folder.iterdir()) == [archive]


def test_a_download_is_unpacked_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_archive(tmp_path / "cifar-10-binary.tar.gz", cifar_members(tmp_path))
    checksum = hashlib.md5(archive.read_bytes()).hexdigest()
    release = replace(cifar.RELEASES["cifar-10"], md5=checksum, url=tmp_path.as_uri())
    monkeypatch.setitem(cifar.RELEASES, "cifar-10", release)
    monkeypatch.setattr(
        cifar,
        "download",
        lambda url, sums, folder: (folder / archive.name).write_bytes(archive.read_bytes()),
    )
    (tmp_path / "own-cache" / "fedwmsam").mkdir(parents=True)
    assert len(load_dataset("cifar-10").train) == 5 * ROWS
    assert not (tmp_path / "own-cache" / "fedwmsam" / archive.name).exists()


def test_offline_says_which_file_goes_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in BINARY:
        release = replace(cifar.RELEASES[name], url="http://127.0.0.1:9/")
        monkeypatch.setitem(cifar.RELEASES, name, release)
        message = catch_refusal(lambda name=name: load_dataset(name, tmp_path))
        assert (
            release.archive in message
            and str(tmp_path) in message
            and release.binary.folder in message
        )


@pytest.mark.parametrize(
    "name", ["../outside", "/tmp/outside-of-everything", "cifar/../../outside", "other"]
)
def test_an_archive_writes_only_the_expected_files(tmp_path: Path, name: str) -> None:
    archive = write_archive(tmp_path / "a.tar.gz", {name: b"bad", "cifar/good.bin": b"good"})
    extract_members(archive, ["cifar/good.bin"], tmp_path / "deep" / "target", max_bytes=100)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"a.tar.gz", "deep/target/good.bin", "deep/target/.lock"}


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar.gz", {}, links={"cifar/good.bin": "/etc/passwd"})
    with pytest.raises(DownloadError, match=r"lacks cifar/good\.bin"):
        extract_members(archive, ["cifar/good.bin"], tmp_path / "target", max_bytes=100)
    assert [path.name for path in (tmp_path / "target").iterdir()] == [".lock"]


def test_an_archive_is_unpacked_wholly_or_not_at_all(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar.gz", {"c/one": b"1", "c/two": bytes(101)})
    with pytest.raises(DownloadError, match="larger than 100"):
        extract_members(archive, ["c/one", "c/two"], tmp_path / "target", max_bytes=100)
    (tmp_path / "cut.tar.gz").write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(DownloadError):
        extract_members(
            tmp_path / "cut.tar.gz", ["c/one", "c/two"], tmp_path / "target", max_bytes=1000
        )
    assert [path.name for path in (tmp_path / "target").iterdir()] == [".lock"]


# --- the real files


@needs_dataset("cifar-10-batches-bin")
def test_the_real_cifar_10(tmp_path: Path) -> None:
    load_dataset("cifar-10", REAL_DATA)
    started = time.perf_counter()
    data = load_dataset("cifar-10", REAL_DATA)
    assert time.perf_counter() - started < 2, "the second load maps what the first has decoded"
    assert (
        data.train.labels.bincount().tolist() == [5000] * 10
        and data.test.labels.bincount().tolist() == [1000] * 10
    )
    transformed = data.transform(data.train.inputs[::50])
    assert transformed.mean(dim=(0, 2, 3)).abs().max() < 0.05
    assert (transformed.std(dim=(0, 2, 3)) - 1).abs().max() < 0.05


@needs_dataset("cifar-100-binary")
def test_the_real_cifar_100(tmp_path: Path) -> None:
    data = load_dataset("cifar-100", REAL_DATA)
    assert (
        data.train.labels.bincount().tolist() == [500] * 100
        and data.test.labels.bincount().tolist() == [100] * 100
    )
