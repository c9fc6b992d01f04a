"""All rules by name: how a rule is written, such as dirichlet:0.1,exhausted=reuse, and what it makes of some labels."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedwmsam.data.partitions.partition import Labels, Partition
from fedwmsam.data.partitions.rules import (
    EXHAUSTION_POLICIES,
    Assignment,
    PartitionInput,
    PartitionRule,
    assign_dirichlet,
    assign_dirichlet_class,
    assign_iid,
    assign_longtail,
    assign_natural,
    assign_pathological,
    assign_quantity,
    assign_shards,
)
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.rng import generator
from fedwmsam.settings.options import parse_float_or_nan


@dataclass(frozen=True)
class RuleParameter:
    name: str
    expected: str
    example: str  # of an option: its default
    accepts: Callable[[str], bool]
    syntax: str = ""


@dataclass(frozen=True)
class RuleSpec:
    deal: Callable[[PartitionRule, PartitionInput], Assignment]
    value: RuleParameter | None = None
    options: tuple[RuleParameter, ...] = field(default=())


def parse_rule_text(rule: str, kinds: Mapping[str, RuleSpec]) -> PartitionRule:
    head, *parts = (part.strip() for part in rule.split(","))
    name, colon, text = head.partition(":")
    if name not in kinds:
        raise InputError(unknown_name_message("partition rule", name, kinds))
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
    return PartitionRule(rule, name, value, _parse_options(rule, kind, parts))


def _parse_options(rule: str, kind: RuleSpec, parts: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in parts:
        key, equals, text = part.partition("=")
        option = next((known for known in kind.options if known.name == key), None)
        if option is None or not equals or key in given:
            allowed = " and ".join(f"{known.name}=" for known in kind.options)
            expected = (
                f"after the comma expected {allowed} at most once"
                if allowed
                else "it takes no options"
            )
            raise InputError(
                f"partition rule {rule!r}: {part!r} is not possible here, {expected}, correct the rule"
            )
        if not option.accepts(text):
            raise InputError(
                f"partition rule {rule!r}: {key} must be {option.expected}, write for example '{key}={option.example}'"
            )
        given[key] = text
    return {option.name: option.example for option in kind.options} | given


def format_syntax(name: str, kind: RuleSpec) -> str:
    value = f":{kind.value.name}" if kind.value else ""
    return name + value + "".join(f"[,{option.name}={option.syntax}]" for option in kind.options)


def is_positive_number(text: str) -> bool:
    return 0 < parse_float_or_nan(text) < math.inf


def is_positive_int(text: str) -> bool:
    return text.isdecimal() and 1 <= parse_float_or_nan(text) < 1e9


_BETA = RuleParameter("BETA", "a number above 0", "0.1", is_positive_number)
RULE_SPECS: dict[str, RuleSpec] = {
    "iid": RuleSpec(assign_iid),
    "dirichlet": RuleSpec(
        assign_dirichlet,
        _BETA,
        (
            RuleParameter(
                "exhausted",
                f"one of {', '.join(EXHAUSTION_POLICIES)}",
                "reuse",
                EXHAUSTION_POLICIES.__contains__,
                "|".join(EXHAUSTION_POLICIES),
            ),
        ),
    ),
    "dirichlet-class": RuleSpec(
        assign_dirichlet_class,
        _BETA,
        (
            RuleParameter(
                "min", "a whole number of samples from 1 on", "1", is_positive_int, "SAMPLES"
            ),
        ),
    ),
    "pathological": RuleSpec(
        assign_pathological,
        RuleParameter("GAMMA", "a whole number of classes from 1 on", "3", is_positive_int),
    ),
    "shards": RuleSpec(
        assign_shards,
        RuleParameter("PER_CLIENT", "a whole number of shards from 1 on", "2", is_positive_int),
    ),
    "quantity": RuleSpec(
        assign_quantity,
        RuleParameter(
            "SIGMA",
            "a number from 0 on",
            "0.5",
            lambda text: 0 <= parse_float_or_nan(text) < math.inf,
        ),
    ),
    "longtail": RuleSpec(
        assign_longtail,
        RuleParameter(
            "FACTOR",
            "a number from 1 on",
            "100",
            lambda text: 1 <= parse_float_or_nan(text) < math.inf,
        ),
        (
            RuleParameter(
                "beta",
                "a number above 0 or iid",
                "0.1",
                lambda text: text == "iid" or is_positive_number(text),
                "BETA|iid",
            ),
        ),
    ),
    "natural": RuleSpec(assign_natural),
}

SYNTAX: dict[str, str] = {
    name: format_syntax(name, kind) for name, kind in RULE_SPECS.items()
}  # how each rule is written


def make_partition(
    rule: str,
    labels: Labels,
    clients: int | None,
    seed: int,
    classes: int | None = None,
    groups: npt.NDArray[Any] | None = None,
) -> Partition:
    """Divide the samples with these labels by a rule such as `dirichlet:0.1`; `SYNTAX` lists all rules.

    `groups` (for each sample the person, device or domain it is from) serves the rule `natural`, which finds the number
    of clients itself when `clients` is None or 0.
    """
    parsed = parse_partition_rule(rule)
    classes = int(np.max(labels, initial=0)) + 1 if classes is None else classes
    if parsed.name == "natural":
        clients = _check_groups(groups, labels, clients)
    clients = 0 if clients is None else clients
    _check_sizes(labels, clients, classes)
    data = PartitionInput(labels, clients, generator(seed, "partition"), groups)
    dealt = RULE_SPECS[parsed.name].deal(parsed, data)
    return _build_partition(rule, dealt, labels, classes)


def parse_partition_rule(rule: str) -> PartitionRule:
    return parse_rule_text(rule, RULE_SPECS)


def _check_sizes(labels: Labels, clients: int, classes: int) -> None:
    if clients < 1:
        raise InputError(f"{clients} clients: expected at least 1, ask for more clients")
    if clients > len(labels):
        raise InputError(
            f"{clients} clients for {len(labels)} samples: expected at least one sample each, ask for fewer clients"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"labels from {labels.min()} to {labels.max()}: expected 0 to {classes - 1}, "
            "correct the labels or the number of classes"
        )


def _check_groups(groups: npt.NDArray[Any] | None, labels: Labels, clients: int | None) -> int:
    if groups is None:
        raise InputError(
            "partition rule 'natural': these data do not say which person, device or domain a sample is from, "
            "choose a data set that does or another rule"
        )
    if len(groups) != len(labels):
        raise InputError(
            f"{len(groups)} groups for {len(labels)} samples: expected one for each, correct the groups"
        )
    existing = len(np.unique(groups))
    if clients not in (None, 0, existing):
        raise InputError(
            f"{clients} clients for partition rule 'natural': the data hold {existing} groups and each is a client, "
            f"ask for {existing} clients"
        )
    return existing


def _build_partition(rule: str, dealt: Assignment, labels: Labels, classes: int) -> Partition:
    samples, sizes = dealt.samples.astype(np.int64), dealt.sizes
    owners = np.repeat(np.arange(len(sizes)), sizes)
    counts = np.bincount(owners * classes + labels[samples], minlength=len(sizes) * classes)
    different = len(np.unique(samples))
    return Partition(
        rule=rule,
        clients=tuple(np.split(samples, np.cumsum(sizes)[:-1])),
        counts=counts.reshape(len(sizes), classes),
        reused=len(samples) - different,
        unused=len(labels) - different,
        notes=dealt.notes,
    )
