"""A model as one flat vector of its trainable parameters, with its loss and its gradient.

The vector holds each trainable tensor once (tied parameters are one, frozen ones stay in the
model). What is not trainable but changes in training, such as BatchNorm's running statistics, is
kept apart from it, as named buffers.
"""

import copy
import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwmsam.errors import InputError
from fedwmsam.methods.base import ParameterSlice
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.devices import seed_device, usable_device
from fedwmsam.training.inputs import compute_output, parts_of, take_rows
from fedwmsam.training.objectives import Objective, Predictions, check_loss, compute_metrics

ModelSource = nn.Module | Callable[[], nn.Module]
"""A model, or a function without arguments that returns a new one."""
Batch = tuple[Any, Tensor]
"""The inputs and the targets of some samples."""
EVALUATION_BATCH = 1000
"""Samples that are evaluated at a time."""


VIEWED_SIZE = 1 << 14
"""Entries of an average parameter from which on a view of it takes less time than a copy."""


class Samples(Protocol):
    """The data of one client, or a test set, from which batches are taken by index."""

    def __len__(self) -> int: ...
    @property
    def index_device(self) -> torch.device:
        """Return where indices are used; others are moved there with every batch."""
        ...

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        """Return the samples at these indices.

        With a seed they are for training: they may be augmented, at random by that seed.
        """
        ...


class Task:
    """A model and its objective: what local training and evaluation compute with.

    The model in it is working memory: weights are loaded into it before each computation. It is a
    copy, so that the user's model stays as it is.
    """

    def __init__(
        self,
        model: ModelSource,
        objective: Objective,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        keep_freed_memory()
        self.objective = objective
        self.device = usable_device(device)
        self.model = _copy_or_make_model(model, seed)
        check_trainable(self.model)
        self.model = self.model.to(self.device)
        # Parts that the user has put into evaluation mode, such as a frozen backbone, stay there. A
        # model that is in it as a whole was not put there on purpose: transformers returns it so.
        self._eval_modules = [m for m in self.model.modules() if not m.training]
        if not self.model.training:
            self._eval_modules = []
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.layout = _parameter_layout(self.model)
        if not self.layout:
            raise InputError(
                "The model has no trainable parameter; set requires_grad on those to train."
            )
        dtypes = {p.dtype for p in self._parameters}
        if len(dtypes) > 1:
            raise InputError(
                f"The trainable parameters mix types ({', '.join(map(str, dtypes))}); "
                "convert the model to one."
            )
        self.dtype = self._parameters[0].dtype
        # Parameters become views of one tensor, so that loading a weight vector is a single copy,
        # however many parameters there are.
        self._weights = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._view(self._weights)
        self._can_view: bool | None = None
        """Whether gradients are computed without a copy of the weights; None: not known yet."""
        self._buffer_owners = _buffer_owners(self.model)
        self.initial_weights = self._weights.clone()
        self.initial_buffers = self.copy_buffers()

    def __reduce__(self) -> tuple[Callable[..., "Task"], tuple[nn.Module, Objective]]:
        """Return how another process makes a task of its own, on its own device of the same kind.

        A plain copy would not do, since its parameters would no longer be views of one tensor.
        """
        self.set_training_mode()  # the copy must know which parts stay in evaluation mode
        make_task = partial(Task, device=self.device.type)
        return make_task, (_copy_on_host(self.model, self.device), self.objective)

    @property
    def parameter_count(self) -> int:
        """Return P, the number of trainable parameters."""
        return self._weights.numel()

    def compute_gradient(
        self,
        w: Tensor,
        batch: Batch,
        *,
        seed: int,
        update_buffers: bool,
        micro_batch: int | None = None,
        precision: str = "float32",
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient at w, in memory of its own, and the loss of one batch.

        `start_training` must be called before a client's first gradient. `seed` fixes the dropout
        masks, so that a second pass can repeat those of the first; `update_buffers=False` undoes
        what the pass does to BatchNorm's statistics. `micro_batch` samples pass through the model
        at a time, and their gradients are added up.
        """
        previous = None if update_buffers or not self._buffer_owners else self.copy_buffers()
        self._compute_at(w)
        self._seed(seed)
        count = len(batch[1])
        if micro_batch is None or micro_batch >= count:
            gradient, loss = self._backpropagate(batch, precision)
        else:
            gradient = torch.zeros_like(w)
            loss = torch.zeros((), dtype=self.dtype, device=self.device)
            for start in range(0, count, micro_batch):
                part = slice_batch(batch, slice(start, start + micro_batch))
                part_gradient, part_loss = self._backpropagate(part, precision)
                gradient.add_(part_gradient, alpha=len(part[1]) / count)
                loss += part_loss * (len(part[1]) / count)
        if self._can_view is None:
            self._can_view = self._gains_by_views() and torch.equal(self._weights, w)
        if previous is not None:
            self.load_buffers(previous)
        return gradient, loss

    def _compute_at(self, w: Tensor) -> None:
        """Let the model compute at w, without copying it if that is known to do no harm.

        The first weights are always copied. A model that has changed its weights in that pass gets
        copies for ever, because those of a method are not its own to change.
        """
        if self._can_view and w.is_contiguous() and w.dtype == self.dtype:
            self._view(w)
        else:
            self.load_weights(w)

    def _gains_by_views(self) -> bool:
        """Return whether making a view of each parameter takes less time than one copy of all."""
        return self.parameter_count >= VIEWED_SIZE * len(self._parameters)

    def _view(self, w: Tensor) -> None:
        """Make the parameters views of a weight vector."""
        self._viewed = w
        parts = torch.split(w, self._sizes)
        for parameter, slot, part in zip(self._parameters, self.layout, parts, strict=True):
            parameter.data = part.view(slot.shape)

    def _backpropagate(self, batch: Batch, precision: str) -> tuple[Tensor, Tensor]:
        with autocast(self.device, precision):
            loss = self.batch_loss(batch)
        check_loss(loss)
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients]), loss.detach()

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch with the loaded weights: the model's own, if it has one."""
        inputs, targets = batch
        output = compute_output(self.model, inputs)
        return self.objective.loss(output.values, targets) if output.loss is None else output.loss

    @property
    def has_batch_norm(self) -> bool:
        """Return whether a layer of the model normalises by the statistics of its batch."""
        return any(isinstance(module, _BatchNorm) for module in self.model.modules())

    def can_train_on(self, batch: Batch) -> bool:
        """Return whether the model computes outputs for a batch in training mode."""
        buffers = self.copy_buffers()
        try:
            self.start_training(buffers)
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                compute_output(self.model, batch[0])
        except ValueError:
            return False
        finally:
            self.load_buffers(buffers)
        return True

    def compute_outputs(self, w: Tensor, buffers: Vectors, samples: Samples) -> Predictions:
        """Load the weights and buffers, and return the outputs and targets of all samples.

        They are those of evaluation mode.
        """
        self.start_evaluation(w, buffers)
        batches = evaluation_batches(samples)
        return self.join_predictions(self.predict_batch(samples, index) for index in batches)

    def start_evaluation(self, w: Tensor, buffers: Vectors) -> None:
        """Load the weights and buffers, and switch to evaluation mode."""
        self.load_weights(w)
        self.load_buffers(buffers)
        self.model.eval()

    def predict_batch(self, samples: Samples, index: Tensor) -> Predictions:
        """Return the outputs and targets of the samples at these indices for the loaded weights.

        `start_evaluation` must be called before the first batch.
        """
        with torch.no_grad():
            inputs, targets = samples.batch(index)
            output = compute_output(self.model, inputs)
            loss = None if output.loss is None else float(output.loss)
            if loss is not None:
                targets = self.objective.align_targets(output.values, targets, loss)
        # The order in which a metric adds up may follow the order in memory, which does not travel
        # between processes.
        return Predictions(output.values.contiguous(), targets.contiguous(), loss)

    def join_predictions(self, batches: Iterable[Predictions]) -> Predictions:
        """Return the predictions of several batches as one."""
        batches = list(batches)
        losses = [
            (batch.loss, self.objective.count(batch.targets))
            for batch in batches
            if batch.loss is not None
        ]
        outputs = [batch.outputs for batch in batches]
        targets = [batch.targets for batch in batches]
        return Predictions(*join_batches(outputs, targets), weighted_mean(losses))

    def predict(self, inputs: Any, batch_size: int = EVALUATION_BATCH) -> Tensor:
        """Return the outputs of inputs for the loaded weights, in evaluation mode."""
        self.model.eval()
        count = len(next(parts_of(inputs)))
        outputs = []
        with torch.no_grad():
            for start in range(0, count, batch_size):
                batch = take_rows(inputs, slice(start, start + batch_size))
                outputs.append(compute_output(self.model, batch).values)
        return torch.cat(outputs)

    def evaluate(self, w: Tensor, buffers: Vectors, samples: Samples) -> dict[str, float]:
        """Load the weights and buffers, and return the loss and all metrics over the samples."""
        return compute_metrics(self.objective, self.compute_outputs(w, buffers, samples))

    def load_weights(self, w: Tensor) -> None:
        """Copy a weight vector into the model."""
        if self._viewed is not self._weights:
            self._view(self._weights)
        self._weights.copy_(w)

    def start_training(self, buffers: Vectors) -> None:
        """Load the buffers and switch to training mode; due before a client's first gradient."""
        self.load_buffers(buffers)
        self.set_training_mode()

    def set_training_mode(self) -> None:
        """Switch to training mode all parts but those that the user left in evaluation mode."""
        self.model.train()
        for module in self._eval_modules:
            module.training = False

    @contextmanager
    def in_evaluation_mode(self) -> Iterator[None]:
        """Switch to evaluation mode for the block; afterwards each part is in the mode it was in.

        For an output in between, such as one while a client's training reads its next batch.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            yield
        finally:
            for module, is_training in modes:
                module.training = is_training

    def load_buffers(self, buffers: Vectors) -> None:
        """Copy buffers, by their names, into the model."""
        for name, value in buffers.items():
            module, attribute = self._buffer_owners[name]
            getattr(module, attribute).copy_(value)

    def copy_buffers(self) -> Vectors:
        """Return a copy of the model's buffers."""
        return {
            name: getattr(module, attribute).detach().clone()
            for name, (module, attribute) in self._buffer_owners.items()
        }

    def copy_frozen(self) -> Vectors:
        """Return a copy of the parameters that are not trained."""
        return {
            name: p.detach().clone()
            for name, p in self.model.named_parameters()
            if not p.requires_grad
        }

    def load_frozen(self, values: Vectors) -> None:
        """Copy the values of the parameters that are not trained into the model."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if not parameter.requires_grad:
                    parameter.copy_(values[name])

    def trained_part(self, state: Vectors) -> Vectors:
        """Return the entries of a state_dict that travel: trained parameters and buffers."""
        parameters = self.model.named_parameters(remove_duplicate=False)
        frozen = {name for name, parameter in parameters if not parameter.requires_grad}
        return {name: value for name, value in state.items() if name not in frozen}

    def state_dict(self, w: Tensor, buffers: Vectors) -> Vectors:
        """Load the weights and buffers, and return a state_dict that the user's model accepts."""
        self.load_weights(w)
        self.load_buffers(buffers)
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def unpack_state_dict(self, state: Mapping[str, Any]) -> tuple[Tensor, Vectors]:
        """Return the weight vector and the buffers of a state_dict.

        Its frozen parameters are loaded into the model. Raise InputError if it does not fit the
        model, or if it holds NaN or infinity.
        """
        values = {
            name: torch.as_tensor(value).detach().to(self.device) for name, value in state.items()
        }
        expected = self.model.state_dict()
        for name in (*expected, *values):
            is_known = name in expected and name in values
            if not is_known or not is_like(values[name], expected[name]):
                raise InputError(
                    f"The given weights do not fit the model at {name!r}: "
                    "names and shapes must be its own."
                )
        for name, value in values.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise InputError(f"The given weights hold NaN or infinity at {name!r}.")
        self.load_frozen(values)
        w = torch.cat([values[slot.name].to(self.dtype).reshape(-1) for slot in self.layout])
        return w, {name: values[name].clone() for name in self._buffer_owners}

    def _seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            seed_device(self.device, seed)


def is_like(value: Tensor, example: Tensor) -> bool:
    """Return whether a tensor can take the place of another: same shape, and real if that is."""
    return value.shape == example.shape and value.is_complex() == example.is_complex()


def check_trainable(model: nn.Module) -> None:
    """Raise InputError for models whose weights or gradients are no plain float tensors."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise InputError(
                f"The parameter {name!r} has no shape yet: the model has lazy modules; "
                "run a batch through it first."
            )
        if parameter.is_meta:
            raise InputError(
                f"The parameter {name!r} is on the meta device, without values; "
                "make the model on the CPU."
            )
        if parameter.requires_grad and parameter.dtype == torch.float16:
            raise InputError(
                f"The parameter {name!r} is float16, which loses small steps; convert "
                "the model with .float() and use precision='bf16'."
            )
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise InputError(
                f"The module {name!r} has sparse gradients; make it with sparse=False."
            )


def slice_batch(batch: Batch, rows: slice) -> Batch:
    """Return these rows of a batch, whatever the structure of its inputs."""
    inputs, targets = batch
    return take_rows(inputs, rows), targets[rows]


def evaluation_batches(samples: Samples) -> tuple[Tensor, ...]:
    """Return the indices of the batches in which samples are evaluated.

    They are the same wherever that is done: how a model rounds depends on its batch.
    """
    return torch.split(torch.arange(len(samples)), EVALUATION_BATCH)


def join_batches(outputs: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return outputs and targets of several batches as one of each.

    Batches of sequences may differ in length. Each position is a sample of its own then.
    """
    if len({output.shape[1:] for output in outputs}) > 1 and outputs[0].ndim > 2:
        outputs = [output.movedim(1, -1).flatten(0, -2) for output in outputs]
        targets = [target.flatten() for target in targets]
    return torch.cat(outputs), torch.cat(targets)


def weighted_mean(values: list[tuple[float, int]]) -> float | None:
    """Return the mean of values with their weights, and None if there are none."""
    total = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / total if total else None


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context in which a model computes in this precision; weights stay as they are."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


KEPT_BYTES = 512 << 20
"""Bytes of freed memory that the process keeps instead of returning them to the system."""


@cache
def keep_freed_memory() -> None:
    """Let the C library keep memory that is freed; this changes no result.

    By default it returns large blocks to the system, and a local step frees several vectors as
    large as the model. Getting their pages again took a fifth of FedWMSAM's local time on the MLP
    and four fifths of its time at the server with ResNet-18.
    """
    # The codes of glibc's mallopt, which other C libraries lack; Windows has not one for all.
    trim_threshold = -1
    mmap_max = -4
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(mmap_max, 0)  # large blocks come from the heap, too
        library.mallopt(trim_threshold, KEPT_BYTES)


def _copy_on_host(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of the model on the CPU, for which an accelerator needs no further memory."""
    copies: dict[int, Any] = {}
    if device.type != "cpu":
        for parameter in model.parameters():
            on_host = parameter.detach().cpu()
            copies[id(parameter)] = nn.Parameter(on_host, parameter.requires_grad)
        copies |= {id(buffer): buffer.detach().cpu() for buffer in model.buffers()}
    return copy.deepcopy(model, copies)


def _copy_or_make_model(model: ModelSource, seed: int) -> nn.Module:
    """Return a copy of a module, or the new module of a function that makes one.

    The random initial weights of a new one depend on the seed alone. Raise InputError if there is
    no module.
    """
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not callable(model):
        raise InputError(_no_module_message(model))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        new_model = model()
    if not isinstance(new_model, nn.Module):
        raise InputError(_no_module_message(new_model))
    return new_model


def _no_module_message(value: object) -> str:
    return (
        "The model must be an nn.Module or a function that returns one, "
        f"not {type(value).__name__}."
    )


def _parameter_layout(model: nn.Module) -> tuple[ParameterSlice, ...]:
    """Return the place of each trainable parameter in the flat vector, in the model's order."""
    slots = []
    start = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            end = start + parameter.numel()
            slots.append(ParameterSlice(name, slice(start, end), parameter.shape))
            start = end
    return tuple(slots)


def _buffer_owners(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the module and the attribute of each buffer that is part of the model's state.

    The buffers themselves would not do: a module may replace its tensor while it trains.
    """
    owners = {}
    for prefix, module in model.named_modules():
        for name, _ in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                owners[f"{prefix}.{name}".lstrip(".")] = (module, name)
    return owners


@contextmanager
def deterministic_torch() -> Iterator[None]:
    """Compute with one thread inside the block, so that sums always add up in the same order.

    The caller's number of threads and random state are restored afterwards.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
