"""The adapter of the data that users pass to `fit`.

Users pass (x, y) pairs of arrays or tensors, map-style datasets, or a function that loads the data
of a client. `DataAdapter` turns each of them into samples on one device. `DataCheck` raises
InputError, before training starts, for data that the model or the loss cannot take.
"""

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
    """Turns what a user passes as data into samples on one device, checked once."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        check: BatchCheck,
        collate: Collate | None,
        class_labels: bool,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.check = check
        self.collate = collate
        self.class_labels = class_labels

    def to_samples(self, data: Any, name: str) -> Samples:
        """Return `data` as samples: an (x, y) pair, a map-style dataset, or samples already.

        `name` says in error messages whose data they are. Raise InputError if `data` is anything
        else, is empty, or does not suit the model or the loss.
        """
        if isinstance(data, TensorSamples | DatasetSamples | SubsetSamples | ConcatSamples):
            return data
        if is_pair(data):
            return self._pair_to_samples(data, name)
        if isinstance(data, tuple):
            raise InputError(f"{name}: expected an (x, y) pair, not a tuple of {len(data)}.")
        if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
            if len(data) == 0:
                raise InputError(
                    f"{name} has no data; leave it out or give it at least one sample."
                )
            return DatasetSamples(data, self.collate, self.to_tensors, self.check, name)
        hint = "; pass loader.dataset" if isinstance(data, torch.utils.data.DataLoader) else ""
        raise InputError(
            f"{name}: expected an (x, y) pair or a dataset with __len__ and __getitem__, "
            f"not {type(data).__name__}{hint}."
        )

    def _pair_to_samples(self, pair: Sequence[Any], name: str) -> TensorSamples:
        inputs, targets = self.to_tensors(*pair)
        if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
            raise InputError(
                f"{name}: {_length(inputs)} inputs but {_length(targets)} targets; "
                "x and y must have one row per sample."
            )
        if len(targets) == 0:
            raise InputError(f"{name} has no data; leave it out or give it at least one sample.")
        self.check(name, inputs, targets)
        return TensorSamples(inputs, targets)

    def to_inputs(self, inputs: Any) -> Tensor:
        """Return inputs without targets, as for a prediction, as one checked tensor."""
        tensor: Tensor = self._inputs_to_tensors(inputs)
        self.check("The data", tensor, None)
        return tensor

    def to_tensors(self, inputs: Any, targets: Any) -> Batch:
        """Return inputs and targets as tensors of the model's type on its device."""
        return self._inputs_to_tensors(inputs), self._targets_to_tensor(targets)

    def _inputs_to_tensors(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: self._inputs_to_tensors(v) for k, v in value.items()}
        if isinstance(value, tuple):
            return tuple(self._inputs_to_tensors(v) for v in value)
        tensor = _as_tensor(value).to(self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _targets_to_tensor(self, value: Any) -> Tensor:
        tensor = _as_tensor(value).to(self.device)
        if self.class_labels and not tensor.is_floating_point():
            return tensor.long()
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def to_clients(self, clients: Any, count: int | None) -> Clients:
        """Return the clients of a list of data sets, or of a function that loads client k.

        `count` is how many clients a function stands for; with a list it may be left out. Raise
        InputError if it is missing or wrong, or if `clients` is neither a list nor a function.
        """
        if callable(clients) and not hasattr(clients, "__len__"):
            if count is None or count < 1:
                raise InputError(
                    "clients is a function: also give their number, for example client_count=1000."
                )
            return LazyClients(lambda k: self.to_samples(clients(k), f"Client {k}"), count)
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
                f"client_count is {count} but the list holds {len(clients)} clients; "
                "leave client_count out."
            )
        return [self.to_samples(data, f"Client {k}") for k, data in enumerate(clients)]


def is_pair(data: Any) -> bool:
    """Return whether `data` is an (x, y) pair: any tuple of two, or a list of two arrays.

    A list of two tuples is not a pair but a small dataset.
    """
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
    """Return the adapter for a task's model, device and loss."""
    return DataAdapter(
        task.dtype, task.device, DataCheck(task), collate, task.objective.class_labels
    )


# Checks of data against the model and the loss


class DataCheck:
    """Raises InputError for batches that the task's model or loss cannot take.

    The model is run once for every new shape and type of inputs.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.output_shapes: dict[Any, torch.Size] = {}

    def __call__(self, name: str, inputs: Any, targets: Tensor | None) -> None:
        if (
            isinstance(inputs, Tensor)
            and inputs.is_floating_point()
            and not bool(torch.isfinite(inputs).all())
        ):
            raise InputError(f"{name}: the inputs hold NaN or infinity; clean them first.")
        kind = (inputs.shape[1:], inputs.dtype) if isinstance(inputs, Tensor) else type(inputs)
        if kind not in self.output_shapes:
            self.output_shapes[kind] = infer_output_shape(self.task, name, inputs)
        if targets is not None:
            check_targets(name, targets, self.output_shapes[kind], self.task.objective)


def infer_output_shape(task: Task, name: str, inputs: Any) -> torch.Size:
    """Return the shape of the model's output for the first of the inputs, as a batch of one.

    Inputs that are not one tensor are passed to the model as they are. Raise InputError, which
    begins with `name`, if the model cannot take the inputs or does not return a tensor.
    """
    task.model.eval()
    first = inputs[:1] if isinstance(inputs, Tensor) else inputs
    try:
        with torch.no_grad():
            outputs = task.model(first)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        reason = " ".join(str(error).split())
        raise InputError(
            f"{name}: the model cannot take inputs of shape {shape}: {reason}."
        ) from error
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"The model must return a tensor, not {type(outputs).__name__}; "
            "wrap it in a module that does."
        )
    return outputs.shape


def check_targets(
    name: str, targets: Tensor, output_shape: torch.Size, objective: Objective
) -> None:
    """Raise InputError, which begins with `name`, if the targets do not suit the loss.

    Targets must be finite. Class labels must also be whole numbers, one per output, and lie in the
    range of the model's outputs.
    """
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        raise InputError(f"{name}: the targets hold NaN or infinity; clean them first.")
    if not objective.class_labels:
        return
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise InputError(
            f"{name}: class labels must be whole numbers, not {targets.dtype}; use y.long()."
        )
    if targets.ndim != len(output_shape) - 1:
        raise InputError(
            f"{name}: labels of shape {tuple(targets.shape)} do not fit the model's outputs of "
            f"shape (n, {', '.join(map(str, output_shape[1:]))}); "
            "give one class number a sample: y.argmax(1) of one-hot labels."
        )
    num_classes = output_shape[1]
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < num_classes:
        wrong = int(targets.min()) if int(targets.min()) < 0 else int(targets.max())
        raise InputError(
            f"{name}: label {wrong} is out of range: the model has {num_classes} outputs, "
            f"labels 0 to {num_classes - 1}."
        )
