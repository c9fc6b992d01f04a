"""How people train a client in PyTorch, in two ways; both return the number of steps taken."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset
from workload import BATCH, CLIP_NORM, EPOCHS, LEARNING_RATE, WEIGHT_DECAY


def with_loader(model: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    """As public simulators and tutorials write it: a DataLoader over the client's samples."""
    loader = DataLoader(
        TensorDataset(inputs, labels), batch_size=BATCH, shuffle=True, num_workers=0
    )
    return descend(model, (batch for _ in range(EPOCHS) for batch in loader))


def with_gathers(model: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    """As a careful person writes it: resident tensors, batches gathered by index."""
    orders = (torch.randperm(len(labels)).split(BATCH) for _ in range(EPOCHS))
    return descend(model, ((inputs[rows], labels[rows]) for order in orders for rows in order))


def descend(model, batches) -> int:
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
