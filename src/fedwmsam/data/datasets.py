"""The data sets, as whole tensors: normalised once, then only indexed."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedwmsam.data.download import DownloadError, download
from fedwmsam.data.idx import read_idx
from fedwmsam.errors import InputError
from fedwmsam.wording import unknown

FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
FASHION_FOLDER = "fashion-mnist"
FASHION_MEAN, FASHION_STD = 0.2860, 0.3530
SYSTEM_DATA = Path("/usr/share/datasets")
DATA_VARIABLE = "FEDWMSAM_DATA"


@dataclass(frozen=True, eq=False)  # eq would compare tensors, whose == is not a truth value
class Dataset:
    name: str
    inputs: Tensor  # float32, (samples, channels, height, width)
    labels: Tensor  # int64
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    source: str  # where it was read from


def load_dataset(name: str, data_dir: Path | None = None) -> Dataset:
    if name not in DATASETS:
        raise InputError(unknown("data set", name, DATASETS))
    if data_dir is not None:
        data_dir = data_dir.expanduser()
        if not data_dir.is_dir():
            raise InputError(f"the data folder {data_dir} is not an existing folder: create it or name another one")
    return DATASETS[name](data_dir)


def _load_digits(_data_dir: Path | None) -> Dataset:
    import sklearn  # here, because importing it costs a second that other data sets need not pay
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs = images.reshape(-1, 1, 8, 8) / 16.0
    test = _every_fifth_of_each_class(labels)
    inputs = (inputs - inputs[~test].mean()) / inputs[~test].std()
    return Dataset(
        name="digits",
        inputs=torch.from_numpy(inputs[~test].astype(np.float32)),
        labels=torch.from_numpy(labels[~test].astype(np.int64)),
        test_inputs=torch.from_numpy(inputs[test].astype(np.float32)),
        test_labels=torch.from_numpy(labels[test].astype(np.int64)),
        classes=10,
        source=f"scikit-learn {sklearn.__version__}",
    )


def _every_fifth_of_each_class(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """A stratified fifth for testing, by position: no seed and no library version can move it."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[4::5]] = True
    return chosen


def _load_fashion_mnist(data_dir: Path | None) -> Dataset:
    folder = _fashion_folder(data_dir)
    inputs, labels = _read_fashion_part(folder, "train")
    test_inputs, test_labels = _read_fashion_part(folder, "t10k")
    return Dataset("fashion-mnist", inputs, labels, test_inputs, test_labels, classes=10, source=str(folder))


def _fashion_folder(data_dir: Path | None) -> Path:
    """The first place that holds all four files; the last one, the user's cache, is filled by a download."""
    for folder in _fashion_places(data_dir):
        if not _missing(folder):
            return folder
    cache = _cache() / FASHION_FOLDER
    try:
        download(FASHION_URL, {name: FASHION_MD5[name] for name in _missing(cache)}, cache)
    except DownloadError as error:
        place = data_dir or cache
        raise InputError(
            f"Fashion-MNIST was not found and could not be downloaded ({error}): put {', '.join(_missing(place))} into "
            f"{place}, or all four files into the folder that ${DATA_VARIABLE} names, "
            "or run `apt-get install dataset-fashion-mnist`"
        ) from error
    return cache


def _fashion_places(data_dir: Path | None) -> Iterator[Path]:
    variable = os.environ.get(DATA_VARIABLE)
    for folder in (data_dir, Path(variable).expanduser() if variable else None):
        if folder is not None:
            yield folder
            yield folder / FASHION_FOLDER
    yield SYSTEM_DATA / FASHION_FOLDER
    yield _cache() / FASHION_FOLDER


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says that a relative path, the empty one included, is to be ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "fedwmsam"


def _missing(folder: Path) -> list[str]:
    return [name for name in FASHION_MD5 if _plain_or_packed(folder / name) is None]


def _plain_or_packed(packed: Path) -> Path | None:
    return next((path for path in (packed.with_suffix(""), packed) if path.is_file()), None)


def _read_fashion_part(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    images_path = _plain_or_packed(folder / f"{part}-images-idx3-ubyte.gz")
    labels_path = _plain_or_packed(folder / f"{part}-labels-idx1-ubyte.gz")
    assert images_path is not None and labels_path is not None, "the folder was chosen because it holds them"
    images, labels = read_idx(images_path), read_idx(labels_path)
    _check_bytes(images, (28, 28), images_path)
    _check_bytes(labels, (), labels_path)
    if len(images) != len(labels):
        raise InputError(
            f"{images_path} holds {len(images)} images but {labels_path} holds {len(labels)} labels, "
            "expected as many: get both again"
        )
    if labels.max() > 9:
        raise InputError(f"{labels_path} holds the label {labels.max()}, expected 0 to 9: get it again")
    inputs = torch.from_numpy(images).to(torch.float32).unsqueeze(1)
    inputs.div_(255).sub_(FASHION_MEAN).div_(FASHION_STD)  # in place: a copy of the training images takes 190 MB
    return inputs, torch.from_numpy(labels).to(torch.int64)


def _check_bytes(array: npt.NDArray[Any], item_shape: tuple[int, ...], path: Path) -> None:
    if array.dtype != np.uint8 or array.shape[1:] != item_shape:
        expected = " x ".join(map(str, ("n", *item_shape)))
        found = " x ".join(map(str, array.shape))
        raise InputError(f"{path} holds {found} items of {array.dtype}, expected {expected} of uint8: get it again")


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": _load_digits,
    "fashion-mnist": _load_fashion_mnist,
}
