"""CIFAR-10 and CIFAR-100, from the publisher's binary files or from his pickled ones.

A binary record is one label byte (CIFAR-100: two, coarse and fine, of which the fine one is used) and 3072 pixel bytes,
the red, green and blue planes of 32 x 32. A pickled file holds the same rows as an array and the labels as a list.
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
MOST_RECORDS = 60_000  # in one file; a sparse file may claim any number without holding them
MOST_BYTES = MOST_RECORDS * (
    PIXELS + 64
)  # of one pickled file, whose records also carry a file name

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
    """The files of one published form."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    pickled: bool

    def missing(self, folder: Path) -> list[str]:
        return [name for name in (*self.train, *self.test) if not (folder / name).is_file()]


@dataclass(frozen=True)
class Release:
    title: str
    class_names: tuple[str, ...]
    label_bytes: int
    label_key: str
    binary: FileLayout
    pickled: FileLayout
    archive: str
    md5: str
    normalise: Normalise
    url: str = field(default="https://www.cs.toronto.edu/~kriz/")

    @property
    def classes(self) -> int:
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
    release = RELEASES[name]
    folder, layout = _locate_files(release, data_dir)
    decoded = _decode(release, folder, layout)
    return Dataset(
        name=name,
        train=decoded.split("train"),
        test=decoded.split("test"),
        classes=release.classes,
        source=str(folder),
        prepare=release.normalise,
        class_names=release.class_names,
    )


def _locate_files(release: Release, data_dir: Path | None) -> tuple[Path, FileLayout]:
    """The first place with all files of either form, else the archive's content, downloaded if nobody has put it."""
    for folder in candidate_folders(data_dir, (release.binary.folder, release.pickled.folder)):
        for layout in (release.binary, release.pickled):
            if not layout.missing(folder):
                return folder, layout
    folder = cache_folder() / release.binary.folder
    try:
        _unpack_archive(release, data_dir, folder)
    except DownloadError as error:
        place = data_dir or cache_folder()
        raise InputError(
            f"{release.title} was not found and could not be downloaded ({error}): put {release.archive} from "
            f"{release.url} or its folder {release.binary.folder} into {place} or where ${DATA_ENV_VAR} points"
        ) from error
    return folder, release.binary


def _unpack_archive(release: Release, data_dir: Path | None, folder: Path) -> None:
    archive = next(
        (p for f in user_data_folders(data_dir) if (p := f / release.archive).is_file()), None
    )
    if archive is None:
        download(release.url, {release.archive: release.md5}, cache_folder())
        archive = cache_folder() / release.archive
    if (found := file_md5(archive)) != release.md5:
        raise DownloadError(f"{archive} has the MD5 {found}, expected {release.md5}")
    layout = release.binary
    members = [f"{layout.folder}/{name}" for name in (*layout.train, *layout.test)]
    extract_members(archive, members, folder, largest=MOST_RECORDS * (PIXELS + release.label_bytes))
    (cache_folder() / release.archive).unlink(missing_ok=True)  # what was in it takes its place


def _decode(release: Release, folder: Path, layout: FileLayout) -> Decoded:
    read = read_pickled if layout.pickled else read_binary
    arrays: dict[str, Array] = {}
    for part, names in (("train", layout.train), ("test", layout.test)):
        pieces = [read(folder / name, release) for name in names]
        arrays[f"{part}_inputs"] = np.concatenate([pixels for pixels, _ in pieces]).reshape(
            -1, 3, 32, 32
        )
        arrays[f"{part}_labels"] = np.concatenate([labels for _, labels in pieces]).astype(np.int64)
    return Decoded(arrays, {})


def read_binary(path: Path, release: Release) -> tuple[Array, Array]:
    record = release.label_bytes + PIXELS
    try:
        size = path.stat().st_size
        if size == 0 or size % record or size > MOST_RECORDS * record:
            raise InputError(
                f"{path} is {size} bytes long, expected 1 to {MOST_RECORDS} records of {record} bytes: get it again"
            )
        records = np.memmap(path, np.uint8, "r", shape=(size // record, record))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read ({error}): check the file") from error
    labels = records[:, release.label_bytes - 1]
    _check_labels(labels, release, path)
    return records[:, release.label_bytes :], labels


def read_pickled(path: Path, release: Release) -> tuple[Array, Array]:
    content = read_plain_pickle(path, MOST_BYTES)
    pixels, labels = content.get("data"), content.get(release.label_key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise InputError(
            f"{path} has no array 'data' of n x {PIXELS} bytes, as {release.title} has: get it again"
        )
    if not isinstance(labels, list) or not all(type(v) is int and 0 <= v < 1 << 31 for v in labels):
        raise InputError(
            f"{path} has no list {release.label_key!r} of labels, as {release.title} has: get it again"
        )
    if len(labels) != len(pixels):
        raise InputError(
            f"{path} holds {len(pixels)} images but {len(labels)} labels, expected as many: get it again"
        )
    numbers = np.array(labels, np.int64)
    _check_labels(numbers, release, path)
    return pixels, numbers


def _check_labels(labels: Array, release: Release, path: Path) -> None:
    if labels.max() >= release.classes:
        raise InputError(
            f"{path} holds the label {labels.max()}, expected 0 to {release.classes - 1} as {release.title} has: "
            "get it again"
        )
