"""The model, its loss, and the data: replace them with your own. Server and clients import this."""

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


LOSS = "classification"
"""Or "regression", "multilabel", or a function of (outputs, targets)."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float().mean()


def second_guess(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of samples whose class has the largest output or the second largest."""
    return (outputs.topk(2).indices == targets[:, None]).any(1).float().mean()


METRICS = {"accuracy": accuracy, "second_guess": second_guess}
"""What is reported of each evaluation, beside the loss."""


def load_data(partition: int, node_config: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return what this client trains on: an (x, y) pair, a dataset, or what else `fit` takes.

    `node_config` holds the values of --node-config that its SuperNode was started with. Here each
    client takes its share of scikit-learn's digits. On real machines read the data that are there,
    for example np.load(node_config["data"]) after
    --node-config "partition-id=0 data='/srv/scans.npz'".
    """
    inputs, labels = digits()
    mine = slice(partition, 1500, int(node_config["num-partitions"]))
    return inputs[mine], labels[mine]


def load_test() -> tuple[Tensor, Tensor]:
    """Return what the server evaluates on; without such data leave out `test=` in server.py."""
    inputs, labels = digits()
    return inputs[1500:], labels[1500:]


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
