"""The command line. Each command is a function here; what it does lives elsewhere."""

import logging
import re
import signal
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedwmsam import toml
from fedwmsam.analysis.command import app as analyse
from fedwmsam.errors import InputError
from fedwmsam.flower.command import app as flower
from fedwmsam.pictures import Picture

# The commands import what they need when they run, so that `--help` does not wait for PyTorch.

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Federated learning on clients whose data differ.\n\nStart with `fedwmsam run`: no data needed, no network.",
)
app.add_typer(analyse, name="analyse")
app.add_typer(flower, name="flower")
# What people type must be printed as it is, so no markup. A pipe or a file has no width of its own.
console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)
errors = Console(stderr=True, markup=False, highlight=False)

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting or option of the method; repeatable."),
]
DatasetOption = Annotated[
    str | None, typer.Option(help="digits, fashion-mnist, cifar-10 …, or a path to your own.", show_default="digits")
]
PartitionOption = Annotated[
    str | None,
    typer.Option(help="iid, dirichlet:0.1, shards:2, natural …; docs/partitions.md.", show_default="dirichlet:0.1"),
]
ModelOption = Annotated[
    str | None, typer.Option(help="mlp, cnn, resnet18, char …, or package.module:function.", show_default="mlp")
]
PresetOption = Annotated[str | None, typer.Option(help="paper or tuned: named settings, below explicit values.")]
HtmlOption = Annotated[Path | None, typer.Option(help="Write everything here as one page for a browser.")]
DecayOption = Annotated[
    str | None, typer.Option(help="objective, or sgd as published code does.", show_default="objective")
]
AggregationOption = Annotated[
    str | None, typer.Option(help="mean, norm_bound[:TAU], median or trimmed:0.1; docs/faults.md.", show_default="mean")
]
DropoutOption = Annotated[
    float | None, typer.Option(help="Probability that a sampled client never answers.", show_default="0")
]
StragglersOption = Annotated[
    str | None, typer.Option(help="0.3:4: 30 % of the clients are 4 times slower; 0.3:4:drop: unfinished is lost.")
]
DeadlineOption = Annotated[
    float | None, typer.Option(help="When a round closes, in an ordinary client's time.", show_default="1")
]
CorruptOption = Annotated[
    str | None,
    typer.Option(help="Hostile clients, such as sign_flip:0.1; nan, huge, sign_flip, random, stale, label_flip."),
]


class Better(Enum):
    HIGHER = "higher"
    LOWER = "lower"


ClientsOption = Annotated[
    int | None, typer.Option(help="Number of clients.", show_default="20; with natural, what the data say")
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Also log to tensorboard, wandb or wandb:PROJECT (offline); repeatable."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def main() -> None:
    """Entry point: a mistake in the input is one sentence and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app()
    except InputError as error:
        errors.print(f"Error: {error}", style="red", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `fedwmsam … | head`: the reader has had enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a full disk, a file that cannot be read: what was saved before stays whole
        place = f" ({error.filename})" if error.filename else ""
        errors.print(
            f"Error: {error.strerror or error}{place}; once that is mended, `fedwmsam resume` goes on.", style="red"
        )
        sys.exit(2)


def version(show: bool) -> None:
    if show:
        from fedwmsam.version import __version__

        console.print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


@app.command()
def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings.", show_default=False)] = None,
    method: Annotated[str | None, typer.Option(help="Method; see `fedwmsam methods`.", show_default="fedwmsam")] = None,
    dataset: DatasetOption = None,
    model: ModelOption = None,
    partition: PartitionOption = None,
    augmentation: Annotated[str | None, typer.Option(help="paper: flip and crop images.", show_default="none")] = None,
    clients: ClientsOption = None,
    participation: Annotated[float | None, typer.Option(help="Share of clients a round.", show_default="0.25")] = None,
    clients_per_round: Annotated[int | None, typer.Option(help="Their number, instead of the share.")] = None,
    sampling: Annotated[
        str | None, typer.Option(help="fixed: always as many; bernoulli: each by its own coin.", show_default="fixed")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train.", show_default="50")] = None,
    local_epochs: Annotated[int | None, typer.Option(help="Passes over a client's data.", show_default="5")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a local step.", show_default="50")] = None,
    lr: Annotated[float | None, typer.Option(help="Local step size.", show_default="0.1")] = None,
    weight_decay_mode: DecayOption = None,
    aggregation: AggregationOption = None,
    dropout: DropoutOption = None,
    stragglers: StragglersOption = None,
    deadline: DeadlineOption = None,
    corrupt: CorruptOption = None,
    dp_noise: Annotated[float | None, typer.Option(help="Differential privacy: σ, noise over clip.")] = None,
    dp_epsilon: Annotated[float | None, typer.Option(help="Instead of σ: ε that all rounds may spend.")] = None,
    dp_clip: Annotated[float | None, typer.Option(help="Longest upload that counts in full.")] = None,
    dp_delta: Annotated[float | None, typer.Option(help="δ of the guarantee.", show_default="1e-5")] = None,
    workers: Annotated[
        str | None, typer.Option(help="Processes that train clients side by side: auto or a number.", show_default="1")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Key of everything random.", show_default="0")] = None,
    validation: Annotated[float | None, typer.Option(help="Share of training data held out.", show_default="0")] = None,
    target_accuracy: Annotated[float | None, typer.Option(help="Stop when it is reached.")] = None,
    preset: PresetOption = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Rounds between checkpoints.", show_default="10")] = None,
    record: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Record alignment, drift, echo; docs/dynamics.md.")
    ] = None,
    record_every: Annotated[int | None, typer.Option(help="Rounds between recordings.", show_default="10")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data set's files.")] = None,
    track: TrackOption = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder.", show_default="from the settings")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the run would take, from a probe of a few steps, and stop.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train one model over many clients.

    With no argument: FedWMSAM on handwritten digits, 20 clients with very different data.

    Examples:

    - `fedwmsam run`
    - `fedwmsam run --method fedavg --partition iid --rounds 30`
    - `fedwmsam run --dataset fashion-mnist --preset paper --set rho=0.05`
    - `fedwmsam run settings.toml --seed 1`
    - `fedwmsam run --dropout 0.3 --stragglers 0.3:4`
    - `fedwmsam run --method fedavg --corrupt sign_flip:0.2 --aggregation median`
    - `fedwmsam run --method fedavg --sampling bernoulli --dp-epsilon 8 --dp-clip 1`
    - `fedwmsam run --dataset cifar-10 --model resnet18 --preset paper --dry-run`
    """
    arguments = dict(locals())
    apart = ("config", "track", "set_", "out", "name", "dry_run", "quiet")
    given = {key: value for key, value in arguments.items() if value is not None and key not in apart} | joined(track)
    file = toml.load(config) if config else {}
    if not dry_run:
        start_workers(workers or file.get("workers"))
    from fedwmsam import config as configs

    chosen = configs.method_name(
        file, given, *({"method": text[7:]} for text in set_ or [] if text.startswith("method="))
    )
    resolved = configs.resolve(file, given, configs.parse_assignments(set_ or [], chosen))
    if dry_run:
        from fedwmsam.experiment import anchored, prepare
        from fedwmsam.report.terminal import show_estimate

        show_estimate(console, prepare(anchored(resolved)).estimate(), resolved)
    else:
        start(resolved, out, name, quiet)


def joined(track: list[str] | None) -> dict[str, str]:
    """The trackers as a setting."""
    return {"track": ",".join(track)} if track else {}


def start_workers(wanted: object) -> None:
    """Before PyTorch is imported here, so that it is imported everywhere at once; a wrong number is refused later."""
    from fedwmsam.engine.nursery import cores, start_early

    count = cores() if wanted in ("auto", 0, "0") else int(str(wanted)) if str(wanted).isdecimal() else 1
    if 1 < count <= 64:
        start_early(count)


def start(config: Any, out: Path, name: str | None, quiet: bool) -> None:
    from fedwmsam.engine.folder import unused
    from fedwmsam.experiment import anchored, prepare
    from fedwmsam.trackers import make_trackers

    trackers = make_trackers(config.track)
    experiment = prepare(anchored(config))
    if name == "":
        raise InputError("--name must not be empty; leave it out for a name from the settings.")
    if name is None:
        carry_out(experiment, unused(out, folder_name(config), experiment.create), trackers, quiet)
    else:
        carry_out(experiment, experiment.create(out / name), trackers, quiet)


def folder_name(config: Any) -> str:
    """What a run is, in characters every shell and file system takes."""
    parts = (config.method, Path(config.dataset).name, config.partition.replace(":", ""), f"seed{config.seed}")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts))


def interrupt(*_: object) -> None:
    """SIGTERM ends a run as Ctrl-C does, also where a shell started it in the background with Ctrl-C switched off."""
    raise KeyboardInterrupt


def carry_out(experiment: Any, folder: Any, trackers: Any, quiet: bool) -> None:
    """Run with a live display; Ctrl-C or SIGTERM saves the last completed round and says how to go on."""
    from fedwmsam.report.terminal import Display, summarise

    signal.signal(signal.SIGTERM, interrupt)
    display = Display(console, experiment, folder.path, quiet)
    try:
        with display:
            result = experiment.run(folder, [display.update, *trackers])
    except KeyboardInterrupt:
        errors.print(
            f"Stopped; the last completed round is saved. Go on with: fedwmsam resume {folder.path}", soft_wrap=True
        )
        raise
    if not quiet:
        summarise(console, result)
        for tracker in trackers:
            console.print(tracker.advice(), soft_wrap=True)
    if result.status.startswith("diverged"):
        sys.exit(1)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    rounds: Annotated[int | None, typer.Option(help="Go on to this many rounds instead.")] = None,
    workers: Annotated[str | None, typer.Option(help="Processes that train side by side: auto or a number.")] = None,
    memory_budget: Annotated[float | None, typer.Option(help="Megabytes of RAM for what is kept per client.")] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="As in `run`; none: no longer.", show_default="as the run was begun"),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Go on with an interrupted run, or extend a finished one.

    Examples:

    - `fedwmsam resume runs/fedwmsam-digits-dirichlet0.1-seed0`
    - `fedwmsam resume runs/fedwmsam-digits-dirichlet0.1-seed0 --rounds 80`
    """
    from dataclasses import replace

    start_workers(workers)
    from fedwmsam.config import parse_workers
    from fedwmsam.experiment import load_config, prepare
    from fedwmsam.trackers import make_trackers

    config = load_config(run)
    if track:
        config = replace(config, track=None if track == ["none"] else joined(track)["track"])
    if rounds is not None:
        config = replace(config, rounds=rounds)
    if workers is not None:
        config = replace(config, workers=parse_workers(workers))
    if memory_budget is not None:
        config = replace(config, memory_budget=memory_budget)
    trackers = make_trackers(config.track)
    experiment = prepare(config)
    carry_out(experiment, experiment.reopen(run), trackers, quiet)


@app.command()
def compare(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings, methods, seeds, grid …")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, such as fedavg,fedcm,fedwmsam.")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many, or which: 3, or 0,7,8.", show_default="1")] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B", help="Vary a setting or option; repeatable.")
    ] = None,
    pilot: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B", help="Choose an option's value on validation data first.")
    ] = None,
    pilot_rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of a pilot run.", show_default="all")] = None,
    dataset: DatasetOption = None,
    model: ModelOption = None,
    partition: PartitionOption = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.", show_default="20")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train.", show_default="50")] = None,
    preset: PresetOption = None,
    weight_decay_mode: DecayOption = None,
    aggregation: AggregationOption = None,
    dropout: DropoutOption = None,
    stragglers: StragglersOption = None,
    deadline: DeadlineOption = None,
    corrupt: CorruptOption = None,
    keep_states: Annotated[
        bool, typer.Option("--keep-states", help="Keep the state before every tenth round, for later analysis.")
    ] = False,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data set's files.")] = None,
    track: TrackOption = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("comparison"),
    jobs: Annotated[str, typer.Option(help="Runs at a time: auto or a number.")] = "auto",
    baseline: Annotated[str | None, typer.Option(help="Row that the others are compared with.")] = None,
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
    arguments = dict(locals())
    apart = (
        "config", "grid", "pilot", "pilot_rounds", "keep_states", "track", "set_", "out", "jobs", "baseline", "html",
        "quiet",
    )  # fmt: skip
    given = {key: value for key, value in arguments.items() if value is not None and key not in apart} | joined(track)
    from fedwmsam.comparison.command import compare as carry_out
    from fedwmsam.comparison.grid import check_axes, check_baseline, make_grid, read_axes, read_settings
    from fedwmsam.config import parse_workers
    from fedwmsam.engine.folder import is_run

    file = toml.load(config) if config else {}
    given |= ({"keep_states": 10} if keep_states else {}) | read_settings(set_ or [], file | given)
    if grid:
        given["grid"] = read_axes(grid, file | given)
    plan, trial = make_grid(file, given), read_axes(pilot or [], file | given)
    check_axes(plan, trial)
    if baseline is not None:
        check_baseline(plan, baseline)
    try:
        folders = carry_out(plan, out, parse_workers(jobs), trial, pilot_rounds, console, quiet)
    except KeyboardInterrupt:
        errors.print("Stopped; the same command goes on from the last completed rounds.", soft_wrap=True)
        raise
    if html is not None or not quiet:
        show_comparison([folder for folder in folders if is_run(folder)], baseline, html, quiet)
    if not quiet:
        console.print(f"Runs: {out}; more with: fedwmsam report {out} --help", soft_wrap=True)
    if not all((folder / "summary.json").exists() for folder in folders):
        sys.exit(1)


def show_comparison(folders: list[Path], baseline: str | None, html: Path | None, quiet: bool) -> None:
    from fedwmsam.report.page import write_page
    from fedwmsam.report.runs import find_runs
    from fedwmsam.report.sheets import sheets
    from fedwmsam.report.tables import ACCURACY, summarise
    from fedwmsam.report.terminal import show_sheets

    comparison = summarise(find_runs(folders)[0], ACCURACY, baseline)
    if not quiet:
        show_sheets(console, sheets(comparison))
    if html is not None:
        write_page(html, comparison)
        if not quiet:
            console.print(f"Written: {html}", soft_wrap=True)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A recipe, such as table-5.", show_default="list them")] = None,
    scale: Annotated[
        str | None, typer.Option(help="small: two cores; paper: its setting.", show_default="small")
    ] = None,
    seeds: Annotated[str, typer.Option(help="How many, or which: 3, or 0,7,8.")] = "1",
    rounds: Annotated[int | None, typer.Option(help="Rounds of each run.", show_default="the scale's")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Only columns with this in their name; repeatable.", show_default="all")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data set's files.")] = None,
    set_: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and pictures.")] = Path("reproduction"),
    jobs: Annotated[str, typer.Option(help="Runs at a time: auto or a number.")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and their commands only.")] = False,
    format: Annotated[Picture, typer.Option(help="Of the pictures.")] = Picture.PNG,
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
    from fedwmsam.comparison.grid import read_settings, seeds_of
    from fedwmsam.config import parse_workers
    from fedwmsam.recipes import command
    from fedwmsam.recipes.catalogue import check_scale, find_recipe
    from fedwmsam.recipes.recipe import SCALES, Plan
    from fedwmsam.report.terminal import show_sheets

    chosen, recipe = check_scale(scale or "small"), find_recipe(name) if name else None
    variants = [contender.values for contender in recipe.contenders if contender.values] if recipe else []
    given = {"rounds": rounds, "data_dir": data_dir} | read_settings(set_ or [], {"variants": variants})
    overrides = {key: value for key, value in given.items() if value is not None}
    if recipe is None:
        show_sheets(console, command.checklist([chosen] if scale else SCALES, seeds_of(seeds), overrides, out))
        return
    plan = Plan(recipe, chosen, seeds_of(seeds), overrides, column or ())
    if not quiet:
        console.print(command.announce(plan, out), soft_wrap=True)
    if dry_run:
        for line in command.commands(plan, out):
            console.print(line, soft_wrap=True)
        return
    try:
        complete = command.carry_out(plan, out, parse_workers(jobs), console, quiet)
    except KeyboardInterrupt:
        errors.print("Stopped; the same command goes on from the last completed rounds.", soft_wrap=True)
        raise
    sheets, written = command.present(plan, out, format.value)
    if not quiet:
        show_sheets(console, sheets)
        for path in written:
            console.print(f"Written: {path}", soft_wrap=True)
    if not complete:
        sys.exit(1)


@app.command()
def partition(
    dataset: DatasetOption = None,
    partition: PartitionOption = None,
    clients: ClientsOption = None,
    seed: Annotated[int | None, typer.Option(help="Key of everything random.", show_default="0")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data set's files.")] = None,
    save: Annotated[Path | None, typer.Option(help="Also draw it to a .png, .svg or .pdf file.")] = None,
) -> None:
    """Show how a data set would be dealt out: who has which classes, and how different the clients are.

    Examples:

    - `fedwmsam partition --dataset fashion-mnist --partition dirichlet:0.1 --clients 100`
    - `fedwmsam partition --partition shards:2 --save shards.png`
    """
    from fedwmsam.config import resolve
    from fedwmsam.experiment import deal, load_data, split_pool
    from fedwmsam.report.partition import draw_partition, partition_chart

    given = {"dataset": dataset, "partition": partition, "clients": clients, "seed": seed, "data_dir": data_dir}
    config = resolve({key: value for key, value in given.items() if value is not None})
    data = load_data(config.dataset, config.data_dir)
    split = deal(config, data, split_pool(len(data.train), 0.0, config.seed)[0])
    console.print(partition_chart(split, data.class_names))
    if save is not None:
        draw_partition(split, save, data.class_names)
        console.print(f"Drawn to {save}", soft_wrap=True)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    best: Annotated[bool, typer.Option("--best", help="The best-by-validation model instead of the last.")] = False,
    fine_tune: Annotated[int, typer.Option(min=0, help="Epochs each client first trains its copy.")] = 0,
    lr: Annotated[float, typer.Option(min=0, help="Step size of the fine-tuning.")] = 0.01,
) -> None:
    """Say whom a run's model serves: accuracy by class, by client or domain, and for the worst-off.

    Examples:

    - `fedwmsam evaluate runs/fedwmsam-digits-dirichlet0.1-seed0`
    - `fedwmsam evaluate runs/fedwmsam-digits-dirichlet0.1-seed0 --fine-tune 1`
    """
    from fedwmsam.experiment import load_config, prepare
    from fedwmsam.report.terminal import show_evaluation
    from fedwmsam.result import Result

    result = Result.load(run)
    show_evaluation(console, prepare(load_config(run)).examine(result.weights(best), fine_tune, lr))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    metric: Annotated[str, typer.Option(help="Column of metrics.jsonl to compare.")] = "accuracy",
    better: Annotated[
        Better | None, typer.Option(help="Which way the metric is better.", show_default="by its name")
    ] = None,
    targets: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="What reaching these values of the metric cost.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Row to compare the others with, seed by seed.")] = None,
    paper_columns: Annotated[
        bool, typer.Option("--paper-columns", help="Also the best round on test, as papers print it.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Write rows here, and runs to NAME-runs.csv.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables here.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the tables here, for booktabs.")] = None,
    html: HtmlOption = None,
    plots: Annotated[Path | None, typer.Option(help="Draw pictures into this folder.")] = None,
    format: Annotated[Picture, typer.Option(help="Of the pictures.")] = Picture.PNG,
) -> None:
    """Compare runs: one row for each method and its settings, over its seeds.

    Last, mean of the last ten evaluations and best by validation; with `--targets` and `--baseline` what it took to
    reach a value, and paired differences with their uncertainty.

    Examples:

    - `fedwmsam report runs`
    - `fedwmsam report runs --targets 0.7,0.8 --baseline fedavg`
    - `fedwmsam report runs --latex table.tex --plots figures --format pdf`
    - `fedwmsam report runs --html report.html`
    """
    from fedwmsam.report import formats
    from fedwmsam.report.runs import find_runs
    from fedwmsam.report.sheets import sheets
    from fedwmsam.report.tables import make_goal, parse_targets, summarise
    from fedwmsam.report.terminal import show_sheets

    found, without = find_runs(runs)
    comparison = summarise(found, make_goal(metric, parse_targets(targets or ""), better and better.value), baseline)
    pages = sheets(comparison, paper_columns)
    show_sheets(console, pages)
    for place in without:
        console.print(f"No run in {place}.", soft_wrap=True)
    written = formats.write_files(comparison, pages, csv, markdown, latex)
    if html is not None:
        from fedwmsam.report.page import write_page

        written.append(write_page(html, comparison, paper_columns))
    if plots is not None:
        from fedwmsam.report.plots import draw

        written += draw(comparison, plots, format.value)
    for path in written:
        console.print(f"Written: {path}", soft_wrap=True)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with its options.", show_default=False)] = None,
) -> None:
    """List the methods and what they cost, or one method's options.

    Examples: `fedwmsam methods`, `fedwmsam methods fedwmsam`
    """
    from fedwmsam.report.terminal import method_details, method_table

    console.print(method_table() if name is None else method_details(name))


@app.command()
def verify(
    files: Annotated[list[Path], typer.Argument(help="Reference-vector files (JSON).")],
    tolerance: Annotated[float, typer.Option(help="Largest absolute error allowed.")] = 1e-9,
) -> None:
    """Replay reference vectors through the real round loop and print the largest error of each file.

    Exits with 1 if any error is above the tolerance. Example: `fedwmsam verify tests/data/reference_vectors/*.json`
    """
    from fedwmsam.verify import verify_file

    failed = 0
    for path in files:
        verdict = verify_file(path)
        ok = verdict.worst <= tolerance
        failed += not ok
        parts = "  ".join(f"{name} {value:.1e}" for name, value in verdict.errors.items())
        console.print(f"{'ok  ' if ok else 'FAIL'}  {path.name}  {parts}", soft_wrap=True)
    console.print(f"{len(files) - failed} of {len(files)} files within {tolerance:g}")
    if failed:
        sys.exit(1)
