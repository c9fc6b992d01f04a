"""Times of things that are executed in turn, their ratios, and tables of them.

The speed of a shared machine changes several-fold within seconds. So what is compared is executed
in turn, in an order that rotates, again and again in one run. A ratio is a ratio of medians, and
its range is that of the ratios of single turns.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contenders.protocol import Failed

CLOCKS = ("wall", "cpu")
"""The fields of a sample."""


@dataclass(frozen=True)
class Sample:
    """The time that one turn took, in seconds."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians, with the smallest and the largest ratio of single turns."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


Turn = Callable[[], Sample]
"""A function that does some work and returns the time that it took."""
Samples = dict[str, list[Sample]]
"""Names of what is compared → one sample per repeat."""


def time_work(work: Callable[[], object]) -> Sample:
    """Do some work in this process and return the time that it took."""
    wall = time.perf_counter()
    cpu = time.process_time()
    work()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def interleave(
    title: str, turns: Mapping[str, Turn], repeats: int
) -> tuple[Samples, dict[str, str]]:
    """Take all turns again and again, in an order that rotates.

    Return the samples of those that did not fail, and the reasons why the others did. The first
    pass warms up and is not counted.
    """
    turns = dict(turns)
    failures = {}
    start = time.perf_counter()
    samples: Samples = {name: [] for name in turns}
    for repeat in range(repeats + 1):
        for name in rotate(list(turns), repeat):
            try:
                sample = turns[name]()
            except Failed as reason:
                failures[name] = str(reason)
                del turns[name], samples[name]
                continue
            if repeat:
                samples[name].append(sample)
        elapsed = time.perf_counter() - start
        done = f"{repeat} of {repeats}" if repeat else "warmed up"
        rest = elapsed / (repeat + 1) * (repeats - repeat)
        log_progress(f"{title}: {done}, {elapsed:.0f} s; about {rest:.0f} s more")
    return samples, failures


def rotate(names: list[str], by: int) -> list[str]:
    """Return the names with the first `by` of them moved to the end."""
    by %= max(1, len(names))
    return names[by:] + names[:by]


def median(samples: Sequence[Sample], clock: str) -> float:
    """Return the median of the samples by one of the clocks."""
    return statistics.median(getattr(sample, clock) for sample in samples)


def ratio(samples: Sequence[Sample], base: Sequence[Sample], clock: str) -> Ratio:
    """Return how many times longer than the base the samples took, by one of the clocks."""
    pairs = zip(samples, base, strict=True)
    ratios = [getattr(sample, clock) / getattr(other, clock) for sample, other in pairs]
    return Ratio(median(samples, clock) / median(base, clock), min(ratios), max(ratios))


def flat_results(name: str, samples: Sequence[Sample], base: Sequence[Sample]) -> dict[str, float]:
    """Return medians and ratios to the base, under keys that begin with `name`."""
    results: dict[str, float] = {}
    for clock in CLOCKS:
        relative = ratio(samples, base, clock)
        results[f"{name}.{clock}"] = median(samples, clock)
        results[f"{name}.{clock}_ratio"] = relative.value
        results[f"{name}.{clock}_ratio_low"] = relative.low
        results[f"{name}.{clock}_ratio_high"] = relative.high
    return results


def time_cells(samples: Sequence[Sample], base: Sequence[Sample]) -> list[str]:
    """Return the four cells of a table's row for medians and ratios, by both clocks."""
    cells = []
    for clock in CLOCKS:
        cells += [f"{median(samples, clock):.2f}", str(ratio(samples, base, clock))]
    return cells


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def log_progress(line: str) -> None:
    """Print a line to the error stream."""
    print(line, file=sys.stderr, flush=True)
