"""Looking over a client's shoulder: where a method asks for gradients during a local step, whatever the method.

A method is given a function that computes gradients. Noting the points it is called at says what the method did: the
last point minus the weights is its perturbation. Nothing of a method's mathematics is repeated here, so a method
somebody adds tomorrow is seen, too.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.engine.rounds import Federation, Job, Trainer, train_client
from fedwmsam.methods.base import Gradient, Info, Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import LocalResult


@dataclass(frozen=True)
class StepObservation:
    """One local step; its tensors are the step's own and change after it."""

    client: int
    step: int
    w: Tensor
    perturbation: Tensor
    """From w to the last point a gradient was taken at; zero for a method that does not perturb."""
    direction: Tensor
    """What the loop will clip and follow."""
    carried: Tensor
    """The part of the direction that does not come from this step's gradient: momentum, control variates, duals."""


StepObserver = Callable[[StepObservation], None]


@dataclass(frozen=True)
class ObservedMethod(Method):
    """A method that does what the inner one does, and shows some of its steps."""

    inner: Method
    see: StepObserver
    client: int
    steps: frozenset[int]
    done: list[None] = field(default_factory=list)
    """As long as the number of steps taken: the one thing here that changes."""

    name: ClassVar[str] = "watched"

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return self.inner.begin(down, full_gradient, info)

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        step = len(self.done)
        self.done.append(None)
        if step not in self.steps:
            return self.inner.direction(w, grad, down, scratch)
        perturbation = torch.zeros_like(w)

        def noting(at: Tensor) -> Tensor:
            torch.sub(at, w, out=perturbation)
            return grad(at)

        # Directions are affine in the gradients they ask for: with zeros what is left is what was carried along.
        carried, _ = self.inner.direction(w, torch.zeros_like, down, scratch)
        v, scratch = self.inner.direction(w, noting, down, scratch)
        self.see(StepObservation(self.client, step, w, perturbation, v, carried))
        return v, scratch

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        return self.inner.pull(w, down)

    def uplink(self, delta: Tensor, down: Vectors, scratch: Vectors, info: Info) -> Vectors:
        return self.inner.uplink(delta, down, scratch, info)


STEP_POSITIONS = ("first", "middle", "last")


def step_positions(steps: int) -> dict[int, str]:
    """The steps that are looked at, by number: the first, the one half-way and the last."""
    return {(steps - 1) // 2: "middle", steps - 1: "last", 0: "first"}


def make_observing_trainer(see: StepObserver, chosen: Container[int]) -> Trainer:
    """Trains a cohort in this process, with the same numbers as ever, and shows the first, middle and last step of
    the chosen clients."""

    def train_cohort(
        federation: Federation, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, LocalResult]]:
        for job in jobs:
            steps = frozenset(step_positions(job.info.steps) if job.client in chosen else ())
            method = ObservedMethod(federation.method, see, job.client, steps)
            yield job, train_client(replace(federation, method=method), job)

    return train_cohort


class Clock:
    """Seconds spent inside `with clock:`, added up."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.start
