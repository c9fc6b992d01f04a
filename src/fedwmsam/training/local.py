"""The one local-training loop. It alone owns batches, clipping, weight decay and the step size."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwmsam.methods.base import Info, Method
from fedwmsam.methods.vectors import Vectors, clip, is_unsafe_to_overwrite
from fedwmsam.training.task import Samples, Task


@dataclass(frozen=True)
class LocalRules:
    """What every method shares in a local step.

    weight_decay_mode "objective" makes λ_w w part of the gradient, before any momentum mixes it; "sgd" subtracts it
    beside the clipped direction, as published code does, which momentum methods then amplify by 1/α.
    """

    weight_decay: float = 1e-3
    weight_decay_mode: str = "objective"
    clip_norm: float | None = 10.0


@dataclass(frozen=True)
class Step:
    """One mini-batch: which samples, and the seed of whatever its forward pass draws (dropout)."""

    index: Tensor
    seed: int


@dataclass(frozen=True)
class LocalResult:
    up: Vectors
    buffers: Vectors
    loss: float
    backprops: int


class CountedGradient:
    """The gradient function a method sees during one step; counts its calls."""

    def __init__(self, task: Task, samples: Samples, decay: float) -> None:
        self.task, self.samples, self.decay = task, samples, decay
        self.calls, self.losses = 0, torch.zeros((), dtype=task.dtype, device=task.device)

    def start(self, step: Step) -> None:
        self.batch, self.seed, self.first = (
            self.samples.batch(step.index, step.seed),
            step.seed,
            True,
        )

    def __call__(self, w: Tensor) -> Tensor:
        gradient, loss = self.task.gradient(w, self.batch, seed=self.seed, keep_buffers=self.first)
        if self.first:
            self.losses += loss
        self.calls, self.first = self.calls + 1, False
        return gradient.add_(w, alpha=self.decay) if self.decay else gradient

    def full(self, w: Tensor, steps: list[Step]) -> Tensor:
        """The gradient over the given batches together, weighted by their sizes; changes no buffer."""
        total, count = torch.zeros_like(w), 0
        for step in steps:
            batch = self.samples.batch(step.index, step.seed)
            gradient, _ = self.task.gradient(w, batch, seed=step.seed, keep_buffers=False)
            total.add_(gradient, alpha=len(step.index))
            count, self.calls = count + len(step.index), self.calls + 1
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
    epoch: int,
) -> LocalResult:
    """One client's round: B steps from down["w"]; `epoch` is how many of the steps make one pass over the data."""
    steps = list(steps)
    task.start_training(buffers)
    in_objective = rules.weight_decay_mode == "objective"
    grad = CountedGradient(task, samples, rules.weight_decay if in_objective else 0.0)
    decay = 0.0 if in_objective else rules.weight_decay

    w = down["w"]
    scratch = method.begin(down, lambda at: grad.full(at, steps[:epoch]), info)
    for step in steps:
        grad.start(step)
        v, scratch = method.direction(w, grad, down, scratch)
        if rules.clip_norm is not None:
            v = clip(v, rules.clip_norm)
        # Sums take the direction's memory, and so does the next point: fresh vectors push others out of the cache.
        room = None if is_unsafe_to_overwrite(v, {"w": w}, down, scratch) else v
        force = method.pull(w, down)
        if force is not None:
            v = room = torch.add(v, force, out=room)
        if decay:
            v = room = torch.add(v, w, alpha=decay, out=room)
        w = torch.sub(w, v, alpha=info.lr, out=room)

    up = method.uplink(w - down["w"], down, scratch, info)
    return LocalResult(up, task.buffers(), float(grad.losses) / len(steps), grad.calls)
