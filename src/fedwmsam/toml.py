"""Flat TOML files: read with the standard library, written here (it has no writer)."""

import json
import tomllib
from pathlib import Path
from typing import Any

from fedwmsam.errors import InputError


def load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # also a number of thousands of digits, and lists in lists in lists
        raise InputError(f"{path} is not valid TOML: {error}.") from error


def dump(values: dict[str, Any]) -> str:
    """One line a key; None is left out, because TOML has no word for it."""
    return "".join(
        f"{key} = {literal(value)}\n" for key, value in values.items() if value is not None
    )


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(literal(v) for v in value)}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
