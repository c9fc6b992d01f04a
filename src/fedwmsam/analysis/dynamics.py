"""A run's dynamics as one record: what was recorded, what its kept states give when replayed, and their summary."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwmsam.analysis.replay import ReplayedRun
from fedwmsam.analysis.saved_run import load_analysis, save_analysis
from fedwmsam.engine.records import Record, read_lines
from fedwmsam.errors import InputError
from fedwmsam.recording.alignment import COSINES, RecordingConfig, mean_of
from fedwmsam.recording.echo import autocorrelation, flips, oscillation, straightness
from fedwmsam.recording.instrumentation import STEP_POSITIONS
from fedwmsam.recording.recorder import DynamicsRecorder
from fedwmsam.recording.training_surface import l2_norm
from fedwmsam.report.plots import (
    PlotSpec,
    add_legend,
    describe_spread,
    legend_height,
    line_style,
    save_plots,
    set_x_scale,
)
from fedwmsam.report.runs import (
    LoadedRun,
    RunStatus,
    find_runs,
    group_runs,
    make_labels,
    row_config,
)
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.settings.config import RECORDABLE
from fedwmsam.statistics import FloatArray, mean_spread
from fedwmsam.training.task import deterministic_torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THOROUGH = RecordingConfig(sample=3000, ascents=1, clients=None)
STATES = 10
SUCCESSIVE = 3
"""Rounds that are replayed from each kept state, if all they read is known."""
QUARTER = 4
"""Early is the first quarter of the rounds, late the last."""
DYNAMICS_FILE = "dynamics.json"
OSCILLATING_METRICS = ("accuracy", "loss", "similarity", "alpha")
"""Columns of the metrics whose fluctuation is worth a number."""
PATHS: dict[str, tuple[str | int, ...]] = {
    **{name: ("alignment", name, "mean") for name in (*COSINES, "radius")},
    **{
        f"{name}_{moment}": ("alignment", name, moment)
        for name in COSINES
        for moment in STEP_POSITIONS
    },
    "update_norm": ("drift", "norm", "mean"),
    "update_norm_spread": ("drift", "norm", "spread"),
    "distance": ("drift", "distance", "mean"),
    "to_mean": ("drift", "to_mean", "mean"),
    "to_mean_spread": ("drift", "to_mean", "spread"),
    "pairs": ("drift", "pairs", "mean"),
    "coherence": ("drift", "coherence"),
    "similarity": ("drift", "scalars", "similarity", "mean"),
    "similarity_spread": ("drift", "scalars", "similarity", "spread"),
    "global_norm": ("echo", "norm"),
    "lag_1": ("echo", "lags", 0),
    "lag_2": ("echo", "lags", 1),
    "flips": ("echo", "flips"),
    "straightness": ("echo", "straightness"),
    "carried": ("echo", "carried", "mean"),
}
"""A number of the summary, and where a line has it."""


def compute_dynamics(
    folder: Path, states: int = STATES, care: RecordingConfig = THOROUGH
) -> Record:
    """Everything the run's folder can tell; writes nothing."""
    with deterministic_torch():
        past = ReplayedRun.of(folder)
        chosen = spread_out(past.kept(), states)
        recorded = {line["round"]: line for line in read_lines(folder / "recordings.jsonl")}
        lines = dict(recorded)
        for line in replay_states(past, chosen, care):
            lines[line["round"]] = merged(recorded.get(line["round"], {}), line)
        ending = last_rounds(past)
    ordered = [lines[round] for round in sorted(lines)]
    return {
        "method": past.config.method,
        "seed": past.config.seed,
        "rounds": len(past.rows),
        "recorded": len(recorded),
        "replayed": chosen,
        "sample": care.sample,
        "ascents": care.ascents,
        "not_as_it_was": past.strangers,
        "last_rounds": ending,
        "restless": metric_oscillation(past.rows),
        "summary": {
            name: summarise_dynamics(of_period(ordered, len(past.rows), name))
            for name in ("early", "late")
        },
        "lines": ordered,
    }


def merged(recorded: Record, replayed: Record) -> Record:
    """A replay measures with more care; but only a recording knows all the updates before."""
    return recorded | replayed | {"echo": replayed["echo"] | recorded.get("echo", {})}


def spread_out(rounds: Sequence[int], count: int) -> list[int]:
    """So many of them, the first and the last included."""
    if len(rounds) <= count:
        return list(rounds)
    return sorted(
        {rounds[round(place * (len(rounds) - 1) / max(count - 1, 1))] for place in range(count)}
    )


def replay_states(
    past: ReplayedRun, chosen: Sequence[int], care: RecordingConfig
) -> Iterator[Record]:
    """The line of each chosen round, and those of the rounds right after it, where they can be known."""
    kept = past.kept()
    thorough = DynamicsRecorder(RECORDABLE, 1, past.config.seed, care)
    brief = DynamicsRecorder(("echo",), 10**12, past.config.seed, care)
    for round in chosen:
        state = past.state(round)
        found = past.repeat(state, thorough)
        following = kept[kept.index(round) + 1 :][:1]
        for later in following:
            way = l2_norm(past.state(later).server["w"] - state.server["w"])
            found.line["echo"]["straightness"] = straightness(
                way, [found.line["echo"]["norm"]], later - round
            )
        yield found.line
        rest = min(SUCCESSIVE - 1, len(past.rows) - found.after.round)
        for repeated in past.chain(found.after, rest, brief, found.trail):
            yield repeated.line


def last_rounds(past: ReplayedRun) -> Record | None:
    """Successive updates at the end of a run that is over, from its older checkpoint; every method has that."""
    state = past.last_checkpoint()
    if state is None:
        return None
    models = [state.server["w"]]
    models += [
        repeated.after.server["w"] for repeated in past.chain(state, len(past.rows) - state.round)
    ]
    updates = [after - before for before, after in pairwise(models)]
    if len(updates) < 2:
        return None
    way, norms = l2_norm(models[-1] - models[0]), [l2_norm(update) for update in updates]
    turned = [flips(after, before) for before, after in pairwise(updates)]
    return {
        "first": state.round + 1,
        "last": state.round + len(updates),
        "autocorrelation": autocorrelation(updates, len(updates) - 1),
        "flips": mean_of(turned),
        "straightness": straightness(way, norms, len(updates)),
        "norm": sum(norms) / len(norms),
    }


def metric_oscillation(rows: Sequence[Record]) -> Record:
    """How the metrics fluctuate late in the run."""
    late = of_period(rows, len(rows), "late")
    found = {
        name: [row[name] for row in late if row.get(name) is not None]
        for name in OSCILLATING_METRICS
    }
    return {name: oscillation(values) for name, values in found.items() if values}


def of_period(lines: Sequence[Record], rounds: int, period: str) -> list[Record]:
    if period == "early":
        return [line for line in lines if QUARTER * line["round"] <= rounds]
    return [line for line in lines if QUARTER * line["round"] > (QUARTER - 1) * rounds]


def summarise_dynamics(lines: Sequence[Record]) -> Record:
    """The mean of everything over these lines, over those that have it."""
    paths: dict[str, tuple[str | int, ...]] = dict(PATHS)
    for line in lines:
        kept = line.get("drift", {})
        paths |= {f"server {name}": ("drift", "server", name) for name in kept.get("server", {})}
        paths |= {
            f"client {name}": ("drift", "memory", name, "mean") for name in kept.get("memory", {})
        }
    return {name: mean_of([value_at(line, path) for line in lines]) for name, path in paths.items()}


def value_at(line: Record, path: Sequence[str | int]) -> float | None:
    value: Any = line
    for key in path:
        inside = (
            key in value
            if isinstance(value, dict)
            else isinstance(value, list) and int(key) < len(value)
        )
        if not inside:
            return None
        value = value[key]
    return float(value) if isinstance(value, int | float) else None


# Of saved runs


def run_dynamics(
    places: Sequence[Path],
    states: int,
    sample: int,
    again: bool,
    plots: tuple[Path, str] | None,
    say: Callable[[str], None],
) -> tuple[list[TextTable], list[Path]]:
    """One run after the other, each written when it is done; a run that went on since is analysed again.

    `plots` are a folder for pictures and their format. Returns the tables and what was written.
    """
    runs, care = find_readable_runs(places), replace(THOROUGH, sample=sample)
    written = []
    for run in runs:
        before = load_analysis(run.path, DYNAMICS_FILE)
        if again or before is None or before["rounds"] != len(run.rows):
            say(f"Replaying {run.path} …")
            found = compute_dynamics(run.path, states, care)
            written.append(save_analysis(run.path, DYNAMICS_FILE, found))
            for remark in dynamics_notes(found):
                say(f"- {remark}")
    groups = groups_of(runs)
    if plots is not None:
        written += save_plots(dynamics_plots(groups), *plots)
    return dynamics_tables(groups), written


def dynamics_notes(found: Record) -> list[str]:
    """What a reader of the numbers must know of this run."""
    notes = []
    if not found["recorded"] and not found["replayed"]:
        notes.append(
            "It kept no states and recorded nothing: run it with --record or --set keep_states=10."
        )
    if found["not_as_it_was"]:
        rounds = ", ".join(map(str, found["not_as_it_was"]))
        notes.append(
            f"Rounds {rounds} did not repeat exactly: another machine or version made the run."
        )
    if found["last_rounds"] is None:
        notes.append(
            "Its last rounds could not be replayed: it is not finished, or has one checkpoint only."
        )
    return notes


def find_readable_runs(places: Sequence[Path]) -> list[LoadedRun]:
    """Runs that have a round; the others cannot be analysed."""
    runs = [run for run in find_runs(places)[0] if run.rows and run.state is not RunStatus.DAMAGED]
    if not runs:
        raise InputError(
            f"No run in {', '.join(map(str, places))} has done a round that can be read."
        )
    return runs


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
        known = [value for record in self.records if (value := value_at(record, path)) is not None]
        return spread_cell(mean_spread(known)) if known else MISSING

    def curve(self, name: str) -> tuple[list[int], FloatArray]:
        """A number over the rounds that all seeds have it in; a line for each seed."""
        found = [
            {
                line["round"]: value
                for line in record["lines"]
                if (value := value_at(line, PATHS[name])) is not None
            }
            for record in self.records
        ]
        rounds = sorted(set.intersection(*map(set, found)))
        return rounds, np.array([[values[round] for round in rounds] for values in found])


def groups_of(runs: Iterable[LoadedRun]) -> list[Group]:
    """Those runs that have been analysed."""
    analysed = [
        (run, record)
        for run in runs
        if run.config and (record := load_analysis(run.path, DYNAMICS_FILE))
    ]
    records = {run.path: record for run, record in analysed}
    sets = group_runs([run for run, _ in analysed], row_config)
    names = make_labels([row_config(members[0]) for members in sets])
    return [
        Group(name, tuple(records[run.path] for run in members))
        for name, members in zip(names, sets, strict=True)
    ]


# Tables


def dynamics_tables(groups: Sequence[Group]) -> list[TextTable]:
    return [alignment_sheet(groups), echo_sheet(groups), drift_sheet(groups)] if groups else []


def rows(
    groups: Sequence[Group], columns: dict[str, tuple[str | int, ...]]
) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (group.label, str(len(group.records)), *(group.cell(*path) for path in columns.values()))
        for group in groups
    )


def alignment_sheet(groups: Sequence[Group]) -> TextTable:
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
    samples = sorted(
        {
            line["alignment"]["sample"]
            for group in groups
            for record in group.records
            for line in record["lines"]
            if "alignment" in line
        }
    )
    notes = (
        "Cosines of the perturbation ε with the gradient of the whole federation's loss where the client stands "
        "(global) and at the model it received (received), with the perturbation that raises that loss most (worst) "
        "and with the gradient of its own loss (own). SAM on one machine, all data in a batch, has 1 in each.",
        "Own gradient, global: the cosine of the two gradients, whatever the method does with them.",
        f"Late is the last quarter of the rounds, early the first. Samples: {' or '.join(map(str, samples)) or 'none'} "
        "of the training data; clients and their first, middle and last steps are averaged.",
    )
    return TextTable(
        "Alignment of perturbations (late)",
        ("method", "seeds", *columns),
        rows(groups, columns),
        notes,
    )


def echo_sheet(groups: Sequence[Group]) -> TextTable:
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
    return TextTable(
        "Momentum echo (late)", ("method", "seeds", *columns), rows(groups, columns), notes
    )


def drift_sheet(groups: Sequence[Group]) -> TextTable:
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
    cells = tuple(
        (*row, kept_cell(group)) for row, group in zip(rows(groups, columns), groups, strict=True)
    )
    return TextTable("Client drift (late)", ("method", "seeds", *columns, "kept"), cells, notes)


def kept_cell(group: Group) -> str:
    names = dict.fromkeys(name for record in group.records for name in record["summary"]["late"])
    kept = [
        name for whose in ("server ", "client ") for name in sorted(names) if name.startswith(whose)
    ]
    return (
        ", ".join(f"‖{name.split()[1]}‖ {group.cell('summary', 'late', name)}" for name in kept)
        or MISSING
    )


# Pictures


def dynamics_plots(groups: Sequence[Group]) -> list[PlotSpec]:
    """Those there is something to draw for."""
    found: list[PlotSpec] = []
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
            axes.plot(rounds, mean, label=group.label, **line_style(number))
            if len(values) > 1 and rounds:
                spread = values.std(axis=0, ddof=1)
                axes.fill_between(
                    rounds,
                    mean - spread,
                    mean + spread,
                    color=line_style(number)["color"],
                    alpha=0.1,
                    lw=0,
                )
        axes.set_ylabel(CURVES[column])
        axes.grid()
        if column not in ("update_norm", "straightness", "carried"):
            axes.axhline(0, color="black", linewidth=0.6)
    set_x_scale(stack[-1], "rounds")
    stack[-1].set_xlabel("round")
    figure.align_ylabels()
    add_legend(figure, stack[0], describe_spread([len(group.records) for group in groups]))
