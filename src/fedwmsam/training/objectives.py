"""Objectives: the loss that is minimised, and the metrics that are reported with it.

Both are functions of all outputs and all targets at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwmsam.errors import InputError, describe_error, unknown_name_message

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
    """Whether the targets are class numbers, which can be checked beforehand."""
    ignore_index: int = -100
    """The class number of targets that count neither for the loss nor for the accuracy."""
    replaces_models_loss: bool = False
    """Whether a model that computes a loss itself is trained on this one, of its outputs."""

    def count(self, targets: Tensor) -> int:
        """Return how many targets count: one for each sample, or for each label not ignored."""
        if self.class_labels and targets.ndim > 1 and not targets.is_floating_point():
            return int((targets != self.ignore_index).sum())
        return len(targets)

    def align_targets(self, outputs: Tensor, targets: Tensor, own_loss: float) -> Tensor:
        """Return the targets in the places of the outputs with which a model's loss compares them.

        A causal language model moves its labels itself, so that each output is compared with the
        next token. Which of the two it does, its loss tells; without that an accuracy would be of
        no use.
        """
        is_sequence = outputs.ndim == 3 and targets.ndim == 2 and targets.shape[1] > 1
        if not self.class_labels or not is_sequence or targets.is_floating_point():
            return targets
        ignored = torch.full_like(targets[:, :1], self.ignore_index)
        moved = torch.cat([targets[:, 1:], ignored], dim=1)
        distances = {}
        for candidate in (targets, moved):
            loss = functional.cross_entropy(outputs, candidate, ignore_index=self.ignore_index)
            distances[abs(float(loss) - own_loss)] = candidate
        nearest = min(distances)
        return distances[nearest] if nearest < 1e-3 * max(1.0, abs(own_loss)) else targets

    def is_better(self, score: float, best: float | None) -> bool:
        """Return whether a score is better than the best so far; any number is better than None."""
        if score != score:  # NaN is never an improvement
            return False
        if best is None:
            return True
        return score < best if self.lower_is_better else score > best


class Predictions(NamedTuple):
    """The outputs of a model for all samples of some data, and the targets."""

    outputs: Tensor
    targets: Tensor
    loss: float | None = None
    """The mean loss, if the model has computed it itself."""


def accuracy(outputs: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the share of targets whose class has the largest output.

    The classes are on the second axis, as for cross-entropy: outputs of shape (n, C, …) have
    targets of shape (n, …). Targets that are probabilities stand for the most probable class.
    """
    return share_of_right(outputs.argmax(dim=1) == as_classes(targets), targets, ignore_index)


def top5(outputs: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the share of targets whose class is among the five with the largest outputs."""
    best = outputs.topk(5, dim=1).indices == as_classes(targets).unsqueeze(1)
    return share_of_right(best.any(dim=1), targets, ignore_index)


def as_classes(targets: Tensor) -> Tensor:
    """Return targets as class numbers; probabilities become that of the most probable class."""
    return targets.argmax(dim=1) if targets.is_floating_point() else targets


def share_of_right(right: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """Return the share of `right` that is true, without targets that are to be ignored."""
    right = right.cpu()  # not every device has numbers of 64 bits
    ignored = (targets == ignore_index).cpu()
    if ignored.shape == right.shape and bool(ignored.any()):
        right = right[~ignored]
    return right.double().mean()


def label_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of all single labels of multi-label data that are right at threshold 0.5."""
    return ((outputs > 0) == (targets > 0.5)).cpu().double().mean()


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
    objective = named_objective(loss) if isinstance(loss, str) else function_objective(loss)
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InputError(
            "metrics must be a mapping from names to functions of (outputs, targets), such as "
            f'metrics={{"f1": f1}}, not {metrics!r}.'
        )
    functions = dict(objective.metrics if metrics is None else metrics)
    for name, function in functions.items():
        check_function(f"The metric {name!r}", function)
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
    return replace(objective, metrics=functions, monitor=monitored, lower_is_better=lower_is_better)


def named_objective(name: str) -> Objective:
    """Return the objective of that name, or raise InputError if there is none."""
    if name not in OBJECTIVES:
        raise InputError(unknown_name_message("loss", name, OBJECTIVES))
    return OBJECTIVES[name]


def function_objective(loss: MetricFunction) -> Objective:
    """Return the objective with this loss; that of PyTorch's cross-entropy has an accuracy."""
    check_function("The loss", loss)
    if getattr(loss, "reduction", "mean") == "none":
        raise InputError(
            "The loss has reduction='none', so it is one number for each sample; "
            "use 'mean' or 'sum'."
        )
    if not isinstance(loss, nn.CrossEntropyLoss):
        return Objective(loss, replaces_models_loss=True)
    metric = partial(accuracy, ignore_index=loss.ignore_index)
    return Objective(loss, {"accuracy": metric}, "accuracy", False, True, loss.ignore_index, True)


def check_function(what: str, value: Any) -> None:
    """Raise InputError, which begins with `what`, unless it is a function or acts as one."""
    if isinstance(value, type):
        raise InputError(
            f"{what} is the class {value.__name__}; give an instance of it: {value.__name__}()."
        )
    if not callable(value):
        raise InputError(f"{what} must be a function of (outputs, targets), not {value!r}.")


def check_loss(loss: Any) -> None:
    """Raise InputError unless a loss is one number that depends on the model's weights."""
    if not isinstance(loss, Tensor):
        raise InputError(
            f"The loss must be a tensor of one number, not a {type(loss).__name__}; return it as "
            "PyTorch computes it, without .item() or float()."
        )
    if loss.numel() != 1:
        raise InputError(
            f"The loss must be one number, not a tensor of shape {tuple(loss.shape)}; return its "
            "mean, for example."
        )
    if not loss.requires_grad:
        raise InputError(
            "The loss does not depend on the trained parameters as far as PyTorch can see; compute "
            "it from the model's outputs, without .item(), .detach() or numpy."
        )


def compute_metrics(objective: Objective, predictions: Predictions) -> dict[str, float]:
    """Return the loss and all metrics over all samples at once.

    A metric need therefore not be a mean over batches.
    """
    outputs, targets, loss = predictions
    with torch.no_grad():
        if loss is None:
            loss = to_number("loss", objective.loss(outputs, targets))
        values = {"loss": loss}
        for name, metric in objective.metrics.items():
            values[name] = compute_metric(name, metric, outputs, targets)
        return values


def compute_metric(name: str, metric: MetricFunction, outputs: Tensor, targets: Tensor) -> float:
    """Return a metric over all samples; raise InputError, which names it, if it fails."""
    try:
        return to_number(name, metric(outputs, targets))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"The metric {name!r} failed: {describe_error(error)}; it is called with all outputs, "
            f"here of shape {tuple(outputs.shape)}, and targets, of shape {tuple(targets.shape)}."
        ) from error


def to_number(name: str, value: Any) -> float:
    """Return what a loss or a metric has returned as a number; raise InputError if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise InputError(
            f"The {name} must be one number, not a {type(value).__name__}{shape}; "
            "return its mean, for example."
        ) from error
