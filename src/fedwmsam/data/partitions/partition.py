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
    """The samples of every client, as indices into the training samples."""

    rule: str
    client_indices: tuple[IntArray, ...]
    """For each client the indices of its samples."""
    class_counts: IntArray
    """The number of samples of each class that each client holds: clients x classes."""
    reused: int
    """The number of assigned samples that had been assigned before."""
    unused: int = 0
    """The number of samples that no client holds."""
    notes: tuple[str, ...] = ()
    """Phrases that say what the rule had to do beyond its definition."""

    @cached_property
    def hash(self) -> str:
        """Return twelve hexadecimal digits that differ when any client's samples differ."""
        sizes = np.array([len(indices) for indices in self.client_indices], dtype="<i8")
        digest = hashlib.sha256(sizes.tobytes())
        for indices in self.client_indices:
            digest.update(indices.astype("<i8").tobytes())
        return digest.hexdigest()[:12]

    def describe(self) -> str:
        """Return one line with the sizes, the classes per client, the notes and the hash."""
        sizes = self.class_counts.sum(axis=1)
        classes_per_client = (self.class_counts > 0).sum(axis=1).mean()
        size_range = f"{sizes.min()}/{np.median(sizes):g}/{sizes.max()}"
        facts = [
            f"{len(sizes)} clients of {size_range} samples (min/median/max)",
            f"{classes_per_client:.1f} classes per client",
            f"{self.reused} samples reused",
            f"{self.unused} unused",
            *self.notes,
            f"hash {self.hash}",
        ]
        return f"{self.rule}: {', '.join(facts)}"


@dataclass(frozen=True)
class Heterogeneity:
    """Measures of how much the clients differ from all of them together, and in size."""

    mean_tv_distance: float
    """Total variation distance of a client's class distribution to the overall one, averaged."""
    max_tv_distance: float
    """The largest of these distances."""
    effective_classes: float
    """exp(entropy) of a client's class distribution, averaged over the clients."""
    size_cv: float
    """Coefficient of variation of the sizes: their standard deviation divided by their mean."""


def measure_heterogeneity(partition: Partition) -> Heterogeneity:
    """Return how much the clients of a partition differ in classes and in size."""
    counts = partition.class_counts.astype(np.float64)
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    distances = np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2
    logarithms = np.log(np.where(shares > 0, shares, 1.0))  # 0 log 0 counts as 0
    entropies = -(shares * logarithms).sum(axis=1)
    return Heterogeneity(
        mean_tv_distance=float(distances.mean()),
        max_tv_distance=float(distances.max()),
        effective_classes=float(np.exp(entropies).mean()),
        size_cv=float(sizes.std() / sizes.mean()),
    )
