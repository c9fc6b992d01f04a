"""`fedwmsam evaluate`: the accuracy of a run's model by class and by client."""

from typing import Annotated

import typer

from fedwmsam.commands import output
from fedwmsam.commands.options import (
    RepeatedMethodOption,
    RepeatedModelOption,
    RunArgument,
    TrustOption,
)


def evaluate(
    run: RunArgument,
    best: Annotated[
        bool, typer.Option("--best", help="The best-by-validation model instead of the last.")
    ] = False,
    averaged: Annotated[
        bool,
        typer.Option("--averaged", help="The averaged twin instead, of a run made with --twin."),
    ] = False,
    fine_tune: Annotated[
        int, typer.Option(min=0, help="Epochs each client first trains its copy.")
    ] = 0,
    lr: Annotated[float, typer.Option(min=0, help="Step size of the fine-tuning.")] = 0.01,
    model: RepeatedModelOption = None,
    method: RepeatedMethodOption = None,
    trust: TrustOption = False,
) -> None:
    """Say whom a run's model serves: accuracy by class, by client or domain, and for the worst-off.

    Examples:

    - `fedwmsam evaluate runs/fedwmsam-digits-dirichlet0.1-seed0`
    - `fedwmsam evaluate runs/fedwmsam-digits-dirichlet0.1-seed0 --fine-tune 1`
    """
    from fedwmsam.experiment.experiment import load_config, prepare
    from fedwmsam.experiment.result import Result
    from fedwmsam.experiment.trust import Trust
    from fedwmsam.report.terminal import show_evaluation

    config = load_config(run, Trust(model, trust, method))
    result = Result.load(run, trust=True)  # what it may import was checked a line before
    experiment = prepare(config)
    weights = result.weights(best, averaged)
    show_evaluation(output.console, experiment.evaluate_breakdown(weights, fine_tune, lr))
