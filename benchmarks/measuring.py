"""Times of things run in turn, their ratios, and tables of them.

The speed of a shared machine changes several-fold within seconds. So what is compared is run in turn, in an order that
rotates, again and again in one run; a ratio is one of medians, and its range is that of the ratios of single turns.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contenders.protocol import Failed


@dataclass(frozen=True)
class Sample:
    wall: float
    cpu: float


@dataclass(frozen=True)
class Ratio:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


Turn = Callable[[], Sample]
Samples = dict[str, list[Sample]]


def timed(work: Callable[[], object]) -> Sample:
    """Time of work done in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def interleave(
    title: str, turns: Mapping[str, Turn], repeats: int
) -> tuple[Samples, dict[str, str]]:
    """Samples of everything that went well, and why the rest did not. The first pass warms up and is not counted."""
    turns, failures, start = dict(turns), {}, time.perf_counter()
    samples: Samples = {name: [] for name in turns}
    for repeat in range(repeats + 1):
        for name in rotated(list(turns), repeat):
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
        progress(f"{title}: {done}, {elapsed:.0f} s; about {rest:.0f} s more")
    return samples, failures


def rotated(names: list[str], by: int) -> list[str]:
    by %= max(1, len(names))
    return names[by:] + names[:by]


def median(samples: Sequence[Sample], clock: str) -> float:
    return statistics.median(getattr(sample, clock) for sample in samples)


def ratio(samples: Sequence[Sample], base: Sequence[Sample], clock: str) -> Ratio:
    """How many times longer than the base: of medians, and the range over the turns."""
    single = [getattr(a, clock) / getattr(b, clock) for a, b in zip(samples, base, strict=True)]
    return Ratio(median(samples, clock) / median(base, clock), min(single), max(single))


def numbers(key: str, samples: Sequence[Sample], base: Sequence[Sample]) -> dict[str, float]:
    """Everything about one contender, under flat keys."""
    found: dict[str, float] = {}
    for clock in ("wall", "cpu"):
        relative = ratio(samples, base, clock)
        found |= {
            f"{key}.{clock}": median(samples, clock),
            f"{key}.{clock}_ratio": relative.value,
            f"{key}.{clock}_ratio_low": relative.low,
            f"{key}.{clock}_ratio_high": relative.high,
        }
    return found


def cells(samples: Sequence[Sample], base: Sequence[Sample]) -> list[str]:
    """The four columns every table ends with."""
    return [
        text
        for clock in ("wall", "cpu")
        for text in (f"{median(samples, clock):.2f}", str(ratio(samples, base, clock)))
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)
    )


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
