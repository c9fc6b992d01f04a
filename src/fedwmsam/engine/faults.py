"""Simulated faults: clients that drop out, slow ones and hostile ones.

Who is slow and who is hostile is drawn once per run, who drops out once per round, all from streams
that depend on the seed alone: methods compared with one seed meet the same faults, however many
processes train.
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
    """The faults of a run: decides for each client and round what goes wrong."""

    seed: int
    clients: int
    """N: all registered clients."""
    dropout: float = 0.0
    stragglers: Stragglers = NO_STRAGGLERS
    corruption: Corruption | None = None
    classes: int = 0
    """The number of classes, which flipping labels needs."""

    @cached_property
    def slow(self) -> frozenset[int]:
        """Return the clients that are slow in every round."""
        return self.select_clients("slow", self.stragglers.share)

    @cached_property
    def hostile(self) -> frozenset[int]:
        """Return the clients that are hostile in every round."""
        if self.corruption is None:
            return frozenset()
        return self.select_clients("hostile", self.corruption.share)

    def select_clients(self, purpose: str, share: float) -> frozenset[int]:
        """Return that share of the clients; a larger share includes those of a smaller one."""
        order = rng.generator(self.seed, purpose).permutation(self.clients)
        return frozenset(order[: math.floor(share * self.clients + 0.5)].tolist())

    def drops_out(self, round: int, client: int) -> bool:
        """Return whether the client sends nothing back in this round."""
        return bool(rng.generator(self.seed, "dropout", round, client).random() < self.dropout)

    def completed_steps(self, client: int, planned: int) -> int:
        """Return how many of its planned steps a client has done when the round closes."""
        slowness = self.stragglers.slowness if client in self.slow else 1.0
        time = self.stragglers.deadline / slowness
        completed = math.floor(planned * time * (1 + 1e-12))  # 100 · 0.29 is 28.999… in floats
        return min(planned, completed)

    def is_stale(self, client: int) -> bool:
        """Return whether the client always trains from the first model instead of the newest."""
        return client in self.hostile and self.corruption_kind == "stale"

    @property
    def corruption_kind(self) -> str:
        """Return what hostile clients do, or "" if there are none."""
        return self.corruption.kind if self.corruption else ""

    def training_samples(self, client: int, samples: Samples) -> Samples:
        """Return the samples the client trains on, whose labels a hostile client may flip."""
        flips = client in self.hostile and self.corruption_kind == "label_flip"
        return FlippedLabels(samples, self.classes) if flips else samples

    def corrupt_upload(self, round: int, client: int, up: Vectors) -> Vectors:
        """Return the upload as it arrives; a hostile client corrupts all its vectors alike."""
        if client not in self.hostile or self.corruption_kind not in UPLOAD_CORRUPTIONS:
            return up
        assert self.corruption
        corrupt = UPLOAD_CORRUPTIONS[self.corruption_kind]
        random = rng.generator(self.seed, "corruption", round, client)
        return {name: corrupt(value, self.corruption.scale, random) for name, value in up.items()}


def noise_like(value: Tensor, scale: float, random: np.random.Generator) -> Tensor:
    """Return a vector in a random direction, `scale` times as long as the value."""
    noise = torch.from_numpy(random.standard_normal(value.numel())).reshape(value.shape)
    length = float(torch.linalg.vector_norm(value.double()) / torch.linalg.vector_norm(noise))
    return torch.mul(noise, scale * length).to(value)


UPLOAD_CORRUPTIONS: dict[str, Callable[[Tensor, float, np.random.Generator], Tensor]] = {
    "nan": lambda value, scale, random: torch.full_like(value, math.nan),
    "huge": lambda value, scale, random: value * scale,
    "sign_flip": lambda value, scale, random: value * -scale,
    "random": noise_like,
}
"""The kinds of corruption in which a client trains honestly and then uploads something else; the
other kinds change what it trains on."""


class FlippedLabels:
    """A hostile client's samples, in which label y is replaced by C − 1 − y."""

    def __init__(self, samples: Samples, classes: int) -> None:
        self.source = samples
        self.classes = classes

    def __len__(self) -> int:
        return len(self.source)

    @property
    def index_device(self) -> torch.device:
        return self.source.index_device

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        inputs, targets = self.source.batch(index, seed)
        return inputs, self.classes - 1 - targets
