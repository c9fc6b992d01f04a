"""`fedwmsam report`: tables, plots and an HTML page made from runs."""

import contextlib
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedwmsam.commands.options import (
    FigureFormat,
    FormatOption,
    HtmlOption,
    MarkdownOption,
    RunsArgument,
)
from fedwmsam.commands.output import print_tables, print_written, say
from fedwmsam.errors import InputError

if TYPE_CHECKING:
    from fedwmsam.report.runs import LoadedRun
    from fedwmsam.report.summary import Comparison

WATCH_SECONDS = 5
"""Seconds from one writing of a page that is watched to the next."""


class TableWidth(Enum):
    """How wide a LaTeX table may be."""

    COLUMN = "column"
    PAGE = "page"


class Better(Enum):
    """Whether a higher or a lower value of the metric is better."""

    HIGHER = "higher"
    LOWER = "lower"


def report(
    runs: RunsArgument,
    metric: Annotated[str, typer.Option(help="Column of metrics.jsonl to compare.")] = "accuracy",
    better: Annotated[
        Better | None,
        typer.Option(help="Which way the metric is better.", show_default="by its name"),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="What reaching these values of the metric cost."),
    ] = None,
    first_crossing: Annotated[
        bool,
        typer.Option(
            "--first-crossing", help="One evaluation reaches a target, not the mean of ten."
        ),
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(help="Row to compare the others with, seed by seed.")
    ] = None,
    paper_columns: Annotated[
        bool,
        typer.Option("--paper-columns", help="Also the best round on test, as papers print it."),
    ] = False,
    twins: Annotated[
        bool,
        typer.Option(
            "--twins/--no-twins", help="Rows for averaged twins, which runs with --twin have."
        ),
    ] = True,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="Also which versions and machines made the runs.")
    ] = False,
    pivot: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING",
            help="Also a table of methods by the values of this setting or option.",
            show_default="the only one that varies",
        ),
    ] = None,
    percent: Annotated[
        bool, typer.Option("--percent", help="The metric in percent in the tables.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write rows here, and runs to NAME-runs.csv.")
    ] = None,
    curves: Annotated[
        Path | None, typer.Option(help="Write all rounds of all runs here, as CSV.")
    ] = None,
    markdown: MarkdownOption = None,
    latex: Annotated[Path | None, typer.Option(help="Write the tables here, for a paper.")] = None,
    width: Annotated[
        TableWidth, typer.Option(help="How wide a LaTeX table may be.")
    ] = TableWidth.COLUMN,
    html: HtmlOption = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Write the page again every few seconds while runs go on."),
    ] = False,
    plots: Annotated[Path | None, typer.Option(help="Draw pictures into this folder.")] = None,
    format: FormatOption = FigureFormat.PNG,
) -> None:
    """Compare runs: one row for each method and its settings, over its seeds.

    Last, mean of the last ten evaluations and best by validation; with `--targets` and
    `--baseline` what it took to
    reach a value, and paired differences with their uncertainty.

    Examples:

    - `fedwmsam report runs`
    - `fedwmsam report runs --targets 0.7,0.8 --baseline fedavg`
    - `fedwmsam report runs --pivot partition --percent --latex table.tex --width page`
    - `fedwmsam report runs --plots figures --format pdf`
    - `fedwmsam report runs --html report.html`
    - `fedwmsam report comparison --html report.html --watch`
    - `fedwmsam report runs --baseline "scaffold averaged"`
    - `fedwmsam report runs --provenance`
    """
    from fedwmsam.report.latex import latex_text, paper_tables
    from fedwmsam.report.output_files import write_texts
    from fedwmsam.report.percent import in_percent
    from fedwmsam.report.pivot import pivot_text_tables
    from fedwmsam.report.runs import add_averaged_model_runs, find_runs
    from fedwmsam.report.summary import make_goal, parse_targets, summarise
    from fedwmsam.report.text_tables import csv_curves, csv_texts, make_text_tables, markdown_text

    goal = make_goal(metric, parse_targets(targets or ""), better and better.value, first_crossing)
    if plots is not None:
        from fedwmsam.report.plots import require_matplotlib, save_comparison_plots

        require_matplotlib()  # else the other files would be there, and the command have failed

    def load() -> "tuple[list[LoadedRun], list[str]]":
        loaded_runs, empty_folders = find_runs(runs)
        if twins:
            loaded_runs = add_averaged_model_runs(loaded_runs, metric)
        return loaded_runs, empty_folders

    if watch:
        watch_runs(html, lambda: summarise(load()[0], goal, baseline), runs, paper_columns)
    loaded_runs, empty_folders = load()
    comparison = summarise(loaded_runs, goal, baseline)
    shown = summarise(*in_percent(loaded_runs, goal), baseline) if percent else comparison
    pivot_tables = pivot_text_tables(shown, pivot)
    tables = [*make_text_tables(shown, paper_columns), *pivot_tables]
    if provenance:
        from fedwmsam.page.provenance import environments_table

        tables.append(environments_table(comparison))
    print_tables(tables)
    for folder in empty_folders:
        say(f"No run in {folder}.")
    texts: dict[Path, str] = {}
    if csv is not None:
        texts |= csv_texts(comparison, csv)
    if curves is not None:
        texts[curves] = csv_curves(comparison)
    if markdown is not None:
        texts[markdown] = markdown_text(tables)
    if latex is not None:
        latex_tables = [*paper_tables(shown, paper_columns), *pivot_tables]
        texts[latex] = latex_text(latex_tables, width.value)
    written = write_texts(texts)
    if html is not None:
        from fedwmsam.page.page import write_page

        written.append(write_page(html, comparison, paper_columns))
    if plots is not None:
        written += save_comparison_plots(comparison, plots, format.value)
    print_written(written)


def watch_runs(
    html: Path | None, load: "Callable[[], Comparison]", runs: list[Path], paper_columns: bool
) -> None:
    """Write the page again and again while runs go on; Ctrl-C ends it with the page as it is."""
    from fedwmsam.page.watch import watch_page

    if html is None:
        raise InputError("--watch writes a page again and again: name it with --html PAGE.")
    say(f"Open {html} in a browser; it is written every {WATCH_SECONDS} s. Ctrl-C ends this.")
    with contextlib.suppress(KeyboardInterrupt):
        watch_page(html, load, runs, WATCH_SECONDS, paper_columns)
