"""Aggregation rules that a few hostile clients cannot steer.

`norm_bound` clips each uploaded vector to a norm before it is used for anything, so it goes with
every method. `median` and `trimmed` replace the mean of the contributions by a coordinate-wise
median or trimmed mean, each contributed vector by itself. They do not go with a method whose
server state must stay the mean of what the server keeps for each client.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedwmsam.errors import InputError
from fedwmsam.methods.base import Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.parsers import AggregationRule
from fedwmsam.training.local import LocalResult

MAX_HELD_BYTES = 4e9
"""Bytes of uploads or contributions that a round may hold at once."""
BLOCK_COORDINATES = 1 << 18
"""Coordinates that are sorted at once."""
JobT = TypeVar("JobT")


def check_rule(rule: AggregationRule, method: Method, w: Tensor, averaging: str) -> None:
    """Raise InputError if the rule does not go with the method or with the averaging."""
    if not rule.needs_all_uploads:
        return
    memory = method.memory_init(w)
    for server_vector, client_vector in method.means.items():
        if client_vector in memory:
            raise InputError(
                f"aggregation {rule.kind} does not go with {method.name}: its {server_vector} must "
                f"stay the mean of what is kept for each client ({client_vector}), which only the "
                "mean of the contributions gives. Use norm_bound."
            )
    if averaging != "uniform":
        raise InputError(f"aggregation {rule.kind} weighs clients alike; use averaging=uniform.")


def clip_uploads(
    rule: AggregationRule, updates: Iterable[tuple[JobT, LocalResult]], count: int
) -> Iterator[tuple[JobT, LocalResult]]:
    """Yield the updates, under `norm_bound` with each uploaded vector clipped to a norm.

    The norm is the rule's bound or, without one, the median over the round of that vector's norm.
    `count` is the number of clients in the round.
    """
    if rule.kind != "norm_bound":
        yield from updates
        return
    bounds: dict[str, float] = {}
    if rule.value is None:
        updates = collect_uploads(updates, count)
        bounds = median_norms([result.up for _, result in updates])
    for job, result in updates:
        up = {
            name: clip_to_norm(value, rule.value or bounds[name])
            for name, value in result.up.items()
        }
        yield job, replace(result, up=up)


def collect_uploads(
    updates: Iterable[tuple[JobT, LocalResult]], count: int
) -> list[tuple[JobT, LocalResult]]:
    """Return all updates of a round of `count` clients as a list.

    Raise InputError if that many would take more than MAX_HELD_BYTES.
    """
    collected = []
    for job, result in updates:
        check_memory(result.up, count, "aggregation norm_bound without a bound")
        collected.append((job, result))
    return collected


def median_norms(uploads: list[Vectors]) -> dict[str, float]:
    """Return, for each uploaded vector, the median of its norms over the uploads."""
    medians = {}
    for name in uploads[0] if uploads else {}:
        norms = [overflow_safe_norm(up[name]) for up in uploads]
        medians[name] = statistics.median(norms)
    return medians


def overflow_safe_norm(value: Tensor) -> float:
    """Return the L2 norm of a vector, also where the sum of the squares overflows."""
    # In float64 the square of no 32-bit number overflows; otherwise measure in the largest entry.
    length = float(torch.linalg.vector_norm(value.double()))
    if length < math.inf:
        return length
    largest = float(value.abs().max())
    return largest * overflow_safe_norm(value / largest)


def clip_to_norm(value: Tensor, bound: float) -> Tensor:
    """Return the vector, scaled down to norm `bound` if it is longer."""
    length = overflow_safe_norm(value)
    return value if length <= bound else value * (bound / length)


class Aggregator(Protocol):
    """Combines the contributions of a round, which are added one by one."""

    def add(self, contribution: Vectors, weight: float) -> None:
        """Add a client's contribution with its weight."""

    def value(self) -> Vectors:
        """Return the combination of all contributions added so far."""


def make_aggregator(rule: AggregationRule, count: int) -> Aggregator:
    """Return the aggregator of the rule for a round of `count` clients."""
    return CoordinateTrimmedMean(rule, count) if rule.needs_all_uploads else WeightedMean()


class WeightedMean:
    """The weighted mean of the contributions, summed in the order they come; holds only their sum.

    Of a counter, such as BatchNorm's number of batches, the largest value is taken.
    """

    def __init__(self) -> None:
        self.total: Vectors = {}
        self.weight = 0.0

    def add(self, contribution: Vectors, weight: float) -> None:
        self.weight += weight
        for name, value in contribution.items():
            if name not in self.total:
                self.total[name] = value * weight if value.is_floating_point() else value
            elif value.is_floating_point():
                self.total[name].add_(value, alpha=weight)
            else:
                self.total[name] = torch.maximum(self.total[name], value)

    def value(self) -> Vectors:
        return {k: v / self.weight if v.is_floating_point() else v for k, v in self.total.items()}


class CoordinateTrimmedMean:
    """The median or trimmed mean of the contributions in every coordinate; holds all of them.

    Of a counter, such as BatchNorm's number of batches, the largest value is taken.
    """

    def __init__(self, rule: AggregationRule, count: int) -> None:
        self.rule = rule
        self.count = count
        self.contributions: list[Vectors] = []

    def add(self, contribution: Vectors, weight: float) -> None:
        assert weight == 1, "clients weigh alike"
        check_memory(contribution, self.count, f"aggregation {self.rule.kind}")
        self.contributions.append(contribution)

    def value(self) -> Vectors:
        combined = {}
        for name in self.contributions[0]:
            values = [contribution[name] for contribution in self.contributions]
            combined[name] = self.combine(values)
        return combined

    def combine(self, values: list[Tensor]) -> Tensor:
        """Return the trimmed mean of the clients' values of one vector, block by block."""
        if not values[0].is_floating_point():
            return torch.stack(values).amax(dim=0)
        result = torch.empty_like(values[0]).reshape(-1)
        flat = [value.reshape(-1) for value in values]
        cut = trimmed_count(self.rule, len(values))
        for start in range(0, result.numel(), BLOCK_COORDINATES):
            block = torch.stack([value[start : start + BLOCK_COORDINATES] for value in flat])
            block = block.sort(dim=0).values
            result[start : start + BLOCK_COORDINATES] = block[cut : len(values) - cut].mean(dim=0)
        return result.reshape(values[0].shape)


def trimmed_count(rule: AggregationRule, count: int) -> int:
    """Return how many of `count` values are trimmed at either end.

    For the median these are all but the middle one or two.
    """
    most = (count - 1) // 2
    if rule.kind == "median":
        return most
    share = rule.value or 0.0
    return min(most, math.ceil(share * count - 1e-9))  # 0.1 · 30 is 3


def check_memory(vectors: Vectors, count: int, rule_name: str) -> None:
    """Raise InputError if `count` bundles of this size take more than MAX_HELD_BYTES."""
    size = count * sum(value.numel() * value.element_size() for value in vectors.values())
    if size > MAX_HELD_BYTES:
        raise InputError(
            f"{rule_name} holds what all {count} clients of a round send, {size / 1e9:.1f} GB here "
            f"and {MAX_HELD_BYTES / 1e9:g} GB at most; use fewer clients a round, a smaller model, "
            "or "
            "norm_bound:TAU, which holds nothing."
        )
