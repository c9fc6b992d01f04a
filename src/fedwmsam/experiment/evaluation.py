"""Whom a global model serves: accuracy by class and by client, for the worst-off as well as on average.

A client's accuracy is that on the test samples of its own group (domain, speaker) where the data have groups. Where a
partition made the clients there are no such samples; it is then the test accuracy by class, weighted by the client's
own mix of classes: what the client would see on fresh samples of its kind.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedwmsam.engine.rounds import Federation
from fedwmsam.methods import FedAvg, Info
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import train_locally
from fedwmsam.training.task import Samples


@dataclass(frozen=True)
class AccuracyBreakdown:
    classes: int
    mixes: Tensor
    """(clients, classes): how many samples of each class a client trains on."""
    groups: Tensor | None = None
    """The natural client of each test sample."""

    def columns(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """For the metrics of a run: the worst client and the tenth percentile over clients."""
        accuracies = self.by_client(outputs, targets)
        accuracies = accuracies[torch.isfinite(accuracies)]
        return {
            "worst_client_accuracy": float(accuracies.min()),
            "tenth_percentile_accuracy": float(torch.quantile(accuracies, 0.1)),
        }

    def by_class(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """NaN for a class that the test samples lack."""
        return means(outputs, targets, targets, self.classes)

    def by_client(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.groups is not None:
            return means(
                outputs, targets, self.groups, max(len(self.mixes), int(self.groups.max()) + 1)
            )
        accuracy = self.by_class(outputs, targets)
        weights = self.mixes.double() * torch.isfinite(accuracy)
        return (weights @ torch.nan_to_num(accuracy)) / weights.sum(dim=1)


def means(outputs: Tensor, targets: Tensor, owners: Tensor, count: int) -> Tensor:
    """The share of right answers for each owner of samples."""
    right = (outputs.argmax(dim=-1) == targets).double()
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, owners.cpu(), right.cpu())
    return total / torch.bincount(owners.cpu(), minlength=count)


def fine_tune_accuracies(
    federation: Federation,
    w: Tensor,
    buffers: Vectors,
    test: Samples,
    breakdown: AccuracyBreakdown,
    epochs: int,
    lr: float,
) -> Tensor:
    """Each client's accuracy after training the global model on its own data for some epochs of plain SGD."""
    accuracies = []
    for client in range(len(federation.clients)):
        samples, epoch = (
            federation.clients[client],
            federation.schedule.epoch(len(federation.clients[client])),
        )
        steps = [federation.schedule.steps(r, client, len(samples))[:epoch] for r in range(epochs)]
        info = Info(
            round=0,
            lr=lr,
            clients=1,
            cohort=1,
            share=1.0,
            steps=epochs * epoch,
            samples=len(samples),
        )
        result = train_locally(
            federation.task,
            FedAvg(),
            {"w": w},
            buffers,
            samples,
            [s for part in steps for s in part],
            info,
            federation.rules,
            epoch,
        )
        outputs, targets = federation.task.outputs_of(w + result.up["delta"], result.buffers, test)
        accuracies.append(breakdown.by_client(outputs, targets)[client])
    return torch.stack(accuracies)
