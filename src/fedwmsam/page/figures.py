"""The figures of a page as data: the numbers that `page.js` draws, five digits each, and what a reader may choose.

A figure names the place of its numbers among those of the page, so that several can draw the same.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedwmsam.data.partitions.partition import Indices
from fedwmsam.engine.records import Record
from fedwmsam.report.plots import AXES, COLOURS, DASHES, style, words
from fedwmsam.report.runs import Run
from fedwmsam.report.series import Line, Sweep, by_seed
from fedwmsam.report.summary import Goal, Row, Table
from fedwmsam.statistics import Numbers

COUNTERS = ("round", "bytes_down", "bytes_up", "backprops")
"""Columns that are axes here: what had been spent by then."""
UNITS = {"seconds": 1.0, "bytes": 1e6, "backprops": 1.0}
"""Costs that are axes, as the runs count them, and what one of the axis's is."""
DASH_PIXELS = 2.0
MAP_CLIENTS = 200
MAP_CELLS = 20_000
"""Larger partitions are shown in part: nobody could tell narrower columns apart."""
MAPS = 10
"""Partitions that are shown as maps; others only as a line of the table."""


@dataclass
class Drawn:
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
class Axis:
    name: str
    label: str
    exact: bool = False
    """Values are read off only where there are points, not between them."""
    logarithmic: bool = False
    from_start: bool = False
    """Reading begins at the first point, not at the last."""


@dataclass(frozen=True)
class Chart:
    """Lines, and what its reader may choose; a choice of one is not offered."""

    what: str
    place: int
    lines: dict[int, Record]
    """Those of the legend, by their number among the lines at that place."""
    columns: dict[str, str]
    """Name → what a reader is told."""
    axes: Sequence[Axis]
    window: int | None = None
    """How many values are averaged at first; without a number there is nothing to smooth."""
    has_spread: bool = True


@dataclass(frozen=True)
class Map:
    """Client by class, a map for each partition."""

    place: int
    whose: Sequence[str]
    clients: int
    drawn: int
    classes: int
    largest: float
    """The share that has the darkest shade."""


# Charts


def curve_chart(place: int, lines: Sequence[Record], columns: Sequence[str], window: int) -> Chart:
    """Columns over the rounds or over costs."""
    own = {
        number: line
        for number, line in enumerate(lines)
        if any(name in line["y"] for name in columns)
    }
    labels = {name: words(name) for name in columns}
    return Chart(f"{labels[columns[0]]} over rounds", place, own, labels, known_axes(lines), window)


def known_axes(lines: Sequence[Record]) -> list[Axis]:
    labels = AXES | {"backprops": "backprops"}
    return [
        Axis(name, label, exact=name == "rounds", logarithmic=name == "bytes")
        for name, label in labels.items()
        if name == "rounds" or any(name in line["x"] for line in lines)
    ]


def sweep_chart(sweep: Sweep, column: str, drawn: Drawn) -> Chart:
    """What the rows reach at each value of an option."""
    lines = [
        look(number, line.label) | {"x": {sweep.option: list(line.x)}, "y": {"tail": reached(line)}}
        for number, line in enumerate(sweep.lines)
    ]
    values = [x for line in sweep.lines for x in line.x]
    logarithmic = min(values) > 0 and max(values) / min(values) >= 10
    axis = Axis(sweep.option, sweep.option, exact=True, logarithmic=logarithmic)
    return Chart(
        what=f"{column} over {sweep.option}",
        place=drawn.add_chart(lines),
        lines=dict(enumerate(lines)),
        columns={"tail": column},
        axes=[axis],
        has_spread=False,
    )


def reached(line: Line) -> Record:
    means = short([spread.mean for spread in line.spreads])
    return {"mean": means, "deviation": short([spread.deviation for spread in line.spreads])}


def curves(table: Table, goal: Goal) -> tuple[list[Record], list[str]]:
    """Every row that has numbers, with what was spent up to each round and its columns, seed by seed; all columns."""
    found = {number: columns(row) for number, row in enumerate(table.rows) if row.scores}
    names = shown_columns(list(found.values()), goal.metric)
    lines = []
    for number, own in found.items():
        row = table.rows[number]
        shown = {name: own[name] for name in names if name in own}
        lines.append(look(number, row.label) | {"x": spending(row), "y": shown})
    return lines, names


def columns(row: Row) -> dict[str, Record]:
    """Each column that is recorded as a number: the rounds it is there for (if not all), and a list for each seed."""
    names = dict.fromkeys(name for score in row.scores for line in score.run.rows for name in line)
    found = {}
    for name in names:
        rounds, values = by_seed(row, name)
        if name not in COUNTERS and np.isfinite(values).any():
            found[name] = column(rounds, values)
    return found


def column(rounds: Sequence[int], values: Numbers) -> Record:
    """Seeds that are all alike, as those of the step size, are told once."""
    alike = len(values) > 1 and bool((values == values[0]).all())
    record: Record = {
        "runs": [short(line) for line in (values[:1] if alike else values)],
        "n": len(values),
    }
    return record if rounds[-1] == len(rounds) else record | {"at": list(rounds)}


def shown_columns(rows: Sequence[dict[str, Record]], metric: str) -> list[str]:
    """What is compared, then everything else that is not always the same."""
    values: dict[str, set[float | None]] = {}
    for name, record in (entry for row in rows for entry in row.items()):
        values.setdefault(name, set()).update(*record["runs"])
    names = [name for name, found in values.items() if name == metric or len(found) > 1]
    return sorted(names, key=lambda name: name != metric)


def spending(row: Row) -> dict[str, list[float | None]]:
    """Mean over the seeds of what had been spent by each round that all of them have; without what is not known."""
    length = min(len(score.run.rows) for score in row.scores)
    found = {}
    for name, unit in UNITS.items():
        means = np.mean([score.run.spent[name][:length] for score in row.scores], axis=0) / unit
        if np.isfinite(means).any():
            found[name] = short(means)
    return found


def look(number: int, label: str) -> Record:
    """The line of a row as it is in every picture: its colour's number and its dashes."""
    return {
        "label": label,
        "colour": number % len(COLOURS),
        "dash": dashes(style(number)["linestyle"]),
    }


def dashes(pattern: Any) -> str:
    return (
        ""
        if pattern == DASHES[0]
        else " ".join(f"{length * DASH_PIXELS:.3g}" for length in pattern[1])
    )


def short(values: Iterable[float]) -> list[float | None]:
    """Five significant digits; None where the value is not a number."""
    return [rounded(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    value = float(f"{value:.5g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


# Partitions


@dataclass(frozen=True)
class Dealt:
    """A partition as the run folders describe it."""

    seeds: tuple[int, ...]
    hash: str
    counts: Indices
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]

    @property
    def whose(self) -> str:
        return ", ".join(map(str, self.seeds))


def partitions(table: Table) -> list[Dealt]:
    """Each partition that the table's runs were trained on, with the seeds that led to it."""
    found: dict[str, Dealt] = {}
    for run in sorted(
        (run for row in table.rows for run in runs_of(row)), key=lambda run: run.seed
    ):
        counts = count_table(run.data.get("class_counts"))
        name = str(run.data.get("partition_hash"))
        if counts is not None:
            names = (strings(run.data.get(key)) for key in ("class_names", "group_names"))
            dealt = found.setdefault(name, Dealt((), name, counts, *names))
            found[name] = replace(dealt, seeds=tuple(dict.fromkeys((*dealt.seeds, run.seed))))
    return list(found.values())


def count_table(value: object) -> Indices | None:
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


def partition_map(dealt: Sequence[Dealt], drawn: Drawn) -> Map:
    """The first partitions, each with the clients that find room."""
    shown = dealt[:MAPS]
    clients, classes = map(int, dealt[0].counts.shape)
    return Map(
        place=drawn.add_maps([map_data(one) for one in shown]),
        whose=[one.whose for one in shown],
        clients=clients,
        drawn=map_clients(dealt[0]),
        classes=classes,
        largest=largest_share(shown),
    )


def map_data(dealt: Dealt) -> Record:
    shown = map_clients(dealt)
    counts = dealt.counts[:shown].tolist()
    return {"counts": counts, "classes": dealt.class_names, "clients": dealt.client_names[:shown]}


def map_clients(dealt: Dealt) -> int:
    clients, classes = map(int, dealt.counts.shape)
    return min(clients, MAP_CLIENTS, max(1, MAP_CELLS // classes))


def largest_share(found: Sequence[Dealt]) -> float:
    """The darkest colour: equal shares are a middle one."""
    largest = max(
        float((dealt.counts / dealt.counts.sum(axis=1, keepdims=True)).max()) for dealt in found
    )
    return min(max(largest, 2 / int(found[0].counts.shape[1])), 1.0)


# What other parts of the page read, too


def runs_of(row: Row) -> list[Run]:
    """The runs behind a row; those of an averaged twin are behind the row of its model."""
    return [run for run in (*(score.run for score in row.scores), *row.left_out) if not run.is_twin]


def strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
