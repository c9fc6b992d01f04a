"""The figures of a page as data: the numbers that `page.js` draws, five digits each, and what a reader may choose.

A figure names the place of its numbers among those of the page, so that several can draw the same.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedwmsam.data.partitions.partition import IntArray
from fedwmsam.engine.records import Record
from fedwmsam.report.plots import COLOURS, DASHES, X_AXIS_LABELS, display_name, line_style
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.series import Sweep, SweepLine, values_by_seed
from fedwmsam.report.summary import MetricSpec, ResultRow, ResultTable
from fedwmsam.statistics import FloatArray

COST_COUNTERS = ("round", "bytes_down", "bytes_up", "backprops")
"""Columns that are axes here: what had been spent by then."""
COST_UNITS = {"seconds": 1.0, "bytes": 1e6, "backprops": 1.0}
"""Costs that are axes, as the runs count them, and what one of the axis's is."""
DASH_PIXELS = 2.0
MAP_CLIENTS = 200
MAP_CELLS = 20_000
"""Larger partitions are shown in part: nobody could tell narrower columns apart."""
MAX_MAPS = 10
"""Partitions that are shown as maps; others only as a line of the table."""


@dataclass
class FigureData:
    """The numbers of all figures of a page; a figure knows its place among them."""

    charts: list[list[Record]] = field(default_factory=list)
    maps: list[list[Record]] = field(default_factory=list)

    def add_chart(self, lines: list[Record]) -> int:
        self.charts.append(lines)
        return len(self.charts) - 1

    def add_maps(self, maps: list[Record]) -> int:
        self.maps.append(maps)
        return len(self.maps) - 1


@dataclass(frozen=True)
class ChartAxis:
    name: str
    label: str
    exact: bool = False
    """Values are read off only where there are points, not between them."""
    logarithmic: bool = False
    from_start: bool = False
    """Reading begins at the first point, not at the last."""


@dataclass(frozen=True)
class LineChart:
    """Lines, and what its reader may choose; a choice of one is not offered."""

    what: str
    place: int
    lines: dict[int, Record]
    """Those of the legend, by their number among the lines at that place."""
    columns: dict[str, str]
    """Name → what a reader is told."""
    axes: Sequence[ChartAxis]
    window: int | None = None
    """How many values are averaged at first; without a number there is nothing to smooth."""
    has_spread: bool = True


@dataclass(frozen=True)
class PartitionHeatmap:
    """Client by class, a map for each partition."""

    place: int
    whose: Sequence[str]
    clients: int
    drawn: int
    classes: int
    largest: float
    """The share that has the darkest shade."""


# Charts


def curve_chart(
    place: int, lines: Sequence[Record], columns: Sequence[str], window: int
) -> LineChart:
    """Columns over the rounds or over costs."""
    own = {
        number: line
        for number, line in enumerate(lines)
        if any(name in line["y"] for name in columns)
    }
    labels = {name: display_name(name) for name in columns}
    return LineChart(
        f"{labels[columns[0]]} over rounds", place, own, labels, available_axes(lines), window
    )


def available_axes(lines: Sequence[Record]) -> list[ChartAxis]:
    labels = X_AXIS_LABELS | {"backprops": "backprops"}
    return [
        ChartAxis(name, label, exact=name == "rounds", logarithmic=name == "bytes")
        for name, label in labels.items()
        if name == "rounds" or any(name in line["x"] for line in lines)
    ]


def sweep_chart(sweep: Sweep, column: str, drawn: FigureData) -> LineChart:
    """What the rows reach at each value of an option."""
    lines = [
        line_record(number, line.label)
        | {"x": {sweep.option: list(line.x)}, "y": {"tail": sweep_values(line)}}
        for number, line in enumerate(sweep.lines)
    ]
    values = [x for line in sweep.lines for x in line.x]
    logarithmic = min(values) > 0 and max(values) / min(values) >= 10
    axis = ChartAxis(sweep.option, sweep.option, exact=True, logarithmic=logarithmic)
    return LineChart(
        what=f"{column} over {sweep.option}",
        place=drawn.add_chart(lines),
        lines=dict(enumerate(lines)),
        columns={"tail": column},
        axes=[axis],
        has_spread=False,
    )


def sweep_values(line: SweepLine) -> Record:
    means = round_values([spread.mean for spread in line.spreads])
    return {"mean": means, "deviation": round_values([spread.deviation for spread in line.spreads])}


def make_curves(table: ResultTable, goal: MetricSpec) -> tuple[list[Record], list[str]]:
    """Every row that has numbers, with what was spent up to each round and its columns, seed by seed; all columns."""
    found = {number: collect_columns(row) for number, row in enumerate(table.rows) if row.scores}
    names = select_columns(list(found.values()), goal.metric)
    lines = []
    for number, own in found.items():
        row = table.rows[number]
        shown = {name: own[name] for name in names if name in own}
        lines.append(line_record(number, row.label) | {"x": mean_costs(row), "y": shown})
    return lines, names


def collect_columns(row: ResultRow) -> dict[str, Record]:
    """Each column that is recorded as a number: the rounds it is there for (if not all), and a list for each seed."""
    names = dict.fromkeys(name for score in row.scores for line in score.run.rows for name in line)
    found = {}
    for name in names:
        rounds, values = values_by_seed(row, name)
        if name not in COST_COUNTERS and np.isfinite(values).any():
            found[name] = column_record(rounds, values)
    return found


def column_record(rounds: Sequence[int], values: FloatArray) -> Record:
    """Seeds that are all alike, as those of the step size, are told once."""
    alike = len(values) > 1 and bool((values == values[0]).all())
    record: Record = {
        "runs": [round_values(line) for line in (values[:1] if alike else values)],
        "n": len(values),
    }
    return record if rounds[-1] == len(rounds) else record | {"at": list(rounds)}


def select_columns(rows: Sequence[dict[str, Record]], metric: str) -> list[str]:
    """What is compared, then everything else that is not always the same."""
    values: dict[str, set[float | None]] = {}
    for name, record in (entry for row in rows for entry in row.items()):
        values.setdefault(name, set()).update(*record["runs"])
    names = [name for name, found in values.items() if name == metric or len(found) > 1]
    return sorted(names, key=lambda name: name != metric)


def mean_costs(row: ResultRow) -> dict[str, list[float | None]]:
    """Mean over the seeds of what had been spent by each round that all of them have; without what is not known."""
    length = min(len(score.run.rows) for score in row.scores)
    found = {}
    for name, unit in COST_UNITS.items():
        means = np.mean([score.run.spent[name][:length] for score in row.scores], axis=0) / unit
        if np.isfinite(means).any():
            found[name] = round_values(means)
    return found


def line_record(number: int, label: str) -> Record:
    """The line of a row as it is in every picture: its colour's number and its dashes."""
    return {
        "label": label,
        "colour": number % len(COLOURS),
        "dash": dash_array(line_style(number)["linestyle"]),
    }


def dash_array(pattern: Any) -> str:
    return (
        ""
        if pattern == DASHES[0]
        else " ".join(f"{length * DASH_PIXELS:.3g}" for length in pattern[1])
    )


def round_values(values: Iterable[float]) -> list[float | None]:
    """Five significant digits; None where the value is not a number."""
    return [round_significant(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def round_significant(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    value = float(f"{value:.5g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


# Partitions


@dataclass(frozen=True)
class RecordedPartition:
    """A partition as the run folders describe it."""

    seeds: tuple[int, ...]
    hash: str
    counts: IntArray
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]

    @property
    def whose(self) -> str:
        return ", ".join(map(str, self.seeds))


def collect_partitions(table: ResultTable) -> list[RecordedPartition]:
    """Each partition that the table's runs were trained on, with the seeds that led to it."""
    found: dict[str, RecordedPartition] = {}
    for run in sorted(
        (run for row in table.rows for run in runs_behind(row)), key=lambda run: run.seed
    ):
        counts = parse_class_counts(run.data.get("class_counts"))
        name = str(run.data.get("partition_hash"))
        if counts is not None:
            names = (to_strings(run.data.get(key)) for key in ("class_names", "group_names"))
            dealt = found.setdefault(name, RecordedPartition((), name, counts, *names))
            found[name] = replace(dealt, seeds=tuple(dict.fromkeys((*dealt.seeds, run.seed))))
    return list(found.values())


def parse_class_counts(value: object) -> IntArray | None:
    """Clients × classes, every client with something; None if the folder holds anything else."""
    try:
        counts = np.array(value, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    return (
        counts
        if counts.ndim == 2 and counts.size and (counts >= 0).all() and counts.any(axis=1).all()
        else None
    )


def partition_map(dealt: Sequence[RecordedPartition], drawn: FigureData) -> PartitionHeatmap:
    """The first partitions, each with the clients that find room."""
    shown = dealt[:MAX_MAPS]
    clients, classes = map(int, dealt[0].counts.shape)
    return PartitionHeatmap(
        place=drawn.add_maps([map_data(one) for one in shown]),
        whose=[one.whose for one in shown],
        clients=clients,
        drawn=shown_client_count(dealt[0]),
        classes=classes,
        largest=largest_share(shown),
    )


def map_data(dealt: RecordedPartition) -> Record:
    shown = shown_client_count(dealt)
    counts = dealt.counts[:shown].tolist()
    return {"counts": counts, "classes": dealt.class_names, "clients": dealt.client_names[:shown]}


def shown_client_count(dealt: RecordedPartition) -> int:
    clients, classes = map(int, dealt.counts.shape)
    return min(clients, MAP_CLIENTS, max(1, MAP_CELLS // classes))


def largest_share(found: Sequence[RecordedPartition]) -> float:
    """The darkest colour: equal shares are a middle one."""
    largest = max(
        float((dealt.counts / dealt.counts.sum(axis=1, keepdims=True)).max()) for dealt in found
    )
    return min(max(largest, 2 / int(found[0].counts.shape[1])), 1.0)


# What other parts of the page read, too


def runs_behind(row: ResultRow) -> list[LoadedRun]:
    """The runs behind a row; those of an averaged twin are behind the row of its model."""
    return [run for run in (*(score.run for score in row.scores), *row.left_out) if not run.is_twin]


def to_strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
