"""Time of a round of each method against FedAvg's, interleaved in one run, in this process on one thread.

    python benchmarks/method_cost.py [--repeats 7] [--methods fedavg,fedwmsam] [--model mlp|resnet18]

mlp: ten clients × 60 local steps of batch 50 on Fashion-MNIST with the 784-200-200-10 MLP. resnet18: ResNet-18 with
GroupNorm, one client × 10 steps of batch 50 on random 3 × 32 × 32 images (what is in them does not change the time).
"""

import argparse
from collections.abc import Sequence

import torch
from measuring import Samples, Turn, cells, interleave, table, timed

from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.rounds import Federation, first_state, run_round
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.experiment.experiment import prepare
from fedwmsam.methods import METHODS, make_method
from fedwmsam.models import model_factory
from fedwmsam.settings.config import Settings, resolve
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task, deterministic_torch

HEAD = ["method", "wall s a round", "× FedAvg", "CPU s a round", "× FedAvg"]
FEW = ("fedavg", "fedsam", "fedwmsam")
"""The methods timed on the large model."""


def method_costs(model: str, methods: Sequence[str], repeats: int) -> Samples:
    with deterministic_torch():
        federations = (on_mlp if model == "mlp" else on_resnet)(["fedavg", *methods])
        turns = {name: rounds_of(federation) for name, federation in federations.items()}
        samples, _ = interleave(f"methods, {model}", turns, repeats)
    return samples


def rounds_of(federation: Federation) -> Turn:
    """A turn is the federation's next round."""
    state = first_state(federation)

    def round() -> None:
        nonlocal state
        state, _ = run_round(federation, state)

    return lambda: timed(round)


def on_mlp(methods: Sequence[str]) -> dict[str, Federation]:
    config = resolve({"dataset": "fashion-mnist", "preset": "paper"})
    experiment = prepare(config)
    return {
        name: make_federation(config, make_method(name), experiment.task, experiment.clients)
        for name in methods
    }


def on_resnet(methods: Sequence[str]) -> dict[str, Federation]:
    random = torch.Generator().manual_seed(0)
    task = Task(
        model_factory("resnet18", (3, 32, 32), 10), make_objective("classification", None, None)
    )
    images = (
        torch.randn(500, 3, 32, 32, generator=random),
        torch.randint(10, (500,), generator=random),
    )
    clients = make_data_adapter(task).clients([images], None)
    settings = Settings(participation=1.0, local_epochs=1)
    return {name: make_federation(settings, make_method(name), task, clients) for name in methods}


def rows(samples: Samples) -> list[list[str]]:
    return [[name, *cells(found, samples["fedavg"])] for name, found in samples.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--model", choices=("mlp", "resnet18"), default="mlp")
    arguments = parser.parse_args()
    print(
        table(
            HEAD,
            rows(method_costs(arguments.model, arguments.methods.split(","), arguments.repeats)),
        )
    )


if __name__ == "__main__":
    main()
