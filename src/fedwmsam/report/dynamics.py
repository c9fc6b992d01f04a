"""Dynamics of several runs as tables, curves and pictures: a row for each method and its settings, over its seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedwmsam.analysis.dynamics import FILE, PATHS, pick
from fedwmsam.analysis.results import load_analysis
from fedwmsam.analysis.statistics import Numbers, mean_spread
from fedwmsam.engine.records import Record
from fedwmsam.report.grouping import configuration, grouped, labels
from fedwmsam.report.plots import Picture, add_legend, legend_height, scale, spread_words, style
from fedwmsam.report.runs import Run
from fedwmsam.report.sheets import NOTHING, Sheet, spread_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = {
    "global": "ε with global gradient",
    "received": "ε with received model's",
    "local": "ε with own gradient",
    "gradients": "own with global gradient",
    "lag_1": "update with the last",
    "straightness": "straightness",
    "carried": "carried share",
    "to_mean": "update with mean",
    "update_norm": "client update norm",
}
"""What is drawn over the rounds, and its axis."""
PICTURES = {
    "alignment-over-rounds": ("global", "received", "local", "gradients"),
    "echo-over-rounds": ("lag_1", "straightness", "carried"),
    "drift-over-rounds": ("to_mean", "update_norm"),
}


@dataclass(frozen=True)
class Group:
    """One configuration's records, a seed each."""

    label: str
    records: tuple[Record, ...]

    def cell(self, *path: str | int) -> str:
        """Mean and deviation over the seeds of a number of their records."""
        known = [value for record in self.records if (value := pick(record, path)) is not None]
        return spread_cell(mean_spread(known)) if known else NOTHING

    def curve(self, name: str) -> tuple[list[int], Numbers]:
        """A number over the rounds that all seeds have it in; a line for each seed."""
        found = [
            {line["round"]: value for line in record["lines"] if (value := pick(line, PATHS[name])) is not None}
            for record in self.records
        ]
        rounds = sorted(set.intersection(*map(set, found)))
        return rounds, np.array([[values[round] for round in rounds] for values in found])


def groups_of(runs: Iterable[Run]) -> list[Group]:
    """Those runs that have been analysed."""
    analysed = [(run, record) for run in runs if run.config and (record := load_analysis(run.path, FILE))]
    records = {run.path: record for run, record in analysed}
    sets = grouped([run for run, _ in analysed], configuration)
    names = labels([configuration(members[0]) for members in sets])
    return [Group(name, tuple(records[run.path] for run in members)) for name, members in zip(names, sets, strict=True)]


# Tables


def sheets(groups: Sequence[Group]) -> list[Sheet]:
    return [alignment_sheet(groups), echo_sheet(groups), drift_sheet(groups)] if groups else []


def rows(groups: Sequence[Group], columns: dict[str, tuple[str | int, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (group.label, str(len(group.records)), *(group.cell(*path) for path in columns.values())) for group in groups
    )


def alignment_sheet(groups: Sequence[Group]) -> Sheet:
    columns: dict[str, tuple[str | int, ...]] = {
        "global, early": ("summary", "early", "global"),
        "global": ("summary", "late", "global"),
        "received": ("summary", "late", "received"),
        "worst": ("summary", "late", "worst"),
        "own": ("summary", "late", "local"),
        "own gradient, global": ("summary", "late", "gradients"),
        "the same at the first step": ("summary", "late", "gradients_first"),
        "radius": ("summary", "late", "radius"),
    }
    samples = sorted({line["alignment"]["sample"] for group in groups for record in group.records
                      for line in record["lines"] if "alignment" in line})  # fmt: skip
    notes = (
        "Cosines of the perturbation ε with the gradient of the whole federation's loss where the client stands "
        "(global) and at the model it received (received), with the perturbation that raises that loss most (worst) "
        "and with the gradient of its own loss (own). SAM on one machine, all data in a batch, has 1 in each.",
        "Own gradient, global: the cosine of the two gradients, whatever the method does with them.",
        f"Late is the last quarter of the rounds, early the first. Samples: {' or '.join(map(str, samples)) or 'none'} "
        "of the training data; clients and their first, middle and last steps are averaged.",
    )
    return Sheet("Alignment of perturbations (late)", ("method", "seeds", *columns), rows(groups, columns), notes)


def echo_sheet(groups: Sequence[Group]) -> Sheet:
    columns: dict[str, tuple[str | int, ...]] = {
        "lag 1": ("summary", "late", "lag_1"),
        "lag 2": ("summary", "late", "lag_2"),
        "straightness": ("summary", "late", "straightness"),
        "carried": ("summary", "late", "carried"),
        "lag 1, last rounds": ("last_rounds", "autocorrelation", 0),
        "lag 2, last rounds": ("last_rounds", "autocorrelation", 1),
        "flips, last rounds": ("last_rounds", "flips"),
        "straightness, last rounds": ("last_rounds", "straightness"),
        "accuracy noise": ("restless", "accuracy", "noise"),
        "residual": ("restless", "accuracy", "residual"),
        "alternation": ("restless", "accuracy", "alternation"),
    }
    notes = (
        "Lag n: cosine of a round's update of the global model with the one n rounds before; below 0 it undoes part of "
        "it. Straightness: distance between kept states over the way walked, 1 is a straight line; updates that have "
        "nothing to do with each other give 1/√n over n rounds (0.32 over ten).",
        "Last rounds: replayed one after the other from the checkpoint before the run's end. Flips: the share of "
        "parameters whose update changed its sign from one round to the next.",
        "Carried: of a local step's energy, the share that is momentum, control variates or duals.",
        "Noise: deviation of the accuracy's changes from round to round, over √2; residual: its deviation around a "
        "line; alternation: how often it turns, 2/3 for independent noise. All over the last quarter.",
    )
    return Sheet("Momentum echo (late)", ("method", "seeds", *columns), rows(groups, columns), notes)


def drift_sheet(groups: Sequence[Group]) -> Sheet:
    columns: dict[str, tuple[str | int, ...]] = {
        "update norm": ("summary", "late", "update_norm"),
        "distance": ("summary", "late", "distance"),
        "with the mean": ("summary", "late", "to_mean"),
        "between clients": ("summary", "late", "pairs"),
        "coherence": ("summary", "late", "coherence"),
        "similarity": ("summary", "late", "similarity"),
        "its spread": ("summary", "late", "similarity_spread"),
    }
    notes = (
        "Norms of the clients' updates, their distances to their mean and cosines with it and with each other. "
        "Coherence: ‖mean‖² over the mean of ‖update‖²; 1 if all agree, 1/S if they are unrelated.",
        "Similarity: what FedWMSAM computes for each client, with its deviation over the clients of a round. Kept: "
        "norms of the vectors the server keeps, for itself and for each client of the round.",
    )
    cells = tuple((*row, kept_cell(group)) for row, group in zip(rows(groups, columns), groups, strict=True))
    return Sheet("Client drift (late)", ("method", "seeds", *columns, "kept"), cells, notes)


def kept_cell(group: Group) -> str:
    names = dict.fromkeys(name for record in group.records for name in record["summary"]["late"])
    kept = [name for whose in ("server ", "client ") for name in sorted(names) if name.startswith(whose)]
    return ", ".join(f"‖{name.split()[1]}‖ {group.cell('summary', 'late', name)}" for name in kept) or NOTHING


# Pictures


def pictures(groups: Sequence[Group]) -> list[Picture]:
    """Those there is something to draw for."""
    found: list[Picture] = []
    for name, columns in PICTURES.items():
        known = [column for column in columns if any(group.curve(column)[0] for group in groups)]
        if known:
            height = 1.7 * len(known) + 0.3 + legend_height([group.label for group in groups])
            found.append((name, height, partial(draw_stack, groups, known)))
    return found


def draw_stack(groups: Sequence[Group], columns: Sequence[str], figure: "Figure") -> None:
    """One small picture above the other, all over the same rounds."""
    stack = figure.subplots(len(columns), 1, sharex=True, squeeze=False)[:, 0]
    for column, axes in zip(columns, stack, strict=True):
        for number, group in enumerate(groups):
            rounds, values = group.curve(column)
            mean = values.mean(axis=0) if rounds else np.array([])
            axes.plot(rounds, mean, label=group.label, **style(number))
            if len(values) > 1 and rounds:
                spread = values.std(axis=0, ddof=1)
                axes.fill_between(rounds, mean - spread, mean + spread, color=style(number)["color"], alpha=0.1, lw=0)
        axes.set_ylabel(CURVES[column])
        axes.grid()
        if column not in ("update_norm", "straightness", "carried"):
            axes.axhline(0, color="black", linewidth=0.6)
    scale(stack[-1], "rounds")
    stack[-1].set_xlabel("round")
    figure.align_ylabels()
    add_legend(figure, stack[0], spread_words([len(group.records) for group in groups]))
