"""Readers of the data a task trains and is judged on: what its model or loss cannot take is refused before training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwmsam.data.clients import (
    BatchCheck,
    Clients,
    Collate,
    ConcatSamples,
    DatasetSamples,
    LazyClients,
    SubsetSamples,
    TensorSamples,
)
from fedwmsam.errors import InputError
from fedwmsam.training.objectives import Objective
from fedwmsam.training.task import Batch, Samples, Task


class DataAdapter:
    """Turns what a person passes as data into samples on one device, checked once."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        check: BatchCheck,
        collate: Collate | None,
        labels: bool,
    ) -> None:
        self.dtype, self.device, self.check, self.collate, self.labels = (
            dtype,
            device,
            check,
            collate,
            labels,
        )

    def samples(self, data: Any, name: str) -> Samples:
        """`data` as samples: an (x, y) pair, a map-style dataset, or samples already."""
        if isinstance(data, TensorSamples | DatasetSamples | SubsetSamples | ConcatSamples):
            return data
        if is_pair(data):
            inputs, targets = self.convert(*data)
            if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
                raise InputError(
                    f"{name}: {_length(inputs)} inputs but {_length(targets)} targets; "
                    "x and y must have one row per sample."
                )
            if len(targets) == 0:
                raise InputError(
                    f"{name} has no data; leave it out or give it at least one sample."
                )
            self.check(name, inputs, targets)
            return TensorSamples(inputs, targets)
        if isinstance(data, tuple):
            raise InputError(f"{name}: expected an (x, y) pair, not a tuple of {len(data)}.")
        if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
            if len(data) == 0:
                raise InputError(
                    f"{name} has no data; leave it out or give it at least one sample."
                )
            return DatasetSamples(data, self.collate, self.convert, self.check, name)
        hint = "; pass loader.dataset" if isinstance(data, torch.utils.data.DataLoader) else ""
        raise InputError(
            f"{name}: expected an (x, y) pair or a dataset with __len__ and __getitem__, "
            f"not {type(data).__name__}{hint}."
        )

    def inputs(self, inputs: Any) -> Tensor:
        tensor: Tensor = self._tensors(inputs)
        self.check("The data", tensor, None)
        return tensor

    def convert(self, inputs: Any, targets: Any) -> Batch:
        return self._tensors(inputs), self._targets(targets)

    def _tensors(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: self._tensors(v) for k, v in value.items()}
        if isinstance(value, tuple):
            return tuple(self._tensors(v) for v in value)
        tensor = _as_tensor(value).to(self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _targets(self, value: Any) -> Tensor:
        tensor = _as_tensor(value).to(self.device)
        if self.labels and not tensor.is_floating_point():
            return tensor.long()
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def clients(self, clients: Any, count: int | None) -> Clients:
        if callable(clients) and not hasattr(clients, "__len__"):
            if count is None or count < 1:
                raise InputError(
                    "clients is a function: also give their number, for example client_count=1000."
                )
            return LazyClients(lambda k: self.samples(clients(k), f"Client {k}"), count)
        if isinstance(clients, tuple | list) and len(clients) == 0:
            raise InputError("There are no clients; give at least one.")
        if is_pair(clients) and isinstance(clients[0], Tensor | np.ndarray):
            raise InputError("clients is one (x, y) pair; give a list with a pair for each client.")
        if not isinstance(clients, Sequence):
            raise InputError(
                f"clients must be a list of data sets or a function, not {type(clients).__name__}."
            )
        if count is not None and count != len(clients):
            raise InputError(
                f"client_count is {count} but the list holds {len(clients)} clients; leave client_count out."
            )
        return [self.samples(data, f"Client {k}") for k, data in enumerate(clients)]


def is_pair(data: Any) -> bool:
    """(x, y): any tuple of two, or a list of two arrays (a list of two tuples is a small dataset)."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return isinstance(data, tuple) or all(isinstance(part, Tensor | np.ndarray) for part in data)


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        return torch.as_tensor(np.ascontiguousarray(value))
    except (TypeError, ValueError) as error:
        raise InputError(f"Data must be numbers in arrays or tensors: {error}.") from error


def _length(value: Any) -> str:
    return str(len(value)) if getattr(value, "ndim", 0) else "a single number of"


def make_data_adapter(task: Task, collate: Collate | None = None) -> DataAdapter:
    return DataAdapter(
        task.dtype, task.device, DataCheck(task), collate, task.objective.class_labels
    )


# What a model or a loss cannot take


class DataCheck:
    """Refuses data that the model or the loss cannot take, before they are trained on."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.accepted: dict[Any, torch.Size] = {}

    def __call__(self, whose: str, inputs: Any, targets: Tensor | None) -> None:
        if (
            isinstance(inputs, Tensor)
            and inputs.is_floating_point()
            and not bool(torch.isfinite(inputs).all())
        ):
            raise InputError(f"{whose}: the inputs hold NaN or infinity; clean them first.")
        kind = (inputs.shape[1:], inputs.dtype) if isinstance(inputs, Tensor) else type(inputs)
        if kind not in self.accepted:
            self.accepted[kind] = infer_output_shape(self.task, whose, inputs)
        if targets is not None:
            check_targets(whose, targets, self.accepted[kind], self.task.objective)


def infer_output_shape(task: Task, whose: str, inputs: Any) -> torch.Size:
    """The shape of the model's output for one sample; says so if the model cannot take the inputs."""
    task.model.eval()
    first = inputs[:1] if isinstance(inputs, Tensor) else inputs
    try:
        with torch.no_grad():
            outputs = task.model(first)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        reason = " ".join(str(error).split())
        raise InputError(
            f"{whose}: the model cannot take inputs of shape {shape}: {reason}."
        ) from error
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
        raise InputError(
            f"{whose}: class labels must be whole numbers, not {targets.dtype}; use y.long()."
        )
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
