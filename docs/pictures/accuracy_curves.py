"""Plot results/fashion-mnist-200.csv as fashion-mnist-200.png.

python docs/pictures/accuracy_curves.py
"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
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
"""Columns → label, colour and dashes of the line.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart. Dashes mark the
published form of weight decay.
"""


def smooth(values: list[float], window: int = 10) -> list[float]:
    """Return the means over the last few values, at each of them."""
    means = []
    for end in range(1, len(values) + 1):
        last = values[max(0, end - window) : end]
        means.append(sum(last) / len(last))
    return means


def main() -> None:
    with (HERE.parents[1] / "results" / "fashion-mnist-200.csv").open() as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(7.2, 3.9), layout="constrained")
    for name, (label, colour, line) in STYLES.items():
        if name in rows[0]:
            accuracies = smooth([float(row[name]) for row in rows])
            axes.plot(accuracies, line, color=colour, label=label, linewidth=1.6)
    axes.set(xlabel="round", ylabel="test accuracy (mean of the last 10 rounds)")
    axes.set(ylim=(0.55, 0.88), xlim=(0, len(rows)))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right", ncols=2, frameon=False)
    axes.set_title("Fashion-MNIST, 100 clients, Dirichlet 0.1, 10 a round, one seed", fontsize=10)
    figure.savefig(HERE / "fashion-mnist-200.png", dpi=150)


if __name__ == "__main__":
    main()
