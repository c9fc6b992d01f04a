"""Statistics of a handful of seeds: spread, bootstrap interval, signed-rank test, Holm's correction."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


class Spread(NamedTuple):
    """The mean of n values and their sample standard deviation (over n − 1; NaN for a single value)."""

    mean: float
    deviation: float
    n: int


def mean_spread(values: ArrayLike) -> Spread:
    numbers = np.asarray(values, dtype=np.float64)
    count = numbers.size
    mean = float(numbers.mean()) if count else math.nan
    return Spread(mean, float(numbers.std(ddof=1)) if count > 1 else math.nan, count)


def bootstrap_interval(
    values: ArrayLike, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean; of paired differences it is the paired interval.

    One value says nothing about its spread: NaN. With few values the interval is too narrow (docs/report.md says how
    much), because no resample can leave the range of what was seen.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.size < 2:
        return math.nan, math.nan
    picks = np.random.default_rng(seed).integers(numbers.size, size=(resamples, numbers.size))
    means = numbers[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def wilcoxon(differences: ArrayLike) -> float:
    """Two-sided p-value of the signed-rank test, exact for any count and with ties; zeros are left out.

    Under the null hypothesis each rank is added with probability one half; the distribution of the sum is built rank
    by rank. Tied ranks are halves, hence doubled to whole numbers. Rounding makes equal differences equal again that
    subtraction made differ in the last bit.
    """
    numbers = np.round(np.asarray(differences, dtype=np.float64), 12)
    if np.isnan(numbers).any():
        return math.nan
    numbers = numbers[numbers != 0]
    _, place, ties = np.unique(np.abs(numbers), return_inverse=True, return_counts=True)
    doubled_ranks = (2 * np.cumsum(ties) - ties + 1)[place]
    chances = np.ones(1)
    for rank in doubled_ranks:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    positive = int(doubled_ranks[numbers > 0].sum())
    smaller = min(positive, int(doubled_ranks.sum()) - positive)
    return min(1.0, 2 * float(chances[: smaller + 1].sum()))


def smallest_p(count: int) -> float:
    """What `wilcoxon` gives if all of `count` differences have one sign: no lower p-value is possible."""
    return min(1.0, 2.0 ** (1 - count))


def holm(p_values: ArrayLike) -> FloatArray:
    """Holm's step-down corrected p-values, in the order given: at most 1, and never lower for a larger p."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)).clip(max=1)
    result = np.empty_like(p)
    result[order] = corrected
    return result
