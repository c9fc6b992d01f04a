"""Flat TOML files: read with the standard library and written here, since it has no writer."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedwmsam import files
from fedwmsam.errors import InputError, printable

LIMIT = 2**16
"""Bytes of a file at most; those that are written here have some thousand."""
MAX_KEY_PARTS = 100
"""Parts of a dotted key at most: the time that the standard library takes grows as their square."""


def load(path: Path) -> dict[str, Any]:
    """Return the content of a run folder's TOML file.

    Raise InputError if it cannot be read, is no regular file or is not valid.
    """
    return parse(path, files.read_bytes)


def load_named(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file that the user has named; it may be a link."""
    return parse(path, files.read_named)


def parse(path: Path, read: Callable[[Path, int], bytes]) -> dict[str, Any]:
    """Return the content of the file that `read` reads; raise InputError if it is not valid."""
    try:
        content = read(path, LIMIT)
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    if any(line.partition(b"=")[0].count(b".") >= MAX_KEY_PARTS for line in content.splitlines()):
        raise InputError(f"{path} has a key of more than {MAX_KEY_PARTS} parts; it is not read.")
    try:
        return tomllib.loads(content.decode())
    # A number of thousands of digits is a ValueError, too, deeply nested lists a RecursionError.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {printable(error)}.") from error


def dump(values: dict[str, Any]) -> str:
    """Return the values as TOML, one line per key; None, which TOML cannot express, is left out."""
    lines = [f"{key} = {literal(value)}\n" for key, value in values.items() if value is not None]
    return "".join(lines)


def literal(value: Any) -> str:
    """Return a value as TOML writes it: a boolean, a number or a list; anything else is a text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
