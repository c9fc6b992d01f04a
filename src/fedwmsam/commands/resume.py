"""`fedwmsam resume`: an interrupted run continued, or a finished one extended."""

from dataclasses import replace
from typing import Annotated

import typer

from fedwmsam.commands.execution import run_with_display, start_workers
from fedwmsam.commands.options import (
    QuietOption,
    RepeatedMethodOption,
    RepeatedModelOption,
    RunArgument,
    TrustOption,
)


def resume(
    run: RunArgument,
    rounds: Annotated[int | None, typer.Option(help="Go on to this many rounds instead.")] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Processes that train side by side: auto or a number, or ray:4."),
    ] = None,
    memory_budget: Annotated[
        float | None, typer.Option(help="Megabytes of RAM for what is kept per client.")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="As in `run`; none: no longer.",
            show_default="as the run was begun",
        ),
    ] = None,
    model: RepeatedModelOption = None,
    method: RepeatedMethodOption = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on with an interrupted run, or extend a finished one.

    Examples:

    - `fedwmsam resume runs/fedwmsam-digits-dirichlet0.1-seed0`
    - `fedwmsam resume runs/fedwmsam-digits-dirichlet0.1-seed0 --rounds 80`
    """
    start_workers(workers)
    from fedwmsam.experiment.experiment import load_config, prepare
    from fedwmsam.experiment.trust import Trust
    from fedwmsam.trackers import make_trackers

    config = load_config(run, Trust(model, trust, method))
    if track:
        config = replace(config, track=None if track == ["none"] else ",".join(track))
    if rounds is not None:
        config = replace(config, rounds=rounds)
    if workers is not None:
        config = replace(config, workers=workers)
    if memory_budget is not None:
        config = replace(config, memory_budget=memory_budget)
    trackers = make_trackers(config.track)
    experiment = prepare(config)
    run_with_display(experiment, experiment.reopen(run), trackers, quiet)
