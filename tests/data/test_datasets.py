"""Reading, finding and downloading data sets: real files, real damage, a real local web server."""

import gzip
import hashlib
import http.server
import os
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_files import catch_refusal, encode_idx

from fedwmsam.data import DATASETS, dataset_options, download, load_dataset, mnist, paths
from fedwmsam.data.idx import read_idx
from fedwmsam.errors import InputError

SYSTEM_FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_NAMES = list(mnist.IDX_FILES)


def small_fashion(images: int = 6, fill: int = 0) -> dict[str, bytes]:
    """Return the four files by their plain names, with half as many test as training images."""
    files = {}
    for part, count in (("train", images), ("t10k", images // 2)):
        pixels = np.full((count, 28, 28), fill, dtype=np.uint8)
        files[f"{part}-images-idx3-ubyte"] = encode_idx(pixels)
        files[f"{part}-labels-idx1-ubyte"] = encode_idx(np.arange(count, dtype=np.uint8) % 10)
    return files


def write_fashion(folder: Path, fill: int = 0, packed: bool = True, **changed: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in small_fashion(fill=fill).items():
        content = changed.get(name.split("-idx")[0].replace("-", "_"), content)
        path = folder / (name + ".gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def change_fashion(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    monkeypatch.setitem(
        mnist.MNIST_VARIANTS,
        "fashion-mnist",
        replace(mnist.MNIST_VARIANTS["fashion-mnist"], **changes),
    )


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a machine with nothing installed, an empty cache and no network.

    The value is the folder of Fashion-MNIST in the cache.
    """
    monkeypatch.setattr(paths, "SYSTEM_DATA", tmp_path / "system")
    change_fashion(monkeypatch, url="http://127.0.0.1:9/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "fedwmsam" / "fashion-mnist"


# --- IDX files


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "code"),
    [(">u1", 0x08), (">i1", 0x09), (">i2", 0x0B), (">i4", 0x0C), (">f4", 0x0D), (">f8", 0x0E)],
)
def test_idx_round_trip(tmp_path: Path, packed: bool, dtype: str, code: int) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    path = tmp_path / ("file.gz" if packed else "file")
    path.write_bytes(gzip.compress(encode_idx(array, code)) if packed else encode_idx(array, code))
    result = read_idx(path)
    assert result.dtype == np.dtype(dtype).newbyteorder("=") and result.dtype.isnative
    assert result.tolist() == array.tolist()


def test_idx_longer_than_one_chunk(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 1 << 20), dtype=np.uint8)
    (tmp_path / "big.gz").write_bytes(gzip.compress(encode_idx(array), 1))
    assert (read_idx(tmp_path / "big.gz") == array).all()


GOOD = encode_idx(np.zeros((5, 2), np.uint8))
DAMAGE = {
    "empty": (b"", "nothing"),
    "short magic": (b"\0\0\x08", "0x000008"),
    "wrong magic": (b"\x89PNG" + GOOD, "0x89504e47"),
    "unknown element type": (b"\0\0\x0a\x01" + GOOD[4:], "0x00000a01"),
    "no dimensions": (b"\0\0\x08\x00" + GOOD[4:], "0 dimensions"),
    "too many dimensions": (b"\0\0\x08\xff" + GOOD[4:] * 200, "255 dimensions"),
    "cut in the header": (GOOD[:9], "header"),
    "an empty dimension": (struct.pack(">2xBB2I", 8, 2, 0, 4), "(0, 4)"),
    "truncated": (GOOD[:-1], "10 bytes of data but found only 9"),
    "too long": (GOOD + b"x", "10 bytes of data but found more"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_idx_is_refused(tmp_path: Path, packed: bool, damage: str) -> None:
    content, words = DAMAGE[damage]
    path = tmp_path / ("damaged.gz" if packed else "damaged")
    path.write_bytes(gzip.compress(content) if packed else content)
    message = catch_refusal(lambda: read_idx(path))
    assert str(path) in message and words in message and "expected" in message


def flip_byte(content: bytes, position: int) -> bytes:
    flipped = bytes([content[position] ^ 0xFF])
    return content[:position] + flipped + content[position + 1 :]


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        b"<html>not found</html>",
        gzip.compress(GOOD)[:-9],
        gzip.compress(GOOD)[:-4],
        flip_byte(gzip.compress(GOOD), 12),
        flip_byte(gzip.compress(GOOD), -6),
    ],
    ids=["plain", "html", "cut data", "cut checksum", "damaged data", "damaged checksum"],
)
def test_damaged_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gz"
    path.write_bytes(content)
    message = catch_refusal(lambda: read_idx(path))
    assert str(path) in message and "gzip" in message


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(2**31,), (2**31, 28, 28), (2**32 - 1,) * 4])
def test_a_lying_header_takes_no_memory(
    tmp_path: Path, packed: bool, shape: tuple[int, ...]
) -> None:
    content = struct.pack(f">2xBB{len(shape)}I", 8, len(shape), *shape) + bytes(100)
    path = tmp_path / ("liar.gz" if packed else "liar")
    path.write_bytes(gzip.compress(content) if packed else content)
    tracemalloc.start()
    try:
        message = catch_refusal(lambda: read_idx(path))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert "only 100" in message


def test_a_hidden_flood_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(GOOD + bytes(32 << 20), 1))
    tracemalloc.start()
    try:
        assert "found more" in catch_refusal(lambda: read_idx(path))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in catch_refusal(lambda: read_idx(tmp_path / "absent"))
    assert "cannot be read" in catch_refusal(lambda: read_idx(tmp_path))


# --- data sets by name


def test_unknown_names_get_the_nearest() -> None:
    message = catch_refusal(lambda: load_dataset("fashion_mnist"))
    assert "Did you mean 'fashion-mnist'" in message and all(name in message for name in DATASETS)
    assert "Did you mean" not in catch_refusal(lambda: load_dataset("???"))


@pytest.mark.parametrize("name", DATASETS)
def test_a_data_folder_that_does_not_exist_is_refused(tmp_path: Path, name: str) -> None:
    assert str(tmp_path / "absent") in catch_refusal(
        lambda: load_dataset(name, tmp_path / "absent")
    )
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in catch_refusal(lambda: load_dataset(name, tmp_path / "file"))


def test_digits_are_split_the_same_way_every_time() -> None:
    first = load_dataset("digits")
    np.random.seed(1)
    torch.manual_seed(1)
    second = load_dataset("digits")
    for split, again in ((first.train, second.train), (first.test, second.test)):
        assert torch.equal(split.inputs, again.inputs) and torch.equal(split.labels, again.labels)
        assert first.transform_split(split)[0].dtype == torch.float32
        assert split.labels.dtype == torch.int64
    assert first.input_shape == (1, 8, 8) and len(first.train) == 1442 and len(first.test) == 355
    train_counts = torch.bincount(first.train.labels)
    test_counts = torch.bincount(first.test.labels)
    shares = test_counts / (train_counts + test_counts)
    assert (shares - 0.2).abs().max() < 0.01


def test_digits_keep_every_sample_once_and_are_standardised_by_the_training_part() -> None:
    from sklearn.datasets import load_digits

    digits = load_dataset("digits")
    train, train_labels = digits.transform_split(digits.train)
    test, test_labels = digits.transform_split(digits.test)
    assert abs(train.mean()) < 1e-5 and abs(train.std() - 1) < 1e-3
    assert abs(test.mean()) > 1e-5, "the test part must not be standardised by itself"
    low = float(train.min())
    high = float(train.max())
    together = torch.cat([train, test]).flatten(1)
    pixels = ((together - low) / (high - low) * 16).round().to(torch.int64).tolist()
    targets = torch.cat([train_labels, test_labels]).tolist()
    images, labels = load_digits(return_X_y=True)
    expected = zip(map(tuple, images.astype(int).tolist()), labels.tolist(), strict=True)
    assert sorted(zip(map(tuple, pixels), targets, strict=True)) == sorted(expected)


def test_transformed_digits_are_the_floats_they_always_were() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[4::5]] = True
    scaled = images.reshape(-1, 1, 8, 8) / 16.0
    scaled = (scaled - scaled[~test].mean()) / scaled[~test].std()
    digits = load_dataset("digits")
    for split, mask in ((digits.train, ~test), (digits.test, test)):
        expected = torch.from_numpy(scaled[mask].astype(np.float32))
        assert torch.equal(digits.transform(split.inputs), expected)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530), ("kmnist", 0.1918, 0.3483)],
)
def test_transformed_pixels_are_the_floats_they_always_were(
    bare_machine: Path, tmp_path: Path, name: str, mean: float, std: float
) -> None:
    """All samples were normalised in place before; any batch of them must give the same bits."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    pixels[0].flat[:256] = np.arange(256)
    data = load_dataset(name, write_fashion(tmp_path / "mine", train_images=encode_idx(pixels)))
    assert data.train.inputs.dtype == torch.uint8, "pixels are kept as bytes"
    before = torch.from_numpy(pixels).to(torch.float32).unsqueeze(1)
    before.div_(255).sub_(mean).div_(std)
    assert torch.equal(data.transform(data.train.inputs), before)
    rows = torch.tensor([4, 0, 2])
    assert torch.equal(data.transform(data.train.inputs[rows]), before[rows])
    assert torch.equal(data.train.inputs[:, 0], torch.from_numpy(pixels)), (
        "a transform must not change what is stored"
    )
    assert data.input_shape == (1, 28, 28) and len(data.class_names) == data.num_classes == 10


def test_one_mnist_is_not_taken_for_another(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_fashion(tmp_path / "mine")
    labels = hashlib.md5((folder / FASHION_NAMES[1]).read_bytes()).hexdigest()
    change_fashion(monkeypatch, md5=dict.fromkeys(FASHION_NAMES, labels))
    message = catch_refusal(lambda: load_dataset("kmnist", folder))
    assert "Fashion-MNIST" in message and str(folder / "kmnist") in message
    assert load_dataset("fashion-mnist", folder).source == str(folder)


def test_options_are_checked_by_name() -> None:
    assert "no options" in catch_refusal(lambda: load_dataset("digits", image_size=3))
    assert "Did you mean 'stride'" in catch_refusal(lambda: load_dataset("shakespeare", strid=3))
    assert dataset_options("digits") == {} and dataset_options("pacs") == {
        "image_size": 64,
        "leave_out": None,
    }
    assert dataset_options("some/file.jsonl") == {"context": 40, "stride": 5}


def test_paths_that_lead_nowhere_or_to_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("hello")
    assert "neither" in catch_refusal(lambda: load_dataset(str(tmp_path / "absent.csv")))
    assert "neither" in catch_refusal(lambda: load_dataset("absent.npz", tmp_path))
    assert ".jsonl" in catch_refusal(lambda: load_dataset(str(tmp_path / "data.txt")))
    assert "no pictures" in catch_refusal(lambda: load_dataset(str(tmp_path)))


@pytest.mark.skipif(
    not SYSTEM_FASHION.is_dir(), reason="needs the Debian package dataset-fashion-mnist"
)
def test_the_real_fashion_mnist(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SYSTEM_DATA", SYSTEM_FASHION.parent)
    fashion = load_dataset("fashion-mnist")
    train, train_labels = fashion.transform_split(fashion.train)
    test, test_labels = fashion.transform_split(fashion.test)
    assert train.shape == (60000, 1, 28, 28) and test.shape == (10000, 1, 28, 28)
    assert torch.bincount(train_labels).tolist() == [6000] * 10
    assert torch.bincount(test_labels).tolist() == [1000] * 10
    assert abs(train.mean()) < 1e-3 and abs(train.std() - 1) < 1e-3
    assert fashion.num_classes == 10 and fashion.source == str(SYSTEM_FASHION)


@pytest.mark.parametrize("packed", [False, True])
def test_fashion_files_become_normalised_tensors(
    bare_machine: Path, tmp_path: Path, packed: bool
) -> None:
    folder = write_fashion(tmp_path / "mine", fill=255, packed=packed)
    fashion = load_dataset("fashion-mnist", folder)
    train, train_labels = fashion.transform_split(fashion.train)
    test, _ = fashion.transform_split(fashion.test)
    assert train.shape == (6, 1, 28, 28) and test.shape == (3, 1, 28, 28)
    assert train.dtype == torch.float32 and train_labels.dtype == torch.int64
    assert torch.allclose(train, torch.tensor((1 - 0.2860) / 0.3530))
    assert train_labels.tolist() == [0, 1, 2, 3, 4, 5]


def test_fashion_is_looked_up_in_the_promised_order(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "given"
    variable = tmp_path / "variable"
    monkeypatch.setenv("FEDWMSAM_DATA", str(variable))
    folders = [
        data_dir / "fashion-mnist",
        data_dir,
        variable / "fashion-mnist",
        variable,
        tmp_path / "system" / "fashion-mnist",
        bare_machine,
    ]
    data_dir.mkdir()
    for folder in reversed(folders):
        write_fashion(folder)
        assert load_dataset("fashion-mnist", data_dir).source == str(folder)
    assert load_dataset("fashion-mnist").source == str(variable / "fashion-mnist")


def test_an_incomplete_folder_is_passed_over(bare_machine: Path, tmp_path: Path) -> None:
    data_dir = write_fashion(tmp_path / "given")
    (data_dir / FASHION_NAMES[3]).unlink()
    write_fashion(bare_machine)
    assert load_dataset("fashion-mnist", data_dir).source == str(bare_machine)


def test_a_relative_or_empty_cache_variable_is_ignored(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = write_fashion(tmp_path / "home" / ".cache" / "fedwmsam" / "fashion-mnist")
    for value in ("", "some/where"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("FEDWMSAM_DATA", "")
        assert load_dataset("fashion-mnist").source == str(expected)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_labels": encode_idx(np.zeros(7, np.uint8))}, "6 images"),
        ({"train_labels": encode_idx(np.array([0, 1, 10, 0, 0, 0], np.uint8))}, "label 10"),
        ({"t10k_images": encode_idx(np.zeros((3, 28, 27), np.uint8))}, "3 x 28 x 27"),
        ({"t10k_images": encode_idx(np.zeros(3, np.uint8))}, "n x 28 x 28"),
        ({"train_labels": encode_idx(np.zeros((6, 1), np.uint8))}, "6 x 1"),
        ({"train_labels": encode_idx(np.zeros(6, ">i4"), 0x0C)}, "int32"),
        ({"train_images": b"junk"}, "0x6a756e6b"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    bare_machine: Path, tmp_path: Path, changed: dict[str, bytes], words: str
) -> None:
    folder = write_fashion(tmp_path / "mine", **changed)
    message = catch_refusal(lambda: load_dataset("fashion-mnist", folder))
    assert words in message and str(folder) in message and "expected" in message


# --- downloads


def test_offline_says_what_is_missing_and_where_to_put_it(
    bare_machine: Path, tmp_path: Path
) -> None:
    message = catch_refusal(lambda: load_dataset("fashion-mnist"))
    assert str(bare_machine) in message and "refused" in message
    for word in (*FASHION_NAMES, "$FEDWMSAM_DATA", "apt-get install dataset-fashion-mnist"):
        assert word in message
    data_dir = write_fashion(tmp_path / "given")
    (data_dir / FASHION_NAMES[1]).unlink()
    message = catch_refusal(lambda: load_dataset("fashion-mnist", data_dir))
    assert str(data_dir) in message and FASHION_NAMES[1] in message
    assert FASHION_NAMES[0] not in message


def test_a_cache_that_cannot_be_written_is_reported(bare_machine: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()  # a file in its place stops root too, which permissions do not
    assert "apt-get" in catch_refusal(lambda: load_dataset("fashion-mnist"))


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`, and can hang up early."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.requests: list[tuple[str, int]] = []  # name, status
        self.hang_up_after: int | None = None


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        content = self.server.files.get(name)
        status = 404 if content is None else 200
        self.server.requests.append((name, status))
        self.send_response(status)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write((content or b"")[: self.server.hang_up_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    files = {f"{name}.gz": gzip.compress(content) for name, content in small_fashion().items()}
    checksums = {name: hashlib.md5(files[name]).hexdigest() for name in FASHION_NAMES}
    with Server(dict(files)) as running:
        change_fashion(
            monkeypatch, md5=checksums, url=f"http://127.0.0.1:{running.server_address[1]}/"
        )
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def test_a_download_fills_the_cache_once(
    server: Server, bare_machine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert load_dataset("fashion-mnist").source == str(bare_machine)
    assert names_in(bare_machine) == set(FASHION_NAMES)
    assert all((bare_machine / name).read_bytes() == server.files[name] for name in FASHION_NAMES)
    assert len(load_dataset("fashion-mnist").train) == 6
    assert [status for _, status in server.requests] == [200] * 4
    assert capfd.readouterr().out == ""


def test_only_missing_files_are_downloaded(server: Server, bare_machine: Path) -> None:
    bare_machine.mkdir(parents=True)
    (bare_machine / FASHION_NAMES[0].removesuffix(".gz")).write_bytes(
        small_fashion()["train-images-idx3-ubyte"]
    )
    load_dataset("fashion-mnist")
    assert [name for name, _ in server.requests] == FASHION_NAMES[1:]


def test_an_interrupted_download_leaves_nothing_and_is_done_again(
    server: Server, bare_machine: Path
) -> None:
    server.hang_up_after = 20
    message = catch_refusal(lambda: load_dataset("fashion-mnist"))
    assert "20 of" in message and FASHION_NAMES[0] in message
    assert names_in(bare_machine) == set()
    server.hang_up_after = None
    server.requests.clear()
    assert len(load_dataset("fashion-mnist").train) == 6
    assert [name for name, _ in server.requests] == FASHION_NAMES
    assert names_in(bare_machine) == set(FASHION_NAMES)


def test_a_wrong_checksum_is_refused_and_leaves_nothing(server: Server, bare_machine: Path) -> None:
    server.files[FASHION_NAMES[1]] = gzip.compress(b"something else")
    message = catch_refusal(lambda: load_dataset("fashion-mnist"))
    assert (
        "MD5" in message
        and FASHION_NAMES[1] in message
        and mnist.MNIST_VARIANTS["fashion-mnist"].md5[FASHION_NAMES[1]] in message
    )
    assert names_in(bare_machine) == {FASHION_NAMES[0]}


def test_a_server_that_lacks_the_file_is_reported(server: Server) -> None:
    server.files.clear()
    assert "404" in catch_refusal(lambda: load_dataset("fashion-mnist"))


def test_an_endless_download_is_stopped(
    server: Server, bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_DOWNLOAD_BYTES", 10)
    assert "larger than 10 bytes" in catch_refusal(lambda: load_dataset("fashion-mnist"))
    assert names_in(bare_machine) == set()


def test_two_downloads_at_once_do_not_disturb_each_other(
    server: Server, bare_machine: Path
) -> None:
    sizes: list[int] = []

    def load() -> None:
        sizes.append(len(load_dataset("fashion-mnist").train))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [6] * 4 and len(server.requests) == 4


# --- names of a stranger's


ESCAPE = "red\x1b[2J\nError: forged"


def test_names_in_files_cannot_write_lines_of_their_own(tmp_path: Path) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text(f'"{ESCAPE}",label\nx,a\ny,b\n')
    for label in (None, "absent"):
        message = catch_refusal(lambda label=label: load_dataset(str(csv), label=label))
        assert "\x1b" not in message and "red" in message
    folder = tmp_path / "pictures" / ESCAPE
    folder.mkdir(parents=True)
    (folder / "0.png").write_bytes(b"no picture")
    (folder / "1.png").write_bytes(b"no picture")
    message = catch_refusal(lambda: load_dataset(str(tmp_path / "pictures")))
    assert "\x1b" not in message and "red\\x1b[2J\\nError" in message


def test_a_table_of_many_columns_gives_a_short_message(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(f"c{i}" for i in range(300_000)) + "\n")
    with pytest.raises(InputError) as caught:
        load_dataset(str(path), label="absent")
    assert len(str(caught.value)) < 5100


@pytest.mark.parametrize("name", ["a.npz", "a.csv", "a.jsonl", "x.npy"])
def test_pipes_and_devices_are_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "neither a file" in catch_refusal(lambda: load_dataset(str(tmp_path / name)))
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    assert "neither a file" in catch_refusal(lambda: load_dataset(str(tmp_path / name)))
