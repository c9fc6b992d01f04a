"""What is minimised and what is reported: a loss and metrics, both functions of all outputs and all targets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from fedwmsam.errors import InputError, unknown_name_message

MetricFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → a scalar."""


@dataclass(frozen=True)
class Objective:
    """A loss with the metrics reported beside it; `monitor` names what "best" means ("loss", or a metric)."""

    loss: MetricFunction
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)
    monitor: str = "loss"
    lower_is_better: bool = True
    class_labels: bool = False
    """Targets are class numbers, one per sample: lets the data be checked before training."""

    def better(self, score: float, than: float | None) -> bool:
        if score != score:  # NaN is never an improvement
            return False
        return than is None or (score < than if self.lower_is_better else score > than)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=-1) == targets).double().mean()


def top5(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.topk(5, dim=-1).indices == targets[:, None]).any(dim=-1).double().mean()


def label_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Multi-label: the share of single labels that are right at threshold 0.5."""
    return ((outputs > 0) == (targets > 0.5)).double().mean()


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean()


def cross_entropy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def check_same_shape(kind: str, outputs: Tensor, targets: Tensor) -> None:
    """(n, 1) against (n,) would broadcast to (n, n) and train on nonsense."""
    if outputs.shape != targets.shape:
        raise InputError(
            f"{kind} targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}; "
            "give the targets the outputs' shape, for example y[:, None]."
        )


def mse_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    check_same_shape("Regression", outputs, targets)
    return functional.mse_loss(outputs, targets)


def bce_loss(outputs: Tensor, targets: Tensor) -> Tensor:
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
    "dropped",
    "late",
    "hostile",
    "epsilon",
)

OBJECTIVES: dict[str, Objective] = {
    "classification": Objective(
        cross_entropy_loss, {"accuracy": accuracy}, "accuracy", False, class_labels=True
    ),
    "regression": Objective(mse_loss, {"mae": mean_absolute_error}),
    "multilabel": Objective(bce_loss, {"label_accuracy": label_accuracy}, "label_accuracy", False),
}


def make_objective(
    loss: str | MetricFunction,
    metrics: Mapping[str, MetricFunction] | None = None,
    monitor: str | None = None,
) -> Objective:
    """By name, or from a function of (outputs, targets); `monitor` names a metric, "-name" if lower is better."""
    if isinstance(loss, str):
        if loss not in OBJECTIVES:
            raise InputError(unknown_name_message("loss", loss, OBJECTIVES))
        objective = OBJECTIVES[loss]
    else:
        objective = Objective(loss)
    measures = dict(objective.metrics if metrics is None else metrics)
    taken = [name for name in measures if name in RESERVED or name.startswith("validation_")]
    if taken:
        raise InputError(
            f"A metric cannot be called {taken[0]!r}: every run has a column of that name."
        )
    wanted, lower = objective.monitor, objective.lower_is_better
    if monitor is not None:
        wanted, lower = monitor.removeprefix("-"), monitor.startswith("-") or monitor == "loss"
    elif metrics is not None and wanted not in measures:
        wanted, lower = "loss", True
    if wanted != "loss" and wanted not in measures:
        raise InputError(unknown_name_message("metric to monitor", wanted, ["loss", *measures]))
    return Objective(objective.loss, measures, wanted, lower, objective.class_labels)


def compute_metrics(objective: Objective, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Loss and metrics over everything at once, so that a metric need not be a mean over batches."""
    with torch.no_grad():
        values = {"loss": float(objective.loss(outputs, targets))}
        return values | {
            name: float(metric(outputs, targets)) for name, metric in objective.metrics.items()
        }
