"""Plot FedWMSAM on the bowl with single formulas as the paper prints them, as readings.png.

    python docs/pictures/readings.py

The plot is for docs/paper-and-code.md. Most of these forms diverge, or stop far from the optimum;
that is why they are no options of the method and defined here.
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor
from two_weights import SETTINGS, bowl, train

from fedwmsam.methods import FedWMSAM, Info
from fedwmsam.methods.vectors import Vectors


class PrintedSign(FedWMSAM):
    """FedWMSAM with D1: Δ has the sign of an update."""

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        next_server = super().aggregate(server, mean, info)
        return next_server | {"Delta": -next_server["Delta"]}


class WithoutSteps(FedWMSAM):
    """FedWMSAM with D2: Δ is not divided by the number of local steps."""

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        next_server = super().aggregate(server, mean, info)
        return next_server | {"Delta": next_server["Delta"] * info.steps / info.cohort}


class PrintedServerStep(FedWMSAM):
    """FedWMSAM with D1 to D3: Δ = ū/η, then w − Δ."""

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        momentum = mean["delta"] / info.lr
        return super().aggregate(server, mean, info) | {
            "Delta": momentum,
            "w": server["w"] - momentum,
        }


class PrintedCorrection(FedWMSAM):
    """FedWMSAM with D4: + c_k instead of + (c − c_k)."""

    def momentum(self, server: Vectors, memory: Vectors) -> Tensor:
        return server["Delta"] + server["alpha"] / (1 - server["alpha"]) * memory["c_k"]


class LemmaCorrection(FedWMSAM):
    """FedWMSAM with D4 as Lemma 5 begins: + (c_k − c)."""

    def momentum(self, server: Vectors, memory: Vectors) -> Tensor:
        k = server["alpha"] / (1 - server["alpha"])
        return server["Delta"] + k * (memory["c_k"] - server["c"])


class OverTheCohort(FedWMSAM):
    """FedWMSAM with D6: c moves by the mean over the cohort, not over all clients."""

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {"c": server["c"] + mean["c_k"]}


class ReversedUpdate(FedWMSAM):
    """FedWMSAM with D1 mended where Algorithm 1 ends: Δ_k = x_r − x_B; then Eq. 1 and 5 as printed.

    c_k and c have the opposite signs, c = −Δ, and + c_k is a correction.
    """

    def momentum(self, server: Vectors, memory: Vectors) -> Tensor:
        return server["Delta"] + server["alpha"] / (1 - server["alpha"]) * memory["c_k"]

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        _, contribution = super().settle(server, memory, up, info)
        c_k = memory["c_k"] - server["c"] - contribution["Delta"]
        return {"c_k": c_k}, contribution | {"c_k": c_k - memory["c_k"]}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {"c": server["c"] + mean["c_k"]}


@dataclass(frozen=True)
class Line:
    """A line of the plot: a method and its style."""

    method: FedWMSAM
    colour: str
    dashes: str


LINES = {
    "as read here": Line(FedWMSAM(), "#D55E00", "-"),
    "D5: mean_gradient": Line(FedWMSAM(correction="mean_gradient"), "#555555", "--"),
    "D1, D4, D6: the update reversed": Line(ReversedUpdate(), "#E69F00", "-"),
    "D6: c over the cohort": Line(OverTheCohort(), "#0072B2", "-."),
    "D4: + c_k (Eq. 1)": Line(PrintedCorrection(), "#CC79A7", "--"),
    "D4: + (c_k − c) (as Lemma 5 begins)": Line(LemmaCorrection(), "#CC79A7", ":"),
    "D1: sign of Δ": Line(PrintedSign(), "#009E73", "-"),
    "D2: no 1/B": Line(WithoutSteps(), "#56B4E9", "-"),
    "D1–D3: server step": Line(PrintedServerStep(), "black", "-"),
}
"""Labels → lines, in the colours of Okabe and Ito, which colour-blind readers can tell apart.

The dashes differ, too.
"""
LIMIT = 1e3
"""Distance to the optimum from which on a method counts as diverged."""


def main() -> None:
    problem = bowl()
    figure = Figure(figsize=(6.2, 5.2), layout="constrained")
    axes = figure.subplots()
    for name, line in LINES.items():
        distance = (train(problem, line.method).path - problem.optimum()).norm(dim=1)
        axes.semilogy(distance, line.dashes, color=line.colour, linewidth=1.8, label=name)
        beyond = [round for round, value in enumerate(distance) if value > LIMIT]
        print(
            f"{name:26} last 20: {distance[-20:].mean():9.3g}   "
            f"farther than {LIMIT:g} in round {beyond[0] if beyond else None}"
        )
    axes.set(
        xlabel="round",
        ylabel="distance to the optimum",
        xlim=(0, SETTINGS.rounds),
        ylim=(3e-3, LIMIT),
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    main()
