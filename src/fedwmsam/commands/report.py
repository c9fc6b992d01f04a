"""`fedwmsam report`: tables, plots and an HTML page made from runs."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fedwmsam.commands.options import (
    FigureFormat,
    FormatOption,
    HtmlOption,
    MarkdownOption,
    RunsArgument,
)
from fedwmsam.commands.output import print_tables, print_written, say


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
            "--twins", help="Averaged twins (runs with --twin) as rows instead of columns."
        ),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write rows here, and runs to NAME-runs.csv.")
    ] = None,
    markdown: MarkdownOption = None,
    latex: Annotated[Path | None, typer.Option(help="Write the tables here, for booktabs.")] = None,
    html: HtmlOption = None,
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
    - `fedwmsam report runs --latex table.tex --plots figures --format pdf`
    - `fedwmsam report runs --html report.html`
    - `fedwmsam report runs --twins --baseline "scaffold twin=8"`
    """
    from fedwmsam.report import text_tables
    from fedwmsam.report.runs import add_averaged_model_runs, find_runs
    from fedwmsam.report.summary import make_goal, parse_targets, summarise
    from fedwmsam.report.text_tables import make_text_tables

    loaded_runs, empty_folders = find_runs(runs)
    if twins:
        loaded_runs = add_averaged_model_runs(loaded_runs)
    goal = make_goal(metric, parse_targets(targets or ""), better and better.value)
    comparison = summarise(loaded_runs, goal, baseline)
    tables = make_text_tables(comparison, paper_columns)
    print_tables(tables)
    for folder in empty_folders:
        say(f"No run in {folder}.")
    written = text_tables.write_files(comparison, tables, csv, markdown, latex)
    if html is not None:
        from fedwmsam.page.page import write_page

        written.append(write_page(html, comparison, paper_columns))
    if plots is not None:
        from fedwmsam.report.plots import save_comparison_plots

        written += save_comparison_plots(comparison, plots, format.value)
    print_written(written)
