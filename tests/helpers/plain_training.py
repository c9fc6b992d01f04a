"""FedAvg in plain PyTorch, to compare with: copies of a model, `torch.optim`, and a mean."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

PLAIN: dict[str, Any] = {
    "method": "fedavg",
    "rounds": 2,
    "participation": 1.0,
    "local_epochs": 3,
    "batch_size": 100,
    "lr": 0.1,
    "lr_decay": 1.0,
    "weight_decay": 0.0,
    "clip_norm": None,
}
"""Settings of `fit` that make it what `train_plainly` does with clients of up to 100 samples."""
ComputeLoss = Callable[[nn.Module, Any], Tensor]
"""A function from a model and a batch to the loss."""


def call(model: nn.Module, x: Any) -> Tensor:
    """Return the model's output for a tensor, or for a tuple or mapping of its arguments."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def pair_loss(loss: Callable[[Tensor, Tensor], Tensor], model: nn.Module, pair: Any) -> Tensor:
    """Return the loss of a model on an (x, y) pair."""
    x, y = pair
    return loss(call(model, x), y)


cross_entropy: ComputeLoss = partial(pair_loss, functional.cross_entropy)


def train_plainly(
    model: nn.Module,
    clients: Sequence[Sequence[Any]],
    compute_loss: ComputeLoss = cross_entropy,
    make_optimizer: Callable[..., Optimizer] = SGD,
    rates: Sequence[float] = (0.1, 0.1),
) -> nn.Module:
    """Return a copy of the model after a round of FedAvg for each of the step sizes.

    Each of the clients is its batches in the order of its steps; the optimizer is new in each
    round.
    """
    model = copy.deepcopy(model)
    for lr in rates:
        trained = []
        for batches in clients:
            local = copy.deepcopy(model)
            parameters = [p for p in local.parameters() if p.requires_grad]
            optimizer = make_optimizer(parameters, lr=lr)
            for batch in batches:
                optimizer.zero_grad()
                compute_loss(local, batch).backward()
                optimizer.step()
            trained.append(local.state_dict())
        model.load_state_dict({name: mean_of(trained, name) for name in trained[0]})
    return model


def mean_of(states: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    """Return the mean of an entry of the clients' models; of counters it is the largest."""
    values = torch.stack([state[name] for state in states])
    return values.mean(0) if values.is_floating_point() else values.amax(0)


def own_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the loss that a model of transformers computes itself."""
    loss: Tensor = model(**batch).loss
    return loss


def full_batches(clients: Sequence[Any], steps: int = 3) -> list[list[Any]]:
    """Return for each client its data as the batch of every step, as `PLAIN` has them."""
    return [[data] * steps for data in clients]


def assert_same_weights(state: Mapping[str, Tensor], model: nn.Module) -> None:
    """Fail unless the state has every entry of the model to 1e-6."""
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=1e-6)
