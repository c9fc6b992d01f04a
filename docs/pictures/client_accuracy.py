"""Plot each client's accuracy before and after one epoch of fine-tuning as client_accuracy.png.

    python docs/pictures/client_accuracy.py

The run is that of docs/compare.md: digits, seed 0, 20 clients, Dirichlet(0.1), FedWMSAM for 20
rounds, 10% of the training data held out.
"""

import tempfile
from pathlib import Path

from matplotlib.figure import Figure

from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve_config

# Colours of Okabe and Ito, which colour-blind readers can tell apart.
BEFORE = "#0072B2"
AFTER = "#D55E00"


def main() -> None:
    experiment = prepare(resolve_config({"rounds": 20, "validation": 0.1}))
    with tempfile.TemporaryDirectory() as folder:
        result = experiment.run(experiment.create(Path(folder) / "run"))
    evaluation = experiment.evaluate_breakdown(result.model, fine_tune=1)
    by_client = list(evaluation["by_client"].values())
    fine_tuned = list(evaluation["by_client_fine_tuned"].values())
    order = sorted(range(len(by_client)), key=lambda client: by_client[client])
    before = [by_client[k] for k in order]
    after = [fine_tuned[k] for k in order]
    x = range(len(order))

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.vlines(x, before, after, color="#BBBBBB", linewidth=2)
    axes.plot(x, before, "o", color=BEFORE, label="global model")
    axes.plot(x, after, "^", color=AFTER, label="after one epoch on the client's own data")
    axes.axhline(
        evaluation["accuracy"],
        color=BEFORE,
        linewidth=1,
        linestyle="--",
        label="global model, all test samples",
    )
    axes.set_xticks(x, [str(k) for k in order])
    axes.set(xlabel="client, worst first", ylabel="client accuracy")
    axes.set_ylim(0.68, 1.01)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
