"""What pictures show, as numbers: curves over rounds or cost, sweeps of one option, ablations of a method."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedwmsam.engine.records import Record
from fedwmsam.methods import METHODS
from fedwmsam.report.runs import format_value, make_labels, varying_keys
from fedwmsam.report.summary import (
    MetricSpec,
    PairedDifference,
    ResultRow,
    ResultTable,
    compute_difference,
)
from fedwmsam.settings.config import RunConfig
from fedwmsam.statistics import FloatArray, Spread

MIN_SWEEP_VALUES = 3
"""From so many values of an option on, a line through them says something."""


@dataclass(frozen=True)
class Curve:
    """A column over the rounds that every seed has, or over what had been spent by then."""

    x: FloatArray
    mean: FloatArray
    deviation: FloatArray
    """NaN for a single seed."""


@dataclass(frozen=True)
class SweepLine:
    """What a method reaches at each value of the option."""

    label: str
    x: tuple[float, ...]
    spreads: tuple[Spread, ...]


@dataclass(frozen=True)
class Sweep:
    option: str
    lines: tuple[SweepLine, ...]


@dataclass(frozen=True)
class Ablation:
    """What each change to a method's full form does, seed by seed."""

    reference: ResultRow
    changes: tuple[str, ...]
    differences: tuple[PairedDifference, ...]


def compute_curve(
    row: ResultRow, column: str, against: str = "rounds", window: int = 1
) -> Curve | None:
    """Mean and deviation over the seeds, each seed first averaged over its last `window` evaluations.

    `against` is a field of `Cost`, its mean over the seeds; None if no round has the column for every seed.
    """
    rounds, values = values_by_seed(row, column)
    if not rounds:
        return None
    values = np.array([running_mean(line, window) for line in values])
    spent = np.array([score.run.spent[against][np.array(rounds) - 1] for score in row.scores])
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(len(rounds), np.nan)
    return Curve(spent.mean(axis=0), values.mean(axis=0), deviation)


def values_by_seed(row: ResultRow, column: str) -> tuple[list[int], FloatArray]:
    """The rounds for which every seed has the column, and its values there, a line for each seed."""
    columns = [score.run.values(column) for score in row.scores]
    rounds = sorted(set.intersection(*map(set, columns))) if columns else []
    return rounds, np.array([[by_round[round] for round in rounds] for by_round in columns])


def running_mean(values: Sequence[float] | FloatArray, window: int) -> FloatArray:
    """Over the last `window` values up to each, over fewer at the start."""
    return np.array(
        [np.mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]
    )


def find_sweeps(table: ResultTable) -> list[Sweep]:
    """Every option with three values or more for which all else is equal, with a line for each such group of rows."""
    rows = [row for row in table.rows if row.spread("tail")]
    found = []
    for option in varying_keys([row.config for row in rows]):
        groups = [
            group
            for group in group_by_other_settings(rows, option)
            if len(group) >= MIN_SWEEP_VALUES
        ]
        if groups:
            names = make_labels([drop_key(group[0].config, option) for group in groups])
            found.append(
                Sweep(option, tuple(map(make_line, names, groups, [option] * len(groups))))
            )
    return found


def group_by_other_settings(rows: Sequence[ResultRow], option: str) -> list[list[ResultRow]]:
    """Rows that have a number there and are equal elsewhere, by that number."""
    groups: list[list[ResultRow]] = []
    for row in rows:
        if is_number(row.config.get(option)):
            alike = (
                group for group in groups if varying_keys([group[0].config, row.config]) == [option]
            )
            group = next(alike, None)
            if group is None:
                groups.append([row])
            else:
                group.append(row)
    return [sorted(group, key=lambda row: float(row.config[option])) for group in groups]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def make_line(label: str, rows: Sequence[ResultRow], option: str) -> SweepLine:
    spreads = tuple(spread for row in rows if (spread := row.spread("tail")))
    return SweepLine(label, tuple(float(row.config[option]) for row in rows), spreads)


def drop_key(config: Record, option: str) -> Record:
    return {key: value for key, value in config.items() if key != option}


def find_ablations(table: ResultTable, goal: MetricSpec) -> list[Ablation]:
    """Each method with rows that are no part of a sweep: these, and the rows one change away from them."""
    rows = [row for row in table.rows if row.spread("tail")]
    swept = {
        row.label
        for option in varying_keys([row.config for row in rows])
        for group in group_by_other_settings(rows, option)
        if len(group) >= MIN_SWEEP_VALUES
        for row in group
    }
    found = []
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method]
        single = [row for row in own if row.label not in swept]
        near = [
            row
            for row in own
            if row in single or any(count_differing_keys(row, other) == 1 for other in single)
        ]
        if single and len(near) > 1:
            found.append(make_ablation(near, goal))
    return [ablation for ablation in found if ablation.changes]


def count_differing_keys(row: ResultRow, other: ResultRow) -> int:
    return len(varying_keys([row.config, other.config]))


def make_ablation(rows: Sequence[ResultRow], goal: MetricSpec) -> Ablation:
    """Against the row that the fewest changes lead to, and of equals the one with the most defaults."""
    reference = min(
        rows,
        key=lambda row: (
            sum(count_differing_keys(row, other) for other in rows),
            count_non_defaults(row),
        ),
    )
    others = [
        row
        for row in rows
        if row is not reference and compute_difference(row, reference, goal).seeds
    ]
    changes = tuple(
        ", ".join(
            f"{key}={format_value(row.config.get(key))}"
            for key in varying_keys([reference.config, row.config])
        )
        for row in others
    )
    return Ablation(
        reference, changes, tuple(compute_difference(row, reference, goal) for row in others)
    )


def count_non_defaults(row: ResultRow) -> int:
    method = METHODS.get(row.method)
    return sum(
        value not in (getattr(RunConfig, k, None), getattr(method, k, None))
        for k, value in row.config.items()
    )
