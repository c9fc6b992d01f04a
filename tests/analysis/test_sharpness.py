"""Sharpness against brute force in two dimensions, closed forms, and what must not change it."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.known_curvature import (
    X,
    Y,
    make_function_surface,
    make_surface,
    make_symmetric_matrix,
    network,
)
from torch import Tensor, nn

from fedwmsam.analysis.flatness import FlatnessConfig, from_record, measure_flatness
from fedwmsam.analysis.sharpness import measure_sharpness
from fedwmsam.errors import InputError


def bowl(w: Tensor) -> Tensor:
    return 3 * w[0] ** 2 + w[0] * w[1] + 0.5 * w[1] ** 2


def waves(w: Tensor) -> Tensor:
    return torch.sin(3 * w[0]) + 0.3 * torch.cos(5 * w[1]) + 0.2 * w[0] * w[1]


def hill(w: Tensor) -> Tensor:
    """Return a function whose maximum is inside the larger balls."""
    return -((w[0] - 0.45) ** 2) - 2 * (w[1] - 0.3) ** 2


def brute_force(
    function: Callable[[Tensor], Tensor], w: Tensor, scale: Tensor, rho: float
) -> float:
    """Return the largest increase on a fine grid of the ball."""
    angles, lengths = np.meshgrid(np.linspace(0, 2 * np.pi, 2001), np.linspace(0, rho, 101))
    u = torch.from_numpy(
        np.stack([(lengths * turn(angles)).ravel() for turn in (np.cos, np.sin)], axis=1)
    )
    return float((function((w + scale * u).T) - function(w)).max())


@pytest.mark.parametrize("function", [bowl, waves, hill])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_worst_rise_is_that_of_brute_force(
    function: Callable[[Tensor], Tensor], adaptive: bool
) -> None:
    surface, w = make_function_surface(function, [0.4, 0.2])
    scale = w.abs() if adaptive else torch.ones_like(w)
    for rise in measure_sharpness(surface, w, [0.05, 0.2, 0.6], adaptive=adaptive):
        assert rise.worst == pytest.approx(brute_force(function, w, scale, rise.rho), rel=1e-3), (
            rise.rho
        )


def test_a_quadratics_rises_are_its_eigenvalue_and_its_trace() -> None:
    matrix = make_symmetric_matrix([4.0, 3.0, 2.0, 1.0, 0.5, 0.1])
    surface, w = make_function_surface(lambda w: w @ matrix @ w / 2, [0.0] * 6)
    vector = torch.linalg.eigh(matrix).eigenvectors[:, -1]
    (rise,) = measure_sharpness(surface, w, [0.3], directions=2000, hints=[vector])
    assert rise.worst == pytest.approx(0.3**2 * 4.0 / 2, rel=1e-6), (
        "at a minimum the gradient alone leads nowhere"
    )
    expected = 0.3**2 * float(torch.trace(matrix)) / 6 / 2
    assert abs(rise.average - expected) < 4 * rise.average_error < 0.05 * expected


def test_a_larger_ball_is_never_less_sharp() -> None:
    surface, w = make_function_surface(lambda w: torch.sin(40 * w).sum(), [0.1, 0.2, 0.3])
    worst = [rise.worst for rise in measure_sharpness(surface, w, [0.4, 0.1, 0.2], steps=2)]
    assert worst == sorted(worst) and worst[0] > 0


def test_rescaling_layers_changes_curvature_but_not_the_adaptive_numbers() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in (other[0].weight, other[0].bias):
            parameter.mul_(5)
        other[2].weight.div_(5)
    first = measure_flatness(model, X, Y, eigenvalues=1, probes=2)
    second = measure_flatness(other, X, Y, eigenvalues=1, probes=2)
    assert first.loss == pytest.approx(second.loss)
    assert second.eigenvalues[0] > 2 * first.eigenvalues[0]
    for ours, theirs in zip(first.adaptive, second.adaptive, strict=True):
        assert theirs.worst == pytest.approx(ours.worst, rel=1e-3), (
            "the hint differs, the maximum does not"
        )
        assert theirs.average == pytest.approx(ours.average, rel=1e-6)


def test_losses_are_summed_in_double_precision() -> None:
    exact = measure_flatness(network(torch.float64), X, Y, rho=[2e-3], probes=1)
    single = measure_flatness(network(torch.float32), X, Y, rho=[2e-3], probes=1)
    assert single.sharpness[0].average == pytest.approx(exact.sharpness[0].average, rel=0.1)
    assert abs(exact.sharpness[0].average) < 1e-7


def test_the_loss_may_be_any_function_and_the_data_be_sampled() -> None:
    found = measure_flatness(
        nn.Linear(4, 1),
        X.float(),
        X.sum(dim=1, keepdim=True).float(),
        loss=nn.functional.l1_loss,
        samples=20,
        eigenvalues=2,
        probes=2,
        steps=2,
        directions=2,
        batch_size=6,
    )
    assert (found.samples, found.of, found.batch_size) == (20, 60, 6)
    assert found.eigenvalues == (0.0, 0.0), "|x| has no curvature but at its kink"
    assert found.sharpness[-1].worst > 0
    assert from_record(found.record()) == found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rho": [0.1, -1.0]}, "rho holds -1.0; a radius must be a number above 0."),
        ({"eigenvalues": 0}, "eigenvalues must be a whole number between 1 and 100, not 0."),
        ({"samples": 0}, "samples and batch_size must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        measure_flatness(network(), X, Y, **options)


def test_radii_are_sorted_and_occur_once() -> None:
    assert FlatnessConfig(rho=(0.1, 0.01, 0.1)).rho == (0.01, 0.1)
    assert make_surface(network()).size == 83
