"""The one local-training loop, the same for every method.

It alone decides on batches, clipping, weight decay and the step size; a method contributes the
direction of each step.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwmsam.methods.base import Info, Method
from fedwmsam.methods.vectors import Vectors, clip, is_unsafe_to_overwrite
from fedwmsam.training.task import Samples, Task


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
    """

    def __init__(self, task: Task, samples: Samples, decay: float) -> None:
        self.task = task
        self.samples = samples
        self.decay = decay
        self.calls = 0
        self.losses = torch.zeros((), dtype=task.dtype, device=task.device)

    def load_batch(self, step: Step) -> None:
        """Load the mini-batch of a step; the calls that follow are on this batch."""
        self.batch = self.samples.batch(step.index, step.seed)
        self.seed = step.seed
        self.is_first_call = True

    def __call__(self, w: Tensor) -> Tensor:
        gradient, loss = self.task.compute_gradient(
            w, self.batch, seed=self.seed, update_buffers=self.is_first_call
        )
        if self.is_first_call:
            self.losses += loss
            self.is_first_call = False
        self.calls += 1
        return gradient.add_(w, alpha=self.decay) if self.decay else gradient

    def full_gradient(self, w: Tensor, steps: list[Step]) -> Tensor:
        """Return the gradient over the batches of all steps together, weighted by their sizes.

        The model's buffers stay as they are.
        """
        total = torch.zeros_like(w)
        count = 0
        for step in steps:
            batch = self.samples.batch(step.index, step.seed)
            gradient, _ = self.task.compute_gradient(w, batch, seed=step.seed, update_buffers=False)
            total.add_(gradient, alpha=len(step.index))
            count += len(step.index)
            self.calls += 1
        return total.div_(count).add_(w, alpha=self.decay)


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
    steps = list(steps)
    task.start_training(buffers)
    decays_in_objective = rules.weight_decay_mode == "objective"
    grad = CountingGradient(task, samples, rules.weight_decay if decays_in_objective else 0.0)
    decay = 0.0 if decays_in_objective else rules.weight_decay

    w = down["w"]
    epoch = steps[:steps_per_epoch]
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
