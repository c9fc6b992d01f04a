"""A division of samples over clients, and how much its clients differ."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Labels = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)  # eq would compare arrays, whose == is not a truth value
class Partition:
    rule: str
    clients: tuple[IntArray, ...]  # for each client the indices of its samples
    counts: IntArray  # clients x classes
    reused: int  # how many of all drawn samples had been drawn before
    unused: int = 0  # how many samples no client holds
    notes: tuple[str, ...] = ()  # what the rule had to do beyond its definition, a phrase each

    @cached_property
    def hash(self) -> str:
        """Twelve hexadecimal digits that differ when any client's samples differ."""
        digest = hashlib.sha256(np.array([len(own) for own in self.clients], dtype="<i8").tobytes())
        for own in self.clients:
            digest.update(own.astype("<i8").tobytes())
        return digest.hexdigest()[:12]

    def describe(self) -> str:
        sizes = self.counts.sum(axis=1)
        held = (self.counts > 0).sum(axis=1).mean()
        facts = [
            f"{len(sizes)} clients of {sizes.min()}/{np.median(sizes):g}/{sizes.max()} samples (min/median/max)",
            f"{held:.1f} classes per client",
            f"{self.reused} samples reused",
            f"{self.unused} unused",
            *self.notes,
            f"hash {self.hash}",
        ]
        return f"{self.rule}: {', '.join(facts)}"


@dataclass(frozen=True)
class Heterogeneity:
    """How much the clients differ from all of them together, and in size."""

    mean_distance: float  # total variation between a client's class distribution and the overall one, over clients
    largest_distance: float
    effective_classes: float  # exp(entropy) of a client's class distribution, mean over clients
    size_variation: float  # standard deviation of the sizes over their mean


def measure_heterogeneity(partition: Partition) -> Heterogeneity:
    counts = partition.counts.astype(np.float64)
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    distances = np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2
    entropies = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(
        axis=1
    )  # 0 log 0 counts as 0
    return Heterogeneity(
        mean_distance=float(distances.mean()),
        largest_distance=float(distances.max()),
        effective_classes=float(np.exp(entropies).mean()),
        size_variation=float(sizes.std() / sizes.mean()),
    )
