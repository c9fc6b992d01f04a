"""The loss surface of a model: mean loss, gradient and Hessian-vector products on fixed samples.

A `Sample` is drawn once, by seed, from all clients' training data or from that of one client. A
`LossSurface` is the mean loss over such a sample as a function of the weights. Unlike
`recording.training_surface.TrainingSurface` it is in evaluation mode and without weight decay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedwmsam import rng
from fedwmsam.data.clients import Clients, ConcatSamples
from fedwmsam.training.inputs import compute_output
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Batch, Samples, Task


@dataclass(frozen=True)
class DrawnSample:
    """Samples that were drawn once, in batches that a model can take."""

    batches: tuple[Batch, ...]
    count: int
    """Number of samples drawn."""
    total: int
    """Number of samples they were drawn from."""
    batch_size: int


def draw_sample(samples: Samples, most: int | None, batch_size: int, stream: int) -> DrawnSample:
    """Draw at most `most` samples (None: all) without replacement, seeded by `stream`.

    The samples keep their order and are not augmented.
    """
    return gather_sample(samples, draw_indices(len(samples), most, stream), batch_size)


def gather_sample(samples: Samples, index: Tensor, batch_size: int) -> DrawnSample:
    """Return the samples at these indices in batches."""
    batches = tuple(samples.batch(part) for part in torch.split(index, batch_size))
    return DrawnSample(batches, len(index), len(samples), batch_size)


def draw_indices(count: int, most: int | None, stream: int) -> Tensor:
    """Draw at most `most` (None: all) of the indices 0 … count − 1, in rising order."""
    if most is None or most >= count:
        return torch.arange(count)
    random = np.random.Generator(np.random.PCG64(stream))
    return torch.from_numpy(np.sort(random.choice(count, most, replace=False)))


def pool_clients(clients: Clients) -> Samples:
    """Concatenate all clients' samples, so that every sample has the same weight."""
    return ConcatSamples([clients[client] for client in range(len(clients))])


def clients_of_samples(clients: Clients, index: Tensor) -> Tensor:
    """Return the client of each sample, given by its index into `pool_clients(clients)`."""
    ends = torch.tensor([len(clients[client]) for client in range(len(clients))]).cumsum(0)
    return torch.searchsorted(ends, index, right=True)


def draw_clients(clients: int, most: int | None, seed: int) -> list[int]:
    """Draw at most `most` (None: all) of so many clients, in rising order."""
    index = draw_indices(clients, most, rng.derive_seed(seed, "some clients"))
    return [int(client) for client in index]


def client_samples(
    clients: Clients, chosen: Sequence[int], most: int | None, batch_size: int, seed: int
) -> list[DrawnSample]:
    """Draw at most `most` samples (None: all) from each of the chosen clients."""
    return [
        draw_sample(
            clients[client], most, batch_size, rng.derive_seed(seed, "client sample", client)
        )
        for client in chosen
    ]


class LossSurface:
    """The mean loss over a sample as a function of the model's flat weight vector.

    The model is in evaluation mode: without dropout, and BatchNorm uses its running statistics,
    which are not changed. Every batch is weighted by its size, so the mean does not depend on the
    batch size. Weight decay is not included.
    """

    def __init__(self, task: Task, sample: DrawnSample) -> None:
        self.task = task
        self.sample = sample
        # The mean loss is computed in float64, because a small step changes it by less than a
        # float32 sum can resolve. Users' own losses may not accept float64.
        self.in_double = task.objective.loss in [
            objective.loss for objective in OBJECTIVES.values()
        ]
        self.parameters = [p for p in task.model.parameters() if p.requires_grad]

    @property
    def size(self) -> int:
        """Return the number of trained weights."""
        return self.task.parameter_count

    def loss(self, w: Tensor) -> float:
        """Return the mean loss at w."""
        with torch.no_grad():
            return sum(float(self._weighted_loss(batch)) for batch in self._batches(w))

    def gradient(self, w: Tensor) -> tuple[Tensor, float]:
        """Return the gradient of the mean loss at w, and the mean loss itself."""
        total = torch.zeros_like(w)
        loss = 0.0
        for batch in self._batches(w):
            part = self._weighted_loss(batch)
            total += flatten(torch.autograd.grad(part, self.parameters, materialize_grads=True))
            loss += float(part.detach())
        return total, loss

    def hessian_vector_product(self, w: Tensor, v: Tensor) -> Tensor:
        """Return the Hessian at w times v, as the gradient of the directional derivative along v.

        This costs about two gradients; the Hessian itself is never formed.
        """
        pieces = [v[slot.slice].view(slot.shape) for slot in self.task.layout]
        total = torch.zeros_like(w)
        with sdpa_kernel(SDPBackend.MATH):  # fused attention can be differentiated only once
            for batch in self._batches(w):
                loss = self._weighted_loss(batch)
                gradient = torch.autograd.grad(
                    loss, self.parameters, create_graph=True, materialize_grads=True
                )
                products = [(g * piece).sum() for g, piece in zip(gradient, pieces, strict=True)]
                slope = torch.stack(products).sum()
                if slope.requires_grad:  # a loss that is linear in the weights has no curvature
                    second = torch.autograd.grad(slope, self.parameters, materialize_grads=True)
                    total += flatten(second)
        return total

    def _batches(self, w: Tensor) -> Iterator[Batch]:
        self.task.load_weights(w)
        self.task.model.eval()
        yield from self.sample.batches

    def _weighted_loss(self, batch: Batch) -> Tensor:
        """Return the batch's mean loss times its share of the samples."""
        inputs, targets = batch
        outputs, own_loss = compute_output(self.task.model, inputs)
        share = len(targets) / self.sample.count
        if own_loss is not None:
            return own_loss * share
        if self.in_double:
            outputs = outputs.double()
            if targets.is_floating_point():
                targets = targets.double()
        return self.task.objective.loss(outputs, targets) * share


def flatten(pieces: tuple[Tensor, ...]) -> Tensor:
    """Concatenate one tensor per parameter into one flat vector."""
    return torch.cat([piece.reshape(-1) for piece in pieces])
