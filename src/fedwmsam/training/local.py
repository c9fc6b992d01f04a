"""The one local-training loop, the same for every method.

It alone decides on batches, clipping, weight decay and the step size; a method contributes the
direction of each step.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedwmsam.methods.base import Info, Method
from fedwmsam.methods.vectors import Vectors, clip, is_unsafe_to_overwrite
from fedwmsam.training.optimizers import AdaptiveMoments, HeavyBall, Preconditioner
from fedwmsam.training.task import Batch, Samples, Task


@dataclass(frozen=True)
class LocalRules:
    """The rules of a local step that are the same for every method.

    With weight_decay_mode "objective" λ_w w is part of the gradient, before any momentum is mixed
    in. With "sgd" it is added to the direction after the clip, as published code does; a method
    that weighs the gradient by α then decays 1/α as much, in proportion to its gradient.
    """

    weight_decay: float = 1e-3
    weight_decay_mode: str = "objective"
    clip_norm: float | None = 10.0
    optimizer: str = "sgd"
    momentum: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    micro_batch: int | None = None
    """Samples that pass through the model at a time; None: the whole mini-batch."""
    precision: str = "float32"

    @property
    def decay_before(self) -> float:
        """Return the weight decay that is part of the gradient before the optimizer sees it."""
        is_inside = self.weight_decay_mode == "objective" and self.optimizer != "adamw"
        return self.weight_decay if is_inside else 0.0

    @property
    def decay_beside(self) -> float:
        """Return the weight decay that is added to what the optimizer makes of the gradient."""
        is_beside = self.weight_decay_mode == "objective" and self.optimizer == "adamw"
        return self.weight_decay if is_beside else 0.0

    @property
    def decay_after(self) -> float:
        """Return the weight decay that is added to the direction after the clip."""
        return self.weight_decay if self.weight_decay_mode == "sgd" else 0.0

    def make_preconditioner(self) -> Preconditioner | None:
        """Return the client's optimizer with a fresh state; None for plain SGD, which has none."""
        if self.optimizer in ("adam", "adamw"):
            return AdaptiveMoments(self.adam_beta1, self.adam_beta2, self.adam_epsilon)
        if self.momentum:
            return HeavyBall(self.momentum, nesterov=self.optimizer == "nesterov")
        return None


@dataclass(frozen=True)
class Step:
    """One local step on one mini-batch."""

    index: Tensor
    """The indices of its samples among those of the client."""
    seed: int
    """The seed of everything random in it: augmentation and dropout."""


@dataclass(frozen=True)
class LocalResult:
    """The result of a client's round: its upload and buffers, mean loss and number of backprops."""

    up: Vectors
    buffers: Vectors
    loss: float
    backprops: int


class CountingGradient:
    """The gradient function that a method is given in each local step; it counts its calls.

    The loss of a step is that of the first call, and only that call updates the model's buffers.
    The last call of a step is what the client's optimizer preconditions; `calls_per_step` says
    which one that is.
    """

    def __init__(
        self, task: Task, samples: Samples, rules: LocalRules, calls_per_step: int
    ) -> None:
        self.task = task
        self.samples = samples
        self.rules = rules
        self.decay = rules.decay_before
        self.calls_per_step = calls_per_step
        self.precondition = rules.make_preconditioner()
        self.calls = 0
        self.losses = torch.zeros((), dtype=task.dtype, device=task.device)

    def load_batch(self, step: Step) -> None:
        """Load the mini-batch of a step; the calls that follow are on this batch."""
        self.batch = self.samples.batch(step.index, step.seed)
        self.seed = step.seed
        self.calls_in_step = 0

    def __call__(self, w: Tensor) -> Tensor:
        gradient, loss = self.batch_gradient(
            w, self.batch, self.seed, update_buffers=self.calls_in_step == 0
        )
        if self.calls_in_step == 0:
            self.losses += loss
        self.calls_in_step += 1
        if self.decay:
            gradient.add_(w, alpha=self.decay)
        if self.precondition and self.calls_in_step == self.calls_per_step:
            gradient = self.precondition(gradient)
            if self.rules.decay_beside:
                gradient.add_(w, alpha=self.rules.decay_beside)
        return gradient

    def batch_gradient(
        self, w: Tensor, batch: Batch, seed: int, *, update_buffers: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient and the loss of a mini-batch, and count the call."""
        self.calls += 1
        return self.task.compute_gradient(
            w,
            batch,
            seed=seed,
            update_buffers=update_buffers,
            micro_batch=self.rules.micro_batch,
            precision=self.rules.precision,
        )

    def full_gradient(self, w: Tensor, steps: list[Step]) -> Tensor:
        """Return the gradient over the batches of all steps together, weighted by their sizes.

        The model's buffers stay as they are.
        """
        total = torch.zeros_like(w)
        count = 0
        for step in steps:
            batch = self.samples.batch(step.index, step.seed)
            gradient, _ = self.batch_gradient(w, batch, step.seed, update_buffers=False)
            total.add_(gradient, alpha=len(step.index))
            count += len(step.index)
        return total.div_(count).add_(w, alpha=self.decay)


def full_pass(steps: list[Step], steps_per_epoch: int, samples: int) -> list[Step]:
    """Return steps that together have every sample once.

    These are the steps of the first epoch, or batches in the order of the data where the client
    takes fewer steps than an epoch has, or leaves out samples in it.
    """
    epoch = steps[:steps_per_epoch]
    if sum(len(step.index) for step in epoch) == samples:
        return epoch
    first = steps[0].index
    batches = torch.split(torch.arange(samples, device=first.device), len(first))
    return [Step(batch, steps[0].seed) for batch in batches]


def move_indices(steps: list[Step], device: torch.device) -> list[Step]:
    """Return the steps with their indices on the device, moved there all at once."""
    if device.type == "cpu":
        return steps
    sizes = [len(step.index) for step in steps]
    indices = torch.split(torch.cat([step.index for step in steps]).to(device), sizes)
    return [replace(step, index=index) for step, index in zip(steps, indices, strict=True)]


def train_locally(
    task: Task,
    method: Method,
    down: Vectors,
    buffers: Vectors,
    samples: Samples,
    steps: Iterable[Step],
    info: Info,
    rules: LocalRules,
    steps_per_epoch: int,
) -> LocalResult:
    """Train one client for a round and return its upload.

    It takes all steps, starting at down["w"]; `steps_per_epoch` of them are one pass over the data.
    """
    steps = move_indices(list(steps), samples.index_device)
    task.start_training(buffers)
    grad = CountingGradient(task, samples, rules, method.cost.backprops)
    decay = rules.decay_after

    w = down["w"]
    epoch = full_pass(steps, steps_per_epoch, len(samples))
    scratch = method.begin(down, lambda at: grad.full_gradient(at, epoch), info)
    for step in steps:
        grad.load_batch(step)
        v, scratch = method.direction(w, grad, down, scratch)
        if rules.clip_norm is not None:
            v = clip(v, rules.clip_norm)
        # The sums and the next weights overwrite the direction: new vectors would push others out
        # of the cache.
        out = None if is_unsafe_to_overwrite(v, {"w": w}, down, scratch) else v
        proximal = method.pull(w, down)
        if proximal is not None:
            v = torch.add(v, proximal, out=out)
            out = v
        if decay:
            v = torch.add(v, w, alpha=decay, out=out)
            out = v
        w = torch.sub(w, v, alpha=info.lr, out=out)

    up = method.uplink(w - down["w"], down, scratch, info)
    mean_loss = float(grad.losses) / len(steps)
    return LocalResult(up, task.copy_buffers(), mean_loss, grad.calls)
