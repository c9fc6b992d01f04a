"""Draws readings.png for docs/contradictions.md: FedWMSAM on the bowl with single formulas as the paper prints them.

    python docs/pictures/readings.py

Most of these diverge, or stop far from the optimum; that is why they are no options of the method and live here.
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor
from two_weights import SETTINGS, bowl, walk

from fedwmsam.methods import FedWMSAM, Info
from fedwmsam.methods.vectors import Vectors


class PrintedSign(FedWMSAM):
    """D1: Δ with the sign of an update."""

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        following = super().aggregate(server, mean, info)
        return following | {"Delta": -following["Delta"]}


class WithoutSteps(FedWMSAM):
    """D2: Δ not divided by the number of local steps."""

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        following = super().aggregate(server, mean, info)
        return following | {"Delta": following["Delta"] * info.steps / info.cohort}


class PrintedServerStep(FedWMSAM):
    """D1 to D3: Δ = ū/η, then w − Δ."""

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        momentum = mean["delta"] / info.lr
        return super().aggregate(server, mean, info) | {
            "Delta": momentum,
            "w": server["w"] - momentum,
        }


class PrintedCorrection(FedWMSAM):
    """D4: + c_k instead of + (c − c_k)."""

    def momentum(self, server: Vectors, memory: Vectors) -> Tensor:
        return server["Delta"] + server["alpha"] / (1 - server["alpha"]) * memory["c_k"]


class LemmaCorrection(FedWMSAM):
    """D4, as in Lemma 5: + (c_k − c)."""

    def momentum(self, server: Vectors, memory: Vectors) -> Tensor:
        return server["Delta"] + server["alpha"] / (1 - server["alpha"]) * (
            memory["c_k"] - server["c"]
        )


class OverTheCohort(FedWMSAM):
    """D6: c moves by the mean over the cohort, not over all clients."""

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        return super().aggregate(server, mean, info) | {"c": server["c"] + mean["c_k"]}


@dataclass(frozen=True)
class Line:
    method: FedWMSAM
    colour: str
    dashes: str


# Colours of Okabe and Ito, told apart by colour-blind readers; the dashes differ, too.
LINES = {
    "as read here": Line(FedWMSAM(), "#D55E00", "-"),
    "D5: mean_gradient": Line(FedWMSAM(correction="mean_gradient"), "#555555", "--"),
    "D6: c over the cohort": Line(OverTheCohort(), "#0072B2", "-."),
    "D4: + c_k (Eq. 1)": Line(PrintedCorrection(), "#CC79A7", "--"),
    "D4: + (c_k − c) (Lemma 5)": Line(LemmaCorrection(), "#CC79A7", ":"),
    "D1: sign of Δ": Line(PrintedSign(), "#009E73", "-"),
    "D2: no 1/B": Line(WithoutSteps(), "#56B4E9", "-"),
    "D1–D3: server step": Line(PrintedServerStep(), "black", "-"),
}
LIMIT = 1e3


def main() -> None:
    problem = bowl()
    figure = Figure(figsize=(6.2, 5.2), layout="constrained")
    axes = figure.subplots()
    for name, line in LINES.items():
        distance = (walk(problem, line.method).path - problem.optimum()).norm(dim=1)
        axes.semilogy(distance, line.dashes, color=line.colour, linewidth=1.8, label=name)
        lost = next((round for round, far in enumerate(distance) if far > LIMIT), None)
        print(
            f"{name:26} last 20: {distance[-20:].mean():9.3g}   farther than {LIMIT:g} in round {lost}"
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
