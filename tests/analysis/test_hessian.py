"""Eigenvalues and trace against the dense Hessian, known matrices, and another library."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.known_curvature import X, Y, dense_hessian, network, quadratic, surface_of
from torch import Tensor, nn

from fedwmsam.analysis.flatness import measure_flatness
from fedwmsam.analysis.hessian import estimate_trace, largest_eigenvalues
from fedwmsam.models.lenet import lenet


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_networks_eigenvalues_and_trace_are_those_of_its_dense_hessian(
    dtype: torch.dtype,
) -> None:
    found = measure_flatness(network(dtype), X, Y, probes=83, rho=(), adaptive_rho=(), batch_size=7)
    expected = torch.linalg.eigvalsh(dense_hessian(network())).flip(0)
    assert found.eigenvalues == pytest.approx(expected[:5].tolist(), rel=1e-4)
    assert found.converged and found.trace_is_exact and found.trace.error == 0
    assert found.trace.value == pytest.approx(float(expected.sum()), rel=1e-4)
    assert found.parameters == 83 and found.samples == found.of == 60


def test_products_are_those_of_the_dense_hessian_whatever_the_batches() -> None:
    v = torch.randn(83, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = dense_hessian(network()) @ v
    for batch in (7, 60):
        surface = surface_of(network(), batch=batch)
        torch.testing.assert_close(surface.product(surface.task.initial_weights, v), expected)


def test_eigenvectors_and_their_residuals() -> None:
    hessian = dense_hessian(network())
    found = largest_eigenvalues(hessian.matmul, hessian[0], 4, tolerance=1e-9)
    rest = found.vectors @ hessian - torch.from_numpy(found.values)[:, None] * found.vectors
    torch.testing.assert_close(
        torch.linalg.vector_norm(rest, dim=1),
        torch.from_numpy(found.residuals),
        atol=1e-12,
        rtol=0.1,
    )
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_restarts_lose_nothing(count: int) -> None:
    """A spectrum too crowded for the room, so that it must restart; the lowest eigenvalue is furthest from 0."""
    eigenvalues = [*np.linspace(0, 1, 392), *np.linspace(1.02, 1.2, 7), -5.0]
    matrix, products = quadratic(eigenvalues), 0

    def product(v: Tensor) -> Tensor:
        nonlocal products
        products += 1
        return matrix @ v

    found = largest_eigenvalues(product, matrix[0], count, tolerance=1e-8)
    assert found.values == pytest.approx(sorted(eigenvalues)[::-1][:count], abs=1e-9)
    assert found.converged and found.products == products > 2 * count + 30


def test_it_says_when_it_did_not_get_there() -> None:
    eigenvalues = np.linspace(0, 1, 400)
    matrix = quadratic(list(eigenvalues))
    found = largest_eigenvalues(matrix.matmul, matrix[0], 3, tolerance=1e-10, most=20)
    assert not found.converged and found.products == 20
    assert (np.abs(found.values[:, None] - eigenvalues).min(axis=1) <= found.residuals).all()
    assert found.values[0] < 0.999


@pytest.mark.parametrize(
    "eigenvalues", [[0.0] * 5, [3.0] * 5, [2.0, 0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, -3.0, -4.0, -5.0]]
)
def test_spectra_with_few_distinct_values(eigenvalues: list[float]) -> None:
    matrix = quadratic(eigenvalues)
    found = largest_eigenvalues(matrix.matmul, matrix[0], 5)
    assert found.values == pytest.approx(sorted(eigenvalues)[::-1], abs=1e-9)


def test_the_trace_of_a_diagonal_needs_no_luck() -> None:
    diagonal = torch.linspace(-1, 3, 50, dtype=torch.float64)
    estimate, exact = estimate_trace(diagonal.mul, diagonal, 3)
    assert (
        estimate.value == pytest.approx(float(diagonal.sum()), rel=1e-12)
        and estimate.error < 1e-12
        and not exact
    )


def test_the_traces_error_is_what_it_says_and_eigenvectors_reduce_it() -> None:
    matrix = quadratic([50.0, 20.0, *np.linspace(-0.1, 1, 198)])
    true = float(torch.trace(matrix))
    spectrum = largest_eigenvalues(matrix.matmul, matrix[0], 2, tolerance=1e-9)
    typical = []
    for known in (None, spectrum):
        found = [estimate_trace(matrix.matmul, matrix[0], 20, seed, known)[0] for seed in range(40)]
        apart = np.array([estimate.value - true for estimate in found])
        errors = np.array([estimate.error for estimate in found])
        assert np.sqrt(np.mean(apart**2)) == pytest.approx(np.sqrt(np.mean(errors**2)), rel=0.35)
        assert np.abs(apart.mean()) < 4 * apart.std() / np.sqrt(40)
        typical.append(errors.mean())
    assert typical[1] < 0.2 * typical[0]


def test_one_seed_one_answer() -> None:
    again = partial(measure_flatness, network(), X, Y, samples=30, probes=5, steps=2, directions=3)
    assert again() == again() != again(seed=1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = (
            nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True),
            nn.Linear(4, 3),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.last(self.layer(inputs[:, None].expand(-1, 3, -1)).mean(dim=1))
        return out


def test_fused_attention_has_a_hessian() -> None:
    torch.manual_seed(0)
    surface = surface_of(Attention().double())
    w = surface.task.initial_weights
    v = torch.randn(w.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slopes = [surface.gradient(w + step * v)[0] for step in (1e-5, -1e-5)]
    torch.testing.assert_close(
        surface.product(w, v), (slopes[0] - slopes[1]) / 2e-5, atol=1e-5, rtol=1e-5
    )


def test_batch_norm_dropout_and_the_callers_model_stay_as_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)
    ).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    first, second = (
        measure_flatness(model, X.float(), Y, probes=2, steps=1, directions=2) for _ in range(2)
    )
    assert first == second, "dropout is off"
    assert model.training and torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert first.loss == pytest.approx(
            float(nn.functional.cross_entropy(model.eval()(X.float()), Y)), rel=1e-6
        )


@pytest.mark.slow
def test_curvlinops_agrees_on_lenet() -> None:
    curvlinops = pytest.importorskip("curvlinops")
    from scipy.sparse.linalg import eigsh

    torch.manual_seed(0)
    model = lenet((3, 32, 32), 10)
    x, y = torch.randn(12, 3, 32, 32), torch.randint(10, (12,))
    found = measure_flatness(
        model, x, y, eigenvalues=2, probes=1, rho=(), adaptive_rho=(), batch_size=5
    )
    theirs = curvlinops.HessianLinearOperator(
        model.eval(), nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)]
    )
    expected = np.sort(eigsh(theirs.to_scipy(), k=2, which="LA", return_eigenvectors=False))[::-1]
    assert found.eigenvalues == pytest.approx(expected.tolist(), rel=1e-4)
    surface, v = surface_of(model, x, y), torch.randn(found.parameters)
    ours = surface.product(surface.task.initial_weights, v)
    torch.testing.assert_close(ours, theirs @ v, atol=1e-4 * float(ours.abs().max()), rtol=1e-3)
