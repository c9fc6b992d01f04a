"""All rules by name, and what one makes of some labels."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedwmsam.data.partitions.dealing import Data, Dealt, Rule
from fedwmsam.data.partitions.partition import Labels, Partition
from fedwmsam.data.partitions.syntax import Field, Kind, is_positive, is_whole, parse, syntax
from fedwmsam.data.partitions.with_priors import EXHAUSTED, deal_dirichlet, deal_pathological
from fedwmsam.data.partitions.without_priors import (
    deal_dirichlet_class,
    deal_iid,
    deal_longtail,
    deal_natural,
    deal_quantity,
    deal_shards,
)
from fedwmsam.errors import InputError
from fedwmsam.rng import generator
from fedwmsam.settings.options import number

_BETA = Field("BETA", "a number above 0", "0.1", is_positive)
KINDS: dict[str, Kind] = {
    "iid": Kind(deal_iid),
    "dirichlet": Kind(
        deal_dirichlet,
        _BETA,
        (Field("exhausted", f"one of {', '.join(EXHAUSTED)}", "reuse", EXHAUSTED.__contains__, "|".join(EXHAUSTED)),),
    ),
    "dirichlet-class": Kind(
        deal_dirichlet_class,
        _BETA,
        (Field("min", "a whole number of samples from 1 on", "1", is_whole, "SAMPLES"),),
    ),
    "pathological": Kind(deal_pathological, Field("GAMMA", "a whole number of classes from 1 on", "3", is_whole)),
    "shards": Kind(deal_shards, Field("PER_CLIENT", "a whole number of shards from 1 on", "2", is_whole)),
    "quantity": Kind(
        deal_quantity,
        Field("SIGMA", "a number from 0 on", "0.5", lambda text: 0 <= number(text) < math.inf),
    ),
    "longtail": Kind(
        deal_longtail,
        Field("FACTOR", "a number from 1 on", "100", lambda text: 1 <= number(text) < math.inf),
        (Field("beta", "a number above 0 or iid", "0.1", lambda text: text == "iid" or is_positive(text), "BETA|iid"),),
    ),
    "natural": Kind(deal_natural),
}

SYNTAX: dict[str, str] = {name: syntax(name, kind) for name, kind in KINDS.items()}  # how each rule is written


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
    parsed = parse_rule(rule)
    classes = int(np.max(labels, initial=0)) + 1 if classes is None else classes
    if parsed.name == "natural":
        clients = _check_groups(groups, labels, clients)
    clients = 0 if clients is None else clients
    _check_sizes(labels, clients, classes)
    data = Data(labels, clients, generator(seed, "partition"), groups)
    dealt = KINDS[parsed.name].deal(parsed, data)
    return _partition(rule, dealt, labels, classes)


def parse_rule(rule: str) -> Rule:
    return parse(rule, KINDS)


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
        raise InputError(f"{len(groups)} groups for {len(labels)} samples: expected one for each, correct the groups")
    existing = len(np.unique(groups))
    if clients not in (None, 0, existing):
        raise InputError(
            f"{clients} clients for partition rule 'natural': the data hold {existing} groups and each is a client, "
            f"ask for {existing} clients"
        )
    return existing


def _partition(rule: str, dealt: Dealt, labels: Labels, classes: int) -> Partition:
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
