"""Alignment of perturbations: the paper's first failure mode, local–global misalignment.

A client perturbs its weights to find where the loss rises. Does its perturbation climb the loss of
the federation, or only the client's own? At w_b, the client's weights before local step b, with ε
the perturbation that the method used there:

    global      cos(ε, ∇f(w_b))       f: the loss of the federation, on a sample fixed for the run
    received    cos(ε, ∇f(w_0))       the same gradient at the model the client received
    worst       cos(ε, ε*)            ε*: the perturbation of ε's length that raises f most
    local       cos(ε, ∇f_k(w_b))     f_k: the client's own loss
    gradients   cos(∇f_k(w_b), ∇f(w_b))   how far apart the two losses point, for any method

ε* is approximated by gradient ascent. A step without a perturbation (FedAvg's; FedWMSAM's first)
has no cosine, and that is None, not 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedwmsam.data.clients import client_key
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation
from fedwmsam.methods.vectors import cosine
from fedwmsam.recording.instrumentation import STEP_POSITIONS, StepObservation, step_positions
from fedwmsam.recording.training_surface import (
    TrainingSurface,
    global_surface,
    l2_norm,
    local_surface,
    worst_perturbation,
)
from fedwmsam.statistics import mean_spread

COSINES = ("global", "received", "worst", "local", "gradients")


@dataclass(frozen=True)
class RecordingConfig:
    """How precisely to measure, which decides what it costs."""

    sample: int
    """Samples of the federation, and of a client at most, on which losses are measured."""
    ascents: int
    """Gradients that are spent on ε* after the one at w_b."""
    clients: int | None
    """Clients of the cohort whose steps are observed; None: all."""


class GlobalGradientCache:
    """Computes gradients of the loss of the federation and remembers two of them.

    They are those at the round's initial model, where all first steps ask, and at the last point.
    """

    def __init__(self, surface: TrainingSurface, ascents: int) -> None:
        self.surface = surface
        self.ascents = ascents
        self.cache: dict[str, tuple[Tensor, Tensor]] = {}
        """(point, gradient) under "start" for the first point of the round, "last" for the last."""

    def gradient_at(self, w: Tensor) -> Tensor:
        """Return the gradient at w, computed only if it is not remembered."""
        for point, gradient in self.cache.values():
            if torch.equal(w, point):
                return gradient
        gradient = self.surface.gradient(w)
        self.cache["last" if self.cache else "start"] = w.clone(), gradient
        return gradient

    def initial_gradient(self) -> Tensor:
        """Return the gradient at the first point of the round, the model that clients received."""
        return self.cache["start"][1]

    def worst_perturbation(self, w: Tensor, radius: float) -> Tensor:
        """Return ε*, the perturbation of that length that raises the loss at w most."""
        return worst_perturbation(self.surface, w, self.gradient_at(w), radius, self.ascents)


class Alignment:
    """Measures the alignment of every observed step, client by client."""

    def __init__(self, federation: Federation, seed: int, config: RecordingConfig) -> None:
        self.federation = federation
        self.seed = seed
        self.sample = config.sample
        surface = global_surface(federation, seed, config.sample)
        self.global_gradients = GlobalGradientCache(surface, config.ascents)
        self.reset()

    def reset(self) -> None:
        """Forget the measurements of the last round; the sample stays the same."""
        self.measurements: dict[int, dict[int, Record]] = {}
        """The measurements of this round by client and step."""
        self.client = -1
        self.client_surface = self.global_gradients.surface
        self.global_gradients.cache = {}

    def observe_step(self, step: StepObservation) -> None:
        """Measure a step and keep the measurement."""
        if step.client != self.client:
            self.client = step.client
            self.client_surface = local_surface(
                self.federation, step.client, self.seed, self.sample
            )
        self.measurements.setdefault(step.client, {})[step.step] = self.measure(step)

    def measure(self, step: StepObservation) -> Record:
        """Return the cosines of a step and the length of its perturbation."""
        epsilon = step.perturbation
        radius = l2_norm(epsilon)
        global_gradient = self.global_gradients.gradient_at(step.w)
        local_gradient = self.client_surface.gradient(step.w)
        measured: Record = {
            "gradients": float(cosine(local_gradient, global_gradient)),
            "radius": radius,
        }
        if radius == 0:
            return measured | {name: None for name in COSINES if name != "gradients"}
        worst = self.global_gradients.worst_perturbation(step.w, radius)
        return measured | {
            "global": float(cosine(epsilon, global_gradient)),
            "received": float(cosine(epsilon, self.global_gradients.initial_gradient())),
            "worst": float(cosine(epsilon, worst)),
            "local": float(cosine(epsilon, local_gradient)),
        }

    def to_record(self) -> Record:
        """Return the round's record: for each cosine its summary over clients and steps."""
        record: Record = {
            "sample": self.global_gradients.surface.size,
            "ascents": self.global_gradients.ascents,
        }
        for name in (*COSINES, "radius"):
            clients = {
                client_key(self.federation.clients, client): by_step_position(steps, name)
                for client, steps in self.measurements.items()
            }
            record[name] = summary(list(clients.values())) | {"clients": clients}
        return record


def by_step_position(steps: dict[int, Record], name: str) -> dict[str, float | None]:
    """Return a client's value at its first, middle and last step, as far as these differ."""
    names = step_positions(max(steps) + 1)
    return {names[step]: measured[name] for step, measured in sorted(steps.items())}


def summary(clients: list[dict[str, float | None]]) -> Record:
    """Return the means over the clients at each step position and over all of them.

    `mean` is that of each client's own mean over its steps, and `spread` its standard deviation.
    """
    record: Record = {}
    for position in STEP_POSITIONS:
        record[position] = mean_of([client.get(position) for client in clients])
    client_means = [mean_of(list(client.values())) for client in clients]
    defined = [value for value in client_means if value is not None]
    record["mean"] = mean_of(client_means)
    record["spread"] = mean_spread(defined).deviation if len(defined) > 1 else None
    return record


def mean_of(values: list[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None
