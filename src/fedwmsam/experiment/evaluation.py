"""Accuracy of a global model by class and by client, with the worst client and a percentile.

Where the data have groups (domains, speakers), a client's accuracy is that on the test samples of
its group. Where a partition made the clients, no test sample belongs to a client. The accuracy is
then the test accuracy of each class, weighted by the client's class distribution: what is to be
expected on new samples that are distributed like the client's own.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedwmsam.engine.rounds import Federation
from fedwmsam.methods import FedAvg, Info
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import Step, train_locally
from fedwmsam.training.task import Samples


@dataclass(frozen=True)
class AccuracyBreakdown:
    """Splits the accuracy on the test data by class and by client."""

    num_classes: int
    class_counts: Tensor
    """(clients, classes): how many samples of each class a client trains on."""
    groups: Tensor | None = None
    """The client that each test sample belongs to, where the data have groups."""

    def columns(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return the columns for a run's metrics: worst client and tenth percentile over clients.

        Clients without test samples do not count.
        """
        accuracies = self.by_client(outputs, targets)
        accuracies = accuracies[torch.isfinite(accuracies)]
        if not len(accuracies):
            return {}
        return {
            "worst_client_accuracy": float(accuracies.min()),
            "tenth_percentile_accuracy": float(torch.quantile(accuracies, 0.1)),
        }

    def by_class(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the accuracy of each class, NaN for a class without test samples."""
        counted = targets >= 0  # a label to be ignored is below
        targets = targets[counted]
        return accuracy_per_group(outputs[counted], targets, targets, self.num_classes)

    def by_client(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the accuracy of each client, NaN for a client without test samples."""
        if self.groups is not None:
            count = max(len(self.class_counts), int(self.groups.max()) + 1)
            return accuracy_per_group(outputs, targets, self.groups, count)
        accuracy = self.by_class(outputs, targets)
        weights = self.class_counts.double() * torch.isfinite(accuracy)
        return (weights @ torch.nan_to_num(accuracy)) / weights.sum(dim=1)


def accuracy_per_group(outputs: Tensor, targets: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the accuracy within each of `count` groups; `groups` has the group of each sample."""
    groups = groups.cpu()
    correct = (outputs.argmax(dim=1) == targets).cpu().double()
    correct_counts = torch.zeros(count, dtype=torch.float64).index_add_(0, groups, correct)
    return correct_counts / torch.bincount(groups, minlength=count)


def fine_tune_accuracies(
    federation: Federation,
    w: Tensor,
    buffers: Vectors,
    test: Samples,
    breakdown: AccuracyBreakdown,
    epochs: int,
    lr: float,
) -> Tensor:
    """Return each client's accuracy after it has fine-tuned the global model on its own data.

    Each client starts from `w` and trains for some epochs of plain SGD with step size `lr`.
    """
    accuracies = []
    for client in range(len(federation.clients)):
        samples = federation.clients[client]
        steps_per_epoch = federation.schedule.steps_per_epoch(len(samples))
        steps: list[Step] = []
        for round in range(epochs):  # each round has another order of the samples
            steps += federation.schedule.steps(round, client, len(samples))[:steps_per_epoch]
        info = Info(
            round=0,
            lr=lr,
            clients=1,
            cohort=1,
            share=1.0,
            steps=epochs * steps_per_epoch,
            samples=len(samples),
        )
        result = train_locally(
            federation.task,
            FedAvg(),
            {"w": w},
            buffers,
            samples,
            steps,
            info,
            federation.local_rules,
            steps_per_epoch,
        )
        tuned_w = w + result.up["delta"]
        outputs, targets, _ = federation.task.compute_outputs(tuned_w, result.buffers, test)
        accuracies.append(breakdown.by_client(outputs, targets)[client])
    return torch.stack(accuracies)
