"""Plot the figures of docs/how-it-works.md and print the numbers in its text.

    python docs/pictures/how_it_works.py

Every point in them is a weight that the library computed; nothing is sketched. It takes about a
minute on one core.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from torch.nn.functional import cosine_similarity
from two_weights import (
    CLIENTS,
    SETTINGS,
    Bowl,
    LocalPath,
    Problem,
    bowl,
    local_paths,
    state_after,
    train,
    valley,
)

from fedwmsam.methods import SCAFFOLD, FedAvg, FedCM, FedSAM, FedWMSAM, Method

HERE = Path(__file__).resolve().parent
RUN = HERE.parents[1] / "results" / "runs" / "fedwmsam-seed0-a8c4ceb8.csv"
# Colours of Okabe and Ito, which colour-blind readers can tell apart. Where lines share axes their
# dashes differ, too.
GREY = "#555555"
GREEN = "#009E73"
SKY = "#56B4E9"
ORANGE = "#D55E00"
BLUE = "#0072B2"
PINK = "#CC79A7"
SHADES = ListedColormap([str(1 - 0.22 * i / 15) for i in range(16)])
"""Colours of contours, from white (low) to a light grey that lines stand out from."""
LATE = 40
"""Number of rounds after which the global model hardly moves."""


def main() -> None:
    torch.set_num_threads(1)
    draw_paths(bowl())
    draw_correction(bowl())
    draw_perturbation(bowl())
    draw_weight(bowl())
    draw_valley(valley())


def draw_paths(problem: Bowl) -> None:
    """Plot the paths of four methods, and the distance to the optimum of five."""
    methods = {
        "FedAvg": (FedAvg(), GREY, "-"),
        "FedSAM": (FedSAM(), SKY, "--"),
        "FedCM": (FedCM(), GREEN, "-."),
        "FedWMSAM": (FedWMSAM(), ORANGE, "-"),
        "SCAFFOLD": (SCAFFOLD(), BLUE, ":"),
    }
    optimum = problem.optimum()
    client_optima = torch.stack([problem.optimum(k) for k in range(CLIENTS)])
    figure = Figure(figsize=(6.2, 8.0), layout="constrained")
    grid = figure.add_gridspec(3, 2)
    below = figure.add_subplot(grid[2, :])
    panels = [(0, 0), (0, 1), (1, 0), (1, 1)]
    for name, (method, colour, dashes) in methods.items():
        path = train(problem, method).path
        distance = (path - optimum).norm(dim=1)
        below.semilogy(distance, dashes, color=colour, label=name, linewidth=1.8)
        print(
            f"{name:9} distance to the optimum after 5 rounds {distance[5]:.2f}, "
            f"last 20: {distance[-20:].mean():.3f}"
        )
        if panels and name != "SCAFFOLD":
            axes = figure.add_subplot(grid[panels.pop(0)])
            draw_contours(axes, problem, (-4.6, 2.4), (-2.2, 4.2), levels=14)
            axes.plot(*client_optima.T, "x", color="#888888", markersize=5)
            axes.plot(*path.T, "-", color=colour, linewidth=1.3, marker="o", markersize=2.6)
            axes.plot(*optimum, "*", color="black", markersize=12)
            axes.set_title(name, fontsize=11, color=colour, fontweight="bold")
    below.set(xlabel="round", ylabel="distance to the optimum", xlim=(0, SETTINGS.rounds))
    below.grid(alpha=0.3)
    below.legend(fontsize=9, frameon=False, ncols=3, loc="lower left")
    save(figure, "paths")


def draw_correction(problem: Bowl) -> None:
    """Plot one round of all clients from one model and one momentum, with three corrections."""
    state = state_after(problem, FedWMSAM(), LATE)
    methods: dict[str, Method] = {
        "plain gradients": FedAvg(),
        "one momentum for all": FedWMSAM(correction="none"),
        "personalized momentum": FedWMSAM(),
    }
    figure = Figure(figsize=(6.2, 2.9), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    colours = (GREY, GREEN, ORANGE)
    for axes, (name, method), colour in zip(panels, methods.items(), colours, strict=True):
        paths = local_paths(problem, method, state)
        moves = torch.stack([local.path[-1] - local.path[0] for local in paths])
        draw_contours(axes, problem, (-1.9, 1.5), (-1.8, 1.6), levels=9)
        for local in paths:
            axes.plot(*local.path.T, color=colour, linewidth=1.2)
            axes.plot(*local.path[-1], "o", color=colour, markersize=4)
        axes.plot(*problem.optimum(), "*", color="black", markersize=10)
        axes.set_title(name, fontsize=9, color=colour, fontweight="bold")
        spread = (moves - moves.mean(dim=0)).norm(dim=1).mean()
        axes.set_xlabel(f"clients end {spread:.3f}\nfrom their mean", fontsize=9)
        print(f"{name}: {spread:.4f} from their mean, which moves {moves.mean(dim=0).norm():.4f}")
    save(figure, "correction")


def draw_perturbation(problem: Bowl) -> None:
    """Plot what the perturbation points along, and whether it climbs."""
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    client = 3
    paths = local_paths(problem, FedWMSAM(), state_after(problem, FedWMSAM(), 5))
    draw_target(left, problem, client, paths[client])
    draw_cosines(right, problem)
    save(figure, "perturbation")


def draw_cosines(axes: Axes, problem: Bowl) -> None:
    """Plot the cosines of perturbations with gradients of two losses, for all clients."""
    methods: dict[str, Method] = {
        "FedSAM": FedSAM(),
        "trajectory\n(default)": FedWMSAM(),
        "literal": FedWMSAM(perturbation="literal"),
        "momentum": FedWMSAM(perturbation="momentum"),
    }
    state = state_after(problem, FedWMSAM(), LATE)
    for position, (name, method) in enumerate(methods.items()):
        paths = local_paths(problem, method, state)
        own_gradients = [problem.gradient(local.path[-2], k) for k, local in enumerate(paths)]
        gradients = [problem.gradient(local.path[-2]) for local in paths]
        title = " ".join(name.split())
        own_style = {"marker": "^", "color": BLUE}
        style = {"marker": "o", "color": ORANGE}
        if position == 0:
            own_style["label"] = "its own loss"
            style["label"] = "the federation's loss"
        mean = draw_column(axes, position - 0.16, cosines(paths, own_gradients), own_style)
        print(f"{title}, own: mean cosine {mean:+.2f}")
        mean = draw_column(axes, position + 0.16, cosines(paths, gradients), style)
        print(f"{title}, federation: mean cosine {mean:+.2f}")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(methods)), list(methods), fontsize=8)
    axes.set(ylim=(-1.08, 1.6), ylabel="cosine of ε with the gradient of …")
    axes.set_yticks([-1, -0.5, 0, 0.5, 1])
    axes.set_title(f"does ε climb? ten clients, round {LATE + 1}", fontsize=10)
    axes.legend(fontsize=8.5, frameon=False, loc="upper center")


def cosines(paths: Sequence[LocalPath], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the cosine of each client's last perturbation with its gradient."""
    perturbations = torch.stack([local.perturbations[-1] for local in paths])
    return list(cosine_similarity(perturbations, torch.stack(list(gradients)), dim=1))


def draw_column(axes: Axes, x: float, values: Sequence[Tensor], style: dict[str, Any]) -> Tensor:
    """Plot values above each other with a line at their mean, and return the mean."""
    mean = sum(values) / len(values)
    axes.plot([x] * len(values), values, linestyle="", alpha=0.65, markersize=6, **style)
    axes.plot([x - 0.12, x + 0.12], [mean, mean], color="black", linewidth=2)
    return mean


def draw_target(axes: Axes, problem: Bowl, client: int, local: LocalPath) -> None:
    """Plot w_b, t_b and the line between them, along which the perturbation points."""
    steps = torch.arange(len(local.path))[:, None]
    target = local.down["w"] - SETTINGS.lr * steps * local.down["m"]
    points = torch.cat([local.path, target])
    low = points.min(dim=0).values
    high = points.max(dim=0).values
    middle = (low + high) / 2
    reach = float((high - low).max()) * 0.62
    x_range = (middle[0] - reach, middle[0] + reach)
    y_range = (middle[1] - reach, middle[1] + reach)
    draw_contours(axes, problem, x_range, y_range, levels=10, client=client)
    arrow = {"arrowstyle": "->", "color": PINK, "linewidth": 1.4}
    for w, t in zip(local.path[1:-1], target[1:-1], strict=True):
        axes.annotate("", t.tolist(), w.tolist(), arrowprops=arrow)
    axes.plot(
        *target.T, "s--", color=GREEN, markersize=4, linewidth=1.3, label="t_b: momentum alone"
    )
    axes.plot(
        *local.path.T, "o-", color=ORANGE, markersize=4, linewidth=1.3, label="w_b: the client"
    )
    axes.plot([], [], color=PINK, label="ε points along t_b − w_b")
    axes.legend(fontsize=8, loc="best", framealpha=0.9)
    axes.set_title(f"client {client}, round 6, on its own loss", fontsize=10)


def draw_weight(problem: Bowl) -> None:
    """Plot α over the rounds, on the bowl by three rules and in a run on Fashion-MNIST."""
    figure = Figure(figsize=(6.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    rules = {"personalized": (ORANGE, "-"), "update": (BLUE, "--"), "disagreement": (PINK, "-.")}
    for rule, (colour, dashes) in rules.items():
        method = FedWMSAM(similarity=rule, adapt_rate=0.05)
        alpha = train(problem, method, rounds=100).columns["alpha"]
        left.plot(range(1, len(alpha) + 1), alpha, dashes, color=colour, linewidth=1.8, label=rule)
        print(f"similarity={rule}: α ends at {alpha[-1]:.2f}, highest {max(alpha):.2f}")
    left.set_title("the bowl, λ = 0.05, three rules", fontsize=10)
    with RUN.open() as file:
        rows = list(csv.DictReader(file))
    rounds = [int(row["round"]) for row in rows]
    for column, label, colour, width in (
        ("similarity", "similarity", SKY, 1.0),
        ("alpha", "α", ORANGE, 2.2),
    ):
        values = [float(row[column]) for row in rows]
        right.plot(rounds, values, "-", color=colour, linewidth=width, label=label)
        printed = [f"{values[r - 1]:.3f} in round {r}" for r in (1, 50, 200, 500)]
        print(f"Fashion-MNIST {column}: {', '.join(printed)}")
    right.set_title("Fashion-MNIST, λ = 0.01, one seed", fontsize=10)
    for axes in (left, right):
        axes.set(xlabel="round", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8.5, frameon=False)
    left.set_ylabel("α, weight of the fresh gradient")
    save(figure, "weight")


def draw_valley(problem: Problem) -> None:
    """Plot the paths of four methods in the valley, and the sharpness along them."""
    methods: dict[str, tuple[Method, str, str]] = {
        "FedAvg": (FedAvg(), GREY, "-"),
        "FedWMSAM without SAM": (FedWMSAM(perturbation="none"), GREEN, "-."),
        "FedSAM, ρ = 0.3": (FedSAM(rho=0.3), SKY, "--"),
        "FedWMSAM, ρ = 0.3": (FedWMSAM(rho=0.3), ORANGE, "-"),
    }
    figure = Figure(figsize=(6.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    levels = [0.03, 0.12, 0.3, 0.6, 1, 1.6, 2.6, 4, 6]
    draw_contours(left, problem, (0.3, 3.1), (-0.05, 1.7), levels=levels)
    minima = torch.linspace(0.6, 3.1, 100)
    left.plot(minima, 1 / minima, color="black", linewidth=1, linestyle=":")
    left.text(0.75, 1.5, "w₁ w₂ = 1", fontsize=9)
    for name, (method, colour, dashes) in methods.items():
        path = train(problem, method).path
        # On the line of minima this is the Hessian's one eigenvalue that is not 0.
        sharpness = 2 * (path**2).sum(dim=1)
        left.plot(
            *path.T, dashes, color=colour, linewidth=1.4, marker="o", markersize=2.4, label=name
        )
        right.plot(sharpness, dashes, color=colour, linewidth=1.8, label=name)
        loss = problem.loss(path[-10:]).mean()
        print(
            f"{name}: sharpness {sharpness[0]:.1f} → {sharpness[-10:].mean():.1f}, loss {loss:.3f}"
        )
    right.axhline(4, color="black", linewidth=1, linestyle=":")
    right.text(12, 1.3, "dotted: the flattest minimum", fontsize=9)
    right.set(
        xlabel="round", ylabel="curvature, 2 (w₁² + w₂²)", xlim=(0, SETTINGS.rounds), ylim=(0, 18)
    )
    right.grid(alpha=0.3)
    right.legend(fontsize=8, frameon=False, loc="upper right", bbox_to_anchor=(1.02, 0.74))
    left.set_title("the valley of equally good models", fontsize=10)
    save(figure, "valley")


def draw_contours(
    axes: Axes,
    problem: Problem,
    x_range: Sequence[Any],
    y_range: Sequence[Any],
    levels: int | list[float],
    client: int | None = None,
) -> None:
    """Plot contours of the loss, of one client or of the federation; darker is higher.

    `levels` are losses above the lowest one, or the number of contours.
    """
    x, y = (torch.linspace(float(low), float(high), 120) for low, high in (x_range, y_range))
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
    loss = problem.loss(grid, client)
    lowest = loss.min()
    if isinstance(levels, int):
        span = float(loss.max() - lowest)
        levels = [span * (i / levels) ** 2 for i in range(1, levels)]
    levels = [float(lowest) + level for level in levels]
    axes.contourf(x, y, loss, levels=levels, cmap=SHADES, extend="both")
    axes.contour(x, y, loss, levels=levels, colors="#BBBBBB", linewidths=0.7)
    axes.set(xlim=tuple(map(float, x_range)), ylim=tuple(map(float, y_range)))
    axes.tick_params(labelsize=8)


def save(figure: Figure, name: str) -> None:
    """Save a figure as an image of few colours, which is a third as large."""
    image = io.BytesIO()
    figure.savefig(image, dpi=140)
    Image.open(image).convert("RGB").quantize(96).save(HERE / f"how-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
