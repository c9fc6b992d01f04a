"""Which training samples each client holds.

The paper's rules, `dirichlet` and `pathological`, are those of its released code: equal sizes, class proportions drawn
per client, and samples of a class taken in shuffled order without replacement until the class is used up, then from the
start again. So samples of popular classes appear several times and some of unpopular classes never; the total stays the
same. All other rules, and `dirichlet` with `exhausted=renormalise`, never deal a sample twice. docs/partitions.md
defines every rule.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedwmsam.errors import InputError
from fedwmsam.streams import generator
from fedwmsam.wording import unknown

Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[np.integer]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)  # eq would compare arrays, whose == is not a truth value
class Partition:
    rule: str
    clients: tuple[Indices, ...]  # for each client the indices of its samples
    counts: Indices  # clients x classes
    reused: int  # how many of all drawn samples had been drawn before
    unused: int = 0  # how many samples no client holds
    notes: tuple[str, ...] = ()  # what the rule had to do beyond its definition, a phrase each

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
        facts = [
            f"{len(sizes)} clients of {sizes.min()}/{np.median(sizes):g}/{sizes.max()} samples (min/median/max)",
            f"{held:.1f} classes per client",
            f"{self.reused} samples reused",
            f"{self.unused} unused",
            *self.notes,
            f"hash {self.hash}",
        ]
        return f"{self.rule}: {', '.join(facts)}"


@dataclass(frozen=True)
class Heterogeneity:
    """How much the clients differ from all of them together, and in size."""

    mean_distance: float  # total variation between a client's class distribution and the overall one, over clients
    largest_distance: float
    effective_classes: float  # exp(entropy) of a client's class distribution, mean over clients
    size_variation: float  # standard deviation of the sizes over their mean


def heterogeneity(partition: Partition) -> Heterogeneity:
    counts = partition.counts.astype(np.float64)
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    distances = np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2
    entropies = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1)  # 0 log 0 counts as 0
    return Heterogeneity(
        mean_distance=float(distances.mean()),
        largest_distance=float(distances.max()),
        effective_classes=float(np.exp(entropies).mean()),
        size_variation=float(sizes.std() / sizes.mean()),
    )


@dataclass(frozen=True)
class Rule:
    """What the text of a rule says, checked as far as that is possible without the data."""

    text: str
    name: str
    value: float  # 0 where the rule takes none
    options: Mapping[str, str]  # all options of the rule, given or by default


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
    data = _Data(labels, clients, generator(seed, "partition"), groups)
    dealt = _KINDS[parsed.name].deal(parsed, data)
    return _partition(rule, dealt, labels, classes)


def parse_rule(rule: str) -> Rule:
    head, *parts = (part.strip() for part in rule.split(","))
    name, colon, text = head.partition(":")
    if name not in _KINDS:
        raise InputError(unknown("partition rule", name, _KINDS))
    kind = _KINDS[name]
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


def _parse_options(rule: str, kind: "_Kind", parts: list[str]) -> dict[str, str]:
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


def _is_positive(text: str) -> bool:
    return 0 < _number(text) < math.inf


def _is_whole(text: str) -> bool:
    return text.isdecimal() and 1 <= _number(text) < 1e9


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


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


@dataclass(frozen=True, eq=False)
class _Data:
    labels: Labels
    clients: int
    random: np.random.Generator
    groups: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class _Dealt:
    samples: Indices  # those of client 0, of client 1, and so on
    sizes: Indices
    notes: tuple[str, ...] = ()


def _partition(rule: str, dealt: _Dealt, labels: Labels, classes: int) -> Partition:
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


def _equal_sizes(samples: int, clients: int) -> Indices:
    # The released code gives the whole remainder to client 0, which makes one client larger by up to N - 1 samples (and
    # its ragged arrays fail to stack); one more for each of the first n mod N clients keeps the sizes balanced.
    sizes = np.full(clients, samples // clients)
    sizes[: samples % clients] += 1
    return sizes


def _by_owner(samples: Indices, owners: Indices, clients: int, notes: tuple[str, ...] = ()) -> _Dealt:
    return _Dealt(samples[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=clients), notes)


def _deal_iid(_rule: Rule, data: _Data) -> _Dealt:
    return _Dealt(data.random.permutation(len(data.labels)), _equal_sizes(len(data.labels), data.clients))


# Rules with a prior over the classes for each client


def _deal_dirichlet(rule: Rule, data: _Data) -> _Dealt:
    return _deal_dirichlet_priors(rule.text, data, rule.value, rule.options["exhausted"])


def _deal_dirichlet_priors(text: str, data: _Data, beta: float, exhausted: str) -> _Dealt:
    existing = np.unique(data.labels)  # a class without a sample can never be drawn
    priors = _dirichlet_priors(beta, data.clients, len(existing), data.random)
    return _deal_priors(text, data, existing, priors, exhausted)


def _dirichlet_priors(beta: float, rows: int, columns: int, random: np.random.Generator) -> Numbers:
    # The smallest betas underflow to 0/0 or to a lopsided choice; their limit is one column only, all equally likely,
    # and at 1e-9 the chance of drawing another one is already beyond what any data set could show.
    if beta < 1e-9:
        return np.eye(columns)[random.integers(columns, size=rows)]
    # The largest overflow, long after every prior has become uniform to the last digit.
    return random.dirichlet(np.full(columns, min(beta, 1e100)), size=rows)


def _deal_pathological(rule: Rule, data: _Data) -> _Dealt:
    existing = np.unique(data.labels)
    if rule.value > len(existing):
        raise InputError(
            f"partition rule {rule.text!r}: the data hold {len(existing)} classes, "
            f"expected GAMMA from 1 to {len(existing)}, ask for fewer classes per client"
        )
    chosen = np.arange(len(existing)) < rule.value
    priors = data.random.permuted(np.tile(chosen / rule.value, (data.clients, 1)), axis=1)
    return _deal_priors(rule.text, data, existing, priors, "reuse")


def _deal_priors(text: str, data: _Data, existing: Labels, priors: Numbers, exhausted: str) -> _Dealt:
    """Every place is filled with a class drawn from its client's prior, and with the next sample of that class in the
    order in which the places have their turn.

    With `reuse`, a class's list starts again when it is used up and the sample is taken; the released code draws the
    class anew at that point, which changes one draw per pass over a class.
    """
    random, sizes = data.random, _equal_sizes(len(data.labels), data.clients)
    # Drawing the labels themselves, not their positions, is what keeps published partitions as they are.
    wanted = np.concatenate([random.choice(existing, size, p=prior) for size, prior in zip(sizes, priors, strict=True)])
    turns = _turns(sizes, random)
    members = [random.permutation(np.flatnonzero(data.labels == label)) for label in existing]
    supply = np.array([len(own) for own in members])
    drawn = _Drawn(
        classes=np.searchsorted(existing, wanted[turns]),
        owners=np.repeat(np.arange(len(sizes)), sizes)[turns],
        priors=priors,
    )
    notes = _EXHAUSTED[exhausted](text, drawn, existing, supply, random)
    samples = np.empty(len(turns), dtype=np.int64)
    for number, own in enumerate(members):
        places = turns[drawn.classes == number]
        samples[places] = np.resize(own, len(places))  # np.resize repeats the list as often as needed
    return _Dealt(samples, sizes, notes)


def _turns(sizes: Indices, random: np.random.Generator) -> Indices:
    """All places, in the order in which the released code fills them: it picks a client at random until all are full.

    That order matters, as it spreads a class's second pass over all clients. Picking uniformly and skipping full
    clients is a race of independent clocks with exponential gaps, which needs no loop over samples.
    """
    longest = int(sizes.max())
    times = random.exponential(size=(len(sizes), longest)).cumsum(axis=1)
    return np.argsort(times[np.arange(longest) < sizes[:, None]], kind="stable")


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The class drawn at each turn (as a column of the priors) and whose turn it is."""

    classes: Indices
    owners: Indices
    priors: Numbers

    def first_exhausted(self, supply: Indices) -> tuple[int, Indices] | None:
        """The class that is asked for in vain first, and all turns that ask for it in vain."""
        drawn = np.bincount(self.classes, minlength=len(supply))
        short = np.flatnonzero(drawn > supply)
        if not len(short):
            return None
        order = np.argsort(self.classes, kind="stable")  # the turns of class 0, of class 1, and so on
        begins = np.cumsum(drawn) - drawn
        first = short[np.argmin(order[begins[short] + supply[short]])]
        return int(first), order[begins[first] + supply[first] : begins[first] + drawn[first]]


def _reuse(
    _text: str, drawn: _Drawn, existing: Labels, supply: Indices, _random: np.random.Generator
) -> tuple[str, ...]:
    short = int((np.bincount(drawn.classes, minlength=len(existing)) > supply).sum())
    return (f"{short} of {len(existing)} classes ran out and were dealt again",) if short else ()


def _refuse(text: str, drawn: _Drawn, existing: Labels, supply: Indices, _random: np.random.Generator) -> tuple[()]:
    found = drawn.first_exhausted(supply)
    if found is not None:
        number, turns = found
        raise InputError(
            f"partition rule {text!r}: class {existing[number]} ran out at client {drawn.owners[turns[0]]} after its "
            f"{_many(supply[number], 'sample')}, expected enough of every class, "
            "choose exhausted=reuse, exhausted=renormalise or a larger BETA"
        )
    return ()


def _renormalise(
    _text: str, drawn: _Drawn, existing: Labels, supply: Indices, random: np.random.Generator
) -> tuple[str, ...]:
    """Redraw every turn that finds its class used up, from what its client's prior says of the others.

    Used-up classes are taken in the order in which they end, and a redrawn turn comes after that end: so each turn ends
    up with a draw from its client's prior over the classes left at that time. There are as many samples as turns, so
    each pass closes one class for good and the last one is never closed.
    """
    available = np.ones(len(supply), dtype=np.bool_)
    redrawn: list[Indices] = []
    outside: list[Indices] = []
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
    notes = [f"{_many(_different(redrawn), 'sample')} redrawn as their class had run out"]
    if _different(outside):
        notes.append(f"{_different(outside)} of them outside their client's prior")
    return tuple(notes)


def _different(lists: list[Indices]) -> int:
    return len(np.unique(np.concatenate(lists)))


def _draw_columns(weights: Numbers, rows: Indices, random: np.random.Generator) -> Indices:
    """For each of these rows a column, with a chance proportional to the row's weights."""
    columns = weights.shape[1]
    bounds = np.cumsum(weights, axis=1)
    bounds /= bounds[:, -1:]
    last = columns - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
    # One sorted list for all rows: row r's bounds lie between r and r + 1.
    flat = (bounds + np.arange(len(weights))[:, None]).ravel()
    found: Indices = np.searchsorted(flat, rows + random.random(len(rows)), side="right") - rows * columns
    limited: Indices = np.minimum(found, last[rows])  # r + 0.999... may round to r + 1
    return limited


_EXHAUSTED: dict[str, Callable[[str, _Drawn, Labels, Indices, np.random.Generator], tuple[str, ...]]] = {
    "reuse": _reuse,
    "renormalise": _renormalise,
    "error": _refuse,
}


# Rules without a prior for each client


def _deal_dirichlet_class(rule: Rule, data: _Data) -> _Dealt:
    least = int(rule.options["min"])
    if least * data.clients > len(data.labels):
        raise InputError(
            f"partition rule {rule.text!r}: {data.clients} clients of at least {least} samples need more than the "
            f"{len(data.labels)} that exist, ask for fewer clients or a smaller min"
        )
    existing = np.unique(data.labels)
    bounds = np.cumsum(_dirichlet_priors(rule.value, len(existing), data.clients, data.random), axis=1)
    samples = data.random.permutation(len(data.labels))
    owners = np.empty(len(samples), dtype=np.int64)
    for label, own_bounds in zip(existing, bounds, strict=True):
        places = np.flatnonzero(data.labels[samples] == label)
        # Every client gets its share rounded down or up. Without the random offset, rounding would favour the same
        # clients in every class.
        points = (np.arange(len(places)) + data.random.random()) / len(places)
        owners[places] = np.searchsorted(own_bounds[:-1], points, side="right")
    return _raise_smallest(samples, owners, data, least)


def _raise_smallest(samples: Indices, owners: Indices, data: _Data, least: int) -> _Dealt:
    """Move samples from the largest clients to those with too few, and say so."""
    sizes = np.bincount(owners, minlength=data.clients)
    missing = np.maximum(least - sizes, 0)
    total = int(missing.sum())
    if not total:
        return _by_owner(samples, owners, data.clients)
    given = _taken_from_the_top(sizes, total)
    order = np.argsort(owners, kind="stable")
    positions = np.empty_like(order)
    positions[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = positions < given[owners]  # the samples stand in random order, so the first ones are any ones
    owners[moved] = data.random.permutation(np.repeat(np.arange(data.clients), missing))
    raised = int((missing > 0).sum())
    note = f"{_many(total, 'sample')} moved from the largest clients to {_many(raised, 'client')} below {least}"
    return _by_owner(samples, owners, data.clients, (note,))


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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


def _deal_shards(rule: Rule, data: _Data) -> _Dealt:
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
    return _by_owner(samples, owners[shards], data.clients)


def _deal_quantity(rule: Rule, data: _Data) -> _Dealt:
    # Beyond 1e6 one client has it all, and only overflows would change.
    logarithms = data.random.standard_normal(data.clients) * min(rule.value, 1e6)
    weights = np.exp(logarithms - logarithms.max())
    sizes = 1 + _apportion(len(data.labels) - data.clients, weights / weights.sum())
    return _Dealt(data.random.permutation(len(data.labels)), sizes)


def _apportion(total: int, shares: Numbers) -> Indices:
    """Whole numbers with this sum, each its share rounded down or up; the largest fractions are rounded up."""
    exact = total * shares
    whole = np.floor(exact).astype(np.int64)
    short = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:short]] += 1
    return whole


def _deal_longtail(rule: Rule, data: _Data) -> _Dealt:
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
    tail = _Data(data.labels[kept], data.clients, data.random)
    # Reuse would deal rare classes again and again until they are as frequent as any other.
    beta = rule.options["beta"]
    dealt = (
        _deal_iid(rule, tail) if beta == "iid" else _deal_dirichlet_priors(rule.text, tail, float(beta), "renormalise")
    )
    note = f"classes of {wanted.max()} down to {wanted.min()} samples"
    return _Dealt(kept[dealt.samples], dealt.sizes, (note, *dealt.notes))


def _longtail_counts(available: Indices, factor: float) -> Indices:
    """Counts that fall by the factor from the most to the least frequent class, as large as the data allow."""
    ranks = np.empty(len(available))
    ranks[np.argsort(-available, kind="stable")] = np.arange(len(available))
    falls = ranks / max(len(available) - 1, 1) * math.log(factor)
    head = (np.log(available) + falls).min()
    counts: Numbers = np.clip(np.rint(np.exp(head - falls)), 1, available)
    return counts.astype(np.int64)


def _deal_natural(_rule: Rule, data: _Data) -> _Dealt:
    assert data.groups is not None, "make_partition has checked that"
    _, owners = np.unique(data.groups, return_inverse=True)
    return _by_owner(np.arange(len(owners)), owners, data.clients)


# What can be written


@dataclass(frozen=True)
class _Field:
    name: str
    expected: str
    example: str  # of an option: its default
    accepts: Callable[[str], bool]
    syntax: str = ""


@dataclass(frozen=True)
class _Kind:
    deal: Callable[[Rule, _Data], _Dealt]
    value: _Field | None = None
    options: tuple[_Field, ...] = field(default=())


_BETA = _Field("BETA", "a number above 0", "0.1", _is_positive)
_KINDS: dict[str, _Kind] = {
    "iid": _Kind(_deal_iid),
    "dirichlet": _Kind(
        _deal_dirichlet,
        _BETA,
        (
            _Field(
                "exhausted", f"one of {', '.join(_EXHAUSTED)}", "reuse", _EXHAUSTED.__contains__, "|".join(_EXHAUSTED)
            ),
        ),
    ),
    "dirichlet-class": _Kind(
        _deal_dirichlet_class,
        _BETA,
        (_Field("min", "a whole number of samples from 1 on", "1", _is_whole, "SAMPLES"),),
    ),
    "pathological": _Kind(_deal_pathological, _Field("GAMMA", "a whole number of classes from 1 on", "3", _is_whole)),
    "shards": _Kind(_deal_shards, _Field("PER_CLIENT", "a whole number of shards from 1 on", "2", _is_whole)),
    "quantity": _Kind(
        _deal_quantity,
        _Field("SIGMA", "a number from 0 on", "0.5", lambda text: 0 <= _number(text) < math.inf),
    ),
    "longtail": _Kind(
        _deal_longtail,
        _Field("FACTOR", "a number from 1 on", "100", lambda text: 1 <= _number(text) < math.inf),
        (
            _Field(
                "beta", "a number above 0 or iid", "0.1", lambda text: text == "iid" or _is_positive(text), "BETA|iid"
            ),
        ),
    ),
    "natural": _Kind(_deal_natural),
}


def _syntax(name: str, kind: _Kind) -> str:
    value = f":{kind.value.name}" if kind.value else ""
    return name + value + "".join(f"[,{option.name}={option.syntax}]" for option in kind.options)


SYNTAX: dict[str, str] = {name: _syntax(name, kind) for name, kind in _KINDS.items()}  # how each rule is written
