"""Loader of tables: CSV files with a header, numeric features, labels and perhaps clients.

The label is the column `label`, else the last one (`label="name"` chooses another); its different
values are the classes. A column `client` names each row's natural client. All other columns are
features, which are standardised by the training rows. A fifth of the rows is held out for testing.
"""

import csv
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedwmsam.data.base import (
    MAX_CLASSES,
    MAX_GROUPS,
    Array,
    Dataset,
    as_float,
    held_out_mask,
    make_dataset,
    standardise,
)
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.settings.options import parse_float_or_nan

CLIENT = "client"
"""The name of the column of natural clients."""
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_LINE_LENGTH = 1 << 24
"""Characters of one line: its cells take twenty times as much memory as their text."""
MIN_ROWS_FOR_UNIQUE_LABEL_CHECK = 50
"""Rows from which on a label column must repeat a value.

In a smaller table each row may well have a class of its own.
"""


class _TextColumn:
    """A column of labels or clients: up to `limit` different texts, each kept once."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.numbers: dict[str, int] = {}
        """The texts in the order in which they came, each with its number."""
        self.rows = array("q")
        """The number of each row's text."""

    def append(self, text: str) -> None:
        """Add the text of one row."""
        self.rows.append(self.numbers.setdefault(text, len(self.numbers)))

    def encode(self, names: Sequence[str]) -> Array:
        """Return the place of each row's text among the names."""
        places = {name: place for place, name in enumerate(names)}
        places_by_number: Array = np.array([places[text] for text in self.numbers], np.int64)
        return places_by_number.take(np.array(self.rows))


class _CsvColumns:
    """The columns of a table, filled row by row.

    Numbers are kept as an array, which takes 8 bytes each.
    """

    def __init__(self, path: Path, header: list[str], label: str | None) -> None:
        self.path = path
        self.header = header
        _check_header(path, header)
        if label is not None and label not in header:
            raise InputError(f"{path}: {unknown_name_message('column', str(label), header)}")
        self.label = _TextColumn(
            label or ("label" if "label" in header else header[-1]), MAX_CLASSES
        )
        self.client = _TextColumn(CLIENT, MAX_GROUPS)
        self.features = [name for name in header if name not in (self.label.name, CLIENT)]
        if not self.features:
            raise InputError(
                f"{path} has no feature column besides {_brief(self.label.name)}, "
                "expected at least one: add one"
            )
        # By position: names may be so long that comparing them for each cell would take hours.
        self.text_columns = {
            header.index(column.name): column
            for column in (self.client, self.label)
            if column.name in header
        }
        self.numbers = array("d")

    def add_row(self, line: int, row: list[str]) -> None:
        """Append one row, or raise InputError, which names the line, if a cell is wrong."""
        if len(row) != len(self.header):
            raise InputError(
                f"{self.path}, line {line}: {len(row)} cells, expected {len(self.header)} "
                "as in the header: correct the line"
            )
        for position, cell in enumerate(row):
            column = self.text_columns.get(position)
            if column is None:
                self.numbers.append(self._parse_number(cell, line, self.header[position]))
            else:
                self._add_text(column, cell, line)

    def _add_text(self, column: _TextColumn, cell: str, line: int) -> None:
        if not cell.strip():
            raise InputError(
                f"{self.path}, line {line}: the column {_brief(column.name)} is empty, "
                "expected a value: fill it in"
            )
        column.append(cell.strip())
        if len(column.numbers) > column.limit:
            raise InputError(
                f"{self.path}, line {line}: the column {_brief(column.name)} has more than "
                f"{column.limit} different values: name the right column with the option label, "
                "or join some"
            )

    def _parse_number(self, cell: str, line: int, name: str) -> float:
        value = parse_float_or_nan(cell)
        if not abs(value) <= MAX_FLOAT32:
            raise InputError(
                f"{self.path}, line {line}: the column {_brief(name)} holds {_brief(cell)}, "
                "expected a finite number: correct the cell or drop the line"
            )
        return value


def load_csv(path: Path, *, label: str | None = None) -> Dataset:
    """Return the data set of a CSV file; `label` names the column of classes.

    Raise InputError, which names the line, if the file is damaged or a cell does not fit.
    """
    table = _read_csv(path, label)
    classes, labels = _encode_classes(table)
    test = held_out_mask(len(labels))
    if not test.any():
        raise InputError(
            f"{path} has {len(labels)} rows, expected at least 2, one to train and one to test: "
            "add rows"
        )
    rows = np.frombuffer(table.numbers, np.float64).reshape(len(labels), len(table.features))
    inputs = standardise(rows[~test], rows[test], table.features, str(path))
    client_names = sorted(table.client.numbers)
    clients = table.client.encode(client_names)
    data = make_dataset(
        path.stem,
        str(path),
        inputs,
        (labels[~test], labels[test]),
        num_classes=len(classes),
        transform=as_float,
        class_names=classes,
        groups=(clients[~test], clients[test]) if client_names else None,
    )
    return replace(data, group_names=tuple(client_names[int(n)] for n in data.group_names))


def _read_csv(path: Path, label: str | None) -> _CsvColumns:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = _numbered_rows(csv.reader(_lines(stream, path), strict=True))
            _, header = next(rows, (1, []))
            table = _CsvColumns(path, [name.strip() for name in header], label)
            for line, row in rows:
                table.add_row(line, row)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text ({error.reason}): save it as CSV in UTF-8"
        ) from error
    except (csv.Error, OSError) as error:
        raise InputError(f"{path} cannot be read as CSV ({error}): save it again as CSV") from error
    return table


def _lines(stream: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines, or raise InputError if one is so long that its cells would fill memory."""
    while line := stream.readline(MAX_LINE_LENGTH):
        if len(line) == MAX_LINE_LENGTH:
            raise InputError(
                f"{path} has a line of {MAX_LINE_LENGTH} characters or more, expected fewer in a "
                "table: save it as .npz"
            )
        yield line


def _numbered_rows(csv_reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the number of the line they end on; empty lines are passed over."""
    for row in csv_reader:
        if row:
            yield csv_reader.line_num, row


def _check_header(path: Path, header: list[str]) -> None:
    if (
        not header
        or not all(header)
        or len(set(header)) < len(header)
        or all(map(_is_number, header))
    ):
        start = _brief(",".join(header))
        raise InputError(
            f"{path} begins with {start}, expected a header with a different name for each column: "
            "add one"
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _encode_classes(table: _CsvColumns) -> tuple[tuple[str, ...], Array]:
    """Return the class names, and each row's index among them.

    Names that are all whole numbers are sorted as numbers.
    """
    unique = table.label.numbers
    row_count = len(table.label.rows)
    if len(unique) == row_count and row_count >= MIN_ROWS_FOR_UNIQUE_LABEL_CHECK:
        raise InputError(
            f"{table.path}: the label column {_brief(table.label.name)} has a different value in "
            "every row, expected classes: name the right column with the option label"
        )
    are_numbers = all(text.removeprefix("-").isdecimal() and len(text) < 16 for text in unique)
    names = sorted(unique, key=int) if are_numbers else sorted(unique)
    return tuple(names), table.label.encode(names)


def _brief(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
