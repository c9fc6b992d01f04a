"""Data sets that the Hugging Face `datasets` package has in memory, taken over column by column.

Anything with `column_names`, `len()` and `data[column]` will do, and a dict of such as splits; the package itself is
not needed here. Give either the column of pictures or the columns of numbers. Columns are taken as stored, whatever
format or transform is set.
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
    make_dataset,
    standardise,
    test_mask,
    unit_range_normaliser,
)
from fedwmsam.data.image_folder import LARGEST_SIZE, decode_image, resize_to_square
from fedwmsam.errors import InputError, unknown_name_message

TEST_SPLITS = ("test", "validation", "valid", "val")
PICTURE_COLUMNS = ("image", "img")


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
    """Without a split for testing a fifth of the rows is held out; pictures become squares of `image_size`."""
    train, test = _splits(data)
    if image is None and features is None:
        image = next((column for column in PICTURE_COLUMNS if column in train.column_names), None)
    if (image is None) == (not features):
        raise InputError(
            "expected either a picture column or feature columns: give image='...' or features=[...]"
        )
    inputs = (
        _read_image_pair(train, test, image, image_size)
        if image
        else _read_feature_pair(train, test, features or ())
    )
    labels = _read_1d_column(train, label), _read_1d_column(test, label)
    known_names = _class_names(train, label)
    classes, class_names, numbers = encode_labels(*labels, "the label column")
    return make_dataset(
        name,
        "a Hugging Face data set in memory",
        inputs,
        numbers,
        classes=max(classes, len(known_names)),
        prepare=unit_range_normaliser(3) if image else as_float,
        class_names=class_names or (known_names if len(known_names) >= classes else ()),
        groups=(_read_1d_column(train, group), _read_1d_column(test, group))
        if group is not None
        else None,
    )


def _read_image_pair(train: Any, test: Any, column: str, image_size: int) -> TrainTestArrays:
    size = check_int_option("image_size", image_size, 1, LARGEST_SIZE)
    return _decode_images(train, column, size), _decode_images(test, column, size)


def _read_feature_pair(train: Any, test: Any, columns: Sequence[str]) -> TrainTestArrays:
    rows = _read_features(train, columns), _read_features(test, columns)
    if rows[0].shape[1] != rows[1].shape[1]:
        raise InputError(
            f"the feature columns hold {rows[0].shape[1]} numbers in training, {rows[1].shape[1]} in test rows, "
            "expected as many: make them alike"
        )
    names = [f"{', '.join(columns)} (number {place})" for place in range(rows[0].shape[1])]
    return standardise(*rows, names, "the data set")


class _RowSubset:
    """Some rows of a data set, as a data set."""

    def __init__(self, data: Any, rows: Array) -> None:
        self.data, self.rows, self.column_names = data, rows, data.column_names
        self.features = getattr(data, "features", None)

    def __len__(self) -> int:
        return int(self.rows.sum())

    def __getitem__(self, column: str) -> list[Any]:
        values = zip(
            self.data[column], self.rows, strict=False
        )  # a short column is found out by who counts the values
        return [value for value, taken in values if taken]


def _select_rows(data: Any, rows: Array) -> Any:
    if hasattr(
        data, "select"
    ):  # the package's own way, which decodes none of the other rows' pictures
        return data.select(np.flatnonzero(rows))
    return _RowSubset(data, rows)


def _without_format(data: Any) -> Any:
    """Formats hide columns and turn pictures around; transforms are meant for each epoch anew."""
    return data.with_format(None) if hasattr(data, "with_format") else data


def _splits(data: Any) -> tuple[Any, Any]:
    if not isinstance(data, Mapping):
        data = {"train": data}
    train = data.get("train")
    if train is None or not all(
        hasattr(train, need) for need in ("column_names", "__getitem__", "__len__")
    ):
        raise InputError(
            f"expected a data set with column_names, len() and columns by name, or a dict of them with 'train', "
            f"not {type(train).__name__ if train is not None else ', '.join(map(str, data)) or 'an empty dict'}: "
            "pass what datasets.load_dataset returns without streaming"
        )
    test = next((data[name] for name in TEST_SPLITS if name in data), None)
    if test is None:
        chosen = test_mask(len(train))
        train, test = _select_rows(train, ~chosen), _select_rows(train, chosen)
    train, test = _without_format(train), _without_format(test)
    if len(train) == 0 or len(test) == 0:
        raise InputError(
            f"{len(train)} training and {len(test)} test rows, expected at least one of each: add rows or a split"
        )
    return train, test


def _column(data: Any, column: str) -> Any:
    if column not in data.column_names:
        raise InputError(unknown_name_message("column", column, map(str, data.column_names)))
    return data[column]


def _read_column(data: Any, column: str) -> Array:
    values = list(
        _column(data, column)[:]
    )  # all at once: the package takes long to hand out single rows
    if len(values) != len(data):
        raise InputError(
            f"the column {column!r} has {len(values)} values for {len(data)} rows: correct it"
        )
    try:
        found = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"the column {column!r} has values of different shapes: make them alike"
        ) from error
    if found.dtype.kind not in "biufU":
        raise InputError(
            f"the column {column!r} holds {found.dtype}, expected numbers or text: convert it"
        )
    return found


def _read_1d_column(data: Any, column: str) -> Array:
    values = _read_column(data, column)
    if values.ndim != 1:
        raise InputError(
            f"the column {column!r} holds lists, expected one value in each row: name another column"
        )
    return values


def _read_features(data: Any, columns: Sequence[str]) -> Array:
    """The columns side by side; one may also hold a list of numbers in each row."""
    found = [_read_column(data, column) for column in columns]
    for column, values in zip(columns, found, strict=True):
        if values.dtype.kind == "U" or not np.isfinite(values.astype(np.float64)).all():
            raise InputError(
                f"the column {column!r} holds what is no finite number: drop those rows or the column"
            )
    return np.concatenate(
        [values.reshape(len(values), -1).astype(np.float64) for values in found], axis=1
    )


def _decode_images(data: Any, column: str, size: int) -> Array:
    values = _column(data, column)
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
            f"the column {column!r} has not {len(images)} pictures, expected one for each row: correct it"
        )
    return images


def decode_hub_image(value: Any, name: str, size: int) -> Array:
    """One picture: decoded by Pillow, still encoded ({"bytes": ..., "path": ...}), or an array of bytes."""
    if isinstance(value, str):
        raise InputError(f"{name} is text, expected a picture: cast the column to datasets.Image()")
    try:
        if isinstance(value, Mapping):
            content = value.get("bytes")
            value = content if content is not None else Path(value["path"]).read_bytes()
        if isinstance(value, bytes):
            return decode_image(value, name, size)
        if not hasattr(value, "convert"):
            from PIL import Image

            value = Image.fromarray(np.asarray(value, np.uint8))
        return resize_to_square(value, size)
    except InputError:
        raise
    except Exception as error:  # whatever such an object raises, it is not a picture
        raise InputError(
            f"{name} is not a picture ({type(error).__name__}: {error}): replace or remove it"
        ) from error


def _class_names(data: Any, label: str) -> tuple[str, ...]:
    """The names a ClassLabel column carries."""
    kinds = getattr(data, "features", None)
    kind = kinds.get(label) if isinstance(kinds, Mapping) else None
    names = getattr(kind, "names", None)
    return tuple(map(str, names)) if isinstance(names, list | tuple) else ()
