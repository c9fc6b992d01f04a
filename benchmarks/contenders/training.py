"""Two usual ways to train a client in PyTorch; both functions return the number of steps."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset
from workload import BATCH, CLIP_NORM, EPOCHS, LEARNING_RATE, WEIGHT_DECAY


def train_with_loader(model: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    """Train with a DataLoader over the client's samples, as public simulators and tutorials do."""
    dataset = TensorDataset(inputs, labels)
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=0)
    return train_on_batches(model, load_batches(loader))


def train_with_gathers(model: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    """Train on resident tensors with batches gathered by index, as a careful person does."""
    return train_on_batches(model, gather_batches(inputs, labels))


def load_batches(loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of all epochs from a loader."""
    for _ in range(EPOCHS):
        yield from loader


def gather_batches(inputs: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of all epochs, gathered in a random order."""
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels)).split(BATCH):
            yield inputs[rows], labels[rows]


def train_on_batches(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> int:
    """Take a step on each batch, and return how many there were."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    model.train()
    steps = 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        steps += 1
    return steps
