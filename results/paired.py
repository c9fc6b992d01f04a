"""Two rows of a comparison, paired by seed: differences and ratios with Student's t interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from sections import RunQuantity, load_run_specs, load_runs

from fedwmsam.analysis import flatness
from fedwmsam.analysis.dynamics import DYNAMICS_FILE
from fedwmsam.analysis.saved_run import load_analysis
from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs
from fedwmsam.report.summary import (
    ACCURACY,
    ResultRow,
    WindowShares,
    compute_difference,
    summarise,
)
from fedwmsam.statistics import mean_spread, t_interval

SPANS = (50, 10)
"""Numbers of last rounds whose mean accuracies are compared."""
AVERAGED = " averaged twin=8"
"""The end of the label of an averaged model (twin)."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95% interval; of ratios the geometric mean."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def is_above(self) -> bool:
        """Return whether the entire interval is above zero, or above one for a ratio."""
        return self.low > self.neutral

    @property
    def is_below(self) -> bool:
        """Return whether the entire interval is below zero, or below one for a ratio."""
        return self.high < self.neutral

    @property
    def neutral(self) -> float:
        """Return the value that means no difference."""
        return 0.0


@dataclass(frozen=True)
class Ratio(Estimate):
    """The geometric mean of ratios and its 95% interval."""

    @property
    def neutral(self) -> float:
        return 1.0


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of the values and Student's t interval."""
    return Estimate(mean_spread(values).mean, *t_interval(values), len(values))


def difference(first: ResultRow, second: ResultRow, quantity: RunQuantity) -> Estimate:
    """Return the first row minus the second in a quantity, over the seeds that both have."""
    return estimate([quantity(run) - quantity(other) for run, other in pair_runs(first, second)])


def ratio(first: ResultRow, second: ResultRow, quantity: RunQuantity) -> Ratio:
    """Return the first row over the second in a quantity, over the seeds that both have."""
    pairs = pair_runs(first, second)
    logarithms = [math.log(quantity(run) / quantity(other)) for run, other in pairs]
    mean = mean_spread(logarithms).mean
    low, high = t_interval(logarithms)
    return Ratio(math.exp(mean), math.exp(low), math.exp(high), len(pairs))


def pair_runs(first: ResultRow, second: ResultRow) -> list[tuple[LoadedRun, LoadedRun]]:
    """Return the runs of two rows that have the same seed and partition."""
    others = {score.run.pairing_key: score.run for score in second.scores}
    runs = [score.run for score in first.scores]
    return [(run, others[run.pairing_key]) for run in runs if run.pairing_key in others]


def windows(first: ResultRow, second: ResultRow) -> WindowShares | None:
    """Return in which share of the late windows the first row is above the second, or below."""
    return compute_difference(first, second, ACCURACY).window_shares


# Quantities of a run


def mean_of_last(rounds: int) -> RunQuantity:
    """Return the function that takes the mean accuracy of so many last rounds."""

    def quantity(run: LoadedRun) -> float:
        by_round = run.values_by_round("accuracy")
        first = max(by_round) - rounds
        return float(np.mean([value for number, value in by_round.items() if number > first]))

    return quantity


def noise(run: LoadedRun) -> float:
    """Return the accuracy's noise from round to round over the last quarter of a run."""
    values = list(run.values_by_round("accuracy").values())
    return float(np.diff(values[3 * len(values) // 4 :]).std() / math.sqrt(2))


def top_eigenvalue(run: LoadedRun) -> float:
    """Return λ₁ of a run's last model, or of its averaged model; NaN if it was not measured."""
    for _, measured in flatness.read_last_flatness(run):
        return float(measured.pooled.eigenvalues[0])
    return math.nan


def alignment(run: LoadedRun) -> float:
    """Return the late cosine of a run's perturbations with the federation's gradient."""
    record = load_analysis(run.path, DYNAMICS_FILE) or {}
    return float(record["summary"]["late"]["global"])


def cpu_seconds(run: LoadedRun) -> float:
    """Return the mean CPU time of a round in seconds."""
    return float(np.mean([timing["cpu_seconds"] for timing in run.timings]))


# Rows


@cache
def load_rows(runs: Path, *plans: str) -> Mapping[str, ResultRow]:
    """Return the rows of a table with the runs of these plans, each by its label.

    Averaged models have rows of their own.
    """
    specs = []
    for plan in plans:
        specs += load_run_specs(plan)
    loaded = {run.path: run for run in load_runs(specs, runs)}
    (table,) = summarise(add_averaged_model_runs(loaded.values())).tables
    return {row.label: row for row in table.rows}


# Cells


def format_estimate(value: Estimate, digits: int = 4) -> str:
    """Return the mean with its sign, or × before a ratio."""
    if isinstance(value, Ratio):
        return f"× {value.mean:.2f}"
    return f"{value.mean:+.{digits}f}"


def format_interval(value: Estimate, digits: int = 4) -> str:
    """Return the bounds of the 95% interval."""
    if isinstance(value, Ratio):
        return f"× {value.low:.2f} to {value.high:.2f}"
    return f"{value.low:+.{digits}f} to {value.high:+.{digits}f}"
