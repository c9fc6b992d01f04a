"""Small problems for tests of `fedwmsam.fit`: data of a few clients, models, and settings.

The classification problem (CLIENTS, TEST, VALIDATION) has three classes, the regression problem
(REGRESSION_CLIENTS) an exact linear target. Every sample of both has four features.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from fedwmsam.methods.vectors import Vectors

Arrays = tuple[np.ndarray, np.ndarray]
"""The features and the targets of some samples, one row per sample."""
CLASS_CENTRES = np.random.default_rng(1).normal(size=(3, 4)) * 1.5
"""The mean features of each of the three classes."""


def make_blobs(samples: int, seed: int) -> Arrays:
    """Return samples of three classes, normally distributed around their class's centre."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=samples)
    features = CLASS_CENTRES[labels] + rng.normal(size=(samples, 4))
    return features.astype(np.float32), labels


def make_line(samples: int, seed: int) -> Arrays:
    """Return samples whose target is y = x₁ − 2 x₂ + 0.5 without noise."""
    x = np.random.default_rng(seed).normal(size=(samples, 4)).astype(np.float32)
    return x, x[:, :1] - 2 * x[:, 1:2] + np.float32(0.5)


CLIENTS = [make_blobs(samples, seed) for seed, samples in enumerate((12, 8, 14, 11))]
TEST = make_blobs(40, 100)
VALIDATION = make_blobs(40, 101)
REGRESSION_CLIENTS = [make_line(12, seed) for seed in range(3)]

QUICK: dict[str, Any] = {"rounds": 3, "local_epochs": 2, "batch_size": 6, "participation": 0.5}
"""Settings of a short run: three rounds in which half of the clients train for two epochs."""
FULL_PARTICIPATION: dict[str, Any] = {
    "rounds": 1,
    "local_epochs": 1,
    "batch_size": 100,
    "participation": 1.0,
}
"""Settings of one round in which every client takes one step on all its samples."""
PLAIN_SGD: dict[str, Any] = {"weight_decay": 0.0, "clip_norm": None}
"""Settings of local steps along the gradient as it is."""


def linear_model() -> nn.Module:
    """Return a linear classifier of the three classes."""
    return nn.Linear(4, 3)


def stateful_model() -> nn.Module:
    """Return a classifier with BatchNorm, which has buffers, and dropout, which draws masks."""
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3)
    )


def regression_model() -> nn.Module:
    """Return a linear model with one output."""
    return nn.Linear(4, 1)


def build_seeded(factory: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Return the factory's model with weights drawn from the seed; PyTorch's state is kept."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return factory()


def copy_state(model: nn.Module) -> Vectors:
    """Return a copy of the model's state_dict that later training does not change."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def are_equal(first: Vectors, second: Vectors) -> bool:
    """Return whether both hold the same names with bit for bit the same values."""
    if first.keys() != second.keys():
        return False
    return all(torch.equal(first[name], second[name]) for name in first)


def is_finite(state: Vectors) -> bool:
    """Return whether no value is NaN or infinite."""
    return all(bool(torch.isfinite(value).all()) for value in state.values())


def flatten(state: Vectors) -> Tensor:
    """Return all values as one vector."""
    return torch.cat([value.reshape(-1) for value in state.values()])


def compute_gradient(model: nn.Module, data: Arrays) -> Vectors:
    """Return the gradient of the mean cross-entropy over the data, in double precision."""
    features = torch.from_numpy(data[0]).double()
    weights = dict(model.named_parameters())
    loss = functional.cross_entropy(model(features), torch.from_numpy(data[1]))
    gradients = torch.autograd.grad(loss, list(weights.values()))
    return dict(zip(weights, gradients, strict=True))


class ArrayDataset(Dataset[Any]):
    """A map-style dataset of (features, target) rows."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x = x
        self.y = y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]
