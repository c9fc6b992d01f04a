"""Loader of data sets that the Hugging Face `datasets` package has in memory, column by column.

Anything with `column_names`, `len()` and `data[column]` will do, and a dict of such as splits; the
package itself is not needed here. Give either the column of images or the columns of numbers.
Columns are taken as stored, whatever format or transform is set.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwmsam.data.arrays import encode_labels
from fedwmsam.data.base import (
    Array,
    Dataset,
    TrainTestArrays,
    as_float,
    check_int_option,
    held_out_mask,
    make_dataset,
    standardise,
    unit_range_normaliser,
)
from fedwmsam.data.image_folder import MAX_IMAGE_SIZE, decode_image, read_limited, resize_to_square
from fedwmsam.errors import InputError, describe_error, printable, unknown_name_message

TEST_SPLITS = ("test", "validation", "valid", "val")
"""The names of splits that are taken for test data, the first that exists."""
IMAGE_COLUMNS = ("image", "img")
"""The names of columns that are taken for images if the user names none."""


def from_huggingface(
    data: Any,
    *,
    image: str | None = None,
    features: Sequence[str] | None = None,
    label: str = "label",
    group: str | None = None,
    image_size: int = 64,
    name: str = "hub",
) -> Dataset:
    """Return the data set that the Hugging Face `datasets` package holds in memory.

    data: one data set, or a dict of splits; without a test split a fifth of the rows is held out.
    image: the column of images, which become squares of `image_size` pixels.
    features: the columns of numbers, which are standardised by the training rows.
    label: the column of classes.
    group: the column that names each row's natural client.

    Raise InputError if a column is missing or holds something else.
    """
    train, test = _split_rows(data)
    if image is None and features is None:
        image = next((column for column in IMAGE_COLUMNS if column in train.column_names), None)
    if (image is None) == (not features):
        raise InputError(
            "expected either a picture column or feature columns: "
            "give image='...' or features=[...]"
        )
    if image:
        inputs = _read_image_pair(train, test, image, image_size)
    else:
        inputs = _read_feature_pair(train, test, features or ())
    train_labels = _read_1d_column(train, label)
    test_labels = _read_1d_column(test, label)
    declared_names = _declared_class_names(train, label)
    num_classes, class_names, labels = encode_labels(train_labels, test_labels, "the label column")
    if not class_names and len(declared_names) >= num_classes:
        class_names = declared_names
    groups = None
    if group is not None:
        groups = (_read_1d_column(train, group), _read_1d_column(test, group))
    return make_dataset(
        name,
        "a Hugging Face data set in memory",
        inputs,
        labels,
        num_classes=max(num_classes, len(declared_names)),
        transform=unit_range_normaliser(3) if image else as_float,
        class_names=class_names,
        groups=groups,
    )


def _read_image_pair(train: Any, test: Any, column: str, image_size: int) -> TrainTestArrays:
    size = check_int_option("image_size", image_size, 1, MAX_IMAGE_SIZE)
    return _decode_image_column(train, column, size), _decode_image_column(test, column, size)


def _read_feature_pair(train: Any, test: Any, columns: Sequence[str]) -> TrainTestArrays:
    train_rows = _read_features(train, columns)
    test_rows = _read_features(test, columns)
    width = train_rows.shape[1]
    if width != test_rows.shape[1]:
        raise InputError(
            f"the feature columns hold {width} numbers in training, "
            f"{test_rows.shape[1]} in test rows, expected as many: make them alike"
        )
    names = [f"{', '.join(columns)} (number {index})" for index in range(width)]
    return standardise(train_rows, test_rows, names, "the data set")


class _RowSubset:
    """Some rows of a data set, as a data set."""

    def __init__(self, data: Any, mask: Array) -> None:
        self.data = data
        self.mask = mask
        self.column_names = data.column_names
        self.features = getattr(data, "features", None)

    def __len__(self) -> int:
        return int(self.mask.sum())

    def __getitem__(self, column: str) -> list[Any]:
        # Not strict: a column that is too short is found when its values are counted.
        values = zip(self.data[column], self.mask, strict=False)
        return [value for value, is_selected in values if is_selected]


def _select_rows(data: Any, mask: Array) -> Any:
    if hasattr(data, "select"):
        # The package's method decodes none of the other rows' images.
        return data.select(np.flatnonzero(mask))
    return _RowSubset(data, mask)


def _without_format(data: Any) -> Any:
    """Return the data as they are stored.

    Formats hide columns and transpose images; transforms are meant to be repeated in every epoch.
    """
    return data.with_format(None) if hasattr(data, "with_format") else data


def _split_rows(data: Any) -> tuple[Any, Any]:
    """Return the training rows and the test rows, or raise InputError if `data` is no data set."""
    if not isinstance(data, Mapping):
        data = {"train": data}
    train = data.get("train")
    _check_is_dataset(train, data)
    test = next((data[name] for name in TEST_SPLITS if name in data), None)
    if test is None:
        mask = held_out_mask(len(train))
        test = _select_rows(train, mask)
        train = _select_rows(train, ~mask)
    train = _without_format(train)
    test = _without_format(test)
    if len(train) == 0 or len(test) == 0:
        raise InputError(
            f"{len(train)} training and {len(test)} test rows, expected at least one of each: "
            "add rows or a split"
        )
    return train, test


def _check_is_dataset(train: Any, splits: Mapping[Any, Any]) -> None:
    members = ("column_names", "__getitem__", "__len__")
    if train is not None and all(hasattr(train, member) for member in members):
        return
    if train is not None:
        actual = type(train).__name__
    else:
        actual = ", ".join(map(str, splits)) or "an empty dict"
    raise InputError(
        "expected a data set with column_names, len() and columns by name, or a dict of them with "
        f"'train', not {actual}: pass what datasets.load_dataset returns without streaming"
    )


def _get_column(data: Any, column: str) -> Any:
    if column not in data.column_names:
        raise InputError(unknown_name_message("column", column, map(str, data.column_names)))
    return data[column]


def _read_column(data: Any, column: str) -> Array:
    # All values at once, as the package takes long to return single rows.
    values = list(_get_column(data, column)[:])
    if len(values) != len(data):
        raise InputError(
            f"the column {column!r} has {len(values)} values for {len(data)} rows: correct it"
        )
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"the column {column!r} has values of different shapes: make them alike"
        ) from error
    if array.dtype.kind not in "biufU":
        raise InputError(
            f"the column {column!r} holds {array.dtype}, expected numbers or text: convert it"
        )
    return array


def _read_1d_column(data: Any, column: str) -> Array:
    values = _read_column(data, column)
    if values.ndim != 1:
        raise InputError(
            f"the column {column!r} holds lists, expected one value in each row: "
            "name another column"
        )
    return values


def _read_features(data: Any, columns: Sequence[str]) -> Array:
    """Return the columns side by side; one may also hold a list of numbers in each row."""
    arrays = [_read_column(data, column) for column in columns]
    for column, values in zip(columns, arrays, strict=True):
        if values.dtype.kind == "U" or not np.isfinite(values.astype(np.float64)).all():
            raise InputError(
                f"the column {column!r} holds what is no finite number: "
                "drop those rows or the column"
            )
    blocks = [values.reshape(len(values), -1).astype(np.float64) for values in arrays]
    return np.concatenate(blocks, axis=1)


def _decode_image_column(data: Any, column: str, size: int) -> Array:
    values = _get_column(data, column)
    images = np.empty((len(data), 3, size, size), np.uint8)
    row = -1
    for row, value in enumerate(values):
        if row >= len(images):
            break
        images[row] = decode_hub_image(
            value, f"the picture in row {row} of the column {column!r}", size
        )
    if row != len(images) - 1:
        raise InputError(
            f"the column {column!r} has not {len(images)} pictures, expected one for each row: "
            "correct it"
        )
    return images


def decode_hub_image(value: Any, name: str, size: int) -> Array:
    """Return one image of a column as bytes of the shape (3, size, size).

    It may be decoded by Pillow, still encoded ({"bytes": ..., "path": ...}), or an array of bytes.
    Raise InputError, which begins with `name`, if it is anything else.
    """
    if isinstance(value, str):
        raise InputError(f"{name} is text, expected a picture: cast the column to datasets.Image()")
    try:
        if isinstance(value, Mapping):
            content = value.get("bytes")
            value = content if content is not None else read_limited(Path(value["path"]), name)
        if isinstance(value, bytes):
            return decode_image(value, name, size)
        if not hasattr(value, "convert"):
            from PIL import Image

            value = Image.fromarray(np.asarray(value, np.uint8))
        return resize_to_square(value, size)
    except InputError:
        raise
    except Exception as error:  # whatever such an object raises, it is not an image
        raise InputError(
            f"{name} is not a picture ({printable(describe_error(error), 200)}): "
            "replace or remove it"
        ) from error


def _declared_class_names(data: Any, label: str) -> tuple[str, ...]:
    """Return the names that a ClassLabel column carries, or nothing for another column."""
    kinds = getattr(data, "features", None)
    kind = kinds.get(label) if isinstance(kinds, Mapping) else None
    names = getattr(kind, "names", None)
    return tuple(map(str, names)) if isinstance(names, list | tuple) else ()
