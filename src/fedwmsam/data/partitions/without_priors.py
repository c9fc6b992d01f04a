"""Rules without a prior for each client: they divide the samples themselves."""

import math

import numpy as np

from fedwmsam.data.partitions.dealing import Data, Dealt, Rule, by_owner, equal_sizes, many
from fedwmsam.data.partitions.partition import Indices, Numbers
from fedwmsam.data.partitions.with_priors import deal_dirichlet_priors, dirichlet_priors
from fedwmsam.errors import InputError


def deal_iid(_rule: Rule, data: Data) -> Dealt:
    return Dealt(data.random.permutation(len(data.labels)), equal_sizes(len(data.labels), data.clients))


def deal_dirichlet_class(rule: Rule, data: Data) -> Dealt:
    least = int(rule.options["min"])
    if least * data.clients > len(data.labels):
        raise InputError(
            f"partition rule {rule.text!r}: {data.clients} clients of at least {least} samples need more than the "
            f"{len(data.labels)} that exist, ask for fewer clients or a smaller min"
        )
    existing = np.unique(data.labels)
    bounds = np.cumsum(dirichlet_priors(rule.value, len(existing), data.clients, data.random), axis=1)
    samples = data.random.permutation(len(data.labels))
    owners = np.empty(len(samples), dtype=np.int64)
    for label, own_bounds in zip(existing, bounds, strict=True):
        places = np.flatnonzero(data.labels[samples] == label)
        # Every client gets its share rounded down or up. Without the random offset, rounding would favour the same
        # clients in every class.
        points = (np.arange(len(places)) + data.random.random()) / len(places)
        owners[places] = np.searchsorted(own_bounds[:-1], points, side="right")
    return _raise_smallest(samples, owners, data, least)


def _raise_smallest(samples: Indices, owners: Indices, data: Data, least: int) -> Dealt:
    """Move samples from the largest clients to those with too few, and say so."""
    sizes = np.bincount(owners, minlength=data.clients)
    missing = np.maximum(least - sizes, 0)
    total = int(missing.sum())
    if not total:
        return by_owner(samples, owners, data.clients)
    given = _taken_from_the_top(sizes, total)
    order = np.argsort(owners, kind="stable")
    positions = np.empty_like(order)
    positions[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = positions < given[owners]  # the samples stand in random order, so the first ones are any ones
    owners[moved] = data.random.permutation(np.repeat(np.arange(data.clients), missing))
    raised = int((missing > 0).sum())
    note = f"{many(total, 'sample')} moved from the largest clients to {many(raised, 'client')} below {least}"
    return by_owner(samples, owners, data.clients, (note,))


def _taken_from_the_top(sizes: Indices, total: int) -> Indices:
    """How many each gives when the largest is lowered again and again, until `total` are taken."""
    falling = np.sort(sizes)[::-1]
    # What lowering the first k to the next one's size frees; the first k that frees enough are those that give.
    freed = np.cumsum(falling) - np.arange(1, len(falling) + 1) * np.append(falling[1:], 0)
    givers = int(np.argmax(freed >= total)) + 1
    level, short = divmod(int(falling[:givers].sum()) - total, givers)
    given = np.maximum(sizes - level, 0)
    given[np.flatnonzero(sizes > level)[:short]] -= 1  # some stay one above the level, so that the sum is right
    return given


def deal_shards(rule: Rule, data: Data) -> Dealt:
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
    return by_owner(samples, owners[shards], data.clients)


def deal_quantity(rule: Rule, data: Data) -> Dealt:
    # Beyond 1e6 one client has it all, and only overflows would change.
    logarithms = data.random.standard_normal(data.clients) * min(rule.value, 1e6)
    weights = np.exp(logarithms - logarithms.max())
    sizes = 1 + _apportion(len(data.labels) - data.clients, weights / weights.sum())
    return Dealt(data.random.permutation(len(data.labels)), sizes)


def _apportion(total: int, shares: Numbers) -> Indices:
    """Whole numbers with this sum, each its share rounded down or up; the largest fractions are rounded up."""
    exact = total * shares
    whole = np.floor(exact).astype(np.int64)
    short = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:short]] += 1
    return whole


def deal_longtail(rule: Rule, data: Data) -> Dealt:
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
    tail = Data(data.labels[kept], data.clients, data.random)
    # Reuse would deal rare classes again and again until they are as frequent as any other.
    beta = rule.options["beta"]
    dealt = (
        deal_iid(rule, tail) if beta == "iid" else deal_dirichlet_priors(rule.text, tail, float(beta), "renormalise")
    )
    note = f"classes of {wanted.max()} down to {wanted.min()} samples"
    return Dealt(kept[dealt.samples], dealt.sizes, (note, *dealt.notes))


def _longtail_counts(available: Indices, factor: float) -> Indices:
    """Counts that fall by the factor from the most to the least frequent class, as large as the data allow."""
    ranks = np.empty(len(available))
    ranks[np.argsort(-available, kind="stable")] = np.arange(len(available))
    falls = ranks / max(len(available) - 1, 1) * math.log(factor)
    head = (np.log(available) + falls).min()
    counts: Numbers = np.clip(np.rint(np.exp(head - falls)), 1, available)
    return counts.astype(np.int64)


def deal_natural(_rule: Rule, data: Data) -> Dealt:
    assert data.groups is not None, "make_partition has checked that"
    _, owners = np.unique(data.groups, return_inverse=True)
    return by_owner(np.arange(len(owners)), owners, data.clients)
