"""Loader of CIFAR-10 and CIFAR-100, from the publisher's binary files or from his pickled ones.

A binary record is one label byte (CIFAR-100: two, coarse and fine, of which the fine one is used)
and 3072 pixel bytes, the red, green and blue planes of 32 x 32. A pickled file holds the same rows
as an array and the labels as a list.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedwmsam.data.base import Array, Dataset, Normalise
from fedwmsam.data.cache import Decoded
from fedwmsam.data.download import DownloadError, download, extract_members, file_md5
from fedwmsam.data.paths import DATA_ENV_VAR, cache_folder, candidate_folders, user_data_folders
from fedwmsam.data.safe_pickle import read_plain_pickle
from fedwmsam.errors import InputError

PIXELS = 3 * 32 * 32
"""Bytes of one image."""
MAX_RECORDS = 60_000
"""Records of one file; a sparse file may claim any number without holding them."""
MAX_BYTES = MAX_RECORDS * (PIXELS + 64)
"""Bytes of one pickled file, whose records also carry a file name."""

CIFAR10_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR100_NAMES = (
    "apple",
    "aquarium_fish",
    "baby",
    "bear",
    "beaver",
    "bed",
    "bee",
    "beetle",
    "bicycle",
    "bottle",
    "bowl",
    "boy",
    "bridge",
    "bus",
    "butterfly",
    "camel",
    "can",
    "castle",
    "caterpillar",
    "cattle",
    "chair",
    "chimpanzee",
    "clock",
    "cloud",
    "cockroach",
    "couch",
    "crab",
    "crocodile",
    "cup",
    "dinosaur",
    "dolphin",
    "elephant",
    "flatfish",
    "forest",
    "fox",
    "girl",
    "hamster",
    "house",
    "kangaroo",
    "keyboard",
    "lamp",
    "lawn_mower",
    "leopard",
    "lion",
    "lizard",
    "lobster",
    "man",
    "maple_tree",
    "motorcycle",
    "mountain",
    "mouse",
    "mushroom",
    "oak_tree",
    "orange",
    "orchid",
    "otter",
    "palm_tree",
    "pear",
    "pickup_truck",
    "pine_tree",
    "plain",
    "plate",
    "poppy",
    "porcupine",
    "possum",
    "rabbit",
    "raccoon",
    "ray",
    "road",
    "rocket",
    "rose",
    "sea",
    "seal",
    "shark",
    "shrew",
    "skunk",
    "skyscraper",
    "snail",
    "snake",
    "spider",
    "squirrel",
    "streetcar",
    "sunflower",
    "sweet_pepper",
    "table",
    "tank",
    "telephone",
    "television",
    "tiger",
    "tractor",
    "train",
    "trout",
    "tulip",
    "turtle",
    "wardrobe",
    "whale",
    "willow_tree",
    "wolf",
    "woman",
    "worm",
)


@dataclass(frozen=True)
class FileLayout:
    """The files of one published form of a data set."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    is_pickled: bool

    def missing_files(self, folder: Path) -> list[str]:
        """Return the names of the files that a folder lacks."""
        return [name for name in (*self.train, *self.test) if not (folder / name).is_file()]


@dataclass(frozen=True)
class Release:
    """One of the two data sets as it is published."""

    title: str
    class_names: tuple[str, ...]
    label_bytes: int
    """Bytes before the pixels of a binary record; the last of them is the label."""
    label_key: str
    """The key of the labels in a pickled file."""
    binary: FileLayout
    pickled: FileLayout
    archive: str
    """The name of the archive of the binary files."""
    md5: str
    normalise: Normalise
    url: str = field(default="https://www.cs.toronto.edu/~kriz/")

    @property
    def num_classes(self) -> int:
        """Return how many classes the labels stand for."""
        return len(self.class_names)


RELEASES = {
    "cifar-10": Release(
        title="CIFAR-10",
        class_names=CIFAR10_NAMES,
        label_bytes=1,
        label_key="labels",
        binary=FileLayout(
            "cifar-10-batches-bin",
            tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            ("test_batch.bin",),
            False,
        ),
        pickled=FileLayout(
            "cifar-10-batches-py",
            tuple(f"data_batch_{i}" for i in range(1, 6)),
            ("test_batch",),
            True,
        ),
        archive="cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        normalise=Normalise((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    ),
    "cifar-100": Release(
        title="CIFAR-100",
        class_names=CIFAR100_NAMES,
        label_bytes=2,
        label_key="fine_labels",
        binary=FileLayout("cifar-100-binary", ("train.bin",), ("test.bin",), False),
        pickled=FileLayout("cifar-100-python", ("train",), ("test",), True),
        archive="cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        normalise=Normalise((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    ),
}


def load_cifar(name: str, data_dir: Path | None) -> Dataset:
    """Return the release of this name, downloading its archive if no folder holds its files.

    Raise InputError if that fails or the files are damaged.
    """
    release = RELEASES[name]
    folder, layout = _locate_files(release, data_dir)
    decoded = _decode(release, folder, layout)
    return Dataset(
        name=name,
        train=decoded.split("train"),
        test=decoded.split("test"),
        num_classes=release.num_classes,
        source=str(folder),
        transform=release.normalise,
        class_names=release.class_names,
    )


def _locate_files(release: Release, data_dir: Path | None) -> tuple[Path, FileLayout]:
    """Return the first folder with all files of either form, and which form that is.

    If there is none, unpack the archive into the cache, and download it if it is missing, too.
    """
    for folder in candidate_folders(data_dir, (release.binary.folder, release.pickled.folder)):
        for layout in (release.binary, release.pickled):
            if not layout.missing_files(folder):
                return folder, layout
    folder = cache_folder() / release.binary.folder
    try:
        _unpack_archive(release, data_dir, folder)
    except DownloadError as error:
        target = data_dir or cache_folder()
        raise InputError(
            f"{release.title} was not found and could not be downloaded ({error}): "
            f"put {release.archive} from {release.url} or its folder {release.binary.folder} "
            f"into {target} or where ${DATA_ENV_VAR} points"
        ) from error
    return folder, release.binary


def _unpack_archive(release: Release, data_dir: Path | None, folder: Path) -> None:
    archives = (parent / release.archive for parent in user_data_folders(data_dir))
    archive = next((path for path in archives if path.is_file()), None)
    if archive is None:
        download(release.url, {release.archive: release.md5}, cache_folder())
        archive = cache_folder() / release.archive
    checksum = file_md5(archive)
    if checksum != release.md5:
        raise DownloadError(f"{archive} has the MD5 {checksum}, expected {release.md5}")
    layout = release.binary
    members = [f"{layout.folder}/{name}" for name in (*layout.train, *layout.test)]
    max_bytes = MAX_RECORDS * (PIXELS + release.label_bytes)
    extract_members(archive, members, folder, max_bytes)
    # A downloaded archive is not needed any more.
    (cache_folder() / release.archive).unlink(missing_ok=True)


def _decode(release: Release, folder: Path, layout: FileLayout) -> Decoded:
    read = read_pickled if layout.is_pickled else read_binary
    arrays: dict[str, Array] = {}
    for part, names in (("train", layout.train), ("test", layout.test)):
        pieces = [read(folder / name, release) for name in names]
        pixels = np.concatenate([piece[0] for piece in pieces])
        labels = np.concatenate([piece[1] for piece in pieces])
        arrays[f"{part}_inputs"] = pixels.reshape(-1, 3, 32, 32)
        arrays[f"{part}_labels"] = labels.astype(np.int64)
    return Decoded(arrays, {})


def read_binary(path: Path, release: Release) -> tuple[Array, Array]:
    """Return the pixels, one row per image, and the labels of a binary file.

    The pixels are mapped into memory. Raise InputError if the file is not a sequence of records.
    """
    record_bytes = release.label_bytes + PIXELS
    try:
        size = path.stat().st_size
        if size == 0 or size % record_bytes or size > MAX_RECORDS * record_bytes:
            raise InputError(
                f"{path} is {size} bytes long, expected 1 to {MAX_RECORDS} records of "
                f"{record_bytes} bytes: get it again"
            )
        records = np.memmap(path, np.uint8, "r", shape=(size // record_bytes, record_bytes))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read ({error}): check the file") from error
    labels = records[:, release.label_bytes - 1]
    _check_labels(labels, release, path)
    return records[:, release.label_bytes :], labels


def read_pickled(path: Path, release: Release) -> tuple[Array, Array]:
    """Return the pixels, one row per image, and the labels of a pickled file.

    Raise InputError if the file holds anything else.
    """
    content = read_plain_pickle(path, MAX_BYTES)
    pixels = content.get("data")
    labels = content.get(release.label_key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise InputError(
            f"{path} has no array 'data' of n x {PIXELS} bytes, as {release.title} has: "
            "get it again"
        )
    if not isinstance(labels, list) or not all(type(v) is int and 0 <= v < 1 << 31 for v in labels):
        raise InputError(
            f"{path} has no list {release.label_key!r} of labels, as {release.title} has: "
            "get it again"
        )
    if len(labels) != len(pixels):
        raise InputError(
            f"{path} holds {len(pixels)} images but {len(labels)} labels, expected as many: "
            "get it again"
        )
    label_array = np.array(labels, np.int64)
    _check_labels(label_array, release, path)
    return pixels, label_array


def _check_labels(labels: Array, release: Release, path: Path) -> None:
    if labels.max() >= release.num_classes:
        raise InputError(
            f"{path} holds the label {labels.max()}, expected 0 to {release.num_classes - 1} "
            f"as {release.title} has: get it again"
        )
