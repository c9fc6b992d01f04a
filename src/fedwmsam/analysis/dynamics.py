"""Dynamics of a run: alignment of perturbations, momentum echo and client drift, in one record.

The record has what the run recorded, what replaying its kept states gives in addition, and a
summary of both; `recording` defines the values. Groups of runs that differ only in their seed
become tables and plots.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwmsam.analysis.replay import ReplayedRun
from fedwmsam.analysis.saved_run import load_analysis, save_analysis
from fedwmsam.engine.records import Record, read_lines, round_of
from fedwmsam.errors import InputError
from fedwmsam.experiment.trust import UNTRUSTED, Trust
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
    slug,
)
from fedwmsam.report.runs import (
    LoadedRun,
    RunStatus,
    comparability_key,
    find_runs,
    group_runs,
    make_labels,
    make_titles,
    row_config,
)
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.settings.config import RECORDABLE
from fedwmsam.statistics import FloatArray, mean_spread
from fedwmsam.training.task import deterministic_torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RecordPath = tuple[str | int, ...]
"""Keys that lead to a value in a nested record."""
THOROUGH = RecordingConfig(sample=3000, ascents=1, clients=None)
"""How a replay measures alignment: more exactly than a recording during the run."""
STATES = 10
"""Default number of kept states that are replayed."""
SUCCESSIVE = 3
"""Rounds that are replayed from each kept state, as far as client memory was kept."""
PERIODS = 4
"""Early is the first of so many equal parts of the rounds, late the last."""
MAX_NAMES = 3
"""Runs that a remark names, if it holds for no more."""
DYNAMICS_FILE = "dynamics.json"
"""File with a run's dynamics."""
OSCILLATING_METRICS = ("accuracy", "loss", "similarity", "alpha")
"""Columns of the metrics whose oscillation is measured."""


def summary_paths() -> dict[str, RecordPath]:
    """Return the values of a summary by name, with the path to each in a recorded line."""
    paths: dict[str, RecordPath] = {}
    for name in (*COSINES, "radius"):
        paths[name] = ("alignment", name, "mean")
    for name in COSINES:
        for position in STEP_POSITIONS:
            paths[f"{name}_{position}"] = ("alignment", name, position)
    return paths | {
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


PATHS = summary_paths()
"""Values of a summary by name, with the path to each in a recorded line."""


def compute_dynamics(
    folder: Path,
    states: int = STATES,
    recording_config: RecordingConfig = THOROUGH,
    trust: Trust = UNTRUSTED,
) -> Record:
    """Return the dynamics of the run in this folder as one record, and write nothing.

    It has the lines that the run recorded, those of rounds replayed from so many of its kept
    states, and their means early and late in the run.
    """
    with deterministic_torch():
        run = ReplayedRun.from_folder(folder, trust)
        chosen = spread_out(run.kept_rounds(), states)
        path = folder / "recordings.jsonl"
        recorded = {round_of(line, path): line for line in read_lines(path)}
        lines = dict(recorded)
        for line in replay_states(run, chosen, recording_config):
            lines[line["round"]] = merge_lines(recorded.get(line["round"], {}), line)
        ending = last_rounds(run)
    ordered = [lines[round] for round in sorted(lines)]
    rounds = len(run.round_records)
    return {
        "method": run.config.method,
        "seed": run.config.seed,
        "rounds": rounds,
        "recorded": len(recorded),
        "replayed": chosen,
        "sample": recording_config.sample,
        "ascents": recording_config.ascents,
        "not_as_it_was": run.mismatched_rounds,
        "last_rounds": ending,
        "restless": metric_oscillation(run.round_records),
        "summary": {
            period: summarise_dynamics(lines_of_period(ordered, rounds, period))
            for period in ("early", "late")
        },
        "lines": ordered,
    }


def merge_lines(recorded: Record, replayed: Record) -> Record:
    """Return one line from a round's recording and its replay.

    The replay measures more exactly, but only the recording has compared the update with all those
    before it: its echo takes precedence.
    """
    return recorded | replayed | {"echo": replayed["echo"] | recorded.get("echo", {})}


def spread_out(rounds: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the rounds, evenly spread, the first and the last among them."""
    if len(rounds) <= count:
        return list(rounds)
    last = len(rounds) - 1
    indices = {round(number * last / max(count - 1, 1)) for number in range(count)}
    return sorted(rounds[index] for index in indices)


def replay_states(
    run: ReplayedRun, chosen: Sequence[int], recording_config: RecordingConfig
) -> Iterator[Record]:
    """Yield the line of the round after each chosen state, and those of the next rounds.

    The next rounds, up to `SUCCESSIVE` in all, have only their echo, and only as far as their
    clients' memory was kept. Straightness is measured up to the next kept state.
    """
    kept = run.kept_rounds()
    everything = DynamicsRecorder(RECORDABLE, 1, run.config.seed, recording_config)
    only_echo = DynamicsRecorder(("echo",), 10**12, run.config.seed, recording_config)
    for round in chosen:
        state = run.load_state(round)
        replayed = run.replay_round(state, everything)
        index = kept.index(round)
        if index + 1 < len(kept):
            later = kept[index + 1]
            distance = l2_norm(run.load_state(later).server["w"] - state.server["w"])
            echo = replayed.recording["echo"]
            echo["straightness"] = straightness(distance, [echo["norm"]], later - round)
        yield replayed.recording
        remaining = min(SUCCESSIVE - 1, len(run.round_records) - replayed.state.round)
        successors = run.replay_rounds(replayed.state, remaining, only_echo, replayed.past_updates)
        for successor in successors:
            yield successor.recording


def last_rounds(run: ReplayedRun) -> Record | None:
    """Return the echo of the last rounds of a finished run, replayed from its oldest checkpoint.

    Every method has it, because checkpoints hold all clients' memory. Return None if less than two
    rounds can be replayed.
    """
    state = run.load_older_checkpoint()
    if state is None:
        return None
    models = [state.server["w"]]
    for replayed in run.replay_rounds(state, len(run.round_records) - state.round):
        models.append(replayed.state.server["w"])
    updates = [after - before for before, after in pairwise(models)]
    if len(updates) < 2:
        return None
    distance = l2_norm(models[-1] - models[0])
    norms = [l2_norm(update) for update in updates]
    flip_shares = [flips(after, before) for before, after in pairwise(updates)]
    return {
        "first": state.round + 1,
        "last": state.round + len(updates),
        "autocorrelation": autocorrelation(updates, len(updates) - 1),
        "flips": mean_of(flip_shares),
        "straightness": straightness(distance, norms, len(updates)),
        "norm": sum(norms) / len(norms),
    }


def metric_oscillation(round_records: Sequence[Record]) -> Record:
    """Return how each oscillating metric fluctuates late in the run."""
    late = lines_of_period(round_records, len(round_records), "late")
    result: Record = {}
    for name in OSCILLATING_METRICS:
        values = [record[name] for record in late if record.get(name) is not None]
        if values:
            result[name] = oscillation(values)
    return result


def lines_of_period(lines: Sequence[Record], rounds: int, period: str) -> list[Record]:
    """Return the lines of the first quarter of the rounds ("early") or of the last ("late")."""
    if period == "early":
        return [line for line in lines if PERIODS * line["round"] <= rounds]
    return [line for line in lines if PERIODS * line["round"] > (PERIODS - 1) * rounds]


def summarise_dynamics(lines: Sequence[Record]) -> Record:
    """Return the mean of every value over the lines that have it.

    Beside those of `PATHS` these are the norms of the vectors that the server keeps, for itself
    and for each client.
    """
    paths = dict(PATHS)
    for line in lines:
        drift = line.get("drift", {})
        for name in drift.get("server", {}):
            paths[f"server {name}"] = ("drift", "server", name)
        for name in drift.get("memory", {}):
            paths[f"client {name}"] = ("drift", "memory", name, "mean")
    means: Record = {}
    for name, path in paths.items():
        means[name] = mean_of([value_at(line, path) for line in lines])
    return means


def value_at(record: Record, path: Sequence[str | int]) -> float | None:
    """Return the number at a path in a nested record, None if there is none."""
    value: Any = record
    for key in path:
        if isinstance(value, dict):
            is_inside = key in value
        else:
            is_inside = isinstance(value, list) and int(key) < len(value)
        if not is_inside:
            return None
        value = value[key]
    return float(value) if isinstance(value, int | float) else None


# Dynamics of saved runs


def run_dynamics(
    folders: Sequence[Path],
    states: int,
    sample: int,
    again: bool,
    plots: tuple[Path, str] | None,
    report_progress: Callable[[str], None],
    trust: Trust = UNTRUSTED,
) -> tuple[list[TextTable], list[Path]]:
    """Analyse the runs in these folders one by one; return their tables and the files written.

    Each run's record is written as soon as it is computed. A run that was analysed before is left
    as it is, unless `again` is set or it has done more rounds since. `plots` has a folder for
    plots and their format.
    """
    runs = find_readable_runs(folders)
    recording_config = replace(THOROUGH, sample=sample)
    written = []
    names_by_note: dict[str, list[str]] = {}
    for run in runs:
        before = load_analysis(run.path, DYNAMICS_FILE)
        if again or before is None or before.get("rounds") != len(run.round_records):
            report_progress(f"Replaying {run.path} …")
            record = compute_dynamics(run.path, states, recording_config, trust)
            written.append(save_analysis(run.path, DYNAMICS_FILE, record))
            for note in dynamics_notes(record):
                names_by_note.setdefault(note, []).append(run.path.name)
    for note, names in names_by_note.items():
        report_progress(f"- {list_names(names)}: {note}")
    groups = load_groups(runs)
    if plots is not None:
        written += save_plots(dynamics_plots(groups), *plots)
    return dynamics_tables(groups), written


def list_names(names: Sequence[str]) -> str:
    """Return the names of runs in a few words: all of up to three, else the first and a number."""
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{len(names)} runs ({names[0]}, …)"


def dynamics_notes(record: Record) -> list[str]:
    """Return what a reader of this run's dynamics must know."""
    notes = []
    if not record["recorded"] and not record["replayed"]:
        notes.append(
            "No state was kept and nothing recorded; run it with --record or --set keep_states=10."
        )
    elif not lines_of_period(record["lines"], record["rounds"], "late"):
        notes.append(
            "Nothing was kept or recorded in the last quarter of its rounds, which is what late "
            "means; run it with a smaller keep_states or record_every."
        )
    if record["not_as_it_was"]:
        rounds = ", ".join(map(str, record["not_as_it_was"]))
        notes.append(
            f"Rounds {rounds} did not repeat exactly; another machine or version made the run."
        )
    if record["last_rounds"] is None:
        notes.append(
            "The last rounds could not be replayed; it is not finished, or has one checkpoint only."
        )
    return notes


def find_readable_runs(folders: Sequence[Path]) -> list[LoadedRun]:
    """Return the undamaged runs in these folders that have completed a round.

    Raise InputError if there are none.
    """
    runs = [
        run
        for run in find_runs(folders)[0]
        if run.round_records and run.status is not RunStatus.DAMAGED
    ]
    if not runs:
        raise InputError(
            f"No run in {', '.join(map(str, folders))} has done a round that can be read."
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
"""Values that are plotted over the rounds, with the labels of their axes."""
PLOTS = {
    "alignment-over-rounds": ("global", "received", "local", "gradients"),
    "echo-over-rounds": ("lag_1", "straightness", "carried"),
    "drift-over-rounds": ("to_mean", "update_norm"),
}
"""Names of the plots, with the values that each shows."""


@dataclass(frozen=True)
class SeedGroup:
    """The dynamics records of one configuration, one per seed."""

    label: str
    records: tuple[Record, ...]
    table: str = ""
    """The title of the table in which a report has the runs; only these may be compared."""

    def cell(self, *path: str | int) -> str:
        """Return mean and deviation over the seeds of the value at a path, or a dash."""
        values = []
        for record in self.records:
            value = value_at(record, path)
            if value is not None:
                values.append(value)
        return spread_cell(mean_spread(values)) if values else MISSING

    def curve(self, name: str) -> tuple[list[int], FloatArray]:
        """Return the rounds in which all seeds have a value, and the values, one row per seed."""
        by_seed = [values_by_round(record, name) for record in self.records]
        rounds = sorted(set.intersection(*map(set, by_seed)))
        rows = []
        for values in by_seed:
            rows.append([values[round] for round in rounds])
        return rounds, np.array(rows)


def values_by_round(record: Record, name: str) -> dict[int, float]:
    """Return a value of `PATHS` by round, for the rounds that have it."""
    values = {}
    for line in record["lines"]:
        value = value_at(line, PATHS[name])
        if value is not None:
            values[line["round"]] = value
    return values


def load_groups(runs: Iterable[LoadedRun]) -> list[SeedGroup]:
    """Return the dynamics of the runs that have been analysed, grouped as a report does.

    A seed that was run twice counts once.
    """
    analysed = []
    records: dict[Path, Record] = {}
    for run in runs:
        if run.config and (record := load_analysis(run.path, DYNAMICS_FILE)):
            analysed.append(run)
            records[run.path] = record
    comparable_groups = group_runs(analysed, comparability_key)
    titles = make_titles([comparability_key(group[0]) for group in comparable_groups])
    groups = []
    for title, comparable_runs in zip(titles, comparable_groups, strict=True):
        run_groups = group_runs(comparable_runs, row_config)
        labels = make_labels([row_config(seeds[0]) for seeds in run_groups])
        for label, seeds in zip(labels, run_groups, strict=True):
            by_seed = {run.seed: records[run.path] for run in reversed(seeds)}
            groups.append(SeedGroup(label, tuple(reversed(by_seed.values())), title))
    return groups


def split_by_table(groups: Sequence[SeedGroup]) -> dict[str, list[SeedGroup]]:
    """Return the groups of each table of a report, by its title."""
    tables: dict[str, list[SeedGroup]] = {}
    for group in groups:
        tables.setdefault(group.table, []).append(group)
    return tables


# Tables


def dynamics_tables(groups: Sequence[SeedGroup]) -> list[TextTable]:
    """Return the tables of alignment, echo and drift, those without any value left out.

    They say which table of a report they belong to, if there are several.
    """
    tables = split_by_table(groups)
    text_tables = []
    for title, members in tables.items():
        for text_table in (alignment_table(members), echo_table(members), drift_table(members)):
            cells = chain.from_iterable(row[2:] for row in text_table.rows)
            if any(cell != MISSING for cell in cells):
                full_title = f"{text_table.title}: {title}" if len(tables) > 1 else text_table.title
                text_tables.append(replace(text_table, title=full_title))
    return text_tables


def make_rows(
    groups: Sequence[SeedGroup], columns: dict[str, RecordPath]
) -> tuple[tuple[str, ...], ...]:
    """Return a row for each group: its label, its number of seeds and a cell for each column."""
    rows = []
    for group in groups:
        cells = [group.cell(*path) for path in columns.values()]
        rows.append((group.label, str(len(group.records)), *cells))
    return tuple(rows)


def alignment_table(groups: Sequence[SeedGroup]) -> TextTable:
    """Return the table of the perturbations' alignment, late in the runs."""
    columns: dict[str, RecordPath] = {
        "global, early": ("summary", "early", "global"),
        "global": ("summary", "late", "global"),
        "received": ("summary", "late", "received"),
        "worst": ("summary", "late", "worst"),
        "own": ("summary", "late", "local"),
        "own gradient, global": ("summary", "late", "gradients"),
        "the same at the first step": ("summary", "late", "gradients_first"),
        "radius": ("summary", "late", "radius"),
    }
    samples = " or ".join(map(str, alignment_samples(groups))) or "none"
    notes = (
        "Cosines of the perturbation ε with the gradient of the whole federation's loss where the "
        "client stands (global) and at the model it received (received), with the perturbation "
        "that raises that loss most (worst) and with the gradient of its own loss (own). SAM on "
        "one machine, all data in a batch, has 1 in each.",
        "Own gradient, global: the cosine of the two gradients, whatever the method does with "
        "them.",
        f"Late is the last quarter of the rounds, early the first. Samples: {samples} of the "
        "training data; clients and their first, middle and last steps are averaged.",
    )
    return TextTable(
        "Alignment of perturbations (late)",
        ("method", "seeds", *columns),
        make_rows(groups, columns),
        notes,
    )


def alignment_samples(groups: Sequence[SeedGroup]) -> list[int]:
    """Return the numbers of samples that alignment was measured on, in rising order."""
    samples = set()
    for group in groups:
        for record in group.records:
            lines = [line for line in record["lines"] if "alignment" in line]
            samples |= {line["alignment"]["sample"] for line in lines}
    return sorted(samples)


def echo_table(groups: Sequence[SeedGroup]) -> TextTable:
    """Return the table of momentum echo, late in the runs."""
    columns: dict[str, RecordPath] = {
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
        "Lag n: cosine of a round's update of the global model with the one n rounds before; "
        "below 0 it undoes part of it. Straightness: distance between kept states over the way "
        "walked, 1 is a straight line; updates that have nothing to do with each other give 1/√n "
        "over n rounds (0.32 over ten).",
        "Last rounds: replayed one after the other from the checkpoint before the run's end. "
        "Flips: the share of parameters whose update changed its sign from one round to the next.",
        "Carried: of a local step's energy, the share that is momentum, control variates or duals.",
        "Noise: deviation of the accuracy's changes from round to round, over √2; residual: its "
        "deviation around a line; alternation: how often it turns, 2/3 for independent noise. All "
        "over the last quarter.",
    )
    return TextTable(
        "Momentum echo (late)", ("method", "seeds", *columns), make_rows(groups, columns), notes
    )


def drift_table(groups: Sequence[SeedGroup]) -> TextTable:
    """Return the table of client drift, late in the runs."""
    columns: dict[str, RecordPath] = {
        "update norm": ("summary", "late", "update_norm"),
        "distance": ("summary", "late", "distance"),
        "with the mean": ("summary", "late", "to_mean"),
        "between clients": ("summary", "late", "pairs"),
        "coherence": ("summary", "late", "coherence"),
        "similarity": ("summary", "late", "similarity"),
        "its spread": ("summary", "late", "similarity_spread"),
    }
    notes = (
        "Norms of the clients' updates, their distances to their mean and cosines with it and "
        "with each other. Coherence: ‖mean‖² over the mean of ‖update‖²; 1 if all agree, 1/S if "
        "they are unrelated.",
        "Similarity: what FedWMSAM computes for each client, with its deviation over the clients "
        "of a round. Kept: norms of the vectors the server keeps, for itself and for each client "
        "of the round.",
    )
    rows = []
    for row, group in zip(make_rows(groups, columns), groups, strict=True):
        rows.append((*row, kept_vectors_cell(group)))
    header = ("method", "seeds", *columns, "kept")
    return TextTable("Client drift (late)", header, tuple(rows), notes)


def kept_vectors_cell(group: SeedGroup) -> str:
    """Return the norms of the vectors that the server keeps, for itself and for each client."""
    names: set[str] = set()
    for record in group.records:
        names.update(record["summary"]["late"])
    cells = []
    for owner in ("server ", "client "):
        for name in sorted(names):
            if name.startswith(owner):
                cells.append(f"‖{name.split()[1]}‖ {group.cell('summary', 'late', name)}")
    return ", ".join(cells) or MISSING


# Plots


def dynamics_plots(groups: Sequence[SeedGroup]) -> list[PlotSpec]:
    """Return the plots of `PLOTS` for which some group has values over the rounds.

    With several tables their names end with what the table is about.
    """
    tables = split_by_table(groups)
    plots: list[PlotSpec] = []
    suffixes = plot_suffixes(list(tables))
    for (title, members), (name, columns) in product(tables.items(), PLOTS.items()):
        available = [column for column in columns if has_curve(members, column)]
        if available:
            height = 1.7 * len(available) + 0.3 + legend_height([group.label for group in members])
            draw = partial(draw_stack, members, available)
            plots.append((name + suffixes[title], height, draw))
    return plots


def plot_suffixes(titles: Sequence[str]) -> dict[str, str]:
    """Return the ends of the plots' names by the titles of the tables, all different."""
    if len(titles) == 1:
        return {titles[0]: ""}
    suffixes: dict[str, str] = {}
    for title in titles:
        suffix = f"-{slug(title)}"
        is_taken = suffix in suffixes.values()
        suffixes[title] = f"{suffix}-{len(suffixes) + 1}" if is_taken else suffix
    return suffixes


def has_curve(groups: Sequence[SeedGroup], name: str) -> bool:
    """Return whether some group has this value in any round."""
    return any(group.curve(name)[0] for group in groups)


def draw_stack(groups: Sequence[SeedGroup], columns: Sequence[str], figure: "Figure") -> None:
    """Draw a panel for each column, one above the other over the same rounds."""
    panels = figure.subplots(len(columns), 1, sharex=True, squeeze=False)[:, 0]
    for column, axes in zip(columns, panels, strict=True):
        for number, group in enumerate(groups):
            draw_curve(axes, group, column, number)
        axes.set_ylabel(CURVES[column])
        axes.grid()
        if column not in ("update_norm", "straightness", "carried"):
            axes.axhline(0, color="black", linewidth=0.6)
    set_x_scale(panels[-1], "rounds")
    panels[-1].set_xlabel("round")
    figure.align_ylabels()
    add_legend(figure, panels[0], describe_spread([len(group.records) for group in groups]))


def draw_curve(axes: "Axes", group: SeedGroup, column: str, number: int) -> None:
    """Draw a group's mean over its seeds, and their deviation as a band if there are several."""
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
