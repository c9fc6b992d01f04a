"""The data of plots: curves over rounds or cost, sweeps of one option, ablations of a method."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedwmsam.engine.records import Record
from fedwmsam.report.runs import format_value, make_labels, varying_keys
from fedwmsam.report.summary import (
    Goal,
    PairedDifference,
    ResultRow,
    ResultTable,
    compute_difference,
)
from fedwmsam.settings.config import RunConfig
from fedwmsam.settings.method_table import known_class
from fedwmsam.statistics import FloatArray, Spread

MIN_SWEEP_VALUES = 3
"""The number of values of an option from which on a line through them is drawn."""


@dataclass(frozen=True)
class Curve:
    """A column of the metrics over the rounds that every seed has, or over their cost."""

    x: FloatArray
    mean: FloatArray
    deviation: FloatArray
    """The standard deviation over the seeds; NaN for a single seed."""


@dataclass(frozen=True)
class SweepLine:
    """The results of rows that differ only in the value of one option."""

    label: str
    x: tuple[float, ...]
    """The values of the option."""
    spreads: tuple[Spread, ...]
    """The mean of the last evaluations at each value, over the seeds."""


@dataclass(frozen=True)
class Sweep:
    """An option with the lines of the rows in which only its value changes."""

    option: str
    lines: tuple[SweepLine, ...]


@dataclass(frozen=True)
class Ablation:
    """The effect of each change to a method's full form, seed by seed."""

    reference: ResultRow
    """The row of the method's full form."""
    changes: tuple[str, ...]
    """The settings in which each other row differs from the reference."""
    differences: tuple[PairedDifference, ...]


def compute_curve(
    row: ResultRow, column: str, x_axis: str = "rounds", window: int = 1
) -> Curve | None:
    """Return the mean and deviation of a column over the seeds.

    Each seed is first averaged over its last `window` evaluations. `x_axis` is a field of
    `CumulativeCost`, whose mean over the seeds is taken. Return None if there is no round at which
    every seed has the column.
    """
    rounds, values = values_by_seed(row, column)
    if not rounds:
        return None
    values = np.array([running_mean(seed_values, window) for seed_values in values])
    round_indices = np.array(rounds) - 1
    costs = np.array([score.run.cumulative_costs[x_axis][round_indices] for score in row.scores])
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(len(rounds), np.nan)
    return Curve(costs.mean(axis=0), values.mean(axis=0), deviation)


def values_by_seed(row: ResultRow, column: str) -> tuple[list[int], FloatArray]:
    """Return the rounds at which every seed has the column, and its values: seeds × rounds."""
    columns = [score.run.values_by_round(column) for score in row.scores]
    rounds = sorted(set.intersection(*map(set, columns))) if columns else []
    values = []
    for values_by_round in columns:
        values.append([values_by_round[round] for round in rounds])
    return rounds, np.array(values)


def running_mean(values: Sequence[float] | FloatArray, window: int) -> FloatArray:
    """Return the mean of the last `window` values up to each value, of fewer at the start."""
    return np.array(
        [np.mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]
    )


# Sweeps


def find_sweeps(table: ResultTable) -> list[Sweep]:
    """Return every option that takes three or more values while all else is equal.

    A sweep has a line for each group of rows that differ in nothing but the option.
    """
    rows = [row for row in table.rows if row.spread("tail")]
    sweeps = []
    for option in varying_keys([row.config for row in rows]):
        groups = swept_groups(rows, option)
        labels = make_labels([without_key(group[0].config, option) for group in groups])
        lines = [
            make_line(label, group, option) for label, group in zip(labels, groups, strict=True)
        ]
        if lines:
            sweeps.append(Sweep(option, tuple(lines)))
    return sweeps


def swept_groups(rows: Sequence[ResultRow], option: str) -> list[list[ResultRow]]:
    """Return the groups of rows that differ only in the option and have enough values of it."""
    groups = group_by_other_settings(rows, option)
    return [group for group in groups if len(group) >= MIN_SWEEP_VALUES]


def group_by_other_settings(rows: Sequence[ResultRow], option: str) -> list[list[ResultRow]]:
    """Return the rows whose option is a number in groups that differ only in it, sorted by it."""
    groups: list[list[ResultRow]] = []
    for row in rows:
        if is_number(row.config.get(option)):
            matching_groups = (
                group for group in groups if varying_keys([group[0].config, row.config]) == [option]
            )
            group = next(matching_groups, None)
            if group is None:
                groups.append([row])
            else:
                group.append(row)
    return [sorted(group, key=lambda row: float(row.config[option])) for group in groups]


def is_number(value: object) -> bool:
    """Return whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def make_line(label: str, rows: Sequence[ResultRow], option: str) -> SweepLine:
    """Return the line through the results of the rows over the values of the option."""
    spreads = tuple(spread for row in rows if (spread := row.spread("tail")))
    return SweepLine(label, tuple(float(row.config[option]) for row in rows), spreads)


def without_key(config: Record, removed_key: str) -> Record:
    """Return the configuration without one of its keys."""
    return {key: value for key, value in config.items() if key != removed_key}


# Ablations


def find_ablations(table: ResultTable, goal: Goal) -> list[Ablation]:
    """Return the ablation of each method that has rows outside of any sweep.

    It is made of these rows and of the method's rows one change away from them. Averaged models
    have an ablation of their own.
    """
    rows = [row for row in table.rows if row.spread("tail")]
    swept_labels = set()
    for option in varying_keys([row.config for row in rows]):
        for group in swept_groups(rows, option):
            swept_labels |= {row.label for row in group}
    ablations = []
    for method, twin in dict.fromkeys(map(method_and_twin, rows)):
        method_rows = [row for row in rows if method_and_twin(row) == (method, twin)]
        unswept_rows = [row for row in method_rows if row.label not in swept_labels]
        ablation_rows = [
            row
            for row in method_rows
            if row in unswept_rows or is_one_change_from_any(row, unswept_rows)
        ]
        if unswept_rows and len(ablation_rows) > 1:
            ablations.append(make_ablation(ablation_rows, goal))
    return [ablation for ablation in ablations if ablation.changes]


def method_and_twin(row: ResultRow) -> tuple[str, object]:
    """Return the method of a row, and which average of its models the row is of, if any."""
    return row.method, row.config.get("twin")


def is_one_change_from_any(row: ResultRow, others: Iterable[ResultRow]) -> bool:
    """Return whether the row differs from one of the others in exactly one setting."""
    return any(count_differing_keys(row, other) == 1 for other in others)


def count_differing_keys(row: ResultRow, other: ResultRow) -> int:
    """Return the number of settings in which two rows differ."""
    return len(varying_keys([row.config, other.config]))


def make_ablation(rows: Sequence[ResultRow], goal: Goal) -> Ablation:
    """Return the differences of the rows to the one with the fewest changes to all others.

    If several have as few, the one with the most default values is the reference. Rows that share
    no seed with it are left out.
    """

    def changes_to_others(row: ResultRow) -> tuple[int, int]:
        total = sum(count_differing_keys(row, other) for other in rows)
        return total, count_non_defaults(row)

    reference = min(rows, key=changes_to_others)
    changes = []
    differences = []
    for row in rows:
        if row is reference:
            continue
        difference = compute_difference(row, reference, goal)
        if difference.seeds:
            changes.append(describe_change(reference, row))
            differences.append(difference)
    return Ablation(reference, tuple(changes), tuple(differences))


def describe_change(reference: ResultRow, row: ResultRow) -> str:
    """Return the settings of a row that differ from the reference, such as "lr=0.1, rho=0.5"."""
    keys = varying_keys([reference.config, row.config])
    return ", ".join(f"{key}={format_value(row.config.get(key))}" for key in keys)


def count_non_defaults(row: ResultRow) -> int:
    """Return the number of settings and options of a row that do not have their defaults."""
    method = known_class(row.method)
    return sum(
        value not in (getattr(RunConfig, key, None), getattr(method, key, None))
        for key, value in row.config.items()
    )
