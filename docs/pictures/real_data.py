"""Draw results/real-data/*.csv as real-data.png: python docs/pictures/real_data.py"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
PANELS = {
    "cifar10-cnn": "CIFAR-10, small CNN",
    "cifar100-cnn": "CIFAR-100, small CNN",
    "office-cnn": "Office-Caltech10, small CNN",
    "shakespeare": "Shakespeare, character model",
}
STYLES = {"fedwmsam": ("FedWMSAM", "#D55E00"), "fedavg": ("FedAvg", "#666666")}


def read(name: str) -> list[dict[str, str]]:
    path = HERE.parents[1] / "results" / "real-data" / f"{name}.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    panels = {name: title for name, title in PANELS.items() if read(f"{name}-fedavg")}
    figure, axes = plt.subplots(1, len(panels), figsize=(2.9 * len(panels), 2.7), layout="constrained", squeeze=False)
    for axis, (name, title) in zip(axes[0], panels.items(), strict=True):
        for method, (label, colour) in STYLES.items():
            rows = [row for row in read(f"{name}-{method}") if row["accuracy"]]
            x, y = [int(row["round"]) for row in rows], [float(row["accuracy"]) for row in rows]
            axis.plot(x, y, color=colour, label=label, linewidth=1.5)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("round", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("test accuracy", fontsize=8)
    axes[0][0].legend(fontsize=8, frameon=False)
    figure.savefig(HERE / "real-data.png", dpi=150)


if __name__ == "__main__":
    main()
