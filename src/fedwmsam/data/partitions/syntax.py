"""How rules are written: `name[:VALUE][,option=...]`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedwmsam.data.partitions.dealing import Data, Dealt, Rule
from fedwmsam.errors import InputError, unknown
from fedwmsam.settings.options import number


@dataclass(frozen=True)
class Field:
    name: str
    expected: str
    example: str  # of an option: its default
    accepts: Callable[[str], bool]
    syntax: str = ""


@dataclass(frozen=True)
class Kind:
    deal: Callable[[Rule, Data], Dealt]
    value: Field | None = None
    options: tuple[Field, ...] = field(default=())


def parse(rule: str, kinds: Mapping[str, Kind]) -> Rule:
    head, *parts = (part.strip() for part in rule.split(","))
    name, colon, text = head.partition(":")
    if name not in kinds:
        raise InputError(unknown("partition rule", name, kinds))
    kind = kinds[name]
    if kind.value is None:
        if colon:
            raise InputError(f"partition rule {rule!r}: {name} takes no value, write {name!r}")
        value = 0.0
    else:
        if not kind.value.accepts(text):
            raise InputError(
                f"partition rule {rule!r}: {kind.value.name} must be {kind.value.expected}, "
                f"write for example '{name}:{kind.value.example}'"
            )
        value = float(text)
    return Rule(rule, name, value, _parse_options(rule, kind, parts))


def _parse_options(rule: str, kind: Kind, parts: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in parts:
        key, equals, text = part.partition("=")
        option = next((known for known in kind.options if known.name == key), None)
        if option is None or not equals or key in given:
            allowed = " and ".join(f"{known.name}=" for known in kind.options)
            expected = f"after the comma expected {allowed} at most once" if allowed else "it takes no options"
            raise InputError(f"partition rule {rule!r}: {part!r} is not possible here, {expected}, correct the rule")
        if not option.accepts(text):
            raise InputError(
                f"partition rule {rule!r}: {key} must be {option.expected}, write for example '{key}={option.example}'"
            )
        given[key] = text
    return {option.name: option.example for option in kind.options} | given


def syntax(name: str, kind: Kind) -> str:
    value = f":{kind.value.name}" if kind.value else ""
    return name + value + "".join(f"[,{option.name}={option.syntax}]" for option in kind.options)


def is_positive(text: str) -> bool:
    return 0 < number(text) < math.inf


def is_whole(text: str) -> bool:
    return text.isdecimal() and 1 <= number(text) < 1e9
