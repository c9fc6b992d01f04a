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
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.parsers import NO_STRAGGLERS, Corruption, Stragglers
from fedwmsam.training.task import Batch, Samples


@dataclass(frozen=True)
class Faults:
    seed: int
    clients: int
    """N: all registered clients."""
    dropout: float = 0.0
    stragglers: Stragglers = NO_STRAGGLERS
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
        return min(
            planned, math.floor(planned * time * (1 + 1e-12))
        )  # 100 · 0.29 is 28.999… in floats

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
        if client not in self.hostile or self.kind not in UPLOAD_CORRUPTIONS:
            return up
        assert self.corruption
        random = rng.generator(self.seed, "corruption", round, client)
        return {
            name: UPLOAD_CORRUPTIONS[self.kind](value, self.corruption.size, random)
            for name, value in up.items()
        }


def noise_like(value: Tensor, size: float, random: np.random.Generator) -> Tensor:
    """A direction drawn at random, `size` times as long as the value."""
    noise = torch.from_numpy(random.standard_normal(value.numel())).reshape(value.shape)
    length = float(torch.linalg.vector_norm(value.double()) / torch.linalg.vector_norm(noise))
    return torch.mul(noise, size * length).to(value)


UPLOAD_CORRUPTIONS: dict[str, Callable[[Tensor, float, np.random.Generator], Tensor]] = {
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
