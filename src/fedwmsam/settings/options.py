"""Typed fields with a meaning and a range: a method's hyper-parameters and a run's settings are declared alike."""

import math
import numbers
import types
import typing
from dataclasses import field, fields
from typing import Any

from fedwmsam.errors import InputError

LARGEST = 1e30
"""No setting needs more, and a 32-bit float still holds it."""


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
    changes_numbers: bool = True,
    held_equal: bool = False,
    goal: bool = False,
    flower: str | None = None,
) -> Any:
    """A dataclass field: a hyper-parameter of a method, or a setting of a run, declared here and nowhere else.

    low, high: its range, both included.
    above: a bound that is not included.
    choices: the words it may be.

    What follows is for settings.

    panel: where `--help` lists its flag; without one it has none.
    see: a page to read.
    changes_numbers: whether a run's numbers depend on it.
    held_equal: whether runs that differ in it are not compared.
    goal: whether it says when a run ends.
    flower: why it does not apply on Flower, if it does not.
    """
    metadata = {
        "help": help,
        "low": low,
        "high": high,
        "above": above,
        "choices": choices,
        "panel": panel,
        "see": see,
        "changes_numbers": changes_numbers,
        "held_equal": held_equal,
        "goal": goal,
        "flower": flower,
    }
    return field(default=default, metadata=metadata)


def validate_fields(owner: str, values: Any) -> None:
    """Raise InputError at the first field of the dataclass that is of the wrong type or out of its range.

    Numbers of other kinds (numpy's) become Python's own, so that they can be written and compared.
    """
    kinds = field_types(type(values))
    for f in fields(values):
        if f.metadata:
            value = validate_value(
                f"{owner}{f.name}", getattr(values, f.name), kinds[f.name], f.metadata
            )
            object.__setattr__(values, f.name, value)  # the dataclass is frozen for everybody else


def field_types(cls: type) -> dict[str, tuple[type, ...]]:
    """Each field's types: `float | None` is (float, NoneType)."""
    hints = typing.get_type_hints(cls)
    return {name: typing.get_args(hint) or (hint,) for name, hint in hints.items()}


def validate_value(
    name: str, value: Any, kinds: tuple[type, ...], rule: typing.Mapping[str, Any]
) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    if kinds[0] is str:
        if not isinstance(value, str) or (rule["choices"] and value not in rule["choices"]):
            expected = "one of " + ", ".join(rule["choices"]) if rule["choices"] else "a word"
            raise InputError(f"{name} must be {expected}, not {truncated_repr(value)}.")
        return value
    accepted = numbers.Integral if kinds[0] is int else numbers.Real
    fits = isinstance(value, accepted) and not isinstance(value, bool)
    if not fits or not (rule["low"] <= value <= rule["high"] and value > rule["above"]):
        whole = "a whole" if kinds[0] is int else "a"
        raise InputError(
            f"{name} must be {whole} number {describe_range(rule)}, not {truncated_repr(value)}."
        )
    return kinds[0](value)


def truncated_repr(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:50]}…"


def has_range(rule: typing.Mapping[str, Any]) -> bool:
    """Whether a number's range is narrower than that of all numbers."""
    return bool(rule["low"] > -LARGEST or rule["high"] < LARGEST or rule["above"] > -math.inf)


def describe_range(rule: typing.Mapping[str, Any]) -> str:
    low, high, above = rule["low"], rule["high"], rule["above"]
    if above > -math.inf:
        return f"above {format_number(above)}" + (
            f" and at most {format_number(high)}" if high < LARGEST else ""
        )
    if high < LARGEST:
        return f"between {format_number(low)} and {format_number(high)}"
    return f"of at least {format_number(low)}" if low > -LARGEST else "that is finite"


def format_number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def parse_typed(name: str, text: str, kinds: tuple[type, ...]) -> Any:
    """A value typed on the command line, as the field's type; "none" where the field may be empty."""
    if types.NoneType in kinds and text.lower() == "none":
        return None
    if kinds[0] in (int, float):
        try:
            return kinds[0](text)
        except ValueError as error:
            whole = "whole " if kinds[0] is int else ""
            raise InputError(
                f"{name} must be a {whole}number, not {truncated_repr(text)}."
            ) from error
    return text


def parse_float_or_nan(text: str) -> float:
    """NaN for what is no number, so that one comparison with a range refuses it, too."""
    try:
        return float(text)
    except ValueError:
        return math.nan
