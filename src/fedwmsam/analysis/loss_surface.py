"""Which samples an analysis looks at: a fixed sample of all clients' training data, and of single clients'."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedwmsam import rng
from fedwmsam.data.clients import Clients, ConcatSamples
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Batch, Samples, Task


@dataclass(frozen=True)
class Sample:
    """Fixed samples, ready for a model, in batches; what they were drawn from is `total` samples."""

    batches: tuple[Batch, ...]
    count: int
    total: int
    batch_size: int


def draw_sample(samples: Samples, most: int | None, batch_size: int, stream: int) -> Sample:
    """`most` of the samples (None: all) without augmentation, picked by a keyed stream; in their own order."""
    return gather_sample(samples, draw_indices(len(samples), most, stream), batch_size)


def gather_sample(samples: Samples, index: Tensor, batch_size: int) -> Sample:
    batches = tuple(samples.batch(part) for part in torch.split(index, batch_size))
    return Sample(batches, len(index), len(samples), batch_size)


def draw_indices(count: int, most: int | None, stream: int) -> Tensor:
    if most is None or most >= count:
        return torch.arange(count)
    return torch.from_numpy(
        np.sort(np.random.Generator(np.random.PCG64(stream)).choice(count, most, replace=False))
    )


def pool_clients(clients: Clients) -> Samples:
    """All clients' samples as one set, in which every sample counts alike."""
    return ConcatSamples([clients[client] for client in range(len(clients))])


def clients_of_samples(clients: Clients, index: Tensor) -> Tensor:
    """The client of each sample of `everybody`."""
    ends = torch.tensor([len(clients[client]) for client in range(len(clients))]).cumsum(0)
    return torch.searchsorted(ends, index, right=True)


def draw_clients(clients: int, wanted: int | None, seed: int) -> list[int]:
    """So many of them (None: all), picked by the seed."""
    return [
        int(client)
        for client in draw_indices(clients, wanted, rng.derive_seed(seed, "some clients"))
    ]


def client_samples(
    clients: Clients, chosen: Sequence[int], most: int | None, batch_size: int, seed: int
) -> list[Sample]:
    return [
        draw_sample(
            clients[client], most, batch_size, rng.derive_seed(seed, "client sample", client)
        )
        for client in chosen
    ]


class LossSurface:
    """In evaluation mode: no dropout, BatchNorm with its kept statistics, which nothing here changes.

    A batch counts by its size, so that the batch size does not change the mean. Weight decay is not in it.
    """

    def __init__(self, task: Task, sample: Sample) -> None:
        self.task, self.sample = task, sample
        # A small step changes the mean loss by less than a 32-bit sum can tell; users' own losses may not take doubles.
        self.exact = task.objective.loss in [objective.loss for objective in OBJECTIVES.values()]
        self.parameters = [p for p in task.model.parameters() if p.requires_grad]

    @property
    def size(self) -> int:
        return self.task.size

    def loss(self, w: Tensor) -> float:
        with torch.no_grad():
            return sum(float(self._part(batch)) for batch in self._batches(w))

    def gradient(self, w: Tensor) -> tuple[Tensor, float]:
        """And the loss."""
        total, loss = torch.zeros_like(w), 0.0
        for batch in self._batches(w):
            part = self._part(batch)
            total += flat(torch.autograd.grad(part, self.parameters, materialize_grads=True))
            loss += float(part.detach())
        return total, loss

    def product(self, w: Tensor, v: Tensor) -> Tensor:
        """The Hessian at w times v, by differentiating the slope along v once more."""
        pieces = [v[slot.slice].view(slot.shape) for slot in self.task.layout]
        total = torch.zeros_like(w)
        with sdpa_kernel(SDPBackend.MATH):  # fused attention can be differentiated only once
            for batch in self._batches(w):
                loss = self._part(batch)
                first = torch.autograd.grad(
                    loss, self.parameters, create_graph=True, materialize_grads=True
                )
                slope = torch.stack(
                    [(a * b).sum() for a, b in zip(first, pieces, strict=True)]
                ).sum()
                if slope.requires_grad:  # a loss that is linear in the weights has no curvature
                    total += flat(
                        torch.autograd.grad(slope, self.parameters, materialize_grads=True)
                    )
        return total

    def _batches(self, w: Tensor) -> Iterator[Batch]:
        self.task.load(w)
        self.task.model.eval()
        yield from self.sample.batches

    def _part(self, batch: Batch) -> Tensor:
        """What a batch adds to the mean loss."""
        inputs, targets = batch
        outputs = self.task.model(inputs)
        if self.exact:
            outputs, targets = (
                outputs.double(),
                targets.double() if targets.is_floating_point() else targets,
            )
        return self.task.objective.loss(outputs, targets) * (len(targets) / self.sample.count)


def flat(pieces: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([piece.reshape(-1) for piece in pieces])
