"""The partition rules, which assign samples to clients.

`dirichlet` and `pathological` draw a class prior for each client and fill the clients by drawing
from it; `iid`, `shards`, `quantity` and `dirichlet-class` cut a shuffled or sorted list of samples;
`longtail` keeps fewer samples of each further class and then assigns them by one of these rules;
`natural` follows the groups that the data name. Every rule takes its parsed text and the data, and
returns an `Assignment`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedwmsam.data.partitions.partition import IntArray, Labels
from fedwmsam.errors import InputError
from fedwmsam.statistics import FloatArray


@dataclass(frozen=True)
class PartitionRule:
    """A parsed rule, checked as far as that is possible without the data."""

    text: str
    """The text that the user wrote."""
    name: str
    value: float
    """The number after the colon, or 0 where the rule takes none."""
    options: Mapping[str, str]
    """All options of the rule, given or by default."""


@dataclass(frozen=True, eq=False)
class PartitionInput:
    """The data that a rule divides, and the generator that it draws from."""

    labels: Labels
    client_count: int
    generator: np.random.Generator
    groups: npt.NDArray[Any] | None = None
    """For each sample the natural client that it is from, for the rule `natural`."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """The samples of all clients in one list, as a rule returns them."""

    samples: IntArray
    """Indices of samples: those of client 0, of client 1, and so on."""
    sizes: IntArray
    """The number of samples of each client."""
    notes: tuple[str, ...] = ()
    """Phrases that say what the rule had to do beyond its definition."""


def equal_sizes(samples: int, clients: int) -> IntArray:
    """Return client sizes that differ by at most one and sum up to `samples`."""
    # The released code gives all of the remainder to client 0, which makes one client larger by up
    # to N - 1 samples (and its ragged arrays fail to stack); one more for each of the first n mod N
    # clients keeps the sizes balanced.
    sizes = np.full(clients, samples // clients)
    sizes[: samples % clients] += 1
    return sizes


def group_by_client(
    samples: IntArray, clients: IntArray, client_count: int, notes: tuple[str, ...] = ()
) -> Assignment:
    """Return the assignment of samples whose clients are listed in the same order."""
    order = np.argsort(clients, kind="stable")
    return Assignment(samples[order], np.bincount(clients, minlength=client_count), notes)


def format_count(count: int, what: str) -> str:
    """Return a count with its noun, such as "1 sample" or "3 samples"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def assign_dirichlet(rule: PartitionRule, data: PartitionInput) -> Assignment:
    """Assign samples by a Dirichlet prior over the classes for each client."""
    return assign_by_dirichlet_priors(rule.text, data, rule.value, rule.options["exhausted"])


def assign_by_dirichlet_priors(
    text: str, data: PartitionInput, beta: float, exhausted: str
) -> Assignment:
    """Assign samples by priors drawn with `beta`, and by the policy `exhausted`."""
    classes = np.unique(data.labels)  # a class without a sample can never be drawn
    priors = dirichlet_priors(beta, data.client_count, len(classes), data.generator)
    return _assign_by_priors(text, data, classes, priors, exhausted)


def dirichlet_priors(
    beta: float, rows: int, columns: int, generator: np.random.Generator
) -> FloatArray:
    """Draw rows of shares from a symmetric Dirichlet distribution, for any `beta` above 0."""
    # The smallest betas underflow to 0/0 or to a lopsided choice; their limit is one column only,
    # all equally likely, and at 1e-9 the chance of drawing another one is already beyond what any
    # data set could show.
    if beta < 1e-9:
        return np.eye(columns)[generator.integers(columns, size=rows)]
    # The largest overflow, long after every prior has become uniform to the last digit.
    return generator.dirichlet(np.full(columns, min(beta, 1e100)), size=rows)


def assign_pathological(rule: PartitionRule, data: PartitionInput) -> Assignment:
    """Assign samples of GAMMA random classes to each client, in equal shares on average.

    Raise InputError if the data hold fewer classes.
    """
    classes = np.unique(data.labels)
    if rule.value > len(classes):
        raise InputError(
            f"partition rule {rule.text!r}: the data hold {len(classes)} classes, "
            f"expected GAMMA from 1 to {len(classes)}, ask for fewer classes per client"
        )
    prior = (np.arange(len(classes)) < rule.value) / rule.value
    priors = data.generator.permuted(np.tile(prior, (data.client_count, 1)), axis=1)
    return _assign_by_priors(rule.text, data, classes, priors, "reuse")


def _assign_by_priors(
    text: str, data: PartitionInput, classes: Labels, priors: FloatArray, exhausted: str
) -> Assignment:
    """Fill clients of equal sizes with samples of classes drawn from their priors.

    A client has as many slots as samples. Each slot gets a class drawn from the client's prior, and
    then the next sample of that class, in the order in which the slots are filled.

    With `reuse`, a class's list starts again when it is used up and the sample is taken; the
    released code draws the class anew at that point, which changes one draw per pass over a class.
    """
    generator = data.generator
    sizes = equal_sizes(len(data.labels), data.client_count)
    # Drawing the labels themselves, not their positions, is what keeps published partitions as they
    # are.
    slot_labels = np.concatenate(
        [
            generator.choice(classes, size, p=prior)
            for size, prior in zip(sizes, priors, strict=True)
        ]
    )
    order = draw_fill_order(sizes, generator)
    members = [generator.permutation(np.flatnonzero(data.labels == label)) for label in classes]
    samples_per_class = np.array([len(samples) for samples in members])
    draws = ClassDraws(
        classes=np.searchsorted(classes, slot_labels[order]),
        clients=np.repeat(np.arange(len(sizes)), sizes)[order],
        priors=priors,
    )
    notes = EXHAUSTION_POLICIES[exhausted](text, draws, classes, samples_per_class, generator)
    slots = np.empty(len(order), dtype=np.int64)
    for class_index, class_samples in enumerate(members):
        class_slots = order[draws.classes == class_index]
        # np.resize repeats the list as often as needed.
        slots[class_slots] = np.resize(class_samples, len(class_slots))
    return Assignment(slots, sizes, notes)


def draw_fill_order(sizes: IntArray, generator: np.random.Generator) -> IntArray:
    """Return all slots in the order in which the released code fills them.

    Slots are numbered client by client. The released code picks a client at random until all are
    full. That order matters, as it spreads a class's second pass over all clients. Picking
    uniformly and skipping full clients is a race of independent clocks with exponential gaps, which
    needs no loop over samples.
    """
    longest = int(sizes.max())
    times = generator.exponential(size=(len(sizes), longest)).cumsum(axis=1)
    return np.argsort(times[np.arange(longest) < sizes[:, None]], kind="stable")


@dataclass(frozen=True, eq=False)
class ClassDraws:
    """The classes drawn for all slots, in the order in which the slots are filled."""

    classes: IntArray
    """The drawn class of each slot, as a column of the priors."""
    clients: IntArray
    """The client of each slot."""
    priors: FloatArray
    """For each client the share of each class."""

    def find_first_exhausted(self, samples_per_class: IntArray) -> tuple[int, IntArray] | None:
        """Return the class that runs out first, and all draws of it after that.

        Return None if no class is drawn more often than it has samples.
        """
        draw_counts = np.bincount(self.classes, minlength=len(samples_per_class))
        exhausted = np.flatnonzero(draw_counts > samples_per_class)
        if not len(exhausted):
            return None
        # The draws of class 0, of class 1, and so on.
        order = np.argsort(self.classes, kind="stable")
        begins = np.cumsum(draw_counts) - draw_counts
        limits = begins + samples_per_class
        first = exhausted[np.argmin(order[limits[exhausted]])]
        return int(first), order[limits[first] : begins[first] + draw_counts[first]]


def _reuse_samples(
    _text: str,
    draws: ClassDraws,
    classes: Labels,
    samples_per_class: IntArray,
    _generator: np.random.Generator,
) -> tuple[str, ...]:
    """Leave the draws as they are, and return a note if classes ran out."""
    draw_counts = np.bincount(draws.classes, minlength=len(classes))
    exhausted = int((draw_counts > samples_per_class).sum())
    if not exhausted:
        return ()
    return (f"{exhausted} of {len(classes)} classes ran out and were dealt again",)


def _raise_if_exhausted(
    text: str,
    draws: ClassDraws,
    classes: Labels,
    samples_per_class: IntArray,
    _generator: np.random.Generator,
) -> tuple[()]:
    """Raise InputError if a class runs out, naming the class and the client."""
    exhausted = draws.find_first_exhausted(samples_per_class)
    if exhausted is not None:
        class_index, failing = exhausted
        raise InputError(
            f"partition rule {text!r}: class {classes[class_index]} ran out "
            f"at client {draws.clients[failing[0]]} after its "
            f"{format_count(samples_per_class[class_index], 'sample')}, "
            "expected enough of every class, "
            "choose exhausted=reuse, exhausted=renormalise or a larger BETA"
        )
    return ()


def redraw_exhausted(
    _text: str,
    draws: ClassDraws,
    _classes: Labels,
    samples_per_class: IntArray,
    generator: np.random.Generator,
) -> tuple[str, ...]:
    """Redraw every draw that finds its class used up, and return notes on how many there were.

    The new class is drawn from the client's prior, restricted to the classes that are left.
    Classes are closed in the order in which they run out; the draws of a closed class after that
    point are drawn again among the classes still open. Each pass closes one class, so this ends;
    there are as many samples as draws, so the last class never runs out.
    """
    available = np.ones(len(samples_per_class), dtype=np.bool_)
    redrawn: list[IntArray] = []
    outside_prior: list[IntArray] = []
    while (exhausted := draws.find_first_exhausted(samples_per_class)) is not None:
        class_index, failing = exhausted
        available[class_index] = False
        weights = np.where(available, draws.priors, 0.0)
        is_empty = weights.sum(axis=1) == 0
        weights[is_empty] = available  # nothing left of the client's prior: any class that is left
        draws.classes[failing] = draw_columns(weights, draws.clients[failing], generator)
        redrawn.append(failing)
        outside_prior.append(failing[is_empty[draws.clients[failing]]])
    if not redrawn:
        return ()
    notes = [f"{format_count(_count_unique(redrawn), 'sample')} redrawn as their class had run out"]
    if _count_unique(outside_prior):
        notes.append(f"{_count_unique(outside_prior)} of them outside their client's prior")
    return tuple(notes)


def _count_unique(arrays: list[IntArray]) -> int:
    return len(np.unique(np.concatenate(arrays)))


def draw_columns(weights: FloatArray, rows: IntArray, generator: np.random.Generator) -> IntArray:
    """Draw a column for each of these rows, with a chance proportional to the row's weights."""
    columns = weights.shape[1]
    bounds = np.cumsum(weights, axis=1)
    bounds /= bounds[:, -1:]
    last = columns - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
    # One sorted list for all rows: row r's bounds lie between r and r + 1.
    flat = (bounds + np.arange(len(weights))[:, None]).ravel()
    drawn: IntArray = (
        np.searchsorted(flat, rows + generator.random(len(rows)), side="right") - rows * columns
    )
    limited: IntArray = np.minimum(drawn, last[rows])  # r + 0.999... may round to r + 1
    return limited


EXHAUSTION_POLICIES: dict[
    str, Callable[[str, ClassDraws, Labels, IntArray, np.random.Generator], tuple[str, ...]]
] = {
    "reuse": _reuse_samples,
    "renormalise": redraw_exhausted,
    "error": _raise_if_exhausted,
}
"""The policies for classes with fewer samples than were drawn of them, by the option `exhausted`.

A policy gets the rule's text, the draws, which it may change, the classes, their numbers of samples
and the generator. It returns notes for the partition, or raises InputError.
"""


def assign_iid(_rule: PartitionRule, data: PartitionInput) -> Assignment:
    """Assign shuffled samples to clients of equal sizes."""
    samples = data.generator.permutation(len(data.labels))
    return Assignment(samples, equal_sizes(len(data.labels), data.client_count))


def assign_dirichlet_class(rule: PartitionRule, data: PartitionInput) -> Assignment:
    """Assign each class's samples by shares of it drawn over the clients.

    Raise InputError if there are not enough samples for the smallest size that is allowed.
    """
    min_size = int(rule.options["min"])
    if min_size * data.client_count > len(data.labels):
        raise InputError(
            f"partition rule {rule.text!r}: {data.client_count} clients of at least {min_size} "
            f"samples need more than the {len(data.labels)} that exist, "
            "ask for fewer clients or a smaller min"
        )
    classes = np.unique(data.labels)
    shares = dirichlet_priors(rule.value, len(classes), data.client_count, data.generator)
    bounds = np.cumsum(shares, axis=1)
    samples = data.generator.permutation(len(data.labels))
    clients = np.empty(len(samples), dtype=np.int64)
    for label, class_bounds in zip(classes, bounds, strict=True):
        positions = np.flatnonzero(data.labels[samples] == label)
        # Every client gets its share rounded down or up. Without the random offset, rounding would
        # favour the same clients in every class.
        points = (np.arange(len(positions)) + data.generator.random()) / len(positions)
        clients[positions] = np.searchsorted(class_bounds[:-1], points, side="right")
    return _enforce_min_size(samples, clients, data, min_size)


def _enforce_min_size(
    samples: IntArray, clients: IntArray, data: PartitionInput, min_size: int
) -> Assignment:
    """Move samples from the largest clients to those with too few, and note how many."""
    sizes = np.bincount(clients, minlength=data.client_count)
    missing = np.maximum(min_size - sizes, 0)
    total = int(missing.sum())
    if not total:
        return group_by_client(samples, clients, data.client_count)
    removals = removals_from_largest(sizes, total)
    order = np.argsort(clients, kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # The samples are in random order, so the first ones of a client are random ones.
    is_moved = ranks < removals[clients]
    receivers = np.repeat(np.arange(data.client_count), missing)
    clients[is_moved] = data.generator.permutation(receivers)
    raised = int((missing > 0).sum())
    note = (
        f"{format_count(total, 'sample')} moved from the largest clients "
        f"to {format_count(raised, 'client')} below {min_size}"
    )
    return group_by_client(samples, clients, data.client_count, (note,))


def removals_from_largest(sizes: IntArray, total: int) -> IntArray:
    """Return how many samples to remove from each client, `total` in all.

    It is as if one sample were removed from the largest client again and again.
    """
    descending = np.sort(sizes)[::-1]
    # What lowering the first k to the next one's size frees; the first k that free enough are the
    # clients to lower.
    next_sizes = np.append(descending[1:], 0)
    freed = np.cumsum(descending) - np.arange(1, len(descending) + 1) * next_sizes
    count = int(np.argmax(freed >= total)) + 1
    level, remainder = divmod(int(descending[:count].sum()) - total, count)
    removals = np.maximum(sizes - level, 0)
    # Some stay one above the level, so that the sum is right.
    removals[np.flatnonzero(sizes > level)[:remainder]] -= 1
    return removals


def assign_shards(rule: PartitionRule, data: PartitionInput) -> Assignment:
    """Assign PER_CLIENT random pieces of the samples, sorted by label, to each client.

    Raise InputError if there are fewer samples than pieces.
    """
    count = data.client_count * int(rule.value)
    if count > len(data.labels):
        raise InputError(
            f"partition rule {rule.text!r}: {data.client_count} clients need {count} shards and "
            f"there are {len(data.labels)} samples, "
            "ask for fewer clients or fewer shards per client"
        )
    shuffled = data.generator.permutation(len(data.labels))
    samples = shuffled[np.argsort(data.labels[shuffled], kind="stable")]
    ends = np.arange(1, count + 1) * len(samples) // count
    shards = np.searchsorted(ends, np.arange(len(samples)), side="right")
    shard_clients = data.generator.permutation(count) % data.client_count
    return group_by_client(samples, shard_clients[shards], data.client_count)


def assign_quantity(rule: PartitionRule, data: PartitionInput) -> Assignment:
    """Assign shuffled samples to clients of log-normal sizes, at least one to each."""
    # Beyond 1e6 one client has it all, and only overflows would change.
    logarithms = data.generator.standard_normal(data.client_count) * min(rule.value, 1e6)
    weights = np.exp(logarithms - logarithms.max())
    sizes = 1 + apportion(len(data.labels) - data.client_count, weights / weights.sum())
    return Assignment(data.generator.permutation(len(data.labels)), sizes)


def apportion(total: int, shares: FloatArray) -> IntArray:
    """Return whole numbers with this sum, each its share of it rounded down or up.

    The largest fractions are rounded up.
    """
    exact = total * shares
    rounded = np.floor(exact).astype(np.int64)
    remainder = total - int(rounded.sum())
    rounded[np.argsort(rounded - exact, kind="stable")[:remainder]] += 1
    return rounded


def assign_longtail(rule: PartitionRule, data: PartitionInput) -> Assignment:
    """Assign samples of which only a long-tailed selection is kept.

    Raise InputError if fewer samples than clients are kept.
    """
    classes, available = np.unique(data.labels, return_counts=True)
    counts = longtail_counts(available, rule.value)
    kept_by_class: list[IntArray] = []
    for label, count in zip(classes, counts, strict=True):
        members = data.generator.permutation(np.flatnonzero(data.labels == label))
        kept_by_class.append(members[:count])
    kept = np.sort(np.concatenate(kept_by_class))
    if len(kept) < data.client_count:
        raise InputError(
            f"partition rule {rule.text!r}: it keeps {len(kept)} of {len(data.labels)} samples "
            f"for {data.client_count} clients, expected at least one each, "
            "ask for fewer clients or a smaller FACTOR"
        )
    tail = PartitionInput(data.labels[kept], data.client_count, data.generator)
    beta = rule.options["beta"]
    if beta == "iid":
        assignment = assign_iid(rule, tail)
    else:
        # Reuse would repeat rare classes until they are as frequent as any other.
        assignment = assign_by_dirichlet_priors(rule.text, tail, float(beta), "renormalise")
    note = f"classes of {counts.max()} down to {counts.min()} samples"
    return Assignment(kept[assignment.samples], assignment.sizes, (note, *assignment.notes))


def longtail_counts(available: IntArray, factor: float) -> IntArray:
    """Return class counts that fall by the factor from the most to the least frequent class.

    They are as large as the available samples allow.
    """
    ranks = np.empty(len(available))
    ranks[np.argsort(-available, kind="stable")] = np.arange(len(available))
    falls = ranks / max(len(available) - 1, 1) * math.log(factor)
    head = (np.log(available) + falls).min()
    counts: FloatArray = np.clip(np.rint(np.exp(head - falls)), 1, available)
    return counts.astype(np.int64)


def assign_natural(_rule: PartitionRule, data: PartitionInput) -> Assignment:
    """Assign the samples of each group to a client of its own."""
    assert data.groups is not None, "make_partition has checked that"
    _, clients = np.unique(data.groups, return_inverse=True)
    return group_by_client(np.arange(len(clients)), clients, data.client_count)
