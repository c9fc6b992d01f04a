"""Choose option values before a comparison, on validation data that no client trains on and no table shows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedwmsam.comparison.grid import Grid, GridAxes, RunSpec, SettingValues, accepts_key
from fedwmsam.engine.records import read_json, read_lines

VALIDATION_FRACTION = 0.1


@dataclass(frozen=True)
class TuningResult:
    """What one variant's pilot runs said: the score of each set of values, the best first."""

    variant: SettingValues
    scores: list[tuple[SettingValues, float]]

    @property
    def best(self) -> SettingValues:
        return self.scores[0][0]


def pilot_grid(grid: Grid, axes: GridAxes, rounds: int | None) -> Grid:
    """One seed of every combination that has the options, with some training data held out."""
    common = (
        {"validation": VALIDATION_FRACTION} | grid.common | ({"rounds": rounds} if rounds else {})
    )
    able = [
        values
        for values in grid.combinations()
        if any(accepts_key(key, grid.method(values)) for key in axes)
    ]
    return Grid(common, able, axes, grid.seeds[:1])


def tune(
    grid: Grid, axes: GridAxes, rounds: int | None, run: Callable[[list[RunSpec]], list[Path]]
) -> tuple[Grid, list[TuningResult]]:
    """The grid with each combination's best values, and what they were chosen from."""
    pilots, chosen, choices = pilot_grid(grid, axes, rounds), [], []
    folders = dict(zip((m.folder for m in pilots.members()), run(pilots.members()), strict=True))
    for values in grid.combinations():
        if values not in pilots.variants:
            chosen.append(values)
            continue
        scores = []
        for member, point in zip(
            run_specs_for(pilots, values), tuned_values_for(pilots, values), strict=True
        ):
            scores.append((point, validation_score(folders[member.folder])))
        choices.append(TuningResult(values, sorted(scores, key=lambda entry: -entry[1])))
        chosen.append(values | choices[-1].best)
    return replace(grid, variants=chosen, axes={}), choices


def run_specs_for(pilots: Grid, values: SettingValues) -> list[RunSpec]:
    return replace(pilots, variants=[values]).members()


def tuned_values_for(pilots: Grid, values: SettingValues) -> list[SettingValues]:
    return [
        {k: v for k, v in found.items() if k in pilots.axes}
        for found in replace(pilots, variants=[values]).combinations()
    ]


def validation_score(folder: Path) -> float:
    """Mean validation accuracy over the last ten evaluations; a run that diverged or failed counts for nothing."""
    summary = folder / "summary.json"
    if not summary.exists() or str(read_json(summary).get("status")).startswith("diverged"):
        return -math.inf
    rows = [
        row
        for row in read_lines(folder / "metrics.jsonl")
        if row.get("validation_accuracy") is not None
    ]
    values = [row["validation_accuracy"] for row in rows[-10:]]
    return math.fsum(values) / len(values) if values else -math.inf
