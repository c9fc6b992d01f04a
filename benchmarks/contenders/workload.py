"""The workload of every contender: the same data, clients, model and step rules.

100 clients have 600 images of Fashion-MNIST each; a round is 10 of them × 5 epochs of 12 batches of
50, with FedAvg. Reading it needs only PyTorch.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = Path(__file__).parents[1] / ".environments" / "workload.pt"
CLIENTS = 100
COHORT = 10
EPOCHS = 5
BATCH = 50
SAMPLES = 600
STEPS = EPOCHS * SAMPLES // BATCH
"""Local steps of one client in one round."""
LEARNING_RATE = 0.1
WEIGHT_DECAY = 1e-3
CLIP_NORM = 10.0


@dataclass(frozen=True)
class Workload:
    """The data of all clients, the test data and the initial model."""

    inputs: Tensor
    """Normalised floats of shape (client, sample, 1, 28, 28)."""
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    model: nn.Module
    """The model with its initial weights; every contender starts from them."""

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of a client."""
        return self.inputs[number], self.labels[number]

    def accuracy(self, model: nn.Module) -> float:
        """Return the accuracy of a model on the test data."""
        model.eval()
        with torch.no_grad():
            return float((model(self.test_inputs).argmax(1) == self.test_labels).double().mean())


@cache
def load() -> Workload:
    """Return the workload.

    Its file is unpickled, which is safe: the benchmark wrote it a moment ago.
    """
    return Workload(**torch.load(FILE, weights_only=False))


def draw_cohort(generator: torch.Generator) -> list[int]:
    """Return the clients of a round, drawn at random."""
    return torch.randperm(CLIENTS, generator=generator)[:COHORT].tolist()
