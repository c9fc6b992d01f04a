"""A partition as a chart, client by class: as text in the terminal, as a heat map in a file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from fedwmsam.data.partitions.partition import (
    IntArray,
    Partition,
    measure_heterogeneity,
)
from fedwmsam.errors import InputError, install_command, printable, unknown_name_message
from fedwmsam.report.output_files import output_file
from fedwmsam.statistics import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure

ALL_SHOWN = 40
"""Clients up to which the terminal shows all of them."""
FIRST_SHOWN = 30
"""Clients that the terminal shows if there are more."""
BLOCKS = "·▁▂▃▄▅▆▇█"
"""The levels of a cell in the terminal, from none to most."""
PLAIN_BLOCKS = " .:-=+*#@"
"""The same levels for terminals that have only ASCII."""
SIZE_BAR = 12
"""Characters of the longest bar that shows a client's number of samples."""
SUFFIXES = (".png", ".svg", ".pdf")
COLUMN_INCHES = 3.5
"""The column width of two-column papers."""


def _round_steps() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50, …: steps between the labels of an axis."""
    for power in range(9):
        yield from (10**power, 2 * 10**power, 5 * 10**power)


_TICK_STEPS = tuple(_round_steps())


# In the terminal


def make_partition_chart(partition: Partition, class_names: Sequence[str] = ()) -> RenderableType:
    """Return the chart for the terminal.

    It has a row for each client, a column for each class, and measures of heterogeneity below.
    """
    return _Chart(partition, tuple(class_names))


@dataclass(frozen=True)
class _Chart:
    partition: Partition
    class_names: tuple[str, ...]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        clients = len(self.partition.class_counts)
        shown = clients if clients <= ALL_SHOWN else FIRST_SHOWN
        yield Text(_headline(self.partition), style="bold")
        yield from self._client_rows(shown, options)
        yield from (Text(line) for line in _statistics_lines(self.partition))
        if self.class_names:
            names = [f"{index} {printable(name)}" for index, name in enumerate(self.class_names)]
            yield Text(f"Classes: {', '.join(names)}")

    def _client_rows(self, shown: int, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the header, a line for each of the first clients, and how to read them."""
        counts = self.partition.class_counts
        sizes = counts.sum(axis=1)
        blocks = PLAIN_BLOCKS if options.ascii_only else BLOCKS
        margin = len(str(shown - 1)) + 2
        size_width = len(str(sizes.max()))
        available = options.max_width - margin - size_width - 1
        merged, width = _column_layout(counts.shape[1], available)
        shares = _shares(_merge_classes(counts, merged))[:shown]
        bar_length = min(SIZE_BAR, available - shares.shape[1] * width - 1)
        yield _header(shares.shape[1], merged, margin, width)
        for client, client_shares in enumerate(shares):
            levels = _levels(client_shares, shares.max())
            cells = "".join(_cell(level, width, blocks) for level in levels)
            bar = _size_bar(sizes[client] / sizes.max(), bar_length, options.ascii_only)
            line = Text(f"{client:>{margin - 2}}  ", style="dim") + Text(cells, style="cyan")
            line.append(f" {sizes[client]:>{size_width}}")
            line.append(f" {bar}", style="dim")
            line.rstrip()
            yield line
        if shown < len(counts):
            yield Text(f"and {len(counts) - shown} more clients", style="dim")
        yield Text(
            f"Column height: share of the client's samples, full = {shares.max():.0%}; right: "
            "samples"
        )


def _column_layout(classes: int, width: int) -> tuple[int, int]:
    """Return how many classes a column merges so that all fit, and how wide a column is."""
    width = max(width, 1)
    merged = -(-classes // width)
    columns = -(-classes // merged)
    return merged, min(3, max(1, width // columns))


def _merge_classes(counts: IntArray, merged: int) -> FloatArray:
    """Return the counts with every `merged` classes added up."""
    result: FloatArray = np.add.reduceat(
        counts.astype(np.float64), np.arange(0, counts.shape[1], merged), axis=1
    )
    return result


def _shares(counts: FloatArray) -> FloatArray:
    """Return each client's counts as shares of its samples."""
    result: FloatArray = counts / counts.sum(axis=1, keepdims=True)
    return result


def _levels(shares: FloatArray, max_share: float) -> list[int]:
    """Return the index in BLOCKS that stands for each share."""
    steps = len(BLOCKS) - 1
    # It is rounded up, so that a single sample shows. The small subtraction keeps 3/8 of the
    # largest share from becoming step 4.
    return [int(level) for level in np.ceil(shares / max_share * steps - 1e-9).clip(0, steps)]


def _cell(level: int, width: int, blocks: str) -> str:
    if level == 0:
        return blocks[0].ljust(width)
    return (blocks[level] * max(width - 1, 1)).ljust(width)


def _size_bar(share: float, length: int, is_plain: bool) -> str:
    """Return the bar of a client's size, empty if there is hardly any space for it."""
    if length <= 2:
        return ""
    return ("=" if is_plain else "━") * round(share * length)


def _header(columns: int, merged: int, margin: int, width: int) -> Text:
    """Return the numbers of the classes above their columns, as many as fit."""
    widest_number = len(str((columns - 1) * merged)) + 1
    step = next(step for step in _TICK_STEPS if step * width >= widest_number)
    numbers = (str(column * merged).ljust(step * width) for column in range(0, columns, step))
    header = Text(" " * margin + "".join(numbers).rstrip(), style="dim")
    if merged > 1:
        header.append(f"\n{' ' * margin}a column holds {merged} classes")
    return header


def _headline(partition: Partition) -> str:
    classes = partition.class_counts.shape[1]
    return f"{partition.rule}: {_size_summary(partition)}, {classes} classes"


def _size_summary(partition: Partition) -> str:
    """Return the numbers of clients and samples in words."""
    clients = len(partition.client_indices)
    samples = int(partition.class_counts.sum())
    return f"{clients:,} client{'s' * (clients != 1)}, {samples:,} sample{'s' * (samples != 1)}"


def _statistics_lines(partition: Partition) -> list[str]:
    """Return the measures of heterogeneity and the notes of a partition, line by line."""
    measures = measure_heterogeneity(partition)
    sizes = partition.class_counts.sum(axis=1)
    existing_classes = int((partition.class_counts.sum(axis=0) > 0).sum())
    return [
        "Total variation distance to all clients together: "
        f"{measures.mean_tv_distance:.3f} mean, {measures.max_tv_distance:.3f} largest",
        "Effective number of classes per client: "
        f"{measures.effective_classes:.1f} of {existing_classes}",
        f"Sizes: {sizes.min()}/{np.median(sizes):g}/{sizes.max()} (min/median/max), "
        f"coefficient of variation {measures.size_cv:.2f}",
        f"Samples reused: {partition.reused}, unused: {partition.unused}, hash {partition.hash}",
        *(f"Note: {note}" for note in partition.notes),
    ]


# In a file


def save_partition_plot(
    partition: Partition, path: Path | str, class_names: Sequence[str] = ()
) -> None:
    """Save the plot of a partition as PNG, SVG or PDF, one column of a paper wide.

    Raise InputError for another format, without Matplotlib, or if the file cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{unknown_name_message('picture format', suffix, SUFFIXES)} End the name "
            f"{path.name!r} with one of these."
        )
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            f"the picture {path} needs matplotlib, which is not installed: "
            f"{install_command('plot')}"
        ) from error
    rows = partition.class_counts.shape[1]
    height = 1.5 + min(max(0.18 * rows, 1.2), 3.0)
    figure = Figure(figsize=(COLUMN_INCHES, height), layout="constrained")
    plot_partition(figure, partition, class_names)
    # Without dates the same partition gives the same file.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    with output_file(path) as temporary, rc_context({"svg.hashsalt": partition.hash}):
        figure.savefig(temporary, format=suffix[1:], dpi=300, metadata=metadata)


def plot_partition(
    figure: "Figure | SubFigure",
    partition: Partition,
    class_names: Sequence[str] = (),
    largest_share: float | None = None,
    font: float = 7.0,
) -> None:
    """Draw the client × class counts as a heat map.

    The clients' sizes are above it and the classes' totals at its right. Plots with the same
    `largest_share` have the same colours; without it the colours span the shares that there are.
    """
    counts = partition.class_counts
    clients, classes = counts.shape
    grid = figure.add_gridspec(2, 2, width_ratios=(6, 1), height_ratios=(1, 5))
    cells: Axes = figure.add_subplot(grid[1, 0])
    above: Axes = figure.add_subplot(grid[0, 0], sharex=cells)
    right: Axes = figure.add_subplot(grid[1, 1], sharey=cells)
    _plot_cells(figure, cells, counts, largest_share, font)
    above.bar(np.arange(clients), counts.sum(axis=1), width=_bar_width(clients), color="0.45")
    right.barh(np.arange(classes), counts.sum(axis=0), height=_bar_width(classes), color="0.45")
    for axes in (above, right):
        axes.spines[["top", "right"]].set_visible(False)
    _label_axes(cells, above, right, bool(class_names), font)
    _label_ticks(cells.xaxis, clients, (), 12)
    names = [printable(name).replace("$", r"\$") for name in class_names]
    _label_ticks(cells.yaxis, classes, names, 20)
    figure.suptitle(partition.rule, fontsize=font + 1.5, weight="bold")
    above.set_title(_subtitle(partition), fontsize=font, linespacing=1.3, pad=3)


def _plot_cells(
    figure: "Figure | SubFigure",
    cells: "Axes",
    counts: IntArray,
    max_share: float | None,
    font: float,
) -> None:
    """Draw the heat map with its colour bar."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    clients, classes = counts.shape
    shares = _shares(counts.astype(np.float64)).T
    has_few_cells = clients <= 40 and classes <= 40
    # Dark is much and white is none, for any kind of colour vision. The palest tenth of the map is
    # left out: it would pass for none.
    colours = ListedColormap(colormaps["YlGnBu"](np.linspace(0.1, 1, 256)))
    mesh = cells.pcolormesh(
        np.arange(clients + 1) - 0.5,
        np.arange(classes + 1) - 0.5,
        np.ma.masked_equal(shares, 0),
        cmap=colours,
        vmin=0,
        # Equal shares of all classes get a middle colour, not the darkest.
        vmax=max_share or min(max(shares.max(), 2 / classes), 1),
        edgecolors="white" if has_few_cells else "none",
        linewidth=0.6 if has_few_cells else 0,
        # Thousands of cells as vectors would show seams and make slow pages.
        rasterized=not has_few_cells,
    )
    cells.set_ylim(classes - 0.5, -0.5)
    bar = figure.colorbar(mesh, ax=cells, location="bottom", aspect=30, pad=0.03, format=_percent)
    bar.ax.locator_params(nbins=5)
    bar.set_label("share of the client's samples", fontsize=font)
    bar.ax.tick_params(labelsize=font - 0.5, length=2, width=0.5)
    bar.outline.set_linewidth(0.4)


def _percent(share: float, _position: int) -> str:
    return f"{100 * share:g}%"


def _bar_width(bars: int) -> float:
    # Gaps between many narrow bars would only flicker.
    return 0.8 if bars <= 40 else 1.0


def _label_axes(
    cells: "Axes", above: "Axes", right: "Axes", has_class_names: bool, font: float
) -> None:
    for axes in (cells, above, right):
        axes.tick_params(labelsize=font - 0.5, length=2, width=0.5, pad=1.5)
        for spine in axes.spines.values():
            spine.set_linewidth(0.5)
    above.tick_params(labelbottom=False)
    right.tick_params(labelleft=False)
    above.locator_params(axis="y", nbins=2)
    right.locator_params(axis="x", nbins=1)
    above.set_ylabel("samples", fontsize=font)
    right.set_xlabel("samples", fontsize=font)
    cells.set_xlabel("client", fontsize=font)
    if not has_class_names:
        cells.set_ylabel("class", fontsize=font)


def _label_ticks(axis: "Axis", count: int, names: Sequence[str], max_labels: int) -> None:
    """Label every tick if there is space for so many labels, else a few round numbers."""
    if count <= max_labels:
        axis.set_ticks(np.arange(count), names or [str(number) for number in range(count)])
    else:
        step = next(step for step in _TICK_STEPS if count / step <= max_labels / 2)
        axis.set_ticks(np.arange(0, count, step))


def _subtitle(partition: Partition) -> str:
    measures = measure_heterogeneity(partition)
    return (
        f"{_size_summary(partition)}, hash {partition.hash}\n"
        f"TV distance {measures.mean_tv_distance:.2f} mean, {measures.max_tv_distance:.2f} largest"
    )
