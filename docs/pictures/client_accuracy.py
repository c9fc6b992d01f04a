"""Draws client_accuracy.png: each client's accuracy before and after one epoch of fine-tuning, on the digits, seed 0.

    python docs/pictures/client_accuracy.py

20 clients, Dirichlet(0.1), FedWMSAM for 20 rounds, 10% of the training data held out: the run of docs/evaluation.md.
"""

import tempfile
from pathlib import Path

from matplotlib.figure import Figure

from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve

BEFORE, AFTER = "#0072B2", "#D55E00"  # of Okabe and Ito, told apart by colour-blind readers


def main() -> None:
    experiment = prepare(resolve({"rounds": 20, "validation": 0.1}))
    with tempfile.TemporaryDirectory() as folder:
        result = experiment.run(experiment.create(Path(folder) / "run"))
    found = experiment.examine(result.model, fine_tune=1)
    before, after = (list(found[name].values()) for name in ("by_client", "by_client_fine_tuned"))
    order = sorted(range(len(before)), key=lambda client: before[client])
    places = range(len(order))

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    low, high = [before[k] for k in order], [after[k] for k in order]
    axes.vlines(places, low, high, color="#BBBBBB", linewidth=2)
    axes.plot(places, low, "o", color=BEFORE, label="global model")
    axes.plot(places, high, "^", color=AFTER, label="after one epoch on the client's own data")
    axes.axhline(
        found["accuracy"],
        color=BEFORE,
        linewidth=1,
        linestyle="--",
        label="global model, all test samples",
    )
    axes.set_xticks(places, [str(k) for k in order])
    axes.set(xlabel="client, worst first", ylabel="client accuracy")
    axes.set_ylim(0.68, 1.01)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
