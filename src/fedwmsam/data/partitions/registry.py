"""All partition rules by name.

A rule is written such as dirichlet:0.1,exhausted=reuse. Here such a text is parsed, and the rule
it names is applied to some labels.
"""

import math
import re
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
from fedwmsam.machine import machine_memory
from fedwmsam.rng import generator
from fedwmsam.settings.options import parse_float_or_nan

BYTES_PER_COUNT = 24
"""Bytes for each client and class: the count, a reference to it, and its text in data.json."""


@dataclass(frozen=True)
class RuleParameter:
    """The value of a rule, after the colon, or one of its options, after a comma."""

    name: str
    expected: str
    """The words for what is accepted, for the message that refuses anything else."""
    default: str
    """The default of an option; of a value, which must be given, an example."""
    accepts: Callable[[str], bool]
    syntax: str = ""
    """The syntax of an option's text, for the help."""


@dataclass(frozen=True)
class RuleSpec:
    """A rule with its parameters."""

    assign: Callable[[PartitionRule, PartitionInput], Assignment]
    value: RuleParameter | None = None
    options: tuple[RuleParameter, ...] = field(default=())


def parse_rule_text(rule: str, specs: Mapping[str, RuleSpec]) -> PartitionRule:
    """Return the rule that a text names, or raise InputError if it or a parameter is wrong."""
    head, *parts = (part.strip() for part in rule.split(","))
    name, colon, text = head.partition(":")
    if name not in specs:
        papers = re.fullmatch(r"([a-z-]+?)[-_ (=]*([\d.]+)\)?", name.lower())
        if papers and papers[1] in specs:  # as in Dirichlet(0.1)
            raise InputError(
                f"Unknown partition rule {name!r}. Did you mean '{papers[1]}:{papers[2]}'?"
            )
        raise InputError(unknown_name_message("partition rule", name, specs))
    spec = specs[name]
    if spec.value is None:
        if colon:
            raise InputError(f"partition rule {rule!r}: {name} takes no value, write {name!r}")
        value = 0.0
    else:
        if not spec.value.accepts(text):
            raise InputError(
                f"partition rule {rule!r}: {spec.value.name} must be {spec.value.expected}, "
                f"write for example '{name}:{spec.value.default}'"
            )
        value = float(text)
    return PartitionRule(rule, name, value, _parse_options(rule, spec, parts))


def _parse_options(rule: str, spec: RuleSpec, parts: list[str]) -> dict[str, str]:
    options_by_name = {option.name: option for option in spec.options}
    values: dict[str, str] = {}
    for part in parts:
        key, equals, text = part.partition("=")
        option = options_by_name.get(key)
        if option is None or not equals or key in values:
            expected = "it takes no options"
            if options_by_name:
                allowed = " and ".join(f"{name}=" for name in options_by_name)
                expected = f"after the comma expected {allowed} at most once"
            raise InputError(
                f"partition rule {rule!r}: {part!r} is not possible here, {expected}, "
                "correct the rule"
            )
        if not option.accepts(text):
            raise InputError(
                f"partition rule {rule!r}: {key} must be {option.expected}, "
                f"write for example '{key}={option.default}'"
            )
        values[key] = text
    return {option.name: option.default for option in spec.options} | values


def format_syntax(name: str, spec: RuleSpec) -> str:
    """Return the syntax of a rule, such as "dirichlet-class:BETA[,min=SAMPLES]"."""
    value = f":{spec.value.name}" if spec.value else ""
    return name + value + "".join(f"[,{option.name}={option.syntax}]" for option in spec.options)


def is_positive_number(text: str) -> bool:
    """Return whether a text is a finite number above 0."""
    return 0 < parse_float_or_nan(text) < math.inf


def is_positive_int(text: str) -> bool:
    """Return whether a text is a whole number from 1 to below 1e9."""
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
"""All rules by name."""

SYNTAX: dict[str, str] = {name: format_syntax(name, spec) for name, spec in RULE_SPECS.items()}
"""The syntax of each rule by its name, for the help."""


def make_partition(
    rule: str,
    labels: Labels,
    clients: int | None,
    seed: int,
    classes: int | None = None,
    groups: npt.NDArray[Any] | None = None,
) -> Partition:
    """Return the partition of samples with these labels by a rule such as `dirichlet:0.1`.

    `SYNTAX` lists all rules. `classes` is how many there are, if the largest label does not tell.
    `groups` (for each sample the speaker, device or domain it is from) serves the rule `natural`,
    which finds the number of clients itself when `clients` is None or 0. Raise InputError if the
    rule is wrong, or cannot give every client a sample.
    """
    parsed = parse_partition_rule(rule)
    classes = int(np.max(labels, initial=0)) + 1 if classes is None else classes
    if parsed.name == "natural":
        clients = _check_groups(groups, labels, clients)
    clients = 0 if clients is None else clients
    _check_sizes(labels, clients, classes)
    data = PartitionInput(labels, clients, generator(seed, "partition"), groups)
    assignment = RULE_SPECS[parsed.name].assign(parsed, data)
    return _build_partition(rule, assignment, labels, classes)


def parse_partition_rule(rule: str) -> PartitionRule:
    """Return the rule that a text names, or raise InputError if the text is wrong."""
    return parse_rule_text(rule, RULE_SPECS)


def _check_sizes(labels: Labels, clients: int, classes: int) -> None:
    if clients < 1:
        raise InputError(f"{clients} clients: expected at least 1, ask for more clients")
    if clients > len(labels):
        raise InputError(
            f"{clients} clients for {len(labels)} samples: expected at least one sample each, "
            "ask for fewer clients"
        )
    needed = clients * classes * BYTES_PER_COUNT
    if needed > machine_memory():
        raise InputError(
            f"the class counts of {clients} clients and {classes} classes would need "
            f"{needed / 1e9:,.0f} GB, this machine has {machine_memory() / 1e9:.0f} GB: "
            "ask for fewer clients or join classes"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"labels from {labels.min()} to {labels.max()}: expected 0 to {classes - 1}, "
            "correct the labels or the number of classes"
        )


def _check_groups(groups: npt.NDArray[Any] | None, labels: Labels, clients: int | None) -> int:
    """Return how many groups there are, or raise InputError if they do not suit the clients."""
    if groups is None:
        raise InputError(
            "partition rule 'natural': these data do not say which person, device or domain a "
            "sample is from, choose a data set that does or another rule"
        )
    if len(groups) != len(labels):
        raise InputError(
            f"{len(groups)} groups for {len(labels)} samples: expected one for each, "
            "correct the groups"
        )
    group_count = len(np.unique(groups))
    if clients not in (None, 0, group_count):
        raise InputError(
            f"{clients} clients for partition rule 'natural': the data hold {group_count} groups "
            f"and each is a client, ask for {group_count} clients"
        )
    return group_count


def _build_partition(rule: str, assignment: Assignment, labels: Labels, classes: int) -> Partition:
    samples = assignment.samples.astype(np.int64)
    sizes = assignment.sizes
    clients = np.repeat(np.arange(len(sizes)), sizes)
    counts = np.bincount(clients * classes + labels[samples], minlength=len(sizes) * classes)
    used = len(np.unique(samples))
    return Partition(
        rule=rule,
        client_indices=tuple(np.split(samples, np.cumsum(sizes)[:-1])),
        class_counts=counts.reshape(len(sizes), classes),
        reused=len(samples) - used,
        unused=len(labels) - used,
        notes=assignment.notes,
    )
