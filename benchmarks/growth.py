"""Growth of the time of a round with the registered clients, the parameters and the local steps.

    python benchmarks/growth.py [--repeats 5]

Everything runs in one process and one thread, on random data, with batches of 50 and ten clients
per round. Each series varies one quantity. FedWMSAM keeps a memory of every client that took part,
FedAvg keeps none.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from measuring import Sample, Samples, interleave, markdown_table, time_cells
from method_cost import make_turn
from torch import nn

from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.rounds import Federation
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.methods import make_method
from fedwmsam.settings.config import Settings
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task, deterministic_torch

HEADER = ["series", "", "wall s a round", "× first", "CPU s a round", "× first"]
FEATURES = 784
CLASSES = 10
SAMPLES = 600
COHORT = 10
REGISTERED = (100, 10_000, 1_000_000)


@dataclass(frozen=True)
class Point:
    """A federation whose rounds are timed."""

    method: str = "fedavg"
    clients: int = 100
    width: int = 200
    epochs: int = 5
    """Local epochs, of 12 steps each."""


def make_model(width: int) -> nn.Module:
    """Return an MLP with two hidden layers of this width."""
    hidden = nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


def count_parameters(width: int) -> str:
    """Return the number of the model's parameters, as it is printed."""
    return f"{sum(p.numel() for p in make_model(width).parameters()):,}"


SERIES = {
    "clients, fedavg": {f"{n:,}": Point(clients=n) for n in REGISTERED},
    "clients, fedwmsam": {f"{n:,}": Point("fedwmsam", clients=n) for n in REGISTERED},
    "parameters": {
        count_parameters(width): Point(width=width, epochs=1) for width in (100, 200, 400, 800)
    },
    "local steps": {str(12 * epochs): Point(epochs=epochs) for epochs in (1, 5, 10)},
}


def growth(repeats: int) -> Samples:
    """Return the times of a round at each point of each series."""
    with deterministic_torch():
        data = [
            (torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,))) for _ in range(20)
        ]
        turns = {}
        for series, points in SERIES.items():
            for label, point in points.items():
                turns[f"{series}.{label}"] = make_turn(point_federation(point, data))
        samples, _ = interleave("growth", turns, repeats)
    return samples


def point_federation(point: Point, data: list[tuple[torch.Tensor, torch.Tensor]]) -> Federation:
    """Return the federation of a point.

    A client's data are read when it is sampled, so that a million clients need no million data
    sets.
    """
    task = Task(make_model(point.width), make_objective("classification", None, None))
    clients = make_data_adapter(task).to_clients(
        lambda client: data[client % len(data)], point.clients
    )
    settings = Settings(clients_per_round=COHORT, local_epochs=point.epochs)
    return make_federation(settings, make_method(point.method), task, clients)


def table_rows(samples: Samples) -> list[list[str]]:
    """Return the rows of the table of times and ratios."""
    return [
        [series, label, *time_cells(times, first)]
        for series, label, times, first in with_first(samples)
    ]


def with_first(samples: Samples) -> Iterator[tuple[str, str, list[Sample], list[Sample]]]:
    """Yield series, label and times of each point, and the times of its series' first point."""
    for series, points in SERIES.items():
        first = samples[f"{series}.{next(iter(points))}"]
        for label in points:
            yield series, label, samples[f"{series}.{label}"], first


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    samples = growth(parser.parse_args().repeats)
    print(markdown_table(HEADER, table_rows(samples)))


if __name__ == "__main__":
    main()
