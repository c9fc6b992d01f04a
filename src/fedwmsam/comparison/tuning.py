"""Hyper-parameter search by pilot runs, before a comparison.

A pilot run trains one configuration with one seed while a part of the training data is held out as
validation data. For each variant the option values with the best validation accuracy are used in
the comparison. No client trains on the validation data, and no table of the comparison shows the
pilot runs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedwmsam.comparison.grid import Grid, GridAxes, RunSpec, SettingValues, accepts_key
from fedwmsam.engine.records import read_json, read_metrics

VALIDATION_FRACTION = 0.1
"""Share of the training data that pilot runs hold out, unless the settings say otherwise."""
SCORED_EVALUATIONS = 10
"""How many of the last evaluations are averaged to the score of a pilot run."""


@dataclass(frozen=True)
class TuningResult:
    """The validation scores of one variant's pilot runs, best first."""

    variant: SettingValues
    scores: list[tuple[SettingValues, float]]
    """The tuned values of each pilot run, with its mean validation accuracy."""

    @property
    def best(self) -> SettingValues:
        """Return the values with the highest score."""
        return self.scores[0][0]


def pilot_grid(grid: Grid, axes: GridAxes, rounds: int | None) -> Grid:
    """Return the grid of the pilot runs: all values of `axes`, with the first seed only.

    Combinations whose method has none of the options are left out: they have nothing to tune.
    """
    common = {"validation": VALIDATION_FRACTION} | grid.common
    if rounds:
        common["rounds"] = rounds
    variants = []
    for values in grid.combinations():
        method = grid.method_of(values)
        if any(accepts_key(key, method) for key in axes):
            variants.append(values)
    return Grid(common, variants, axes, grid.seeds[:1])


def tune(
    grid: Grid, axes: GridAxes, rounds: int | None, run: Callable[[list[RunSpec]], list[Path]]
) -> tuple[Grid, list[TuningResult]]:
    """Return the grid with each combination's best values, and the scores they were chosen by.

    `run` carries out the pilot runs and returns their folders in the same order.
    """
    pilots = pilot_grid(grid, axes, rounds)
    specs = pilots.run_specs()
    names = [spec.folder_name for spec in specs]
    folders = dict(zip(names, run(specs), strict=True))
    variants = []
    results = []
    for values in grid.combinations():
        if values not in pilots.variants:
            variants.append(values)
            continue
        result = TuningResult(values, rank_pilot_runs(pilots, values, folders))
        results.append(result)
        variants.append(values | result.best)
    return replace(grid, variants=variants, axes={}), results


def rank_pilot_runs(
    pilots: Grid, variant: SettingValues, folders: Mapping[str, Path]
) -> list[tuple[SettingValues, float]]:
    """Return the tuned values and the score of each pilot run of a variant, best first."""
    pilots_of_variant = replace(pilots, variants=[variant])
    scores = []
    for spec, values in zip(
        pilots_of_variant.run_specs(), pilots_of_variant.combinations(), strict=True
    ):
        tuned_values = {key: value for key, value in values.items() if key in pilots.axes}
        scores.append((tuned_values, validation_score(folders[spec.folder_name])))
    return sorted(scores, key=lambda entry: -entry[1])


def validation_score(folder: Path) -> float:
    """Return the mean validation accuracy over the last evaluations of a run.

    A run that diverged or failed has the score -inf.
    """
    summary = folder / "summary.json"
    if not summary.exists() or str(read_json(summary).get("status")).startswith("diverged"):
        return -math.inf
    rows = read_metrics(folder / "metrics.jsonl")
    accuracies = [row.get("validation_accuracy") for row in rows]
    evaluated = [accuracy for accuracy in accuracies if accuracy is not None]
    last = evaluated[-SCORED_EVALUATIONS:]
    return math.fsum(last) / len(last) if last else -math.inf
