"""A model as one flat vector of its trainable parameters, its loss and its gradient.

The vector holds each trainable tensor once (tied parameters are one, frozen ones stay in the model). What is not
trainable but changes in training, such as BatchNorm's running statistics, travels as a separate bundle of buffers.
"""

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedwmsam.errors import InputError
from fedwmsam.methods.base import Slot
from fedwmsam.training.objectives import Objective, measure
from fedwmsam.training.vectors import Vectors

ModelSource = nn.Module | Callable[[], nn.Module]
Batch = tuple[Any, Tensor]


class Samples(Protocol):
    """One client's data, or a test set: batches by index."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor) -> Batch: ...


class Task:
    def __init__(self, model: ModelSource, objective: Objective, *, seed: int = 0, device: str = "cpu") -> None:
        self.objective = objective
        self.device = torch.device(device)
        self.model = _own_model(model, seed).to(self.device)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.layout = _layout(self.model)
        if not self.layout:
            raise InputError("The model has no trainable parameter; set requires_grad on those to train.")
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
        trained = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        self._buffers = {k: v for k, v in self.model.state_dict(keep_vars=True).items() if k not in trained}
        self.initial_weights = self._weights.clone()
        self.initial_buffers = self.buffers()

    @property
    def size(self) -> int:
        return self._weights.numel()

    def gradient(self, w: Tensor, batch: Batch, *, seed: int, keep_buffers: bool) -> tuple[Tensor, Tensor]:
        """Gradient and loss of one batch at w. `seed` fixes the dropout masks, so that a second pass can repeat the
        first one's; `keep_buffers=False` undoes what the pass does to BatchNorm's statistics."""
        before = None if keep_buffers or not self._buffers else self.buffers()
        self.load(w)
        self.model.train()
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
        self.load(w)
        self.load_buffers(buffers)
        return measure(self.objective, *self.outputs(samples))

    def load(self, w: Tensor) -> None:
        self._weights.copy_(w)

    def load_buffers(self, buffers: Vectors) -> None:
        for name, value in buffers.items():
            self._buffers[name].data.copy_(value)

    def buffers(self) -> Vectors:
        return {name: value.detach().clone() for name, value in self._buffers.items()}

    def state_dict(self, w: Tensor, buffers: Vectors) -> Vectors:
        """A copy that `load_state_dict` of the user's own model takes."""
        self.load(w)
        self.load_buffers(buffers)
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def flatten(self, state: Vectors) -> tuple[Tensor, Vectors]:
        """The weight vector and buffers of a state_dict (warm start, loading a result)."""
        ours = self.model.state_dict()
        wrong = [k for k in ours if k not in state or state[k].shape != ours[k].shape] + [
            k for k in state if k not in ours
        ]
        if wrong:
            raise InputError(
                f"The given weights do not fit the model at {wrong[0]!r}: names and shapes must be its own."
            )
        missing = [slot.name for slot in self.layout if slot.name not in state]
        assert not missing, missing
        w = torch.cat([state[slot.name].detach().to(self._weights).reshape(-1) for slot in self.layout])
        return w, {name: state[name].detach().to(self.device).clone() for name in self._buffers}

    def _seed(self, seed: int) -> None:
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)


def _own_model(model: ModelSource, seed: int) -> nn.Module:
    """A copy of a module, or a factory's new one whose random initial weights depend on the seed alone."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        made = model()
    if not isinstance(made, nn.Module):
        raise InputError(f"The model must be an nn.Module or a function that returns one, not {type(made).__name__}.")
    return made


def _layout(model: nn.Module) -> tuple[Slot, ...]:
    slots, start = [], 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            slots.append(Slot(name, slice(start, start + parameter.numel()), parameter.shape))
            start += parameter.numel()
    return tuple(slots)
