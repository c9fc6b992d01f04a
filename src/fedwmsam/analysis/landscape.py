"""Loss landscapes: the loss along a line or over a plane through a model.

Random directions are filter-normalised (Li et al. 2018): each filter of the direction (each row of
a weight matrix) is rescaled to the norm of the model's filter in the same place, because otherwise
the plot mostly shows how large the weights are. Parameters without filters (biases, scales and
shifts of normalisation layers) stay as they are, as in that paper's plots. Between two models the
direction is their difference.
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
from fedwmsam.analysis.flatness import ReportProgress, SampleConfig, four_digit_cell, make_surfaces
from fedwmsam.analysis.hessian import GaussianVectors
from fedwmsam.analysis.loss_surface import LossSurface, draw_sample
from fedwmsam.analysis.saved_run import SavedRun, write_json
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.files import write_text
from fedwmsam.methods.base import ParameterSlice
from fedwmsam.methods.vectors import Vectors
from fedwmsam.report.plots import COLOURS, FONT, PlotSpec, add_legend, legend_height, line_style
from fedwmsam.report.text_tables import TextTable
from fedwmsam.statistics import FloatArray
from fedwmsam.training.objectives import MetricFunction, make_objective
from fedwmsam.training.task import Task, deterministic_torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_CLIENTS = "all clients"
"""Name of the loss over all clients' samples, among the losses of a landscape."""
LINE_POINTS = 43
"""Points of a line.

It is 1 more than a multiple of 6, so that a line between two models has a point at each of them.
"""
PLANE_POINTS = 25
"""Points along each axis of a plane; 1 more than a multiple of 6, as for a line."""
DEFAULT_REACH = 1.0
"""How far a random direction is followed both ways; 1 is a shift as long as the model's filters."""
OVERSHOOT = 0.25
"""How far a line between two models extends past either of them, as a share of their distance."""
Point = tuple[Tensor, Vectors]
"""The weights and buffers of a model."""


@dataclass(frozen=True)
class Landscape:
    """Losses at the points of a line (x) or of a plane (y, x).

    The model is at 0; another model, if there is one, is at x = 1.
    """

    x: FloatArray
    y: FloatArray | None
    losses: dict[str, FloatArray]
    """Losses at the points, by the name of the loss: `ALL_CLIENTS` or a single client."""
    axes: tuple[str, ...]
    """Name of each axis."""
    lengths: tuple[float, ...]
    """Length of one unit of each axis in weight space."""

    @property
    def leads_to_other(self) -> bool:
        """Return whether the x axis leads to another model."""
        return self.axes[0].startswith("to ")

    @property
    def barrier(self) -> float | None:
        """Return the loss barrier between two models, None if this is no line between two.

        It is the largest rise of the loss above its linear interpolation between the two models.
        """
        if self.y is not None or not self.leads_to_other:
            return None
        between = (self.x >= 0) & (self.x <= 1)
        x = self.x[between]
        losses = self.losses[ALL_CLIENTS][between]
        ends = np.interp([0.0, 1.0], self.x, self.losses[ALL_CLIENTS])
        return float((losses - (ends[0] + x * (ends[1] - ends[0]))).max())

    def record(self) -> Record:
        """Return the landscape as a JSON record."""
        return {
            "x": self.x.tolist(),
            "y": None if self.y is None else self.y.tolist(),
            "axes": self.axes,
            "lengths": self.lengths,
            "barrier": self.barrier,
            "losses": {loss_name: losses.tolist() for loss_name, losses in self.losses.items()},
        }

    def point_records(self) -> list[Record]:
        """Return one record per loss and point, as the CSV file has them."""
        ys = [None] if self.y is None else [float(y) for y in self.y]
        records = []
        for loss_name, losses in self.losses.items():
            for row, y in enumerate(ys):
                for column, x in enumerate(self.x):
                    loss = float(np.atleast_2d(losses)[row, column])
                    records.append({"loss_of": loss_name, "x": float(x), "y": y, "loss": loss})
        return records


def filter_direction(
    w: Tensor, layout: Sequence[ParameterSlice], draw: Callable[[], Tensor]
) -> Tensor:
    """Draw a random direction and rescale its filters to the norms of the model's filters.

    A filter is a row along the first axis; parameters with less than two axes get zeros.
    """
    direction = draw()
    for slot in layout:
        piece = direction[slot.slice]
        if len(slot.shape) < 2:
            piece.zero_()
            continue
        filters = piece.view(slot.shape[0], -1)
        model_filters = w[slot.slice].view(slot.shape[0], -1)
        norms = torch.linalg.vector_norm(filters, dim=1, keepdim=True)
        filters.mul_(torch.linalg.vector_norm(model_filters, dim=1, keepdim=True) / norms)
    return direction


@dataclass(frozen=True)
class LandscapeAxis:
    """An axis of a landscape: a direction in weight space and the points along it."""

    name: str
    direction: Tensor
    points: FloatArray
    """Positions along the axis, in units of the direction."""


def random_axis(
    w: Tensor, layout: Sequence[ParameterSlice], points: int, reach: float, seed: int, index: int
) -> LandscapeAxis:
    """Return an axis along a random filter-normalised direction; `index` tells axes apart."""
    direction = filter_direction(w, layout, GaussianVectors(w, seed, "landscape", index))
    return LandscapeAxis(
        "random, filters normalised", direction, np.linspace(-reach, reach, points)
    )


def axis_to(w: Tensor, other: Tensor, points: int, name: str) -> LandscapeAxis:
    """Return the axis from w to another model; raise InputError if their sizes differ."""
    if other.shape != w.shape:
        raise InputError(
            f"The other model has {other.numel():,} weights and this one {w.numel():,}; "
            "take one alike."
        )
    return LandscapeAxis(f"to {name}", other - w, np.linspace(-OVERSHOOT, 1 + OVERSHOOT, points))


def compute_landscape(
    task: Task,
    surfaces: Mapping[str, LossSurface],
    model: Point,
    *,
    other: Point | None = None,
    other_name: str = "other",
    plane: bool = False,
    points: int | None = None,
    reach: float = DEFAULT_REACH,
    seed: int = 0,
    report_progress: ReportProgress = lambda _: None,
) -> Landscape:
    """Compute the losses on a line or plane through a model, or through it and another one.

    `surfaces` has the losses by name, `ALL_CLIENTS` among them. The task has the model's weights
    and buffers again afterwards. Raise InputError if there are too few points or no reach.
    """
    count = points or (PLANE_POINTS if plane else LINE_POINTS)
    if count < 2 or not reach > 0:
        raise InputError(
            f"A landscape needs at least 2 points and a reach above 0, not {count} and {reach:g}."
        )
    w = model[0]
    if other is None:
        axes = [random_axis(w, task.layout, count, reach, seed, 0)]
    else:
        axes = [axis_to(w, other[0], count, other_name)]
    if plane:
        axes.append(random_axis(w, task.layout, count, reach, seed, 1))
    losses = compute_losses(task, surfaces, model, other, axes, report_progress)
    if not plane:
        losses = {loss_name: rows[0] for loss_name, rows in losses.items()}
    return Landscape(
        x=axes[0].points,
        y=axes[1].points if plane else None,
        losses=losses,
        axes=tuple(axis.name for axis in axes),
        lengths=tuple(float(torch.linalg.vector_norm(axis.direction)) for axis in axes),
    )


def compute_losses(
    task: Task,
    surfaces: Mapping[str, LossSurface],
    model: Point,
    other: Point | None,
    axes: Sequence[LandscapeAxis],
    report_progress: ReportProgress,
) -> dict[str, FloatArray]:
    """Return each surface's losses by row (second axis) and column (first axis).

    If there is another model, buffers are interpolated along the first axis.
    """
    w, buffers = model
    columns = axes[0].points
    rows = axes[1].points if len(axes) > 1 else np.zeros(1)
    losses = {loss_name: np.zeros((len(rows), len(columns))) for loss_name in surfaces}
    for row, y in enumerate(rows):
        start = w + float(y) * axes[1].direction if len(axes) > 1 else w
        for column, x in enumerate(columns):
            number = row * len(columns) + column + 1
            report_progress(f"point {number:,} of {len(rows) * len(columns):,}")
            if other is not None:
                task.load_buffers(interpolate_buffers(buffers, other[1], float(x)))
            for loss_name, surface in surfaces.items():
                losses[loss_name][row, column] = surface.loss(start + float(x) * axes[0].direction)
    task.load_weights(w)
    task.load_buffers(buffers)
    return losses


def interpolate_buffers(first: Vectors, other: Vectors, share: float) -> Vectors:
    """Interpolate running statistics as the weights are; counters stay those of the first model.

    Beyond the two models the nearer one's are taken, so that no variance becomes negative.
    """
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
    reach: float = DEFAULT_REACH,
    seed: int = 0,
) -> Landscape:
    """Compute the loss landscape of any module on any data.

    It is around the model, or from it to another one of the same shape, on at most so many samples
    (None: all).
    """
    with deterministic_torch():
        task = Task(model, make_objective(loss))
        data = make_data_adapter(task).to_samples((inputs, targets), "The data")
        surface = LossSurface(
            task, draw_sample(data, samples, batch_size, rng.derive_seed(seed, "global sample"))
        )
        other_point = None if other is None else task.unpack_state_dict(other.state_dict())
        return compute_landscape(
            task,
            {ALL_CLIENTS: surface},
            (task.initial_weights, task.initial_buffers),
            other=other_point,
            plane=plane,
            points=points,
            reach=reach,
            seed=seed,
        )


# Landscapes of saved runs


@dataclass(frozen=True)
class RunLandscape:
    """The landscape of a saved run's model, with the files it was written to."""

    name: str
    """Name of the files, without a suffix."""
    landscape: Landscape
    round: int
    samples: int
    """Number of samples the losses were computed on."""
    of: int
    """Number of samples they were drawn from."""
    files: list[Path]


def run_landscape(
    run: SavedRun,
    round: int,
    sample_config: SampleConfig,
    other: SavedRun | None,
    folder: Path,
    *,
    seed: int,
    plane: bool,
    report_progress: ReportProgress = lambda _: None,
    **options: Any,
) -> RunLandscape:
    """Compute the landscape of a run's model and write it to the folder as JSON and CSV.

    The losses are those on this run's data; the other model is the last one of the run `other`.
    Further options are those of `compute_landscape`. Raise InputError if the models differ.
    """
    with deterministic_torch():
        pooled_surface, client_surfaces = make_surfaces(run, sample_config, seed)
        model = run.load(round)
        other_model = None
        if other is not None:
            if other.task.layout != run.task.layout:
                raise InputError(
                    f"{other.path} has another model than {run.path}; "
                    "no line leads from one to the other."
                )
            other_model = other.load(other.select_rounds("last")[0])
        surfaces = {ALL_CLIENTS: pooled_surface}
        for client, surface in client_surfaces.items():
            surfaces[f"client {client}"] = surface
        landscape = compute_landscape(
            run.task,
            surfaces,
            model,
            other=other_model,
            other_name="" if other is None else other.path.name,
            seed=seed,
            plane=plane,
            report_progress=report_progress,
            **options,
        )
    name = landscape_name(round, other, plane)
    settings = asdict(sample_config) | {
        "seed": seed,
        "round": round,
        "to": str(other.path) if other else None,
    }
    files = [folder / f"{name}.json", folder / f"{name}.csv"]
    write_json(files[0], {"settings": settings | options, **landscape.record()})
    write_text(files[1], landscape_csv(landscape))
    sample = pooled_surface.sample
    return RunLandscape(name, landscape, round, sample.count, sample.total, files)


def landscape_name(round: int, other: SavedRun | None, plane: bool) -> str:
    """Return the name of a landscape's files, without a suffix."""
    words = ["landscape"]
    if plane:
        words.append("plane")
    if other is not None and other.path.name:
        words += ["to", other.path.name]
    return "-".join([*words, f"round-{round}"])


def landscape_csv(landscape: Landscape) -> str:
    """Return the landscape as CSV, one line per loss and point."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["loss_of", "x", "y", "loss"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(landscape.point_records())
    return out.getvalue()


# Tables


def landscape_table(name: str, result: RunLandscape) -> TextTable:
    """Return a table of each loss at the model, its minimum and its maximum on the landscape."""
    landscape = result.landscape
    rows = tuple(
        (
            loss_name,
            four_digit_cell(loss_at_model(landscape, losses)),
            four_digit_cell(float(np.nanmin(losses))),
            four_digit_cell(float(np.nanmax(losses))),
        )
        for loss_name, losses in landscape.losses.items()
    )
    axes = "; ".join(
        f"{axis} (1 is {length:.3g} in weight space)"
        for axis, length in zip(landscape.axes, landscape.lengths, strict=True)
    )
    notes = [
        f"{result.samples:,} of {result.of:,} training samples, each counting alike; axes: {axes}."
    ]
    if landscape.barrier is not None:
        notes.append(
            f"Between the two models the loss rises by at most {landscape.barrier:.4g} "
            "above the straight line between their losses."
        )
    shape = "line" if landscape.y is None else "plane"
    title = f"Loss on a {shape} through {name}, round {result.round}"
    return TextTable(title, ("loss of", "at the model", "lowest", "highest"), rows, tuple(notes))


def loss_at_model(landscape: Landscape, losses: FloatArray) -> float:
    """Return the loss at the point nearest to the model.

    With an even number of points none is exactly at the model.
    """
    column = int(np.abs(landscape.x).argmin())
    if landscape.y is None:
        return float(losses[column])
    return float(losses[int(np.abs(landscape.y).argmin()), column])


# Plots


LEVELS = 14
"""Number of contour levels."""


def landscape_plots(landscape: Landscape, name: str) -> list[PlotSpec]:
    """Return the plots of a landscape: a line, or a plane's contours and its surface in 3D."""
    if landscape.y is None:
        labels = [ALL_CLIENTS]
        if len(landscape.losses) > 1:
            labels.append("single clients")
        return [(name, 2.0 + legend_height(labels), partial(draw_line, landscape))]
    return [
        (f"{name}-contours", 2.7, partial(draw_contours, landscape)),
        (f"{name}-surface", 2.8, partial(draw_surface, landscape)),
    ]


def draw_line(landscape: Landscape, figure: "Figure") -> None:
    """Draw the losses along a line, single clients' in grey, and mark the models."""
    axes = figure.add_subplot()
    client_losses = [
        losses for loss_name, losses in landscape.losses.items() if loss_name != ALL_CLIENTS
    ]
    for number, losses in enumerate(client_losses):
        label = "single clients" if number == 0 else None
        axes.plot(landscape.x, losses, color=COLOURS[7], linewidth=0.7, alpha=0.8, label=label)
    axes.plot(
        landscape.x,
        landscape.losses[ALL_CLIENTS],
        label=ALL_CLIENTS,
        **line_style(0) | {"marker": ""},
        linewidth=1.6,
    )
    for x in model_positions(landscape):
        axes.axvline(x, color="black", linewidth=0.5, linestyle=(0, (2, 2)))
    # Where single clients' losses explode, the rest would be a flat line.
    top = np.nanmax(np.minimum(landscape.losses[ALL_CLIENTS], 1e6))
    limit = 2 * top if client_losses else None
    axes.set(xlabel=landscape.axes[0], ylabel="loss", ylim=(0, limit))
    axes.margins(x=0)
    axes.grid()
    add_legend(figure, axes, "")


def model_positions(landscape: Landscape) -> list[float]:
    """Return where along the x axis there is a model."""
    return [0.0, 1.0] if landscape.leads_to_other else [0.0]


def draw_contours(landscape: Landscape, figure: "Figure") -> None:
    """Draw a plane's contour lines of all clients' loss and mark the models."""
    axes = figure.add_subplot()
    losses = landscape.losses[ALL_CLIENTS]
    levels = contour_levels(losses)
    axes.locator_params(nbins=5)
    axes.contourf(
        landscape.x,
        landscape.y,
        losses,
        levels=levels,
        cmap="cividis",
        norm=logarithmic_norm(levels),
        extend="both",
    )
    lines = axes.contour(
        landscape.x, landscape.y, losses, levels=levels, colors="white", linewidths=0.4
    )
    axes.clabel(lines, levels[::3], fontsize=FONT - 2, fmt="%.3g")
    for x, marker in zip(model_positions(landscape), ("o", "s"), strict=False):
        axes.plot([x], [0.0], marker, color="white", markeredgecolor="black", markersize=4)
    axes.set(xlabel=landscape.axes[0], ylabel=landscape.axes[1], title=f"loss of {ALL_CLIENTS}")


def draw_surface(landscape: Landscape, figure: "Figure") -> None:
    """Draw all clients' loss over a plane as a surface in 3D, cut off at the highest contour."""
    axes: Any = figure.add_subplot(projection="3d")
    losses = landscape.losses[ALL_CLIENTS]
    x, y = np.meshgrid(landscape.x, np.asarray(landscape.y))
    levels = contour_levels(losses)
    axes.plot_surface(
        x,
        y,
        np.clip(losses, None, levels[-1]),
        cmap="cividis",
        norm=logarithmic_norm(levels),
        rstride=1,
        cstride=1,
        linewidth=0.1,
        edgecolor="white",
        antialiased=True,
    )
    axes.tick_params(pad=-3, labelsize=FONT - 2)
    axes.locator_params(nbins=4)
    # There is no space for axis labels; the axes are those of the contour plot.
    axes.set_title(f"loss of {ALL_CLIENTS}")
    axes.view_init(elev=35, azim=-60)


def contour_levels(losses: FloatArray) -> FloatArray:
    """Return levels in equal ratios from the lowest loss to at most a hundred times it.

    Losses that are not finite are left out; they lie above the highest level.
    """
    finite = losses[np.isfinite(losses)]
    low = max(float(finite.min()), 1e-6)
    high = float(finite.max())
    return np.geomspace(low, max(min(high, 100 * low), 1.001 * low), LEVELS)


def logarithmic_norm(levels: FloatArray) -> Any:
    """Return matplotlib's logarithmic colour scale from the lowest to the highest level."""
    from matplotlib.colors import LogNorm

    return LogNorm(levels[0], levels[-1])
