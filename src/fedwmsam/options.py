"""Typed fields with a meaning and a range: a method's hyper-parameters and a run's settings are declared alike."""

import math
import types
import typing
from dataclasses import field, fields
from typing import Any

from fedwmsam.errors import InputError


def option(
    default: Any, help: str, *, low: float = -math.inf, high: float = math.inf, above: float = -math.inf,
    choices: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """A dataclass field; `low` and `high` are included in the range, `above` is not."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "above": above, "choices": choices})


def check(owner: str, values: Any) -> None:
    """Raise InputError at the first field of the dataclass that is of the wrong type or out of its range."""
    kinds = kinds_of(type(values))
    for f in fields(values):
        if f.metadata:
            check_value(f"{owner}{f.name}", getattr(values, f.name), kinds[f.name], f.metadata)


def kinds_of(cls: type) -> dict[str, tuple[type, ...]]:
    """Each field's types: `float | None` is (float, NoneType)."""
    hints = typing.get_type_hints(cls)
    return {name: typing.get_args(hint) or (hint,) for name, hint in hints.items()}


def check_value(name: str, value: object, kinds: tuple[type, ...], rule: typing.Mapping[str, Any]) -> None:
    if value is None and types.NoneType in kinds:
        return
    kind = kinds[0]
    if kind is str:
        if not isinstance(value, str) or (rule["choices"] and value not in rule["choices"]):
            expected = "one of " + ", ".join(rule["choices"]) if rule["choices"] else "a word"
            raise InputError(f"{name} must be {expected}, not {value!r}.")
        return
    accepted = int if kind is int else (int, float)
    inside = isinstance(value, accepted) and not isinstance(value, bool) and math.isfinite(value)
    if not inside or not (rule["low"] <= value <= rule["high"] and value > rule["above"]):
        raise InputError(f"{name} must be {'a whole' if kind is int else 'a'} number {limits(rule)}, not {value!r}.")


def limits(rule: typing.Mapping[str, Any]) -> str:
    low, high, above = rule["low"], rule["high"], rule["above"]
    if above > -math.inf:
        return f"above {above:g}" + (f" and at most {high:g}" if high < math.inf else "")
    if high < math.inf:
        return f"between {low:g} and {high:g}"
    return f"of at least {low:g}" if low > -math.inf else "that is finite"


def parse(name: str, text: str, kinds: tuple[type, ...]) -> Any:
    """A value typed on the command line, as the field's type; "none" where the field may be empty."""
    if types.NoneType in kinds and text.lower() == "none":
        return None
    if kinds[0] in (int, float):
        try:
            return kinds[0](text)
        except ValueError as error:
            raise InputError(f"{name} must be a {'whole ' if kinds[0] is int else ''}number, not {text!r}.") from error
    return text
