"""The figures of a page as data: the numbers that `page.js` draws, and what a reader may choose.

A figure gets onto the page in three steps: its lines are added to the `FigureData` of the page,
which returns their index; a `LineChart` (or `PartitionHeatmap`) holds that index and the reader's
choices; a `Section` of `page/page.py` holds the chart. `page.html.j2` writes the controls and the
legend, and `page.js` draws the lines with that index. Several charts may share an index. All
numbers have five significant digits.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NotRequired, TypedDict

import numpy as np

from fedwmsam.data.partitions.partition import IntArray
from fedwmsam.engine.records import Record
from fedwmsam.report.plots import (
    COLOURS,
    DASHES,
    X_AXIS_LABELS,
    display_name,
    line_style,
    row_styles,
)
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.series import Sweep, SweepLine, values_by_seed
from fedwmsam.report.summary import Goal, ResultRow, ResultTable
from fedwmsam.statistics import FloatArray

COST_COUNTERS = ("round", "bytes_down", "bytes_up", "backprops")
"""Columns of the metrics that are not drawn, because their sums are x-axes."""
COST_UNITS = {"seconds": 1.0, "bytes": 1e6, "backprops": 1.0}
"""Fields of `CumulativeCost` that are x-axes, and the number by which each is divided there."""
DASH_PIXELS = 2.0
"""Pixels of a dash of length 1 in `DASHES`."""
MAP_CLIENTS = 200
"""Clients that a heat map shows at most: nobody could tell narrower columns apart."""
MAP_CELLS = 20_000
"""Cells that a heat map shows at most."""
MAX_MAPS = 10
"""Partitions that are shown as heat maps; further ones are only in the table."""


class SeedValues(TypedDict):
    """The values of a line, seed by seed; `page.js` computes their mean and deviation."""

    runs: list[list[float | None]]
    """A list for each seed, or a single list if all seeds have the same values."""
    n: int
    """The number of seeds."""
    at: NotRequired[list[int]]
    """The rounds of the values, if these are not all rounds from 1 on."""


class MeanValues(TypedDict):
    """The values of a line that is already averaged over the seeds."""

    mean: list[float | None]
    deviation: list[float | None]


class ChartLine(TypedDict):
    """A line of a chart as `page.js` reads it; None stands for a value that is not finite."""

    label: str
    colour: int
    """The index of the colour in `COLOURS`."""
    dash: str
    """The `stroke-dasharray` of SVG, empty for a solid line."""
    x: Mapping[str, Sequence[float | None]]
    """Name of an x-axis → positions; if "rounds" is not there, `page.js` counts the rounds."""
    y: Mapping[str, SeedValues | MeanValues]
    """Column → values."""


@dataclass
class FigureData:
    """The numbers of all figures of a page, in the order in which figures refer to them."""

    charts: list[list[ChartLine]] = field(default_factory=list)
    maps: list[list[Record]] = field(default_factory=list)

    def add_chart(self, lines: list[ChartLine]) -> int:
        """Add the lines of a chart and return their index, for `LineChart.data_index`."""
        self.charts.append(lines)
        return len(self.charts) - 1

    def add_maps(self, maps: list[Record]) -> int:
        """Add the heat maps of a figure and return their index, for `PartitionHeatmap`."""
        self.maps.append(maps)
        return len(self.maps) - 1


@dataclass(frozen=True)
class ChartAxis:
    """An x-axis that the reader of a chart may choose."""

    name: str
    """The key in `ChartLine.x`."""
    label: str
    is_discrete: bool = False
    """Whether values are read off only at the points, not between them."""
    is_logarithmic: bool = False
    starts_at_first_point: bool = False
    """Whether reading begins at the first point instead of the last."""


@dataclass(frozen=True)
class LineChart:
    """A chart of lines with what its reader may choose; a choice of one is not offered."""

    description: str
    """What the chart shows, for those who do not see it."""
    data_index: int
    """The index of its lines in `FigureData.charts`."""
    lines: dict[int, ChartLine]
    """The lines that the legend lists, by their index among all lines there."""
    columns: dict[str, str]
    """Key in `ChartLine.y` → label that the reader sees."""
    axes: Sequence[ChartAxis]
    window: int | None = None
    """How many values are averaged at first; None if nothing can be smoothed."""
    has_spread: bool = True
    """Whether the reader may choose how the spread over the seeds is shown."""


@dataclass(frozen=True)
class PartitionHeatmap:
    """Heat maps of client by class, one for each partition."""

    data_index: int
    """The index of the maps in `FigureData.maps`."""
    seed_labels: Sequence[str]
    """The seeds that led to each partition."""
    clients: int
    shown_clients: int
    """How many of the clients the maps show."""
    classes: int
    max_share: float
    """The share of a client's samples that has the darkest shade."""


# Charts


def curve_chart(
    data_index: int, lines: Sequence[ChartLine], columns: Sequence[str], window: int
) -> LineChart:
    """Return a chart of columns over the rounds or over costs, with the lines that have them."""
    shown_lines = {}
    for index, line in enumerate(lines):
        if any(name in line["y"] for name in columns):
            shown_lines[index] = line
    labels = {name: display_name(name) for name in columns}
    description = f"{labels[columns[0]]} over rounds"
    axes = available_axes(lines)
    return LineChart(description, data_index, shown_lines, labels, axes, window)


def available_axes(lines: Sequence[ChartLine]) -> list[ChartAxis]:
    """Return the rounds and the costs that any of the lines has as x-axes."""
    axes = []
    for name, label in (X_AXIS_LABELS | {"backprops": "backprops"}).items():
        is_rounds = name == "rounds"
        if is_rounds or any(name in line["x"] for line in lines):
            is_logarithmic = name == "bytes"
            axes.append(ChartAxis(name, label, is_rounds, is_logarithmic))
    return axes


def sweep_chart(sweep: Sweep, column: str, figure_data: FigureData) -> LineChart:
    """Return the chart of the results over the values of an option; `column` labels the y-axis."""
    lines = [
        make_chart_line(
            line_style(index), line.label, x={sweep.option: line.x}, y={"tail": sweep_values(line)}
        )
        for index, line in enumerate(sweep.lines)
    ]
    values = list(chain.from_iterable(line.x for line in sweep.lines))
    is_logarithmic = min(values) > 0 and max(values) / min(values) >= 10
    return LineChart(
        description=f"{column} over {sweep.option}",
        data_index=figure_data.add_chart(lines),
        lines=dict(enumerate(lines)),
        columns={"tail": column},
        axes=[ChartAxis(sweep.option, sweep.option, True, is_logarithmic)],
        has_spread=False,
    )


def sweep_values(line: SweepLine) -> MeanValues:
    """Return the values of a line of a sweep."""
    return {
        "mean": round_values([spread.mean for spread in line.spreads]),
        "deviation": round_values([spread.deviation for spread in line.spreads]),
    }


def make_curves(table: ResultTable, goal: Goal) -> tuple[list[ChartLine], list[str]]:
    """Return a line for each row that has results, and the columns that any of them has.

    A line has the costs up to each round as x-axes, and its columns seed by seed.
    """
    columns_by_row = {
        index: collect_columns(row) for index, row in enumerate(table.rows) if row.scores
    }
    names = select_columns(list(columns_by_row.values()), goal.metric)
    lines = []
    styles = row_styles(table.rows)
    for index, columns in columns_by_row.items():
        row = table.rows[index]
        y = {name: columns[name] for name in names if name in columns}
        lines.append(make_chart_line(styles[index], row.label, x=mean_costs(row), y=y))
    return lines, names


def collect_columns(row: ResultRow) -> dict[str, SeedValues]:
    """Return each column of the row's metrics that holds numbers, without counters of costs."""
    records = chain.from_iterable(score.run.round_records for score in row.scores)
    columns = {}
    for name in dict.fromkeys(chain.from_iterable(records)):
        rounds, values = values_by_seed(row, name)
        if name not in COST_COUNTERS and np.isfinite(values).any():
            columns[name] = seed_values(rounds, values)
    return columns


def seed_values(rounds: Sequence[int], values: FloatArray) -> SeedValues:
    """Return the values of a line: seeds × rounds.

    Seeds that all have the same values, as those of the step size, are stored once.
    """
    are_equal = len(values) > 1 and bool((values == values[0]).all())
    distinct_values = values[:1] if are_equal else values
    record: SeedValues = {
        "runs": [round_values(run_values) for run_values in distinct_values],
        "n": len(values),
    }
    if rounds[-1] != len(rounds):
        record["at"] = list(rounds)
    return record


def select_columns(rows: Sequence[dict[str, SeedValues]], metric: str) -> list[str]:
    """Return the compared metric, then all other columns that are not constant."""
    values: dict[str, set[float | None]] = {}
    for columns in rows:
        for name, record in columns.items():
            values.setdefault(name, set()).update(*record["runs"])
    names = [name for name in values if name == metric or len(values[name]) > 1]
    return sorted(names, key=lambda name: name != metric)


def mean_costs(row: ResultRow) -> dict[str, list[float | None]]:
    """Return the mean costs over the seeds up to each round that all of them have.

    Costs that are not known are left out.
    """
    rounds = min(len(score.run.round_records) for score in row.scores)
    costs = {}
    for name, unit in COST_UNITS.items():
        costs_by_seed = [score.run.cumulative_costs[name][:rounds] for score in row.scores]
        means = np.mean(costs_by_seed, axis=0) / unit
        if np.isfinite(means).any():
            costs[name] = round_values(means)
    return costs


def make_chart_line(
    style: Mapping[str, Any],
    label: str,
    x: Mapping[str, Sequence[float | None]],
    y: Mapping[str, SeedValues | MeanValues],
) -> ChartLine:
    """Return a line in a style of `line_style` or `row_styles`, the same in every figure."""
    return {
        "label": label,
        "colour": COLOURS.index(style["color"]),
        "dash": dash_array(style["linestyle"]),
        "x": x,
        "y": y,
    }


def dash_array(pattern: Any) -> str:
    """Return one of `DASHES` as SVG writes it, empty for a solid line."""
    if pattern == DASHES[0]:
        return ""
    return " ".join(f"{length * DASH_PIXELS:.3g}" for length in pattern[1])


def round_values(values: Iterable[float]) -> list[float | None]:
    """Return the values with five significant digits, None for one that is not finite."""
    return [round_significant(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def round_significant(value: float) -> float | int | None:
    """Return a value with five significant digits, an integer if it is one, None if not finite."""
    if not math.isfinite(value):
        return None
    value = float(f"{value:.5g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


# Partitions


@dataclass(frozen=True)
class RecordedPartition:
    """A partition as the run folders describe it, with the seeds that led to it."""

    seeds: tuple[int, ...]
    hash: str
    counts: IntArray
    """The samples of each class that each client holds: clients × classes."""
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]

    @property
    def seed_label(self) -> str:
        """Return the seeds as a reader sees them."""
        return ", ".join(map(str, self.seeds))


def collect_partitions(table: ResultTable) -> list[RecordedPartition]:
    """Return each partition on which runs of the table were trained, in the order of seeds."""
    partitions: dict[str, RecordedPartition] = {}
    runs = chain.from_iterable(runs_behind(row) for row in table.rows)
    for run in sorted(runs, key=lambda run: run.seed):
        counts = parse_class_counts(run.data.get("class_counts"))
        if counts is None:
            continue
        hash = str(run.data.get("partition_hash"))
        class_names = to_strings(run.data.get("class_names"))
        client_names = to_strings(run.data.get("group_names"))
        new_partition = RecordedPartition((), hash, counts, class_names, client_names)
        partition = partitions.setdefault(hash, new_partition)
        seeds = tuple(dict.fromkeys((*partition.seeds, run.seed)))
        partitions[hash] = replace(partition, seeds=seeds)
    return list(partitions.values())


def parse_class_counts(value: object) -> IntArray | None:
    """Return clients × classes with at least one sample per client, None for anything else."""
    try:
        counts = np.array(value, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    if counts.ndim != 2 or not counts.size:
        return None
    is_valid = (counts >= 0).all() and counts.any(axis=1).all()
    return counts if is_valid else None


def partition_map(
    partitions: Sequence[RecordedPartition], figure_data: FigureData
) -> PartitionHeatmap:
    """Return the heat maps of the first partitions, each with as many clients as fit."""
    shown_partitions = partitions[:MAX_MAPS]
    clients, classes = map(int, partitions[0].counts.shape)
    return PartitionHeatmap(
        data_index=figure_data.add_maps([map_data(partition) for partition in shown_partitions]),
        seed_labels=[partition.seed_label for partition in shown_partitions],
        clients=clients,
        shown_clients=shown_client_count(partitions[0]),
        classes=classes,
        max_share=largest_share(shown_partitions),
    )


def map_data(partition: RecordedPartition) -> Record:
    """Return a heat map as `page.js` reads it: the counts and the names of those shown."""
    shown = shown_client_count(partition)
    return {
        "counts": partition.counts[:shown].tolist(),
        "classes": partition.class_names,
        "clients": partition.client_names[:shown],
    }


def shown_client_count(partition: RecordedPartition) -> int:
    """Return how many clients of a partition its heat map shows."""
    clients, classes = map(int, partition.counts.shape)
    return min(clients, MAP_CLIENTS, max(1, MAP_CELLS // classes))


def largest_share(partitions: Sequence[RecordedPartition]) -> float:
    """Return the share of a client's samples that is drawn in the darkest shade.

    It is at least twice that of equal shares, which so have a middle shade.
    """
    shares = [
        partition.counts / partition.counts.sum(axis=1, keepdims=True) for partition in partitions
    ]
    largest = max(float(client_shares.max()) for client_shares in shares)
    return min(max(largest, 2 / int(partitions[0].counts.shape[1])), 1.0)


# What other parts of the page read, too


def runs_behind(row: ResultRow) -> list[LoadedRun]:
    """Return the runs of a row, with or without results.

    The row of an averaged model has none: its runs are those of the row of the global model.
    """
    runs = (*(score.run for score in row.scores), *row.excluded_runs)
    return [run for run in runs if not run.is_averaged_model]


def to_strings(value: object) -> tuple[str, ...]:
    """Return the entries of a list from JSON as strings; nothing if it is no list."""
    return tuple(map(str, value)) if isinstance(value, list) else ()
