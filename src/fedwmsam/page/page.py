"""A comparison as one HTML page that needs nothing else: no network, no library, no file beside it.

Here is what stands on it and in which order; `page.html.j2` shows how. What a reader may want to check is in it as
text; `page.js` draws the pictures, sorts the tables and reads values out.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedwmsam.analysis import dynamics
from fedwmsam.analysis.flatness import seeds_sheet
from fedwmsam.page.analyses import (
    Picture,
    cluster_sheets,
    dynamics_chart,
    named_runs,
    pictures,
    theory_sheets,
)
from fedwmsam.page.clients import client_chart, client_sheets, is_known, meaning
from fedwmsam.page.figures import (
    Chart,
    Drawn,
    Map,
    curve_chart,
    curves,
    partition_map,
    partitions,
    runs_of,
    sweep_chart,
)
from fedwmsam.page.provenance import commands, machine
from fedwmsam.page.tables import (
    LENGTHS,
    common_settings,
    differing_settings,
    ledger,
    partition_sheet,
)
from fedwmsam.report.plots import COLOURS, SCHEDULES, window_of, words
from fedwmsam.report.series import sweeps
from fedwmsam.report.summary import Comparison, Goal, Table
from fedwmsam.report.text_tables import Sheet, sheets, write
from fedwmsam.version import __version__

CLIENT_COLUMNS = ("worst_client_accuracy", "tenth_percentile_accuracy", "accuracy")
NAMED = 4
"""Up to so many methods or tables are named at the top."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
"""What the page may do: run the one script it was made with, and fetch nothing."""
SAME_NUMBERS = (
    "With the same versions on the same machine each of these gives the same numbers again, except seconds. What is "
    "not said has its default, or its value in the preset."
)
OTHER_MACHINES = (
    "Run folders do not record where they were made. This is the machine that made the page; runs that come from "
    "another one have that one's seconds, and maybe other last digits."
)


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in the order of these fields; most sections have one or two of them."""

    name: str
    title: str
    said: str = ""
    chart: Chart | None = None
    map: Map | None = None
    pictures: Sequence[Picture] | None = None
    commands: str = ""
    notes: Sequence[str] = ()
    sheets: Sequence[Sheet] = ()
    """Tables that can be sorted."""
    lengths: Sequence[str] = ()
    """Their columns that are drawn as lengths, too."""
    words: Sequence[Sheet] = ()
    """Tables of words, in an order of their own."""
    settings: Sheet | None = None
    """A table of words that is folded away."""
    parts: Sequence["Section"] = ()


def write_page(path: Path, comparison: Comparison, paper_columns: bool = False) -> Path:
    write(path, page_text(comparison, paper_columns))
    return path


def page_text(comparison: Comparison, paper_columns: bool = False) -> str:
    drawn = Drawn()
    sections = [*table_sections(comparison, paper_columns, drawn), *last_sections(comparison)]
    script = asset("page.js")
    environment = Environment(
        loader=PackageLoader("fedwmsam.page", ""),
        autoescape=True,
        finalize=encodable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2").render(
        title=headline(comparison),
        subtitle=subtitle(comparison),
        **counts(comparison),
        sections=sections,
        version=__version__,
        policy=POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        colours=[theme_colour(colour) for colour in COLOURS],
        style=asset("page.css"),
        script=script,
        numbers=data_block(drawn),
    )


def encodable(value: object) -> object:
    """What is not markup, as text that UTF-8 can hold: a path may have bytes that are no characters."""
    return value if isinstance(value, Markup) else str(value).encode("utf-8", "replace").decode()


def asset(name: str) -> str:
    return (files("fedwmsam.page") / name).read_text(encoding="utf-8")


def theme_colour(colour: str) -> str:
    """Black would vanish on a dark page."""
    return "var(--ink)" if colour == "#000000" else colour


def data_block(drawn: Drawn) -> str:
    """Numbers for the page's script. Without "<" nothing in them can end the block or begin a comment."""
    values = {"charts": drawn.charts, "maps": drawn.maps}
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


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


def subtitle(comparison: Comparison) -> str:
    titles = [table.title for table in comparison.tables]
    more = [f"and {len(titles) - NAMED} more"] if len(titles) > NAMED else []
    return "; ".join([*titles[:NAMED], *more])


def counts(comparison: Comparison) -> dict[str, int]:
    """What was compared, and how much of it counts."""
    rows = [row for table in comparison.tables for row in table.rows]
    left_out = sum(len(row.left_out) + len(row.repeated) for row in rows)
    return {
        "rows": len(rows),
        "seeds": len({seed for row in rows for seed in row.seeds}),
        "runs": len({score.run.path for row in rows for score in row.scores}),
        "others": left_out + len(comparison.unreadable),
    }


# One table of rows that may be compared


def table_sections(comparison: Comparison, paper_columns: bool, drawn: Drawn) -> list[Section]:
    """A single table's parts are the page's; several tables have a section each."""
    found = []
    for place, table in enumerate(comparison.tables, start=1):
        alone = replace(comparison, tables=(table,), unreadable=())
        parts = [
            replace(part, name=f"{part.name}-{place}")
            for part in table_parts(table, alone, paper_columns, drawn)
        ]
        found.append(Section(f"table-{place}", table.title, parts=parts))
    return list(found[0].parts) if len(found) == 1 else found


def table_parts(
    table: Table, alone: Comparison, paper_columns: bool, drawn: Drawn
) -> Iterator[Section]:
    """`alone` is the comparison with this table only."""
    # The titles of the sheets end with that of the table, which stands above them.
    results, *others = (
        replace(sheet, title=sheet.title.removesuffix(f": {table.title}"))
        for sheet in sheets(alone, paper_columns)
    )
    targets = [others.pop(0)] if alone.goal.targets else []
    yield Section("results", "Results", sheets=[results])
    if table.scores:
        yield from chart_parts(table, alone.goal, drawn)
    for differences in others:
        yield Section("differences", f"Differences to {table.baseline}", sheets=[differences])
    if table.scores:
        yield Section("costs", "Costs", sheets=[ledger(table), *targets], lengths=LENGTHS)
    flat = seeds_sheet(table)
    if flat is not None:
        yield Section("flatness", "Flatness", sheets=[flat])
    yield from analysis_parts(table, drawn)
    dealt = partitions(table)
    if dealt:
        sheet = partition_sheet(str(table.held_equal["partition"]), dealt)
        yield Section("partition", "Partition", map=partition_map(dealt, drawn), sheets=[sheet])
    yield Section(
        "settings", "Settings", sheets=[differing_settings(table)], settings=common_settings(table)
    )


def chart_parts(table: Table, goal: Goal, drawn: Drawn) -> Iterator[Section]:
    lines, columns = curves(table, goal)
    chart = partial(curve_chart, drawn.add_chart(lines), lines)
    if columns:
        yield Section(
            "curves", "Over the rounds", chart=chart(columns, window_of(table, goal.metric))
        )
    schedules = [name for name in SCHEDULES if name in columns]
    if schedules:
        yield Section("schedule", "How α adapts", chart=chart(schedules, 1))
    clients = [name for name in CLIENT_COLUMNS if name in columns]
    if CLIENT_COLUMNS[0] in clients:
        yield Section(
            "clients",
            "The clients served worst",
            chart=chart(clients, window_of(table, clients[0])),
        )
    if is_known(table):
        yield Section(
            name="by-client",
            title="Accuracy by client",
            said=meaning(table),
            chart=client_chart(table, drawn),
            sheets=list(client_sheets(table)),
        )
    what = f"{words(goal.metric)}, mean of last {table.evaluations}"
    for place, sweep in enumerate(sweeps(table), start=1):
        yield Section(
            f"sweep-{place}",
            f"Sensitivity to {sweep.option}",
            chart=sweep_chart(sweep, what, drawn),
        )


def analysis_parts(table: Table, drawn: Drawn) -> Iterator[Section]:
    """What `fedwmsam analyse` found, as far as the runs' folders hold it."""
    groups = dynamics.groups_of(run for row in table.rows for run in runs_of(row))
    if groups:
        chart = dynamics_chart(groups, drawn)
        yield Section(
            "dynamics", "Alignment, echo and drift", chart=chart, sheets=dynamics.sheets(groups)
        )
    runs = named_runs(table)
    shown, left_out = pictures(runs)
    if shown or left_out:
        yield Section(
            name="pictures",
            title="Landscapes and embeddings",
            pictures=shown,
            notes=[f"Not shown: {path}" for path in left_out],
            sheets=cluster_sheets(runs),
        )
    theory = theory_sheets(runs)
    if theory:
        yield Section("theory", "The theorem and these runs", words=theory)


# The end


def last_sections(comparison: Comparison) -> Iterator[Section]:
    for sheet in sheets(replace(comparison, tables=())):
        yield Section("unreadable", sheet.title, words=[sheet])
    if comparison.tables:
        lines, problems = commands(comparison)
        said = SAME_NUMBERS if lines else ""
        yield Section("again", "Making the runs again", said=said, commands=lines, notes=problems)
    yield Section("environment", "Environment", said=OTHER_MACHINES, words=[machine()])
