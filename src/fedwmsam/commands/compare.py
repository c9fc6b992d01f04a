"""`fedwmsam compare`: a comparison of several methods, settings and seeds."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
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
from fedwmsam.commands.places import (
    OnOption,
    SlurmOption,
    cancel_comparison,
    parse_place,
    print_status,
)
from fedwmsam.errors import InputError, printable, unknown_name_message
from fedwmsam.settings.config import setting_names

if TYPE_CHECKING:
    from fedwmsam.comparison.comparison import RunPlace
    from fedwmsam.comparison.grid import Grid
    from fedwmsam.comparison.queue import QueuedRun

MANY_RUNS = 100
"""Runs that are started without a question; more may be a count of seeds taken for a seed."""
MANY_SEEDS = 10
"""Seeds from which on that may be the mistake."""
ANNOUNCEMENT_SECONDS = 2.0
"""Seconds after which a comparison that is to start probes no further method."""


@add_setting_flags([name for name in setting_names() if name not in ("method", "seed")])
def compare(
    settings: dict[str, Any],
    config: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG]", help="A TOML file of settings, methods, seeds, grid, tuning …"
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods, such as fedavg,fedcm,fedwmsam.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many, or which: 3, or 0,7,8.", show_default="1")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="One seed, this one; instead of --seeds.")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Vary a setting or option; repeatable."),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B", help="First choose a value on validation data; repeatable."
        ),
    ] = None,
    tune_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of a tuning run.", show_default="all")
    ] = None,
    tune_seeds: Annotated[
        str | None,
        typer.Option(help="Seeds of the tuning runs: 3, or 0,7.", show_default="the first"),
    ] = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("comparison"),
    jobs: JobsOption = "auto",
    on: OnOption = "local",
    slurm: SlurmOption = None,
    status: Annotated[
        bool, typer.Option("--status", help="Say how the runs in --out stand, and stop.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End all workers of --out; the runs can go on later.")
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(help="Row that the others are compared with.")
    ] = None,
    html: HtmlOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what the runs would take, from a probe of each method, and stop."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Start very many runs without being asked.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Run several methods on the same clients, batches and initial weights, over several seeds.

    Interrupted, killed or extended, the same command goes on: finished runs are not repeated.

    Examples:

    - `fedwmsam compare --methods fedavg,fedcm,fedwmsam --seeds 3`
    - `fedwmsam compare --methods fedavg,fedcm,fedwmsam --seed 100`
    - `fedwmsam compare table1.toml --dry-run`
    - `fedwmsam compare --methods fedwmsam --grid rho=0.005,0.01,0.05 --grid alpha=0.1,0.5`
    - `fedwmsam compare --methods fedsam,fedwmsam --tune rho=0.005,0.01,0.05 --seeds 3`
    - `fedwmsam compare --methods fedavg,fedcm --corrupt sign_flip:0.2 --grid
      aggregation=mean,median,trimmed:0.2`
    - `fedwmsam compare table1.toml --jobs 2`
    - `fedwmsam compare table1.toml --on slurm --slurm partition=gpu,time=4:00:00 --jobs 50`
    - `fedwmsam compare table1.toml --status`
    """
    if status or cancel:
        print_status(out) if status else cancel_comparison(out)
        return
    seeds_given = choose_seeds(seeds, seed)
    from fedwmsam.comparison.comparison import run_comparison
    from fedwmsam.comparison.estimate import estimate_comparison, planned_runs
    from fedwmsam.comparison.grid import make_grid
    from fedwmsam.comparison.tuning import make_plan
    from fedwmsam.engine.run_folder import is_run
    from fedwmsam.report.terminal import ComparisonDisplay, show_comparison_estimate

    path, methods = split_words(config or [], methods)
    file_values = toml.load_named(path) if path else {}
    cli_values = read_cli_values(
        file_values, settings, methods, seeds_given, set_ or [], grid or []
    )
    grid_spec = make_grid(file_values, cli_values)
    tuning = read_tuning(file_values | cli_values, tune or [], tune_rounds, tune_seeds)
    plan = make_plan(tuning, grid_spec) if tuning else None
    if baseline is not None:
        check_baseline(grid_spec, baseline, is_tuned=plan is not None)
    display = ComparisonDisplay(output.console, quiet)
    place = parse_place(on, slurm or [], jobs)
    if dry_run:
        planned = planned_runs(grid_spec, out, plan)
        estimate = estimate_comparison(planned, place.workers)
        show_comparison_estimate(output.console, estimate, grid_spec)
        return
    if not (path or methods or grid or tune):
        refuse_other_comparison(grid_spec, out)
    planned = []
    with contextlib.suppress(InputError):  # a folder that is in the way: `run_comparison` says
        planned = planned_runs(grid_spec, out, plan)
    if not quiet:
        announce(grid_spec, planned, place, yes)
    with print_hint_on_interrupt(place.hint_on_interrupt(out)):
        folders = run_comparison(grid_spec, out, place, plan, display)
    if html is not None or not quiet:
        print_comparison([folder for folder in folders if is_run(folder)], baseline, html, quiet)
    if not quiet:
        say(f"Runs: {out}; more with: fedwmsam report {out} --help")
    if not all((folder / "summary.json").exists() for folder in folders):
        sys.exit(1)


def refuse_other_comparison(grid_spec: "Grid", out: Path) -> None:
    """Raise InputError if `out` holds a comparison of other runs than these.

    Without a file and methods it is the default method's, which nobody means who wants to go on.
    """
    from fedwmsam.comparison.queue_folder import QueueFolder

    queue = QueueFolder(out)
    if not queue.exists():
        return
    plan = queue.read_plan()
    if not {run.name for run in plan.runs} & {spec.folder_name for spec in grid_spec.run_specs()}:
        command = " ".join(map(printable, plan.command))
        raise InputError(
            f"{out} holds another comparison; go on with the command that made it, {command!r}, "
            "or say which --methods to compare."
        )


def split_words(words: list[str], methods: str | None) -> tuple[Path | None, str | None]:
    """Return the file among the words that belong to no option, and the methods with the others.

    Behind `--methods fedavg` a method is taken as one more, as if there were a comma between. Raise
    InputError for a word that is neither.
    """
    from fedwmsam.comparison.grid import parse_method_names

    path = None
    for word in words:
        if path is None and (Path(word).is_file() or word.endswith(".toml")):
            path = Path(word)
            continue
        try:
            names = parse_method_names(word)
        except InputError:
            names = []
        if not names or methods is None:
            raise InputError(
                f"{word!r} is no file of settings, and belongs to no option: write lists with "
                "commas and no spaces, as in --methods fedavg,fedcm --seeds 0,1."
            )
        methods = ",".join([methods, *names])
    return path, methods


def read_cli_values(
    file_values: dict[str, Any],
    settings: dict[str, Any],
    methods: str | None,
    seeds: str | list[int] | None,
    assignments: list[str],
    grid: list[str],
) -> dict[str, Any]:
    """Return what the command line gives of a comparison's values, under the keys of a file.

    Raise InputError for an assignment or an axis of the grid that cannot be parsed.
    """
    from fedwmsam.comparison.grid import parse_axes, parse_settings

    values = dict(settings)
    if methods is not None:
        values["methods"] = methods
    if seeds is not None:
        values["seeds"] = seeds
    values |= parse_settings(assignments, file_values | values)
    if grid:
        values["grid"] = parse_axes(grid, file_values | values)
    return values


def choose_seeds(seeds: str | None, seed: int | None) -> str | list[int] | None:
    """Return the seeds that the command line asks for; raise InputError if it does so twice."""
    if seeds is not None and seed is not None:
        raise InputError(
            f"--seeds {seeds} says how many seeds or which, --seed {seed} means this one alone; "
            "give one of them."
        )
    return seeds if seed is None else [seed]


def announce(
    grid_spec: "Grid", planned: "Sequence[QueuedRun]", place: "RunPlace", yes: bool
) -> None:
    """Say what the runs will take, and on a terminal ask before very many are started.

    What keeps a probe from being made is left to the runs, which say it one by one. Raise
    InputError for what keeps all of them from beginning. Runs on other machines are not probed on
    this one.
    """
    from fedwmsam.comparison.estimate import check_shared_data, estimate_comparison
    from fedwmsam.report.terminal import comparison_estimate_lines

    try:
        if place.is_this_machine:
            estimate = estimate_comparison(planned, place.workers, ANNOUNCEMENT_SECONDS)
            for line in comparison_estimate_lines(estimate, grid_spec):
                say(line)
    except InputError:
        check_shared_data(planned)
    except Exception:
        pass
    ahead = sum(not run.is_finished for run in planned)
    if ahead > MANY_RUNS and not yes and sys.stdin.isatty() and sys.stdout.isatty():
        count = len(grid_spec.seeds)
        mistake = f" with {count:,} seeds (for seed {count} alone: --seed {count})"
        typer.confirm(f"{ahead:,} runs{mistake if count >= MANY_SEEDS else ''}; start?", abort=True)


def read_tuning(
    values: dict[str, Any], axes: list[str], rounds: int | None, seeds: str | None
) -> Any:
    """Return the table `tuning` of a comparison's values with what the command line says.

    Values to try on the command line replace those of the file. Raise InputError for what cannot be
    parsed.
    """
    from fedwmsam.comparison.grid import parse_axes

    table = values.get("tuning", {})
    if not isinstance(table, dict):
        return table
    if axes:
        runs = {key: table[key] for key in ("rounds", "seeds") if key in table}
        table = runs | parse_axes(axes, values)
    given = {"rounds": rounds, "seeds": seeds}
    return table | {key: value for key, value in given.items() if value is not None}


def check_baseline(grid_spec: "Grid", baseline: str, is_tuned: bool) -> None:
    """Raise InputError if the baseline will be none of the report's rows, or several of them.

    It is checked before hours of runs. The values that tuning chooses become part of the rows'
    names; with tuning only the baseline's method can be checked.
    """
    from fedwmsam.report.runs import LoadedRun
    from fedwmsam.report.summary import find_baseline_rows, summarise

    specs = grid_spec.run_specs()
    if is_tuned:
        methods = {spec.config.method for spec in specs}
        known = {method.lower() for method in methods}
        if not baseline.strip() or baseline.lower().split()[0] not in known:
            raise InputError(unknown_name_message("baseline", baseline, methods))
        return
    runs = [LoadedRun(Path(spec.folder_name), config=spec.config.to_flat_dict()) for spec in specs]
    twins = [run for run in runs if run.config.get("twin") is not None]
    runs += [replace(run, is_averaged_model=True) for run in twins]
    find_baseline_rows(summarise(runs).tables, baseline)


def print_comparison(
    folders: list[Path], baseline: str | None, html: Path | None, quiet: bool
) -> None:
    """Print the tables of a comparison unless quiet, and write its HTML page if asked for."""
    from fedwmsam.page.page import write_page
    from fedwmsam.report.pivot import pivot_text_tables
    from fedwmsam.report.runs import add_averaged_model_runs, find_runs
    from fedwmsam.report.summary import ACCURACY, summarise
    from fedwmsam.report.text_tables import make_text_tables

    runs = add_averaged_model_runs(find_runs(folders)[0])
    comparison = summarise(runs, ACCURACY, baseline)
    if not quiet:
        print_tables([*make_text_tables(comparison), *pivot_text_tables(comparison)])
    if html is not None:
        write_page(html, comparison)
        if not quiet:
            print_written([html])
