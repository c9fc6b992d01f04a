"""How a model gets the weights that it computes with: copied, or where they are."""

import pytest
import torch
from torch import Tensor, nn

from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Batch, Task

SMALL = 8
LARGE = 256
"""Widths of a layer that is copied, and of one that is large enough for a view."""


class Clamping(nn.Module):
    """A layer that changes its own weights whenever it computes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.layer.weight.clamp_(-0.01, 0.01)
        output: Tensor = self.layer(x)
        return output


def make_task(model: nn.Module) -> Task:
    task = Task(model, OBJECTIVES["classification"])
    task.start_training({})
    return task


def make_batch(width: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, width, generator=generator), torch.arange(4)


def gradient_at(task: Task, w: Tensor, batch: Batch) -> Tensor:
    gradient, _ = task.compute_gradient(w, batch, seed=0, update_buffers=True)
    return gradient


def weight_of(task: Task) -> Tensor:
    (weight,) = task.model.parameters()
    return weight


@pytest.mark.parametrize(("width", "is_view"), [(SMALL, False), (LARGE, True)])
def test_large_weights_are_used_where_they_are_and_small_ones_copied(width, is_view):
    task = make_task(nn.Linear(width, width, bias=False))
    batch = make_batch(width)
    gradient_at(task, task.initial_weights, batch)
    w = task.initial_weights + 1
    gradient_at(task, w, batch)
    assert (weight_of(task).data_ptr() == w.data_ptr()) is is_view
    assert torch.equal(weight_of(task).flatten(), w)


def test_the_gradient_is_the_same_in_both_ways():
    batch = make_batch(LARGE)
    task = make_task(nn.Linear(LARGE, LARGE, bias=False))
    points = [task.initial_weights, task.initial_weights * 2, task.initial_weights - 1]
    for point in points:
        copied = make_task(nn.Linear(LARGE, LARGE, bias=False))  # its first weights are a copy
        assert torch.equal(gradient_at(task, point, batch), gradient_at(copied, point, batch))


def test_a_model_that_changes_its_weights_never_gets_those_of_a_method():
    task = make_task(Clamping(LARGE))
    batch = make_batch(LARGE)
    for scale in (1.0, 2.0, 3.0):
        w = task.initial_weights * scale
        before = w.clone()
        gradient_at(task, w, batch)
        assert torch.equal(w, before)
        assert weight_of(task).abs().max() <= 0.01


def test_loaded_weights_are_a_copy_again():
    task = make_task(nn.Linear(LARGE, LARGE, bias=False))
    batch = make_batch(LARGE)
    w = task.initial_weights.clone()
    gradient_at(task, w, batch)
    gradient_at(task, w, batch)
    task.load_weights(w)
    with torch.no_grad():
        weight_of(task).zero_()
    assert torch.equal(w, task.initial_weights)


def test_weights_that_are_not_contiguous_are_copied():
    task = make_task(nn.Linear(LARGE, LARGE, bias=False))
    batch = make_batch(LARGE)
    gradient = gradient_at(task, task.initial_weights, batch)
    spread = torch.stack([task.initial_weights, task.initial_weights], dim=1)[:, 0]
    assert not spread.is_contiguous()
    assert torch.equal(gradient_at(task, spread, batch), gradient)
