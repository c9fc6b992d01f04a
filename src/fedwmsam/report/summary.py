"""Results of runs: a row per configuration over its seeds, a table per group of comparable runs.

`summarise(runs)` returns a `Comparison`; terminal, files, plots and pages only show it.

A quantity is of one run: the fields `last`, `tail`, `best`, … of its `RunScores`. A spread (mean,
deviation, number) is of a quantity over the seeds of a row: `ResultRow.spread`. CONTRIBUTING.md
says how to add either. Tests, intervals and the spread itself are in `fedwmsam/statistics.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.report.runs import (
    CumulativeCost,
    LoadedRun,
    RunStatus,
    comparability_key,
    group_runs,
    make_labels,
    make_titles,
    omitted_values,
    row_config,
)
from fedwmsam.statistics import (
    FloatArray,
    Spread,
    holm,
    mean_interval,
    mean_spread,
    wilcoxon,
    window_means,
)

TAIL_EVALUATIONS = 10
"""Evaluations whose mean stands for the end of a run: the last alone is noisy on skewed data."""
HIGHER_IS_BETTER_SUFFIXES = ("accuracy", "top5")
"""Ends of the names of metrics of which a higher value is better."""
LOWER_IS_BETTER_SUFFIXES = ("loss", "mae")
"""Ends of the names of metrics of which a lower value is better."""


@dataclass(frozen=True)
class Goal:
    """The metric that is compared, in which direction it is better, and targets to reach."""

    metric: str
    higher_is_better: bool | None
    """None if it is not known."""
    targets: tuple[float, ...] = ()
    """Values of the metric; the report says what reaching them cost."""
    target_window: int = TAIL_EVALUATIONS
    """Evaluations whose mean must reach a target; 1 is the first crossing, which rewards noise."""
    is_percent: bool = False
    """Whether the metric is a share that was multiplied by a hundred."""


ACCURACY = Goal("accuracy", higher_is_better=True)
"""The goal of a comparison if no other is named."""


def make_goal(
    metric: str,
    targets: Sequence[float] = (),
    better: str | None = None,
    first_crossing: bool = False,
) -> Goal:
    """Return the goal of a comparison; `better` is "higher", "lower" or None.

    If it is None, the metric's name decides. With `first_crossing` one evaluation reaches a target,
    else the mean of ten does. Raise InputError if there are targets for a metric whose better
    direction is not known.
    """
    if better is not None:
        higher_is_better: bool | None = better == "higher"
    else:
        higher_is_better = is_higher_better(metric)
    if targets and higher_is_better is None:
        raise InputError(
            f"Whether a higher or a lower {metric} is better is not known; say --better higher or "
            "lower."
        )
    target_window = 1 if first_crossing else TAIL_EVALUATIONS
    return Goal(metric, higher_is_better, tuple(targets), target_window)


def is_higher_better(metric: str) -> bool | None:
    """Return whether a higher value of the metric is better, None if its name does not tell."""
    if metric.endswith(HIGHER_IS_BETTER_SUFFIXES):
        return True
    if metric.endswith(LOWER_IS_BETTER_SUFFIXES):
        return False
    return None


def parse_targets(text: str) -> tuple[float, ...]:
    """Return the numbers in a text such as "0.7,0.8", each once, in the order given.

    Raise InputError if a part is not a finite number.
    """
    targets = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            target = float(part)
        except ValueError as error:
            raise InputError(
                f"A target must be a number, not {part!r}; write --targets 0.7,0.8."
            ) from error
        if not math.isfinite(target):
            raise InputError(f"A target must be a finite number, not {part!r}.")
        targets.append(target)
    return tuple(dict.fromkeys(targets))


@dataclass(frozen=True)
class RunScores:
    """The results of one run: None where it has no such result, NaN where that was not finite.

    The fields that `CSV_QUANTITIES` in `report/text_tables.py` names are columns of the CSV files.
    """

    run: LoadedRun
    last: float
    """The metric at the last evaluation."""
    tail: float
    """Mean of the metric over the last evaluations."""
    evaluations: int
    """Number of evaluations of which `tail` is the mean."""
    best: float | None
    """The metric at the round that was best on the validation data."""
    best_on_test: float | None
    """The best value of the metric, which is selected on the test data."""
    reached: dict[float, CumulativeCost | None]
    """The cost of reaching each target, None for a target that was not reached."""
    total: CumulativeCost
    """The cost of the entire run."""


@dataclass(frozen=True)
class ResultRow:
    """One configuration with the results of its runs, one per seed."""

    label: str
    config: Record
    scores: tuple[RunScores, ...]
    """The results of the usable runs in the order of their seeds, each seed once."""
    excluded_runs: tuple[LoadedRun, ...]
    """Runs without a usable result: unfinished, diverged or damaged."""
    duplicate_runs: tuple[LoadedRun, ...]
    """Further runs of a seed that already has a result."""

    @property
    def method(self) -> str:
        """Return the name of the row's method."""
        return str(self.config["method"])

    @property
    def is_averaged_model(self) -> bool:
        """Return whether the row is of the averaged models (the twins) of another row's runs."""
        return self.config.get("twin") is not None

    @property
    def trained_config(self) -> Record:
        """Return the configuration without the twin: equal for a row and its averaged models."""
        return {key: value for key, value in self.config.items() if key != "twin"}

    @property
    def seeds(self) -> list[int]:
        """Return the seeds that have a result."""
        return [score.run.seed for score in self.scores]

    def spread(self, quantity: str) -> Spread | None:
        """Return the spread over the seeds of a quantity, None if a seed does not have it.

        The quantity is last, tail, best or best_on_test.
        """
        values = [getattr(score, quantity) for score in self.scores]
        return mean_spread(values) if values and None not in values else None

    def total(self, cost: str) -> Spread:
        """Return the spread over the seeds of the cost of an entire run.

        The cost is the name of a field of `CumulativeCost`.
        """
        return mean_spread([getattr(score.total, cost) for score in self.scores])

    def reached(self, target: float, cost: str) -> Spread:
        """Return the spread of the cost of reaching the target, over the seeds that reached it.

        The cost is the name of a field of `CumulativeCost`.
        """
        costs = [score.reached[target] for score in self.scores]
        return mean_spread([getattr(value, cost) for value in costs if value])


class WindowShares(NamedTuple):
    """How the order of two rows depends on where one stops.

    Of all windows of ten consecutive evaluations in the last quarter of the runs, these are the
    shares in which the one row's mean is above or below the other's on every seed.
    """

    better: float
    worse: float
    windows: int
    """The number of windows."""


@dataclass(frozen=True)
class PairedDifference:
    """A row minus the baseline in the mean of the last evaluations, seed by seed."""

    label: str
    """The label of the row."""
    seeds: tuple[int, ...]
    """Seeds that the row and the baseline have in common."""
    values: FloatArray
    """The difference at each of the seeds."""
    mean: float
    interval: tuple[float, float]
    """The bounds of the mean's 95% interval: Student's t, from ten seeds on the bootstrap."""
    wins: int | None
    """Number of seeds at which the row is better than the baseline; None if not known."""
    window_shares: WindowShares | None
    """How that depends on where one stops; None if not known or the runs are too short."""
    p: float
    """The p-value of the exact two-sided Wilcoxon signed-rank test."""
    p_holm: float = math.nan
    """The p-value with Holm's correction over the rows of the table."""


@dataclass(frozen=True)
class ResultTable:
    """Rows that may be compared: their runs have the same data, model and number of rounds."""

    title: str
    shared_settings: Record
    """The `comparability_key` that all runs of the table have."""
    rows: tuple[ResultRow, ...]
    omitted_values: tuple[str, ...] = ()
    """Values that the labels leave out because most rows have them."""
    baseline: str | None = None
    """The label of the row with which the others are compared, if one was named."""
    differences: tuple[PairedDifference, ...] = ()

    @property
    def scores(self) -> list[RunScores]:
        """Return the results of all rows."""
        return list(chain.from_iterable(row.scores for row in self.rows))

    @property
    def evaluations(self) -> int:
        """Return the largest number of evaluations of which a tail is the mean."""
        return max((score.evaluations for score in self.scores), default=TAIL_EVALUATIONS)


@dataclass(frozen=True)
class Comparison:
    """The results of all runs that a report was asked for, as tables of comparable rows."""

    goal: Goal
    tables: tuple[ResultTable, ...]
    unreadable_runs: tuple[LoadedRun, ...] = ()
    """Damaged runs whose configuration cannot be read either."""

    @property
    def rows(self) -> list[ResultRow]:
        """Return the rows of all tables."""
        return list(chain.from_iterable(table.rows for table in self.tables))


def summarise(
    runs: Sequence[LoadedRun], goal: Goal = ACCURACY, baseline: str | None = None
) -> Comparison:
    """Group the runs into tables and rows, score them, and compare each row with the baseline.

    Without a baseline no differences are computed. Raise InputError if no run has the metric or no
    table has the baseline.
    """
    readable_runs = [run for run in runs if run.config]
    unreadable_runs = tuple(run for run in runs if not run.config)
    check_metric(readable_runs, goal.metric)
    check_targets(readable_runs, goal)
    groups = group_runs(readable_runs, comparability_key)
    keys = [comparability_key(group[0]) for group in groups]
    tables = tuple(
        make_table(title, key, group, goal)
        for title, key, group in zip(make_titles(keys), keys, groups, strict=True)
    )
    if baseline is not None:
        tables = add_baseline_differences(tables, baseline, goal)
    return Comparison(goal, tables, unreadable_runs)


def check_metric(runs: Sequence[LoadedRun], metric: str) -> None:
    """Raise InputError if the runs recorded numbers, but none of the metric."""
    columns: set[str] = set()
    for run in runs:
        for record in run.round_records:
            columns |= {name for name, value in record.items() if isinstance(value, int | float)}
    columns -= {"round"}
    if columns and metric not in columns:
        raise InputError(
            unknown_name_message("metric", metric, columns) + " Choose one with --metric."
        )


def check_targets(runs: Sequence[LoadedRun], goal: Goal) -> None:
    """Raise InputError if a target is a percentage where the runs recorded shares."""
    if not goal.metric.endswith(HIGHER_IS_BETTER_SUFFIXES):
        return
    percentages = [target for target in goal.targets if target > 1]
    values = chain.from_iterable(run.values_by_round(goal.metric).values() for run in runs)
    if percentages and not any(value > 1 for value in values):
        raise InputError(
            f"The target {percentages[0]:g} is never reached: {goal.metric} is a share between 0 "
            f"and 1. Did you mean --targets {percentages[0] / 100:g}?"
        )


def make_table(
    title: str, shared_settings: Record, runs: Sequence[LoadedRun], goal: Goal
) -> ResultTable:
    """Return the table of runs that may be compared.

    Methods are in the order in which they first occur. Of each the row that differs least from the
    others comes first, then the rest by their settings; after each its averaged model.
    """
    groups = group_runs(runs, row_config)
    configs = [row_config(group[0]) for group in groups]
    rows = [
        make_row(label, config, group, goal)
        for label, config, group in zip(make_labels(configs), configs, groups, strict=True)
    ]
    methods = list(dict.fromkeys(row.method for row in rows))
    rows.sort(key=lambda row: (methods.index(row.method), *order_within_method(row)))
    return ResultTable(title, shared_settings, tuple(rows), tuple(omitted_values(configs)))


def order_within_method(row: ResultRow) -> tuple[int, list[tuple[str, float, str]], bool]:
    """Return a key that sorts the rows of a method, an averaged model right after its method."""
    words = row.label.count(" ") - 2 * row.is_averaged_model  # "averaged twin=8"
    return words, sort_key(row.trained_config), row.is_averaged_model


def sort_key(config: Record) -> list[tuple[str, float, str]]:
    """Return a key that sorts numbers by size and everything else by name."""
    return [
        (key, float(value), "") if isinstance(value, int | float) else (key, math.inf, str(value))
        for key, value in sorted(config.items())
    ]


def make_row(label: str, config: Record, runs: Sequence[LoadedRun], goal: Goal) -> ResultRow:
    """Return the row of runs that have the same configuration but for the seed."""
    runs_by_seed: dict[int, LoadedRun] = {}
    excluded_runs = []
    duplicate_runs = []
    # Of two runs with the same seed the one with an averaged model is used: it tells more.
    for run in sorted(runs, key=lambda run: run.config.get("twin") is None):
        if not run.is_usable:
            excluded_runs.append(run)
        elif not run.values_by_round(goal.metric):
            message = f"{goal.metric} was never recorded"
            excluded_runs.append(replace(run, status=RunStatus.UNMEASURED, status_message=message))
        elif runs_by_seed.setdefault(run.seed, run) is not run:
            duplicate_runs.append(run)
    scores = tuple(score_run(runs_by_seed[seed], goal) for seed in sorted(runs_by_seed))
    return ResultRow(label, config, scores, tuple(excluded_runs), tuple(duplicate_runs))


def score_run(run: LoadedRun, goal: Goal) -> RunScores:
    """Return the results of a run that has recorded the metric."""
    values_by_round = run.values_by_round(goal.metric)
    values = np.array(list(values_by_round.values()))
    return RunScores(
        run,
        last=float(values[-1]),
        tail=float(values[-TAIL_EVALUATIONS:].mean()),
        evaluations=len(values[-TAIL_EVALUATIONS:]),
        best=values_by_round.get(run.best_round) if run.best_round else None,
        best_on_test=best_value(values[np.isfinite(values)], goal.higher_is_better),
        reached={target: find_cost_to_target(run, target, goal) for target in goal.targets},
        total=run.cost_at(len(run.round_records)),
    )


def best_value(values: FloatArray, higher_is_better: bool | None) -> float | None:
    """Return the best of the values, None if there are none or what is better is not known."""
    if higher_is_better is None or not values.size:
        return None
    return float(values.max() if higher_is_better else values.min())


def find_cost_to_target(run: LoadedRun, target: float, goal: Goal) -> CumulativeCost | None:
    """Return the cost up to the first evaluation at which the target is reached.

    It is reached when the mean of the last evaluations, as many as the goal says, is at least as
    good; of all, if the run has fewer. Return None if it never is.
    """
    values_by_round = run.values_by_round(goal.metric)
    rounds = list(values_by_round)
    window = min(goal.target_window, len(rounds))
    means = window_means(list(values_by_round.values()), window)
    is_reached = means >= target if goal.higher_is_better else means <= target
    if not is_reached.any():
        return None
    return run.cost_at(rounds[window - 1 + int(is_reached.argmax())])


def add_baseline_differences(
    tables: Sequence[ResultTable], baseline: str, goal: Goal
) -> tuple[ResultTable, ...]:
    """Return the tables; those with the baseline have every other row's differences to it.

    Raise InputError if no table has the baseline, or if it shares no seed with any other row.
    """
    baseline_rows = find_baseline_rows(tables, baseline)
    compared_tables = tuple(
        with_differences(table, row, goal) if row else table for table, row in baseline_rows
    )
    differences = list(chain.from_iterable(table.differences for table in compared_tables))
    if differences and not any(difference.seeds for difference in differences):
        seeds: set[int] = set().union(*(row.seeds for _, row in baseline_rows if row))
        listed_seeds = ", ".join(map(str, sorted(seeds)))
        runs = f"seeds {listed_seeds}" if seeds else "no finished run"
        raise InputError(
            f"The baseline {baseline!r} ({runs}) has no seed in common with any other row; run "
            "both with the same seeds."
        )
    return compared_tables


def find_baseline_rows(
    tables: Sequence[ResultTable], baseline: str
) -> list[tuple[ResultTable, ResultRow | None]]:
    """Return each table with its row of that name, None for a table without such a row.

    Raise InputError if no table has such a row, or if one has several.
    """
    baseline_rows = [(table, find_baseline_row(table, baseline)) for table in tables]
    if not any(row for _, row in baseline_rows):
        rows = chain.from_iterable(table.rows for table in tables)
        raise InputError(unknown_name_message("baseline", baseline, (row.label for row in rows)))
    return baseline_rows


def find_baseline_row(table: ResultTable, name: str) -> ResultRow | None:
    """Return the row with that label, its words in any order, or the only row with these words.

    Upper and lower case are alike. A row that is no averaged model comes first: "scaffold" is not
    "scaffold averaged twin=8". Return None if there is no such row; raise InputError if there are
    several.
    """
    words = set(name.lower().split())
    candidates = [row for row in table.rows if words and words <= label_words(row)]
    rows = [row for row in candidates if words == label_words(row)]
    rows = rows or [row for row in candidates if not row.is_averaged_model] or candidates
    if len(rows) > 1:
        labels = ", ".join(repr(row.label) for row in rows)
        raise InputError(f"The baseline {name!r} could be any of {labels}; name one in full.")
    return rows[0] if rows else None


def label_words(row: ResultRow) -> set[str]:
    """Return the words of a row's label in lower case."""
    return set(row.label.lower().split())


def with_differences(table: ResultTable, baseline: ResultRow, goal: Goal) -> ResultTable:
    """Return the table with the differences of its other rows to the baseline.

    Their p-values are corrected for all rows that could be tested.
    """
    differences = [
        compute_difference(row, baseline, goal) for row in table.rows if row is not baseline
    ]
    tested = [index for index, value in enumerate(differences) if not math.isnan(value.p)]
    p_holm = dict(zip(tested, holm([differences[index].p for index in tested]), strict=True))
    differences = [
        replace(difference, p_holm=float(p_holm.get(index, math.nan)))
        for index, difference in enumerate(differences)
    ]
    return replace(table, baseline=baseline.label, differences=tuple(differences))


def compute_difference(row: ResultRow, baseline: ResultRow, goal: Goal) -> PairedDifference:
    """Return the row minus the baseline over the seeds that both have on the same partition."""
    baseline_scores = {score.run.pairing_key: score for score in baseline.scores}
    pairs = [
        (score, baseline_scores[score.run.pairing_key])
        for score in row.scores
        if score.run.pairing_key in baseline_scores
    ]
    values = np.array([score.tail - other.tail for score, other in pairs])
    gains = values if goal.higher_is_better else -values
    return PairedDifference(
        label=row.label,
        seeds=tuple(score.run.seed for score, _ in pairs),
        values=values,
        mean=mean_spread(values).mean,
        interval=mean_interval(values),
        wins=None if goal.higher_is_better is None else int((gains > 0).sum()),
        window_shares=compare_windows(pairs, goal),
        p=wilcoxon(values) if pairs else math.nan,
    )


def compare_windows(
    pairs: Sequence[tuple[RunScores, RunScores]], goal: Goal
) -> WindowShares | None:
    """Return in which share of the late windows the first of each pair is better, or worse.

    Return None if there is no pair, what is better is not known, or the runs' last quarter has
    fewer than ten evaluations that all of them have.
    """
    columns = [score.run.values_by_round(goal.metric) for score in chain.from_iterable(pairs)]
    rounds = sorted(set.intersection(*map(set, columns))) if columns else []
    late_rounds = [round for round in rounds if 4 * round > 3 * rounds[-1]]
    if goal.higher_is_better is None or len(late_rounds) < TAIL_EVALUATIONS:
        return None
    curves = np.array([itemgetter(*late_rounds)(column) for column in columns])
    means = window_means(curves, TAIL_EVALUATIONS)
    gains = means[0::2] - means[1::2]
    if not goal.higher_is_better:
        gains = -gains
    better = float((gains > 0).all(axis=0).mean())
    worse = float((gains < 0).all(axis=0).mean())
    return WindowShares(better, worse, gains.shape[1])
