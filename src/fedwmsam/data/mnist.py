"""Loader of MNIST and the data sets that were published in its form.

Each is four IDX files: 28 x 28 grey pixels and ten classes, for training and for testing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedwmsam.data.base import Dataset, Normalise, Split, make_split
from fedwmsam.data.download import DownloadError, download, file_md5
from fedwmsam.data.idx import read_idx
from fedwmsam.data.paths import DATA_ENV_VAR, cache_folder, candidate_folders
from fedwmsam.errors import InputError


@dataclass(frozen=True)
class MnistVariant:
    """A data set in the form of MNIST: its files, its normalisation and its classes."""

    title: str
    folder: str
    """The name of the folder that its files are looked for in."""
    url: str
    md5: Mapping[str, str]
    """The checksums of the packed files, by their names."""
    mean: float
    std: float
    class_names: tuple[str, ...]
    hint: str = ""
    """Another way to get the files, for the message that they are missing."""


IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
FASHION_NAMES = (
    "T-shirt",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def _checksums(*values: str) -> dict[str, str]:
    return dict(zip(IDX_FILES, values, strict=True))


MNIST_VARIANTS = {
    "mnist": MnistVariant(
        title="MNIST",
        folder="mnist",
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        md5=_checksums(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        mean=0.1307,
        std=0.3081,
        class_names=tuple("0123456789"),
    ),
    "fashion-mnist": MnistVariant(
        title="Fashion-MNIST",
        folder="fashion-mnist",
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        md5=_checksums(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        mean=0.2860,
        std=0.3530,
        class_names=FASHION_NAMES,
        hint=", or run `apt-get install dataset-fashion-mnist`",
    ),
    "kmnist": MnistVariant(
        title="KMNIST",
        folder="kmnist",
        url="http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        md5=_checksums(
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
        mean=0.1918,
        std=0.3483,
        class_names=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    ),
}


def load_mnist(name: str, data_dir: Path | None) -> Dataset:
    """Return the variant of this name, downloading its files if no folder holds them.

    Raise InputError if they cannot be downloaded, are damaged or belong to another variant.
    """
    variant = MNIST_VARIANTS[name]
    folder = _locate_folder(variant, data_dir)
    return Dataset(
        name=name,
        train=_read_split(folder, "train"),
        test=_read_split(folder, "t10k"),
        num_classes=10,
        source=str(folder),
        transform=Normalise((variant.mean,), (variant.std,)),
        class_names=variant.class_names,
    )


def _locate_folder(variant: MnistVariant, data_dir: Path | None) -> Path:
    """Return the first folder that holds all four files.

    The last one, the user's cache, is filled by a download.
    """
    for folder in candidate_folders(data_dir, (variant.folder,)):
        if not missing_files(folder):
            _check_not_other_variant(folder, variant)
            return folder
    cache = cache_folder() / variant.folder
    try:
        download(variant.url, {name: variant.md5[name] for name in missing_files(cache)}, cache)
    except DownloadError as error:
        target = data_dir or cache
        raise InputError(
            f"{variant.title} was not found and could not be downloaded ({error}): "
            f"put {', '.join(missing_files(target))} into {target}, "
            f"or all four files into the folder that ${DATA_ENV_VAR} names{variant.hint}"
        ) from error
    return cache


def missing_files(folder: Path) -> list[str]:
    """Return the names of the IDX files that a folder lacks, packed and unpacked."""
    return [name for name in IDX_FILES if _find_idx_file(folder / name) is None]


def _find_idx_file(packed: Path) -> Path | None:
    return next((path for path in (packed.with_suffix(""), packed) if path.is_file()), None)


def _check_not_other_variant(folder: Path, variant: MnistVariant) -> None:
    """Raise InputError if the folder's label file is that of another variant.

    All use the same file names, and the wrong one would train without complaint.
    """
    path = folder / IDX_FILES[1]
    checksum = file_md5(path) if path.is_file() else ""
    for other in MNIST_VARIANTS.values():
        if other.title != variant.title and checksum == other.md5[path.name]:
            raise InputError(
                f"{path} belongs to {other.title}, expected {variant.title}: "
                f"put the files of {variant.title} into {folder / variant.folder}"
            )


def _read_split(folder: Path, part: str) -> Split:
    images_path = _find_idx_file(folder / f"{part}-images-idx3-ubyte.gz")
    labels_path = _find_idx_file(folder / f"{part}-labels-idx1-ubyte.gz")
    assert images_path is not None and labels_path is not None, (
        "the folder was chosen because it holds them"
    )
    images = read_idx(images_path, (28, 28))
    labels = read_idx(labels_path, ())
    if len(images) != len(labels):
        raise InputError(
            f"{images_path} holds {len(images)} images but {labels_path} holds {len(labels)} "
            "labels, expected as many: get both again"
        )
    if labels.max() > 9:
        raise InputError(
            f"{labels_path} holds the label {labels.max()}, expected 0 to 9: get it again"
        )
    return make_split(images[:, None], labels)
