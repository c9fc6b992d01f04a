"""`fedwmsam analyse …`: why a run went as it did."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

# As in cli.py, the commands import what they need when they run.

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="See why a run went as it did.")


class Picture(Enum):
    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@app.command()
def dynamics(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    states: Annotated[int, typer.Option(min=1, help="Kept states to replay, spread over the run.")] = 10,
    sample: Annotated[int, typer.Option(min=1, help="Samples the federation's gradient is taken on.")] = 3000,
    again: Annotated[bool, typer.Option("--again", help="Also runs that have been analysed before.")] = False,
    plots: Annotated[Path | None, typer.Option(help="Draw pictures into this folder.")] = None,
    format: Annotated[Picture, typer.Option(help="Of the pictures.")] = Picture.PNG,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables here.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Alignment of perturbations, momentum echo and client drift, from recordings and kept states.

    Examples:

    - `fedwmsam analyse dynamics comparison`
    - `fedwmsam analyse dynamics runs/mine --states 50 --plots figures`
    """
    from fedwmsam.analysis.dynamics_command import analyse_dynamics

    analyse_dynamics(runs, states, sample, again, plots, format.value, markdown, quiet)


@app.command()
def theory(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders with kept states.", show_default="none")
    ] = None,
    states: Annotated[int, typer.Option(min=1, help="Kept states to measure at, spread over the run.")] = 10,
    sample: Annotated[int, typer.Option(min=1, help="Samples the federation's loss is taken on.")] = 3000,
    smoothness: Annotated[float, typer.Option(help="L.")] = 100.0,
    gap: Annotated[float, typer.Option(help="Δ, first loss minus lowest.")] = 2.0,
    sigma: Annotated[float, typer.Option(help="σ of a mini-batch gradient.")] = 3.0,
    rho: Annotated[float, typer.Option(help="ρ.")] = 0.01,
    cohort: Annotated[int, typer.Option(help="S, clients a round.")] = 10,
    steps: Annotated[int, typer.Option(help="K, local steps.")] = 60,
    rounds: Annotated[int, typer.Option(help="R.")] = 500,
    clients: Annotated[int, typer.Option(help="N.")] = 100,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables here.")] = None,
    quiet: QuietOption = False,
) -> None:
    """The paper's bound, tables and lemmas; with a run its constants, and which conditions of the theorem hold.

    Examples:

    - `fedwmsam analyse theory --smoothness 50 --rounds 1000`
    - `fedwmsam analyse theory comparison/fedwmsam-seed0-a8c4ceb8`
    """
    from fedwmsam.analysis.dynamics_command import analyse_theory
    from fedwmsam.analysis.theory import Setting

    setting = Setting(smoothness, gap, sigma, rho, cohort, steps, rounds, clients)
    analyse_theory(runs or [], states, sample, setting, markdown, quiet)
