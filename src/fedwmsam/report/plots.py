"""A comparison as pictures, one column of a paper wide, that also read in grey and with any colour vision."""

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwmsam.errors import InputError
from fedwmsam.report.runs import format_value
from fedwmsam.report.series import (
    Ablation,
    Curve,
    Sweep,
    compute_curve,
    find_ablations,
    find_sweeps,
)
from fedwmsam.report.summary import TAIL_EVALUATIONS, Comparison, MetricSpec, ResultRow, ResultTable
from fedwmsam.statistics import FloatArray, Spread, mean_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND_LETTERS, BAR_LETTERS = 50, 20
WIDTH = 3.3  # inches: a column of a two-column paper
FONT = 8.0
# Okabe and Ito's colours, told apart with any colour vision, a grey for their yellow, which is too pale for lines.
# Dashes and markers tell them apart without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#999999")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (7, 2)))
MARKERS = "osD^vPX"
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\")
STYLE: Any = {
    "font.size": FONT,
    "axes.labelsize": FONT,
    "axes.titlesize": FONT,
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "legend.fontsize": FONT - 1,
    "legend.title_fontsize": FONT - 1,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.35,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedwmsam",
}
ADAPTATION_COLUMNS = ("alpha", "similarity")
MANY_EVALUATIONS = 50
X_AXIS_LABELS = {"rounds": "round", "bytes": "MB down + up", "seconds": "training seconds"}
DrawFunction = Callable[["Figure"], None]
PlotSpec = tuple[str, float, DrawFunction]
"""Its name, its height in inches and what draws it."""


def save_comparison_plots(comparison: Comparison, folder: Path, format: str = "png") -> list[Path]:
    """Every picture the runs have data for; returns the files."""
    return save_plots(comparison_plots(comparison), folder, format)


def save_plots(pictures: Iterable[PlotSpec], folder: Path, format: str = "png") -> list[Path]:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "Pictures need matplotlib, which is not installed: run `pip install fedwmsam[plot]`. "
            "(A report needs it only for --plots.)"
        ) from error
    written = []
    with rc_context(STYLE):
        for name, height, drawing in pictures:
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            drawing(figure)
            path = folder / f"{name}.{format}"
            save_figure(figure, path)
            written.append(path)
    return written


def save_figure(figure: "Figure", path: Path) -> None:
    # Without a date the same runs give the same file.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=300, metadata=metadata)
    except OSError as error:
        raise InputError(
            f"Cannot write the picture {path}: {error.strerror}; name another place."
        ) from error


def comparison_plots(comparison: Comparison) -> Iterator[PlotSpec]:
    """With several tables the names say of which."""
    names = [slug(table.title) for table in comparison.tables]
    for number, table in enumerate(comparison.tables):
        unique = names.count(names[number]) == 1
        place = (
            ""
            if len(names) == 1
            else f"-{names[number]}"
            if unique
            else f"-{names[number]}-{number + 1}"
        )
        if table.scores:
            for name, height, drawing in table_plots(table, comparison.goal):
                yield name + place, height, drawing


def slug(text: str) -> str:
    """Characters every file system takes, and not too many: a title may hold a whole path."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)[-100:].strip("-.")


def table_plots(table: ResultTable, goal: MetricSpec) -> Iterator[PlotSpec]:
    legend = legend_height(labels_with_column(table, goal.metric))
    for column in dict.fromkeys((goal.metric, "loss", *ADAPTATION_COLUMNS)):
        rows = labels_with_column(table, column)
        if rows:
            yield (
                f"{slug(column)}-over-rounds",
                2.0 + legend_height(rows),
                partial(draw_curves, table, column, "rounds"),
            )
    for against in ("bytes", "seconds"):
        if any(has_finite_points(compute_curve(row, goal.metric, against)) for row in table.rows):
            yield (
                f"{slug(goal.metric)}-over-{against}",
                2.0 + legend,
                partial(draw_curves, table, goal.metric, against),
            )
    if goal.targets:
        height = 0.95 + bars_height(
            [row.label for row in table.rows if row.scores], len(goal.targets)
        )
        yield "rounds-to-target", height, partial(draw_targets, table, goal)
    for sweep in find_sweeps(table):
        height = 2.0 + legend_height([line.label for line in sweep.lines])
        yield f"sensitivity-{slug(sweep.option)}", height, partial(draw_sweep, table, goal, sweep)
    for ablation in find_ablations(table, goal):
        height = 0.7 + bars_height(ablation.changes, 1)
        yield (
            f"ablation-{slug(ablation.reference.method)}",
            height,
            partial(draw_ablation, table, goal, ablation),
        )


def labels_with_column(table: ResultTable, column: str) -> list[str]:
    return [row.label for row in table.rows if has_finite_points(compute_curve(row, column))]


def has_finite_points(found: Curve | None) -> bool:
    return found is not None and bool(np.isfinite(found.x).any() and np.isfinite(found.mean).any())


# Styles and legends


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker; no two of the first forty are alike."""
    lap = number // len(COLOURS)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number + lap) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markeredgewidth": 0.0,
    }


def legend_columns(names: Sequence[str]) -> int:
    """As many as fit side by side: a letter is about half as wide as high."""
    widest = (
        max(len(line) for name in names for line in name.split("\n")) * 0.5 * (FONT - 1) / 72 + 0.45
    )
    return max(1, min(len(names), int(WIDTH / widest)))


def legend_height(names: Sequence[str]) -> float:
    if not names:
        return 0.0
    names = [wrap_label(name, LEGEND_LETTERS) for name in names]
    tallest = max(name.count("\n") for name in names) + 1
    return 0.15 * (math.ceil(len(names) / legend_columns(names)) * tallest + 1)  # and a title


def add_legend(figure: "Figure", axes: "Axes", title: str) -> None:
    """Below the picture, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    names = [wrap_label(name, LEGEND_LETTERS) for name in names]
    figure.legend(
        handles, names, loc="outside lower center", ncols=legend_columns(names), title=title
    )


def wrap_label(name: str, letters: int) -> str:
    """A long name on several lines."""
    return "\n".join(textwrap.wrap(name, letters, break_long_words=False))


def describe_spread(counts: Sequence[int]) -> str:
    seeds = sorted(set(counts))
    if seeds == [1]:
        return "one seed"
    return f"mean ± standard deviation, {'–'.join(map(str, (seeds[0], seeds[-1])[: len(seeds)]))} seeds"


# The pictures


def draw_curves(table: ResultTable, column: str, against: str, figure: "Figure") -> None:
    axes = figure.add_subplot()
    window = smoothing_window(table, column)
    counts, late = [], []
    for number, row in enumerate(table.rows):
        found = compute_curve(row, column, against, window)
        if found is None or not has_finite_points(found):
            continue
        look, step = line_style(number), max(1, len(found.x) // 6)
        low, high = found.mean - found.deviation, found.mean + found.deviation
        axes.plot(
            found.x,
            found.mean,
            label=row.label,
            markevery=(number * step // len(table.rows), step),
            **look,
        )
        axes.fill_between(
            found.x,
            low,
            high,
            color=look["color"],
            alpha=0.2 if len(table.rows) < 5 else 0.1,
            linewidth=0,
        )
        counts.append(len(row.scores))
        late.append(np.stack([found.mean, low, high])[:, len(found.x) // 10 :].ravel())
    if window > 1 and against != "bytes":
        zoom_y_axis(axes, np.concatenate(late))
    set_x_scale(axes, against)
    axes.set(
        xlabel=X_AXIS_LABELS[against],
        ylabel=display_name(column) + (f" (mean of last {window})" if window > 1 else ""),
    )
    axes.margins(x=0.02)
    axes.grid()
    add_legend(figure, axes, describe_spread(counts))


def set_x_scale(axes: "Axes", against: str) -> None:
    """Bytes on a logarithmic axis in megabytes, rounds as whole numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if against == "bytes":
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif against == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def smoothing_window(table: ResultTable, column: str) -> int:
    """Many noisy curves are a thicket: show the mean of the last ten, as the tables do. Schedules stay as they are."""
    longest = max(len(score.run.values(column)) for score in table.scores)
    return (
        TAIL_EVALUATIONS if longest >= MANY_EVALUATIONS and column not in ADAPTATION_COLUMNS else 1
    )


def zoom_y_axis(axes: "Axes", values: FloatArray) -> None:
    """To where the curves are after the first tenth: their climb would squeeze what differs."""
    finite = values[np.isfinite(values)]
    if finite.size and finite.max() > finite.min():
        margin = 0.05 * (finite.max() - finite.min())
        axes.set_ylim(finite.min() - margin, finite.max() + margin)


def draw_targets(table: ResultTable, goal: MetricSpec, figure: "Figure") -> None:
    """A group of bars for each row, a bar for each target."""
    axes = figure.add_subplot()
    rows = [row for row in table.rows if row.scores]
    size, longest = 0.8 / len(goal.targets), 1.0
    for number, target in enumerate(goal.targets):
        places = [group - 0.4 + size * (number + 0.5) for group in range(len(rows))]
        spreads = [row.reached(target, "rounds") for row in rows]
        ends = draw_bars(
            axes,
            places,
            spreads,
            0.9 * size,
            number,
            f"{display_name(goal.metric)} {format_value(target)}",
        )
        for place, end, row in zip(places, ends, rows, strict=True):
            text = describe_rounds_to_target(row, target)
            axes.annotate(
                text,
                (end, place),
                (2, 0),
                textcoords="offset points",
                va="center",
                fontsize=FONT - 2,
            )
        longest = max(longest, *ends)
    axes.set_xlim(0, 1.3 * longest)  # room for the words
    label_bars(axes, [row.label for row in rows])
    axes.set_xlabel("rounds")
    add_legend(figure, axes, describe_spread([len(row.scores) for row in rows]))


def describe_rounds_to_target(row: ResultRow, target: float) -> str:
    spread = row.reached(target, "rounds")
    if spread.n == 0:
        return "not reached"
    return f"{spread.mean:.3g}" + (
        "" if spread.n == len(row.scores) else f" ({spread.n} of {len(row.scores)} seeds)"
    )


def draw_sweep(table: ResultTable, goal: MetricSpec, sweep: Sweep, figure: "Figure") -> None:
    axes = figure.add_subplot()
    values = sorted({x for line in sweep.lines for x in line.x})
    logarithmic = values[0] > 0 and values[-1] / values[0] >= 10
    for number, line in enumerate(sweep.lines):
        # A little to the side each, or one line's whiskers would cover another's.
        aside = 0.01 * (number - (len(sweep.lines) - 1) / 2)
        x = [
            x * (values[-1] / values[0]) ** aside if logarithmic else x + aside * np.ptp(values)
            for x in line.x
        ]
        means, deviations = (
            [spread.mean for spread in line.spreads],
            [spread.deviation for spread in line.spreads],
        )
        axes.errorbar(x, means, deviations, label=line.label, elinewidth=0.8, **line_style(number))
    if logarithmic:
        axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(values, [format_value(value) for value in values])
    axes.set(
        xlabel=sweep.option,
        ylabel=f"{display_name(goal.metric)} (mean of last {table.evaluations})",
    )
    axes.grid()
    add_legend(
        figure, axes, describe_spread([spread.n for line in sweep.lines for spread in line.spreads])
    )


def draw_ablation(
    table: ResultTable, goal: MetricSpec, ablation: Ablation, figure: "Figure"
) -> None:
    """Bars from the reference at zero; a dot for each seed."""
    axes = figure.add_subplot()
    spreads = [mean_spread(found.values) for found in ablation.differences]
    draw_bars(axes, range(len(spreads)), spreads, 0.6, 0, "")
    for place, found in enumerate(ablation.differences):
        axes.plot(
            found.values,
            np.full(len(found.values), place),
            "o",
            color="black",
            markersize=2,
            zorder=3,
        )
    axes.axvline(0, color="black", linewidth=0.6)
    axes.locator_params(axis="x", nbins=4)
    axes.grid(axis="x")
    label_bars(axes, ablation.changes)
    # Centred below the whole picture: below the axes alone it would not fit beside long names.
    figure.supxlabel(
        f"change of {display_name(goal.metric)} (mean of last {table.evaluations}) from {ablation.reference.method}\n"
        f"{describe_spread([spread.n for spread in spreads])}; dots: seeds",
        fontsize=FONT - 1,
    )


def draw_bars(
    axes: "Axes",
    places: Sequence[float],
    spreads: Sequence[Spread],
    size: float,
    number: int,
    label: str,
) -> list[float]:
    """Horizontal bars with whiskers; returns where they end. No length is a bar of none."""
    lengths = np.nan_to_num([spread.mean for spread in spreads])
    errors = np.nan_to_num([spread.deviation for spread in spreads])
    axes.barh(
        places,
        lengths,
        size,
        label=label,
        xerr=np.where(errors > 0, errors, np.nan),
        error_kw={"linewidth": 0.8},
        color=COLOURS[number % len(COLOURS)],
        alpha=0.75,
        hatch=HATCHES[number % len(HATCHES)],
        edgecolor="white",
    )
    return [float(end) for end in lengths + errors]


def bars_height(names: Sequence[str], bars: int) -> float:
    """Inches for so many bars to each name, and for the name's lines."""
    return (
        len(names)
        * max(
            0.17 * bars, *(0.13 * (wrap_label(name, BAR_LETTERS).count("\n") + 1) for name in names)
        )
        + 0.1
    )


def label_bars(axes: "Axes", names: Sequence[str]) -> None:
    """The first on top, long names broken between their parts."""
    axes.set_yticks(np.arange(len(names)), [wrap_label(name, BAR_LETTERS) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def display_name(name: str) -> str:
    return name.replace("_", " ")
