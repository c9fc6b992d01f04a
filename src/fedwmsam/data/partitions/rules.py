"""The rules that deal samples out: what each takes and gives, those that draw class priors, and those that do not."""

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
    """What the text of a rule says, checked as far as that is possible without the data."""

    text: str
    name: str
    value: float  # 0 where the rule takes none
    options: Mapping[str, str]  # all options of the rule, given or by default


@dataclass(frozen=True, eq=False)
class PartitionInput:
    labels: Labels
    clients: int
    random: np.random.Generator
    groups: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class Assignment:
    samples: IntArray  # those of client 0, of client 1, and so on
    sizes: IntArray
    notes: tuple[str, ...] = ()


def equal_sizes(samples: int, clients: int) -> IntArray:
    # The released code gives the whole remainder to client 0, which makes one client larger by up to N - 1 samples (and
    # its ragged arrays fail to stack); one more for each of the first n mod N clients keeps the sizes balanced.
    sizes = np.full(clients, samples // clients)
    sizes[: samples % clients] += 1
    return sizes


def group_by_client(
    samples: IntArray, owners: IntArray, clients: int, notes: tuple[str, ...] = ()
) -> Assignment:
    return Assignment(
        samples[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=clients), notes
    )


def format_count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def assign_dirichlet(rule: PartitionRule, data: PartitionInput) -> Assignment:
    return assign_by_dirichlet_priors(rule.text, data, rule.value, rule.options["exhausted"])


def assign_by_dirichlet_priors(
    text: str, data: PartitionInput, beta: float, exhausted: str
) -> Assignment:
    existing = np.unique(data.labels)  # a class without a sample can never be drawn
    priors = dirichlet_priors(beta, data.clients, len(existing), data.random)
    return _assign_by_priors(text, data, existing, priors, exhausted)


def dirichlet_priors(
    beta: float, rows: int, columns: int, random: np.random.Generator
) -> FloatArray:
    # The smallest betas underflow to 0/0 or to a lopsided choice; their limit is one column only, all equally likely,
    # and at 1e-9 the chance of drawing another one is already beyond what any data set could show.
    if beta < 1e-9:
        return np.eye(columns)[random.integers(columns, size=rows)]
    # The largest overflow, long after every prior has become uniform to the last digit.
    return random.dirichlet(np.full(columns, min(beta, 1e100)), size=rows)


def assign_pathological(rule: PartitionRule, data: PartitionInput) -> Assignment:
    existing = np.unique(data.labels)
    if rule.value > len(existing):
        raise InputError(
            f"partition rule {rule.text!r}: the data hold {len(existing)} classes, "
            f"expected GAMMA from 1 to {len(existing)}, ask for fewer classes per client"
        )
    chosen = np.arange(len(existing)) < rule.value
    priors = data.random.permuted(np.tile(chosen / rule.value, (data.clients, 1)), axis=1)
    return _assign_by_priors(rule.text, data, existing, priors, "reuse")


def _assign_by_priors(
    text: str, data: PartitionInput, existing: Labels, priors: FloatArray, exhausted: str
) -> Assignment:
    """Every place is filled with a class drawn from its client's prior, and with the next sample of that class in the
    order in which the places have their turn.

    With `reuse`, a class's list starts again when it is used up and the sample is taken; the released code draws the
    class anew at that point, which changes one draw per pass over a class.
    """
    random, sizes = data.random, equal_sizes(len(data.labels), data.clients)
    # Drawing the labels themselves, not their positions, is what keeps published partitions as they are.
    wanted = np.concatenate(
        [random.choice(existing, size, p=prior) for size, prior in zip(sizes, priors, strict=True)]
    )
    turns = _fill_order(sizes, random)
    members = [random.permutation(np.flatnonzero(data.labels == label)) for label in existing]
    supply = np.array([len(own) for own in members])
    drawn = _ClassDraws(
        classes=np.searchsorted(existing, wanted[turns]),
        owners=np.repeat(np.arange(len(sizes)), sizes)[turns],
        priors=priors,
    )
    notes = EXHAUSTION_POLICIES[exhausted](text, drawn, existing, supply, random)
    samples = np.empty(len(turns), dtype=np.int64)
    for number, own in enumerate(members):
        places = turns[drawn.classes == number]
        samples[places] = np.resize(
            own, len(places)
        )  # np.resize repeats the list as often as needed
    return Assignment(samples, sizes, notes)


def _fill_order(sizes: IntArray, random: np.random.Generator) -> IntArray:
    """All places, in the order in which the released code fills them: it picks a client at random until all are full.

    That order matters, as it spreads a class's second pass over all clients. Picking uniformly and skipping full
    clients is a race of independent clocks with exponential gaps, which needs no loop over samples.
    """
    longest = int(sizes.max())
    times = random.exponential(size=(len(sizes), longest)).cumsum(axis=1)
    return np.argsort(times[np.arange(longest) < sizes[:, None]], kind="stable")


@dataclass(frozen=True, eq=False)
class _ClassDraws:
    """The class drawn at each turn (as a column of the priors) and whose turn it is."""

    classes: IntArray
    owners: IntArray
    priors: FloatArray

    def first_exhausted(self, supply: IntArray) -> tuple[int, IntArray] | None:
        """The class that is asked for in vain first, and all turns that ask for it in vain."""
        drawn = np.bincount(self.classes, minlength=len(supply))
        short = np.flatnonzero(drawn > supply)
        if not len(short):
            return None
        order = np.argsort(
            self.classes, kind="stable"
        )  # the turns of class 0, of class 1, and so on
        begins = np.cumsum(drawn) - drawn
        first = short[np.argmin(order[begins[short] + supply[short]])]
        return int(first), order[begins[first] + supply[first] : begins[first] + drawn[first]]


def _reuse_samples(
    _text: str, drawn: _ClassDraws, existing: Labels, supply: IntArray, _random: np.random.Generator
) -> tuple[str, ...]:
    short = int((np.bincount(drawn.classes, minlength=len(existing)) > supply).sum())
    return (f"{short} of {len(existing)} classes ran out and were dealt again",) if short else ()


def _raise_if_exhausted(
    text: str, drawn: _ClassDraws, existing: Labels, supply: IntArray, _random: np.random.Generator
) -> tuple[()]:
    found = drawn.first_exhausted(supply)
    if found is not None:
        number, turns = found
        raise InputError(
            f"partition rule {text!r}: class {existing[number]} ran out at client {drawn.owners[turns[0]]} after its "
            f"{format_count(supply[number], 'sample')}, expected enough of every class, "
            "choose exhausted=reuse, exhausted=renormalise or a larger BETA"
        )
    return ()


def _redraw_exhausted(
    _text: str, drawn: _ClassDraws, existing: Labels, supply: IntArray, random: np.random.Generator
) -> tuple[str, ...]:
    """Redraw every turn that finds its class used up, from what its client's prior says of the others.

    Used-up classes are taken in the order in which they end, and a redrawn turn comes after that end: so each turn ends
    up with a draw from its client's prior over the classes left at that time. There are as many samples as turns, so
    each pass closes one class for good and the last one is never closed.
    """
    available = np.ones(len(supply), dtype=np.bool_)
    redrawn: list[IntArray] = []
    outside: list[IntArray] = []
    while (found := drawn.first_exhausted(supply)) is not None:
        number, turns = found
        available[number] = False
        weights = np.where(available, drawn.priors, 0.0)
        empty = weights.sum(axis=1) == 0
        weights[empty] = available  # the client's prior has nothing left: any class that is left
        drawn.classes[turns] = _draw_columns(weights, drawn.owners[turns], random)
        redrawn.append(turns)
        outside.append(turns[empty[drawn.owners[turns]]])
    if not redrawn:
        return ()
    notes = [f"{format_count(_count_unique(redrawn), 'sample')} redrawn as their class had run out"]
    if _count_unique(outside):
        notes.append(f"{_count_unique(outside)} of them outside their client's prior")
    return tuple(notes)


def _count_unique(lists: list[IntArray]) -> int:
    return len(np.unique(np.concatenate(lists)))


def _draw_columns(weights: FloatArray, rows: IntArray, random: np.random.Generator) -> IntArray:
    """For each of these rows a column, with a chance proportional to the row's weights."""
    columns = weights.shape[1]
    bounds = np.cumsum(weights, axis=1)
    bounds /= bounds[:, -1:]
    last = columns - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
    # One sorted list for all rows: row r's bounds lie between r and r + 1.
    flat = (bounds + np.arange(len(weights))[:, None]).ravel()
    found: IntArray = (
        np.searchsorted(flat, rows + random.random(len(rows)), side="right") - rows * columns
    )
    limited: IntArray = np.minimum(found, last[rows])  # r + 0.999... may round to r + 1
    return limited


EXHAUSTION_POLICIES: dict[
    str, Callable[[str, _ClassDraws, Labels, IntArray, np.random.Generator], tuple[str, ...]]
] = {
    "reuse": _reuse_samples,
    "renormalise": _redraw_exhausted,
    "error": _raise_if_exhausted,
}


def assign_iid(_rule: PartitionRule, data: PartitionInput) -> Assignment:
    return Assignment(
        data.random.permutation(len(data.labels)), equal_sizes(len(data.labels), data.clients)
    )


def assign_dirichlet_class(rule: PartitionRule, data: PartitionInput) -> Assignment:
    least = int(rule.options["min"])
    if least * data.clients > len(data.labels):
        raise InputError(
            f"partition rule {rule.text!r}: {data.clients} clients of at least {least} samples need more than the "
            f"{len(data.labels)} that exist, ask for fewer clients or a smaller min"
        )
    existing = np.unique(data.labels)
    bounds = np.cumsum(
        dirichlet_priors(rule.value, len(existing), data.clients, data.random), axis=1
    )
    samples = data.random.permutation(len(data.labels))
    owners = np.empty(len(samples), dtype=np.int64)
    for label, own_bounds in zip(existing, bounds, strict=True):
        places = np.flatnonzero(data.labels[samples] == label)
        # Every client gets its share rounded down or up. Without the random offset, rounding would favour the same
        # clients in every class.
        points = (np.arange(len(places)) + data.random.random()) / len(places)
        owners[places] = np.searchsorted(own_bounds[:-1], points, side="right")
    return _enforce_min_size(samples, owners, data, least)


def _enforce_min_size(
    samples: IntArray, owners: IntArray, data: PartitionInput, least: int
) -> Assignment:
    """Move samples from the largest clients to those with too few, and say so."""
    sizes = np.bincount(owners, minlength=data.clients)
    missing = np.maximum(least - sizes, 0)
    total = int(missing.sum())
    if not total:
        return group_by_client(samples, owners, data.clients)
    given = _removals_from_largest(sizes, total)
    order = np.argsort(owners, kind="stable")
    positions = np.empty_like(order)
    positions[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = (
        positions < given[owners]
    )  # the samples stand in random order, so the first ones are any ones
    owners[moved] = data.random.permutation(np.repeat(np.arange(data.clients), missing))
    raised = int((missing > 0).sum())
    note = f"{format_count(total, 'sample')} moved from the largest clients to {format_count(raised, 'client')} below {least}"
    return group_by_client(samples, owners, data.clients, (note,))


def _removals_from_largest(sizes: IntArray, total: int) -> IntArray:
    """How many each gives when the largest is lowered again and again, until `total` are taken."""
    falling = np.sort(sizes)[::-1]
    # What lowering the first k to the next one's size frees; the first k that frees enough are those that give.
    freed = np.cumsum(falling) - np.arange(1, len(falling) + 1) * np.append(falling[1:], 0)
    givers = int(np.argmax(freed >= total)) + 1
    level, short = divmod(int(falling[:givers].sum()) - total, givers)
    given = np.maximum(sizes - level, 0)
    given[np.flatnonzero(sizes > level)[:short]] -= (
        1  # some stay one above the level, so that the sum is right
    )
    return given


def assign_shards(rule: PartitionRule, data: PartitionInput) -> Assignment:
    count = data.clients * int(rule.value)
    if count > len(data.labels):
        raise InputError(
            f"partition rule {rule.text!r}: {data.clients} clients need {count} shards and there are "
            f"{len(data.labels)} samples, ask for fewer clients or fewer shards per client"
        )
    shuffled = data.random.permutation(len(data.labels))
    samples = shuffled[np.argsort(data.labels[shuffled], kind="stable")]
    ends = np.arange(1, count + 1) * len(samples) // count
    shards = np.searchsorted(ends, np.arange(len(samples)), side="right")
    owners = data.random.permutation(count) % data.clients
    return group_by_client(samples, owners[shards], data.clients)


def assign_quantity(rule: PartitionRule, data: PartitionInput) -> Assignment:
    # Beyond 1e6 one client has it all, and only overflows would change.
    logarithms = data.random.standard_normal(data.clients) * min(rule.value, 1e6)
    weights = np.exp(logarithms - logarithms.max())
    sizes = 1 + _apportion(len(data.labels) - data.clients, weights / weights.sum())
    return Assignment(data.random.permutation(len(data.labels)), sizes)


def _apportion(total: int, shares: FloatArray) -> IntArray:
    """Whole numbers with this sum, each its share rounded down or up; the largest fractions are rounded up."""
    exact = total * shares
    whole = np.floor(exact).astype(np.int64)
    short = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:short]] += 1
    return whole


def assign_longtail(rule: PartitionRule, data: PartitionInput) -> Assignment:
    existing, available = np.unique(data.labels, return_counts=True)
    wanted = _longtail_counts(available, rule.value)
    kept = np.sort(
        np.concatenate(
            [
                data.random.permutation(np.flatnonzero(data.labels == label))[:count]
                for label, count in zip(existing, wanted, strict=True)
            ]
        )
    )
    if len(kept) < data.clients:
        raise InputError(
            f"partition rule {rule.text!r}: it keeps {len(kept)} of {len(data.labels)} samples for {data.clients} "
            "clients, expected at least one each, ask for fewer clients or a smaller FACTOR"
        )
    tail = PartitionInput(data.labels[kept], data.clients, data.random)
    # Reuse would deal rare classes again and again until they are as frequent as any other.
    beta = rule.options["beta"]
    dealt = (
        assign_iid(rule, tail)
        if beta == "iid"
        else assign_by_dirichlet_priors(rule.text, tail, float(beta), "renormalise")
    )
    note = f"classes of {wanted.max()} down to {wanted.min()} samples"
    return Assignment(kept[dealt.samples], dealt.sizes, (note, *dealt.notes))


def _longtail_counts(available: IntArray, factor: float) -> IntArray:
    """Counts that fall by the factor from the most to the least frequent class, as large as the data allow."""
    ranks = np.empty(len(available))
    ranks[np.argsort(-available, kind="stable")] = np.arange(len(available))
    falls = ranks / max(len(available) - 1, 1) * math.log(factor)
    head = (np.log(available) + falls).min()
    counts: FloatArray = np.clip(np.rint(np.exp(head - falls)), 1, available)
    return counts.astype(np.int64)


def assign_natural(_rule: PartitionRule, data: PartitionInput) -> Assignment:
    assert data.groups is not None, "make_partition has checked that"
    _, owners = np.unique(data.groups, return_inverse=True)
    return group_by_client(np.arange(len(owners)), owners, data.clients)
