"""Arrays that people have saved with numpy: an .npz file, or x.npy with y.npy beside it.

The names are x and y, of which a fifth is held out for testing, or x_train, y_train, x_test and y_test; the natural
client of each sample may be given as `groups` or `client` (with _train and _test as above). Bytes with two or three
dimensions per sample are taken for pictures, with the channels first or last; all else becomes float32 as it is, or
with `tokens` int64. No pickled object is ever loaded.
"""

import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedwmsam.data.base import (
    MOST_CLASSES,
    Array,
    BatchTransform,
    Dataset,
    TrainTestArrays,
    as_float,
    as_tokens,
    make_dataset,
    test_mask,
    unit_range_normaliser,
)
from fedwmsam.data.npy import check_size, memmap_npy, read_header
from fedwmsam.errors import InputError

UNSPLIT_NAMES = ("x", "y")
SPLIT_NAMES = ("x_train", "y_train", "x_test", "y_test")
GROUP_NAMES = ("groups", "client")
ARRAY_NAMES = (
    *UNSPLIT_NAMES,
    *SPLIT_NAMES,
    *GROUP_NAMES,
    *(f"{name}_{part}" for name in GROUP_NAMES for part in ("train", "test")),
)
CHUNK = 1 << 20
ZIP_BOMB_MIN_BYTES, MAX_COMPRESSION_RATIO = (
    100 << 20,
    1000,
)  # what unpacks to more than this at such a ratio is not data but an attack
ROWS_AT_ONCE = 4096
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


def load_npz(path: Path, *, max_gigabytes: float = 8.0, tokens: bool = False) -> Dataset:
    if (
        isinstance(max_gigabytes, bool)
        or not isinstance(max_gigabytes, int | float)
        or not max_gigabytes > 0
    ):
        raise InputError(f"max_gigabytes is {max_gigabytes!r}: expected a number above 0, give one")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            _check_archive(list(members.values()), path, max_gigabytes * 1e9)
            arrays = {
                name: _read_member(archive, members[name], f"{path}: {name}")
                for name in ARRAY_NAMES
                if name in members
            }
    except ZIP_ERRORS as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is not a complete .npz file ({error}): save it again with numpy.savez"
        ) from error
    return _build_dataset(arrays, path, tokens)


def load_npy(path: Path, *, tokens: bool = False) -> Dataset:
    names = {
        "x": (*UNSPLIT_NAMES, *GROUP_NAMES),
        "x_train": (*SPLIT_NAMES, *GROUP_NAMES, *ARRAY_NAMES[-4:]),
    }.get(path.stem)
    if names is None:
        raise InputError(
            f"{path} has a name of its own, expected x.npy with y.npy beside it: rename both"
        )
    found = {name: path.with_name(f"{name}.npy") for name in names}
    return _build_dataset(
        {name: memmap_npy(file) for name, file in found.items() if file.exists()}, path, tokens
    )


def _check_archive(members: list[zipfile.ZipInfo], path: Path, most_bytes: float) -> None:
    total = sum(member.file_size for member in members)
    if total > most_bytes:
        raise InputError(
            f"{path} unpacks to {total / 1e9:.1f} GB, expected at most {most_bytes / 1e9:g} GB: "
            "raise max_gigabytes if it is meant to be so large"
        )
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{path} is compressed in an unusual way: save it again with numpy.savez_compressed"
            )
        if member.file_size > max(ZIP_BOMB_MIN_BYTES, MAX_COMPRESSION_RATIO * member.compress_size):
            raise InputError(
                f"{path} would unpack {member.compress_size} bytes to {member.file_size}, expected at most "
                f"{MAX_COMPRESSION_RATIO} times as many: save it again with numpy.savez"
            )


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Array:
    """The array of one member. Its size is claimed twice, by the zip and by the array; memory grows with what comes."""
    with archive.open(member) as stream:
        header = read_header(stream, name)
        check_size(header, member.file_size, name)
        content = bytearray()
        while chunk := stream.read(CHUNK):
            content += chunk
    check_size(header, header.start + len(content), name)
    return header.array(content)


def _build_dataset(arrays: Mapping[str, Array], path: Path, tokens: bool) -> Dataset:
    apart = all(name in arrays for name in SPLIT_NAMES)
    if not apart and not all(name in arrays for name in UNSPLIT_NAMES):
        found = ", ".join(arrays) or "none of them"
        raise InputError(
            f"{path} holds {found}, expected x and y, or {', '.join(SPLIT_NAMES)}: save these arrays"
        )
    train, test = (
        (_select_split(arrays, part, path) for part in ("train", "test"))
        if apart
        else _split_train_test(arrays, path)
    )
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InputError(
            f"{path}: training inputs have the shape {train[0].shape[1:]} and test inputs {test[0].shape[1:]}, "
            "expected the same: save them again"
        )
    if (train[2] is None) != (test[2] is None):
        raise InputError(
            f"{path} has groups for one of training and test only, expected both or none: save both"
        )
    return _build_from_splits(train, test, path, tokens)


SplitArrays = tuple[Array, Array, Array | None]


def _select_split(arrays: Mapping[str, Array], part: str, path: Path) -> SplitArrays:
    own = f"_{part}" if part else ""
    groups = next((arrays[name + own] for name in GROUP_NAMES if name + own in arrays), None)
    return _check_split(arrays["x" + own], arrays["y" + own], groups, f"{path}: x{own}")


def _split_train_test(arrays: Mapping[str, Array], path: Path) -> tuple[SplitArrays, SplitArrays]:
    inputs, labels, groups = _select_split(arrays, "", path)
    test = test_mask(len(labels))
    if not test.any():
        raise InputError(
            f"{path} holds one sample, expected at least 2, one to train and one to test: add samples"
        )

    def taken(rows: Array) -> SplitArrays:
        return inputs[rows], labels[rows], None if groups is None else groups[rows]

    return taken(~test), taken(test)


def _check_split(inputs: Array, labels: Array, groups: Array | None, name: str) -> SplitArrays:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if inputs.ndim < 2 or inputs.dtype.kind not in "biuf":
        raise InputError(
            f"{name} has the shape {inputs.shape} of {inputs.dtype}, expected numbers with a row for each sample: "
            "reshape it"
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
    for start in range(0, len(inputs), ROWS_AT_ONCE):
        with np.errstate(over="ignore"):
            good = np.isfinite(inputs[start : start + ROWS_AT_ONCE].astype(np.float32))
        if not good.all():
            row = start + int(np.flatnonzero(~good.reshape(len(good), -1).all(axis=1))[0])
            raise InputError(
                f"{name} has a number in row {row} that is not finite in float32: correct or drop the row"
            )


def _build_from_splits(train: SplitArrays, test: SplitArrays, path: Path, tokens: bool) -> Dataset:
    classes, class_names, labels = encode_labels(train[1], test[1], str(path))
    arrange, prepare = _choose_conversion(train[0], tokens, path)
    return make_dataset(
        path.stem,
        str(path),
        (arrange(train[0]), arrange(test[0])),
        labels,
        classes=classes,
        prepare=prepare,
        class_names=class_names,
        groups=(train[2], test[2]) if train[2] is not None and test[2] is not None else None,
    )


def encode_labels(
    train: Array, test: Array, source: str
) -> tuple[int, tuple[str, ...], TrainTestArrays]:
    """How many classes, their names if the labels are text, and the labels as numbers."""
    if train.dtype.kind == "U" and test.dtype.kind == "U":
        names, numbers = np.unique(np.concatenate([train, test]), return_inverse=True)
        return len(names), tuple(names.tolist()), (numbers[: len(train)], numbers[len(train) :])
    if "U" in (train.dtype.kind, test.dtype.kind):
        raise InputError(
            f"{source} has labels that are partly text and partly numbers, expected one kind: save again"
        )
    for labels in (train, test):
        low, high = labels.min(), labels.max()
        if not (low >= 0 and high < MOST_CLASSES and np.all(labels == np.floor(labels))):
            raise InputError(
                f"{source} has labels from {low} to {high}, expected whole numbers 0, 1, ... below {MOST_CLASSES}, "
                "one for each class: number the classes"
            )
    pair = train.astype(np.int64), test.astype(np.int64)
    return int(max(pair[0].max(), pair[1].max())) + 1, (), pair


def _choose_conversion(
    inputs: Array, tokens: bool, path: Path
) -> tuple[Callable[[Array], Array], BatchTransform]:
    """How the stored inputs must be turned, and what prepares a batch of them."""
    if tokens:
        if inputs.dtype.kind not in "iu":
            raise InputError(
                f"{path} holds {inputs.dtype}, expected integers for tokens=True: leave tokens out"
            )
        return to_torch_dtype, as_tokens
    channels_last = inputs.ndim == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3)
    if inputs.ndim == 3 and inputs.dtype == np.uint8:
        return lambda array: array[:, None], unit_range_normaliser(1)
    if inputs.ndim == 4 and inputs.dtype == np.uint8:
        channels = inputs.shape[3 if channels_last else 1]
        return _channels_first if channels_last else to_torch_dtype, unit_range_normaliser(channels)
    return _channels_first if channels_last else to_torch_dtype, as_float


def _channels_first(array: Array) -> Array:
    return to_torch_dtype(array).transpose(0, 3, 1, 2)


def to_torch_dtype(array: Array) -> Array:
    """The same numbers in a type torch can index: it lacks most unsigned ones."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return array.astype(np.int64)
    return array if array.dtype.itemsize <= 8 else array.astype(np.float64)
