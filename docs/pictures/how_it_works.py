"""Draws the pictures of docs/how-it-works.md and prints the numbers beside them: python docs/pictures/how_it_works.py

Every point in them is a weight that the library computed; nothing is sketched. About a minute on one core.
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
from torch.nn.functional import cosine_similarity
from two_weights import (
    CLIENTS,
    SETTINGS,
    Bowl,
    LocalWalk,
    Problem,
    bowl,
    local_walks,
    state_after,
    valley,
    walk,
)

from fedwmsam.methods import SCAFFOLD, FedAvg, FedCM, FedSAM, FedWMSAM, Method

HERE = Path(__file__).resolve().parent
RUN = HERE.parents[1] / "results" / "runs" / "fedwmsam-seed0-a8c4ceb8.csv"
# Of Okabe and Ito, told apart by colour-blind readers; where lines share axes their dashes differ, too.
GREY, GREEN, SKY, ORANGE, BLUE, PINK = (
    "#555555",
    "#009E73",
    "#56B4E9",
    "#D55E00",
    "#0072B2",
    "#CC79A7",
)
SHADES = ListedColormap([str(1 - 0.22 * i / 15) for i in range(16)])
"""From white, low, to a grey that lines stand out from."""
LATE = 40
"""Rounds after which the global model hardly moves."""


def main() -> None:
    torch.set_num_threads(1)
    draw_paths(bowl())
    draw_correction(bowl())
    draw_perturbation(bowl())
    draw_weight(bowl())
    draw_valley(valley())


def draw_paths(problem: Bowl) -> None:
    methods = {
        "FedAvg": (FedAvg(), GREY, "-"),
        "FedSAM": (FedSAM(), SKY, "--"),
        "FedCM": (FedCM(), GREEN, "-."),
        "FedWMSAM": (FedWMSAM(), ORANGE, "-"),
        "SCAFFOLD": (SCAFFOLD(), BLUE, ":"),
    }
    best = problem.optimum()
    figure = Figure(figsize=(6.2, 8.0), layout="constrained")
    grid = figure.add_gridspec(3, 2)
    below = figure.add_subplot(grid[2, :])
    panels = [(0, 0), (0, 1), (1, 0), (1, 1)]
    for name, (method, colour, dashes) in methods.items():
        path = walk(problem, method).path
        distance = (path - best).norm(dim=1)
        below.semilogy(distance, dashes, color=colour, label=name, linewidth=1.8)
        print(
            f"{name:9} distance to the optimum after 5 rounds {distance[5]:.2f}, last 20: {distance[-20:].mean():.3f}"
        )
        if panels and name != "SCAFFOLD":
            axes = figure.add_subplot(grid[panels.pop(0)])
            contours(axes, problem, (-4.6, 2.4), (-2.2, 4.2), levels=14)
            axes.plot(
                *torch.stack([problem.optimum(k) for k in range(CLIENTS)]).T,
                "x",
                color="#888888",
                markersize=5,
            )
            axes.plot(*path.T, "-", color=colour, linewidth=1.3, marker="o", markersize=2.6)
            axes.plot(*best, "*", color="black", markersize=12)
            axes.set_title(name, fontsize=11, color=colour, fontweight="bold")
    below.set(xlabel="round", ylabel="distance to the optimum", xlim=(0, SETTINGS.rounds))
    below.grid(alpha=0.3)
    below.legend(fontsize=9, frameon=False, ncols=3, loc="lower left")
    save(figure, "paths")


def draw_correction(problem: Bowl) -> None:
    """One round of all clients from one model and one momentum."""
    state = state_after(problem, FedWMSAM(), LATE)
    methods: dict[str, Method] = {
        "plain gradients": FedAvg(),
        "one momentum for all": FedWMSAM(correction="none"),
        "personalized momentum": FedWMSAM(),
    }
    figure = Figure(figsize=(6.2, 2.9), layout="constrained")
    for axes, (name, method), colour in zip(
        figure.subplots(1, 3, sharex=True, sharey=True),
        methods.items(),
        (GREY, GREEN, ORANGE),
        strict=True,
    ):
        walks = local_walks(problem, method, state)
        moves = torch.stack([local.path[-1] - local.path[0] for local in walks])
        contours(axes, problem, (-1.9, 1.5), (-1.8, 1.6), levels=9)
        for local in walks:
            axes.plot(*local.path.T, color=colour, linewidth=1.2)
            axes.plot(*local.path[-1], "o", color=colour, markersize=4)
        axes.plot(*problem.optimum(), "*", color="black", markersize=10)
        axes.set_title(name, fontsize=9, color=colour, fontweight="bold")
        spread = (moves - moves.mean(dim=0)).norm(dim=1).mean()
        axes.set_xlabel(f"clients end {spread:.3f}\nfrom their mean", fontsize=9)
        print(f"{name}: {spread:.4f} from their mean, which moves {moves.mean(dim=0).norm():.4f}")
    save(figure, "correction")


def draw_perturbation(problem: Bowl) -> None:
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    client = 3
    draw_target(
        left,
        problem,
        client,
        local_walks(problem, FedWMSAM(), state_after(problem, FedWMSAM(), 5))[client],
    )
    readings: dict[str, Method] = {
        "FedSAM": FedSAM(),
        "trajectory\n(default)": FedWMSAM(),
        "literal": FedWMSAM(perturbation="literal"),
        "momentum": FedWMSAM(perturbation="momentum"),
    }
    state = state_after(problem, FedWMSAM(), LATE)
    for place, (name, method) in enumerate(readings.items()):
        walks = local_walks(problem, method, state)
        for shift, colour, marker, own in ((-0.16, BLUE, "^", True), (0.16, ORANGE, "o", False)):
            cosines = [
                cosine_similarity(
                    local.perturbations[-1],
                    problem.gradient(local.path[-2], k if own else None),
                    dim=0,
                )
                for k, local in enumerate(walks)
            ]
            mean = sum(cosines) / CLIENTS
            label = ("its own loss" if own else "the federation's loss") if not place else None
            right.plot(
                [place + shift] * CLIENTS,
                cosines,
                marker,
                color=colour,
                alpha=0.65,
                markersize=6,
                label=label,
            )
            right.plot(
                [place + shift - 0.12, place + shift + 0.12],
                [mean, mean],
                color="black",
                linewidth=2,
            )
            print(
                f"{' '.join(name.split())}, {'own' if own else 'federation'}: mean cosine {mean:+.2f}"
            )
    right.axhline(0, color="black", linewidth=0.8)
    right.set_xticks(range(len(readings)), list(readings), fontsize=8)
    right.set(ylim=(-1.08, 1.6), ylabel="cosine of ε with the gradient of …")
    right.set_yticks([-1, -0.5, 0, 0.5, 1])
    right.set_title(f"does ε climb? ten clients, round {LATE + 1}", fontsize=10)
    right.legend(fontsize=8.5, frameon=False, loc="upper center")
    save(figure, "perturbation")


def draw_target(axes: Axes, problem: Bowl, client: int, local: LocalWalk) -> None:
    """w_b, t_b and the line between them, along which the perturbation points."""
    steps = torch.arange(len(local.path))[:, None]
    target = local.down["w"] - SETTINGS.lr * steps * local.down["m"]
    points = torch.cat([local.path, target])
    low, high = points.min(dim=0).values, points.max(dim=0).values
    middle, reach = (low + high) / 2, float((high - low).max()) * 0.62
    contours(
        axes,
        problem,
        (middle[0] - reach, middle[0] + reach),
        (middle[1] - reach, middle[1] + reach),
        levels=10,
        client=client,
    )
    for w, t in zip(local.path[1:-1], target[1:-1], strict=True):
        axes.annotate(
            "",
            t.tolist(),
            w.tolist(),
            arrowprops={"arrowstyle": "->", "color": PINK, "linewidth": 1.4},
        )
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
    figure = Figure(figsize=(6.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    rules = {"personalized": (ORANGE, "-"), "update": (BLUE, "--"), "disagreement": (PINK, "-.")}
    for rule, (colour, dashes) in rules.items():
        alpha = walk(problem, FedWMSAM(similarity=rule, adapt_rate=0.05), rounds=100).columns[
            "alpha"
        ]
        left.plot(range(1, len(alpha) + 1), alpha, dashes, color=colour, linewidth=1.8, label=rule)
        print(f"similarity={rule}: α ends at {alpha[-1]:.2f}, highest {max(alpha):.2f}")
    left.set_title("the bowl, λ = 0.05, three rules", fontsize=10)
    with RUN.open() as file:
        rows = list(csv.DictReader(file))
    rounds = [int(row["round"]) for row in rows]
    for column, colour, dashes in (("similarity", SKY, "-"), ("alpha", ORANGE, "-")):
        values = [float(row[column]) for row in rows]
        width = 1.0 if column == "similarity" else 2.2
        right.plot(
            rounds,
            values,
            dashes,
            color=colour,
            linewidth=width,
            label={"alpha": "α"}.get(column, column),
        )
        print(
            f"Fashion-MNIST {column}: "
            + ", ".join(f"{values[r - 1]:.3f} in round {r}" for r in (1, 50, 200, 500))
        )
    right.set_title("Fashion-MNIST, λ = 0.01, one seed", fontsize=10)
    for axes in (left, right):
        axes.set(xlabel="round", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8.5, frameon=False)
    left.set_ylabel("α, weight of the fresh gradient")
    save(figure, "weight")


def draw_valley(problem: Problem) -> None:
    methods: dict[str, tuple[Method, str, str]] = {
        "FedAvg": (FedAvg(), GREY, "-"),
        "FedWMSAM without SAM": (FedWMSAM(perturbation="none"), GREEN, "-."),
        "FedSAM, ρ = 0.3": (FedSAM(rho=0.3), SKY, "--"),
        "FedWMSAM, ρ = 0.3": (FedWMSAM(rho=0.3), ORANGE, "-"),
    }
    figure = Figure(figsize=(6.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    contours(
        left, problem, (0.3, 3.1), (-0.05, 1.7), levels=[0.03, 0.12, 0.3, 0.6, 1, 1.6, 2.6, 4, 6]
    )
    bend = torch.linspace(0.6, 3.1, 100)
    left.plot(bend, 1 / bend, color="black", linewidth=1, linestyle=":")
    left.text(0.75, 1.5, "w₁ w₂ = 1", fontsize=9)
    for name, (method, colour, dashes) in methods.items():
        path = walk(problem, method).path
        sharpness = 2 * (path**2).sum(
            dim=1
        )  # on the line of minima: the Hessian's one eigenvalue that is not 0
        left.plot(
            *path.T, dashes, color=colour, linewidth=1.4, marker="o", markersize=2.4, label=name
        )
        right.plot(sharpness, dashes, color=colour, linewidth=1.8, label=name)
        ends = problem.loss(path[-10:]).mean()
        print(
            f"{name}: sharpness {sharpness[0]:.1f} → {sharpness[-10:].mean():.1f}, loss {ends:.3f}"
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


def contours(
    axes: Axes,
    problem: Problem,
    across: Sequence[Any],
    up: Sequence[Any],
    levels: int | list[float],
    client: int | None = None,
) -> None:
    """Level lines of the loss, given as heights above its lowest or as their number; darker is higher."""
    x, y = (torch.linspace(float(low), float(high), 120) for low, high in (across, up))
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
    height = problem.loss(grid, client)
    least, reach = height.min(), height.max() - height.min()
    if isinstance(levels, int):
        levels = [float(reach) * (i / levels) ** 2 for i in range(1, levels)]
    levels = [float(least) + level for level in levels]
    axes.contourf(x, y, height, levels=levels, cmap=SHADES, extend="both")
    axes.contour(x, y, height, levels=levels, colors="#BBBBBB", linewidths=0.7)
    axes.set(xlim=tuple(map(float, across)), ylim=tuple(map(float, up)))
    axes.tick_params(labelsize=8)


def save(figure: Figure, name: str) -> None:
    """As a picture of few colours, which is a third as large."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=140)
    Image.open(drawn).convert("RGB").quantize(96).save(HERE / f"how-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
