"""Each statistic against a case worked out by hand or by SciPy."""

import math

import numpy as np
import pytest
import scipy.stats

from fedwmsam.statistics import (
    bootstrap_interval,
    holm,
    mean_interval,
    mean_spread,
    smallest_p,
    t_interval,
    t_quantile,
    wilcoxon,
    window_means,
)


def test_mean_and_sample_deviation() -> None:
    assert mean_spread([1.0, 2.0, 6.0]) == pytest.approx((3.0, math.sqrt((4 + 1 + 9) / 2), 3))


def test_one_value_has_no_spread_and_none_has_no_mean() -> None:
    one = mean_spread([0.5])
    none = mean_spread([])
    assert one.mean == 0.5 and math.isnan(one.deviation) and one.n == 1
    assert math.isnan(none.mean) and math.isnan(none.deviation) and none.n == 0


# Holm


def test_holm_by_hand() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 are 0.02, 0.03, 0.06, 0.04.

    The last may not fall below 0.06.
    """
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_stays_at_most_one_and_keeps_a_single_p() -> None:
    assert holm([0.7, 0.9]).tolist() == [1.0, 1.0]
    assert holm([0.03]).tolist() == [0.03]
    assert holm([]).size == 0


# Wilcoxon


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 20, 49])
def test_wilcoxon_is_scipys_exact_test(count: int) -> None:
    differences = np.random.default_rng(count).normal(0.3, 1, count)
    expected = scipy.stats.wilcoxon(differences, method="exact").pvalue
    assert wilcoxon(differences) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "differences",
    [
        [1, 1, 1],
        [1, -1, 2, 2, 3],
        [0, 1, 2, -2, 0, 5],
        [1, 1, -1, 2, 2, -3, 3, 3, 4, 0],
        [-2, -2, -2, 3],
        [-0.1, -0.1, -0.1, 0.3 - 0.2],
    ],
)
def test_wilcoxon_with_ties_and_zeros_counts_every_choice_of_signs(
    differences: list[float],
) -> None:
    """SciPy tries all 2^n sign patterns on the differences without zeros."""
    nonzero = np.round([d for d in differences if d], 12)
    all_patterns = scipy.stats.PermutationMethod(n_resamples=np.inf)
    expected = scipy.stats.wilcoxon(nonzero, method=all_patterns).pvalue
    assert wilcoxon(differences) == pytest.approx(expected, abs=1e-12)


def test_wilcoxon_without_any_difference_is_one() -> None:
    assert wilcoxon([0, 0, 0]) == 1 and wilcoxon([]) == 1
    assert math.isnan(wilcoxon([1, math.nan]))


@pytest.mark.parametrize("count", range(1, 9))
def test_no_p_is_smaller_than_the_smallest(count: int) -> None:
    assert smallest_p(count) == wilcoxon(np.arange(1, count + 1)) == 2 / 2**count
    assert wilcoxon([1, 1, *np.arange(2, count)][:count]) >= smallest_p(count)


def test_three_seeds_can_never_be_significant_and_six_can() -> None:
    assert smallest_p(3) == 0.25 and smallest_p(5) > 0.05 > smallest_p(6)


# Student's t


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8, 30, 101])
def test_t_quantiles_are_those_of_scipy(freedom: int) -> None:
    for probability in (0.1, 0.5, 0.9, 0.95, 0.999):
        expected = scipy.stats.t.ppf((1 + probability) / 2, freedom)
        assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("count", [2, 3, 6, 9])
def test_the_t_interval_is_that_of_scipys_paired_test(count: int) -> None:
    values = np.random.default_rng(count).normal(0.3, 1, (2, count))
    theirs = scipy.stats.ttest_rel(*values).confidence_interval(0.9)
    assert t_interval(values[0] - values[1], 0.9) == pytest.approx(tuple(theirs), rel=1e-9)


def test_the_t_interval_of_three_values_covers_the_truth_as_often_as_it_says() -> None:
    draws = np.random.default_rng(1).normal(2.0, 1.0, (2000, 3))
    intervals = np.array([t_interval(row) for row in draws])
    assert 0.94 <= np.mean((intervals[:, 0] <= 2) & (intervals[:, 1] >= 2)) <= 0.96


def test_few_values_have_a_t_interval_and_ten_a_bootstrap_interval() -> None:
    values = np.random.default_rng(0).exponential(size=10)
    assert mean_interval(values[:9]) == t_interval(values[:9]) != bootstrap_interval(values[:9])
    assert mean_interval(values) == bootstrap_interval(values) != t_interval(values)
    assert all(map(math.isnan, mean_interval([0.5]))) and all(map(math.isnan, mean_interval([])))
    assert mean_interval([0.25, 0.25, 0.25]) == (0.25, 0.25)


# Windows


def test_window_means_are_those_of_every_run_of_values() -> None:
    values = np.random.default_rng(0).normal(size=(2, 7))
    means = window_means(values, 3)
    expected = [np.convolve(row, np.ones(3) / 3, "valid") for row in values]
    assert means == pytest.approx(np.array(expected), abs=1e-11)
    assert window_means([0.84] * 10, 10).tolist() == [0.84], "not a bit less than each of them"


# Bootstrap


def test_the_interval_of_two_values_is_their_range() -> None:
    """A quarter of the resamples is (1, 1), a quarter (3, 3)."""
    assert bootstrap_interval([1.0, 3.0]) == (1.0, 3.0)


def test_the_interval_of_one_value_is_unknown_and_of_equal_values_a_point() -> None:
    assert all(map(math.isnan, bootstrap_interval([0.5])))
    assert bootstrap_interval([0.25, 0.25, 0.25]) == (0.25, 0.25)


def test_the_interval_is_repeatable_and_wider_for_more_confidence() -> None:
    values = np.random.default_rng(0).normal(size=12)
    low, high = bootstrap_interval(values)
    assert bootstrap_interval(values) == (low, high) != bootstrap_interval(values, seed=1)
    wide_low, wide_high = bootstrap_interval(values, 0.99)
    assert wide_low < low < values.mean() < high < wide_high


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """For 30 normal values, about 94% of the 95% intervals hold the mean.

    Percentile intervals are a little too narrow.
    """
    draws = np.random.default_rng(1).normal(2.0, 1.0, (400, 30))
    intervals = [
        bootstrap_interval(row, resamples=800, seed=number) for number, row in enumerate(draws)
    ]
    assert 0.91 <= np.mean([low <= 2.0 <= high for low, high in intervals]) <= 0.97


def test_the_interval_is_that_of_scipy() -> None:
    values = np.random.default_rng(5).exponential(size=15)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", rng=np.random.default_rng(0), n_resamples=20_000
    )
    assert bootstrap_interval(values, resamples=20_000) == pytest.approx(
        tuple(theirs.confidence_interval), abs=0.02
    )
