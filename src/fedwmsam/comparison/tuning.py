"""Tuning before a comparison: values of settings and options, chosen on validation data.

A tuning run trains one configuration while a part of the training data is held out as validation
data. For each row of the comparison the values with the best validation accuracy are used. No
client trains on the validation data, and no table of the comparison shows the tuning runs: they lie
in a folder of their own. What was tried, what it scored and what was chosen is kept as JSON beside
that folder, and reports print it (`report/tuning_table.py`).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedwmsam.comparison.grid import (
    MAX_RUNS,
    Grid,
    GridAxes,
    RunSpec,
    SettingValues,
    accepts_key,
    check_axes,
    config_fingerprint,
    is_nonempty_list,
    parse_seeds,
    points_of,
)
from fedwmsam.engine.records import nonfinite_to_none, read_json, read_metrics
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.files import write_text
from fedwmsam.settings.config import RunConfig, requested_method
from fedwmsam.settings.method_table import known_class
from fedwmsam.settings.options import truncated_repr
from fedwmsam.statistics import mean_spread

TUNING_FOLDER = "tuning"
"""The folder of a comparison that holds its tuning runs."""
TUNING_FILE = "tuning.json"
"""The file of a comparison that says how values were chosen; it is there before the folder is."""
VALIDATION_FRACTION = 0.1
"""Share of the training data that tuning runs hold out, unless the settings say otherwise."""
SCORED_EVALUATIONS = 10
"""How many of the last evaluations are averaged to the score of a tuning run."""


# What to tune


@dataclass(frozen=True)
class TuningPlan:
    """The values to try, for all methods that accept them and for single methods."""

    axes: GridAxes = field(default_factory=dict)
    method_axes: Mapping[str, GridAxes] = field(default_factory=dict)
    rounds: int | None = None
    """Rounds of a tuning run; None for as many as the comparison's runs have."""
    seeds: Sequence[int] = ()
    """Seeds of the tuning runs; without any the first seed of the comparison."""

    def axes_of(self, method: str) -> GridAxes:
        """Return the values to try for a method; its own come before those for all methods."""
        shared = {key: values for key, values in self.axes.items() if accepts_key(key, method)}
        return shared | dict(self.method_axes.get(method, {}))


def make_plan(table: Any, grid: Grid) -> TuningPlan:
    """Return the plan in the table `tuning` of a comparison's file.

    A key with a list is tuned for all methods, one in a table named as a method for that method;
    `rounds` and `seeds` are those of the tuning runs. Raise InputError for anything else, and for
    what the comparison fixes or varies itself.
    """
    if not isinstance(table, dict):
        raise InputError("tuning must be a table of lists, such as rho = [0.01, 0.05].")
    values = dict(table)
    rounds = values.pop("rounds", None)
    seeds = parse_seeds(values.pop("seeds")) if "seeds" in values else []
    if rounds is not None and (type(rounds) is not int or rounds < 1):
        raise InputError(
            "rounds of tuning must be a whole number of at least 1, the rounds of each tuning run, "
            f"not {truncated_repr(rounds)}."
        )
    method_axes = {}
    for name in [key for key, value in values.items() if isinstance(value, dict)]:
        method_axes[method_of_table(name, grid)] = values.pop(name)
    if not values and not method_axes:
        raise InputError("Nothing is to be tuned: say what with --tune rho=0.01,0.05.")
    plan = TuningPlan(values, method_axes, rounds, seeds)
    check_tuned(plan.axes, grid)
    for method, axes in method_axes.items():
        variants = [v for v in grid.variants if grid.method_of(v) == method]
        check_tuned(axes, replace(grid, variants=variants))
    return plan


def method_of_table(name: str, grid: Grid) -> str:
    """Return the method that a table within `tuning` is for; raise InputError if it has no row."""
    methods = {grid.method_of(variant) for variant in grid.variants}
    try:
        method = requested_method({"method": name})
    except InputError:
        method = ""
    if method not in methods:
        raise InputError(unknown_name_message("method of this comparison to tune", name, methods))
    return method


def check_tuned(axes: GridAxes, grid: Grid) -> None:
    """Raise InputError unless each axis is a list of values that may be chosen for these rows."""
    if not all(map(is_nonempty_list, axes.values())):
        raise InputError("tuning must be a table of lists, such as rho = [0.01, 0.05].")
    check_axes(grid, axes, verb="tuned")
    for key in axes:
        if key in grid.axes:
            raise InputError(f"{key} is tuned and also varied by the grid; leave one out.")
        if any(f.name == key and f.metadata.get("must_match") for f in fields(RunConfig)):
            raise InputError(
                f"{key} cannot be tuned: rows that differ in it cannot be compared; vary it with "
                "the grid."
            )


# How the values were chosen


@dataclass(frozen=True, eq=False)
class TriedValues:
    """Values that were tried for a row, with the validation accuracy of each tuning seed."""

    values: SettingValues
    scores: tuple[float, ...]
    """The mean of the last evaluations; NaN for a run that diverged or failed."""

    @property
    def score(self) -> float:
        """Return the mean over the seeds, -inf if a run diverged or failed."""
        mean = math.fsum(self.scores) / len(self.scores)
        return -math.inf if math.isnan(mean) else mean


@dataclass(frozen=True, eq=False)
class TuningResult:
    """What was tried for one row of a comparison, and which of its runs use what was chosen."""

    row: str
    """The method and the values that the row has apart from the tuned ones."""
    method: str
    rounds: int
    """Rounds of a tuning run."""
    validation: float
    """Share of the training data that was held out."""
    seeds: tuple[int, ...]
    candidates: tuple[TriedValues, ...]
    """In the order of the grid."""
    runs: tuple[str, ...] = ()
    """Names of the folders of the comparison's runs with the values that were chosen."""
    asked: str = ""
    """The fingerprint of the row without the values that are tuned: the same for a larger grid."""

    @property
    def best(self) -> TriedValues:
        """Return the candidate with the highest score, the first of those that are equal."""
        return max(self.candidates, key=lambda candidate: candidate.score)

    def edges(self) -> list[str]:
        """Return the keys whose chosen value is the smallest or the largest that was tried.

        The end of the range that a setting may have is no edge: nothing lies behind it.
        """
        edges = []
        for key, value in self.best.values.items():
            tried = [candidate.values[key] for candidate in self.candidates]
            if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in tried):
                continue
            is_extreme = min(tried) < max(tried) and value in (min(tried), max(tried))
            if is_extreme and value not in range_ends(key, self.method):
                edges.append(key)
        return edges

    def ties(self) -> list[TriedValues]:
        """Return the candidates that cannot be told from the best one.

        Their mean difference to it, paired by seed, is at most one standard error of that mean.
        With one seed there is none, and only equal scores are ties.
        """
        best = self.best
        return [c for c in self.candidates if c is not best and is_tie(best, c)]

    def remarks(self) -> list[str]:
        """Return what speaks against relying on the choice, each in a few words."""
        remarks = []
        edges = self.edges()
        if edges:
            remarks.append(f"{' and '.join(edges)} at the edge of the grid")
        ties = ", ".join(words_of(candidate.values) for candidate in self.ties())
        if ties and len(self.seeds) > 1:
            remarks.append(f"within noise of {ties}")
        elif ties:
            remarks.append(f"equal to {ties}")
        return remarks


def describe_result(result: TuningResult) -> str:
    """Return one line that says which values were chosen for a row, and all scores."""
    scores = ", ".join(
        f"{words_of(candidate.values)}: {candidate.score:.4f}" for candidate in result.candidates
    )
    remarks = "".join(f"; {remark}" for remark in result.remarks())
    chosen = words_of(result.best.values)
    return f"Tuning of {result.row}: {chosen}, best on validation data ({scores}){remarks}"


def words_of(values: SettingValues) -> str:
    """Return values as they are written on the command line: "rho=0.05 lr=0.1"."""
    return " ".join(f"{key}={value}" for key, value in values.items())


def is_tie(best: TriedValues, other: TriedValues) -> bool:
    """Return whether the difference to the best is at most its standard error over the seeds."""
    if not math.isfinite(other.score):
        return False
    pairs = zip(best.scores, other.scores, strict=True)
    differences = [first - second for first, second in pairs]
    spread = mean_spread(differences)
    error = spread.deviation / math.sqrt(spread.n) if spread.n > 1 else 0.0
    return spread.mean <= error


def range_ends(key: str, method: str) -> tuple[float, ...]:
    """Return the smallest and the largest value that a setting or an option may have."""
    cls = known_class(method)
    declared = [*fields(RunConfig), *(fields(cls) if cls else ())]
    for f in declared:
        if f.name == key and f.metadata:
            return f.metadata["low"], f.metadata["high"]
    return ()


# Tuning


@dataclass(frozen=True)
class Trials:
    """The tuning runs of one combination of a grid: those of each candidate, a run for a seed."""

    values: SettingValues
    """The values of the combination, without those that are tuned."""
    row: str
    """The label of the combination."""
    candidates: Sequence[tuple[SettingValues, Sequence[RunSpec]]]
    """Empty if the method has nothing to tune."""

    def score(self, folders: Mapping[str, Path]) -> TuningResult:
        """Return the scores of the runs, which lie in `folders` by the names of their specs.

        Raise InputError if every candidate has a run that diverged or failed.
        """
        candidates = []
        for point, specs in self.candidates:
            scores = [validation_score(folders[spec.folder_name]) for spec in specs]
            candidates.append(TriedValues(point, tuple(scores)))
        specs = self.candidates[0][1]
        config = specs[0].config
        seeds = tuple(spec.config.seed for spec in specs)
        result = TuningResult(
            self.row, config.method, config.rounds, config.validation, seeds, tuple(candidates)
        )
        if result.best.score == -math.inf:
            raise InputError(
                f"All tuning runs of {self.row} diverged or failed: give other values of "
                f"{', '.join(result.best.values)}."
            )
        return result


def plan_trials(grid: Grid, plan: TuningPlan) -> list[Trials]:
    """Return the tuning runs of each combination of the grid, in its order.

    Raise InputError for an invalid configuration, and if there are too many.
    """
    common = {"validation": VALIDATION_FRACTION} | grid.common
    if plan.rounds:
        common["rounds"] = plan.rounds
    tuning_grid = replace(grid, common=common)
    seeds = plan.seeds or grid.seeds[:1]
    trials = []
    runs = 0
    for values in grid.combinations():
        axes = plan.axes_of(grid.method_of(values))
        runs += len(seeds) * math.prod(map(len, axes.values()))
        if runs > MAX_RUNS:
            raise InputError(
                f"Tuning takes more than {MAX_RUNS:,} runs: give fewer seeds, variants or values."
            )
        candidates: dict[str, tuple[SettingValues, list[RunSpec]]] = {}
        for point in points_of(axes) if axes else ():
            specs = [tuning_grid.make_spec(values | point, seed) for seed in seeds]
            candidates.setdefault(config_fingerprint(specs[0].config), (point, specs))
        row = grid.make_spec(values, grid.seeds[0]).label
        trials.append(Trials(values, row, list(candidates.values())))
    return trials


def tune(
    grid: Grid, plan: TuningPlan, run: Callable[[list[RunSpec]], list[Path]]
) -> tuple[Grid, list[TuningResult]]:
    """Return the grid with the best values of each combination, and how they were chosen.

    `run` carries out the tuning runs and returns their folders in the same order. Raise InputError
    if all runs of a combination diverged or failed.
    """
    trials = plan_trials(grid, plan)
    specs: dict[str, RunSpec] = {}
    for _, candidate_specs in chain.from_iterable(trial.candidates for trial in trials):
        specs |= {spec.folder_name: spec for spec in candidate_specs}
    folders = dict(zip(specs, run(list(specs.values())), strict=True))
    variants = []
    results = []
    for trial in trials:
        if not trial.candidates:
            variants.append(trial.values)
            continue
        result = trial.score(folders)
        values = trial.values | result.best.values
        runs = tuple(grid.make_spec(values, seed).folder_name for seed in grid.seeds)
        asked = config_fingerprint(grid.make_spec(trial.values, 0).config)
        results.append(replace(result, runs=runs, asked=asked))
        variants.append(values)
    return replace(grid, variants=variants, axes={}), results


def validation_score(folder: Path) -> float:
    """Return the mean validation accuracy over the last evaluations of a run.

    A run that diverged or failed has none: NaN.
    """
    summary = folder / "summary.json"
    if not summary.exists() or str(read_json(summary).get("status")).startswith("diverged"):
        return math.nan
    rows = read_metrics(folder / "metrics.jsonl")
    accuracies = [row.get("validation_accuracy") for row in rows]
    evaluated = [accuracy for accuracy in accuracies if accuracy is not None]
    last = evaluated[-SCORED_EVALUATIONS:]
    return math.fsum(last) / len(last) if last else math.nan


# The file that keeps the trace


def write_tuning_file(path: Path, results: Sequence[TuningResult]) -> None:
    """Write what was chosen, and keep what the file says about other runs of the comparison.

    Raise InputError if the file that is there says nothing of the kind.
    """
    runs = set(chain.from_iterable(result.runs for result in results))
    entries = [entry for entry in read_entries(path) if not runs & set(entry["runs"])]
    for result in results:
        entries.append(asdict(result) | {"chosen": result.best.values})
    write_entries(path, entries)


def write_entries(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write the file with these entries."""
    write_text(path, json.dumps(nonfinite_to_none({"rows": entries}), indent=2) + "\n")


def count_again(path: Path, specs: Sequence[RunSpec]) -> None:
    """Let runs that are asked for count, also if their values were replaced by a later tuning."""
    asked = superseded_runs(path) & {config_fingerprint(spec.config) for spec in specs}
    if asked:
        entries = []
        for entry in read_entries(path):
            runs = [run for run in entry["runs"] if fingerprint_in(run) not in asked]
            if runs:
                entries.append({**entry, "runs": runs})
        write_entries(path, entries)


def superseded_runs(path: Path) -> set[str]:
    """Return the fingerprints of runs with values that a later tuning of their row has replaced.

    None are if there is no such file, or if it says something else.
    """
    try:
        entries = read_entries(path)
    except InputError:
        return set()
    newest = {str(entry.get("asked") or number): entry for number, entry in enumerate(entries)}
    runs = chain.from_iterable(entry["runs"] for entry in entries)
    current = chain.from_iterable(entry["runs"] for entry in newest.values())
    return set(map(fingerprint_in, runs)) - set(map(fingerprint_in, current))


def fingerprint_in(folder_name: str) -> str:
    """Return the fingerprint with which the name of a comparison's run ends."""
    return folder_name.rpartition("-")[2]


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return what an earlier tuning has written, entry by entry; nothing if there was none.

    Raise InputError if the file holds something else.
    """
    entries = read_json(path).get("rows") if path.exists() else []
    if not isinstance(entries, list) or not all(map(names_runs, entries)):
        raise InputError(f"{path} does not say how values were chosen; remove or rename it.")
    return entries


def names_runs(entry: object) -> bool:
    """Return whether an entry of the file names the runs that it speaks of."""
    runs = entry.get("runs") if isinstance(entry, dict) else None
    return isinstance(runs, list) and all(isinstance(name, str) for name in runs)
