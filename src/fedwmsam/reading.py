"""Readers of the data a task trains and is judged on: what its model or loss cannot take is refused before training."""

from typing import Any

import torch
from torch import Tensor

from fedwmsam.data.clients import Collate, Reader
from fedwmsam.errors import InputError
from fedwmsam.training.objectives import Objective
from fedwmsam.training.task import Task


def make_reader(task: Task, collate: Collate | None = None) -> Reader:
    return Reader(task.dtype, task.device, DataCheck(task), collate, task.objective.class_labels)


class DataCheck:
    """Refuses data that the model or the loss cannot take, before they are trained on."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.accepted: dict[Any, torch.Size] = {}

    def __call__(self, whose: str, inputs: Any, targets: Tensor | None) -> None:
        if isinstance(inputs, Tensor) and inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            raise InputError(f"{whose}: the inputs hold NaN or infinity; clean them first.")
        kind = (inputs.shape[1:], inputs.dtype) if isinstance(inputs, Tensor) else type(inputs)
        if kind not in self.accepted:
            self.accepted[kind] = probe(self.task, whose, inputs)
        if targets is not None:
            check_targets(whose, targets, self.accepted[kind], self.task.objective)


def probe(task: Task, whose: str, inputs: Any) -> torch.Size:
    """The shape of the model's output for one sample; says so if the model cannot take the inputs."""
    task.model.eval()
    first = inputs[:1] if isinstance(inputs, Tensor) else inputs
    try:
        with torch.no_grad():
            outputs = task.model(first)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        reason = " ".join(str(error).split())
        raise InputError(f"{whose}: the model cannot take inputs of shape {shape}: {reason}.") from error
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"The model must return a tensor, not {type(outputs).__name__}; wrap it in a module that does."
        )
    return outputs.shape


def check_targets(whose: str, targets: Tensor, outputs: torch.Size, objective: Objective) -> None:
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        raise InputError(f"{whose}: the targets hold NaN or infinity; clean them first.")
    if not objective.class_labels:
        return
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise InputError(f"{whose}: class labels must be whole numbers, not {targets.dtype}; use y.long().")
    if targets.ndim != len(outputs) - 1:
        raise InputError(
            f"{whose}: labels of shape {tuple(targets.shape)} do not fit the model's outputs of shape "
            f"(n, {', '.join(map(str, outputs[1:]))}); give one class number a sample: y.argmax(1) of one-hot labels."
        )
    classes = outputs[1]
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        wrong = int(targets.min()) if int(targets.min()) < 0 else int(targets.max())
        raise InputError(
            f"{whose}: label {wrong} is out of range: the model has {classes} outputs, labels 0 to {classes - 1}."
        )
