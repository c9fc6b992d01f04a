"""What every contender trains: the same data, clients, model and step rules; reading them needs only PyTorch.

100 clients with 600 images of Fashion-MNIST each; a round is 10 of them × 5 epochs of 12 batches of 50, FedAvg.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = Path(__file__).parents[1] / ".environments" / "workload.pt"
CLIENTS, COHORT, EPOCHS, BATCH, SAMPLES = 100, 10, 5, 50, 600
STEPS = EPOCHS * SAMPLES // BATCH
"""Local steps of one client in one round."""
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 0.1, 1e-3, 10.0


@dataclass(frozen=True)
class Workload:
    inputs: Tensor
    """(client, sample, 1, 28, 28), normalised floats."""
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    model: nn.Module
    """With its initial weights; every contender starts from them."""

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        return self.inputs[number], self.labels[number]

    def accuracy(self, model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            return float((model(self.test_inputs).argmax(1) == self.test_labels).double().mean())


@cache
def load() -> Workload:
    """Loaded without the usual precaution: the file is this benchmark's own, written a moment ago."""
    return Workload(**torch.load(FILE, weights_only=False))


def draw_cohort(generator: torch.Generator) -> list[int]:
    return torch.randperm(CLIENTS, generator=generator)[:COHORT].tolist()
