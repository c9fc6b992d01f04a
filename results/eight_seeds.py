"""Seven methods and their averaged twins on eight fresh seeds: README's table, one forest plot."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from fresh_seeds import FreshSeeds, Rows, complete_rows, display_name, span_cell
from paired import (
    AVERAGED,
    Estimate,
    difference,
    format_estimate,
    format_interval,
    mean_of_last,
)
from sections import PageSection

from fedwmsam.report.plots import COLOURS, MARKERS, PlotSpec
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import MISSING, TextTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIVALS = ("fedavg", "fedcm", "scaffold", "fedlesam-d", "fedsmoo")
EIGHT_SEEDS = FreshSeeds("eight-seeds.toml", RIVALS)
OWN_STEPS = FreshSeeds("eight-seeds-tuned.toml", RIVALS[:-1], chosen_by="tuning-step-size.toml")
"""The same at each method's own step size, which FedSMOO has none of."""
README_ROWS = ("fedwmsam-plus", "fedwmsam", "fedlesam-d", "fedsmoo", "scaffold", "fedavg")
TARGETS = (0.8, 0.84, 0.86)
CONTESTS = {
    "as trained": ("fedwmsam", ""),
    "both averaged": (f"fedwmsam{AVERAGED}", AVERAGED),
    "plus": ("fedwmsam-plus", AVERAGED),
}
"""Kinds of comparison → the name of our row, and the end of the rival's."""


# README


def readme_table(runs: Path) -> TextTable:
    """Return README's table: methods as trained and averaged, each beside the best rival."""
    rows = complete_rows(EIGHT_SEEDS, runs)
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
        f"minus {display_name(best_averaged)}",
    )
    notes = (
        "Subtracted is the best of five rivals on these seeds; the fifth, FedCM, is not shown.",
        f"FedWMSAM averaged is FedWMSAM-plus without its start: plus − that = "
        f"{contest_cell(rows, 'fedwmsam-plus', f'fedwmsam{AVERAGED}')}.",
    )
    title = f"Accuracy, mean of the last 10 rounds, {EIGHT_SEEDS.seeds_text(runs)}"
    return TextTable(title, header, tuple(lines), notes)


def best_rival(rows: Rows, end: str) -> str:
    """Return the label of the rival with the largest mean of the last ten rounds."""
    labels = [f"{rival}{end}" for rival in RIVALS]
    quantity = mean_of_last(10)
    return max(labels, key=lambda label: mean(quantity(s.run) for s in rows[label].scores))


def contest_cell(rows: Rows, label: str, other: str) -> str:
    """Return the difference of two rows in the last ten rounds, with its interval."""
    if label == other:
        return MISSING
    value = difference(rows[label], rows[other], mean_of_last(10))
    return f"{format_estimate(value)} ({format_interval(value)})"


# The forest plot


def forest_plots(loaded: Sequence[LoadedRun]) -> Iterator[PlotSpec]:
    """Yield the forest plot of the paired differences."""
    runs = loaded[0].path.parent
    rows = complete_rows(EIGHT_SEEDS, runs)

    def draw(figure: "Figure") -> None:
        draw_forest(rows, EIGHT_SEEDS.seeds_text(runs), figure)

    yield "forest", 3.6, draw


def draw_forest(rows: Rows, seeds: str, figure: "Figure") -> None:
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


TARGET_SECTION = PageSection(partial(EIGHT_SEEDS.target_tables, targets=TARGETS))
COST_SECTION = PageSection(partial(EIGHT_SEEDS.cost_tables, target=0.84))
FOREST = PageSection(
    lambda runs: (), run_specs=EIGHT_SEEDS.specs, make_plots=forest_plots, shown_plots=("forest",)
)
