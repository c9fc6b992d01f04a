"""Plot results/real-data/*.csv as real-data.png.

python docs/pictures/real_data.py
"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

HERE = Path(__file__).resolve().parent
PANELS = {
    "cifar10-cnn": "CIFAR-10, small CNN",
    "cifar100-cnn": "CIFAR-100, small CNN",
    "office-cnn": "Office-Caltech10, small CNN",
    "office-lodo-cnn": "Office, unseen domain, small CNN",
    "cifar10-resnet18": "CIFAR-10, ResNet-18",
    "cifar100-resnet34": "CIFAR-100, ResNet-34",
    "office-resnet18": "Office-Caltech10, ResNet-18",
    "office-lodo-resnet18": "Office, unseen domain, ResNet-18",
    "shakespeare": "Shakespeare, character model",
}
COLUMNS = 3
STYLES = {"fedwmsam": ("FedWMSAM", "#D55E00"), "fedavg": ("FedAvg", "#666666")}


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a file, and none if there is no such file."""
    path = HERE.parents[1] / "results" / "real-data" / f"{name}.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    panels = {name: title for name, title in PANELS.items() if read_rows(f"{name}-fedavg")}
    rows = -(-len(panels) // COLUMNS)
    size = (2.5 * COLUMNS, 2.4 * rows)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, title) in zip(axes.flat, panels.items(), strict=False):
        for method, (label, colour) in STYLES.items():
            evaluated = [row for row in read_rows(f"{name}-{method}") if row["accuracy"]]
            x = [int(row["round"]) for row in evaluated]
            y = [float(row["accuracy"]) for row in evaluated]
            marker = "o" if len(x) < 10 else ""
            line = {"color": colour, "label": label, "linewidth": 1.5}
            axis.plot(x, y, marker=marker, markersize=3, **line)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("round", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("test accuracy", fontsize=8)
    axes[0][0].legend(fontsize=8, frameon=False)
    figure.savefig(HERE / "real-data.png", dpi=150)


if __name__ == "__main__":
    main()
