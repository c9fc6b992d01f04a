"""The loss along a line or over a plane through a model.

Directions are random, each filter of them as long as the model's filter in the same place (Li et al. 2018): otherwise
the picture shows how large the weights are. Weights without filters (biases, norms' scales and shifts) stay as they
are, as in that paper's pictures. Between two models, the direction is their difference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwmsam import rng
from fedwmsam.analysis.flatness import Say
from fedwmsam.analysis.hessian import Normal
from fedwmsam.analysis.samples import draw
from fedwmsam.analysis.statistics import Numbers
from fedwmsam.analysis.surface import Surface
from fedwmsam.data.reader import make_reader
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.methods.base import Slot
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.objectives import Measure, make_objective
from fedwmsam.training.task import Task, calm_torch

EVERYBODY = "all clients"
LINE_POINTS, PLANE_POINTS = 43, 25
"""Both 1 more than a multiple of 6: then a line between two models has a point at each of them."""
REACH = 1.0
"""How far random directions are followed both ways: at 1, a shift is as long as the filters themselves."""
BEYOND = 0.25
"""How far past either model a line between two goes, as a share of their distance."""
Point = tuple[Tensor, Vectors]
"""Weights and buffers."""


@dataclass(frozen=True)
class Landscape:
    """Losses at the points of a line (x) or of a plane (y, x); the model is at 0, another one, if any, at x = 1."""

    x: Numbers
    y: Numbers | None
    losses: dict[str, Numbers]
    """By whose loss it is."""
    axes: tuple[str, ...]
    """What each axis is."""
    lengths: tuple[float, ...]
    """Of one unit of each axis in weight space."""

    @property
    def barrier(self) -> float | None:
        """How much the loss between two models rises above the straight line between theirs, at most."""
        if self.y is not None or not self.axes[0].startswith("to "):
            return None
        between = (self.x >= 0) & (self.x <= 1)
        x, losses = self.x[between], self.losses[EVERYBODY][between]
        ends = np.interp([0.0, 1.0], self.x, self.losses[EVERYBODY])
        return float((losses - (ends[0] + x * (ends[1] - ends[0]))).max())

    def record(self) -> Record:
        return {
            "x": self.x.tolist(), "y": None if self.y is None else self.y.tolist(), "axes": self.axes,
            "lengths": self.lengths, "barrier": self.barrier,
            "losses": {whose: losses.tolist() for whose, losses in self.losses.items()},
        }  # fmt: skip

    def lines(self) -> list[Record]:
        """A line for each point and loss, for a table."""
        rows = [(None, 0)] if self.y is None else [(float(y), place) for place, y in enumerate(self.y)]
        return [
            {"loss_of": whose, "x": float(x), "y": y, "loss": float(np.atleast_2d(losses)[row, column])}
            for whose, losses in self.losses.items()
            for y, row in rows
            for column, x in enumerate(self.x)
        ]


def filter_direction(w: Tensor, layout: Sequence[Slot], draw: Callable[[], Tensor]) -> Tensor:
    """A random direction whose filters (rows of the first axis) have the lengths of the model's."""
    direction = draw()
    for slot in layout:
        piece = direction[slot.slice]
        if len(slot.shape) < 2:
            piece.zero_()
            continue
        rows, ours = piece.view(slot.shape[0], -1), w[slot.slice].view(slot.shape[0], -1)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        rows.mul_(torch.linalg.vector_norm(ours, dim=1, keepdim=True) / lengths)
    return direction


@dataclass(frozen=True)
class Axis:
    name: str
    direction: Tensor
    at: Numbers
    """Where along it, in units of the direction."""


def random_axis(w: Tensor, layout: Sequence[Slot], points: int, reach: float, seed: int, place: int) -> Axis:
    direction = filter_direction(w, layout, Normal(w, seed, "landscape", place))
    return Axis("random, filters normalised", direction, np.linspace(-reach, reach, points))


def axis_to(w: Tensor, other: Tensor, points: int, name: str) -> Axis:
    if other.shape != w.shape:
        raise InputError(f"The other model has {other.numel():,} weights and this one {w.numel():,}; take one alike.")
    return Axis(f"to {name}", other - w, np.linspace(-BEYOND, 1 + BEYOND, points))


def landscape(
    task: Task, surfaces: Mapping[str, Surface], model: Point, *, other: Point | None = None, other_name: str = "other",
    plane: bool = False, points: int | None = None, reach: float = REACH, seed: int = 0, say: Say = lambda _: None,
) -> Landscape:  # fmt: skip
    """`surfaces` are those of the losses to draw, `EVERYBODY`'s among them. The model is in place again afterwards."""
    count = points or (PLANE_POINTS if plane else LINE_POINTS)
    if count < 2 or not reach > 0:
        raise InputError(f"A landscape needs at least 2 points and a reach above 0, not {count} and {reach:g}.")
    w = model[0]
    axes = [
        random_axis(w, task.layout, count, reach, seed, 0) if other is None else axis_to(w, other[0], count, other_name)
    ]
    if plane:
        axes.append(random_axis(w, task.layout, count, reach, seed, 1))
    losses = losses_at(task, surfaces, model, other, axes, say)
    return Landscape(
        axes[0].at, axes[1].at if plane else None, losses if plane else {whose: of[0] for whose, of in losses.items()},
        tuple(axis.name for axis in axes), tuple(float(torch.linalg.vector_norm(axis.direction)) for axis in axes),
    )  # fmt: skip


def losses_at(
    task: Task, surfaces: Mapping[str, Surface], model: Point, other: Point | None, axes: Sequence[Axis], say: Say
) -> dict[str, Numbers]:
    """Each surface's loss by row (second axis) and column (first axis)."""
    (w, buffers), across = model, axes[0]
    rows = axes[1].at if len(axes) > 1 else np.zeros(1)
    losses = {whose: np.zeros((len(rows), len(across.at))) for whose in surfaces}
    for row, up in enumerate(rows):
        start = w + float(up) * axes[1].direction if len(axes) > 1 else w
        for column, along in enumerate(across.at):
            say(f"point {row * len(across.at) + column + 1:,} of {len(rows) * len(across.at):,}")
            if other is not None:
                task.load_buffers(between(buffers, other[1], float(along)))
            for whose, surface in surfaces.items():
                losses[whose][row, column] = surface.loss(start + float(along) * across.direction)
    task.load(w)
    task.load_buffers(buffers)
    return losses


def between(first: Vectors, other: Vectors, share: float) -> Vectors:
    """Running statistics mixed as the weights are, and never a negative variance; counters stay the first one's."""
    share = min(max(share, 0.0), 1.0)
    return {
        name: torch.lerp(value, other[name], share) if value.is_floating_point() else value
        for name, value in first.items()
    }


def measure_landscape(
    model: nn.Module, inputs: Any, targets: Any, *, other: nn.Module | None = None,
    loss: str | Measure = "classification", samples: int | None = 5000, batch_size: int = 1000, plane: bool = False,
    points: int | None = None, reach: float = REACH, seed: int = 0,
) -> Landscape:  # fmt: skip
    """Of any module on any data, around it or from it to another one of the same shape."""
    with calm_torch():
        task = Task(model, make_objective(loss))
        data = make_reader(task).samples((inputs, targets), "The data")
        surface = Surface(task, draw(data, samples, batch_size, rng.key(seed, "global sample")))
        second = None if other is None else task.adopt(other.state_dict())
        here = task.initial_weights, task.initial_buffers
        return landscape(
            task, {EVERYBODY: surface}, here, other=second, plane=plane, points=points, reach=reach, seed=seed
        )
