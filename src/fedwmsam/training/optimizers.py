"""The client's optimizer: what becomes of a mini-batch's gradient before the method uses it.

It stands between the gradient and the method. A step computes the fresh gradient g, the optimizer
turns it into P(g) (momentum, or Adam's division by the size of past gradients), and the method
mixes P(g) with its momentum, its control variates and its corrections. These are made of earlier
directions, so everything that is mixed has one unit, and every method runs with every optimizer.
Of a method with two backprops a step only the last one passes through it, the one that enters the
direction. For FedAvg this is exactly local SGD with momentum, Adam or AdamW, as in `torch.optim`.

The state is fresh in every round: clients keep nothing. Plain SGD has no state, and no step here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Preconditioner = Callable[[Tensor], Tensor]
"""A function from a gradient to what takes its place; it remembers those before in the round."""


@dataclass
class HeavyBall:
    """SGD with momentum: v ← μ v + g, and v in place of g; with Nesterov's form g + μ v."""

    momentum: float
    nesterov: bool = False
    velocity: Tensor | None = None

    def __call__(self, gradient: Tensor) -> Tensor:
        if self.velocity is None:
            self.velocity = gradient.clone()
        else:
            self.velocity.mul_(self.momentum).add_(gradient)
        if self.nesterov:
            return gradient.add_(self.velocity, alpha=self.momentum)
        return self.velocity.clone()


@dataclass
class AdaptiveMoments:
    """Adam: the mean of the gradients over the root of the mean of their squares, both unbiased."""

    beta1: float
    beta2: float
    epsilon: float
    step: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    square: Tensor = field(default_factory=lambda: torch.zeros(()))

    def __call__(self, gradient: Tensor) -> Tensor:
        if not self.step:
            self.mean = torch.zeros_like(gradient)
            self.square = torch.zeros_like(gradient)
        self.step += 1
        self.mean.lerp_(gradient, 1 - self.beta1)
        self.square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        mean_correction = 1 - self.beta1**self.step
        square_correction = 1 - self.beta2**self.step
        size = self.square.sqrt().div_(math.sqrt(square_correction)).add_(self.epsilon)
        return self.mean.div(size).div_(mean_correction)
