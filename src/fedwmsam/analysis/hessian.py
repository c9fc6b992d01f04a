"""Curvature of a loss from Hessian-vector products: largest eigenvalues and trace.

The Hessian of P weights has P² entries and is never formed; a product with it costs about two
gradients. Eigenvalues are found by Lanczos iteration with full re-orthogonalisation and thick
restart, the trace by Hutchinson's estimator with Rademacher probes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.statistics import FloatArray

Product = Callable[[Tensor], Tensor]
"""A function from a vector v to the Hessian-vector product H v."""
TOLERANCE = 1e-4
"""Largest residual norm of a converged eigenpair, as a share of the largest |eigenvalue|."""
MOST_PRODUCTS = 500
"""Hessian-vector products after which the Lanczos iteration gives up."""
EXTRA_BASIS_VECTORS = 30
"""Size of the Lanczos basis beyond two vectors for each requested eigenvalue."""


class MonteCarloEstimate(NamedTuple):
    """A mean over random draws, with its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Spectrum:
    """The largest eigenvalues of a Hessian in falling order, with their eigenvectors."""

    values: FloatArray
    vectors: Tensor
    """One eigenvector per row."""
    residuals: FloatArray
    """‖H v − λ v‖ of each pair: some eigenvalue of H is no further away from λ than this."""
    products: int
    """Hessian-vector products that were computed."""
    converged: bool
    """Whether all residuals are within the tolerance."""


def largest_eigenvalues(
    product: Product,
    like: Tensor,
    count: int,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    most: int = MOST_PRODUCTS,
) -> Spectrum:
    """Return the `count` algebraically largest eigenvalues of the operator `product`.

    This is Lanczos iteration with full re-orthogonalisation and thick restart: a full basis is
    replaced by its best Ritz vectors. `most` limits the number of Hessian-vector products; `like`
    gives the size, dtype and device of the vectors.

    Largest means highest above zero, not furthest from it. From a single start vector a multiple
    eigenvalue is found only once, unless the Krylov space is exhausted and a new start is drawn.
    """
    size = like.numel()
    count = min(count, size)
    capacity = min(size, 2 * count + EXTRA_BASIS_VECTORS)
    basis = like.new_zeros(capacity, size)
    projected = np.zeros((capacity, capacity))
    draw = GaussianVectors(like, seed, "lanczos")
    rest = draw()
    values = np.zeros(0)
    vectors = np.zeros((0, 0))
    errors = np.zeros(0)
    converged = False
    used = 0
    products = 0
    while not converged and products < most:
        if used == capacity:
            used = restart(basis, projected, values, vectors, count)
        basis[used] = rest / torch.linalg.vector_norm(rest)
        image = product(basis[used])
        products += 1
        used += 1
        coefficients, rest = orthogonalise(image, basis[:used])
        entries = coefficients.cpu().double().numpy()
        projected[used - 1, :used] = entries
        projected[:used, used - 1] = entries
        values, vectors = falling_eigenpairs(projected[:used, :used])
        length = float(torch.linalg.vector_norm(rest))
        errors = length * np.abs(vectors[-1])
        scale = float(np.abs(values).max())
        within = used >= count and bool((errors[:count] <= tolerance * scale).all())
        converged = used == size or within
        if length <= 100 * torch.finfo(like.dtype).eps * scale:
            # The Krylov space is exhausted: go on with a new random start vector.
            rest = orthogonalise(draw(), basis[:used])[1]
    chosen = torch.from_numpy(vectors[:, :count].copy()).to(basis)
    return Spectrum(
        values=values[:count].copy(),
        vectors=chosen.T @ basis[:used],
        residuals=errors[:count].copy(),
        products=products,
        converged=converged,
    )


def falling_eigenpairs(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a symmetric matrix's eigenvalues in falling order and its eigenvectors as columns."""
    values, vectors = np.linalg.eigh(matrix)
    return values[..., ::-1], vectors[..., ::-1]


def orthogonalise(v: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return v's coefficients on the orthonormal rows of `basis`, and the remainder of v.

    The projection is done twice, because once leaves rounding errors along the basis.
    """
    coefficients = basis @ v
    rest = v - coefficients @ basis
    corrections = basis @ rest
    return coefficients + corrections, rest - corrections @ basis


def restart(
    basis: Tensor, projected: FloatArray, values: FloatArray, vectors: FloatArray, count: int
) -> int:
    """Replace a full Lanczos basis by its best Ritz vectors and return how many were kept.

    Besides the `count` requested ones, the best half of the others is kept (thick restart), so that
    what the iteration has learned about the largest eigenvalues is not lost.
    """
    keep = count + (len(values) - count) // 2
    best = torch.from_numpy(vectors[:, :keep].copy()).to(basis)
    basis[:keep] = best.T @ basis
    projected[:] = 0.0
    np.fill_diagonal(projected[:keep, :keep], values[:keep])
    return keep


def estimate_trace(
    product: Product, like: Tensor, probes: int, seed: int = 0, spectrum: Spectrum | None = None
) -> tuple[MonteCarloEstimate, bool]:
    """Return Hutchinson's estimate of the trace of H, and whether it is exact.

    The estimate is the mean of zᵀHz over Rademacher vectors z. If a `spectrum` is given, the part
    of the trace in its eigenvectors is the sum of their eigenvalues, and only the rest is estimated
    (deflation): this takes the largest terms out of the error. With at least as many probes as
    weights, the trace is computed exactly from the unit vectors.
    """
    size = like.numel()
    if probes >= size:
        diagonal = (product(unit)[index] for index, unit in enumerate(unit_vectors(like)))
        return MonteCarloEstimate(float(sum(diagonal)), 0.0), True
    deflated = like.new_zeros(0, size) if spectrum is None else spectrum.vectors
    draw = RademacherVectors(like, seed, "hutchinson")
    values = []
    for _ in range(probes):
        z = orthogonalise(draw(), deflated)[1]
        values.append(float(torch.dot(z.double(), product(z).double())))
    deflated_trace = 0.0 if spectrum is None else float(spectrum.values.sum())
    error = float(np.std(values, ddof=1) / np.sqrt(probes)) if probes > 1 else float("nan")
    return MonteCarloEstimate(deflated_trace + float(np.mean(values)), error), False


def unit_vectors(like: Tensor) -> Iterator[Tensor]:
    """Yield the unit vectors e₁, e₂ … of the size, dtype and device of `like`."""
    for index in range(like.numel()):
        v = torch.zeros_like(like)
        v[index] = 1.0
        yield v


class GaussianVectors:
    """A seeded source of vectors with independent standard normal entries, one per call."""

    def __init__(self, like: Tensor, seed: int, purpose: str, *indices: int) -> None:
        self.like = like
        self.stream = rng.generator(seed, purpose, *indices)

    def __call__(self) -> Tensor:
        """Draw the next vector."""
        return torch.from_numpy(self.stream.standard_normal(self.like.numel())).to(self.like)


class RademacherVectors(GaussianVectors):
    """A seeded source of vectors with independent entries ±1, one per call."""

    def __call__(self) -> Tensor:
        """Draw the next vector."""
        signs = 2.0 * self.stream.integers(0, 2, self.like.numel()) - 1.0
        return torch.from_numpy(signs).to(self.like)
