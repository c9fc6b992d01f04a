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
    EmbeddedImage,
    cluster_tables,
    dynamics_chart,
    embed_images,
    named_runs,
    theory_tables,
)
from fedwmsam.page.clients import (
    client_chart,
    client_tables,
    describe_client_accuracy,
    has_client_accuracies,
)
from fedwmsam.page.figures import (
    FigureData,
    LineChart,
    PartitionHeatmap,
    collect_partitions,
    curve_chart,
    make_curves,
    partition_map,
    runs_behind,
    sweep_chart,
)
from fedwmsam.page.provenance import environment_table, rerun_commands
from fedwmsam.page.tables import (
    BAR_COLUMNS,
    common_settings_table,
    cost_table,
    differing_settings_table,
    partition_table,
)
from fedwmsam.report.plots import ADAPTATION_COLUMNS, COLOURS, display_name, smoothing_window
from fedwmsam.report.series import find_sweeps
from fedwmsam.report.summary import Comparison, MetricSpec, ResultTable
from fedwmsam.report.text_tables import TextTable, make_text_tables, write_text
from fedwmsam.version import __version__

CLIENT_COLUMNS = ("worst_client_accuracy", "tenth_percentile_accuracy", "accuracy")
MAX_LISTED = 4
"""Up to so many methods or tables are named at the top."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
)
"""What the page may do: run the one script it was made with, and fetch nothing."""
REPRODUCIBILITY_NOTE = (
    "With the same versions on the same machine each of these gives the same numbers again, except seconds. What is "
    "not said has its default, or its value in the preset."
)
MACHINE_NOTE = (
    "Run folders do not record where they were made. This is the machine that made the page; runs that come from "
    "another one have that one's seconds, and maybe other last digits."
)


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in the order of these fields; most sections have one or two of them."""

    name: str
    title: str
    said: str = ""
    chart: LineChart | None = None
    map: PartitionHeatmap | None = None
    pictures: Sequence[EmbeddedImage] | None = None
    commands: str = ""
    notes: Sequence[str] = ()
    sheets: Sequence[TextTable] = ()
    """Tables that can be sorted."""
    lengths: Sequence[str] = ()
    """Their columns that are drawn as lengths, too."""
    words: Sequence[TextTable] = ()
    """Tables of words, in an order of their own."""
    settings: TextTable | None = None
    """A table of words that is folded away."""
    parts: Sequence["Section"] = ()


def write_page(path: Path, comparison: Comparison, paper_columns: bool = False) -> Path:
    write_text(path, render_page(comparison, paper_columns))
    return path


def render_page(comparison: Comparison, paper_columns: bool = False) -> str:
    drawn = FigureData()
    sections = [*table_sections(comparison, paper_columns, drawn), *closing_sections(comparison)]
    script = asset("page.js")
    environment = Environment(
        loader=PackageLoader("fedwmsam.page", ""),
        autoescape=True,
        finalize=to_utf8_text,
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
        policy=CONTENT_SECURITY_POLICY.format(
            base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        ),
        colours=[theme_colour(colour) for colour in COLOURS],
        style=asset("page.css"),
        script=script,
        numbers=figure_data_json(drawn),
    )


def to_utf8_text(value: object) -> object:
    """What is not markup, as text that UTF-8 can hold: a path may have bytes that are no characters."""
    return value if isinstance(value, Markup) else str(value).encode("utf-8", "replace").decode()


def asset(name: str) -> str:
    return (files("fedwmsam.page") / name).read_text(encoding="utf-8")


def theme_colour(colour: str) -> str:
    """Black would vanish on a dark page."""
    return "var(--ink)" if colour == "#000000" else colour


def figure_data_json(drawn: FigureData) -> str:
    """Numbers for the page's script. Without "<" nothing in them can end the block or begin a comment."""
    values = {"charts": drawn.charts, "maps": drawn.maps}
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


# The top


def headline(comparison: Comparison) -> str:
    rows = [row for table in comparison.tables for row in table.rows]
    methods = list(dict.fromkeys(row.method for row in rows))
    metric = display_name(comparison.goal.metric).capitalize()
    if not methods:
        return f"{metric}: no run that can be read"
    if len(methods) > MAX_LISTED:
        return f"{metric} of {len(methods)} methods"
    return f"{metric} of {' and '.join(filter(None, (', '.join(methods[:-1]), methods[-1])))}"


def subtitle(comparison: Comparison) -> str:
    titles = [table.title for table in comparison.tables]
    more = [f"and {len(titles) - MAX_LISTED} more"] if len(titles) > MAX_LISTED else []
    return "; ".join([*titles[:MAX_LISTED], *more])


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


def table_sections(comparison: Comparison, paper_columns: bool, drawn: FigureData) -> list[Section]:
    """A single table's parts are the page's; several tables have a section each."""
    found = []
    for place, table in enumerate(comparison.tables, start=1):
        alone = replace(comparison, tables=(table,), unreadable=())
        parts = [
            replace(part, name=f"{part.name}-{place}")
            for part in sections_of_table(table, alone, paper_columns, drawn)
        ]
        found.append(Section(f"table-{place}", table.title, parts=parts))
    return list(found[0].parts) if len(found) == 1 else found


def sections_of_table(
    table: ResultTable, alone: Comparison, paper_columns: bool, drawn: FigureData
) -> Iterator[Section]:
    """`alone` is the comparison with this table only."""
    # The titles of the sheets end with that of the table, which stands above them.
    results, *others = (
        replace(sheet, title=sheet.title.removesuffix(f": {table.title}"))
        for sheet in make_text_tables(alone, paper_columns)
    )
    targets = [others.pop(0)] if alone.goal.targets else []
    yield Section("results", "Results", sheets=[results])
    if table.scores:
        yield from chart_sections(table, alone.goal, drawn)
    for differences in others:
        yield Section("differences", f"Differences to {table.baseline}", sheets=[differences])
    if table.scores:
        yield Section("costs", "Costs", sheets=[cost_table(table), *targets], lengths=BAR_COLUMNS)
    flat = seeds_sheet(table)
    if flat is not None:
        yield Section("flatness", "Flatness", sheets=[flat])
    yield from analysis_sections(table, drawn)
    dealt = collect_partitions(table)
    if dealt:
        sheet = partition_table(str(table.held_equal["partition"]), dealt)
        yield Section("partition", "Partition", map=partition_map(dealt, drawn), sheets=[sheet])
    yield Section(
        "settings",
        "Settings",
        sheets=[differing_settings_table(table)],
        settings=common_settings_table(table),
    )


def chart_sections(table: ResultTable, goal: MetricSpec, drawn: FigureData) -> Iterator[Section]:
    lines, columns = make_curves(table, goal)
    chart = partial(curve_chart, drawn.add_chart(lines), lines)
    if columns:
        yield Section(
            "curves", "Over the rounds", chart=chart(columns, smoothing_window(table, goal.metric))
        )
    schedules = [name for name in ADAPTATION_COLUMNS if name in columns]
    if schedules:
        yield Section("schedule", "How α adapts", chart=chart(schedules, 1))
    clients = [name for name in CLIENT_COLUMNS if name in columns]
    if CLIENT_COLUMNS[0] in clients:
        yield Section(
            "clients",
            "The clients served worst",
            chart=chart(clients, smoothing_window(table, clients[0])),
        )
    if has_client_accuracies(table):
        yield Section(
            name="by-client",
            title="Accuracy by client",
            said=describe_client_accuracy(table),
            chart=client_chart(table, drawn),
            sheets=list(client_tables(table)),
        )
    what = f"{display_name(goal.metric)}, mean of last {table.evaluations}"
    for place, sweep in enumerate(find_sweeps(table), start=1):
        yield Section(
            f"sweep-{place}",
            f"Sensitivity to {sweep.option}",
            chart=sweep_chart(sweep, what, drawn),
        )


def analysis_sections(table: ResultTable, drawn: FigureData) -> Iterator[Section]:
    """What `fedwmsam analyse` found, as far as the runs' folders hold it."""
    groups = dynamics.groups_of(run for row in table.rows for run in runs_behind(row))
    if groups:
        chart = dynamics_chart(groups, drawn)
        yield Section(
            "dynamics",
            "Alignment, echo and drift",
            chart=chart,
            sheets=dynamics.dynamics_tables(groups),
        )
    runs = named_runs(table)
    shown, left_out = embed_images(runs)
    if shown or left_out:
        yield Section(
            name="pictures",
            title="Landscapes and embeddings",
            pictures=shown,
            notes=[f"Not shown: {path}" for path in left_out],
            sheets=cluster_tables(runs),
        )
    theory = theory_tables(runs)
    if theory:
        yield Section("theory", "The theorem and these runs", words=theory)


# The end


def closing_sections(comparison: Comparison) -> Iterator[Section]:
    for sheet in make_text_tables(replace(comparison, tables=())):
        yield Section("unreadable", sheet.title, words=[sheet])
    if comparison.tables:
        lines, problems = rerun_commands(comparison)
        said = REPRODUCIBILITY_NOTE if lines else ""
        yield Section("again", "Making the runs again", said=said, commands=lines, notes=problems)
    yield Section("environment", "Environment", said=MACHINE_NOTE, words=[environment_table()])
