"""A partition as a picture: client by class, in the terminal and in a file."""

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
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.statistics import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure

ALL_SHOWN = 40  # clients; of more than these only the first are shown
FIRST_SHOWN = 30
BLOCKS, PLAIN_BLOCKS = "·▁▂▃▄▅▆▇█", " .:-=+*#@"
SIZE_BAR = 12  # characters
SUFFIXES = (".png", ".svg", ".pdf")
_TICK_STEPS = tuple(
    digit * 10**power for power in range(9) for digit in (1, 2, 5)
)  # steps between labels
COLUMN_INCHES = 3.5  # the column width of two-column papers


def make_partition_chart(partition: Partition, class_names: Sequence[str] = ()) -> RenderableType:
    """For the terminal: a row for each client, a column for each class, and the figures that sum them up."""
    return _Chart(partition, tuple(class_names))


@dataclass(frozen=True)
class _Chart:
    partition: Partition
    class_names: tuple[str, ...]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        counts, blocks = self.partition.counts, PLAIN_BLOCKS if options.ascii_only else BLOCKS
        shown = len(counts) if len(counts) <= ALL_SHOWN else FIRST_SHOWN
        margin, size_width = len(str(shown - 1)) + 2, len(str(counts.sum(axis=1).max()))
        merged, width = _columns(counts.shape[1], options.max_width - margin - size_width - 1)
        shares = _shares(_merge(counts, merged))[:shown]
        sizes = counts.sum(axis=1)
        bar = min(SIZE_BAR, options.max_width - margin - shares.shape[1] * width - size_width - 2)
        yield Text(_headline(self.partition), style="bold")
        yield _header(shares.shape[1], merged, margin, width)
        for number, row in enumerate(shares):
            cells = "".join(_cell(level, width, blocks) for level in _levels(row, shares.max()))
            line = Text(f"{number:>{margin - 2}}  ", style="dim") + Text(cells, style="cyan")
            line.append(f" {sizes[number]:>{size_width}}")
            line.append(
                " " + _size_bar(sizes[number] / sizes.max(), bar, options.ascii_only), style="dim"
            )
            line.rstrip()
            yield line
        if shown < len(counts):
            yield Text(f"and {len(counts) - shown} more clients", style="dim")
        yield Text(
            f"Column height: share of the client's samples, full = {shares.max():.0%}; right: samples"
        )
        yield from (Text(line) for line in _statistics_lines(self.partition))
        if self.class_names:
            yield Text(
                "Classes: "
                + ", ".join(f"{number} {name}" for number, name in enumerate(self.class_names))
            )


def _columns(classes: int, room: int) -> tuple[int, int]:
    """How many classes a column merges so that all fit, and how wide a column is."""
    room = max(room, 1)
    merged = -(-classes // room)
    return merged, min(3, max(1, room // -(-classes // merged)))


def _merge(counts: IntArray, merged: int) -> FloatArray:
    result: FloatArray = np.add.reduceat(
        counts.astype(np.float64), np.arange(0, counts.shape[1], merged), axis=1
    )
    return result


def _shares(counts: FloatArray) -> FloatArray:
    result: FloatArray = counts / counts.sum(axis=1, keepdims=True)
    return result


def _levels(shares: FloatArray, largest: float) -> list[int]:
    steps = len(BLOCKS) - 1
    # Rounded up, so that one sample shows; the small subtraction keeps 3/8 of the largest from becoming step 4.
    return [int(level) for level in np.ceil(shares / largest * steps - 1e-9).clip(0, steps)]


def _cell(level: int, width: int, blocks: str) -> str:
    if level == 0:
        return blocks[0].ljust(width)
    return (blocks[level] * max(width - 1, 1)).ljust(width)


def _size_bar(share: float, length: int, plain: bool) -> str:
    return ("=" if plain else "━") * round(share * length) if length > 2 else ""


def _header(columns: int, merged: int, margin: int, width: int) -> Text:
    """The numbers of the classes, as many as there is room for."""
    widest = len(str((columns - 1) * merged)) + 1
    every = next(step for step in _TICK_STEPS if step * width >= widest)
    numbers = (str(column * merged).ljust(every * width) for column in range(0, columns, every))
    header = Text(" " * margin + "".join(numbers).rstrip(), style="dim")
    if merged > 1:
        header.append(f"\n{' ' * margin}a column holds {merged} classes")
    return header


def _headline(partition: Partition) -> str:
    return f"{partition.rule}: {_size_summary(partition)}, {partition.counts.shape[1]} classes"


def _size_summary(partition: Partition) -> str:
    clients, samples = len(partition.clients), int(partition.counts.sum())
    return f"{clients:,} client{'s' * (clients != 1)}, {samples:,} sample{'s' * (samples != 1)}"


def _statistics_lines(partition: Partition) -> list[str]:
    figures, sizes = measure_heterogeneity(partition), partition.counts.sum(axis=1)
    existing = int((partition.counts.sum(axis=0) > 0).sum())
    return [
        f"Total variation distance to all clients together: {figures.mean_distance:.3f} mean, "
        f"{figures.largest_distance:.3f} largest",
        f"Effective number of classes per client: {figures.effective_classes:.1f} of {existing}",
        f"Sizes: {sizes.min()}/{np.median(sizes):g}/{sizes.max()} (min/median/max), "
        f"coefficient of variation {figures.size_variation:.2f}",
        f"Samples reused: {partition.reused}, unused: {partition.unused}, hash {partition.hash}",
        *(f"Note: {note}" for note in partition.notes),
    ]


def save_partition_plot(
    partition: Partition, path: Path | str, class_names: Sequence[str] = ()
) -> None:
    """Write the picture as PNG, SVG or PDF, one column of a paper wide."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{unknown_name_message('picture format', suffix, SUFFIXES)} End the name {path.name!r} with one of these."
        )
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            f"the picture {path} needs matplotlib, which is not installed: run `pip install fedwmsam[plot]`"
        ) from error
    rows = partition.counts.shape[1]
    figure = Figure(
        figsize=(COLUMN_INCHES, 1.5 + min(max(0.18 * rows, 1.2), 3.0)), layout="constrained"
    )
    plot_partition(figure, partition, class_names)
    # Without these two, the same partition would give another file each time.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context({"svg.hashsalt": partition.hash}):
            figure.savefig(path, dpi=300, metadata=metadata)
    except OSError as error:
        raise InputError(
            f"the picture {path} cannot be written ({error}): name another place"
        ) from error


def plot_partition(
    figure: "Figure | SubFigure",
    partition: Partition,
    class_names: Sequence[str] = (),
    largest_share: float | None = None,
    font: float = 7.0,
) -> None:
    """Client × class as a heat map, with the clients' sizes above it and the classes' totals at its right.

    Pictures with the same `largest_share` have the same colours; without it the colours span what there is.
    """
    counts = partition.counts
    grid = figure.add_gridspec(2, 2, width_ratios=(6, 1), height_ratios=(1, 5))
    cells: Axes = figure.add_subplot(grid[1, 0])
    above: Axes = figure.add_subplot(grid[0, 0], sharex=cells)
    right: Axes = figure.add_subplot(grid[1, 1], sharey=cells)
    _plot_cells(figure, cells, counts, largest_share, font)
    above.bar(
        np.arange(len(counts)), counts.sum(axis=1), width=_bar_width(len(counts)), color="0.45"
    )
    right.barh(
        np.arange(counts.shape[1]),
        counts.sum(axis=0),
        height=_bar_width(counts.shape[1]),
        color="0.45",
    )
    for axes in (above, right):
        axes.spines[["top", "right"]].set_visible(False)
    _label_axes(cells, above, right, bool(class_names), font)
    _label_ticks(cells.xaxis, len(counts), (), 12)
    _label_ticks(cells.yaxis, counts.shape[1], class_names, 20)
    figure.suptitle(partition.rule, fontsize=font + 1.5, weight="bold")
    above.set_title(_subtitle(partition), fontsize=font, linespacing=1.3, pad=3)


def _plot_cells(
    figure: "Figure | SubFigure",
    cells: "Axes",
    counts: IntArray,
    largest: float | None,
    font: float,
) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    clients, classes = counts.shape
    shares = _shares(counts.astype(np.float64)).T
    spacious = clients <= 40 and classes <= 40
    mesh = cells.pcolormesh(
        np.arange(clients + 1) - 0.5,
        np.arange(classes + 1) - 0.5,
        np.ma.masked_equal(shares, 0),
        # Dark is much and white is none, for any kind of colour vision; the palest tenth would pass for none.
        cmap=ListedColormap(colormaps["YlGnBu"](np.linspace(0.1, 1, 256))),
        vmin=0,
        vmax=largest
        or min(
            max(shares.max(), 2 / classes), 1
        ),  # equal shares are a middle colour, not the darkest
        edgecolors="white" if spacious else "none",
        linewidth=0.6 if spacious else 0,
        rasterized=not spacious,  # thousands of vector cells show seams and make slow pages
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
    return 0.8 if bars <= 40 else 1.0  # gaps between many narrow bars would only flicker


def _label_axes(cells: "Axes", above: "Axes", right: "Axes", named: bool, font: float) -> None:
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
    if not named:
        cells.set_ylabel("class", fontsize=font)


def _label_ticks(axis: "Axis", count: int, names: Sequence[str], most: int) -> None:
    """Every label where there is room, else a few round numbers."""
    if count <= most:
        axis.set_ticks(np.arange(count), names or [str(number) for number in range(count)])
    else:
        step = next(size for size in _TICK_STEPS if count / size <= most / 2)
        axis.set_ticks(np.arange(0, count, step))


def _subtitle(partition: Partition) -> str:
    figures = measure_heterogeneity(partition)
    distances = (
        f"TV distance {figures.mean_distance:.2f} mean, {figures.largest_distance:.2f} largest"
    )
    return f"{_size_summary(partition)}, hash {partition.hash}\n{distances}"
