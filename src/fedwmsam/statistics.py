"""Statistics of a handful of seeds.

Here are the mean with its standard deviation, the bootstrap interval of the mean, Wilcoxon's
signed-rank test and Holm's correction for several tests at once.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


class Spread(NamedTuple):
    """The mean and the sample standard deviation of n values."""

    mean: float
    deviation: float
    """The standard deviation with n − 1 in the denominator; NaN for a single value."""
    n: int


def mean_spread(values: ArrayLike) -> Spread:
    """Return the mean and the standard deviation of the values; NaN where there are too few."""
    array = np.asarray(values, dtype=np.float64)
    n = array.size
    mean = float(array.mean()) if n else math.nan
    deviation = float(array.std(ddof=1)) if n > 1 else math.nan
    return Spread(mean, deviation, n)


def bootstrap_interval(
    values: ArrayLike, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    For paired differences it is the paired interval. A single value says nothing about its spread,
    so both ends are NaN. With few values the interval is too narrow (docs/report.md says by how
    much), because no resample can leave the range of the values.
    """
    array = np.asarray(values, dtype=np.float64)
    n = array.size
    if n < 2:
        return math.nan, math.nan
    indices = np.random.default_rng(seed).integers(n, size=(resamples, n))
    means = array[indices].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def wilcoxon(differences: ArrayLike) -> float:
    """Return the two-sided p-value of the signed-rank test, exact for any count and with ties.

    Zeros are left out. Under the null hypothesis each rank is added with probability one half; the
    distribution of the sum is built rank by rank. Tied ranks may end in one half, so all ranks are
    doubled to make them integers. The differences are rounded, because subtraction makes some that
    should be equal differ in the last bit.
    """
    array = np.round(np.asarray(differences, dtype=np.float64), 12)
    if np.isnan(array).any():
        return math.nan
    array = array[array != 0]
    _, group, ties = np.unique(np.abs(array), return_inverse=True, return_counts=True)
    doubled_ranks = (2 * np.cumsum(ties) - ties + 1)[group]
    probabilities = np.ones(1)
    for rank in doubled_ranks:
        without_rank = np.pad(probabilities, (0, rank))
        with_rank = np.pad(probabilities, (rank, 0))
        probabilities = (without_rank + with_rank) / 2
    positive_sum = int(doubled_ranks[array > 0].sum())
    smaller_sum = min(positive_sum, int(doubled_ranks.sum()) - positive_sum)
    return min(1.0, 2 * float(probabilities[: smaller_sum + 1].sum()))


def smallest_p(count: int) -> float:
    """Return the lowest p-value that `wilcoxon` can return for that many differences.

    It is the one for differences that all have the same sign.
    """
    return min(1.0, 2.0 ** (1 - count))


def holm(p_values: ArrayLike) -> FloatArray:
    """Return the p-values with Holm's step-down correction, in the same order.

    Each is at most 1, and a larger p-value never becomes the smaller one.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)).clip(max=1)
    result = np.empty_like(p)
    result[order] = corrected
    return result
