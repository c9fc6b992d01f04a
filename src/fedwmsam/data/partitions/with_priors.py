"""The paper's rules: a prior over the classes for each client, from which the class of each of its samples is drawn."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedwmsam.data.partitions.dealing import Data, Dealt, Rule, equal_sizes, many
from fedwmsam.data.partitions.partition import Indices, Labels, Numbers
from fedwmsam.errors import InputError


def deal_dirichlet(rule: Rule, data: Data) -> Dealt:
    return deal_dirichlet_priors(rule.text, data, rule.value, rule.options["exhausted"])


def deal_dirichlet_priors(text: str, data: Data, beta: float, exhausted: str) -> Dealt:
    existing = np.unique(data.labels)  # a class without a sample can never be drawn
    priors = dirichlet_priors(beta, data.clients, len(existing), data.random)
    return _deal_priors(text, data, existing, priors, exhausted)


def dirichlet_priors(beta: float, rows: int, columns: int, random: np.random.Generator) -> Numbers:
    # The smallest betas underflow to 0/0 or to a lopsided choice; their limit is one column only, all equally likely,
    # and at 1e-9 the chance of drawing another one is already beyond what any data set could show.
    if beta < 1e-9:
        return np.eye(columns)[random.integers(columns, size=rows)]
    # The largest overflow, long after every prior has become uniform to the last digit.
    return random.dirichlet(np.full(columns, min(beta, 1e100)), size=rows)


def deal_pathological(rule: Rule, data: Data) -> Dealt:
    existing = np.unique(data.labels)
    if rule.value > len(existing):
        raise InputError(
            f"partition rule {rule.text!r}: the data hold {len(existing)} classes, "
            f"expected GAMMA from 1 to {len(existing)}, ask for fewer classes per client"
        )
    chosen = np.arange(len(existing)) < rule.value
    priors = data.random.permuted(np.tile(chosen / rule.value, (data.clients, 1)), axis=1)
    return _deal_priors(rule.text, data, existing, priors, "reuse")


def _deal_priors(text: str, data: Data, existing: Labels, priors: Numbers, exhausted: str) -> Dealt:
    """Every place is filled with a class drawn from its client's prior, and with the next sample of that class in the
    order in which the places have their turn.

    With `reuse`, a class's list starts again when it is used up and the sample is taken; the released code draws the
    class anew at that point, which changes one draw per pass over a class.
    """
    random, sizes = data.random, equal_sizes(len(data.labels), data.clients)
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
    notes = EXHAUSTED[exhausted](text, drawn, existing, supply, random)
    samples = np.empty(len(turns), dtype=np.int64)
    for number, own in enumerate(members):
        places = turns[drawn.classes == number]
        samples[places] = np.resize(own, len(places))  # np.resize repeats the list as often as needed
    return Dealt(samples, sizes, notes)


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
            f"{many(supply[number], 'sample')}, expected enough of every class, "
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
    notes = [f"{many(_different(redrawn), 'sample')} redrawn as their class had run out"]
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


EXHAUSTED: dict[str, Callable[[str, _Drawn, Labels, Indices, np.random.Generator], tuple[str, ...]]] = {
    "reuse": _reuse,
    "renormalise": _renormalise,
    "error": _refuse,
}
