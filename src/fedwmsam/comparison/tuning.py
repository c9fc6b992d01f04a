"""Choose option values before a comparison, on validation data that no client trains on and no table shows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedwmsam.comparison.grid import Axes, Grid, Member, Values, applies
from fedwmsam.engine.records import read_json, read_lines

SHARE = 0.1


@dataclass(frozen=True)
class Choice:
    """What one variant's pilot runs said: the score of each set of values, the best first."""

    variant: Values
    scores: list[tuple[Values, float]]

    @property
    def best(self) -> Values:
        return self.scores[0][0]


def pilot_grid(grid: Grid, axes: Axes, rounds: int | None) -> Grid:
    """One seed of every combination that has the options, with some training data held out."""
    common = {"validation": SHARE} | grid.common | ({"rounds": rounds} if rounds else {})
    able = [
        values
        for values in grid.combinations()
        if any(applies(key, grid.method(values)) for key in axes)
    ]
    return Grid(common, able, axes, grid.seeds[:1])


def choose(
    grid: Grid, axes: Axes, rounds: int | None, run: Callable[[list[Member]], list[Path]]
) -> tuple[Grid, list[Choice]]:
    """The grid with each combination's best values, and what they were chosen from."""
    pilots, chosen, choices = pilot_grid(grid, axes, rounds), [], []
    folders = dict(zip((m.folder for m in pilots.members()), run(pilots.members()), strict=True))
    for values in grid.combinations():
        if values not in pilots.variants:
            chosen.append(values)
            continue
        scores = []
        for member, point in zip(own_members(pilots, values), points(pilots, values), strict=True):
            scores.append((point, score(folders[member.folder])))
        choices.append(Choice(values, sorted(scores, key=lambda entry: -entry[1])))
        chosen.append(values | choices[-1].best)
    return replace(grid, variants=chosen, axes={}), choices


def own_members(pilots: Grid, values: Values) -> list[Member]:
    return replace(pilots, variants=[values]).members()


def points(pilots: Grid, values: Values) -> list[Values]:
    return [
        {k: v for k, v in found.items() if k in pilots.axes}
        for found in replace(pilots, variants=[values]).combinations()
    ]


def score(folder: Path) -> float:
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
