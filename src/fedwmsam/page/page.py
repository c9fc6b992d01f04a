"""A comparison as one HTML page that needs nothing else: no network, library or further file.

Here is what the page holds and in which order, as `Section`s; `page.html.j2` says how it looks.
Everything that a reader may want to check is in it as text. `page.js` draws the charts, sorts the
tables and reads values out.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedwmsam.analysis import dynamics
from fedwmsam.analysis.flatness import seeds_table
from fedwmsam.page.again import compare_command
from fedwmsam.page.analyses import (
    EmbeddedImage,
    cluster_tables,
    dynamics_chart,
    embed_images,
    named_runs,
    refuse_damaged_analyses,
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
from fedwmsam.page.multiples import SmallMultiples, small_multiples
from fedwmsam.page.provenance import environment_table, environments_table, rerun_commands
from fedwmsam.page.tables import (
    BAR_COLUMNS,
    common_settings_table,
    cost_table,
    differing_settings_table,
    partition_table,
)
from fedwmsam.page.verdict import ForestPlot, best_cells, forest_plot, verdict
from fedwmsam.report.output_files import write_text
from fedwmsam.report.pivot import default_pivot_tables, pivot_text_table
from fedwmsam.report.plots import ADAPTATION_COLUMNS, COLOURS, display_name, smoothing_window
from fedwmsam.report.series import find_sweeps
from fedwmsam.report.summary import Comparison, Goal, ResultTable
from fedwmsam.report.text_tables import TableKind, TextTable, make_text_tables
from fedwmsam.version import __version__

CLIENT_COLUMNS = ("worst_client_accuracy", "tenth_percentile_accuracy", "accuracy")
"""Columns of the chart of the clients that are served worst, which needs the first of them."""
MAX_LISTED = 4
"""The number of methods or tables up to which they are named at the top."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
)
"""What the page may do: run the one script with this hash, and fetch nothing."""
REPRODUCIBILITY_NOTE = (
    "With the same versions on the same machine each of these gives the same numbers again, except "
    "seconds. What is not said has its default, or its value in the preset."
)
MACHINE_NOTE = (
    "A run that another version or machine made has that one's seconds, and maybe other last "
    "digits. Runs of older versions do not say what made them."
)


@dataclass(frozen=True)
class Section:
    """A heading and what is below it, in the order of these fields.

    Most sections have one or two of them.
    """

    name: str
    """The `id` of the heading, to which links lead."""
    title: str
    text: str = ""
    chart: LineChart | None = None
    heatmap: PartitionHeatmap | None = None
    forest: ForestPlot | None = None
    multiples: Sequence[SmallMultiples] = ()
    images: Sequence[EmbeddedImage] | None = None
    commands: str = ""
    """Lines for a shell."""
    notes: Sequence[str] = ()
    sortable_tables: Sequence[TextTable] = ()
    """Tables that the reader can sort by any column."""
    bar_columns: Sequence[str] = ()
    """Columns of the sortable tables whose cells also show a bar."""
    static_tables: Sequence[TextTable] = ()
    """Tables that keep their order."""
    collapsed_table: TextTable | None = None
    """A table of settings that the reader can unfold."""
    subsections: Sequence["Section"] = ()


def write_page(
    path: Path, comparison: Comparison, paper_columns: bool = False, watch: float = 0
) -> Path:
    """Write the page of a comparison, and return its path.

    Raise InputError if the file cannot be written.
    """
    write_text(path, render_page(comparison, paper_columns, watch))
    return path


def render_page(comparison: Comparison, paper_columns: bool = False, watch: float = 0) -> str:
    """Return the HTML of the page of a comparison.

    `paper_columns` adds the best value on the test data, which some papers print. A page that is
    written again while runs go on loads itself again every `watch` seconds.
    """
    figure_data = FigureData()
    sections = pivot_sections(comparison)
    sections += sections_of_all_tables(comparison, paper_columns, figure_data)
    sections += closing_sections(comparison)
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
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html.j2").render(
        title=headline(comparison),
        subtitle=subtitle(comparison),
        verdicts=verdicts(comparison),
        watch=watch,
        **run_counts(comparison),
        sections=sections,
        version=__version__,
        policy=CONTENT_SECURITY_POLICY.format(script_hash),
        colours=[theme_colour(colour) for colour in COLOURS],
        style=asset("page.css"),
        script=script,
        numbers=figure_data_json(figure_data),
    )


def to_utf8_text(value: object) -> object:
    """Return what is not markup as text that UTF-8 can hold.

    A path may have bytes that are no characters; they are replaced.
    """
    return value if isinstance(value, Markup) else str(value).encode("utf-8", "replace").decode()


def asset(name: str) -> str:
    """Return the text of a file of this package."""
    return (files("fedwmsam.page") / name).read_text(encoding="utf-8")


def theme_colour(colour: str) -> str:
    """Return the colour, for black that of the text: black would vanish on a dark page."""
    return "var(--ink)" if colour == "#000000" else colour


def figure_data_json(figure_data: FigureData) -> str:
    """Return the numbers of the figures for the page's script.

    They hold no "<", so that nothing in them can end the block or begin a comment.
    """
    values = {"charts": figure_data.charts, "maps": figure_data.maps}
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


# The top


def headline(comparison: Comparison) -> str:
    """Return the title of the page: the metric and the methods, or their number."""
    methods = list(dict.fromkeys(row.method for row in comparison.rows))
    metric = display_name(comparison.goal.metric).capitalize()
    if not methods:
        return f"{metric}: no run that can be read"
    if len(methods) > MAX_LISTED:
        return f"{metric} of {len(methods)} methods"
    return f"{metric} of {' and '.join(filter(None, (', '.join(methods[:-1]), methods[-1])))}"


def subtitle(comparison: Comparison) -> str:
    """Return the titles of the first tables."""
    titles = [table.title for table in comparison.tables]
    more = [f"and {len(titles) - MAX_LISTED} more"] if len(titles) > MAX_LISTED else []
    return "; ".join([*titles[:MAX_LISTED], *more])


def verdicts(comparison: Comparison) -> list[str]:
    """Return a sentence for each table on who leads it; the table is named if there are several."""
    sentences = []
    for table in comparison.tables:
        sentence = verdict(table, comparison.goal)
        if sentence:
            several = len(comparison.tables) > 1
            sentences.append(f"{table.title}: {sentence}" if several else sentence)
    return sentences


def run_counts(comparison: Comparison) -> dict[str, int]:
    """Return the numbers of rows, seeds and runs, and of the runs that are not counted."""
    rows = comparison.rows
    scores = list(chain.from_iterable(row.scores for row in rows))
    uncounted = sum(len(row.excluded_runs) + len(row.duplicate_runs) for row in rows)
    return {
        "rows": len(rows),
        "seeds": len({score.run.seed for score in scores}),
        "runs": len({score.run.path for score in scores}),
        "uncounted_runs": uncounted + len(comparison.unreadable_runs),
    }


def pivot_sections(comparison: Comparison) -> list[Section]:
    """Return the section of methods by the one setting that varies, if there is one."""
    tables = default_pivot_tables(comparison)
    if not tables:
        return []
    multiples = [small_multiples(table, comparison.goal) for table in tables]
    return [
        Section(
            name="pivot",
            title="Methods by setting",
            multiples=list(filter(None, multiples)),
            sortable_tables=[pivot_text_table(table, comparison.goal) for table in tables],
        )
    ]


# One table of rows that may be compared


def sections_of_all_tables(
    comparison: Comparison, paper_columns: bool, figure_data: FigureData
) -> list[Section]:
    """Return the sections of the only table, or a section with subsections for each table."""
    sections = []
    for number, table in enumerate(comparison.tables, start=1):
        table_summary = replace(comparison, tables=(table,), unreadable_runs=())
        subsections = [
            replace(section, name=f"{section.name}-{number}")
            for section in sections_of_table(table, table_summary, paper_columns, figure_data)
        ]
        sections.append(Section(f"table-{number}", table.title, subsections=subsections))
    return list(sections[0].subsections) if len(sections) == 1 else sections


def sections_of_table(
    table: ResultTable, table_summary: Comparison, paper_columns: bool, figure_data: FigureData
) -> Iterator[Section]:
    """Yield the sections of a table; `table_summary` is the comparison with this table only."""
    # The titles of the text tables end with that of the table, which stands above them.
    text_tables = [
        replace(text_table, title=text_table.title.removesuffix(f": {table.title}"))
        for text_table in make_text_tables(table_summary, paper_columns)
    ]
    (results,) = tables_of_kind("results", text_tables)
    yield Section(
        "results",
        "Results",
        sortable_tables=[replace(results, bold_cells=best_cells(results, table_summary.goal))],
        forest=forest_plot(table, table_summary.goal),
    )
    if table.scores:
        yield from chart_sections(table, table_summary.goal, figure_data)
    for tuning in tables_of_kind("tuning", text_tables):
        yield Section("tuning", "Tuning", static_tables=[tuning])
    for differences in tables_of_kind("differences", text_tables):
        title = f"Differences to {table.baseline}"
        yield Section("differences", title, sortable_tables=[differences])
    if table.scores:
        costs = [cost_table(table), *tables_of_kind("target costs", text_tables)]
        yield Section("costs", "Costs", sortable_tables=costs, bar_columns=BAR_COLUMNS)
    with refuse_damaged_analyses():
        flatness_table = seeds_table(table)
    if flatness_table is not None:
        yield Section("flatness", "Flatness", sortable_tables=[flatness_table])
    with refuse_damaged_analyses():
        yield from analysis_sections(table, figure_data)
    partitions = collect_partitions(table)
    if partitions:
        rule = str(table.shared_settings["partition"])
        yield Section(
            "partition",
            "Partition",
            heatmap=partition_map(partitions, figure_data),
            sortable_tables=[partition_table(rule, partitions)],
        )
    yield Section(
        "settings",
        "Settings",
        sortable_tables=[differing_settings_table(table)],
        collapsed_table=common_settings_table(table),
    )


def tables_of_kind(kind: TableKind, text_tables: Sequence[TextTable]) -> list[TextTable]:
    """Return those of the tables that are of one kind."""
    return [text_table for text_table in text_tables if text_table.kind == kind]


def chart_sections(table: ResultTable, goal: Goal, figure_data: FigureData) -> Iterator[Section]:
    """Yield the sections of the curves, the clients and the sweeps of a table with results."""
    lines, columns = make_curves(table, goal)
    make_chart = partial(curve_chart, figure_data.add_chart(lines), lines)
    if columns:
        chart = make_chart(columns, smoothing_window(table, goal.metric))
        yield Section("curves", "Over the rounds", chart=chart)
    adaptation_columns = [name for name in ADAPTATION_COLUMNS if name in columns]
    if adaptation_columns:
        yield Section("schedule", "How α adapts", chart=make_chart(adaptation_columns, 1))
    client_columns = [name for name in CLIENT_COLUMNS if name in columns]
    if CLIENT_COLUMNS[0] in client_columns:
        chart = make_chart(client_columns, smoothing_window(table, client_columns[0]))
        yield Section("clients", "The clients served worst", chart=chart)
    if has_client_accuracies(table):
        yield Section(
            name="by-client",
            title="Accuracy by client",
            text=describe_client_accuracy(table),
            chart=client_chart(table, figure_data),
            sortable_tables=list(client_tables(table)),
        )
    column = f"{display_name(goal.metric)}, mean of last {table.evaluations}"
    for number, sweep in enumerate(find_sweeps(table), start=1):
        chart = sweep_chart(sweep, column, figure_data)
        yield Section(f"sweep-{number}", f"Sensitivity to {sweep.option}", chart=chart)


def analysis_sections(table: ResultTable, figure_data: FigureData) -> Iterator[Section]:
    """Yield the sections of the analyses that the runs' folders hold."""
    groups = dynamics.load_groups(chain.from_iterable(runs_behind(row) for row in table.rows))
    dynamics_tables = dynamics.dynamics_tables(groups)
    if dynamics_tables:
        yield Section(
            "dynamics",
            "Alignment, echo and drift",
            chart=dynamics_chart(groups, figure_data),
            sortable_tables=dynamics_tables,
        )
    runs = named_runs(table)
    images, omitted_files = embed_images(runs)
    if images or omitted_files:
        yield Section(
            name="pictures",
            title="Landscapes and embeddings",
            images=images,
            notes=[f"Not shown: {path}" for path in omitted_files],
            sortable_tables=cluster_tables(runs),
        )
    theory = theory_tables(runs)
    if theory:
        yield Section("theory", "The theorem and these runs", static_tables=theory)


# The end


def closing_sections(comparison: Comparison) -> Iterator[Section]:
    """Yield the sections that are not of a table: unreadable runs, commands and the machine."""
    text_tables = make_text_tables(replace(comparison, tables=()))
    for text_table in tables_of_kind("unreadable runs", text_tables):
        yield Section("unreadable", text_table.title, static_tables=[text_table])
    if comparison.tables:
        commands, problems = rerun_commands(comparison)
        together = compare_command(comparison)
        if together:
            commands = f"# All runs together:\n{together}\n\n{commands}"
        yield Section(
            name="again",
            title="Making the runs again",
            text=REPRODUCIBILITY_NOTE if commands else "",
            commands=commands,
            notes=problems,
        )
    made_runs = [environments_table(comparison)] if comparison.rows else []
    yield Section(
        "environment",
        "Environment",
        text=MACHINE_NOTE,
        static_tables=[*made_runs, environment_table()],
    )
