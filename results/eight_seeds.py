"""Seven methods and their averaged twins on eight fresh seeds: tables, and one forest plot.

Everything here is over the seeds that all seven methods have finished, so that it stays true while
more of the runs are added.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from paired import (
    AVERAGED,
    SPANS,
    Estimate,
    cpu_seconds,
    difference,
    format_estimate,
    format_interval,
    load_rows,
    mean_of_last,
    windows,
)
from sections import PageSection, compare_command, load_run_specs, rounds_to, targets_table

from fedwmsam.report.plots import COLOURS, MARKERS, PlotSpec
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.summary import ResultRow
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell, window_cell
from fedwmsam.statistics import mean_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAN = "eight-seeds.toml"
SPECS = load_run_specs(PLAN)
RIVALS = ("fedavg", "fedcm", "scaffold", "fedlesam-d", "fedsmoo")
README_ROWS = ("fedwmsam-plus", "fedwmsam", "fedlesam-d", "fedsmoo", "scaffold", "fedavg")
TARGETS = (0.8, 0.84, 0.86)
CONTESTS = {
    "as trained": ("fedwmsam", ""),
    "both averaged": (f"fedwmsam{AVERAGED}", AVERAGED),
    "plus": ("fedwmsam-plus", AVERAGED),
}
"""Kinds of comparison → the label of ours, and the end of the rival's label."""
Pair = tuple[str, str]
"""The labels of two rows that are compared."""
PAIRS: tuple[Pair, ...] = (
    *(("fedwmsam", rival) for rival in RIVALS),
    *((f"fedwmsam{AVERAGED}", f"{rival}{AVERAGED}") for rival in RIVALS),
    *(("fedwmsam-plus", f"{rival}{AVERAGED}") for rival in RIVALS),
    ("fedwmsam-plus", "fedwmsam"),
    ("fedwmsam-plus", f"fedwmsam{AVERAGED}"),
)


@cache
def complete_rows(runs: Path) -> dict[str, ResultRow]:
    """Return the rows of all methods and averages, over the seeds that every row has."""
    rows = load_rows(runs, PLAN)
    seeds = set.intersection(*(set(row.seeds) for row in rows.values()))
    complete = {}
    for label, row in rows.items():
        scores = tuple(score for score in row.scores if score.run.seed in seeds)
        complete[label] = replace(row, scores=scores)
    return complete


def seeds_text(runs: Path) -> str:
    """Return how many of the seeds are complete, and which."""
    seeds = complete_rows(runs)["fedwmsam"].seeds
    planned = {spec.config.seed for spec in SPECS}
    listed = ", ".join(map(str, seeds))
    so_far = " so far" if len(seeds) < len(planned) else ""
    return f"{len(seeds)} of {len(planned)} seeds{so_far}: {listed}"


def is_complete(runs: Path) -> bool:
    """Return whether all seeds of the plan are finished."""
    return len(complete_rows(runs)["fedwmsam"].seeds) == len({spec.config.seed for spec in SPECS})


def complete_runs(loaded: Sequence[LoadedRun]) -> list[LoadedRun]:
    """Return those of the runs whose seed all methods have finished."""
    seeds = complete_rows(loaded[0].path.parent)["fedwmsam"].seeds
    return [run for run in loaded if run.seed in seeds]


def display_label(label: str) -> str:
    """Return the label of a row as the tables of this plan print it."""
    return label.replace(AVERAGED, ", averaged")


def span_cell(row: ResultRow, rounds: int) -> str:
    """Return mean ± deviation over the seeds of the mean of so many last rounds."""
    quantity = mean_of_last(rounds)
    return spread_cell(mean_spread([quantity(score.run) for score in row.scores]))


def accuracy_tables(runs: Path) -> list[TextTable]:
    """Return the table of accuracies, trained and averaged models side by side."""
    rows = complete_rows(runs)
    lines = []
    for label in (*RIVALS, "fedwmsam", "fedwmsam-plus"):
        cells = []
        for end in ("", AVERAGED):
            cells += [span_cell(rows[f"{label}{end}"], rounds) for rounds in SPANS]
        lines.append((label, *cells))
    columns = [f"last {rounds}" for rounds in SPANS]
    header = ("method", *columns, *(f"averaged, {column}" for column in columns))
    return [TextTable(f"Accuracy, {seeds_text(runs)}", header, tuple(lines))]


def difference_tables(runs: Path) -> list[TextTable]:
    """Return the table of the paired differences, and which of them are leads."""
    rows = complete_rows(runs)
    lines = []
    for first, second in PAIRS:
        estimates = estimate_spans(rows[first], rows[second])
        cells = []
        for value in estimates:
            cells += [format_estimate(value), format_interval(value)]
        shares = window_cell(windows(rows[first], rows[second]))
        name = f"{display_label(first)} − {display_label(second)}"
        lines.append((name, *cells, shares, lead_word(estimates)))
    columns = []
    for rounds in SPANS:
        columns += [f"last {rounds}", "95% interval"]
    header = ("difference", *columns, "windows better / worse", "lead")
    return [TextTable(f"Paired differences, {seeds_text(runs)}", header, tuple(lines))]


def estimate_spans(first: ResultRow, second: ResultRow) -> list[Estimate]:
    """Return the differences of two rows in the means of the last 50 and of the last ten."""
    return [difference(first, second, mean_of_last(rounds)) for rounds in SPANS]


def lead_word(estimates: Sequence[Estimate]) -> str:
    """Return who leads, by the rule: both intervals leave out zero, on the same side."""
    if all(value.is_above for value in estimates):
        return "the first"
    if all(value.is_below for value in estimates):
        return "the second"
    return "open"


# Speed and cost


def target_tables(runs: Path) -> list[TextTable]:
    """Return the table of the rounds to each target."""
    rows = {display_label(label): row for label, row in complete_rows(runs).items()}
    title = f"Rounds until ten of them have this mean accuracy, {seeds_text(runs)}"
    return [targets_table(title, rows, TARGETS)]


def cost_tables(runs: Path) -> list[TextTable]:
    """Return the table of what a round costs, and what a target costs in CPU time."""
    rows = complete_rows(runs)
    lines = []
    for label in (*RIVALS, "fedwmsam", "fedwmsam-plus"):
        scores = rows[label].scores
        total = scores[0].total
        seconds = mean_spread([cpu_seconds(score.run) for score in scores])
        minutes = [cpu_seconds(score.run) * rounds_to(0.84)(score.run) / 60 for score in scores]
        lines.append(
            (
                label,
                f"{total.bytes / total.rounds / 1e6:.1f}",
                f"{total.backprops / total.rounds:.0f}",
                f"{seconds.mean:.2f} ± {seconds.deviation:.2f}",
                f"{mean(minutes):.1f}" if min(minutes) == min(minutes) else MISSING,
            )
        )
    header = ("method", "MB down + up", "backprops", "CPU s", "CPU min to a mean of .84")
    return [TextTable(f"Cost of a round, {seeds_text(runs)}", header, tuple(lines))]


# README


def readme_table(runs: Path) -> TextTable:
    """Return README's table: methods as trained and averaged, each beside the best rival."""
    rows = complete_rows(runs)
    best = best_rival(rows, "")
    best_averaged = best_rival(rows, AVERAGED)
    lines = []
    for label in README_ROWS:
        average = f"{label}{AVERAGED}"
        trained = (span_cell(rows[label], 10), contest_cell(rows, label, best))
        if label == "fedwmsam-plus":
            average = label
            trained = ("an average", MISSING)
        averaged = (span_cell(rows[average], 10), contest_cell(rows, average, best_averaged))
        lines.append((label, *trained, *averaged))
    header = (
        "method",
        "as trained",
        f"minus {best}",
        "averaged",
        f"minus {display_label(best_averaged)}",
    )
    notes = (
        "Subtracted is the best of five rivals on these seeds; the fifth, FedCM, is not shown.",
        f"FedWMSAM averaged is FedWMSAM-plus without its start: plus − that = "
        f"{contest_cell(rows, 'fedwmsam-plus', f'fedwmsam{AVERAGED}')}.",
    )
    title = f"Accuracy, mean of the last 10 rounds, {seeds_text(runs)}"
    return TextTable(title, header, tuple(lines), notes)


def best_rival(rows: dict[str, ResultRow], end: str) -> str:
    """Return the label of the rival with the largest mean of the last ten rounds."""
    labels = [f"{rival}{end}" for rival in RIVALS]
    quantity = mean_of_last(10)
    return max(labels, key=lambda label: mean(quantity(s.run) for s in rows[label].scores))


def contest_cell(rows: dict[str, ResultRow], label: str, other: str) -> str:
    """Return the difference of two rows in the last ten rounds, with its interval."""
    if label == other:
        return MISSING
    value = difference(rows[label], rows[other], mean_of_last(10))
    return f"{format_estimate(value)} ({format_interval(value)})"


# The forest plot


def forest_plots(loaded: Sequence[LoadedRun]) -> Iterator[PlotSpec]:
    """Yield the forest plot of the paired differences."""
    runs = loaded[0].path.parent
    rows = complete_rows(runs)

    def draw(figure: "Figure") -> None:
        draw_forest(rows, seeds_text(runs), figure)

    yield "forest", 3.6, draw


def draw_forest(rows: dict[str, ResultRow], seeds: str, figure: "Figure") -> None:
    """Draw each difference to a rival with its interval, and that of plus to averaged FedWMSAM."""
    axes = figure.add_subplot()
    for number, (kind, (ours, end)) in enumerate(CONTESTS.items()):
        pairs = [(rows[ours], rows[f"{rival}{end}"]) for rival in RIVALS]
        estimates = [difference(*pair, mean_of_last(50)) for pair in pairs]
        positions = [group + 0.27 * (number - 1) for group in range(len(RIVALS))]
        draw_estimates(axes, positions, estimates, number, kind)
    own = difference(rows["fedwmsam-plus"], rows[f"fedwmsam{AVERAGED}"], mean_of_last(50))
    draw_estimates(axes, [len(RIVALS)], [own], 2, "")
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(range(len(RIVALS) + 1), [*RIVALS, "fedwmsam,\naveraged"])
    axes.set_ylim(len(RIVALS) + 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel("accuracy minus the row's, last 50 rounds")
    figure.legend(loc="outside lower center", ncols=3, title=f"95% intervals, {seeds}")


def draw_estimates(
    axes: "Axes", positions: Sequence[float], estimates: Sequence[Estimate], number: int, kind: str
) -> None:
    """Draw means as markers and intervals as whiskers."""
    means = [value.mean for value in estimates]
    below = [value.mean - value.low for value in estimates]
    above = [value.high - value.mean for value in estimates]
    axes.errorbar(
        means,
        positions,
        xerr=[below, above],
        fmt=MARKERS[number],
        color=COLOURS[number],
        elinewidth=0.9,
        capsize=2,
        label=kind or None,
    )


ACCURACIES = PageSection(accuracy_tables, compare_command(PLAN), SPECS)
DIFFERENCES = PageSection(difference_tables)
SPEED = PageSection(target_tables)
COSTS = PageSection(cost_tables)
FOREST = PageSection(
    lambda runs: (), run_specs=SPECS, make_plots=forest_plots, shown_plots=("forest",)
)
