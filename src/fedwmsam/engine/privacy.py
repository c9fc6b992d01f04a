"""Client-level differential privacy: the models do not tell whether a client took part at all.

Each client takes part with probability q, independently of the others. Each upload, all its vectors
taken as one, is clipped to norm C. Gaussian noise of standard deviation σC is added to every
coordinate of the sum of the uploads, and the sum is divided by the expected number of clients q·N.
The method then treats that noised mean as if it were the upload of a single client, so everything
the server knows after a round is computed from the noised sum, whatever the method does with it.
This needs a method that keeps nothing per client: what it would keep comes from single uploads
without noise.

The noise comes from a seeded stream, so that runs can be repeated. That is right for a simulation,
where nobody is protected anyway. A deployment needs noise that nobody can predict, from a
cryptographic generator.
"""

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.engine.aggregation import overflow_safe_norm
from fedwmsam.errors import InputError, install_command
from fedwmsam.methods.base import Info, Method
from fedwmsam.methods.vectors import Vectors


@dataclass(frozen=True)
class Privacy:
    """Stands between the round and the method: clips the uploads and adds noise to their sum."""

    method: Method
    seed: int
    noise_multiplier: float
    """σ: the standard deviation of the noise in units of the clip."""
    clip: float
    """C: the norm to which each upload is clipped."""
    delta: float
    sampling_rate: float
    """q: the probability with which each client takes part in a round."""
    steps: int = 1
    """Local steps of a client of average size. Methods in gradient units divide by it; the true
    number would leak who took part."""
    samples: int = 1
    """Samples of a client of average size, for the same reason."""

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        """Return no memory, and the upload clipped to norm C as the client's contribution."""
        length = math.hypot(*map(overflow_safe_norm, up.values()))
        if length <= self.clip:
            return {}, up
        return {}, {name: value * (self.clip / length) for name, value in up.items()}

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        """Return the next server state, computed by the method from the noised mean upload."""
        expected_clients = self.sampling_rate * info.clients
        public_info = replace(
            info,
            cohort=round(expected_clients),
            share=self.sampling_rate,
            steps=self.steps,
            samples=self.samples,
        )
        total = {name: value * info.cohort for name, value in mean.items()}
        if not total:
            total = self.zero_upload(server, public_info)
        noised = {
            name: self.add_noise(value, name, info.round) / expected_clients
            for name, value in total.items()
        }
        _, contribution = self.method.settle(server, {}, noised, public_info)
        return self.method.aggregate(server, contribution, public_info)

    def zero_upload(self, server: Vectors, info: Info) -> Vectors:
        """Return an upload of zeros, for a round in which no update came."""
        down = self.method.downlink(server, {}, info)
        scratch = self.method.begin(down, torch.zeros_like, info)
        up = self.method.uplink(torch.zeros_like(down["w"]), down, scratch, info)
        return {name: torch.zeros_like(value) for name, value in up.items()}

    def add_noise(self, value: Tensor, name: str, round: int) -> Tensor:
        """Return the vector of that name with the round's Gaussian noise added."""
        random = rng.generator(rng.derive_seed(self.seed, name), "privacy", round)
        noise = torch.from_numpy(random.standard_normal(value.numel())).reshape(value.shape)
        return value + (self.noise_multiplier * self.clip * noise).to(value)

    @cached_property
    def accountant(self) -> "Accountant":
        """Return the accountant of this noise and sampling rate."""
        return Accountant(self.noise_multiplier, self.sampling_rate, self.delta)

    def spent_budget(self, rounds: int) -> dict[str, float]:
        """Return the column of the metrics with the ε that so many rounds have spent."""
        return {"epsilon": self.accountant(rounds)}


def check_privacy_support(method: Method, w: Tensor, buffers: Vectors) -> None:
    """Raise InputError if the method keeps anything per client or the model has buffers."""
    memory_names = [*method.memory_init(w)]
    if memory_names:
        raise InputError(
            f"Differential privacy does not go with {method.name}: it keeps "
            f"{' and '.join(memory_names)} for each client, made without noise. "
            "Use a method that keeps nothing, such as fedavg, fedcm or fedadam."
        )
    if buffers:
        raise InputError(
            "Differential privacy does not go with a model that has buffers: BatchNorm's "
            "statistics are averaged without noise. Use a model with GroupNorm."
        )


def import_accounting() -> Any:
    """Return the module dp_accounting; raise InputError if it is not installed."""
    try:
        import dp_accounting
    except ImportError as error:
        raise InputError(
            f"Differential privacy needs the accountant dp-accounting: {install_command('privacy')}"
        ) from error
    logging.getLogger("absl").addFilter(is_of_interest)
    return dp_accounting


def is_of_interest(record: logging.LogRecord) -> bool:
    """Return whether a message is none of the accountant's on orders that it leaves out.

    It writes one for each such order and each σ it tries. The ε of the other orders holds as well.
    """
    return "Excluding this order from the epsilon computation" not in record.getMessage()


@dataclass(frozen=True)
class Accountant:
    """The ε of the sampled Gaussian mechanism, by Rényi accounting (Mironov et al. 2019)."""

    noise_multiplier: float
    sampling_rate: float
    delta: float

    @cached_property
    def one_round(self) -> Any:
        """Return dp_accounting's accountant after one round, with its Rényi divergences.

        Those of r rounds are r times as large. Adding them round by round would give other rounding
        errors in a resumed run.
        """
        return make_accountant().compose(round_event(self.sampling_rate, self.noise_multiplier))

    def __call__(self, rounds: int) -> float:
        """Return ε after so many rounds, infinity without noise."""
        if self.noise_multiplier == 0:
            return math.inf
        library = import_accounting()
        orders = self.one_round.orders
        divergences = rounds * self.one_round.rdp
        return float(library.rdp.compute_epsilon(orders, divergences, self.delta)[0])


def make_accountant() -> Any:
    """Return a Rényi accountant that has seen no round, for adding or removing one client."""
    library = import_accounting()
    return library.rdp.RdpAccountant(
        neighboring_relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE
    )


def round_event(sampling_rate: float, noise_multiplier: float) -> Any:
    """Return one round as dp_accounting describes it: Poisson sampling, then Gaussian noise."""
    library = import_accounting()
    return library.PoissonSampledDpEvent(sampling_rate, library.GaussianDpEvent(noise_multiplier))


def calibrate_noise(epsilon: float, delta: float, sampling_rate: float, rounds: int) -> float:
    """Return the smallest noise multiplier σ that keeps so many rounds within (ε, δ)."""
    library = import_accounting()

    def all_rounds(noise_multiplier: float) -> Any:
        return library.SelfComposedDpEvent(round_event(sampling_rate, noise_multiplier), rounds)

    noise_multiplier = library.calibrate_dp_mechanism(
        make_accountant,
        all_rounds,
        epsilon,
        delta,
        library.LowerEndpointAndGuess(0.0, 1.0),
        tol=1e-3,
    )
    return float(noise_multiplier)
