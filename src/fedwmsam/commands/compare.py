"""`fedwmsam compare`: several methods, settings and seeds."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwmsam import toml
from fedwmsam.commands import output
from fedwmsam.commands.execution import print_hint_on_interrupt
from fedwmsam.commands.options import (
    HtmlOption,
    JobsOption,
    QuietOption,
    SetOption,
    add_setting_flags,
)
from fedwmsam.commands.output import print_tables, print_written, say
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.settings.config import parse_workers, setting_names

if TYPE_CHECKING:
    from fedwmsam.comparison.grid import Grid


@add_setting_flags([name for name in setting_names() if name not in ("method", "seed")])
def compare(
    settings: dict[str, Any],
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file of settings, methods, seeds, grid …")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods, such as fedavg,fedcm,fedwmsam.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many, or which: 3, or 0,7,8.", show_default="1")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Vary a setting or option; repeatable."),
    ] = None,
    pilot: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Choose an option's value on validation data first."),
    ] = None,
    pilot_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of a pilot run.", show_default="all")
    ] = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("comparison"),
    jobs: JobsOption = "auto",
    baseline: Annotated[
        str | None, typer.Option(help="Row that the others are compared with.")
    ] = None,
    html: HtmlOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run several methods on the same clients, batches and initial weights, over several seeds.

    Interrupted, killed or extended, the same command goes on: finished runs are not repeated.

    Examples:

    - `fedwmsam compare --methods fedavg,fedcm,fedwmsam --seeds 3`
    - `fedwmsam compare --methods fedwmsam --grid rho=0.005,0.01,0.05 --grid alpha=0.1,0.5`
    - `fedwmsam compare --methods fedsam,fedwmsam --pilot rho=0.005,0.01,0.05 --seeds 3`
    - `fedwmsam compare --methods fedavg,fedcm --corrupt sign_flip:0.2 --grid aggregation=mean,median,trimmed:0.2`
    - `fedwmsam compare table1.toml --jobs 2`
    """
    from fedwmsam.comparison.comparison import run_comparison as carry_out
    from fedwmsam.comparison.grid import check_axes, make_grid, parse_axes, parse_settings
    from fedwmsam.engine.run_folder import is_run
    from fedwmsam.report.terminal import ComparisonDisplay

    file = toml.load(config) if config else {}
    given = settings | {
        key: value
        for key, value in {"methods": methods, "seeds": seeds}.items()
        if value is not None
    }
    given |= parse_settings(set_ or [], file | given)
    if grid:
        given["grid"] = parse_axes(grid, file | given)
    plan, trial = make_grid(file, given), parse_axes(pilot or [], file | given)
    check_axes(plan, trial)
    if baseline is not None:
        check_baseline(plan, baseline, piloted=bool(trial))
    with print_hint_on_interrupt(
        "Stopped; the same command goes on from the last completed rounds."
    ):
        display = ComparisonDisplay(output.console, quiet)
        folders = carry_out(plan, out, parse_workers(jobs), trial, pilot_rounds, display)
    if html is not None or not quiet:
        show_comparison([folder for folder in folders if is_run(folder)], baseline, html, quiet)
    if not quiet:
        say(f"Runs: {out}; more with: fedwmsam report {out} --help")
    if not all((folder / "summary.json").exists() for folder in folders):
        sys.exit(1)


def check_baseline(plan: "Grid", baseline: str, piloted: bool) -> None:
    """Refuse, before hours of runs, a baseline that will be none of the rows, or several; a pilot decides on names."""
    from fedwmsam.report.runs import LoadedRun
    from fedwmsam.report.summary import find_baseline_rows, summarise

    members = plan.members()
    methods = {member.config.method for member in members}
    if not piloted:
        find_baseline_rows(
            summarise(
                [LoadedRun(Path(one.folder), config=one.config.flat()) for one in members]
            ).tables,
            baseline,
        )
    elif baseline.split()[0] not in methods:
        raise InputError(unknown_name_message("baseline", baseline, methods))


def show_comparison(
    folders: list[Path], baseline: str | None, html: Path | None, quiet: bool
) -> None:
    from fedwmsam.page.page import write_page
    from fedwmsam.report.runs import find_runs
    from fedwmsam.report.summary import ACCURACY, summarise
    from fedwmsam.report.text_tables import make_text_tables

    comparison = summarise(find_runs(folders)[0], ACCURACY, baseline)
    if not quiet:
        print_tables(make_text_tables(comparison))
    if html is not None:
        write_page(html, comparison)
        if not quiet:
            print_written([html])
