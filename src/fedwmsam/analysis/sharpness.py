"""How much a loss rises near a model: at worst and on average, in the plain ball and in one that follows the weights.

The adaptive ball is {w + |w| ∘ u : ‖u‖ ≤ ρ} (elementwise): scaling one layer of a ReLU network up and the next one down
changes neither its function nor this ball's losses, as it does the plain ball's.
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
    """Of the loss within the distance ρ."""

    rho: float
    worst: float
    """The largest that ascent found: the true one may be larger."""
    average: float
    """Over random directions of length ρ."""
    average_error: float
    """The average's standard error."""


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
    """For each radius, in rising order. `hints` are directions worth trying beside the gradient, such as the first
    eigenvector."""
    scale = w.abs() if adaptive else torch.ones_like(w)
    at_centre, found = surface.loss(w), []
    best = Candidate(torch.zeros_like(w), at_centre)
    for rho in sorted(radii):
        # The last radius's worst point is in this ball, too: the worst rise never falls as ρ grows.
        best = maximise_loss_in_ball(surface, w, scale, rho, steps, hints, best)
        mean = mean_increase(surface, w, scale, rho, directions, seed, at_centre)
        found.append(LossIncrease(rho, best.loss - at_centre, mean.value, mean.error))
    return tuple(found)


class Candidate(NamedTuple):
    """A shift u, in units of the scale, and the loss there."""

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
    """The highest point met while climbing with normalised steps, pulled back into the ball after each.

    The first start is SAM's own perturbation, ρ along the gradient. Steps shorten from ρ on, for a maximum inside.
    """
    slope = scale * surface.gradient(w)[0]
    # Along a direction of curvature both ways are uphill; the better one is that with the slope.
    uphill = [
        slope,
        *(
            scale * hint * (1.0 if float(torch.dot(scale * hint, slope)) >= 0 else -1.0)
            for hint in hints
        ),
    ]
    for start in [*uphill, best.u]:
        u = rho * unit_or_zero(start)
        for step in range(steps + 1):
            gradient, loss = surface.gradient(w + scale * u)
            if loss > best.loss:
                best = Candidate(u, loss)
            u = project_to_ball(
                u + rho * (1 - step / (steps + 1)) ** 2 * unit_or_zero(scale * gradient), rho
            )
    return best


def mean_increase(
    surface: LossSurface,
    w: Tensor,
    scale: Tensor,
    rho: float,
    directions: int,
    seed: int,
    at_centre: float,
) -> MonteCarloEstimate:
    """Each direction is taken both ways, which cancels the slope: what is left is curvature."""
    draw = GaussianVectors(w, seed, "directions")
    values = []
    for _ in range(directions):
        shift = scale * (rho * unit_or_zero(draw()))
        values.append((surface.loss(w + shift) + surface.loss(w - shift)) / 2 - at_centre)
    spread = float(np.std(values, ddof=1)) if directions > 1 else math.nan
    return MonteCarloEstimate(float(np.mean(values)), spread / math.sqrt(directions))


def unit_or_zero(v: Tensor) -> Tensor:
    """A zero vector stays zero."""
    length = torch.linalg.vector_norm(v)
    return v / length if float(length) > 0 else v


def project_to_ball(u: Tensor, rho: float) -> Tensor:
    length = float(torch.linalg.vector_norm(u))
    return u if length <= rho else u * (rho / length)
