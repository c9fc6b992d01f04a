"""The loss along a line or over a plane through a model.

Directions are random, each filter of them as long as the model's filter in the same place (Li et al. 2018): otherwise
the picture shows how large the weights are. Weights without filters (biases, norms' scales and shifts) stay as they
are, as in that paper's pictures. Between two models, the direction is their difference.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwmsam import rng
from fedwmsam.analysis.flatness import ReportProgress, SampleConfig, digits, surfaces
from fedwmsam.analysis.hessian import GaussianVectors
from fedwmsam.analysis.loss_surface import LossSurface, draw_sample
from fedwmsam.analysis.saved_run import SavedRun, write_json
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.files import atomic_replace
from fedwmsam.methods.base import ParameterSlice
from fedwmsam.methods.vectors import Vectors
from fedwmsam.report.plots import COLOURS, FONT, PlotSpec, add_legend, legend_height, line_style
from fedwmsam.report.text_tables import TextTable
from fedwmsam.statistics import FloatArray
from fedwmsam.training.objectives import MetricFunction, make_objective
from fedwmsam.training.task import Task, deterministic_torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVERYBODY = "all clients"
LINE_POINTS, PLANE_POINTS = 43, 25
"""Both 1 more than a multiple of 6: then a line between two models has a point at each of them."""
HALF_WIDTH = 1.0
"""How far random directions are followed both ways: at 1, a shift is as long as the filters themselves."""
BEYOND = 0.25
"""How far past either model a line between two goes, as a share of their distance."""
Point = tuple[Tensor, Vectors]
"""Weights and buffers."""


@dataclass(frozen=True)
class Landscape:
    """Losses at the points of a line (x) or of a plane (y, x); the model is at 0, another one, if any, at x = 1."""

    x: FloatArray
    y: FloatArray | None
    losses: dict[str, FloatArray]
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
            "x": self.x.tolist(),
            "y": None if self.y is None else self.y.tolist(),
            "axes": self.axes,
            "lengths": self.lengths,
            "barrier": self.barrier,
            "losses": {whose: losses.tolist() for whose, losses in self.losses.items()},
        }

    def lines(self) -> list[Record]:
        """A line for each point and loss, for a table."""
        rows = (
            [(None, 0)] if self.y is None else [(float(y), place) for place, y in enumerate(self.y)]
        )
        return [
            {
                "loss_of": whose,
                "x": float(x),
                "y": y,
                "loss": float(np.atleast_2d(losses)[row, column]),
            }
            for whose, losses in self.losses.items()
            for y, row in rows
            for column, x in enumerate(self.x)
        ]


def filter_direction(
    w: Tensor, layout: Sequence[ParameterSlice], draw: Callable[[], Tensor]
) -> Tensor:
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
class LandscapeAxis:
    name: str
    direction: Tensor
    at: FloatArray
    """Where along it, in units of the direction."""


def random_axis(
    w: Tensor, layout: Sequence[ParameterSlice], points: int, reach: float, seed: int, place: int
) -> LandscapeAxis:
    direction = filter_direction(w, layout, GaussianVectors(w, seed, "landscape", place))
    return LandscapeAxis(
        "random, filters normalised", direction, np.linspace(-reach, reach, points)
    )


def axis_to(w: Tensor, other: Tensor, points: int, name: str) -> LandscapeAxis:
    if other.shape != w.shape:
        raise InputError(
            f"The other model has {other.numel():,} weights and this one {w.numel():,}; take one alike."
        )
    return LandscapeAxis(f"to {name}", other - w, np.linspace(-BEYOND, 1 + BEYOND, points))


def compute_landscape(
    task: Task,
    surfaces: Mapping[str, LossSurface],
    model: Point,
    *,
    other: Point | None = None,
    other_name: str = "other",
    plane: bool = False,
    points: int | None = None,
    reach: float = HALF_WIDTH,
    seed: int = 0,
    say: ReportProgress = lambda _: None,
) -> Landscape:
    """`surfaces` are those of the losses to draw, `EVERYBODY`'s among them. The model is in place again afterwards."""
    count = points or (PLANE_POINTS if plane else LINE_POINTS)
    if count < 2 or not reach > 0:
        raise InputError(
            f"A landscape needs at least 2 points and a reach above 0, not {count} and {reach:g}."
        )
    w = model[0]
    axes = [
        random_axis(w, task.layout, count, reach, seed, 0)
        if other is None
        else axis_to(w, other[0], count, other_name)
    ]
    if plane:
        axes.append(random_axis(w, task.layout, count, reach, seed, 1))
    losses = losses_at(task, surfaces, model, other, axes, say)
    return Landscape(
        axes[0].at,
        axes[1].at if plane else None,
        losses if plane else {whose: of[0] for whose, of in losses.items()},
        tuple(axis.name for axis in axes),
        tuple(float(torch.linalg.vector_norm(axis.direction)) for axis in axes),
    )


def losses_at(
    task: Task,
    surfaces: Mapping[str, LossSurface],
    model: Point,
    other: Point | None,
    axes: Sequence[LandscapeAxis],
    say: ReportProgress,
) -> dict[str, FloatArray]:
    """Each surface's loss by row (second axis) and column (first axis)."""
    (w, buffers), across = model, axes[0]
    rows = axes[1].at if len(axes) > 1 else np.zeros(1)
    losses = {whose: np.zeros((len(rows), len(across.at))) for whose in surfaces}
    for row, up in enumerate(rows):
        start = w + float(up) * axes[1].direction if len(axes) > 1 else w
        for column, along in enumerate(across.at):
            say(f"point {row * len(across.at) + column + 1:,} of {len(rows) * len(across.at):,}")
            if other is not None:
                task.load_buffers(interpolate_buffers(buffers, other[1], float(along)))
            for whose, surface in surfaces.items():
                losses[whose][row, column] = surface.loss(start + float(along) * across.direction)
    task.load(w)
    task.load_buffers(buffers)
    return losses


def interpolate_buffers(first: Vectors, other: Vectors, share: float) -> Vectors:
    """Running statistics mixed as the weights are, and never a negative variance; counters stay the first one's."""
    share = min(max(share, 0.0), 1.0)
    return {
        name: torch.lerp(value, other[name], share) if value.is_floating_point() else value
        for name, value in first.items()
    }


def measure_landscape(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    other: nn.Module | None = None,
    loss: str | MetricFunction = "classification",
    samples: int | None = 5000,
    batch_size: int = 1000,
    plane: bool = False,
    points: int | None = None,
    reach: float = HALF_WIDTH,
    seed: int = 0,
) -> Landscape:
    """Of any module on any data, around it or from it to another one of the same shape."""
    with deterministic_torch():
        task = Task(model, make_objective(loss))
        data = make_data_adapter(task).samples((inputs, targets), "The data")
        surface = LossSurface(
            task, draw_sample(data, samples, batch_size, rng.derive_seed(seed, "global sample"))
        )
        second = None if other is None else task.adopt(other.state_dict())
        here = task.initial_weights, task.initial_buffers
        return compute_landscape(
            task,
            {EVERYBODY: surface},
            here,
            other=second,
            plane=plane,
            points=points,
            reach=reach,
            seed=seed,
        )


# Of a run's models


@dataclass(frozen=True)
class RunLandscape:
    name: str
    """Of its files."""
    landscape: Landscape
    round: int
    samples: int
    of: int
    files: list[Path]


def run_landscape(
    run: SavedRun,
    round: int,
    scope: SampleConfig,
    other: SavedRun | None,
    place: Path,
    *,
    seed: int,
    plane: bool,
    say: ReportProgress = lambda _: None,
    **options: Any,
) -> RunLandscape:
    """On this run's data; the other's model is its last one."""
    with deterministic_torch():
        everyone, single = surfaces(run, scope, seed)
        model, end = run.load(round), None
        if other is not None:
            if other.task.layout != run.task.layout:
                raise InputError(
                    f"{other.path} has another model than {run.path}; no line leads from one to the other."
                )
            end = other.load(other.rounds("last")[0])
        named = {EVERYBODY: everyone} | {
            f"client {client}": surface for client, surface in single.items()
        }
        name = "" if other is None else other.path.name
        found = compute_landscape(
            run.task,
            named,
            model,
            other=end,
            other_name=name,
            seed=seed,
            plane=plane,
            say=say,
            **options,
        )
    title = "-".join(
        [
            "landscape",
            *(["plane"] if plane else []),
            *(["to", name] if name else []),
            f"round-{round}",
        ]
    )
    settings = (
        asdict(scope)
        | {"seed": seed, "round": round, "to": str(other.path) if other else None}
        | options
    )
    files = [place / f"{title}.json", place / f"{title}.csv"]
    write_json(files[0], {"settings": settings, **found.record()})
    with atomic_replace(files[1]) as beside:
        beside.write_text(landscape_csv(found), encoding="utf-8")
    return RunLandscape(title, found, round, everyone.sample.count, everyone.sample.total, files)


def landscape_csv(found: Landscape) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["loss_of", "x", "y", "loss"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found.lines())
    return out.getvalue()


# Tables


def landscape_sheet(name: str, found: RunLandscape) -> TextTable:
    """What a slice shows, in a few numbers."""
    landscape = found.landscape
    rows = tuple(
        (
            whose,
            digits(at_model(landscape, losses)),
            digits(float(np.nanmin(losses))),
            digits(float(np.nanmax(losses))),
        )
        for whose, losses in landscape.losses.items()
    )
    notes = [
        f"{found.samples:,} of {found.of:,} training samples, each counting alike; axes: "
        + "; ".join(
            f"{axis} (1 is {length:.3g} in weight space)"
            for axis, length in zip(landscape.axes, landscape.lengths, strict=True)
        )
        + "."
    ]
    if landscape.barrier is not None:
        notes.append(
            f"Between the two models the loss rises by at most {landscape.barrier:.4g} above the straight line "
            "between their losses."
        )
    title = f"Loss on a {'line' if landscape.y is None else 'plane'} through {name}, round {found.round}"
    return TextTable(title, ("loss of", "at the model", "lowest", "highest"), rows, tuple(notes))


def at_model(landscape: Landscape, losses: FloatArray) -> float:
    """At the point nearest to the model, which an even number of points leaves out."""
    column = int(np.abs(landscape.x).argmin())
    return float(
        losses[column] if landscape.y is None else losses[int(np.abs(landscape.y).argmin()), column]
    )


# Pictures


LEVELS = 14
"""Lines of equal loss."""


def landscape_pictures(found: Landscape, name: str) -> list[PlotSpec]:
    if found.y is None:
        names = [EVERYBODY] + (["single clients"] if len(found.losses) > 1 else [])
        return [(name, 2.0 + legend_height(names), partial(draw_line, found))]
    return [
        (f"{name}-contours", 2.7, partial(draw_contours, found)),
        (f"{name}-surface", 2.8, partial(draw_surface, found)),
    ]


def draw_line(found: Landscape, figure: "Figure") -> None:
    axes = figure.add_subplot()
    single = [losses for whose, losses in found.losses.items() if whose != EVERYBODY]
    for place, losses in enumerate(single):
        label = "single clients" if place == 0 else None
        axes.plot(found.x, losses, color=COLOURS[7], linewidth=0.7, alpha=0.8, label=label)
    axes.plot(
        found.x,
        found.losses[EVERYBODY],
        label=EVERYBODY,
        **line_style(0) | {"marker": ""},
        linewidth=1.6,
    )
    for x in (0.0, 1.0) if found.axes[0].startswith("to ") else (0.0,):
        axes.axvline(x, color="black", linewidth=0.5, linestyle=(0, (2, 2)))
    # Where single clients' losses explode, the rest would be a flat line.
    top = np.nanmax(np.minimum(found.losses[EVERYBODY], 1e6))
    axes.set(xlabel=found.axes[0], ylabel="loss", ylim=(0, 2 * top if single else None))
    axes.margins(x=0)
    axes.grid()
    add_legend(figure, axes, "")


def draw_contours(found: Landscape, figure: "Figure") -> None:
    axes = figure.add_subplot()
    losses = found.losses[EVERYBODY]
    levels = level_values(losses)
    axes.locator_params(nbins=5)
    axes.contourf(
        found.x,
        found.y,
        losses,
        levels=levels,
        cmap="cividis",
        norm=logarithmic(levels),
        extend="both",
    )
    lines = axes.contour(found.x, found.y, losses, levels=levels, colors="white", linewidths=0.4)
    axes.clabel(lines, levels[::3], fontsize=FONT - 2, fmt="%.3g")
    marks: list[tuple[float, str]] = [(0.0, "o")] + (
        [(1.0, "s")] if found.axes[0].startswith("to ") else []
    )
    for x, marker in marks:
        axes.plot([x], [0.0], marker, color="white", markeredgecolor="black", markersize=4)
    axes.set(xlabel=found.axes[0], ylabel=found.axes[1], title=f"loss of {EVERYBODY}")


def draw_surface(found: Landscape, figure: "Figure") -> None:
    axes: Any = figure.add_subplot(projection="3d")
    losses = found.losses[EVERYBODY]
    x, y = np.meshgrid(found.x, np.asarray(found.y))
    levels = level_values(losses)
    shown = np.clip(losses, None, levels[-1])
    axes.plot_surface(
        x,
        y,
        shown,
        cmap="cividis",
        norm=logarithmic(levels),
        rstride=1,
        cstride=1,
        linewidth=0.1,
        edgecolor="white",
        antialiased=True,
    )
    axes.tick_params(pad=-3, labelsize=FONT - 2)
    axes.locator_params(nbins=4)
    axes.set_title(
        f"loss of {EVERYBODY}"
    )  # the axes are those of the contours; their names find no room here
    axes.view_init(elev=35, azim=-60)


def level_values(
    losses: np.ndarray[Any, np.dtype[np.float64]],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """From the lowest loss up to a hundred times it, in equal ratios; what is not finite counts as high."""
    finite = losses[np.isfinite(losses)]
    low, high = max(float(finite.min()), 1e-6), float(finite.max())
    return np.geomspace(low, max(min(high, 100 * low), 1.001 * low), LEVELS)


def logarithmic(levels: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    from matplotlib.colors import LogNorm

    return LogNorm(levels[0], levels[-1])
