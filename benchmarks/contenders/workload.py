"""The workload of every contender: the same data, clients, model and step rules.

Clients have 600 images of Fashion-MNIST each; a round is some of them × some epochs of 12 batches
of 50, with FedAvg. The environment variable BENCH_MODEL names the model. Convolutional networks
get the images in the shape of CIFAR's. Reading a workload needs only PyTorch.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

BATCH = 50
SAMPLES = 600
LEARNING_RATE = 0.1
WEIGHT_DECAY = 1e-3
CLIP_NORM = 10.0


@dataclass(frozen=True)
class RoundSize:
    """How much a round of one model is, and what its model learns meanwhile."""

    clients: int
    cohort: int
    epochs: int
    rounds: int
    """Rounds in one turn."""
    accuracy: tuple[float, float]
    """Range of the test accuracy after six rounds and more.

    All contenders are well inside; one that trains less or wrongly is not.
    """

    @property
    def steps(self) -> int:
        """Return the local steps of a round."""
        return self.cohort * self.epochs * SAMPLES // BATCH


ROUND_SIZES = {
    "mlp": RoundSize(clients=100, cohort=10, epochs=5, rounds=2, accuracy=(0.75, 0.92)),
    "cnn": RoundSize(clients=10, cohort=5, epochs=1, rounds=2, accuracy=(0.5, 0.92)),
    "resnet18": RoundSize(clients=10, cohort=1, epochs=4, rounds=1, accuracy=(0.2, 0.92)),
}
"""The models, and the rounds in which they are trained."""
MODEL = os.environ.get("BENCH_MODEL", "mlp")
CLIENTS = ROUND_SIZES[MODEL].clients
COHORT = ROUND_SIZES[MODEL].cohort
EPOCHS = ROUND_SIZES[MODEL].epochs


def workload_file(model: str) -> Path:
    """Return the path of the workload of a model."""
    return Path(__file__).parents[1] / ".environments" / f"workload-{model}.pt"


@dataclass(frozen=True)
class Workload:
    """The data of all clients, the test data and the initial model."""

    inputs: Tensor
    """Normalised floats of shape (client, sample, channel, row, column)."""
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    model: nn.Module
    """The model with its initial weights, of PyTorch's own layers; all start from it."""

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of a client."""
        return self.inputs[number], self.labels[number]

    def accuracy(self, model: nn.Module) -> float:
        """Return the accuracy of a model on the test data."""
        model.eval()
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in self.test_inputs.split(1000)])
        return float((outputs.argmax(1) == self.test_labels).double().mean())


@cache
def load() -> Workload:
    """Return the workload.

    Its file is unpickled, which is safe: the benchmark wrote it a moment ago.
    """
    return Workload(**torch.load(workload_file(MODEL), weights_only=False))


def draw_cohort(generator: torch.Generator) -> list[int]:
    """Return the clients of a round, drawn at random."""
    return torch.randperm(CLIENTS, generator=generator)[:COHORT].tolist()
