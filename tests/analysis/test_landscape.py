"""Slices of losses that are known in closed form."""

import numpy as np
import pytest
import torch
from helpers.known_curvature import (
    WeightsModel,
    X,
    Y,
    make_function_surface,
    make_symmetric_matrix,
    network,
)
from torch import nn

from fedwmsam.analysis.hessian import GaussianVectors
from fedwmsam.analysis.landscape import (
    ALL_CLIENTS,
    compute_landscape,
    filter_direction,
    measure_landscape,
)
from fedwmsam.errors import InputError
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task

MATRIX = make_symmetric_matrix([3.0, 1.0, 0.5, 0.2])


def test_a_line_and_a_plane_reproduce_a_quadratic() -> None:
    """Weights as a 2 × 2 matrix, so that they have filters."""
    model = WeightsModel([0.0] * 4)
    model.w = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 0.3]], dtype=torch.float64))

    def function(w: torch.Tensor) -> torch.Tensor:
        return w.reshape(-1) @ MATRIX @ w.reshape(-1) / 2 + w.sum()

    task = Task(model, make_objective(lambda outputs, _: function(outputs)))
    surface, _ = make_function_surface(function, [0.0] * 4)
    surface.task = task
    surface.parameters = list(task.model.parameters())
    w = task.initial_weights
    axes = [
        filter_direction(w, task.layout, GaussianVectors(w, 7, "landscape", index))
        for index in range(2)
    ]
    line = compute_landscape(task, {ALL_CLIENTS: surface}, (w, {}), points=9, reach=0.5, seed=7)
    expected = [float(function(w + t * axes[0])) for t in np.linspace(-0.5, 0.5, 9)]
    assert line.y is None and line.losses[ALL_CLIENTS] == pytest.approx(expected, rel=1e-12)
    plane = compute_landscape(task, {ALL_CLIENTS: surface}, (w, {}), plane=True, points=5, seed=7)
    assert plane.y is not None
    grid = []
    for y in plane.y:
        grid.append([float(function(w + x * axes[0] + y * axes[1])) for x in plane.x])
    assert plane.losses[ALL_CLIENTS] == pytest.approx(np.array(grid), rel=1e-12)
    assert plane.lengths == pytest.approx([float(torch.linalg.vector_norm(axis)) for axis in axes])
    assert [row["loss"] for row in plane.point_records()] == pytest.approx(np.array(grid).ravel())
    assert torch.equal(next(task.model.parameters()).detach().reshape(-1), w), (
        "the task has the model's weights again"
    )


def test_filters_of_a_direction_are_as_long_as_the_models_and_biases_stay() -> None:
    task = Task(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)),
        make_objective("classification"),
    )
    w = task.initial_weights
    direction = filter_direction(w, task.layout, GaussianVectors(w, 0, "landscape"))
    for slot in task.layout:
        ours, theirs = (v[slot.slice].view(slot.shape[0], -1) for v in (w, direction))
        if len(slot.shape) == 1:
            assert not theirs.any(), slot.name
        else:
            torch.testing.assert_close(ours.norm(dim=1), theirs.norm(dim=1))
            assert float((ours * theirs).sum(dim=1).abs().max()) < 0.99 * float(
                ours.norm(dim=1).max() ** 2
            )


def test_the_line_between_two_models_ends_at_both_and_knows_its_barrier() -> None:
    first = nn.Linear(1, 1, bias=False)
    second = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        first.weight.fill_(-1.0)
        second.weight.fill_(1.0)

    def double_well(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return ((outputs**2 - 1) ** 2).mean() + 0.1 * outputs.mean()

    found = measure_landscape(
        first, torch.ones(3, 1), torch.zeros(3), other=second, loss=double_well, points=61
    )
    weights = -1 + 2 * found.x
    assert found.x[0] == -0.25 and found.x[-1] == 1.25 and found.axes == ("to other",)
    assert found.losses[ALL_CLIENTS] == pytest.approx(
        (weights**2 - 1) ** 2 + 0.1 * weights, abs=1e-5
    )
    assert found.barrier == pytest.approx(1.0, abs=1e-2), (
        "at 0 the well's hill of 1 above the line from −0.1 to 0.1"
    )


def test_by_default_both_models_are_on_the_line() -> None:
    first = network()
    second = network()
    with torch.no_grad():
        second[0].bias.add_(1.0)
    for plane in (False, True):
        found = measure_landscape(first, X, Y, other=second, plane=plane)
        assert np.isclose(found.x, 0, atol=1e-12).any() and np.isclose(found.x, 1).any()


def test_running_statistics_are_interpolated_between_two_models_but_not_beyond() -> None:
    def model(mean: float) -> nn.Module:
        made = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3))
        made[0].running_mean.fill_(mean)
        return made

    torch.manual_seed(0)
    first = model(0.0)
    second = model(2.0)
    second[1].load_state_dict(first[1].state_dict())
    found = measure_landscape(first, X.float(), Y, other=second, points=7)
    for t, loss in zip(found.x, found.losses[ALL_CLIENTS], strict=True):
        middle = model(2.0 * min(max(float(t), 0.0), 1.0)).eval()
        middle[1].load_state_dict(first[1].state_dict())
        assert loss == pytest.approx(
            float(nn.functional.cross_entropy(middle(X.float()), Y)), rel=1e-5
        )


def test_too_few_points_and_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 points and a reach above 0, not 1 and 1"):
        measure_landscape(network(), X, Y, points=1)
    with pytest.raises(InputError, match="do not fit the model at"):
        measure_landscape(network(), X, Y, other=nn.Linear(4, 3))
