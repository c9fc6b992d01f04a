"""Eigenvalues and trace against the dense Hessian, known matrices, and another library."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.known_curvature import (
    X,
    Y,
    dense_hessian,
    make_surface,
    make_symmetric_matrix,
    network,
)
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
        surface = make_surface(network(), batch=batch)
        torch.testing.assert_close(
            surface.hessian_vector_product(surface.task.initial_weights, v), expected
        )


def test_eigenvectors_are_orthonormal_and_have_their_residuals() -> None:
    hessian = dense_hessian(network())
    found = largest_eigenvalues(hessian.matmul, hessian[0], 4, tolerance=1e-9)
    residuals = found.vectors @ hessian - torch.from_numpy(found.values)[:, None] * found.vectors
    torch.testing.assert_close(
        torch.linalg.vector_norm(residuals, dim=1),
        torch.from_numpy(found.residuals),
        atol=1e-12,
        rtol=0.1,
    )
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_restarts_lose_nothing(count: int) -> None:
    """The spectrum is too crowded for the basis, which must restart.

    The eigenvalue that is furthest from 0 is the lowest one, and so not among the largest.
    """
    eigenvalues = [*np.linspace(0, 1, 392), *np.linspace(1.02, 1.2, 7), -5.0]
    matrix = make_symmetric_matrix(eigenvalues)
    products = 0

    def product(v: Tensor) -> Tensor:
        nonlocal products
        products += 1
        return matrix @ v

    found = largest_eigenvalues(product, matrix[0], count, tolerance=1e-8)
    assert found.values == pytest.approx(sorted(eigenvalues)[::-1][:count], abs=1e-9)
    assert found.converged and found.products == products > 2 * count + 30


def test_a_spectrum_that_did_not_converge_says_so() -> None:
    eigenvalues = np.linspace(0, 1, 400)
    matrix = make_symmetric_matrix(list(eigenvalues))
    found = largest_eigenvalues(matrix.matmul, matrix[0], 3, tolerance=1e-10, most=20)
    assert not found.converged and found.products == 20
    assert (np.abs(found.values[:, None] - eigenvalues).min(axis=1) <= found.residuals).all()
    assert found.values[0] < 0.999


@pytest.mark.parametrize(
    "eigenvalues", [[0.0] * 5, [3.0] * 5, [2.0, 0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, -3.0, -4.0, -5.0]]
)
def test_multiple_eigenvalues_are_found_as_often_as_they_occur(eigenvalues: list[float]) -> None:
    matrix = make_symmetric_matrix(eigenvalues)
    found = largest_eigenvalues(matrix.matmul, matrix[0], 5)
    assert found.values == pytest.approx(sorted(eigenvalues)[::-1], abs=1e-9)


def test_the_trace_of_a_diagonal_matrix_has_no_error() -> None:
    diagonal = torch.linspace(-1, 3, 50, dtype=torch.float64)
    estimate, exact = estimate_trace(diagonal.mul, diagonal, 3)
    assert estimate.value == pytest.approx(float(diagonal.sum()), rel=1e-12)
    assert estimate.error < 1e-12 and not exact


def test_the_traces_error_is_what_it_says_and_eigenvectors_reduce_it() -> None:
    matrix = make_symmetric_matrix([50.0, 20.0, *np.linspace(-0.1, 1, 198)])
    true = float(torch.trace(matrix))
    spectrum = largest_eigenvalues(matrix.matmul, matrix[0], 2, tolerance=1e-9)
    typical = []
    for deflated in (None, spectrum):
        estimates = [
            estimate_trace(matrix.matmul, matrix[0], 20, seed, deflated)[0] for seed in range(40)
        ]
        deviations = np.array([estimate.value - true for estimate in estimates])
        errors = np.array([estimate.error for estimate in estimates])
        assert np.sqrt(np.mean(deviations**2)) == pytest.approx(
            np.sqrt(np.mean(errors**2)), rel=0.35
        )
        assert np.abs(deviations.mean()) < 4 * deviations.std() / np.sqrt(40)
        typical.append(errors.mean())
    assert typical[1] < 0.2 * typical[0]


def test_the_same_seed_gives_the_same_result() -> None:
    measure = partial(
        measure_flatness, network(), X, Y, samples=30, probes=5, steps=2, directions=3
    )
    assert measure() == measure() != measure(seed=1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.last(self.layer(inputs[:, None].expand(-1, 3, -1)).mean(dim=1))
        return out


def test_fused_attention_has_a_hessian() -> None:
    torch.manual_seed(0)
    surface = make_surface(Attention().double())
    w = surface.task.initial_weights
    v = torch.randn(w.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ahead, _ = surface.gradient(w + 1e-5 * v)
    behind, _ = surface.gradient(w - 1e-5 * v)
    torch.testing.assert_close(
        surface.hessian_vector_product(w, v), (ahead - behind) / 2e-5, atol=1e-5, rtol=1e-5
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
    x = torch.randn(12, 3, 32, 32)
    y = torch.randint(10, (12,))
    found = measure_flatness(
        model, x, y, eigenvalues=2, probes=1, rho=(), adaptive_rho=(), batch_size=5
    )
    theirs = curvlinops.HessianLinearOperator(
        model.eval(), nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)]
    )
    expected = np.sort(eigsh(theirs.to_scipy(), k=2, which="LA", return_eigenvectors=False))[::-1]
    assert found.eigenvalues == pytest.approx(expected.tolist(), rel=1e-4)
    surface = make_surface(model, x, y)
    v = torch.randn(found.parameters)
    ours = surface.hessian_vector_product(surface.task.initial_weights, v)
    torch.testing.assert_close(ours, theirs @ v, atol=1e-4 * float(ours.abs().max()), rtol=1e-3)
