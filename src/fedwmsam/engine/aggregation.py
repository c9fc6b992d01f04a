"""Aggregation that a few hostile clients cannot steer.

`norm_bound` shortens each uploaded vector before it is used for anything, so it goes with every method. `median` and
`trimmed` replace the mean of the contributions, coordinate by coordinate, each contributed vector by itself; a method
whose server state must stay the mean of what it keeps per client cannot have them.
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

LIMIT = 4e9
"""Bytes of uploads or contributions that a round may hold at a time."""
BLOCK = 1 << 18
"""Coordinates that are sorted at a time."""
JobT = TypeVar("JobT")


def check_rule(rule: AggregationRule, method: Method, w: Tensor, averaging: str) -> None:
    if not rule.holds:
        return
    memory = method.memory_init(w)
    for mean, kept in method.means.items():
        if kept in memory:
            raise InputError(
                f"aggregation {rule.kind} does not go with {method.name}: its {mean} must stay the mean of what is "
                f"kept for each client ({kept}), which only the mean of the contributions gives. Use norm_bound."
            )
    if averaging != "uniform":
        raise InputError(f"aggregation {rule.kind} weighs clients alike; use averaging=uniform.")


def clip_uploads(
    rule: AggregationRule, answers: Iterable[tuple[JobT, LocalResult]], count: int
) -> Iterator[tuple[JobT, LocalResult]]:
    """The answers with each uploaded vector shortened to the bound, or to the median of the round's norms of it."""
    if rule.kind != "norm_bound":
        yield from answers
        return
    if rule.value is None:
        answers = collect_uploads(answers, count)
    bounds = {} if rule.value is not None else median_norms([result.up for _, result in answers])
    for job, result in answers:
        up = {
            name: clip_to_norm(value, rule.value or bounds[name])
            for name, value in result.up.items()
        }
        yield job, replace(result, up=up)


def collect_uploads(
    answers: Iterable[tuple[JobT, LocalResult]], count: int
) -> list[tuple[JobT, LocalResult]]:
    kept = []
    for job, result in answers:
        check_room(result.up, count, "aggregation norm_bound without a bound")
        kept.append((job, result))
    return kept


def median_norms(uploads: list[Vectors]) -> dict[str, float]:
    names = uploads[0] if uploads else {}
    return {
        name: statistics.median(overflow_safe_norm(up[name]) for up in uploads) for name in names
    }


def overflow_safe_norm(value: Tensor) -> float:
    """In float64, where the square of no 32-bit number overflows; else measured in the largest entry."""
    length = float(torch.linalg.vector_norm(value.double()))
    if length < math.inf:
        return length
    largest = float(value.abs().max())
    return largest * overflow_safe_norm(value / largest)


def clip_to_norm(value: Tensor, bound: float) -> Tensor:
    length = overflow_safe_norm(value)
    return value if length <= bound else value * (bound / length)


class Aggregator(Protocol):
    """Takes the contributions of a round as they come, and gives what stands for all of them."""

    def add(self, contribution: Vectors, weight: float) -> None: ...

    def value(self) -> Vectors: ...


def make_aggregator(rule: AggregationRule, count: int) -> Aggregator:
    """For a round of so many clients."""
    return CoordinateTrimmedMean(rule, count) if rule.holds else WeightedMean()


class WeightedMean:
    """A mean over contributions, added in the order they come; never more than one is held."""

    def __init__(self) -> None:
        self.total: Vectors = {}
        self.weight = 0.0

    def add(self, contribution: Vectors, weight: float) -> None:
        self.weight += weight
        for name, value in contribution.items():
            if (
                not value.is_floating_point()
            ):  # counters, such as BatchNorm's number of batches: the largest counts
                self.total[name] = (
                    torch.maximum(self.total[name], value) if name in self.total else value
                )
            elif name in self.total:
                self.total[name].add_(value, alpha=weight)
            else:
                self.total[name] = value * weight

    def value(self) -> Vectors:
        return {k: v / self.weight if v.is_floating_point() else v for k, v in self.total.items()}


class CoordinateTrimmedMean:
    """All contributions of a round at once; counters, such as BatchNorm's, are not sorted: the largest counts."""

    def __init__(self, rule: AggregationRule, count: int) -> None:
        self.rule, self.count = rule, count
        self.contributions: list[Vectors] = []

    def add(self, contribution: Vectors, weight: float) -> None:
        assert weight == 1, "clients weigh alike"
        check_room(contribution, self.count, f"aggregation {self.rule.kind}")
        self.contributions.append(contribution)

    def value(self) -> Vectors:
        return {
            name: self.combined([c[name] for c in self.contributions])
            for name in self.contributions[0]
        }

    def combined(self, values: list[Tensor]) -> Tensor:
        if not values[0].is_floating_point():
            return torch.stack(values).amax(dim=0)
        result = torch.empty_like(values[0]).reshape(-1)
        flat = [value.reshape(-1) for value in values]
        for start in range(0, result.numel(), BLOCK):
            stack = torch.stack([value[start : start + BLOCK] for value in flat]).sort(dim=0).values
            cut = trimmed_count(self.rule, len(values))
            result[start : start + BLOCK] = stack[cut : len(values) - cut].mean(dim=0)
        return result.reshape(values[0].shape)


def trimmed_count(rule: AggregationRule, count: int) -> int:
    """How many values go at either end: all but the middle one or two for the median."""
    most = (count - 1) // 2
    return (
        most if rule.kind == "median" else min(most, math.ceil((rule.value or 0.0) * count - 1e-9))
    )  # 0.1 · 30 is 3


def check_room(vectors: Vectors, count: int, whose: str) -> None:
    size = count * sum(value.numel() * value.element_size() for value in vectors.values())
    if size > LIMIT:
        raise InputError(
            f"{whose} holds what all {count} clients of a round send, {size / 1e9:.1f} GB here and {LIMIT / 1e9:g} GB "
            "at most; use fewer clients a round, a smaller model, or norm_bound:TAU, which holds nothing."
        )
