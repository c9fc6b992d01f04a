"""Data sets by name or by path."""

import inspect
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedwmsam.data.arrays import load_npy, load_npz
from fedwmsam.data.base import Dataset, as_float, make_split
from fedwmsam.data.cifar import RELEASES, load_cifar
from fedwmsam.data.image_folder import DOMAIN_DATASETS, load_domain_dataset, load_image_folder
from fedwmsam.data.mnist import MNIST_VARIANTS, load_mnist
from fedwmsam.data.table import load_csv
from fedwmsam.data.text import load_jsonl, load_shakespeare
from fedwmsam.errors import InputError, unknown_name_message

Loader = Callable[..., Dataset]


def load_dataset(name_or_path: str, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """The data set of this name, its files below `data_dir`, or the one a path leads to.

    A path is a folder of pictures or an .npz, .npy, .csv or .jsonl file. `options` are the keyword arguments of the
    loader in question, such as `image_size` and `leave_out` for pictures.
    """
    if data_dir is not None:
        data_dir = Path(data_dir).expanduser()
        if not data_dir.is_dir():
            raise InputError(
                f"the data folder {data_dir} is not an existing folder: create it or name another one"
            )
    loader = DATASETS.get(name_or_path)
    if loader is not None:
        _check_options(name_or_path, loader, options)
        return loader(data_dir, **options)
    path = _resolve_path(name_or_path, data_dir)
    loader = load_image_folder if path.is_dir() else FILE_LOADERS[path.suffix.lower()]
    _check_options(name_or_path, loader, options)
    return loader(path, **options)


def dataset_options(name_or_path: str) -> dict[str, Any]:
    """The options of a data set and their defaults."""
    loader = (
        DATASETS.get(name_or_path)
        or FILE_LOADERS.get(Path(name_or_path).suffix.lower())
        or load_image_folder
    )
    found = inspect.signature(loader).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in found
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def _check_options(name: str, loader: Loader, options: dict[str, Any]) -> None:
    known = [
        p.name for p in inspect.signature(loader).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    for option in options:
        if not known:
            raise InputError(
                f"the data set {name} takes no options, not {option!r} either: leave it out"
            )
        if option not in known:
            raise InputError(unknown_name_message(f"option of the data set {name}", option, known))


def _resolve_path(text: str, data_dir: Path | None) -> Path:
    """The file or folder a text leads to, from here or from the data folder."""
    given = Path(text).expanduser()
    looks_like_path = os.sep in text or "/" in text or given.suffix.lower() in FILE_LOADERS
    for path in (given, data_dir / given) if data_dir else (given,):
        if path.is_file() and path.suffix.lower() not in FILE_LOADERS:
            raise InputError(
                f"{path} ends in {path.suffix!r}, expected a folder of pictures or a file that ends in "
                f"{', '.join(FILE_LOADERS)}: convert it"
            )
        if path.is_dir() or path.is_file():
            return path
    if looks_like_path:
        raise InputError(f"{given} is neither a file nor a folder here: check the path")
    raise InputError(
        f"{unknown_name_message('data set', text, DATASETS)} Or give the path of a folder or file of your own."
    )


def _load_digits(_data_dir: Path | None) -> Dataset:
    import sklearn  # here, because importing it costs a second that other data sets need not pay
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs = images.reshape(-1, 1, 8, 8) / 16.0
    test = _stratified_test_mask(labels)
    inputs = (inputs - inputs[~test].mean()) / inputs[~test].std()
    return Dataset(
        name="digits",
        train=make_split(inputs[~test].astype(np.float32), labels[~test]),
        test=make_split(inputs[test].astype(np.float32), labels[test]),
        classes=10,
        source=f"scikit-learn {sklearn.__version__}",
        prepare=as_float,
        class_names=tuple("0123456789"),
    )


def _stratified_test_mask(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """A stratified fifth for testing, by position: no seed and no library version can move it."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[4::5]] = True
    return chosen


DATASETS: dict[str, Loader] = {
    "digits": _load_digits,
    **{name: partial(load_mnist, name) for name in MNIST_VARIANTS},
    **{name: partial(load_cifar, name) for name in RELEASES},
    **{name: partial(load_domain_dataset, name) for name in DOMAIN_DATASETS},
    "shakespeare": load_shakespeare,
}
FILE_LOADERS: dict[str, Loader] = {
    ".npz": load_npz,
    ".npy": load_npy,
    ".csv": load_csv,
    ".jsonl": load_jsonl,
}
