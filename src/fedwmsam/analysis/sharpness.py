"""Sharpness of a loss: how much it rises within a ball around a model, at most and on average.

The plain ball is {w + u : ‖u‖ ≤ ρ}. The adaptive ball is {w + |w| ∘ u : ‖u‖ ≤ ρ} (elementwise), as
in ASAM: scaling one layer of a ReLU network up and the next one down changes the losses in the
plain ball, but neither the network's function nor the losses in the adaptive ball. The largest rise
is found by projected gradient ascent, the average over random directions.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedwmsam.analysis.hessian import GaussianVectors, MonteCarloEstimate
from fedwmsam.analysis.loss_surface import LossSurface


class LossIncrease(NamedTuple):
    """How much the loss rises within the distance ρ of a model."""

    rho: float
    worst: float
    """Largest increase that gradient ascent found; the true maximum may be larger."""
    average: float
    """Mean increase over random directions of length ρ."""
    average_error: float
    """Standard error of the average."""


def measure_sharpness(
    surface: LossSurface,
    w: Tensor,
    radii: Sequence[float],
    *,
    adaptive: bool = False,
    steps: int = 10,
    directions: int = 20,
    seed: int = 0,
    hints: Sequence[Tensor] = (),
) -> tuple[LossIncrease, ...]:
    """Return the loss increase within each radius, in rising order of the radii.

    The ascent takes `steps` steps from each start; the average is over `directions` random
    directions. `hints` are further starts beside the gradient, such as the first eigenvector.
    """
    scale = w.abs() if adaptive else torch.ones_like(w)
    loss_at_w = surface.loss(w)
    increases = []
    best = Candidate(torch.zeros_like(w), loss_at_w)
    for rho in sorted(radii):
        # The worst point of the last radius lies in this ball, too: the worst increase never falls
        # as ρ grows.
        best = maximise_loss_in_ball(surface, w, scale, rho, steps, hints, best)
        mean = mean_increase(surface, w, scale, rho, directions, seed, loss_at_w)
        increases.append(LossIncrease(rho, best.loss - loss_at_w, mean.value, mean.error))
    return tuple(increases)


class Candidate(NamedTuple):
    """A shift u from the model, in units of the ball's scale, and the loss there."""

    u: Tensor
    loss: float


def maximise_loss_in_ball(
    surface: LossSurface,
    w: Tensor,
    scale: Tensor,
    rho: float,
    steps: int,
    hints: Sequence[Tensor],
    best: Candidate,
) -> Candidate:
    """Return the highest point that projected gradient ascent meets in the ball, or `best`.

    Steps follow the normalised gradient and are projected back to the ball. The ascent starts at
    SAM's perturbation (ρ along the gradient), at ρ along each hint, and along the best point so
    far. The step length falls from ρ, so that a maximum inside the ball is found as well.
    """
    slope = scale * surface.gradient(w)[0]
    starts = [slope, *(ascent_direction(scale * hint, slope) for hint in hints), best.u]
    for start in starts:
        u = rho * unit_or_zero(start)
        for step in range(steps + 1):
            gradient, loss = surface.gradient(w + scale * u)
            if loss > best.loss:
                best = Candidate(u, loss)
            u = project_to_ball(
                u + rho * (1 - step / (steps + 1)) ** 2 * unit_or_zero(scale * gradient), rho
            )
    return best


def ascent_direction(direction: Tensor, slope: Tensor) -> Tensor:
    """Return the direction or its opposite, whichever does not point against the slope.

    Curvature raises the loss both ways along an eigenvector; the slope decides which is higher.
    """
    return direction * (1.0 if float(torch.dot(direction, slope)) >= 0 else -1.0)


def mean_increase(
    surface: LossSurface,
    w: Tensor,
    scale: Tensor,
    rho: float,
    directions: int,
    seed: int,
    loss_at_w: float,
) -> MonteCarloEstimate:
    """Estimate the mean increase of the loss over random directions of length ρ.

    Each direction is taken both ways, which cancels the slope and leaves the curvature.
    """
    draw = GaussianVectors(w, seed, "directions")
    values = []
    for _ in range(directions):
        shift = scale * (rho * unit_or_zero(draw()))
        values.append((surface.loss(w + shift) + surface.loss(w - shift)) / 2 - loss_at_w)
    spread = float(np.std(values, ddof=1)) if directions > 1 else math.nan
    return MonteCarloEstimate(float(np.mean(values)), spread / math.sqrt(directions))


def unit_or_zero(v: Tensor) -> Tensor:
    """Return v scaled to length 1, or v itself if it is zero."""
    length = torch.linalg.vector_norm(v)
    return v / length if float(length) > 0 else v


def project_to_ball(u: Tensor, rho: float) -> Tensor:
    """Return the point nearest to u in the ball of radius ρ around 0."""
    length = float(torch.linalg.vector_norm(u))
    return u if length <= rho else u * (rho / length)
