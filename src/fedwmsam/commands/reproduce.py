"""`fedwmsam reproduce`: the paper's tables, figures and claims."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedwmsam.commands import output
from fedwmsam.commands.execution import print_hint_on_interrupt
from fedwmsam.commands.options import (
    FigureFormat,
    FormatOption,
    JobsOption,
    QuietOption,
    SetOption,
)
from fedwmsam.commands.output import print_tables, print_written, say


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A recipe, such as table-5.", show_default="list them")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="small: two cores; paper: its setting.", show_default="small")
    ] = None,
    seeds: Annotated[str, typer.Option(help="How many, or which: 3, or 0,7,8.")] = "1",
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of each run.", show_default="the scale's")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Only columns with this in their name; repeatable.", show_default="all"),
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets' files.")] = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and pictures.")] = Path(
        "reproduction"
    ),
    jobs: JobsOption = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and their commands only.")
    ] = False,
    format: FormatOption = FigureFormat.PNG,
    quiet: QuietOption = False,
) -> None:
    """Run a table, figure or claim of the FedWMSAM paper and set its numbers beside ours.

    Without a name: what there is, and what of it has been run. Interrupted, the same command goes on.

    Examples:

    - `fedwmsam reproduce`
    - `fedwmsam reproduce table-5 --seeds 3`
    - `fedwmsam reproduce table-1 --column "β = 0.1" --rounds 200`
    - `fedwmsam reproduce table-1 --scale paper --dry-run`
    """
    from fedwmsam.comparison.grid import parse_seeds, parse_settings
    from fedwmsam.paper import reproduction
    from fedwmsam.paper.recipe import SCALES, Plan
    from fedwmsam.paper.reproduction import check_scale, find_recipe
    from fedwmsam.report.terminal import ComparisonDisplay
    from fedwmsam.settings.config import parse_workers

    chosen, recipe = check_scale(scale or "small"), find_recipe(name) if name else None
    variants = (
        [contender.values for contender in recipe.contenders if contender.values] if recipe else []
    )
    given = {"rounds": rounds, "data_dir": data_dir} | parse_settings(
        set_ or [], {"variants": variants}
    )
    overrides = {key: value for key, value in given.items() if value is not None}
    if recipe is None:
        print_tables(
            reproduction.checklist(
                [chosen] if scale else SCALES, parse_seeds(seeds), overrides, out
            )
        )
        return
    plan = Plan(recipe, chosen, parse_seeds(seeds), overrides, column or ())
    if not quiet:
        say(reproduction.describe_plan(plan, out))
    if dry_run:
        for line in reproduction.commands(plan, out):
            say(line)
        return
    with print_hint_on_interrupt(
        "Stopped; the same command goes on from the last completed rounds."
    ):
        complete = reproduction.run_plan(
            plan, out, parse_workers(jobs), ComparisonDisplay(output.console, quiet)
        )
    sheets, written = reproduction.write_recipe_results(plan, out, format.value)
    if not quiet:
        print_tables(sheets)
        print_written(written)
    if not complete:
        sys.exit(1)
