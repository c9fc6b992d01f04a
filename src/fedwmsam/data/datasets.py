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
from fedwmsam.errors import InputError, printable, unknown_name_message

MAX_MESSAGE_LENGTH = 5000
"""Characters of the message about a file."""
Loader = Callable[..., Dataset]
"""A function that reads the files of a data set and returns a `Dataset`.

A loader in `DATASETS` is called with one positional argument, `data_dir`: the folder to look in
first, or None; `paths.candidate_folders` lists the others. A loader in `FILE_LOADERS` is called
with `path`, which exists. Both raise InputError, in one sentence that names the file, for files
that are missing, damaged or of another kind.

The keyword-only arguments of a loader are the data set's options, which users write after its name
as `name,key=value`. Each needs a default: its type is the type that the text of the option is
converted to (true and false for a bool); with the default None it stays text.

A loader should use `cache.load_or_decode` when decoding takes much longer than reading, as it does
for compressed images. The arrays it returns are then mapped into memory and shared by all runs.
"""


def load_dataset(name_or_path: str, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """Return the data set of this name, its files below `data_dir`, or the one at a path.

    A path is a folder of images or an .npz, .npy, .csv or .jsonl file. `options` are the keyword
    arguments of the loader in question, such as `image_size` and `leave_out` for images. Raise
    InputError if the name, the path, an option or the files are wrong.
    """
    if data_dir is not None:
        data_dir = Path(data_dir).expanduser()
        if not data_dir.is_dir():
            raise InputError(
                f"the data folder {data_dir} is not an existing folder: "
                "create it or name another one"
            )
    location: Path | None = data_dir
    loader = DATASETS.get(name_or_path)
    if loader is None:
        path = _resolve_path(name_or_path, data_dir)
        loader = FOLDER_LOADER if path.is_dir() else FILE_LOADERS[path.suffix.lower()]
        location = path
    _check_options(name_or_path, loader, options)
    try:
        return loader(location, **options)
    except InputError as error:
        # It may name a stranger's folders, columns and arrays, which hold what they like.
        raise InputError(printable(error, MAX_MESSAGE_LENGTH)) from error


def dataset_options(name_or_path: str) -> dict[str, Any]:
    """Return the options of a data set and their defaults."""
    loader = (
        DATASETS.get(name_or_path)
        or FILE_LOADERS.get(Path(name_or_path).suffix.lower())
        or FOLDER_LOADER
    )
    return _keyword_defaults(loader)


def _keyword_defaults(loader: Loader) -> dict[str, Any]:
    parameters = inspect.signature(loader).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _check_options(name: str, loader: Loader, options: dict[str, Any]) -> None:
    valid = _keyword_defaults(loader)
    for option in options:
        if not valid:
            raise InputError(
                f"the data set {name} takes no options, not {option!r} either: leave it out"
            )
        if option not in valid:
            raise InputError(unknown_name_message(f"option of the data set {name}", option, valid))


def _resolve_path(text: str, data_dir: Path | None) -> Path:
    """Return the file or folder of a path that is relative to here or to the data folder."""
    user_path = Path(text).expanduser()
    looks_like_path = os.sep in text or "/" in text or user_path.suffix.lower() in FILE_LOADERS
    for path in (user_path, data_dir / user_path) if data_dir else (user_path,):
        if path.is_file() and path.suffix.lower() not in FILE_LOADERS:
            raise InputError(
                f"{path} ends in {path.suffix!r}, expected a folder of pictures or a file that "
                f"ends in {', '.join(FILE_LOADERS)}: convert it"
            )
        if path.is_dir() or path.is_file():
            return path
    if looks_like_path:
        raise InputError(f"{user_path} is neither a file nor a folder here: check the path")
    raise InputError(
        f"{unknown_name_message('data set', text, DATASETS)} "
        "Or give the path of a folder or file of your own."
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
        num_classes=10,
        source=f"scikit-learn {sklearn.__version__}",
        transform=as_float,
        class_names=tuple("0123456789"),
    )


def _stratified_test_mask(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of a fifth of each class, chosen by position.

    Neither a seed nor a library's version can change it.
    """
    mask = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[4::5]] = True
    return mask


DATASETS: dict[str, Loader] = {
    "digits": _load_digits,
    **{name: partial(load_mnist, name) for name in MNIST_VARIANTS},
    **{name: partial(load_cifar, name) for name in RELEASES},
    **{name: partial(load_domain_dataset, name) for name in DOMAIN_DATASETS},
    "shakespeare": load_shakespeare,
}
"""The loaders of the data sets that have a name, called with the data folder."""
FILE_LOADERS: dict[str, Loader] = {
    ".npz": load_npz,
    ".npy": load_npy,
    ".csv": load_csv,
    ".jsonl": load_jsonl,
}
"""The loaders of single files by their suffix, called with the path."""
FOLDER_LOADER: Loader = load_image_folder
"""The loader of folders, called with the path."""
