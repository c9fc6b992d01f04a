"""The adapter of the data that users pass to `fit`.

Users pass (x, y) pairs of arrays or tensors, map-style datasets, or a function that loads the data
of a client. `DataAdapter` turns each of them into samples on one device. `DataCheck` raises
InputError, before training starts, for data that the model or the loss cannot take.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedwmsam.data.clients import (
    Clients,
    Collate,
    ConcatSamples,
    DatasetSamples,
    LazyClients,
    NamedClients,
    SubsetSamples,
    TensorSamples,
    split_targets,
)
from fedwmsam.data.frames import FrameReader, has_frame, is_frame
from fedwmsam.errors import InputError, printable
from fedwmsam.training.inputs import (
    LABELS,
    compute_output,
    describe,
    map_tensors,
    parts_of,
    take_rows,
)
from fedwmsam.training.objectives import Objective
from fedwmsam.training.task import Batch, Samples, Task


class DataAdapter:
    """Turns what a user passes as data into samples on one device, checked once."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        check: "DataCheck",
        collate: Collate | None,
        objective: Objective,
        target: str | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.check = check
        self.collate = collate
        self.objective = objective
        self.frames = FrameReader(target)

    def to_samples(self, data: Any, name: str) -> Samples:
        """Return `data` as samples.

        Data are an (x, y) pair, a mapping with `labels`, a table with a target column, a map-style
        dataset, a DataLoader, or samples already. `name` says in error messages whose data they
        are. Raise InputError if `data` is anything else, is empty, or does not suit the model or
        the loss.
        """
        if isinstance(data, TensorSamples | DatasetSamples | SubsetSamples | ConcatSamples):
            return data
        if is_frame(data):
            return self._pair_to_samples(self.frames.split(data, name), name)
        if is_pair(data) or isinstance(data, Mapping):
            inputs, targets = split_targets(data, name)
            if is_frame(inputs):
                inputs = self.frames.hold_inputs(inputs, name)
            return self._pair_to_samples((inputs, targets), name)
        if isinstance(data, tuple):
            raise InputError(f"{name}: expected an (x, y) pair, not a tuple of {len(data)}.")
        if isinstance(data, DataLoader):
            return self._dataset_to_samples(data.dataset, self.collate or data.collate_fn, name)
        return self._dataset_to_samples(data, self.collate, name)

    def _dataset_to_samples(
        self, dataset: Any, collate: Collate | None, name: str
    ) -> DatasetSamples:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise InputError(
                f"{name}: expected an (x, y) pair, a mapping with 'labels' or a dataset with "
                f"__len__ and __getitem__, not {type(dataset).__name__}."
            )
        if len(dataset) == 0:
            raise InputError(f"{name} has no data; leave it out or give it at least one sample.")
        return DatasetSamples(dataset, collate, self.to_batch, name)

    def _pair_to_samples(self, pair: tuple[Any, Any], name: str) -> TensorSamples:
        inputs, targets = self.to_tensors(*pair, name)
        if len(targets) == 0:
            raise InputError(f"{name} has no data; leave it out or give it at least one sample.")
        self.check(name, inputs, targets)
        return TensorSamples(*self.to_device(inputs, targets))

    def to_inputs(self, inputs: Any) -> Any:
        """Return inputs without targets, as for a prediction, as checked tensors."""
        if is_frame(inputs):
            inputs = self.frames.read_inputs(inputs, "The data")
        tensors = self._inputs_to_tensors(inputs, "The data")
        self.check("The data", tensors, None)
        return map_tensors(tensors, lambda part: part.to(self.device))

    def to_batch(self, inputs: Any, targets: Any, name: str) -> Batch:
        """Return inputs and targets as checked tensors of the model's type on its device."""
        tensors = self.to_tensors(inputs, targets, name)
        self.check(name, *tensors)
        return self.to_device(*tensors)

    def to_device(self, inputs: Any, targets: Tensor) -> Batch:
        """Return tensors on the model's device.

        They are moved last: each answer of a check would have to be fetched from the device, and
        not every device has numbers of 64 bits.
        """
        return map_tensors(inputs, lambda part: part.to(self.device)), targets.to(self.device)

    def to_tensors(self, inputs: Any, targets: Any, name: str) -> Batch:
        """Return inputs and targets as tensors of the model's type, where they are.

        Inputs lose their labels where the loss is the user's: a model that gets them computes its
        own. Raise InputError if they are not numbers, or if there is not one row of each for a
        sample.
        """
        if self.objective.replaces_models_loss and isinstance(inputs, Mapping):
            inputs = {key: part for key, part in inputs.items() if key != LABELS}
        inputs = self._inputs_to_tensors(inputs, name)
        targets = self._targets_to_tensor(targets, name)
        for part in parts_of(inputs):
            if part.ndim == 0 or targets.ndim == 0 or len(part) != len(targets):
                raise InputError(
                    f"{name}: {_length(part)} inputs but {_length(targets)} targets; "
                    "x and y must have one row per sample."
                )
        return inputs, targets

    def _inputs_to_tensors(self, inputs: Any, name: str) -> Any:
        if isinstance(inputs, list) and any(isinstance(part, Tensor) for part in inputs):
            inputs = tuple(inputs)  # as PyTorch collates samples whose inputs are tuples
        return map_tensors(inputs, lambda part: self._to_tensor(part, f"{name}: the inputs"))

    def _to_tensor(self, value: Any, name: str) -> Tensor:
        tensor = _as_tensor(value, name)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _targets_to_tensor(self, value: Any, name: str) -> Tensor:
        if isinstance(value, tuple | Mapping):
            raise InputError(
                f"{name}: the targets are a {type(value).__name__}; put them into one array, and "
                "take them apart in a loss of your own."
            )
        tensor = self._to_tensor(value, f"{name}: the targets")
        is_class = self.objective.class_labels and not tensor.is_floating_point()
        return tensor.long() if is_class else tensor

    def to_clients(self, clients: Any, count: int | None) -> Clients:
        """Return the clients of a list, or of a function that loads client k.

        A mapping from names to data sets is a list of clients with names. `count` is how many
        clients a function stands for; with a list it may be left out. Raise InputError if it is
        missing or wrong, or if `clients` is none of these.
        """
        if callable(clients) and not hasattr(clients, "__len__"):
            if count is None or count < 1:
                raise InputError(
                    "clients is a function: also give their number, for example client_count=1000."
                )
            if self.frames.target is not None:
                self.to_samples(clients(0), "Client 0")
            return LazyClients(lambda k: self._load_client(clients, k), count)
        if isinstance(clients, tuple | list | Mapping) and len(clients) == 0:
            raise InputError("There are no clients; give at least one.")
        if isinstance(clients, Mapping):
            return self._named_clients(clients, count)
        if is_pair(clients) and isinstance(clients[0], Tensor | np.ndarray):
            raise InputError("clients is one (x, y) pair; give a list with a pair for each client.")
        if not isinstance(clients, Sequence):
            raise InputError(
                "clients must be a list of data sets, a mapping from names to them, or a function, "
                f"not {type(clients).__name__}."
            )
        check_count(count, len(clients))
        return [self.to_samples(data, f"Client {k}") for k, data in enumerate(clients)]

    def _load_client(self, clients: Callable[[int], Any], k: int) -> Samples:
        """Return client k, whose columns, if it has names for them, are taken as client 0's.

        Which client is sampled first depends on the worker and on where a run goes on.
        """
        data = clients(k)
        if k and self.frames.names is None and has_frame(data):
            self.to_samples(clients(0), "Client 0")
        return self.to_samples(data, f"Client {k}")

    def _named_clients(self, clients: Mapping[Any, Any], count: int | None) -> NamedClients:
        check_count(count, len(clients))
        if LABELS in clients:
            raise InputError(
                f"clients is one mapping with {LABELS!r}; give a list with one for each client."
            )
        names = [str(name) for name in clients]
        if len(set(names)) < len(names):
            raise InputError("Two clients have the same name as text; give each its own.")
        samples = [self.to_samples(data, f"Client {str(k)!r}") for k, data in clients.items()]
        return NamedClients(samples, names)


def check_count(count: int | None, clients: int) -> None:
    """Raise InputError if there are not as many clients as the user says."""
    if count is not None and count != clients:
        raise InputError(
            f"client_count is {count} but there are {clients} clients; leave client_count out."
        )


def is_pair(data: Any) -> bool:
    """Return whether `data` is an (x, y) pair: any tuple of two, or a list of two arrays.

    A list of two tuples is not a pair but a small dataset.
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return isinstance(data, tuple) or all(isinstance(part, Tensor | np.ndarray) for part in data)


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        with warnings.catch_warnings():
            # Columns of pandas and mapped files are read-only; nothing here writes into data.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.as_tensor(np.ascontiguousarray(value))
    except (TypeError, ValueError) as error:
        shown = printable(repr(value), 80)
        raise InputError(
            f"{name} must be numbers in arrays or tensors, not {shown}: {error}."
        ) from error


def _length(value: Any) -> str:
    return str(len(value)) if getattr(value, "ndim", 0) else "a single number of"


def make_data_adapter(
    task: Task, collate: Collate | None = None, target: str | None = None
) -> DataAdapter:
    """Return the adapter for a task's model, device and loss.

    `target` is the column to predict, where data are tables. Raise InputError if `collate` is no
    function.
    """
    if collate is not None and not callable(collate):
        raise InputError(f"collate must be a function of a list of samples, not {collate!r}.")
    return DataAdapter(task.dtype, task.device, DataCheck(task), collate, task.objective, target)


# Checks of data against the model and the loss


class DataCheck:
    """Raises InputError for batches that the task's model or loss cannot take.

    The model is run once for every new shape and type of inputs.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.output_shapes: dict[Any, torch.Size] = {}

    def __call__(self, name: str, inputs: Any, targets: Tensor | None) -> None:
        for part in parts_of(inputs):
            if part.is_floating_point() and not bool(torch.isfinite(part).all()):
                raise InputError(f"{name}: the inputs hold NaN or infinity; clean them first.")
        kind = tuple((part.shape[1:], part.dtype) for part in parts_of(inputs))
        if kind not in self.output_shapes:
            self.output_shapes[kind] = infer_output_shape(self.task, name, inputs)
        if targets is not None:
            check_targets(name, targets, self.output_shapes[kind], self.task.objective)


def infer_output_shape(task: Task, name: str, inputs: Any) -> torch.Size:
    """Return the shape of the model's output for the first of the inputs, as a batch of one.

    Raise InputError, which begins with `name`, if the model cannot take the inputs or does not
    return a tensor.
    """
    first = map_tensors(take_rows(inputs, slice(1)), lambda part: part.to(task.device))
    try:
        with task.in_evaluation_mode(), torch.no_grad():
            return compute_output(task.model, first).values.shape
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())
        raise InputError(
            f"{name}: the model cannot take inputs of shape {describe(first)}: {reason}."
        ) from error


def check_targets(
    name: str, targets: Tensor, output_shape: torch.Size, objective: Objective
) -> None:
    """Raise InputError, which begins with `name`, if the targets do not suit the loss.

    Targets must be finite. Class labels must also be whole numbers, one for each place of the
    outputs but the class axis, which is the second, and lie in the range of the classes or be the
    number that is to be ignored.
    """
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        raise InputError(f"{name}: the targets hold NaN or infinity; clean them first.")
    if not objective.class_labels:
        return
    is_probability = targets.is_floating_point() and targets.shape[1:] == output_shape[1:]
    if is_probability and isinstance(objective.loss, nn.CrossEntropyLoss):
        return
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise InputError(
            f"{name}: class labels must be whole numbers, not {targets.dtype}; use y.long()."
        )
    if len(output_shape) < 2 or targets.shape[1:] != output_shape[2:]:
        raise InputError(
            f"{name}: labels of shape {tuple(targets.shape)} do not fit the model's outputs of "
            f"shape (n, {', '.join(map(str, output_shape[1:]))}); "
            f"{label_advice(targets, output_shape)}."
        )
    num_classes = output_shape[1]
    labels = targets[targets != objective.ignore_index]
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise InputError(
            f"{name}: label {wrong} is out of range: the model has {num_classes} outputs, "
            f"labels 0 to {num_classes - 1}."
        )


def label_advice(targets: Tensor, output_shape: torch.Size) -> str:
    """Return what to do about class labels whose shape does not fit the outputs."""
    if targets.ndim > 1 and targets.shape[1:] == output_shape[1:-1]:
        return (
            "the classes must be on the second axis, as for PyTorch's cross-entropy: "
            "return outputs.movedim(-1, 1)"
        )
    if targets.ndim == len(output_shape):
        return "give one class number a sample: y.argmax(1) of one-hot labels"
    return f"expected labels of shape (n{''.join(f', {size}' for size in output_shape[2:])})"
