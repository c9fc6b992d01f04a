"""Values of a run folder's text files, checked once when they are read.

A run folder may come from a stranger. Whatever these functions return can be computed with and
printed: whole numbers fit into 64 bits, other numbers can be squared and added up, texts are one
printable line. Anything else is an InputError that names the file and the key, and the report
calls the run damaged.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError, printable
from fedwmsam.settings.config import RunConfig
from fedwmsam.settings.options import field_types, truncated_repr

MAX_KEY = 200
"""Letters of a key before it is cut off."""
LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = 1e150
"""A number beyond this counts as not finite: the squares in a deviation would overflow."""
LARGEST_COUNT = 2**40
"""Samples of one class that a client may hold; sums over all clients then fit into 64 bits."""
SETTING_TYPES = field_types(RunConfig)
Place = tuple[Path, str]
"""The file and the key of a value, for the message if it is a wrong one."""


def damaged(place: Place, expected: str, value: object) -> InputError:
    """Return the error of a value that is not what the file and key promise."""
    path, key = place
    found = printable(truncated_repr(value))
    return InputError(f"{path}: {printable(key, MAX_KEY)} must be {expected}, not {found}")


def whole_number(place: Place, value: object, low: int = -LARGEST_INTEGER) -> int:
    """Return a whole number of at least `low`; raise InputError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= LARGEST_INTEGER:
        return value
    at_least = f" of at least {low}" if low > -LARGEST_INTEGER else ""
    raise damaged(place, f"a whole number{at_least}", value)


def number(place: Place, value: object) -> float | None:
    """Return a number, None for one that is not finite; raise InputError for anything else.

    A whole number stays one.
    """
    if value is None:
        return None
    if isinstance(value, float):
        return value if abs(value) <= LARGEST_NUMBER else None
    if isinstance(value, int):
        return whole_number(place, value)
    raise damaged(place, "a number", value)


def text(place: Place, value: object) -> str:
    """Return a text as one printable line; raise InputError for anything else."""
    if isinstance(value, str):
        return printable(value)
    raise damaged(place, "a text", value)


def list_of(place: Place, value: object) -> Sequence[Any]:
    """Return a list; raise InputError for anything else."""
    if isinstance(value, list):
        return value
    raise damaged(place, "a list", value)


# Files


def check_config(path: Path, config: Mapping[str, Any]) -> Record:
    """Return the content of config.toml, every setting of its declared type.

    Raise InputError for a setting of another type, for a list that is not flat and for a table.
    """
    return {printable(key, MAX_KEY): setting((path, key), value) for key, value in config.items()}


def setting(place: Place, value: object) -> Any:
    """Return the value of a setting, or of a method's option, which may be of any plain type."""
    types = SETTING_TYPES.get(place[1], ())
    # TOML has no null: a setting that is switched off may be written as a word.
    if value in (None, "none") and (not types or NoneType in types):
        return value
    if types and (types[0] is str or (str in types and isinstance(value, str))):
        return text(place, value)
    if types and types[0] is int:
        return whole_number(place, value)
    if types and types[0] is float:
        return number(place, value)
    return scalars(place, value) if isinstance(value, list) else scalar(place, value)


def scalars(place: Place, values: Sequence[Any]) -> list[Any]:
    """Return a list of texts, truth values and numbers; raise InputError for anything else."""
    return [scalar(place, value) for value in values]


def scalar(place: Place, value: object) -> Any:
    """Return a text, a truth value or a number; raise InputError for anything else."""
    if isinstance(value, str):
        return text(place, value)
    if isinstance(value, float) and not abs(value) <= LARGEST_NUMBER:
        return str(value)  # a word in a label, and no place on an axis
    return value if isinstance(value, bool) else number(place, value)


def check_lines(path: Path, records: Sequence[Record]) -> list[Record]:
    """Return lines of metrics or timings: numbers, and lists of the clients of an event.

    Raise InputError for any other value.
    """
    lines = []
    for record in records:
        lines.append({printable(key, MAX_KEY): column((path, key), record[key]) for key in record})
    return lines


def column(place: Place, value: object) -> Any:
    """Return a number, or a list of whole numbers; raise InputError for anything else."""
    if isinstance(value, list):
        return [whole_number(place, entry) for entry in value]
    return number(place, value)


def check_data(path: Path, data: Mapping[str, Any]) -> Record:
    """Return the content of data.json; raise InputError for a value that reports cannot use."""
    checked: Record = {}
    for key, value in data.items():
        place = (path, key)
        if key == "class_counts":
            checked[key] = class_counts(place, value)
        elif key in ("data_hash", "partition_hash") and value is not None:
            checked[key] = text(place, value)
        elif isinstance(value, list):
            checked[key] = scalars(place, value)
        else:
            checked[printable(key, MAX_KEY)] = scalar(place, value)
    return checked


def class_counts(place: Place, value: object) -> list[list[int]]:
    """Return clients × classes, none if the file has none; raise InputError for anything else."""
    rows = []
    for client in list_of(place, value or []):
        rows.append([whole_number(place, count, low=0) for count in list_of(place, client)])
    is_matrix = len(set(map(len, rows))) <= 1
    if not is_matrix or not all(0 < sum(counts) <= LARGEST_COUNT for counts in rows):
        raise damaged(place, "the samples of each class for each client", value)
    return rows


VERSIONS = ("fedwmsam", "Python", "PyTorch", "numpy", "BLAS", "Flower", "Ray")
"""What a session names the versions of."""
SESSION_VALUES: dict[str, Callable[[Place, object], Any]] = {
    "begin": text,
    "end": text,
    "first_round": whole_number,
    "last_round": whole_number,
    "processor": text,
    "device": text,
    "threads": whole_number,
    "workers": whole_number,
    "nodes": whole_number,
    "host": text,
}
"""Further values of a session, and what checks them."""
SESSION_MAY_LACK = ("end", "last_round", "nodes", "host")


def check_sessions(path: Path, sessions: Sequence[Record]) -> list[Record]:
    """Return the sessions of provenance.json; raise InputError for a value of another type."""
    return [check_session(path, session) for session in sessions]


def check_session(path: Path, session: Record) -> Record:
    """Return what a report uses of a session; one that was killed has neither end nor last round.

    Raise InputError for a value of another type.
    """
    versions = session.get("versions")
    if not isinstance(versions, dict):
        raise damaged((path, "versions"), "a table", versions)
    place = (path, "command")
    checked: Record = {
        "command": [text(place, word) for word in list_of(place, session.get("command"))],
        "versions": {
            name: text((path, name), versions[name]) for name in VERSIONS if name in versions
        },
    }
    for key, check in SESSION_VALUES.items():
        if key not in SESSION_MAY_LACK or session.get(key) is not None:
            checked[key] = check((path, key), session.get(key))
    return checked
