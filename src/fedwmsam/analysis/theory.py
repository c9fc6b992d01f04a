"""The FedWMSAM paper's theorem as numbers: its bound, its tables, two of its lemmas as experiments.

The theorem (its Appendix A) bounds (1/R) Σ_r E‖∇f(x_r)‖², up to a constant it does not name, by

    √(L Δ σ_ρ² / (S K R))  +  (L Δ / R) · (1 + N^{2/3}/S),        σ_ρ² = σ² + (L ρ)²

with L the smoothness, Δ = f(x_0) − f*, σ² the variance of a mini-batch gradient, ρ the radius of the perturbation, S of
N clients a round, K local steps and R rounds. Its Lemma 4, E‖∇F(x + δ; ξ) − ∇f(x)‖² ≤ σ² + (L ρ)², is right. But (L ρ)²
is there the square of a bias, the same in every gradient: the mean of S K of them keeps it. The proof takes it for a
variance and divides it by S K. What can be kept is √(L Δ σ² / (S K R)) + (L ρ)² + …: `Bound` has both forms.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedwmsam.analysis.statistics import Numbers
from fedwmsam.errors import InputError


@dataclass(frozen=True)
class Setting:
    """What the bound depends on."""

    smoothness: float
    gap: float
    """Δ = f(x_0) − f*."""
    sigma: float
    rho: float
    cohort: int
    steps: int
    rounds: int
    clients: int

    def __post_init__(self) -> None:
        for name in ("smoothness", "gap", "sigma", "rho"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a number of at least 0, not {getattr(self, name)!r}.")
        for name in ("cohort", "steps", "rounds", "clients"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {getattr(self, name)!r}.")
        if self.cohort > self.clients:
            raise InputError(f"cohort is {self.cohort}, but there are only {self.clients} clients.")


class Bound(NamedTuple):
    """The theorem's terms, without the constant in front."""

    noise: float
    """√(L Δ σ_ρ² / (S K R)), as printed."""
    rounds: float
    """(L Δ / R)(1 + N^{2/3}/S)."""
    noise_alone: float
    """√(L Δ σ² / (S K R)): what remains of the first term when (L ρ)² is not divided by S K."""
    bias: float
    """(L ρ)², which more clients, steps or rounds do not make smaller."""

    @property
    def printed(self) -> float:
        return self.noise + self.rounds

    @property
    def with_bias(self) -> float:
        return self.noise_alone + self.rounds + self.bias


def bound(setting: Setting) -> Bound:
    height = setting.smoothness * setting.gap
    work = setting.cohort * setting.steps * setting.rounds
    bias = (setting.smoothness * setting.rho) ** 2
    return Bound(
        noise=math.sqrt(height * (setting.sigma**2 + bias) / work),
        rounds=height / setting.rounds * (1 + setting.clients ** (2 / 3) / setting.cohort),
        noise_alone=math.sqrt(height * setting.sigma**2 / work),
        bias=bias,
    )


class Rate(NamedTuple):
    method: str
    left: str
    rate: str


MEAN_OVER_ROUNDS = "(1/R) Σ_r E‖∇f(x_r)‖²"
MEAN_OVER_STEPS = "(1/T) Σ_t E‖∇f(w_t)‖²"
RATES = (
    Rate("fedwmsam", MEAN_OVER_ROUNDS, "≲ √(L Δ σ_ρ² / (S K R)) + (L Δ / R)(1 + N^{2/3}/S)"),
    Rate("fedavg", MEAN_OVER_ROUNDS, "≤ O(1/√(K R)) + bias terms"),
    Rate("scaffold", MEAN_OVER_ROUNDS, "≤ O(1/(K R) + 1/R + 1/K)"),
    Rate("fedcm", "E‖∇f(x_r)‖²", "≤ O(1/√(K R)) + momentum terms"),
    Rate("fedsam", MEAN_OVER_STEPS, "≤ O(1/√(T E N)) + perturbation terms"),
    Rate("mofedsam", MEAN_OVER_STEPS, "≤ O(1/√(T E N)) + momentum and perturbation terms"),
    Rate("fedlesam", MEAN_OVER_STEPS, "≤ O(1/√(T E N)) + perturbation terms"),
    Rate("fedsmoo", MEAN_OVER_STEPS, "≤ (1/(ζ β T)) (κ_f + 3 β L κ_r/n + 72 β² L² m δ_0/n)"),
)
"""The paper's table of rates, as printed there: not checked against the papers it cites."""


class Property(NamedTuple):
    method: str
    non_iid: str
    bias_control: str
    noise_aware: str


PROPERTIES = (
    Property("fedavg", "no", "no", "no"),
    Property("fedcm", "no", "no", "no"),
    Property("scaffold", "yes", "yes", "no"),
    Property("fedsam", "partial", "no", "yes"),
    Property("mofedsam", "partial", "no", "yes"),
    Property("fedlesam", "yes", "yes", "yes"),
    Property("fedsmoo", "yes", "yes", "yes"),
    Property("fedwmsam", "yes", "yes", "yes"),
)
"""The paper's table of properties, as printed there."""


class Check(NamedTuple):
    """An experiment: what is claimed and what was measured."""

    what: str
    claimed: float
    measured: float
    error: float
    """The standard error of what was measured."""


def third_lemma(
    clients: int = 20, cohort: int = 5, dimensions: int = 10, draws: int = 20_000, seed: int = 0
) -> list[Check]:
    """E‖mean of S sampled v_i‖² = ‖v̄‖² + (N − S)/(S (N − 1)) · (1/N) Σ‖v_i − v̄‖², by sampling."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(clients, dimensions)) + random.normal(size=dimensions)
    centre = vectors.mean(axis=0)
    scatter = float(((vectors - centre) ** 2).sum(axis=1).mean())
    claimed = float(centre @ centre) + (clients - cohort) / (cohort * (clients - 1)) * scatter
    picks = random.permuted(np.tile(np.arange(clients), (draws, 1)), axis=1)[:, :cohort]
    squares = (vectors[picks].mean(axis=1) ** 2).sum(axis=1)
    return [Check(f"{cohort} of {clients} vectors", claimed, float(squares.mean()), standard_error(squares))]


def fourth_lemma(
    smoothness: float = 2.0, rho: float = 0.5, sigma: float = 1.0, dimensions: int = 10, draws: int = 4_000,
    seed: int = 0, counts: tuple[int, ...] = (1, 10, 100),
) -> list[tuple[Check, float]]:  # fmt: skip
    """The mean of n perturbed stochastic gradients against ∇f(x), on a quadratic where the lemma holds with equality.

    f(x) = ½ xᵀ H x with L the largest eigenvalue of H and δ of length ρ along its eigenvector; ∇F(x; ξ) = H x + ξ with
    E‖ξ‖² = σ². For each n: what the proof takes, (σ² + (L ρ)²)/n, what was measured, and σ²/n + (L ρ)².
    """
    random, found = np.random.default_rng(seed), []
    curvatures = np.linspace(smoothness, 0.1 * smoothness, dimensions)
    x, delta = random.normal(size=dimensions), rho * np.eye(dimensions)[0]
    for count in counts:
        noise = random.normal(scale=sigma / math.sqrt(dimensions), size=(draws, count, dimensions))
        gradients = curvatures * (x + delta) + noise
        squares = ((gradients.mean(axis=1) - curvatures * x) ** 2).sum(axis=1)
        claimed = (sigma**2 + (smoothness * rho) ** 2) / count
        check = Check(f"mean of {count}", claimed, float(squares.mean()), standard_error(squares))
        found.append((check, sigma**2 / count + (smoothness * rho) ** 2))
    return found


def standard_error(values: Numbers) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))
