"""DataFrames among the data that users pass to `fit`: their columns are matched by name."""

from typing import Any

import numpy as np

from fedwmsam.errors import InputError, printable

SHOWN = 200
"""Characters of names that a message shows at most."""


class FrameReader:
    """Takes inputs and targets out of DataFrames, all in the order of columns of the first one."""

    def __init__(self, target: str | None) -> None:
        self.target = None if target is None else str(target)  # columns may be numbered
        self.names: tuple[str, ...] | None = None
        """The columns of the first table but the target; None: there was none yet."""
        self.first = ""
        """Whose table that was."""

    def split(self, table: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and the targets of a table, whose columns are held for the next one.

        Raise InputError, which begins with `name`, if it lacks the target, has other columns than
        the first table, or a column that is not numbers.
        """
        columns = columns_by_name(table, name)
        if self.target not in columns:
            raise InputError(
                f"{name} is a table with the columns {', '.join(columns)}; name the one to predict "
                f"with target=, not {self.target!r}."
            )
        inputs = self.hold_inputs(table, name)
        return inputs, read_column(table, columns[self.target], name)

    def hold_inputs(self, table: Any, name: str) -> np.ndarray:
        """Return the columns but the target, which are held for the next table."""
        if self.names is None:
            columns = columns_by_name(table, name)
            self.names = tuple(column for column in columns if column != self.target)
            self.first = name
        return self.read_inputs(table, name)

    def read_inputs(self, table: Any, name: str) -> np.ndarray:
        """Return the columns but the target as one array; raise InputError as `split` does."""
        columns = columns_by_name(table, name)
        columns.pop(str(self.target), None)
        names = tuple(columns) if self.names is None else self.names
        if missing := [column for column in names if column not in columns]:
            raise InputError(
                f"{name}: the table has no {describe_names(missing)}, as {self.first} has"
                f"{self._describe_unknown(columns)}; all tables need the same columns."
            )
        if unknown := self._describe_unknown(columns):
            raise InputError(f"{name}: the table{unknown.removeprefix(', but')}; leave it out.")
        if not names:
            raise InputError(f"{name}: the table has no columns to predict from.")
        return np.stack([read_column(table, columns[column], name) for column in names], axis=1)

    def _describe_unknown(self, columns: dict[str, Any]) -> str:
        unknown = [column for column in columns if column not in (self.names or columns)]
        if not unknown:
            return ""
        return f", but has {describe_names(unknown)}, which {self.first} lacks"


def is_frame(data: Any) -> bool:
    """Return whether `data` is a table with named columns, such as a DataFrame of pandas."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def columns_by_name(table: Any, name: str) -> dict[str, Any]:
    """Return the keys of a table's columns by their names as text, of which no two are the same."""
    columns: dict[str, Any] = {}
    for column in table.columns:
        if str(column) in columns:
            raise InputError(
                f"{name}: the table has two columns {str(column)!r}; give each its own name."
            )
        columns[str(column)] = column
    return columns


def read_column(table: Any, column: Any, name: str) -> np.ndarray:
    """Return the numbers of a column; raise InputError if it holds anything else."""
    values = np.asarray(table[column].to_numpy())
    if values.dtype.kind in "biuf":
        return values
    if all(map(is_number, values.tolist())):  # numbers as objects, as of a row by row table
        return values.astype(float)
    example = next(value for value in values.tolist() if not is_number(value))
    raise InputError(
        f"{name}: the column {str(column)!r} holds {printable(repr(example), 80)}, and not only "
        "numbers; number its values, or leave the column out."
    )


def has_frame(data: Any) -> bool:
    """Return whether data are a table, or a pair whose inputs are one."""
    return is_frame(data) or (isinstance(data, tuple) and len(data) == 2 and is_frame(data[0]))


def is_number(value: Any) -> bool:
    """Return whether a value of a column is a number, which NaN is too."""
    return isinstance(value, int | float | np.number)


def describe_names(names: list[str]) -> str:
    """Return columns for a message."""
    what = "column" if len(names) == 1 else "columns"
    return f"{what} {printable(', '.join(map(repr, names)), SHOWN)}"
