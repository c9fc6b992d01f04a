"""`fedwmsam analyse`: what a run's models are like. Each command reads its options; what it does lives elsewhere."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwmsam.commands import output
from fedwmsam.commands.options import (
    FigureFormat,
    FormatOption,
    MarkdownOption,
    QuietOption,
    RunArgument,
    RunsArgument,
)
from fedwmsam.errors import InputError

if TYPE_CHECKING:
    from fedwmsam.analysis.saved_run import SavedRun
    from fedwmsam.report.text_tables import TextTable

app = typer.Typer(
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
SeedOption = Annotated[int, typer.Option(min=0, help="Key of samples and directions.")]
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
    quiet: QuietOption = False,
) -> None:
    """Measure how flat the loss is at a run's models: for all clients together and for single ones.

    Largest eigenvalues and trace of the Hessian, and how much the loss rises near the model, with the error of each.
    What was measured before with the same options is not measured again. docs/flatness.md explains the numbers.

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
        flatness_pictures,
        flatness_sheets,
        run_flatness,
    )

    wanted = FlatnessConfig(
        eigenvalues,
        probes,
        parse_floats("--rho", rho),
        parse_floats("--adaptive-rho", adaptive_rho),
        steps,
        directions,
        seed,
    )
    scope = SampleConfig(
        parse_count("--samples", samples, 1), parse_count("--clients", clients, 0), batch_size
    )
    work = AnalysisSession(runs, out, format, quiet)
    named = []
    for run, place, say in work:
        found = run_flatness(run, run.rounds(rounds), wanted, scope, place, say, averaged)
        named += [(run.path.name, one) for one in found]
        work.written.append(place / (AVERAGED_FLATNESS_FILE if averaged else FLATNESS_FILE))
        work.draw(flatness_pictures(found, "averaged-" if averaged else ""), place)
    work.show(flatness_sheets(named, asdict(wanted)))


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
    from fedwmsam.analysis.landscape import landscape_pictures, landscape_sheet, run_landscape
    from fedwmsam.analysis.saved_run import SavedRun

    scope = SampleConfig(
        parse_count("--samples", samples, 1),
        parse_count("--clients", clients or ("0" if plane else "10"), 0),
        batch_size,
    )
    work = AnalysisSession([run], out, format, quiet)
    for saved, place, say in work:
        if len(chosen := saved.rounds(round)) != 1:
            raise InputError(f"--round must be last or one round, not {round!r}.")
        found = run_landscape(
            saved,
            chosen[0],
            scope,
            SavedRun(to) if to else None,
            place,
            say=say,
            plane=plane,
            points=points,
            reach=reach,
            seed=seed,
        )
        work.written += found.files
        work.draw(landscape_pictures(found.landscape, found.name), place)
        work.show([landscape_sheet(saved.path.name, found)])


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
    quiet: QuietOption = False,
) -> None:
    """Lay out what a model makes of samples before its last layer (t-SNE), by class and by client.

    Silhouette and Davies–Bouldin index say how tight the clusters are, in the features and in the picture.

    Examples:

    - `fedwmsam analyse embedding runs/fedavg runs/fedwmsam`
    - `fedwmsam analyse embedding runs/fedwmsam --rounds 10,100 --data test`
    """
    from fedwmsam.analysis.embedding import (
        EMBEDDING_FILE,
        EmbeddingConfig,
        cluster_sheet,
        embedding_pictures,
        run_embedding,
    )

    choice = EmbeddingConfig(
        data, parse_count("--samples", samples, 2), layer, perplexity, seed, batch_size
    )
    work = AnalysisSession(runs, out, format, quiet)
    named = []
    for run, place, say in work:
        found = run_embedding(run, run.rounds(rounds), choice, place, say)
        named += [(run.path.name, one) for one in found]
        work.written.append(place / EMBEDDING_FILE)
        work.draw(embedding_pictures(found, run.experiment.dataset.class_names), place)
    first = named[0][1]
    note = f"{first['samples']:,} of {first['of']:,} {data} samples, before layer {first['layer']}; seed {seed}."
    work.show([cluster_sheet(named, [note])])


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
    quiet: QuietOption = False,
) -> None:
    """Alignment of perturbations, momentum echo and client drift, from recordings and kept states.

    Examples:

    - `fedwmsam analyse dynamics comparison`
    - `fedwmsam analyse dynamics runs/mine --states 50 --plots figures`
    """
    from fedwmsam.analysis.dynamics import run_dynamics

    picture = None if plots is None else (plots, format.value)
    sheets, written = run_dynamics(runs, states, sample, again, picture, make_printer(quiet))
    show_and_save(sheets, written, markdown, quiet)


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
    quiet: QuietOption = False,
) -> None:
    """The paper's bound, tables and lemmas; with a run its constants, and which conditions of the theorem hold.

    Examples:

    - `fedwmsam analyse theory --smoothness 50 --rounds 1000`
    - `fedwmsam analyse theory comparison/fedwmsam-seed0-a8c4ceb8`
    """
    from fedwmsam.analysis.theory import BoundParameters, run_theory

    setting = BoundParameters(smoothness, gap, sigma, rho, cohort, steps, rounds, clients)
    sheets, written = run_theory(runs or [], states, sample, setting, make_printer(quiet))
    show_and_save(sheets, written, markdown, quiet)


class AnalysisSession:
    """Runs to look at one after the other, where their results go, and what is shown at the end."""

    def __init__(
        self, runs: list[Path], out: Path | None, format: FigureFormat, quiet: bool
    ) -> None:
        from fedwmsam.report.runs import find_runs

        self.format, self.quiet = format.value, quiet
        self.paths = [run.path for run in find_runs(runs)[0]]
        names = [path.name for path in self.paths]
        if out is not None and len(set(names)) < len(names):
            raise InputError(
                "Two of the runs have the same name; leave out --out, or analyse them one by one."
            )
        self.places = [path / "analysis" if out is None else out / path.name for path in self.paths]
        self.written: list[Path] = []

    def __iter__(self) -> Iterator[tuple["SavedRun", Path, Any]]:
        """Each run, its place for results, and a function that says what is being done."""
        from fedwmsam.analysis.saved_run import SavedRun
        from fedwmsam.report.terminal import AnalysisDisplay

        with AnalysisDisplay(output.console, self.quiet) as display:
            for path, place in zip(self.paths, self.places, strict=True):
                yield (
                    SavedRun(path),
                    place,
                    lambda what, name=path.name: display.update(f"{name}: {what}"),
                )

    def draw(self, pictures: Any, place: Path) -> None:
        from fedwmsam.report.plots import save_plots

        if pictures:
            self.written += save_plots(pictures, place, self.format)

    def show(self, sheets: "list[TextTable]") -> None:
        if not self.quiet:
            output.print_tables(sheets)
            output.print_written(self.written)


def make_printer(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else output.say


def show_and_save(
    sheets: "list[TextTable]", written: list[Path], markdown: Path | None, quiet: bool
) -> None:
    from fedwmsam.report.text_tables import markdown_text, write_text

    if markdown is not None:
        write_text(markdown, markdown_text(sheets))
        written.append(markdown)
    if not quiet:
        output.print_tables(sheets)
        output.print_written(written)


def parse_count(name: str, text: str, least: int) -> int | None:
    """A whole number; "all" is None."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < least:
        raise InputError(f"{name} must be all or a whole number of at least {least}, not {text!r}.")
    return int(text)


def parse_floats(name: str, text: str) -> tuple[float, ...]:
    """From "0.01,0.05"; none from an empty text."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(f"{name} must be numbers such as 0.01,0.05, not {text!r}.") from error
