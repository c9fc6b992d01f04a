"""A federation in which things go wrong: clients that never answer, slow ones, hostile ones.

Who is slow and who is hostile is drawn once a run, who fails to answer once a round, all from streams keyed by the
seed: methods compared with one seed meet the same faults, however many processes train.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.errors import InputError, unknown
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import number
from fedwmsam.training.task import Batch, Samples


@dataclass(frozen=True)
class Stragglers:
    """A share of the clients takes `slowness` times as long for a step; a round closes at the deadline."""

    share: float = 0.0
    slowness: float = 1.0
    partial: bool = True
    """Whether the steps done by the deadline count, or nothing does."""
    deadline: float = 1.0
    """In the time that a client of ordinary speed needs for all its steps."""


@dataclass(frozen=True)
class Corruption:
    """A share of the clients is hostile and answers in one way."""

    kind: str
    share: float
    size: float = 1.0


SIZES = {"nan": None, "huge": 1000.0, "sign_flip": 1.0, "random": 1.0, "stale": None, "label_flip": None}
"""The kinds of hostile clients; where a size can be given, the one that is meant without it."""


@dataclass(frozen=True)
class Faults:
    seed: int
    clients: int
    """N: all registered clients."""
    dropout: float = 0.0
    stragglers: Stragglers = Stragglers()
    corruption: Corruption | None = None
    classes: int = 0
    """How many there are, for flipping labels."""

    @cached_property
    def slow(self) -> frozenset[int]:
        return self.chosen("slow", self.stragglers.share)

    @cached_property
    def hostile(self) -> frozenset[int]:
        return self.chosen("hostile", self.corruption.share) if self.corruption else frozenset()

    def chosen(self, purpose: str, share: float) -> frozenset[int]:
        """That share of the clients, always the same ones, and more of them for a larger share."""
        order = rng.generator(self.seed, purpose).permutation(self.clients)
        return frozenset(order[: math.floor(share * self.clients + 0.5)].tolist())

    def drops(self, round: int, client: int) -> bool:
        return bool(rng.generator(self.seed, "dropout", round, client).random() < self.dropout)

    def steps(self, client: int, planned: int) -> int:
        """How many of its steps a client has done when the round closes."""
        time = self.stragglers.deadline / (self.stragglers.slowness if client in self.slow else 1.0)
        return min(planned, math.floor(planned * time * (1 + 1e-12)))  # 100 · 0.29 is 28.999… in floats

    def is_stale(self, client: int) -> bool:
        return client in self.hostile and self.kind == "stale"

    @property
    def kind(self) -> str:
        return self.corruption.kind if self.corruption else ""

    def samples(self, client: int, samples: Samples) -> Samples:
        """What the client trains on."""
        flips = client in self.hostile and self.kind == "label_flip"
        return FlippedLabels(samples, self.classes) if flips else samples

    def answer(self, round: int, client: int, up: Vectors) -> Vectors:
        """What arrives of the upload; every vector of it is corrupted alike."""
        if client not in self.hostile or self.kind not in SENT:
            return up
        assert self.corruption
        random = rng.generator(self.seed, "corruption", round, client)
        return {name: SENT[self.kind](value, self.corruption.size, random) for name, value in up.items()}


def noise_like(value: Tensor, size: float, random: np.random.Generator) -> Tensor:
    """A direction drawn at random, `size` times as long as the value."""
    noise = torch.from_numpy(random.standard_normal(value.numel())).reshape(value.shape)
    length = float(torch.linalg.vector_norm(value.double()) / torch.linalg.vector_norm(noise))
    return torch.mul(noise, size * length).to(value)


SENT: dict[str, Callable[[Tensor, float, np.random.Generator], Tensor]] = {
    "nan": lambda value, size, random: torch.full_like(value, math.nan),
    "huge": lambda value, size, random: value * size,
    "sign_flip": lambda value, size, random: value * -size,
    "random": noise_like,
}
"""Honest training, then another answer; the other kinds of corruption are in what the client trains on."""


class FlippedLabels:
    """A hostile client's samples: label y reads C − 1 − y."""

    def __init__(self, samples: Samples, classes: int) -> None:
        self.source, self.classes = samples, classes

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        inputs, targets = self.source.batch(index, seed)
        return inputs, self.classes - 1 - targets


def parse_stragglers(text: str | None, deadline: float | None) -> Stragglers:
    """`SHARE:FACTOR`, or `SHARE:FACTOR:drop` where unfinished work does not count."""
    if text is None:
        return Stragglers(deadline=1.0 if deadline is None else deadline)
    numbers, last = text.split(":"), ""
    if numbers[-1] == "drop":
        last = numbers.pop()
    share, slowness = (number(part) for part in numbers) if len(numbers) == 2 else (math.nan, math.nan)
    if not (0 <= share <= 1 and 1 <= slowness < math.inf):
        raise InputError(
            f"stragglers must be SHARE:FACTOR or SHARE:FACTOR:drop with a share between 0 and 1 and a factor of at "
            f"least 1, such as 0.3:4, not {text!r}."
        )
    return Stragglers(share, slowness, last != "drop", 1.0 if deadline is None else deadline)


def parse_corruption(text: str) -> Corruption:
    """`KIND:SHARE`, or `KIND:SHARE:SIZE` for the kinds that have a size."""
    kind, *numbers = text.split(":")
    if kind not in SIZES:
        raise InputError(unknown("kind of corruption", kind, SIZES))
    sized = SIZES[kind] is not None
    values = [number(part) for part in numbers]
    if not 1 <= len(values) <= 1 + sized or not 0 <= values[0] <= 1 or not all(0 < v < math.inf for v in values[1:]):
        shape = f"{kind}:SHARE or {kind}:SHARE:SIZE with a size above 0" if sized else f"{kind}:SHARE"
        raise InputError(f"corrupt must be {shape} and a share between 0 and 1, such as {kind}:0.1, not {text!r}.")
    return Corruption(kind, values[0], values[1] if len(values) > 1 else SIZES[kind] or 1.0)
