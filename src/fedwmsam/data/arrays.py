"""Loader of arrays that were saved with numpy: an .npz file, or x.npy next to y.npy.

The names are x and y, of which a fifth is held out for testing, or x_train, y_train, x_test and
y_test; the natural client of each sample may be given as `groups` or `client` (with _train and
_test as above). Bytes with two or three dimensions per sample are taken for images, with the
channels first or last; all else becomes float32 as it is, or with `tokens` int64. No pickled object
is ever loaded.
"""

import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedwmsam.data.base import (
    MAX_CLASSES,
    Array,
    BatchTransform,
    Dataset,
    TrainTestArrays,
    as_float,
    as_tokens,
    held_out_mask,
    make_dataset,
    unit_range_normaliser,
)
from fedwmsam.data.npy import NpyHeader, check_size, memmap_npy, read_header
from fedwmsam.errors import InputError, printable

UNSPLIT_NAMES = ("x", "y")
SPLIT_NAMES = ("x_train", "y_train", "x_test", "y_test")
GROUP_NAMES = ("groups", "client")
SPLIT_GROUP_NAMES = ("groups_train", "groups_test", "client_train", "client_test")
ARRAY_NAMES = (*UNSPLIT_NAMES, *SPLIT_NAMES, *GROUP_NAMES, *SPLIT_GROUP_NAMES)
"""The names of the arrays that are read; all others are passed over."""
CHUNK = 1 << 20
"""Bytes that are read at once."""
ZIP_BOMB_MIN_BYTES = 100 << 20
"""Bytes up to which a member of an archive may be compressed at any ratio."""
MAX_COMPRESSION_RATIO = 1000
"""The ratio above which a larger member is taken for an attack."""
MAX_FACTOR = 4
"""Bytes of memory for each byte of an archive that it may take beside `max_gigabytes`."""
BYTES_PER_LABEL = 16
BYTES_PER_GROUP = 64
"""Bytes for each label or group, whatever its type, until it is a class or client number."""
COPIES_TO_SORT = 8
"""Copies of texts and groups, until they are sorted and numbered."""
NUMBERS_AT_ONCE = 1 << 22
"""Numbers that are checked at once, so that mapped arrays are not read all at once."""
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
    IndexError,
)
"""The errors that zipfile raises for damaged archives."""

SplitArrays = tuple[Array, Array, Array | None]
"""The inputs, labels and, if there are any, groups of one split."""


def load_npz(path: Path, *, max_gigabytes: float = 1.0, tokens: bool = False) -> Dataset:
    """Return the data set of an .npz file.

    `max_gigabytes` is how much memory it may take beside four times its own size; with `tokens`,
    integer inputs stay integers. Raise InputError if an option is wrong, or if the archive is
    damaged, too large, or holds arrays that do not fit together.
    """
    if (
        isinstance(max_gigabytes, bool)
        or not isinstance(max_gigabytes, int | float)
        or not max_gigabytes > 0
    ):
        raise InputError(f"max_gigabytes is {max_gigabytes!r}: expected a number above 0, give one")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            members = {name: members[name] for name in ARRAY_NAMES if name in members}
            _check_members(members, path)
            _check_memory(archive, members, path, max_gigabytes)
            arrays = {
                name: _read_member(archive, member, f"{path}: {name}")
                for name, member in members.items()
            }
    except ZIP_ERRORS as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is not a complete .npz file ({printable(error, 200)}): "
            "save it again with numpy.savez"
        ) from error
    return _build_dataset(arrays, path, tokens)


def load_npy(path: Path, *, tokens: bool = False) -> Dataset:
    """Return the data set of x.npy or x_train.npy and the arrays in the same folder.

    The arrays are mapped into memory. With `tokens`, integer inputs stay integers. Raise InputError
    if the file has another name, or if a file is damaged or the arrays do not fit together.
    """
    names = {
        "x": (*UNSPLIT_NAMES, *GROUP_NAMES),
        "x_train": (*SPLIT_NAMES, *GROUP_NAMES, *SPLIT_GROUP_NAMES),
    }.get(path.stem)
    if names is None:
        raise InputError(
            f"{path} has a name of its own, expected x.npy with y.npy beside it: rename both"
        )
    files = {name: path.with_name(f"{name}.npy") for name in names}
    arrays = {name: memmap_npy(file) for name, file in files.items() if file.exists()}
    return _build_dataset(arrays, path, tokens)


def _check_members(members: Mapping[str, zipfile.ZipInfo], path: Path) -> None:
    for member in members.values():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{path} is compressed in an unusual way: save it again with numpy.savez_compressed"
            )
        if member.file_size > max(ZIP_BOMB_MIN_BYTES, MAX_COMPRESSION_RATIO * member.compress_size):
            raise InputError(
                f"{path} would unpack {member.compress_size} bytes to {member.file_size}, "
                f"expected at most {MAX_COMPRESSION_RATIO} times as many: "
                "save it again with numpy.savez"
            )


def _check_memory(
    archive: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    path: Path,
    max_gigabytes: float,
) -> None:
    """Raise InputError if the arrays would take too much memory, by what their headers claim."""
    needed = 0
    for name, member in members.items():
        with archive.open(member) as stream:
            needed += _working_bytes(name, read_header(stream, f"{path}: {name}"))
    limit = max_gigabytes * 1e9 + MAX_FACTOR * path.stat().st_size
    if needed > limit:
        raise InputError(
            f"{path} would take {needed / 1e9:.1f} GB of memory, expected at most "
            f"{limit / 1e9:.1f} GB for a file of {path.stat().st_size / 1e6:.1f} MB: "
            "raise max_gigabytes if it is meant to be so large"
        )


def _working_bytes(name: str, header: NpyHeader) -> int:
    """Return how much memory an array takes at most until it is part of a data set."""
    count = math.prod(header.shape)
    if name.startswith("x"):
        converted = 0 if _has_torch_dtype(header.dtype) else count * 8
        return 2 * header.size + converted  # as read, and without the held-out samples
    if name.startswith("y") and header.dtype.kind != "U":
        return BYTES_PER_LABEL * count + 2 * header.size
    return BYTES_PER_GROUP * count + COPIES_TO_SORT * header.size


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Array:
    """Return the array of one member of an archive.

    Its size is claimed twice, by the zip and by the array; memory grows with the bytes that come.
    """
    with archive.open(member) as stream:
        header = read_header(stream, name)
        check_size(header, member.file_size, name)
        content = bytearray()
        while chunk := stream.read(CHUNK):
            content += chunk
    check_size(header, header.data_offset + len(content), name)
    return header.to_array(content)


def _build_dataset(arrays: Mapping[str, Array], path: Path, tokens: bool) -> Dataset:
    is_split = all(name in arrays for name in SPLIT_NAMES)
    if not is_split and not all(name in arrays for name in UNSPLIT_NAMES):
        names = ", ".join(arrays) or "none of them"
        raise InputError(
            f"{path} holds {names}, expected x and y, or {', '.join(SPLIT_NAMES)}: "
            "save these arrays"
        )
    if is_split:
        train = _select_split(arrays, "_train", path)
        test = _select_split(arrays, "_test", path)
    else:
        train, test = _split_train_test(arrays, path)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InputError(
            f"{path}: training inputs have the shape {train[0].shape[1:]} "
            f"and test inputs {test[0].shape[1:]}, expected the same: save them again"
        )
    if (train[2] is None) != (test[2] is None):
        raise InputError(
            f"{path} has groups for one of training and test only, expected both or none: save both"
        )
    return _build_from_splits(train, test, path, tokens)


def _select_split(arrays: Mapping[str, Array], suffix: str, path: Path) -> SplitArrays:
    """Return the arrays whose names end in `suffix`, checked."""
    groups = next((arrays[name + suffix] for name in GROUP_NAMES if name + suffix in arrays), None)
    return _check_split(arrays["x" + suffix], arrays["y" + suffix], groups, f"{path}: x{suffix}")


def _split_train_test(arrays: Mapping[str, Array], path: Path) -> tuple[SplitArrays, SplitArrays]:
    inputs, labels, groups = _select_split(arrays, "", path)
    test = held_out_mask(len(labels))
    if not test.any():
        raise InputError(
            f"{path} holds one sample, expected at least 2, one to train and one to test: "
            "add samples"
        )

    def select(mask: Array) -> SplitArrays:
        return inputs[mask], labels[mask], None if groups is None else groups[mask]

    return select(~test), select(test)


def _check_split(inputs: Array, labels: Array, groups: Array | None, name: str) -> SplitArrays:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if inputs.ndim < 2 or inputs.dtype.kind not in "biuf":
        raise InputError(
            f"{name} has the shape {inputs.shape} of {inputs.dtype}, "
            "expected numbers with a row for each sample: reshape it"
        )
    for what, array in (("labels", labels), ("groups", groups)):
        if array is not None and array.shape != inputs.shape[:1]:
            raise InputError(
                f"{name} has {len(inputs)} rows but its {what} have the shape {array.shape}, "
                f"expected ({len(inputs)},): save one for each row"
            )
    if inputs.dtype.kind == "f":
        _check_finite(inputs, name)
    return inputs, labels, groups


def _check_finite(inputs: Array, name: str) -> None:
    rows_at_once = max(1, NUMBERS_AT_ONCE // math.prod(inputs.shape[1:]))
    for start in range(0, len(inputs), rows_at_once):
        with np.errstate(over="ignore"):
            finite = np.isfinite(inputs[start : start + rows_at_once].astype(np.float32))
        if not finite.all():
            row = start + int(np.flatnonzero(~finite.reshape(len(finite), -1).all(axis=1))[0])
            raise InputError(
                f"{name} has a number in row {row} that is not finite in float32: "
                "correct or drop the row"
            )


def _build_from_splits(train: SplitArrays, test: SplitArrays, path: Path, tokens: bool) -> Dataset:
    num_classes, class_names, labels = encode_labels(train[1], test[1], str(path))
    arrange, transform = _choose_conversion(train[0], tokens, path)
    groups = None
    if train[2] is not None and test[2] is not None:
        groups = (train[2], test[2])
    return make_dataset(
        path.stem,
        str(path),
        (arrange(train[0]), arrange(test[0])),
        labels,
        num_classes=num_classes,
        transform=transform,
        class_names=class_names,
        groups=groups,
    )


def encode_labels(
    train: Array, test: Array, source: str
) -> tuple[int, tuple[str, ...], TrainTestArrays]:
    """Return how many classes there are, their names if the labels are text, and class numbers.

    Raise InputError, which begins with `source`, if the labels are neither text nor class numbers.
    """
    if train.dtype.kind == "U" and test.dtype.kind == "U":
        names, numbers = np.unique(np.concatenate([train, test]), return_inverse=True)
        if len(names) > MAX_CLASSES:
            raise InputError(
                f"{source} has labels of {len(names)} different texts, expected at most "
                f"{MAX_CLASSES} classes: choose other labels"
            )
        return len(names), tuple(names.tolist()), (numbers[: len(train)], numbers[len(train) :])
    if "U" in (train.dtype.kind, test.dtype.kind):
        raise InputError(
            f"{source} has labels that are partly text and partly numbers, expected one kind: "
            "save again"
        )
    for labels in (train, test):
        low = labels.min()
        high = labels.max()
        is_whole = labels.dtype.kind != "f" or np.all(labels == np.floor(labels))
        if not (low >= 0 and high < MAX_CLASSES and is_whole):
            raise InputError(
                f"{source} has labels from {low} to {high}, expected whole numbers 0, 1, ... "
                f"below {MAX_CLASSES}, one for each class: number the classes"
            )
    train_numbers = train.astype(np.int64)
    test_numbers = test.astype(np.int64)
    num_classes = int(max(train_numbers.max(), test_numbers.max())) + 1
    return num_classes, (), (train_numbers, test_numbers)


def _choose_conversion(
    inputs: Array, tokens: bool, path: Path
) -> tuple[Callable[[Array], Array], BatchTransform]:
    """Return a function that arranges inputs for storage, and the transform of their batches."""
    if tokens:
        if inputs.dtype.kind not in "iu":
            raise InputError(
                f"{path} holds {inputs.dtype}, expected integers for tokens=True: leave tokens out"
            )
        return to_torch_dtype, as_tokens
    if inputs.ndim == 3 and inputs.dtype == np.uint8:
        return lambda array: array[:, None], unit_range_normaliser(1)
    channels_last = inputs.ndim == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3)
    arrange = _channels_first if channels_last else to_torch_dtype
    if inputs.ndim == 4 and inputs.dtype == np.uint8:
        return arrange, unit_range_normaliser(inputs.shape[3 if channels_last else 1])
    return arrange, as_float


def _channels_first(array: Array) -> Array:
    return to_torch_dtype(array).transpose(0, 3, 1, 2)


def to_torch_dtype(array: Array) -> Array:
    """Return the same numbers in a type that torch can index: it lacks most unsigned ones."""
    if _has_torch_dtype(array.dtype):
        return array
    return array.astype(np.int64 if array.dtype.kind == "u" else np.float64)


def _has_torch_dtype(dtype: np.dtype[Any]) -> bool:
    return dtype.itemsize <= (1 if dtype.kind == "u" else 8)
