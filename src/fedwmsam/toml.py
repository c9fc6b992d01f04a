"""Flat TOML files: read with the standard library and written here, since it has no writer."""

import json
import tomllib
from pathlib import Path
from typing import Any

from fedwmsam.errors import InputError


def load(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise InputError if it cannot be read or is not valid."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    # A number of thousands of digits is a ValueError, too, deeply nested lists a RecursionError.
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error


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
