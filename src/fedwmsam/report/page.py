"""A comparison as one HTML page that needs nothing else: no network, no library, no file beside it.

What a reader may want to check is in it as text; `page.js` draws the pictures, sorts the tables and reads values out.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from fedwmsam.analysis.flatness import seeds_sheet
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.report import page_clients, page_data
from fedwmsam.report.page_analysis import analysis_parts
from fedwmsam.report.page_commands import command
from fedwmsam.report.page_environment import environment
from fedwmsam.report.page_figures import client_figure, curve_figure, map_figure, sweep_figure
from fedwmsam.report.page_markup import Html, data_block, element, joined
from fedwmsam.report.page_tables import LENGTHS, frame, ledger, partition_sheet, settings_block, sheet_block, word_block
from fedwmsam.report.plots import COLOURS, SCHEDULES, window_of, words
from fedwmsam.report.runs import Run, State
from fedwmsam.report.series import sweeps
from fedwmsam.report.summary import Comparison, Goal, Table
from fedwmsam.report.text_tables import Sheet, sheets, write
from fedwmsam.version import __version__

CLIENT_COLUMNS = ("worst_client_accuracy", "tenth_percentile_accuracy", "accuracy")
NAMED = 4
"""Up to so many methods or tables are named at the top."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
"""What the page may do: run the one script it was made with, and fetch nothing."""


@dataclass
class Numbers:
    """What the script draws; pictures point into it by place."""

    charts: list[list[Record]] = field(default_factory=list)
    maps: list[list[Record]] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    body: Html

    def show(self, level: int) -> Html:
        return element("section", element(f"h{level}", self.title, id=self.name), self.body)


def write_page(path: Path, comparison: Comparison, paper_columns: bool = False) -> Path:
    write(path, page_text(comparison, paper_columns))
    return path


def page_text(comparison: Comparison, paper_columns: bool = False) -> str:
    """A single table's parts are the page's; several tables have a section each."""
    numbers = Numbers()
    tables = [
        [
            replace(part, name=f"{part.name}-{place}")
            for part in table_parts(table, replace(comparison, tables=(table,), unreadable=()), paper_columns, numbers)
        ]
        for place, table in enumerate(comparison.tables, start=1)
    ]
    if len(tables) == 1:
        sections = tables[0]
    else:
        sections = [
            Section(f"table-{place}", table.title, joined(part.show(3) for part in parts))
            for place, (table, parts) in enumerate(zip(comparison.tables, tables, strict=True), start=1)
        ]
    sections += last_parts(comparison)
    title = headline(comparison)
    body = [
        element("header", element("h1", title), *introduction(comparison), contents(sections)),
        element("main", *(section.show(2) for section in sections)),
        element("footer", element("p", f"Made by fedwmsam {__version__}. This page needs no network.")),
    ]
    return document(title, joined(body), numbers)


def document(title: str, body: Html, numbers: Numbers) -> str:
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    colours = "".join(f"--colour-{place}:{theme_colour(colour)};" for place, colour in enumerate(COLOURS))
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY.format(digest)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(f":root{{{colours}}}\n{asset('page.css')}")),
    ]
    tail = [data_block("numbers", {"charts": numbers.charts, "maps": numbers.maps}), element("script", Html(script))]
    return "<!doctype html>\n" + element("html", element("head", *head), element("body", body, *tail), lang="en") + "\n"


def asset(name: str) -> str:
    return (files("fedwmsam.report") / name).read_text(encoding="utf-8")


def theme_colour(colour: str) -> str:
    """Black would vanish on a dark page."""
    return "var(--ink)" if colour == "#000000" else colour


# The top


def headline(comparison: Comparison) -> str:
    rows = [row for table in comparison.tables for row in table.rows]
    methods = list(dict.fromkeys(row.method for row in rows))
    metric = words(comparison.goal.metric).capitalize()
    if not methods:
        return f"{metric}: no run that can be read"
    if len(methods) > NAMED:
        return f"{metric} of {len(methods)} methods"
    return f"{metric} of {' and '.join(filter(None, (', '.join(methods[:-1]), methods[-1])))}"


def introduction(comparison: Comparison) -> Iterator[Html]:
    """What was compared, and how much of it counts."""
    rows = [row for table in comparison.tables for row in table.rows]
    counted = len({score.run.path for row in rows for score in row.scores})
    others = sum(len(row.left_out) + len(row.repeated) for row in rows) + len(comparison.unreadable)
    seeds = {seed for row in rows for seed in row.seeds}
    if comparison.tables:
        titles = [table.title for table in comparison.tables]
        more = [f"and {len(titles) - NAMED} more"] if len(titles) > NAMED else []
        yield element("p", "; ".join([*titles[:NAMED], *more]), class_="subtitle")
    rest = f"{many(others, 'run')} not counted, for the reasons given below" if others else "all counted"
    yield element(
        "p", f"{many(len(rows), 'configuration')} over {many(len(seeds), 'seed')}: {many(counted, 'run')}, {rest}."
    )


def many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def contents(sections: Sequence[Section]) -> Html:
    links = [element("li", element("a", section.title, href=f"#{section.name}")) for section in sections]
    return element("nav", element("ul", *links), aria_label="Contents")


# One table of rows that may be compared


def table_parts(table: Table, alone: Comparison, paper_columns: bool, numbers: Numbers) -> Iterator[Section]:
    """`alone` is the comparison with this table only."""
    # The titles of the sheets end with that of the table, which stands above them.
    results, *others = (
        replace(sheet, title=sheet.title.removesuffix(f": {table.title}")) for sheet in sheets(alone, paper_columns)
    )
    targets = others.pop(0) if alone.goal.targets else None
    yield Section("results", "Results", sheet_block(results))
    if table.scores:
        yield from pictures(table, alone.goal, numbers)
    for differences in others:
        yield Section("differences", f"Differences to {table.baseline}", sheet_block(differences))
    if table.scores:
        costs = [ledger(table), *([targets] if targets else [])]
        yield Section("costs", "Costs", joined(sheet_block(sheet, LENGTHS) for sheet in costs))
    flat = seeds_sheet(table)
    if flat is not None:
        yield Section("flatness", "Flatness", sheet_block(flat))
    for part in analysis_parts(table, numbers.charts):
        yield Section(*part)
    dealt = page_data.partitions(table)
    if dealt:
        yield Section("partition", "Partition", partition_block(table, dealt, numbers))
    yield Section("settings", "Settings", settings_block(table))


def pictures(table: Table, goal: Goal, numbers: Numbers) -> Iterator[Section]:
    rows, columns = page_data.curves(table, goal)
    numbers.charts.append(rows)
    chart = partial(curve_figure, len(numbers.charts) - 1, rows)
    if columns:
        yield Section("curves", "Over the rounds", chart(columns, window_of(table, goal.metric)))
    schedules = [name for name in SCHEDULES if name in columns]
    if schedules:
        yield Section("schedule", "How α adapts", chart(schedules, 1))
    clients = [name for name in CLIENT_COLUMNS if name in columns]
    if CLIENT_COLUMNS[0] in clients:
        yield Section("clients", "The clients served worst", chart(clients, window_of(table, clients[0])))
    if page_clients.is_known(table):
        yield Section("by-client", "Accuracy by client", client_block(table, numbers))
    for place, sweep in enumerate(sweeps(table), start=1):
        lines = page_data.sweep_lines(sweep)
        numbers.charts.append(lines)
        what = f"{words(goal.metric)}, mean of last {table.evaluations}"
        figure = sweep_figure(len(numbers.charts) - 1, lines, sweep.option, what)
        yield Section(f"sweep-{place}", f"Sensitivity to {sweep.option}", figure)


def client_block(table: Table, numbers: Numbers) -> Html:
    parts = [element("p", page_clients.meaning(table))]
    lines = page_clients.client_lines(table)
    if lines:
        numbers.charts.append(lines)
        parts.append(client_figure(len(numbers.charts) - 1, lines))
    return joined([*parts, *map(sheet_block, page_clients.client_sheets(table))])


def partition_block(table: Table, dealt: Sequence[page_data.Dealt], numbers: Numbers) -> Html:
    drawn = dealt[: page_data.MAPS]
    numbers.maps.append([page_data.map_data(one) for one in drawn])
    sheet = partition_sheet(str(table.held_equal["partition"]), dealt)
    return joined([map_figure(len(numbers.maps) - 1, drawn), sheet_block(sheet)])


# The end


def last_parts(comparison: Comparison) -> Iterator[Section]:
    for sheet in sheets(replace(comparison, tables=())):
        yield Section("unreadable", sheet.title, word_block(sheet))
    if comparison.tables:
        yield Section("again", "Making the runs again", commands(comparison))
    machine = Sheet("The machine that made this page", ("what", "value"), tuple(environment().items()))
    said = (
        "Run folders do not record where they were made. This is the machine that made the page; runs that come from "
        "another one have that one's seconds, and maybe other last digits."
    )
    yield Section("environment", "Environment", joined([element("p", said), word_block(machine)]))


def commands(comparison: Comparison) -> Html:
    """Every run as a shell would take it; those that have no command in words."""
    lines: list[str] = []
    problems = []
    for row in (row for table in comparison.tables for row in table.rows):
        own = []
        for run in page_data.runs_of(row):
            try:
                own += [*state_line(run), command(run)]
            except InputError as error:
                problems.append(element("li", f"{row.label}, seed {run.seed} ({run.path}): {error}"))
        # A line break in a name must not begin a command.
        lines += [f"# {' '.join(row.label.split())}", *own] if own else []
    notes = element("ul", *problems, class_="notes") if problems else ""
    return joined([command_block(lines) if lines else "", notes])


def command_block(lines: Sequence[str]) -> Html:
    said = (
        "With the same versions on the same machine each of these gives the same numbers again, except seconds. What "
        "is not said has its default, or its value in the preset."
    )
    copy = element("button", "Copy", type="button", class_="copy")
    block = frame(element("pre", element("code", "\n".join(lines))), "Commands")
    return joined([element("p", said), element("div", copy, block, class_="commands")])


def state_line(run: Run) -> list[str]:
    return [] if run.state is State.COMPLETED else [f"# {run.state}:"]
