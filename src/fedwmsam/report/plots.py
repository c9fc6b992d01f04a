"""Static plots of a comparison, one column of a paper wide.

They can be read in grey and with any colour vision. `table_plots` lists the plots of a table, each
as a name, a height and a function that draws it; one adds a plot by yielding another there. What is
drawn is computed in `report/series.py`.
"""

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError, install_command
from fedwmsam.report.output_files import own_file
from fedwmsam.report.runs import format_value
from fedwmsam.report.series import (
    Ablation,
    Curve,
    Sweep,
    compute_curve,
    find_ablations,
    find_sweeps,
)
from fedwmsam.report.summary import TAIL_EVALUATIONS, Comparison, Goal, ResultRow, ResultTable
from fedwmsam.statistics import FloatArray, Spread, mean_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND_LETTERS = 50
"""Letters of a name in a legend before it goes on in the next line."""
BAR_LETTERS = 20
"""Letters of a name next to bars before it goes on in the next line."""
WIDTH = 3.3
"""Inches: a column of a two-column paper."""
FONT = 8.0
"""Points of most text."""
# Okabe and Ito's colours can be told apart with any colour vision. Grey stands for their yellow,
# which is too pale for lines. Dashes and markers tell the lines apart without colour.
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
"""Columns that show how FedWMSAM adapts."""
MANY_EVALUATIONS = 50
"""Evaluations of a run from which on its curves are smoothed."""
X_AXIS_LABELS = {"rounds": "round", "bytes": "MB down + up", "seconds": "training seconds"}
"""Fields of `CumulativeCost` that are x-axes, and their labels."""
DrawFunction = Callable[["Figure"], None]
PlotSpec = tuple[str, float, DrawFunction]
"""The name of a plot, its height in inches and the function that draws it."""


def save_comparison_plots(comparison: Comparison, folder: Path, format: str = "png") -> list[Path]:
    """Save every plot for which the runs have data, and return the paths of the files."""
    return save_plots(comparison_plots(comparison), folder, format)


def save_plots(plots: Iterable[PlotSpec], folder: Path, format: str = "png") -> list[Path]:
    """Draw the plots, save each in the folder under its name, and return the paths of the files.

    Raise InputError if Matplotlib is not installed or a file cannot be written.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    paths = []
    with rc_context(STYLE):
        for name, height, draw in plots:
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            draw(figure)
            path = folder / f"{name}.{format}"
            save_figure(figure, path)
            paths.append(path)
    return paths


def require_matplotlib() -> None:
    """Raise InputError if Matplotlib is not installed, so that nothing is written before."""
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise InputError(
            "Pictures need matplotlib, which is not installed (a report needs it only for "
            f"--plots): {install_command('plot')}"
        ) from error


def save_figure(figure: "Figure", path: Path) -> None:
    """Save a figure so that the same runs give the same file.

    Raise InputError if the file cannot be written.
    """
    # Matplotlib would put the date into these formats.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    with own_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=300, metadata=metadata)


def comparison_plots(comparison: Comparison) -> Iterator[PlotSpec]:
    """Yield the plots of all tables; with several tables their names end with that of the table."""
    slugs = [slug(table.title) for table in comparison.tables]
    for index, table in enumerate(comparison.tables):
        suffix = ""
        if len(slugs) > 1:
            suffix = f"-{slugs[index]}"
        if slugs.count(slugs[index]) > 1:
            suffix += f"-{index + 1}"
        if table.scores:
            for name, height, draw in table_plots(table, comparison.goal):
                yield name + suffix, height, draw


def slug(text: str) -> str:
    """Return the text as part of a file name.

    It has only characters that every file system takes, and at most 100 of them: a title may hold
    an entire path.
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)[-100:].strip("-.")


def table_plots(table: ResultTable, goal: Goal) -> Iterator[PlotSpec]:
    """Yield the plots of a table of which at least one row has results."""
    yield from curve_plots(table, goal)
    if goal.targets:
        labels = [row.label for row in table.rows if row.scores]
        height = 0.95 + bars_height(labels, len(goal.targets))
        yield "rounds-to-target", height, partial(draw_targets, table, goal)
    for sweep in find_sweeps(table):
        height = 2.0 + legend_height([line.label for line in sweep.lines])
        yield f"sensitivity-{slug(sweep.option)}", height, partial(draw_sweep, table, goal, sweep)
    for ablation in find_ablations(table, goal):
        height = 0.7 + bars_height(ablation.changes, 1)
        name = f"ablation-{slug(describe_reference(ablation))}"
        yield name, height, partial(draw_ablation, table, goal, ablation)


def curve_plots(table: ResultTable, goal: Goal) -> Iterator[PlotSpec]:
    """Yield the plots of the metric and other columns over the rounds, then over the costs."""
    for column in dict.fromkeys((goal.metric, "loss", *ADAPTATION_COLUMNS)):
        labels = labels_with_column(table, column)
        if labels:
            height = 2.0 + legend_height(labels)
            draw = partial(draw_curves, table, column, "rounds")
            yield f"{slug(column)}-over-rounds", height, draw
    height = 2.0 + legend_height(labels_with_column(table, goal.metric))
    for x_axis in ("bytes", "seconds"):
        curves = [compute_curve(row, goal.metric, x_axis) for row in table.rows]
        if any(map(has_finite_points, curves)):
            draw = partial(draw_curves, table, goal.metric, x_axis)
            yield f"{slug(goal.metric)}-over-{x_axis}", height, draw


def labels_with_column(table: ResultTable, column: str) -> list[str]:
    """Return the labels of the rows that have a curve of the column."""
    return [row.label for row in table.rows if has_finite_points(compute_curve(row, column))]


def has_finite_points(curve: Curve | None) -> bool:
    """Return whether there is anything to draw of a curve."""
    return curve is not None and bool(np.isfinite(curve.x).any() and np.isfinite(curve.mean).any())


# Styles and legends


def line_style(number: int) -> dict[str, Any]:
    """Return colour, dashes and marker of a line; the first forty lines all look different."""
    lap = number // len(COLOURS)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number + lap) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markeredgewidth": 0.0,
    }


def row_styles(rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Return the style of the line of each row of a table.

    A row and its averaged model have one colour. Where there are averaged models, dashes tell them
    from the trained ones, whose lines are solid.
    """
    if not any(row.is_averaged_model for row in rows):
        return list(map(line_style, range(len(rows))))
    configs: list[Record] = []
    styles = []
    for row in rows:
        if row.trained_config not in configs:
            configs.append(row.trained_config)
        number = configs.index(row.trained_config)
        lap = number // len(COLOURS)
        dashes = DASHES[(2 * lap + row.is_averaged_model) % len(DASHES)]
        styles.append(line_style(number) | {"linestyle": dashes})
    return styles


def legend_columns(names: Sequence[str]) -> int:
    """Return how many of the names, which may have several lines, fit side by side."""
    lines = "\n".join(names).split("\n")
    # A letter is about half as wide as it is high.
    widest = max(len(line) for line in lines) * 0.5 * (FONT - 1) / 72 + 0.45
    return max(1, min(len(names), int(WIDTH / widest)))


def legend_height(names: Sequence[str]) -> float:
    """Return the height in inches of a legend with these names and a title, 0 without names."""
    if not names:
        return 0.0
    names = [wrap_label(name, LEGEND_LETTERS) for name in names]
    lines_per_name = max(name.count("\n") for name in names) + 1
    rows = math.ceil(len(names) / legend_columns(names))
    return 0.15 * (rows * lines_per_name + 1)


def add_legend(figure: "Figure", axes: "Axes", title: str) -> None:
    """Add the legend below the plot, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    names = [wrap_label(name, LEGEND_LETTERS) for name in names]
    columns = legend_columns(names)
    figure.legend(handles, names, loc="outside lower center", ncols=columns, title=title)


def wrap_label(name: str, letters: int) -> str:
    """Return a long name on several lines of about so many letters."""
    return "\n".join(textwrap.wrap(plain_text(name), letters, break_long_words=False))


def plain_text(name: str) -> str:
    """Return a name so that Matplotlib takes no part of it for a formula."""
    return name.replace("$", r"\$")


def describe_spread(seed_counts: Sequence[int]) -> str:
    """Return a legend's title: over how many seeds the lines or bars of a plot are."""
    counts = sorted(set(seed_counts))
    if counts == [1]:
        return "one seed"
    seeds = f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"mean ± standard deviation, {seeds} seeds"


# Curves


def draw_curves(table: ResultTable, column: str, x_axis: str, figure: "Figure") -> None:
    """Draw a column of the metrics over an x-axis of `X_AXIS_LABELS`, a line for each row."""
    axes = figure.add_subplot()
    window = smoothing_window(table, column)
    seed_counts = []
    late_values = []
    styles = row_styles(table.rows)
    for number, row in enumerate(table.rows):
        curve = compute_curve(row, column, x_axis, window)
        if curve is None or not has_finite_points(curve):
            continue
        draw_curve(axes, curve, row.label, styles[number], number, len(table.rows))
        seed_counts.append(len(row.scores))
        late_values.append(values_after_first_tenth(curve))
    if window > 1 and x_axis != "bytes":
        zoom_y_axis(axes, np.concatenate(late_values))
    set_x_scale(axes, x_axis)
    smoothing = f" (mean of last {window})" if window > 1 else ""
    axes.set(xlabel=X_AXIS_LABELS[x_axis], ylabel=plain_text(display_name(column)) + smoothing)
    axes.margins(x=0.02)
    axes.grid()
    add_legend(figure, axes, describe_spread(seed_counts))


def draw_curve(
    axes: "Axes", curve: Curve, label: str, style: dict[str, Any], number: int, lines: int
) -> None:
    """Draw one of so many lines with its deviation as a band and a few markers."""
    step = max(1, len(curve.x) // 6)
    markers = (number * step // lines, step)
    axes.plot(curve.x, curve.mean, label=label, markevery=markers, **style)
    axes.fill_between(
        curve.x,
        curve.mean - curve.deviation,
        curve.mean + curve.deviation,
        color=style["color"],
        alpha=0.2 if lines < 5 else 0.1,
        linewidth=0,
    )


def values_after_first_tenth(curve: Curve) -> FloatArray:
    """Return the means and the bounds of the band of a curve without its first tenth."""
    low = curve.mean - curve.deviation
    high = curve.mean + curve.deviation
    values: FloatArray = np.stack([curve.mean, low, high])[:, len(curve.x) // 10 :].ravel()
    return values


def set_x_scale(axes: "Axes", x_axis: str) -> None:
    """Show bytes on a logarithmic axis in megabytes, and rounds as integers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if x_axis == "bytes":
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif x_axis == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def smoothing_window(table: ResultTable, column: str) -> int:
    """Return over how many evaluations the curves of a column are averaged.

    Many noisy curves cannot be told apart, so long ones show the mean of the last ten, as the
    tables do. The columns of the adaptation, which are not noisy, are shown as they are.
    """
    longest = max(len(score.run.values_by_round(column)) for score in table.scores)
    is_noisy = column not in ADAPTATION_COLUMNS
    return TAIL_EVALUATIONS if is_noisy and longest >= MANY_EVALUATIONS else 1


def zoom_y_axis(axes: "Axes", values: FloatArray) -> None:
    """Limit the y-axis to the values: the climb at the start would squeeze what differs later."""
    finite = values[np.isfinite(values)]
    if finite.size and finite.max() > finite.min():
        margin = 0.05 * (finite.max() - finite.min())
        axes.set_ylim(finite.min() - margin, finite.max() + margin)


# Rounds to targets


def draw_targets(table: ResultTable, goal: Goal, figure: "Figure") -> None:
    """Draw the rounds to each target: a group of bars for each row, a bar for each target."""
    axes = figure.add_subplot()
    rows = [row for row in table.rows if row.scores]
    size = 0.8 / len(goal.targets)
    longest = 1.0
    for number, target in enumerate(goal.targets):
        positions = [group - 0.4 + size * (number + 0.5) for group in range(len(rows))]
        spreads = [row.reached(target, "rounds") for row in rows]
        label = f"{display_name(goal.metric)} {format_value(target)}"
        ends = draw_bars(axes, positions, spreads, 0.9 * size, number, label)
        for position, end, row in zip(positions, ends, rows, strict=True):
            axes.annotate(
                describe_rounds_to_target(row, target),
                (end, position),
                (2, 0),
                textcoords="offset points",
                va="center",
                fontsize=FONT - 2,
            )
        longest = max(longest, *ends)
    axes.set_xlim(0, 1.3 * longest)  # This leaves space for the words at the bars' ends.
    label_bars(axes, [row.label for row in rows])
    smoothing = f" (mean of last {goal.target_window})" if goal.target_window > 1 else ""
    axes.set_xlabel(f"rounds{smoothing}")
    add_legend(figure, axes, describe_spread([len(row.scores) for row in rows]))


def describe_rounds_to_target(row: ResultRow, target: float) -> str:
    """Return the words at the end of a bar: the mean rounds, and how many seeds reached them."""
    spread = row.reached(target, "rounds")
    if spread.n == 0:
        return "not reached"
    seeds = "" if spread.n == len(row.scores) else f" ({spread.n} of {len(row.scores)} seeds)"
    return f"{spread.mean:.3g}{seeds}"


# Sweeps


def draw_sweep(table: ResultTable, goal: Goal, sweep: Sweep, figure: "Figure") -> None:
    """Draw the results over the values of the option, a line with whiskers for each group."""
    axes = figure.add_subplot()
    values = sorted(set(chain.from_iterable(line.x for line in sweep.lines)))
    is_logarithmic = values[0] > 0 and values[-1] / values[0] >= 10
    for number, line in enumerate(sweep.lines):
        # Each line is moved a little to the side, or its whiskers would cover another's.
        offset = 0.01 * (number - (len(sweep.lines) - 1) / 2)
        if is_logarithmic:
            x = [value * (values[-1] / values[0]) ** offset for value in line.x]
        else:
            x = [value + offset * np.ptp(values) for value in line.x]
        means = [spread.mean for spread in line.spreads]
        deviations = [spread.deviation for spread in line.spreads]
        axes.errorbar(x, means, deviations, label=line.label, elinewidth=0.8, **line_style(number))
    if is_logarithmic:
        axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(values, [format_value(value) for value in values])
    metric = f"{display_name(goal.metric)} (mean of last {table.evaluations})"
    axes.set(xlabel=plain_text(sweep.option), ylabel=plain_text(metric))
    axes.grid()
    spreads = chain.from_iterable(line.spreads for line in sweep.lines)
    add_legend(figure, axes, describe_spread([spread.n for spread in spreads]))


# Ablations


def draw_ablation(table: ResultTable, goal: Goal, ablation: Ablation, figure: "Figure") -> None:
    """Draw a bar for each change, from the reference at zero, and a dot for each seed."""
    axes = figure.add_subplot()
    spreads = [mean_spread(difference.values) for difference in ablation.differences]
    draw_bars(axes, range(len(spreads)), spreads, 0.6, 0, "")
    for position, difference in enumerate(ablation.differences):
        y = np.full(len(difference.values), position)
        axes.plot(difference.values, y, "o", color="black", markersize=2, zorder=3)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.locator_params(axis="x", nbins=4)
    axes.grid(axis="x")
    label_bars(axes, ablation.changes)
    metric = f"{display_name(goal.metric)} (mean of last {table.evaluations})"
    # It is centred below the entire figure: below the axes alone it would not fit next to long
    # names.
    figure.supxlabel(
        f"change of {plain_text(f'{metric} from {describe_reference(ablation)}')}\n"
        f"{describe_spread([spread.n for spread in spreads])}; dots: seeds",
        fontsize=FONT - 1,
    )


def describe_reference(ablation: Ablation) -> str:
    """Return the method of an ablation, and which average of its models it is of, if any."""
    reference = ablation.reference
    if not reference.is_averaged_model:
        return reference.method
    return f"{reference.method} averaged twin={format_value(reference.config['twin'])}"


# Bars


def draw_bars(
    axes: "Axes",
    positions: Sequence[float],
    spreads: Sequence[Spread],
    size: float,
    number: int,
    label: str,
) -> list[float]:
    """Draw horizontal bars with whiskers, and return where they end.

    A spread without a mean is a bar of length zero.
    """
    lengths = np.nan_to_num([spread.mean for spread in spreads])
    errors = np.nan_to_num([spread.deviation for spread in spreads])
    axes.barh(
        positions,
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
    """Return the height in inches of so many bars to each name, and of the names' lines."""
    line_counts = [wrap_label(name, BAR_LETTERS).count("\n") + 1 for name in names]
    height_per_name = max(0.17 * bars, *(0.13 * count for count in line_counts))
    return len(names) * height_per_name + 0.1


def label_bars(axes: "Axes", names: Sequence[str]) -> None:
    """Label the bars, the first on top, with long names broken between their parts."""
    axes.set_yticks(np.arange(len(names)), [wrap_label(name, BAR_LETTERS) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def display_name(name: str) -> str:
    """Return the name of a column as a reader sees it, with spaces for underscores."""
    return name.replace("_", " ")
