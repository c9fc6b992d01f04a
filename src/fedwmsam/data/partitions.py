"""Which training samples each client holds.

The rules are those of the code released with the FedWMSAM paper: equal sizes, class proportions drawn per client, and
samples of a class taken in shuffled order without replacement until the class is used up, then from the start again.
So samples of popular classes appear several times and some of unpopular classes never; the total stays the same.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedwmsam.errors import InputError
from fedwmsam.streams import generator
from fedwmsam.wording import unknown

Indices = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)  # eq would compare arrays, whose == is not a truth value
class Partition:
    rule: str
    clients: tuple[Indices, ...]  # for each client the indices of its samples
    counts: Indices  # clients x classes
    reused: int  # how many of all drawn samples had been drawn before

    @cached_property
    def hash(self) -> str:
        """Twelve hexadecimal digits that differ when any client's samples differ."""
        digest = hashlib.sha256(np.array([len(own) for own in self.clients], dtype="<i8").tobytes())
        for own in self.clients:
            digest.update(own.astype("<i8").tobytes())
        return digest.hexdigest()[:12]

    def describe(self) -> str:
        sizes = self.counts.sum(axis=1)
        held = (self.counts > 0).sum(axis=1).mean()
        return (
            f"{self.rule}: {len(sizes)} clients of {sizes.min()}/{np.median(sizes):g}/{sizes.max()} samples "
            f"(min/median/max), {held:.1f} classes per client, {self.reused} samples reused, hash {self.hash}"
        )


def make_partition(
    rule: str, labels: npt.NDArray[np.integer], clients: int, seed: int, classes: int | None = None
) -> Partition:
    """Divide the samples with these labels by `iid`, `dirichlet:BETA` or `pathological:GAMMA`."""
    name, value = parse_rule(rule)
    classes = int(np.max(labels, initial=0)) + 1 if classes is None else classes
    _check_sizes(labels, clients, classes)
    # The released code gives the whole remainder to client 0, which makes one client larger by up to N - 1 samples (and
    # its ragged arrays fail to stack); one more for each of the first n mod N clients keeps the sizes balanced.
    sizes = np.full(clients, len(labels) // clients)
    sizes[: len(labels) % clients] += 1
    random = generator(seed, "partition")
    if name == "iid":
        samples = random.permutation(len(labels))
    else:
        existing = np.unique(labels)  # a class without a sample can never be drawn
        priors = PRIORS[name](value, clients, len(existing), random)
        samples = _fill(labels, existing, priors, sizes, random)
    return _partition(rule, samples.astype(np.int64), sizes, labels, classes)


def parse_rule(rule: str) -> tuple[str, float]:
    """The rule's name and its value (0 for `iid`), checked as far as that is possible without the data."""
    name, colon, text = rule.partition(":")
    if name not in ("iid", *PRIORS):
        known = unknown("partition rule", name, ["iid", *PRIORS])
        raise InputError(f"{known}; write 'iid', 'dirichlet:BETA' or 'pathological:GAMMA'")
    if name == "iid":
        if colon:
            raise InputError(f"partition rule {rule!r}: iid takes no value, write 'iid'")
        return name, 0.0
    value = _number(text)
    if name == "dirichlet" and not 0 < value < math.inf:
        raise InputError(f"partition rule {rule!r}: BETA must be a number above 0, write for example 'dirichlet:0.1'")
    if name == "pathological" and not (1 <= value < 1e9 and text.isdecimal()):
        raise InputError(
            f"partition rule {rule!r}: GAMMA must be a whole number of classes from 1 on, "
            "write for example 'pathological:3'"
        )
    return name, value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _check_sizes(labels: npt.NDArray[np.integer], clients: int, classes: int) -> None:
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


def _dirichlet_priors(beta: float, clients: int, classes: int, random: np.random.Generator) -> Numbers:
    # The smallest betas underflow to 0/0 or to a lopsided choice; their limit is one class only, all equally likely,
    # and at 1e-9 the chance of drawing another class is already beyond what any data set could show.
    if beta < 1e-9:
        return np.eye(classes)[random.integers(classes, size=clients)]
    # The largest overflow, long after every prior has become uniform to the last digit.
    return random.dirichlet(np.full(classes, min(beta, 1e100)), size=clients)


def _pathological_priors(gamma: float, clients: int, classes: int, random: np.random.Generator) -> Numbers:
    if gamma > classes:
        raise InputError(
            f"partition rule 'pathological:{gamma:.0f}': the data hold {classes} classes, "
            f"expected GAMMA from 1 to {classes}, ask for fewer classes per client"
        )
    chosen = np.arange(classes) < gamma
    return random.permuted(np.tile(chosen / gamma, (clients, 1)), axis=1)


PRIORS: dict[str, Callable[[float, int, int, np.random.Generator], Numbers]] = {
    "dirichlet": _dirichlet_priors,
    "pathological": _pathological_priors,
}


def _fill(
    labels: npt.NDArray[np.integer],
    existing: npt.NDArray[np.integer],
    priors: Numbers,
    sizes: Indices,
    random: np.random.Generator,
) -> Indices:
    """The samples of client 0, of client 1, and so on, one after the other.

    Every place is filled with a class drawn from its client's prior, and with the next sample of that class in the
    order in which the places have their turn. When a class is used up its list starts again and the sample is taken;
    the released code draws the class anew at that point, which changes one draw per pass over a class.
    """
    wanted = np.concatenate([random.choice(existing, size, p=prior) for size, prior in zip(sizes, priors, strict=True)])
    turns = _turns(sizes, random)
    wanted_in_turn = wanted[turns]
    samples = np.empty(len(turns), dtype=np.int64)
    for label in existing:
        places = turns[wanted_in_turn == label]
        members = random.permutation(np.flatnonzero(labels == label))
        samples[places] = np.resize(members, len(places))  # np.resize repeats the list as often as needed
    return samples


def _turns(sizes: Indices, random: np.random.Generator) -> Indices:
    """All places, in the order in which the released code fills them: it picks a client at random until all are full.

    That order matters, as it spreads a class's second pass over all clients. Picking uniformly and skipping full
    clients is a race of independent clocks with exponential gaps, which needs no loop over samples.
    """
    longest = int(sizes.max())
    times = random.exponential(size=(len(sizes), longest)).cumsum(axis=1)
    return np.argsort(times[np.arange(longest) < sizes[:, None]], kind="stable")


def _partition(rule: str, samples: Indices, sizes: Indices, labels: npt.NDArray[np.integer], classes: int) -> Partition:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    counts = np.bincount(owners * classes + labels[samples], minlength=len(sizes) * classes)
    return Partition(
        rule=rule,
        clients=tuple(np.split(samples, np.cumsum(sizes)[:-1])),
        counts=counts.reshape(len(sizes), classes),
        reused=len(samples) - len(np.unique(samples)),
    )
