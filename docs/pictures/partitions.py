"""Plot four partition rules on the digits as partitions.png: 20 clients, seed 0.

python docs/pictures/partitions.py
"""

from pathlib import Path

from matplotlib.figure import Figure

from fedwmsam.data import load_dataset, make_partition
from fedwmsam.report.partition_plot import plot_partition

RULES = ("dirichlet:0.1", "dirichlet-class:0.1", "shards:2", "longtail:50")


def main() -> None:
    labels = load_dataset("digits").train.labels.numpy()
    figure = Figure(figsize=(7.4, 6.6), layout="constrained")
    panels = figure.subfigures(2, 2, wspace=0.05, hspace=0.05).flat
    for panel, rule in zip(panels, RULES, strict=True):
        plot_partition(panel, make_partition(rule, labels, clients=20, seed=0), largest_share=1.0)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
