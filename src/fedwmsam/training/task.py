"""A model as one flat vector of its trainable parameters, its loss and its gradient.

The vector holds each trainable tensor once (tied parameters are one, frozen ones stay in the model). What is not
trainable but changes in training, such as BatchNorm's running statistics, travels as a separate bundle of buffers.
"""

import copy
import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedwmsam.errors import InputError
from fedwmsam.methods.base import ParameterSlice
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.objectives import Objective, compute_metrics

ModelSource = nn.Module | Callable[[], nn.Module]
Batch = tuple[Any, Tensor]


class Samples(Protocol):
    """One client's data, or a test set: batches by index."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        """These samples; a seed means training, where they may be augmented by what it keys."""
        ...


class Task:
    def __init__(
        self, model: ModelSource, objective: Objective, *, seed: int = 0, device: str = "cpu"
    ) -> None:
        keep_freed_memory()
        self.objective = objective
        self.device = usable_device(device)
        self.model = _own_model(model, seed).to(self.device)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.layout = _layout(self.model)
        if not self.layout:
            raise InputError(
                "The model has no trainable parameter; set requires_grad on those to train."
            )
        dtypes = {p.dtype for p in self._parameters}
        if len(dtypes) > 1:
            raise InputError(
                f"The trainable parameters mix types ({', '.join(map(str, dtypes))}); convert the model to one."
            )
        self.dtype = self._parameters[0].dtype
        # Parameters become views of one buffer: loading a weight vector is one copy, whatever the number of tensors.
        self._weights = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        for parameter, slot in zip(self._parameters, self.layout, strict=True):
            parameter.data = self._weights[slot.slice].view(slot.shape)
        # Each buffer's module, not its tensor: a module may replace the tensor while it trains.
        self._buffers = {
            f"{prefix}.{name}".lstrip("."): (module, name)
            for prefix, module in self.model.named_modules()
            for name, value in module.named_buffers(recurse=False)
            if name not in module._non_persistent_buffers_set
        }
        self.initial_weights = self._weights.clone()
        self.initial_buffers = self.buffers()

    def __reduce__(self) -> tuple[type["Task"], tuple[nn.Module, Objective]]:
        """Another process gets a task of its own: a copy's parameters are no longer views of one buffer."""
        assert self.device.type == "cpu", "workers compute on the CPU"
        return Task, (copy.deepcopy(self.model), self.objective)

    @property
    def size(self) -> int:
        return self._weights.numel()

    def gradient(
        self, w: Tensor, batch: Batch, *, seed: int, keep_buffers: bool
    ) -> tuple[Tensor, Tensor]:
        """Gradient, in memory of its own, and loss of one batch at w; `start_training` comes before the first. `seed`
        fixes the dropout masks, so that a second pass can repeat the first one's; `keep_buffers=False` undoes what
        the pass does to BatchNorm's statistics."""
        before = None if keep_buffers or not self._buffers else self.buffers()
        self.load(w)
        self._seed(seed)
        inputs, targets = batch
        loss = self.objective.loss(self.model(inputs), targets)
        pieces = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        if before is not None:
            self.load_buffers(before)
        return torch.cat([piece.reshape(-1) for piece in pieces]), loss.detach()

    def outputs(self, samples: Samples, batch_size: int = 1000) -> tuple[Tensor, Tensor]:
        """Outputs and targets of all samples for the loaded weights, in evaluation mode."""
        self.model.eval()
        results = []
        with torch.no_grad():
            for index in torch.split(torch.arange(len(samples)), batch_size):
                inputs, targets = samples.batch(index)
                results.append((self.model(inputs), targets))
        outputs, targets_ = zip(*results, strict=True)
        return torch.cat(outputs), torch.cat(targets_)

    def predict(self, inputs: Tensor, batch_size: int = 1000) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            return torch.cat([self.model(piece) for piece in torch.split(inputs, batch_size)])

    def evaluate(self, w: Tensor, buffers: Vectors, samples: Samples) -> dict[str, float]:
        return compute_metrics(self.objective, *self.outputs_of(w, buffers, samples))

    def outputs_of(self, w: Tensor, buffers: Vectors, samples: Samples) -> tuple[Tensor, Tensor]:
        self.load(w)
        self.load_buffers(buffers)
        return self.outputs(samples)

    def load(self, w: Tensor) -> None:
        self._weights.copy_(w)

    def start_training(self, buffers: Vectors) -> None:
        """Before a client's first `gradient`."""
        self.load_buffers(buffers)
        self.model.train()

    def load_buffers(self, buffers: Vectors) -> None:
        for name, value in buffers.items():
            module, attribute = self._buffers[name]
            getattr(module, attribute).copy_(value)

    def buffers(self) -> Vectors:
        return {
            name: getattr(module, attribute).detach().clone()
            for name, (module, attribute) in self._buffers.items()
        }

    def frozen(self) -> Vectors:
        """The parameters that are not trained."""
        return {
            name: p.detach().clone()
            for name, p in self.model.named_parameters()
            if not p.requires_grad
        }

    def load_frozen(self, values: Vectors) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if not parameter.requires_grad:
                    parameter.copy_(values[name])

    def state_dict(self, w: Tensor, buffers: Vectors) -> Vectors:
        """A copy that `load_state_dict` of the user's own model takes."""
        self.load(w)
        self.load_buffers(buffers)
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def adopt(self, state: Mapping[str, Any]) -> tuple[Tensor, Vectors]:
        """The weight vector and buffers of a state_dict; its frozen weights go into the model."""
        values = {
            name: torch.as_tensor(value).detach().to(self.device) for name, value in state.items()
        }
        ours = self.model.state_dict()
        wrong = [
            name for name in ours if name not in values or values[name].shape != ours[name].shape
        ]
        wrong += [name for name in values if name not in ours]
        if wrong:
            raise InputError(
                f"The given weights do not fit the model at {wrong[0]!r}: names and shapes must be its own."
            )
        unclean = [
            name
            for name, value in values.items()
            if value.is_floating_point() and not value.isfinite().all()
        ]
        if unclean:
            raise InputError(f"The given weights hold NaN or infinity at {unclean[0]!r}.")
        self.load_frozen(values)
        w = torch.cat([values[slot.name].to(self.dtype).reshape(-1) for slot in self.layout])
        return w, {name: values[name].clone() for name in self._buffers}

    def _seed(self, seed: int) -> None:
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)


KEPT = 512 << 20
"""Bytes of freed memory that are not given back."""


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what is freed. It gives large pieces back to the system, and a step frees several vectors
    as large as the model: fetching their pages anew took a fifth of FedWMSAM's local time on the MLP and four fifths of
    its time at the server with ResNet-18. Changes no number."""
    trim_threshold, mmap_max = -1, -4  # glibc's mallopt; others lack it
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(mmap_max, 0)  # large pieces come from the heap, too
        library.mallopt(trim_threshold, KEPT)


def usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise InputError(f"The device {name!r} cannot be used here; try 'cpu'.") from error
    return device


def _own_model(model: ModelSource, seed: int) -> nn.Module:
    """A copy of a module, or a factory's new one whose random initial weights depend on the seed alone."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not callable(model):
        raise InputError(
            f"The model must be an nn.Module or a function that returns one, not {type(model).__name__}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        made = model()
    if not isinstance(made, nn.Module):
        raise InputError(
            f"The model must be an nn.Module or a function that returns one, not {type(made).__name__}."
        )
    return made


def _layout(model: nn.Module) -> tuple[ParameterSlice, ...]:
    slots, start = [], 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            slots.append(
                ParameterSlice(name, slice(start, start + parameter.numel()), parameter.shape)
            )
            start += parameter.numel()
    return tuple(slots)


@contextmanager
def deterministic_torch() -> Iterator[None]:
    """One thread, so that sums always add in one order; the caller's thread count and random state come back after."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
