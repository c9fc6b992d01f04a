"""Observation of a client's local steps, for any method.

A method is given a function that computes gradients. The points at which it calls that function
tell what the method did: the last point minus the weights is its perturbation. Nothing of a
method's mathematics is repeated here, so that a method added later is observed, too.
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
    """One local step of a client; its tensors are the step's own and change after it."""

    client: int
    step: int
    w: Tensor
    perturbation: Tensor
    """The way from w to the last point of a gradient; zero for a method that does not perturb."""
    direction: Tensor
    """The direction that the training loop will clip and follow."""
    gradient_free_part: Tensor
    """The part of the direction that comes from no gradient of this step: momentum, control
    variates, dual variables."""


StepObserver = Callable[[StepObservation], None]


@dataclass(frozen=True)
class ObservedMethod(Method):
    """A method that does what the inner one does, and hands some of its steps to an observer."""

    inner: Method
    observe_step: StepObserver
    client: int
    steps: frozenset[int]
    """The numbers of the steps that are observed."""
    steps_done: list[None] = field(default_factory=list)
    """A list as long as the number of steps done: the only thing here that changes."""

    name: ClassVar[str] = "watched"

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return self.inner.begin(down, full_gradient, info)

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        step = len(self.steps_done)
        self.steps_done.append(None)
        if step not in self.steps:
            return self.inner.direction(w, grad, down, scratch)
        perturbation = torch.zeros_like(w)

        def note_point(point: Tensor) -> Tensor:
            torch.sub(point, w, out=perturbation)
            return grad(point)

        # Directions are affine in the gradients they ask for: zero gradients leave the other part.
        gradient_free_part, _ = self.inner.direction(w, torch.zeros_like, down, scratch)
        v, scratch = self.inner.direction(w, note_point, down, scratch)
        self.observe_step(
            StepObservation(self.client, step, w, perturbation, v, gradient_free_part)
        )
        return v, scratch

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        return self.inner.pull(w, down)

    def uplink(self, delta: Tensor, down: Vectors, scratch: Vectors, info: Info) -> Vectors:
        return self.inner.uplink(delta, down, scratch, info)


STEP_POSITIONS = ("first", "middle", "last")


def step_positions(steps: int) -> dict[int, str]:
    """Return the names "first", "middle" and "last" by the numbers of the steps that have them.

    Of fewer than three steps, none is the middle one, and a single step is the first one only.
    """
    return {(steps - 1) // 2: "middle", steps - 1: "last", 0: "first"}


def make_observing_trainer(observe_step: StepObserver, clients: Container[int]) -> Trainer:
    """Return a trainer that hands the first, middle and last step of some clients to an observer.

    It trains the cohort in this process, with bitwise identical results.
    """

    def train_cohort(
        federation: Federation, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, LocalResult]]:
        for job in jobs:
            steps = frozenset(step_positions(job.info.steps) if job.client in clients else ())
            method = ObservedMethod(federation.method, observe_step, job.client, steps)
            yield job, train_client(replace(federation, method=method), job)

    return train_cohort


class Clock:
    """Adds up the seconds spent inside `with clock:`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.start
