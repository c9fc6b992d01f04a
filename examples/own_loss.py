"""Beyond classification: regression, several labels per sample, and your own loss and metric.

python examples/own_loss.py
"""

import torch
from torch import Tensor, nn

import fedwmsam

torch.manual_seed(0)
inputs = [torch.randn(60, 6) + k / 3 for k in range(8)]  # eight clients whose inputs differ


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Huber loss: a loss is any function of outputs and targets."""
    return nn.functional.huber_loss(outputs, targets)


def largest_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the largest absolute error, as a metric."""
    return (outputs - targets).abs().max()


def main() -> None:
    # Targets have the shape of the outputs, (n, 1).
    sums = [(x, x.sum(dim=1, keepdim=True)) for x in inputs]
    result = fedwmsam.fit(
        nn.Linear(6, 1), sums[:7], test=sums[7], loss="regression", lr=0.02, rounds=30
    )
    print(f"regression: mean absolute error {result.last('mae'):.3f}")

    labels = [(x, (x[:, :3] > 0).float()) for x in inputs]  # three yes-or-no labels per sample
    result = fedwmsam.fit(nn.Linear(6, 3), labels[:7], test=labels[7], loss="multilabel", rounds=30)
    print(f"multi-label: {result.last('label_accuracy'):.3f} of the labels right")

    result = fedwmsam.fit(
        nn.Linear(6, 1),
        sums[:7],
        test=sums[7],
        validation=0.2,
        rounds=30,
        lr=0.02,
        loss=huber,
        metrics={"largest_error": largest_error},
        monitor="-largest_error",
    )
    print(
        f"own loss: largest error {result.last('largest_error'):.3f}, "
        f"best model of round {result.best_round}"
    )


if __name__ == "__main__":
    main()
