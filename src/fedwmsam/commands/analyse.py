"""`fedwmsam analyse`: analyses of saved runs.

The commands here read their options, call the analysis of the same name in `fedwmsam.analysis`, and
print the tables that it returns.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwmsam.commands import output
from fedwmsam.commands.options import (
    FigureFormat,
    FormatOption,
    MarkdownOption,
    QuietOption,
    RepeatedMethodOption,
    RepeatedModelOption,
    RunArgument,
    RunsArgument,
    SuggestingGroup,
    TrustOption,
)
from fedwmsam.errors import InputError
from fedwmsam.files import own_folder

if TYPE_CHECKING:
    from fedwmsam.analysis.saved_run import SavedRun
    from fedwmsam.experiment.trust import Trust
    from fedwmsam.report.text_tables import TextTable

app = typer.Typer(
    cls=SuggestingGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="See why a run went as it did: flatness, landscapes, embeddings, dynamics, theory.",
)
RoundsOption = Annotated[
    str, typer.Option(help="last, all, or rounds the run kept, such as 10,100.")
]
SamplesOption = Annotated[
    str, typer.Option(help="Training samples, of all clients and of each: a number or all.")
]
ClientsOption = Annotated[str, typer.Option(help="Single clients: a number, 0 or all.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of samples and directions.")]
BatchOption = Annotated[
    int, typer.Option(min=1, help="Samples at a time; changes memory, not results.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(help="Folder for results, one below for each run.", show_default="RUN/analysis"),
]


@app.command()
def flatness(
    runs: RunsArgument,
    rounds: RoundsOption = "last",
    samples: SamplesOption = "5000",
    clients: ClientsOption = "10",
    averaged: Annotated[
        bool,
        typer.Option("--averaged", help="The averaged twins instead, of runs made with --twin."),
    ] = False,
    eigenvalues: Annotated[int, typer.Option(help="How many of the largest of the Hessian.")] = 5,
    probes: Annotated[int, typer.Option(help="Random vectors for the trace.")] = 30,
    rho: Annotated[
        str, typer.Option(metavar="A,B,…", help="Radii in which the loss may rise.")
    ] = "0.01,0.05,0.1",
    adaptive_rho: Annotated[
        str, typer.Option(metavar="A,B,…", help="Radii in units of the weights.")
    ] = "0.1,0.5,1",
    steps: Annotated[int, typer.Option(help="Steps of ascent from each start.")] = 10,
    directions: Annotated[int, typer.Option(help="Random directions for the average rise.")] = 20,
    seed: SeedOption = 0,
    batch_size: BatchOption = 1000,
    out: OutOption = None,
    format: FormatOption = FigureFormat.PNG,
    model: RepeatedModelOption = None,
    method: RepeatedMethodOption = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure how flat the loss is at a run's models: for all clients together and for single ones.

    Largest eigenvalues and trace of the Hessian, and how much the loss rises near the model, with
    the error of each.
    What was measured before with the same options is not measured again. docs/flatness.md
    explains the numbers.

    Examples:

    - `fedwmsam analyse flatness runs/fedavg runs/fedwmsam`
    - `fedwmsam analyse flatness runs --rounds 10,50,100 --clients all`
    - `fedwmsam analyse flatness runs/fedwmsam --rho 0.05 --eigenvalues 1 --clients 0`
    - `fedwmsam analyse flatness runs/fedwmsam --averaged`
    """
    from dataclasses import asdict

    from fedwmsam.analysis.flatness import (
        AVERAGED_FLATNESS_FILE,
        FLATNESS_FILE,
        FlatnessConfig,
        SampleConfig,
        flatness_plots,
        flatness_tables,
        run_flatness,
    )
    from fedwmsam.experiment.trust import Trust

    config = FlatnessConfig(
        eigenvalues,
        probes,
        parse_floats("--rho", rho),
        parse_floats("--adaptive-rho", adaptive_rho),
        steps,
        directions,
        seed,
    )
    sample_config = SampleConfig(
        parse_count("--samples", samples, 1), parse_count("--clients", clients, 0), batch_size
    )
    session = AnalysisSession(runs, out, format, quiet, Trust(model, trust, method))
    named_results = []
    for run, folder, report_progress in session:
        results = run_flatness(
            run, run.select_rounds(rounds), config, sample_config, folder, report_progress, averaged
        )
        named_results += [(run.path.name, result) for result in results]
        session.written_files.append(
            folder / (AVERAGED_FLATNESS_FILE if averaged else FLATNESS_FILE)
        )
        session.save_plots(flatness_plots(results, "averaged-" if averaged else ""), folder)
    session.print_results(flatness_tables(named_results, asdict(config)))


@app.command()
def landscape(
    run: RunArgument,
    to: Annotated[
        Path | None, typer.Option(help="Another run: follow the line to its last model.")
    ] = None,
    plane: Annotated[bool, typer.Option("--plane", help="A plane instead of a line.")] = False,
    round: Annotated[str, typer.Option(help="last, or a round the run kept.")] = "last",
    points: Annotated[
        int | None, typer.Option(min=2, help="Along each axis.", show_default="43; plane 25")
    ] = None,
    reach: Annotated[
        float, typer.Option(help="How far to go; 1: as far as the filters are long.")
    ] = 1.0,
    samples: SamplesOption = "5000",
    clients: Annotated[
        str | None,
        typer.Option(help="Single clients: a number or all.", show_default="10; plane 0"),
    ] = None,
    seed: SeedOption = 0,
    batch_size: BatchOption = 1000,
    out: OutOption = None,
    format: FormatOption = FigureFormat.PNG,
    model: RepeatedModelOption = None,
    method: RepeatedMethodOption = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw the loss around a run's model, or on the way to another run's.

    Directions are random with normalised filters. Writes the losses as JSON and CSV, and pictures.

    Examples:

    - `fedwmsam analyse landscape runs/fedwmsam`
    - `fedwmsam analyse landscape runs/fedwmsam --plane --reach 0.5`
    - `fedwmsam analyse landscape runs/fedavg --to runs/fedwmsam`
    """
    from fedwmsam.analysis.flatness import SampleConfig
    from fedwmsam.analysis.landscape import landscape_plots, landscape_table, run_landscape
    from fedwmsam.analysis.saved_run import SavedRun
    from fedwmsam.experiment.trust import Trust

    sample_config = SampleConfig(
        parse_count("--samples", samples, 1),
        parse_count("--clients", clients or ("0" if plane else "10"), 0),
        batch_size,
    )
    session = AnalysisSession([run], out, format, quiet, Trust(model, trust, method))
    for saved, folder, report_progress in session:
        chosen = saved.select_rounds(round)
        if len(chosen) != 1:
            raise InputError(f"--round must be last or one round, not {round!r}.")
        result = run_landscape(
            saved,
            chosen[0],
            sample_config,
            SavedRun(to, session.trust) if to else None,
            folder,
            report_progress=report_progress,
            plane=plane,
            points=points,
            reach=reach,
            seed=seed,
        )
        session.written_files += result.files
        session.save_plots(landscape_plots(result.landscape, result.name), folder)
        session.print_results([landscape_table(saved.path.name, result)])


@app.command()
def embedding(
    runs: RunsArgument,
    rounds: RoundsOption = "last",
    data: Annotated[str, typer.Option(help="train: what the clients hold; test.")] = "train",
    samples: Annotated[str, typer.Option(help="A number or all.")] = "2000",
    layer: Annotated[
        str | None, typer.Option(help="Whose inputs.", show_default="the last linear one")
    ] = None,
    perplexity: Annotated[
        float, typer.Option(help="Of t-SNE: about how many neighbours count.")
    ] = 30.0,
    seed: SeedOption = 0,
    batch_size: BatchOption = 1000,
    out: OutOption = None,
    format: FormatOption = FigureFormat.PNG,
    model: RepeatedModelOption = None,
    method: RepeatedMethodOption = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Lay out what a model makes of samples before its last layer (t-SNE), by class and by client.

    Silhouette and Davies–Bouldin index say how tight the clusters are, in the features and in the
    picture.

    Examples:

    - `fedwmsam analyse embedding runs/fedavg runs/fedwmsam`
    - `fedwmsam analyse embedding runs/fedwmsam --rounds 10,100 --data test`
    """
    from fedwmsam.analysis.embedding import (
        EMBEDDING_FILE,
        EmbeddingConfig,
        cluster_table,
        embedding_plots,
        run_embedding,
    )
    from fedwmsam.experiment.trust import Trust

    config = EmbeddingConfig(
        data, parse_count("--samples", samples, 2), layer, perplexity, seed, batch_size
    )
    session = AnalysisSession(runs, out, format, quiet, Trust(model, trust, method))
    named_results = []
    for run, folder, report_progress in session:
        results = run_embedding(run, run.select_rounds(rounds), config, folder, report_progress)
        named_results += [(run.path.name, result) for result in results]
        session.written_files.append(folder / EMBEDDING_FILE)
        session.save_plots(embedding_plots(results, run.experiment.dataset.class_names), folder)
    first = named_results[0][1]
    note = (
        f"{first['samples']:,} of {first['of']:,} {data} samples, "
        f"before layer {first['layer']}; seed {seed}."
    )
    session.print_results([cluster_table(named_results, [note])])


@app.command()
def dynamics(
    runs: RunsArgument,
    states: Annotated[
        int, typer.Option(min=1, help="Kept states to replay, spread over the run.")
    ] = 10,
    sample: Annotated[
        int, typer.Option(min=1, help="Samples the federation's gradient is taken on.")
    ] = 3000,
    again: Annotated[
        bool, typer.Option("--again", help="Also runs that have been analysed before.")
    ] = False,
    plots: Annotated[Path | None, typer.Option(help="Draw pictures into this folder.")] = None,
    format: FormatOption = FigureFormat.PNG,
    markdown: MarkdownOption = None,
    model: RepeatedModelOption = None,
    method: RepeatedMethodOption = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Alignment of perturbations, momentum echo and client drift, from recordings and kept states.

    Examples:

    - `fedwmsam analyse dynamics comparison`
    - `fedwmsam analyse dynamics runs/mine --states 50 --plots figures`
    """
    from fedwmsam.analysis.dynamics import run_dynamics
    from fedwmsam.experiment.trust import Trust

    plot_target = None if plots is None else (plots, format.value)
    tables, written = run_dynamics(
        runs, states, sample, again, plot_target, make_printer(quiet), Trust(model, trust, method)
    )
    print_and_save(tables, written, markdown, quiet)


@app.command()
def theory(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders with kept states.", show_default="none")
    ] = None,
    states: Annotated[
        int, typer.Option(min=1, help="Kept states to measure at, spread over the run.")
    ] = 10,
    sample: Annotated[
        int, typer.Option(min=1, help="Samples the federation's loss is taken on.")
    ] = 3000,
    smoothness: Annotated[float, typer.Option(help="L.")] = 100.0,
    gap: Annotated[float, typer.Option(help="Δ, first loss minus lowest.")] = 2.0,
    sigma: Annotated[float, typer.Option(help="σ of a mini-batch gradient.")] = 3.0,
    rho: Annotated[float, typer.Option(help="ρ.")] = 0.01,
    cohort: Annotated[int, typer.Option(help="S, clients a round.")] = 10,
    steps: Annotated[int, typer.Option(help="K, local steps.")] = 60,
    rounds: Annotated[int, typer.Option(help="R.")] = 500,
    clients: Annotated[int, typer.Option(help="N.")] = 100,
    markdown: MarkdownOption = None,
    model: RepeatedModelOption = None,
    method: RepeatedMethodOption = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """The paper's bound, tables and lemmas; with a run its constants, and which conditions of the
    theorem hold.

    Examples:

    - `fedwmsam analyse theory --smoothness 50 --rounds 1000`
    - `fedwmsam analyse theory comparison/fedwmsam-seed0-a8c4ceb8`
    """
    from fedwmsam.analysis.theory import BoundParameters, run_theory
    from fedwmsam.experiment.trust import Trust

    parameters = BoundParameters(smoothness, gap, sigma, rho, cohort, steps, rounds, clients)
    tables, written = run_theory(
        runs or [], states, sample, parameters, make_printer(quiet), Trust(model, trust, method)
    )
    print_and_save(tables, written, markdown, quiet)


class AnalysisSession:
    """The runs of one analysis command, the folders of their results, and the files written."""

    def __init__(
        self, runs: list[Path], out: Path | None, format: FigureFormat, quiet: bool, trust: "Trust"
    ) -> None:
        from fedwmsam.report.runs import find_runs

        self.format = format.value
        self.quiet = quiet
        self.trust = trust
        self.paths = [run.path for run in find_runs(runs)[0]]
        names = [path.name for path in self.paths]
        if out is not None and len(set(names)) < len(names):
            raise InputError(
                "Two of the runs have the same name; leave out --out, or analyse them one by one."
            )
        self.result_folders = [own_folder(path / "analysis") for path in self.paths]
        if out is not None:
            self.result_folders = [out / name for name in names]
        self.written_files: list[Path] = []

    def __iter__(self) -> Iterator[tuple["SavedRun", Path, Callable[[str], None]]]:
        """Yield each run, the folder of its results, and a function that shows progress."""
        from fedwmsam.analysis.saved_run import SavedRun
        from fedwmsam.report.terminal import AnalysisDisplay

        with AnalysisDisplay(output.console, self.quiet) as display:

            def report_progress(run_name: str, text: str) -> None:
                display.update(f"{run_name}: {text}")

            for path, folder in zip(self.paths, self.result_folders, strict=True):
                yield SavedRun(path, self.trust), folder, partial(report_progress, path.name)

    def save_plots(self, plots: Any, folder: Path) -> None:
        """Draw the plots into the folder, if there are any."""
        from fedwmsam.report.plots import save_plots

        if plots:
            self.written_files += save_plots(plots, folder, self.format)

    def print_results(self, tables: "list[TextTable]") -> None:
        """Print the tables and the names of the written files, unless the command is quiet."""
        if not self.quiet:
            output.print_tables(tables)
            output.print_written(self.written_files)


def make_printer(quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line or, if quiet, does nothing."""
    return (lambda text: None) if quiet else output.say


def print_and_save(
    tables: "list[TextTable]", written: list[Path], markdown: Path | None, quiet: bool
) -> None:
    """Write the tables to the Markdown file, if there is one, and print them unless quiet."""
    from fedwmsam.report.output_files import write_text
    from fedwmsam.report.text_tables import markdown_text

    if markdown is not None:
        write_text(markdown, markdown_text(tables))
        written.append(markdown)
    if not quiet:
        output.print_tables(tables)
        output.print_written(written)


def parse_count(name: str, text: str, least: int) -> int | None:
    """Return a flag's whole number, or None for "all"; raise InputError for anything else."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < least:
        raise InputError(f"{name} must be all or a whole number of at least {least}, not {text!r}.")
    return int(text)


def parse_floats(name: str, text: str) -> tuple[float, ...]:
    """Return a flag's numbers, as in "0.01,0.05"; an empty text has none.

    Raise InputError if one of them is not a number.
    """
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(f"{name} must be numbers such as 0.01,0.05, not {text!r}.") from error
