"""Failure mode 1: does a client's perturbation climb the loss of the federation, or only its own?

At w_b, the client's weights before local step b, with ε the perturbation that the method really used there:
    global      cos(ε, ∇f(w_b))       f: the loss of the whole federation, on a sample that stays the same all run long
    received    cos(ε, ∇f(w_0))       the same gradient at the model the client received, before it has drifted
    worst       cos(ε, ε*)            ε*: the perturbation of ε's length that raises f most, found by several ascents
    local       cos(ε, ∇f_k(w_b))     f_k: the client's own loss
    gradients   cos(∇f_k(w_b), ∇f(w_b))   how far apart the two losses point, whatever the method does
A step without a perturbation (FedAvg's; FedWMSAM's first) has no cosine, and that is None, not 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation
from fedwmsam.methods.vectors import cosine
from fedwmsam.recording.instrumentation import STEP_POSITIONS, StepObservation, step_positions
from fedwmsam.recording.training_surface import (
    TrainingSurface,
    global_surface,
    l2_norm,
    local_surface,
    worst_direction,
)
from fedwmsam.statistics import mean_spread

COSINES = ("global", "received", "worst", "local", "gradients")


@dataclass(frozen=True)
class RecordingConfig:
    """How exactly to measure, and so what it costs."""

    sample: int
    """Samples of the whole federation, and at most of a client."""
    ascents: int
    """Gradients that are spent on ε* after the one at w_b."""
    clients: int | None
    """Of the cohort; None: all."""


class GlobalGradientCache:
    """Where the loss of the federation rises, from a point or from where the round began: all first steps ask there."""

    def __init__(self, surface: TrainingSurface, ascents: int) -> None:
        self.surface, self.ascents = surface, ascents
        self.known: dict[str, tuple[Tensor, Tensor]] = {}

    def at(self, w: Tensor) -> Tensor:
        for place, gradient in self.known.values():
            if torch.equal(w, place):
                return gradient
        gradient = self.surface.gradient(w)
        self.known["last" if self.known else "start"] = w.clone(), gradient
        return gradient

    def start(self) -> Tensor:
        return self.known["start"][1]

    def worst(self, w: Tensor, radius: float) -> Tensor:
        return worst_direction(self.surface, w, self.at(w), radius, self.ascents)


class Alignment:
    """Measures every step it is shown, client by client."""

    def __init__(self, federation: Federation, seed: int, care: RecordingConfig) -> None:
        self.federation, self.seed, self.sample = federation, seed, care.sample
        self.compass = GlobalGradientCache(
            global_surface(federation, seed, care.sample), care.ascents
        )
        self.start()

    def start(self) -> None:
        """A new round."""
        self.seen: dict[int, dict[int, Record]] = {}
        self.whose, self.local = -1, self.compass.surface
        self.compass.known = {}

    def see(self, sight: StepObservation) -> None:
        if sight.client != self.whose:
            self.whose = sight.client
            self.local = local_surface(self.federation, sight.client, self.seed, self.sample)
        self.seen.setdefault(sight.client, {})[sight.step] = self.measure(sight)

    def measure(self, sight: StepObservation) -> Record:
        epsilon, radius = sight.perturbation, l2_norm(sight.perturbation)
        gradient, own = self.compass.at(sight.w), self.local.gradient(sight.w)
        row: Record = {"gradients": float(cosine(own, gradient)), "radius": radius}
        if radius == 0:
            return row | {name: None for name in COSINES if name != "gradients"}
        worst = self.compass.worst(sight.w, radius)
        return row | {
            "global": float(cosine(epsilon, gradient)),
            "received": float(cosine(epsilon, self.compass.start())),
            "worst": float(cosine(epsilon, worst)),
            "local": float(cosine(epsilon, own)),
        }

    def record(self) -> Record:
        """Each cosine at the first, middle and last step, over all of them, and its spread over the clients."""
        found: Record = {"sample": self.compass.surface.size, "ascents": self.compass.ascents}
        for name in (*COSINES, "radius"):
            clients = {
                str(client): by_step_position(steps, name) for client, steps in self.seen.items()
            }
            found[name] = summary(list(clients.values())) | {"clients": clients}
        return found


def by_step_position(steps: dict[int, Record], name: str) -> dict[str, float | None]:
    """A client's value at each moment; one with a single step has a first only."""
    names = step_positions(max(steps) + 1)
    return {names[step]: row[name] for step, row in sorted(steps.items())}


def summary(clients: list[dict[str, float | None]]) -> Record:
    """Means over the clients; `mean` is of each client's own mean over its steps, and `spread` its deviation."""
    own = [mean_of(list(client.values())) for client in clients]
    known = [value for value in own if value is not None]
    return {
        moment: mean_of([client.get(moment) for client in clients]) for moment in STEP_POSITIONS
    } | {
        "mean": mean_of(own),
        "spread": mean_spread(known).deviation if len(known) > 1 else None,
    }


def mean_of(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
