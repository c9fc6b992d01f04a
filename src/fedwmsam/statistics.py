"""Statistics of a handful of seeds.

Here are the mean with its standard deviation, intervals of the mean (Student's t for few values,
the bootstrap for more), Wilcoxon's signed-rank test, Holm's correction for several tests at once,
and means of consecutive values.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
MIN_BOOTSTRAP_VALUES = 10
"""Values from which on a bootstrap interval covers about as often as it says."""


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


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval of the mean; for paired differences it is the paired interval.

    It is Student's t for few values and the percentile bootstrap from ten on.
    """
    array = np.asarray(values, dtype=np.float64)
    interval = t_interval if array.size < MIN_BOOTSTRAP_VALUES else bootstrap_interval
    return interval(array, confidence)


def t_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Return Student's t interval of the mean, which is exact for normally distributed values.

    A single value says nothing about its spread, so both ends are NaN.
    """
    mean, deviation, n = mean_spread(values)
    if n < 2:
        return math.nan, math.nan
    half_width = t_quantile(confidence, n - 1) * deviation / math.sqrt(n)
    return mean - half_width, mean + half_width


def t_quantile(probability: float, freedom: int) -> float:
    """Return how far from zero Student's T stays with that probability.

    `t_probability` rises with t, so bisection of the angle arctan(t/√freedom) finds it.
    """
    low = 0.0
    high = math.pi / 2
    for _ in range(60):  # The angle is then as exact as a float can be.
        angle = (low + high) / 2
        if t_probability(angle, freedom) < probability:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) * math.tan(low)


def t_probability(angle: float, freedom: int) -> float:
    """Return the probability that Student's T is less than √freedom · tan(angle) from zero.

    For a whole number of degrees of freedom it is a finite sum of powers of the cosine (Abramowitz
    and Stegun, 26.7.3 and 26.7.4).
    """
    is_odd = freedom % 2 == 1
    cosine = math.cos(angle)
    term = cosine if is_odd else 1.0
    total = 0.0
    for k in range(2 if is_odd else 1, freedom, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if is_odd else total


def bootstrap_interval(
    values: ArrayLike, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    For paired differences it is the paired interval. A single value says nothing about its spread,
    so both ends are NaN. With few values the interval is too narrow (docs/compare.md says by how
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


def window_means(values: ArrayLike, window: int) -> FloatArray:
    """Return the means of all runs of `window` consecutive values along the last axis.

    They are rounded, because summation makes some that should be equal differ in the last bit.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(values), window, axis=-1)
    means: FloatArray = np.round(windows.mean(axis=-1), 12)
    return means
