"""How the time of our round grows with the clients registered, the model's parameters and the local steps.

    python benchmarks/growth.py [--repeats 5]

One process, one thread, random data, batches of 50, ten clients a round. Each series varies one thing. FedWMSAM keeps
something for every client that took part, FedAvg nothing.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from measuring import Sample, Samples, cells, interleave, table
from method_cost import rounds_of
from torch import nn

from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.rounds import Federation
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.methods import make_method
from fedwmsam.settings.config import Settings
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task, deterministic_torch

HEAD = ["series", "", "wall s a round", "× first", "CPU s a round", "× first"]
FEATURES, CLASSES, SAMPLES, COHORT = 784, 10, 600, 10


@dataclass(frozen=True)
class Point:
    method: str = "fedavg"
    clients: int = 100
    width: int = 200
    epochs: int = 5
    """Of 12 steps."""


def make_model(width: int) -> nn.Module:
    hidden = nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


def parameters(width: int) -> str:
    return f"{sum(p.numel() for p in make_model(width).parameters()):,}"


SERIES = {
    "clients, fedavg": {f"{n:,}": Point(clients=n) for n in (100, 10_000, 1_000_000)},
    "clients, fedwmsam": {f"{n:,}": Point("fedwmsam", clients=n) for n in (100, 10_000, 1_000_000)},
    "parameters": {
        parameters(width): Point(width=width, epochs=1) for width in (100, 200, 400, 800)
    },
    "local steps": {str(12 * epochs): Point(epochs=epochs) for epochs in (1, 5, 10)},
}


def growth(repeats: int) -> Samples:
    with deterministic_torch():
        pool = [
            (torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,))) for _ in range(20)
        ]
        turns = {
            f"{series}.{label}": rounds_of(federation(point, pool))
            for series, points in SERIES.items()
            for label, point in points.items()
        }
        samples, _ = interleave("growth", turns, repeats)
    return samples


def federation(point: Point, pool: list[tuple[torch.Tensor, torch.Tensor]]) -> Federation:
    """Clients are read when they are sampled, so that a million of them need no million data sets here."""
    task = Task(make_model(point.width), make_objective("classification", None, None))
    clients = make_data_adapter(task).clients(
        lambda client: pool[client % len(pool)], point.clients
    )
    settings = Settings(clients_per_round=COHORT, local_epochs=point.epochs)
    return make_federation(settings, make_method(point.method), task, clients)


def rows(samples: Samples) -> list[list[str]]:
    return [[series, label, *cells(one, first)] for series, label, one, first in compared(samples)]


def compared(samples: Samples) -> Iterator[tuple[str, str, list[Sample], list[Sample]]]:
    """Each point with the first of its series."""
    for series, points in SERIES.items():
        first = samples[f"{series}.{next(iter(points))}"]
        for label in points:
            yield series, label, samples[f"{series}.{label}"], first


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    print(table(HEAD, rows(growth(parser.parse_args().repeats))))


if __name__ == "__main__":
    main()
