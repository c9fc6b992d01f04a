"""Time of a round of each method, compared with one of FedAvg.

    python benchmarks/method_cost.py [--repeats 7] [--methods fedavg,fedwmsam] [--model resnet18]

All methods are executed in turn, in this process and on one thread. mlp: ten clients × 60 local
steps of batch 50 on Fashion-MNIST with the 784-200-200-10 MLP. resnet18: ResNet-18 with GroupNorm,
one client × 50 steps of batch 50, as in the paper, on random 3 × 32 × 32 images (their content does
not change the time).
"""

import argparse
from collections.abc import Sequence

import torch
from measuring import Samples, Turn, interleave, markdown_table, time_cells, time_work

from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.rounds import Federation, first_state, run_round
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.experiment.experiment import prepare
from fedwmsam.methods import METHODS, make_method
from fedwmsam.models import model_factory
from fedwmsam.settings.config import Settings, resolve_config
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task, deterministic_torch

HEADER = ["method", "wall s a round", "× FedAvg", "CPU s a round", "× FedAvg"]
FEW = ("fedavg", "scaffold", "fedsam", "fedwmsam")
"""The methods timed on the large model."""


def method_costs(model: str, methods: Sequence[str], repeats: int) -> Samples:
    """Return the times of a round of FedAvg and of the given methods."""
    with deterministic_torch():
        make_federations = mlp_federations if model == "mlp" else resnet_federations
        federations = make_federations(["fedavg", *methods])
        turns = {name: make_turn(federation) for name, federation in federations.items()}
        samples, _ = interleave(f"methods, {model}", turns, repeats)
    return samples


def make_turn(federation: Federation) -> Turn:
    """Return a turn that trains the federation's next round."""
    state = first_state(federation)

    def train_next_round() -> None:
        nonlocal state
        state, _ = run_round(federation, state)

    return lambda: time_work(train_next_round)


def mlp_federations(methods: Sequence[str]) -> dict[str, Federation]:
    """Return a federation of each method, on the MLP and Fashion-MNIST."""
    config = resolve_config({"dataset": "fashion-mnist", "preset": "paper"})
    experiment = prepare(config)
    return {
        name: make_federation(config, make_method(name), experiment.task, experiment.clients)
        for name in methods
    }


def resnet_federations(methods: Sequence[str]) -> dict[str, Federation]:
    """Return a federation of each method, on ResNet-18 and one client with random images."""
    generator = torch.Generator().manual_seed(0)
    model = model_factory("resnet18", (3, 32, 32), 10)
    task = Task(model, make_objective("classification", None, None))
    images = torch.randn(500, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (500,), generator=generator)
    clients = make_data_adapter(task).to_clients([(images, labels)], None)
    settings = Settings(participation=1.0, local_epochs=5)
    return {name: make_federation(settings, make_method(name), task, clients) for name in methods}


def table_rows(samples: Samples) -> list[list[str]]:
    """Return the rows of the table of times and ratios."""
    return [[name, *time_cells(times, samples["fedavg"])] for name, times in samples.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--model", choices=("mlp", "resnet18"), default="mlp")
    arguments = parser.parse_args()
    samples = method_costs(arguments.model, arguments.methods.split(","), arguments.repeats)
    print(markdown_table(HEADER, table_rows(samples)))


if __name__ == "__main__":
    main()
