"""Client-level differential privacy: whether a client took part at all cannot be told from the models.

Each upload, all its vectors as one, is shortened to norm C; Gaussian noise of deviation σC is added to every coordinate
of their sum, which is divided by the expected number of clients q·N; clients are sampled by their own coins (q each).
The method then treats that noised mean as if it were the upload of a single client. So everything the server knows
after a round is computed from the noised sum, whatever the method does with it. This needs a method that keeps nothing
per client: what it would keep comes from single uploads without noise.

The noise comes from a keyed stream, so that runs can be repeated: right for a simulation, where nobody is protected
anyway. A deployment needs noise that nobody can predict, from a cryptographic generator.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.engine.aggregation import overflow_safe_norm
from fedwmsam.errors import InputError
from fedwmsam.methods.base import Info, Method
from fedwmsam.methods.vectors import Vectors


@dataclass(frozen=True)
class Privacy:
    method: Method
    seed: int
    noise: float
    """σ: the noise's deviation in units of the clip."""
    clip: float
    delta: float
    rate: float
    """q: each client's probability of taking part in a round."""
    steps: int = 1
    """Local steps of a client of average size: methods in gradient units divide by it, and a true count would leak."""
    samples: int = 1

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        length = math.hypot(*map(overflow_safe_norm, up.values()))
        return {}, up if length <= self.clip else {
            name: value * (self.clip / length) for name, value in up.items()
        }

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        expected = self.rate * info.clients
        known = replace(
            info, cohort=round(expected), share=self.rate, steps=self.steps, samples=self.samples
        )
        total = {name: value * info.cohort for name, value in mean.items()} or self.nothing(
            server, known
        )
        noised = {
            name: self.noised(value, name, info.round) / expected for name, value in total.items()
        }
        _, contribution = self.method.settle(server, {}, noised, known)
        return self.method.aggregate(server, contribution, known)

    def nothing(self, server: Vectors, info: Info) -> Vectors:
        """An upload of zeros, for a round in which nobody answered."""
        down = self.method.downlink(server, {}, info)
        zero = torch.zeros_like(down["w"])
        return self.method.uplink(zero, down, self.method.begin(down, torch.zeros_like, info), info)

    def noised(self, value: Tensor, name: str, round: int) -> Tensor:
        random = rng.generator(rng.derive_seed(self.seed, name), "privacy", round)
        noise = torch.from_numpy(random.standard_normal(value.numel())).reshape(value.shape)
        return value + (self.noise * self.clip * noise).to(value)

    @cached_property
    def accountant(self) -> "Accountant":
        return Accountant(self.noise, self.rate, self.delta)

    def spent(self, rounds: int) -> dict[str, float]:
        """A column for the metrics."""
        return {"epsilon": self.accountant(rounds)}


def check_method(method: Method, w: Tensor, buffers: Vectors) -> None:
    kept = [*method.memory_init(w)]
    if kept:
        raise InputError(
            f"Differential privacy does not go with {method.name}: it keeps {' and '.join(kept)} for each client, "
            "made without noise. Use a method that keeps nothing, such as fedavg, fedcm or fedadam."
        )
    if buffers:
        raise InputError(
            "Differential privacy does not go with a model that has buffers: BatchNorm's statistics are averaged "
            "without noise. Use a model with GroupNorm."
        )


def accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise InputError(
            "Differential privacy needs the accountant dp-accounting: pip install 'fedwmsam[privacy]'."
        ) from error
    return dp_accounting


@dataclass(frozen=True)
class Accountant:
    """ε after so many rounds of the sampled Gaussian mechanism, by Rényi accounting (Mironov et al. 2019)."""

    noise: float
    rate: float
    delta: float

    @cached_property
    def one_round(self) -> Any:
        """Rényi divergences of a round. Those of r rounds are r times as large; adding them one by one would round
        differently in a resumed run."""
        return fresh_accountant().compose(event(self.rate, self.noise))

    def __call__(self, rounds: int) -> float:
        if self.noise == 0:
            return math.inf
        one = self.one_round
        return float(accounting().rdp.compute_epsilon(one.orders, rounds * one.rdp, self.delta)[0])


def fresh_accountant() -> Any:
    library = accounting()
    return library.rdp.RdpAccountant(
        neighboring_relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE
    )


def event(rate: float, noise: float) -> Any:
    library = accounting()
    return library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))


def calibrate_noise(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """The least σ that keeps so many rounds within (ε, δ)."""
    library = accounting()
    found = library.calibrate_dp_mechanism(
        fresh_accountant,
        lambda noise: library.SelfComposedDpEvent(event(rate, noise), rounds),
        epsilon,
        delta,
        library.LowerEndpointAndGuess(0.0, 1.0),
        tol=1e-3,
    )
    return float(found)
