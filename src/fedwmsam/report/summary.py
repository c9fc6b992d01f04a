"""What runs say together: one row for each configuration over its seeds, one table for all that may be compared.

`summarise(runs)` computes a `Comparison`; terminal, files, pictures and pages only print it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedwmsam.engine.records import Record
from fedwmsam.engine.run import AVERAGED
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
from fedwmsam.statistics import FloatArray, Spread, bootstrap_interval, holm, mean_spread, wilcoxon

TAIL_EVALUATIONS = 10
"""Evaluations whose mean stands for the end of a run: the last one alone is noisy on skewed data."""
HIGHER_IS_BETTER_SUFFIXES, LOWER_IS_BETTER_SUFFIXES = ("accuracy", "top5"), ("loss", "mae")
"""How the names of metrics end of which more is better, or less."""


@dataclass(frozen=True)
class MetricSpec:
    """What is compared, and which way is better."""

    metric: str
    higher_is_better: bool | None
    """None if nobody said."""
    targets: tuple[float, ...] = ()


ACCURACY = MetricSpec("accuracy", higher_is_better=True)


def make_goal(metric: str, targets: Sequence[float] = (), better: str | None = None) -> MetricSpec:
    """`better` is "higher" or "lower"; without it the metric's name decides."""
    higher = (
        True
        if metric.endswith(HIGHER_IS_BETTER_SUFFIXES)
        else False
        if metric.endswith(LOWER_IS_BETTER_SUFFIXES)
        else None
    )
    if better is not None:
        higher = better == "higher"
    if targets and higher is None:
        raise InputError(
            f"Whether a higher or a lower {metric} is better is not known; say --better higher or lower."
        )
    return MetricSpec(metric, higher, tuple(targets))


def parse_targets(text: str) -> tuple[float, ...]:
    """Numbers from "0.7,0.8", each once, in the order given."""
    targets = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            targets.append(float(part))
        except ValueError as error:
            raise InputError(
                f"A target must be a number, not {part!r}; write --targets 0.7,0.8."
            ) from error
        if not math.isfinite(targets[-1]):
            raise InputError(f"A target must be a finite number, not {part!r}.")
    return tuple(dict.fromkeys(targets))


@dataclass(frozen=True)
class RunScores:
    """One run's numbers; None where it has no such thing, NaN where it was not finite."""

    run: LoadedRun
    last: float
    tail: float
    """Mean of the last evaluations."""
    evaluations: int
    """How many these are."""
    best: float | None
    """At the round that was best on the validation data."""
    best_on_test: float | None
    averaged_last: float | None
    averaged_tail: float | None
    """The same of the averaged twin, if there is one."""
    reached: dict[float, CumulativeCost | None]
    """What each target cost."""
    total: CumulativeCost


@dataclass(frozen=True)
class ResultRow:
    """One configuration over its seeds."""

    label: str
    config: Record
    scores: tuple[RunScores, ...]
    """In the order of the seeds, each seed once."""
    left_out: tuple[LoadedRun, ...]
    """Its runs that do not count: unfinished, diverged, damaged."""
    repeated: tuple[LoadedRun, ...]
    """Further runs of a seed that is already there."""

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seeds(self) -> list[int]:
        return [score.run.seed for score in self.scores]

    def spread(self, quantity: str) -> Spread | None:
        """Of last, tail, best, best_on_test, averaged_last or averaged_tail over the seeds."""
        values = [getattr(score, quantity) for score in self.scores]
        return mean_spread(values) if values and None not in values else None

    def total(self, name: str) -> Spread:
        """Of a field of `Cost` over the whole run."""
        return mean_spread([getattr(score.total, name) for score in self.scores])

    def reached(self, target: float, name: str) -> Spread:
        """What reaching the target cost, over the seeds that reached it."""
        costs = [cost for score in self.scores if (cost := score.reached[target])]
        return mean_spread([getattr(cost, name) for cost in costs])


@dataclass(frozen=True)
class PairedDifference:
    """A row minus the baseline, seed by seed, in the mean of the last evaluations."""

    label: str
    seeds: tuple[int, ...]
    values: FloatArray
    mean: float
    interval: tuple[float, float]
    better: int | None
    """On how many seeds the row is better than the baseline."""
    p: float
    corrected: float = math.nan
    """By Holm over the rows of the table."""


@dataclass(frozen=True)
class ResultTable:
    """Rows that may be compared: same data, model and rounds."""

    title: str
    held_equal: Record
    rows: tuple[ResultRow, ...]
    unsaid: tuple[str, ...] = ()
    """Values that the labels leave out because most rows have them."""
    baseline: str | None = None
    differences: tuple[PairedDifference, ...] = ()

    @property
    def scores(self) -> list[RunScores]:
        return [score for row in self.rows for score in row.scores]

    @property
    def evaluations(self) -> int:
        """How many the tails are the means of; some may be of fewer."""
        return max((score.evaluations for score in self.scores), default=TAIL_EVALUATIONS)


@dataclass(frozen=True)
class Comparison:
    goal: MetricSpec
    tables: tuple[ResultTable, ...]
    unreadable: tuple[LoadedRun, ...] = ()
    """Damaged runs that do not even say what they are."""


def summarise(
    runs: Sequence[LoadedRun], goal: MetricSpec = ACCURACY, baseline: str | None = None
) -> Comparison:
    """Group the runs, score them, and compare each row with the baseline if one is named."""
    readable = [run for run in runs if run.config]
    check_metric(readable, goal.metric)
    groups = group_runs(readable, comparability_key)
    heads = [comparability_key(members[0]) for members in groups]
    tables = tuple(
        make_table(title, head, members, goal)
        for title, head, members in zip(make_titles(heads), heads, groups, strict=True)
    )
    if baseline is not None:
        tables = add_baseline_differences(tables, baseline, goal)
    return Comparison(goal, tables, tuple(run for run in runs if not run.config))


def check_metric(runs: Sequence[LoadedRun], metric: str) -> None:
    entries = ((name, value) for run in runs for row in run.rows for name, value in row.items())
    known = {name for name, value in entries if isinstance(value, int | float)} - {"round"}
    if known and metric not in known:
        raise InputError(
            unknown_name_message("metric", metric, known) + " Choose one with --metric."
        )


def make_table(
    title: str, head: Record, runs: Sequence[LoadedRun], goal: MetricSpec
) -> ResultTable:
    """Methods in the order in which they come; of each the usual row first, then the others by their settings."""
    groups = group_runs(runs, row_config)
    configs = [row_config(members[0]) for members in groups]
    rows = [
        make_row(label, config, members, goal)
        for label, config, members in zip(make_labels(configs), configs, groups, strict=True)
    ]
    methods = list(dict.fromkeys(row.method for row in rows))
    rows.sort(
        key=lambda row: (methods.index(row.method), row.label.count(" "), sort_key(row.config))
    )
    return ResultTable(title, head, tuple(rows), tuple(omitted_values(configs)))


def sort_key(config: Record) -> list[tuple[str, float, str]]:
    """Numbers by size, everything else by name."""
    return [
        (key, float(value), "") if isinstance(value, int | float) else (key, math.inf, str(value))
        for key, value in sorted(config.items())
    ]


def make_row(label: str, config: Record, runs: Sequence[LoadedRun], goal: MetricSpec) -> ResultRow:
    counted: dict[int, LoadedRun] = {}
    left_out, repeated = [], []
    for run in sorted(
        runs, key=lambda run: run.config.get("twin") is None
    ):  # of equals the one that tells more
        if not run.counts:
            left_out.append(run)
        elif not run.values(goal.metric):
            left_out.append(
                replace(run, state=RunStatus.UNMEASURED, remark=f"{goal.metric} was never recorded")
            )
        elif counted.setdefault(run.seed, run) is not run:
            repeated.append(run)
    scores = tuple(score_run(counted[seed], goal) for seed in sorted(counted))
    return ResultRow(label, config, scores, tuple(left_out), tuple(repeated))


def score_run(run: LoadedRun, goal: MetricSpec) -> RunScores:
    by_round = run.values(goal.metric)
    values = np.array(list(by_round.values()))
    averaged = np.array(list(run.values(AVERAGED + goal.metric).values()))
    return RunScores(
        run,
        last=float(values[-1]),
        tail=float(values[-TAIL_EVALUATIONS:].mean()),
        evaluations=len(values[-TAIL_EVALUATIONS:]),
        best=by_round.get(run.best_round) if run.best_round else None,
        best_on_test=best_value(values[np.isfinite(values)], goal.higher_is_better),
        averaged_last=float(averaged[-1]) if averaged.size else None,
        averaged_tail=float(averaged[-TAIL_EVALUATIONS:].mean()) if averaged.size else None,
        reached={
            target: find_cost_to_target(run, by_round, target, goal) for target in goal.targets
        },
        total=run.cost(len(run.rows)),
    )


def best_value(values: FloatArray, higher: bool | None) -> float | None:
    return (
        None
        if higher is None or not values.size
        else float(values.max() if higher else values.min())
    )


def find_cost_to_target(
    run: LoadedRun, by_round: dict[int, float], target: float, goal: MetricSpec
) -> CumulativeCost | None:
    """What was spent up to the first evaluated round that is at least as good as the target."""
    for round, value in by_round.items():
        if value >= target if goal.higher_is_better else value <= target:
            return run.cost(round)
    return None


def add_baseline_differences(
    tables: Sequence[ResultTable], baseline: str, goal: MetricSpec
) -> tuple[ResultTable, ...]:
    """Each table that has the baseline, with every other row's differences to it."""
    found = find_baseline_rows(tables, baseline)
    compared = tuple(with_differences(table, row, goal) if row else table for table, row in found)
    differences = [difference for table in compared for difference in table.differences]
    if differences and not any(difference.seeds for difference in differences):
        seeds = sorted({seed for _, row in found if row for seed in row.seeds})
        raise InputError(
            f"The baseline {baseline!r} ({'seeds ' + ', '.join(map(str, seeds)) if seeds else 'no finished run'}) has "
            "no seed in common with any other row; run both with the same seeds."
        )
    return compared


def find_baseline_rows(
    tables: Sequence[ResultTable], baseline: str
) -> list[tuple[ResultTable, ResultRow | None]]:
    """Each table with its row of that name, if it has one; a name that no table knows is refused."""
    found = [(table, find_baseline_row(table, baseline)) for table in tables]
    if not any(row for _, row in found):
        raise InputError(
            unknown_name_message(
                "baseline", baseline, (row.label for table in tables for row in table.rows)
            )
        )
    return found


def find_baseline_row(table: ResultTable, name: str) -> ResultRow | None:
    """The row with that label, its words in any order, or the only one of that method."""
    exact = [row for row in table.rows if sorted(row.label.split()) == sorted(name.split())]
    rows = exact or [row for row in table.rows if row.method == name]
    if len(rows) > 1:
        raise InputError(
            f"The baseline {name!r} could be any of {', '.join(repr(row.label) for row in rows)}; name one in full."
        )
    return rows[0] if rows else None


def with_differences(table: ResultTable, baseline: ResultRow, goal: MetricSpec) -> ResultTable:
    differences = [
        compute_difference(row, baseline, goal) for row in table.rows if row is not baseline
    ]
    tested = [number for number, found in enumerate(differences) if not math.isnan(found.p)]
    corrected = dict(zip(tested, holm([differences[number].p for number in tested]), strict=True))
    differences = [
        replace(found, corrected=float(corrected.get(number, math.nan)))
        for number, found in enumerate(differences)
    ]
    return replace(table, baseline=baseline.label, differences=tuple(differences))


def compute_difference(row: ResultRow, baseline: ResultRow, goal: MetricSpec) -> PairedDifference:
    """Over the seeds both have, on the same partition."""
    theirs = {score.run.pair: score.tail for score in baseline.scores}
    pairs = [
        (score.run.seed, score.tail - theirs[score.run.pair])
        for score in row.scores
        if score.run.pair in theirs
    ]
    values = np.array([value for _, value in pairs])
    gains = values if goal.higher_is_better else -values
    return PairedDifference(
        label=row.label,
        seeds=tuple(seed for seed, _ in pairs),
        values=values,
        mean=mean_spread(values).mean,
        interval=bootstrap_interval(values),
        better=None if goal.higher_is_better is None else int((gains > 0).sum()),
        p=wilcoxon(values) if pairs else math.nan,
    )
