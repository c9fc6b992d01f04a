"""How much each client counts in the means of a run on Flower.

The server has no data to count: a node says how many samples it has, and could say anything. So
with `averaging = "size"` the operator chooses whose numbers count.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedwmsam.errors import InputError
from fedwmsam.flower.replies import Evaluation
from fedwmsam.flower.wire import LARGEST_COUNT
from fedwmsam.settings.options import truncated_repr

REPORTED = "reported"
"""The value of `sizes` with which the nodes' own numbers count as they are."""


@dataclass(frozen=True)
class SizeRule:
    """The weights of clients in the means of updates and of evaluations."""

    averaging: str = "uniform"
    """With "uniform" all clients weigh the same, otherwise one of the next two may be set."""
    client_sizes: tuple[int, ...] | None = None
    """The operator's number of samples of each client."""
    largest_share: float | None = None
    """The largest share of a mean that one client may have; with so few clients that each would
    have more, all weigh the same."""

    @property
    def believes_nodes(self) -> bool:
        """Return whether the sizes that nodes report count as they are."""
        is_limited = self.client_sizes is not None or self.largest_share is not None
        return self.averaging == "size" and not is_limited

    def weigh(self, reported: Mapping[int, int]) -> dict[int, int]:
        """Return the weights of these clients, given the sizes that their nodes report."""
        if self.averaging != "size":
            return dict.fromkeys(reported, 1)
        if self.client_sizes is not None:
            return {client: self.client_sizes[client] for client in reported}
        if self.largest_share is None:
            return dict(reported)
        sizes = list(reported.values())
        if len(sizes) * self.largest_share <= 1:
            return dict.fromkeys(reported, statistics.median_low(sizes or [1]))
        largest = largest_weight(sizes, self.largest_share)
        return {client: min(size, largest) for client, size in reported.items()}


def largest_weight(sizes: Sequence[int], share: float) -> int:
    """Return the largest T with T ≤ share · Σ min(size, T): a size above T is to count as T.

    There are more sizes than 1 / share; otherwise T would be 0.
    """
    remaining = sum(sizes)
    for above, size in enumerate(sorted(sizes, reverse=True)):
        # With the `above` largest sizes cut to T, T = share · (above · T + remaining).
        limit = remaining * share / (1 - above * share)
        if size <= limit:
            return int(limit)
        remaining -= size
    return min(sizes)


def mean_evaluation(
    evaluations: Mapping[int, Evaluation], weights: Mapping[int, int]
) -> dict[str, float]:
    """Return the weighted means of the clients' metrics, with names that begin with "clients_".

    Each is the mean over the clients that report it. A metric that fewer than half of the clients
    report has none: one node cannot add columns.
    """
    means = {}
    names: dict[str, float] = {}
    for evaluation in evaluations.values():
        names |= evaluation.metrics
    for name in names:
        reporting = [client for client in evaluations if name in evaluations[client].metrics]
        if 2 * len(reporting) < len(evaluations):
            continue
        weighted = (evaluations[client].metrics[name] * weights[client] for client in reporting)
        total = sum(weights[client] for client in reporting)
        means[f"clients_{name}"] = math.fsum(weighted) / total
    return means


def make_size_rule(
    clients: int, averaging: str, client_sizes: object, largest_share: object, sizes: object
) -> SizeRule:
    """Return the rule that these arguments of FlowerStrategy ask for.

    Raise InputError if one of them is wrong, if they are not needed, or if averaging by size is
    asked for without exactly one of them.
    """
    named = {"client_sizes": client_sizes, "largest_share": largest_share, "sizes": sizes}
    given = [name for name, value in named.items() if value is not None]
    if averaging != "size":
        if given:
            raise InputError(f"{given[0]} has no effect without averaging='size'; leave it out.")
        return SizeRule()
    if len(given) != 1:
        raise InputError(
            f"averaging='size' on Flower needs one of client_sizes (your numbers of samples), "
            f"largest_share (of one client in a mean) and sizes='{REPORTED}' (believe the nodes); "
            f"given: {', '.join(given) or 'none'}."
        )
    if sizes is not None and sizes != REPORTED:
        raise InputError(f"sizes must be '{REPORTED}', not {truncated_repr(sizes)}.")
    share = None if largest_share is None else parse_share(largest_share)
    counts = None if client_sizes is None else parse_client_sizes(client_sizes, clients)
    return SizeRule(averaging, counts, share)


def parse_share(value: object) -> float:
    """Return the largest share of a client; raise InputError unless it is above 0 and at most 1."""
    share = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0 < share <= 1:  # NaN is not
        raise InputError(
            f"largest_share must be a share above 0 and at most 1, not {truncated_repr(value)}."
        )
    return float(share)


def parse_client_sizes(value: object, clients: int) -> tuple[int, ...]:
    """Return the clients' numbers of samples from a list, or from a text with commas between them.

    Raise InputError unless there is a positive number for each client.
    """
    parts = value.split(",") if isinstance(value, str) else value
    try:
        counts = tuple(int(part) for part in parts)  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"client_sizes must be numbers of samples, such as 120,80,95, "
            f"not {truncated_repr(value)}."
        ) from None
    if len(counts) != clients:
        raise InputError(f"client_sizes names {len(counts)} clients, but there are {clients}.")
    for client, count in enumerate(counts):
        if not 1 <= count <= LARGEST_COUNT:
            raise InputError(
                f"client_sizes gives client {client} {truncated_repr(count)} samples, "
                f"not 1 to {LARGEST_COUNT}."
            )
    return counts
