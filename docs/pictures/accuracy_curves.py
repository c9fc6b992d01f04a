"""Draw results/fashion-mnist-200.csv as fashion-mnist-200.png: python docs/pictures/accuracy_curves.py"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
# Colours of Okabe and Ito, told apart by colour-blind readers; dashes mark the published form of weight decay.
STYLES = {
    "fedwmsam-objective": ("FedWMSAM", "#D55E00", "-"),
    "fedwmsam-sgd": ("FedWMSAM, published decay", "#D55E00", "--"),
    "scaffold": ("SCAFFOLD", "#0072B2", "-"),
    "fedavg": ("FedAvg", "#666666", "-"),
    "mofedsam-objective": ("MoFedSAM", "#CC79A7", "-"),
    "mofedsam-sgd": ("MoFedSAM, published decay", "#CC79A7", "--"),
    "fedcm-objective": ("FedCM", "#009E73", "-"),
    "fedcm-sgd": ("FedCM, published decay", "#009E73", "--"),
}


def smooth(values: list[float], window: int = 10) -> list[float]:
    return [
        sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))
    ]


def main() -> None:
    with (HERE.parents[1] / "results" / "fashion-mnist-200.csv").open() as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(7.2, 3.9), layout="constrained")
    for name, (label, colour, line) in STYLES.items():
        if name in rows[0]:
            axes.plot(
                smooth([float(row[name]) for row in rows]),
                line,
                color=colour,
                label=label,
                linewidth=1.6,
            )
    axes.set(xlabel="round", ylabel="test accuracy (mean of the last 10 rounds)")
    axes.set(ylim=(0.55, 0.88), xlim=(0, len(rows)))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right", ncols=2, frameon=False)
    axes.set_title("Fashion-MNIST, 100 clients, Dirichlet 0.1, 10 a round, one seed", fontsize=10)
    figure.savefig(HERE / "fashion-mnist-200.png", dpi=150)


if __name__ == "__main__":
    main()
