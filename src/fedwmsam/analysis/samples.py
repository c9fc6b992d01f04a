"""Which samples an analysis looks at: a fixed sample of all clients' training data, and of single clients'."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.data.clients import Clients, Joined
from fedwmsam.training.task import Batch, Samples


@dataclass(frozen=True)
class Sample:
    """Fixed samples, ready for a model, in batches; what they were drawn from is `total` samples."""

    batches: tuple[Batch, ...]
    count: int
    total: int
    batch_size: int


def draw(samples: Samples, most: int | None, batch_size: int, stream: int) -> Sample:
    """`most` of the samples (None: all) without augmentation, picked by a keyed stream; in their own order."""
    return read(samples, picked(len(samples), most, stream), batch_size)


def read(samples: Samples, index: Tensor, batch_size: int) -> Sample:
    batches = tuple(samples.batch(part) for part in torch.split(index, batch_size))
    return Sample(batches, len(index), len(samples), batch_size)


def picked(count: int, most: int | None, stream: int) -> Tensor:
    if most is None or most >= count:
        return torch.arange(count)
    return torch.from_numpy(np.sort(np.random.Generator(np.random.PCG64(stream)).choice(count, most, replace=False)))


def everybody(clients: Clients) -> Samples:
    """All clients' samples as one set, in which every sample counts alike."""
    return Joined([clients[client] for client in range(len(clients))])


def owners(clients: Clients, index: Tensor) -> Tensor:
    """The client of each sample of `everybody`."""
    ends = torch.tensor([len(clients[client]) for client in range(len(clients))]).cumsum(0)
    return torch.searchsorted(ends, index, right=True)


def some_clients(clients: int, wanted: int | None, seed: int) -> list[int]:
    """So many of them (None: all), picked by the seed."""
    return [int(client) for client in picked(clients, wanted, rng.key(seed, "some clients"))]


def client_samples(
    clients: Clients, chosen: Sequence[int], most: int | None, batch_size: int, seed: int
) -> list[Sample]:
    return [draw(clients[client], most, batch_size, rng.key(seed, "client sample", client)) for client in chosen]
