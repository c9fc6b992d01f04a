"""Typed fields with a meaning and a range.

The hyper-parameters of a method and the settings of a run are declared in the same way: as fields
of a frozen dataclass, made by `option`. What is declared there (help text, range, choices) is read
by the command line, by the checks and by the documentation.
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import field, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from fedwmsam.errors import InputError

LARGEST = 1e30
"""The largest number that an option may be: no setting needs more, and a 32-bit float holds it."""


def option(
    default: Any,
    help: str,
    *,
    low: float = -LARGEST,
    high: float = LARGEST,
    above: float = -math.inf,
    choices: tuple[str, ...] = (),
    panel: str = "",
    see: str = "",
    affects_results: bool = True,
    must_match: bool = False,
    ends_run: bool = False,
    flower_refusal: str | None = None,
) -> Any:
    """Return a dataclass field that declares a hyper-parameter of a method or a setting of a run.

    low, high: the range of a number, both ends included.
    above: a lower bound that is not included.
    choices: the words that a text may be; without them it may be any word.

    The other arguments are for settings.

    panel: the heading under which `--help` lists the flag; without one there is no flag.
    see: the page of the documentation to read.
    affects_results: whether the results of a run depend on it.
    must_match: whether only runs that agree in it may be compared.
    ends_run: whether it decides when a run ends.
    flower_refusal: the reason why it does not apply on Flower, if it does not.
    """
    metadata = {
        "help": help,
        "low": low,
        "high": high,
        "above": above,
        "choices": choices,
        "panel": panel,
        "see": see,
        "affects_results": affects_results,
        "must_match": must_match,
        "ends_run": ends_run,
        "flower_refusal": flower_refusal,
    }
    return field(default=default, metadata=metadata)


def validate_fields(owner: str, values: Any) -> None:
    """Raise InputError at the first field of a dataclass that has a wrong type or is out of range.

    `owner` precedes the field's name in the message. Numbers of other types, such as numpy's, are
    replaced by Python's own, so that they can be written and compared.
    """
    types = field_types(type(values))
    for f in fields(values):
        if f.metadata:
            name = f"{owner}{f.name}"
            value = validate_value(name, getattr(values, f.name), types[f.name], f.metadata)
            object.__setattr__(values, f.name, value)  # the dataclass is frozen for everybody else


def field_types(cls: type) -> dict[str, tuple[type, ...]]:
    """Return the types of each field of a dataclass; `float | None` is (float, NoneType)."""
    hints = get_type_hints(cls)
    return {name: get_args(hint) or (hint,) for name, hint in hints.items()}


def validate_value(
    name: str, value: Any, types: tuple[type, ...], metadata: Mapping[str, Any]
) -> Any:
    """Return the value, converted to the first of its types, or raise InputError.

    A text must be one of the choices in the metadata of its field, a number in the range there;
    None is allowed where it is one of the types.
    """
    if value is None and NoneType in types:
        return None
    if isinstance(value, str) and str in types[1:]:
        return value  # in a notation of its own, which has a parser
    if types[0] is str:
        choices = metadata["choices"]
        if not isinstance(value, str) or (choices and value not in choices):
            expected = f"one of {', '.join(choices)}" if choices else "a word"
            raise InputError(f"{name} must be {expected}, not {truncated_repr(value)}.")
        return value
    if types[0] is bool:
        if not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, not {truncated_repr(value)}.")
        return value
    accepted = numbers.Integral if types[0] is int else numbers.Real
    is_number = isinstance(value, accepted) and not isinstance(value, bool)
    if not is_number or not is_in_range(value, metadata):
        kind = "a whole number" if types[0] is int else "a number"
        allowed = describe_range(metadata)
        if is_number and value > LARGEST == metadata["high"]:
            allowed += f" and at most {LARGEST:g}"
        raise InputError(f"{name} must be {kind} {allowed}, not {truncated_repr(value)}.")
    return types[0](value)


def truncated_repr(value: object) -> str:
    """Return the representation of a value, cut off where it is too long for a message."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:50]}…"


def is_in_range(value: Any, metadata: Mapping[str, Any]) -> bool:
    """Return whether a number lies in the range of a field; NaN never does."""
    return bool(metadata["low"] <= value <= metadata["high"] and value > metadata["above"])


def has_range(metadata: Mapping[str, Any]) -> bool:
    """Return whether the range of a field is narrower than that of all numbers."""
    is_bounded = metadata["low"] > -LARGEST or metadata["high"] < LARGEST
    return bool(is_bounded or metadata["above"] > -math.inf)


def describe_range(metadata: Mapping[str, Any]) -> str:
    """Return the range of a field in words, such as "between 0 and 1"."""
    low = metadata["low"]
    high = metadata["high"]
    above = metadata["above"]
    if above > -math.inf and high < LARGEST:
        return f"above {format_number(above)} and at most {format_number(high)}"
    if above > -math.inf:
        return f"above {format_number(above)}"
    if high < LARGEST:
        return f"between {format_number(low)} and {format_number(high)}"
    return f"of at least {format_number(low)}" if low > -LARGEST else "that is finite"


def format_number(value: float) -> str:
    """Return a bound as text: integers in full, other numbers with up to six digits."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def parse_typed(name: str, text: str, types: tuple[type, ...]) -> Any:
    """Return a text from the command line as the first of the types of the field `name`.

    The word "none" is None where that is one of the types. Raise InputError if a number is expected
    and the text is none.
    """
    if NoneType in types and text.lower() == "none":
        return None
    if types[0] is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if types[0] not in (int, float):
        return text
    try:
        return types[0](text)
    except ValueError as error:
        kind = "a whole number" if types[0] is int else "a number"
        raise InputError(f"{name} must be {kind}, not {truncated_repr(text)}.") from error


def parse_float_or_nan(text: str) -> float:
    """Return the number that a text stands for, or NaN if it stands for none.

    NaN fails every comparison, so that a check of the range refuses such a text as well.
    """
    try:
        return float(text)
    except ValueError:
        return math.nan
