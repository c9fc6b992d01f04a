"""Objectives: the loss that is minimised, and the metrics that are reported with it.

Both are functions of all outputs and all targets at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from fedwmsam.errors import InputError, unknown_name_message

MetricFunction = Callable[[Tensor, Tensor], Tensor]
"""A function from (outputs, targets) to a scalar."""


@dataclass(frozen=True)
class Objective:
    """A loss with the metrics that are reported with it."""

    loss: MetricFunction
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)
    monitor: str = "loss"
    """The score that decides which model is the best: "loss", or the name of a metric."""
    lower_is_better: bool = True
    class_labels: bool = False
    """Whether the targets are class numbers, one per sample, which can be checked beforehand."""

    def is_better(self, score: float, best: float | None) -> bool:
        """Return whether a score is better than the best so far; any number is better than None."""
        if score != score:  # NaN is never an improvement
            return False
        if best is None:
            return True
        return score < best if self.lower_is_better else score > best


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of samples whose largest output is that of the target's class."""
    return (outputs.argmax(dim=-1) == targets).double().mean()


def top5(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of samples whose target is among the five largest outputs."""
    return (outputs.topk(5, dim=-1).indices == targets[:, None]).any(dim=-1).double().mean()


def label_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of all single labels of multi-label data that are right at threshold 0.5."""
    return ((outputs > 0) == (targets > 0.5)).double().mean()


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of the absolute differences between outputs and targets."""
    return (outputs - targets).abs().mean()


def cross_entropy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy between the outputs, as logits, and the targets' classes."""
    return functional.cross_entropy(outputs, targets)


def check_same_shape(kind: str, outputs: Tensor, targets: Tensor) -> None:
    """Raise InputError if outputs and targets differ in shape.

    PyTorch would broadcast (n, 1) against (n,) to (n, n) and train on nonsense.
    """
    if outputs.shape != targets.shape:
        raise InputError(
            f"{kind} targets of shape {tuple(targets.shape)} do not fit outputs of shape "
            f"{tuple(outputs.shape)}; give the targets the outputs' shape, for example y[:, None]."
        )


def mse_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error; raise InputError if the shapes differ."""
    check_same_shape("Regression", outputs, targets)
    return functional.mse_loss(outputs, targets)


def bce_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of the outputs, as logits, over all labels.

    Raise InputError if the shapes differ.
    """
    check_same_shape("Multi-label", outputs, targets)
    return functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))


RESERVED = (
    "round",
    "lr",
    "cohort",
    "loss",
    "train_loss",
    "update_norm",
    "bytes_down",
    "bytes_up",
    "backprops",
    "rejected",
    "missing",
    "dropped",
    "late",
    "hostile",
    "epsilon",
)
"""Columns that a run may have, whose names no metric may have."""
OBJECTIVES: dict[str, Objective] = {
    "classification": Objective(
        cross_entropy_loss, {"accuracy": accuracy}, "accuracy", False, class_labels=True
    ),
    "regression": Objective(mse_loss, {"mae": mean_absolute_error}),
    "multilabel": Objective(bce_loss, {"label_accuracy": label_accuracy}, "label_accuracy", False),
}
"""The objectives that can be chosen by name."""


def make_objective(
    loss: str | MetricFunction,
    metrics: Mapping[str, MetricFunction] | None = None,
    monitor: str | None = None,
) -> Objective:
    """Return an objective from the name of a loss, or from a loss function of (outputs, targets).

    `metrics` replaces the metrics that belong to a named loss. `monitor` names the metric, or the
    loss, that decides which model is the best, with "-" before it if lower is better. Raise
    InputError if a name is unknown or reserved.
    """
    if isinstance(loss, str):
        if loss not in OBJECTIVES:
            raise InputError(unknown_name_message("loss", loss, OBJECTIVES))
        objective = OBJECTIVES[loss]
    else:
        objective = Objective(loss)
    functions = dict(objective.metrics if metrics is None else metrics)
    for name in functions:
        if name in RESERVED or name.startswith("validation_"):
            raise InputError(
                f"A metric cannot be called {name!r}: every run has a column of that name."
            )
    monitored = objective.monitor
    lower_is_better = objective.lower_is_better
    if monitor is not None:
        monitored = monitor.removeprefix("-")
        lower_is_better = monitor.startswith("-") or monitor == "loss"
    elif metrics is not None and monitored not in functions:
        monitored = "loss"
        lower_is_better = True
    if monitored != "loss" and monitored not in functions:
        raise InputError(unknown_name_message("metric to monitor", monitored, ["loss", *functions]))
    return Objective(objective.loss, functions, monitored, lower_is_better, objective.class_labels)


def compute_metrics(objective: Objective, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the loss and all metrics over all samples at once.

    A metric need therefore not be a mean over batches.
    """
    with torch.no_grad():
        values = {"loss": float(objective.loss(outputs, targets))}
        for name, metric in objective.metrics.items():
            values[name] = float(metric(outputs, targets))
        return values
