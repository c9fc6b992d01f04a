"""Pictures of what an analysis found: flatness over rounds, slices of the loss, embeddings."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwmsam.analysis.landscape import EVERYBODY, Landscape
from fedwmsam.analysis.run_flatness import RoundFlatness
from fedwmsam.engine.records import Record
from fedwmsam.report.plots import COLOURS, FONT, MARKERS, Picture, add_legend, legend_height, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUP_COLOURS = (*COLOURS, "#882255", "#F0E442")
"""For dots, which may be paler than lines: ten classes then have a colour each."""
LEVELS = 14
"""Lines of equal loss."""
PANEL = 1.75
"""Inches: the height of one of two embeddings side by side."""


# Flatness over rounds


def flatness_pictures(found: Sequence[RoundFlatness], prefix: str = "") -> list[Picture]:
    """One round is a number, not a picture; the names of the pictures' files begin with the prefix."""
    if len(found) < 2:
        return []
    names = ["all clients", "mean of single clients"] if found[0].clients else ["all clients"]
    pictures: list[Picture] = [
        (f"{prefix}largest-eigenvalue-over-rounds", 2.0 + legend_height(names), partial(draw_eigenvalues, found))
    ]
    radii = [rise_name(rise.rho) for rise in found[0].all.sharpness]
    if radii:
        pictures.append((f"{prefix}sharpness-over-rounds", 2.0 + legend_height(radii), partial(draw_rises, found)))
    return pictures


def draw_eigenvalues(found: Sequence[RoundFlatness], figure: "Figure") -> None:
    axes = figure.add_subplot()
    rounds = [one.round for one in found]
    axes.plot(rounds, [one.all.eigenvalues[0] for one in found], label="all clients", **style(0))
    if found[0].clients:
        values = np.array([[client.eigenvalues[0] for client in one.clients.values()] for one in found])
        axes.plot(rounds, values.mean(axis=1), label="mean of single clients", **style(1))
        low, high = np.quantile(values, [0.1, 0.9], axis=1)
        axes.fill_between(rounds, low, high, color=COLOURS[1], alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel="largest eigenvalue", ylim=(0, None))
    axes.grid()
    add_legend(figure, axes, "band: 10 to 90 % of the clients" if found[0].clients else "")


def draw_rises(found: Sequence[RoundFlatness], figure: "Figure") -> None:
    axes = figure.add_subplot()
    for number, rise in enumerate(found[0].all.sharpness):
        values = [one.all.sharpness[number].worst for one in found]
        axes.plot([one.round for one in found], values, label=rise_name(rise.rho), **style(number))
    axes.set(xlabel="round", ylabel="largest rise of the loss", ylim=(0, None))
    axes.grid()
    add_legend(figure, axes, "all clients' loss")


def rise_name(rho: float) -> str:
    return f"within ρ = {rho:g}"


# Slices of the loss


def landscape_pictures(found: Landscape, name: str) -> list[Picture]:
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
    axes.plot(found.x, found.losses[EVERYBODY], label=EVERYBODY, **style(0) | {"marker": ""}, linewidth=1.6)
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
    axes.contourf(found.x, found.y, losses, levels=levels, cmap="cividis", norm=logarithmic(levels), extend="both")
    lines = axes.contour(found.x, found.y, losses, levels=levels, colors="white", linewidths=0.4)
    axes.clabel(lines, levels[::3], fontsize=FONT - 2, fmt="%.3g")
    marks: list[tuple[float, str]] = [(0.0, "o")] + ([(1.0, "s")] if found.axes[0].startswith("to ") else [])
    for x, marker in marks:
        axes.plot([x], [0.0], marker, color="white", markeredgecolor="black", markersize=4)
    axes.set(xlabel=found.axes[0], ylabel=found.axes[1], title=f"loss of {EVERYBODY}")


def draw_surface(found: Landscape, figure: "Figure") -> None:
    axes: Any = figure.add_subplot(projection="3d")
    losses = found.losses[EVERYBODY]
    x, y = np.meshgrid(found.x, np.asarray(found.y))
    levels = level_values(losses)
    shown = np.clip(losses, None, levels[-1])
    axes.plot_surface(x, y, shown, cmap="cividis", norm=logarithmic(levels), rstride=1, cstride=1, linewidth=0.1,
                      edgecolor="white", antialiased=True)  # fmt: skip
    axes.tick_params(pad=-3, labelsize=FONT - 2)
    axes.locator_params(nbins=4)
    axes.set_title(f"loss of {EVERYBODY}")  # the axes are those of the contours; their names find no room here
    axes.view_init(elev=35, azim=-60)


def level_values(losses: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """From the lowest loss up to a hundred times it, in equal ratios; what is not finite counts as high."""
    finite = losses[np.isfinite(losses)]
    low, high = max(float(finite.min()), 1e-6), float(finite.max())
    return np.geomspace(low, max(min(high, 100 * low), 1.001 * low), LEVELS)


def logarithmic(levels: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    from matplotlib.colors import LogNorm

    return LogNorm(levels[0], levels[-1])


# Embeddings


def embedding_pictures(records: Sequence[Record], class_names: Sequence[str]) -> list[Picture]:
    """A picture for each round, by class and, if the samples have clients, beside it by client."""
    return [
        (f"embedding-round-{record['round']}", 2.35 + legend_height(shown_names(record, class_names)),
         partial(draw_embedding, record, class_names))
        for record in records
    ]  # fmt: skip


def draw_embedding(record: Record, class_names: Sequence[str], figure: "Figure") -> None:
    kinds = ["class"] + (["client"] if record["clients"] is not None else [])
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axes, by in zip(panels, kinds, strict=True):
        scatter(axes, record, by, class_names)
        axes.set_title(f"by {by}\n{score_words(record, by)}", fontsize=FONT - 1)
    add_legend(
        figure, panels[0], f"t-SNE of {record['samples']:,} samples, round {record['round']}; figures of the features"
    )


def grid_of_embeddings(named: Sequence[tuple[str, Record]], class_names: Sequence[str], name: str) -> Picture:
    """Several models beside each other, by class."""
    rows = math.ceil(len(named) / 2)
    height = 0.3 + rows * PANEL + legend_height(shown_names(named[0][1], class_names))
    return name, height, partial(draw_grid, named, class_names, rows)


def draw_grid(named: Sequence[tuple[str, Record]], class_names: Sequence[str], rows: int, figure: "Figure") -> None:
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, (title, record) in zip(panels, named, strict=False):
        scatter(axes, record, "class", class_names)
        axes.set_title(f"{title}\n{score_words(record, 'class')}", fontsize=FONT - 1)
    for axes in panels[len(named) :]:
        axes.set_axis_off()
    record = named[0][1]
    add_legend(
        figure, panels[0], f"t-SNE of {record['samples']:,} samples, round {record['round']}; figures of the features"
    )


def scatter(axes: "Axes", record: Record, by: str, class_names: Sequence[str]) -> None:
    """Colours and markers together tell more groups apart than either; of many clients only some can be."""
    points, labels = np.array(record["points"]), np.array(record["classes" if by == "class" else "clients"])
    for number, label in enumerate(np.unique(labels)):
        own, lap = labels == label, number // len(GROUP_COLOURS)
        name = class_name(int(label), class_names) if by == "class" else None
        axes.scatter(
            points[own, 0], points[own, 1], s=3, color=GROUP_COLOURS[number % len(GROUP_COLOURS)], linewidths=0,
            marker=MARKERS[(number + lap) % len(MARKERS)], label=name,
        )  # fmt: skip
    axes.set(xticks=[], yticks=[])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def shown_names(record: Record, class_names: Sequence[str]) -> list[str]:
    return [class_name(label, class_names) for label in sorted(set(record["classes"]))]


def class_name(label: int, names: Sequence[str]) -> str:
    return names[label] if label < len(names) else str(label)


def score_words(record: Record, by: str, of: str = "features") -> str:
    for score in record["scores"]:
        if (score["of"], score["by"]) == (of, by):
            return f"silhouette {score['silhouette']:.2f}, D–B {score['davies_bouldin']:.2f}"
    return "one group"
