"""Curvature of a loss from products of its Hessian with vectors: largest eigenvalues and trace.

The Hessian of P weights has P² entries and is never formed; a product with it costs about two gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.statistics import FloatArray

Product = Callable[[Tensor], Tensor]
"""v → H v."""
TOLERANCE = 1e-4
"""Length of an eigenpair's residual, as a share of the largest eigenvalue."""
MOST_PRODUCTS = 500
EXTRA_BASIS_VECTORS = 30
"""Vectors kept beside two for each wanted eigenvalue."""


class MonteCarloEstimate(NamedTuple):
    """A mean of random draws and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Spectrum:
    """The largest eigenvalues, falling."""

    values: FloatArray
    vectors: Tensor
    """A row each."""
    residuals: FloatArray
    """‖H v − λ v‖: an eigenvalue of H is no further away from λ than this."""
    products: int
    converged: bool


def largest_eigenvalues(
    product: Product,
    like: Tensor,
    count: int,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    most: int = MOST_PRODUCTS,
) -> Spectrum:
    """Lanczos' method with full re-orthogonalisation, restarted with its best vectors when its room is used up.

    Largest means highest above zero, not furthest from it. From a single start an eigenvalue that occurs several times
    is found once, unless the vectors found span all of what H can reach. `like` gives size, type and device.
    """
    size = like.numel()
    count = min(count, size)
    room = min(size, 2 * count + EXTRA_BASIS_VECTORS)
    basis, projected, used = like.new_zeros(room, size), np.zeros((room, room)), 0
    draw = GaussianVectors(like, seed, "lanczos")
    rest, values, vectors, errors, done = draw(), np.zeros(0), np.zeros((0, 0)), np.zeros(0), False
    products = 0
    while not done and products < most:
        if used == room:
            used = restart(basis, projected, values, vectors, count)
        basis[used] = rest / torch.linalg.vector_norm(rest)
        image, products, used = product(basis[used]), products + 1, used + 1
        coefficients, rest = orthogonalise(image, basis[:used])
        projected[used - 1, :used] = projected[:used, used - 1] = (
            coefficients.double().cpu().numpy()
        )
        values, vectors = (array[..., ::-1] for array in np.linalg.eigh(projected[:used, :used]))
        length = float(torch.linalg.vector_norm(rest))
        errors, scale = length * np.abs(vectors[-1]), float(np.abs(values).max())
        done = used == size or (used >= count and bool((errors[:count] <= tolerance * scale).all()))
        if (
            length <= 100 * torch.finfo(like.dtype).eps * scale
        ):  # nothing new can be reached from here
            rest = orthogonalise(draw(), basis[:used])[1]
    chosen = torch.from_numpy(vectors[:, :count].copy()).to(basis)
    return Spectrum(
        values[:count].copy(), chosen.T @ basis[:used], errors[:count].copy(), products, done
    )


def orthogonalise(v: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """v's coefficients on orthonormal rows and what they leave over; twice, because once leaves rounding errors."""
    coefficients = basis @ v
    rest = v - coefficients @ basis
    again = basis @ rest
    return coefficients + again, rest - again @ basis


def restart(
    basis: Tensor, projected: FloatArray, values: FloatArray, vectors: FloatArray, count: int
) -> int:
    """Make room: the best half of the free vectors stays beside those wanted, and no progress is lost."""
    keep = count + (len(values) - count) // 2
    best = torch.from_numpy(vectors[:, :keep].copy()).to(basis)
    basis[:keep] = best.T @ basis
    projected[:] = 0.0
    np.fill_diagonal(projected[:keep, :keep], values[:keep])
    return keep


def estimate_trace(
    product: Product, like: Tensor, probes: int, seed: int = 0, spectrum: Spectrum | None = None
) -> tuple[MonteCarloEstimate, bool]:
    """Hutchinson's estimate: the mean of zᵀHz over random signs z; and whether it is exact.

    The part of the trace in known eigenvectors is their eigenvalues' sum; only the rest is estimated, which takes the
    largest terms out of the error. With as many probes as weights, the unit vectors give the trace itself.
    """
    size = like.numel()
    if probes >= size:
        return MonteCarloEstimate(
            float(sum(product(unit)[place] for place, unit in enumerate(units(like)))), 0.0
        ), True
    known = like.new_zeros(0, size) if spectrum is None else spectrum.vectors
    draw = RademacherVectors(like, seed, "hutchinson")
    values = []
    for _ in range(probes):
        z = orthogonalise(draw(), known)[1]
        values.append(float(torch.dot(z.double(), product(z).double())))
    found = 0.0 if spectrum is None else float(spectrum.values.sum())
    error = float(np.std(values, ddof=1) / np.sqrt(probes)) if probes > 1 else float("nan")
    return MonteCarloEstimate(found + float(np.mean(values)), error), False


def units(like: Tensor) -> "map[Tensor]":
    def unit(place: int) -> Tensor:
        v = torch.zeros_like(like)
        v[place] = 1.0
        return v

    return map(unit, range(like.numel()))


class GaussianVectors:
    """Vectors of standard normal numbers, the next one on each call."""

    def __init__(self, like: Tensor, seed: int, purpose: str, *indices: int) -> None:
        self.like, self.stream = like, rng.generator(seed, purpose, *indices)

    def __call__(self) -> Tensor:
        return torch.from_numpy(self.stream.standard_normal(self.like.numel())).to(self.like)


class RademacherVectors(GaussianVectors):
    """Vectors of +1 and −1."""

    def __call__(self) -> Tensor:
        return torch.from_numpy(2.0 * self.stream.integers(0, 2, self.like.numel()) - 1.0).to(
            self.like
        )
