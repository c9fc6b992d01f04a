"""`fedwmsam reproduce`: runs for the paper's tables, figures and claims."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from fedwmsam.commands.places import OnOption, SlurmOption, parse_place

if TYPE_CHECKING:
    from fedwmsam.paper.recipe import Recipe


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
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further method as another row, such as package.module:Class; repeatable.",
            show_default=False,
        ),
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets' files.")] = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and pictures.")] = Path(
        "reproduction"
    ),
    jobs: JobsOption = "auto",
    on: OnOption = "local",
    slurm: SlurmOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and their commands only.")
    ] = False,
    format: FormatOption = FigureFormat.PNG,
    quiet: QuietOption = False,
) -> None:
    """Run a table, figure or claim of the FedWMSAM paper and set its numbers beside ours.

    Without a name: what there is, and what of it has been run. Interrupted, the same command goes
    on.

    Examples:

    - `fedwmsam reproduce`
    - `fedwmsam reproduce table-5 --seeds 3`
    - `fedwmsam reproduce table-1 --column "β = 0.1" --rounds 200`
    - `fedwmsam reproduce table-1 --scale paper --dry-run`
    - `fedwmsam reproduce table-1 --scale paper --on slurm --slurm partition=gpu,time=8:00:00`
    - `fedwmsam reproduce table-5 --method my_package.my_module:MyMethod`
    """
    from fedwmsam.comparison.grid import parse_seeds
    from fedwmsam.paper import reproduction
    from fedwmsam.paper.recipe import SCALES, Plan
    from fedwmsam.paper.reproduction import check_scale, find_recipe
    from fedwmsam.report.terminal import ComparisonDisplay

    scale_name = check_scale(scale or "small")
    recipe = find_recipe(name).with_methods(method or []) if name else None
    overrides = read_overrides(recipe, rounds, data_dir, set_ or [])
    if recipe is None:
        scales = [scale_name] if scale else SCALES
        print_tables(reproduction.checklist(scales, parse_seeds(seeds), overrides, out))
        return
    plan = Plan(recipe, scale_name, parse_seeds(seeds), overrides, column or ())
    if not quiet:
        say(reproduction.describe_plan(plan, out))
    if dry_run:
        for line in reproduction.run_commands(plan, out):
            say(line)
        return
    place = parse_place(on, slurm or [], jobs)
    with print_hint_on_interrupt(place.hint_on_interrupt(reproduction.runs_folder(out))):
        display = ComparisonDisplay(output.console, quiet)
        complete = reproduction.run_plan(plan, out, place, display)
    tables, written = reproduction.write_recipe_results(plan, out, format.value)
    if not quiet:
        print_tables(tables)
        print_written(written)
    if not complete:
        sys.exit(1)


def read_overrides(
    recipe: "Recipe | None", rounds: int | None, data_dir: str | None, assignments: list[str]
) -> dict[str, Any]:
    """Return the settings that replace those of the recipe; raise InputError for a wrong one."""
    from fedwmsam.comparison.grid import parse_settings

    variants = []
    if recipe is not None:
        variants = [contender.values for contender in recipe.contenders if contender.values]
    values = {"rounds": rounds, "data_dir": data_dir}
    values |= parse_settings(assignments, {"variants": variants})
    return {key: value for key, value in values.items() if value is not None}
