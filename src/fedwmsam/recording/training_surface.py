"""The loss that training minimises, on a fixed sample: its value and gradient at any weights.

Unlike `analysis.loss_surface.LossSurface` it is in training mode and with weight decay, as a local
step sees it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.engine.rounds import Federation
from fedwmsam.methods.vectors import norm, unit
from fedwmsam.training.task import Batch, Task


class TrainingSurface:
    """The mean loss of all batches together, with weight decay if it is part of the objective.

    Computing it changes nothing that the training sees: no buffer, and no random number that
    another step would draw.
    """

    def __init__(self, federation: Federation, batches: Sequence[Batch]) -> None:
        self.task: Task = federation.task
        self.batches = merge_batches(batches)
        self.size = sum(len(targets) for _, targets in self.batches)
        rules = federation.local_rules
        self.decay = rules.weight_decay if rules.weight_decay_mode == "objective" else 0.0

    def gradient(self, w: Tensor) -> Tensor:
        """Return the gradient at w."""
        return self.gradient_and_loss(w)[0]

    def loss(self, w: Tensor) -> float:
        """Return the loss at w."""
        return self.gradient_and_loss(w)[1]

    def gradient_and_loss(self, w: Tensor) -> tuple[Tensor, float]:
        """Return the gradient and the loss at w."""
        total = torch.zeros_like(w)
        loss = 0.0
        for batch in self.batches:
            share = len(batch[1]) / self.size
            gradient, value = self.task.compute_gradient(w, batch, seed=0, update_buffers=False)
            total.add_(gradient, alpha=share)
            loss += share * float(value)
        return total.add_(w, alpha=self.decay), loss + self.decay / 2 * float(torch.dot(w, w))


LARGEST_BATCH = 1000
"""Samples per batch at most."""


def merge_batches(batches: Sequence[Batch]) -> list[Batch]:
    """Return the same samples in few batches; those whose inputs are no tensors stay as they are.

    One large pass is quicker than many small ones.
    """
    if not all(isinstance(inputs, Tensor) for inputs, _ in batches):
        return list(batches)
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return list(
        zip(torch.split(inputs, LARGEST_BATCH), torch.split(targets, LARGEST_BATCH), strict=True)
    )


def global_surface(federation: Federation, seed: int, size: int) -> TrainingSurface:
    """Return the loss that the federation minimises, on a sample of that size of its training data.

    Clients have equal weights, or weights by their samples if they are averaged so. Every client
    gives equally many samples; with weights by samples, as many as it is drawn. They are drawn from
    a random stream of their own.
    """
    random = rng.generator(seed, "held sample")
    clients = federation.clients
    drawn: list[int] = []
    if federation.averaging == "size":
        sizes = [len(clients[k]) for k in range(len(clients))]
        total = sum(sizes)
        drawn = random.choice(len(clients), size, p=[n / total for n in sizes]).tolist()
    else:
        for _ in range(-(-size // len(clients))):
            drawn += random.permutation(len(clients)).tolist()
        drawn = drawn[: max(size, 1)]
    batches = []
    for client in sorted(set(drawn)):
        samples = clients[client]
        index = random.permutation(len(samples))[: drawn.count(client)]
        batches.append(samples.batch(torch.from_numpy(index).sort().values))
    return TrainingSurface(federation, batches)


def local_surface(federation: Federation, client: int, seed: int, size: int) -> TrainingSurface:
    """Return one client's own loss, on all its data or on a sample of that size."""
    samples = federation.clients[client]
    chosen = rng.generator(seed, "local sample", client).permutation(len(samples))[:size]
    index = torch.from_numpy(chosen).sort().values
    return TrainingSurface(
        federation, [samples.batch(piece) for piece in torch.split(index, LARGEST_BATCH)]
    )


def worst_perturbation(
    surface: TrainingSurface, w: Tensor, gradient: Tensor, radius: float, ascents: int
) -> Tensor:
    """Return the perturbation ε of length `radius` that leads to the highest loss.

    It starts along the gradient at w and is improved by ε ← radius · g(w + ε)/‖g(w + ε)‖. Where the
    loss is largest on the sphere, ε is parallel to the gradient at w + ε; each ascent goes there
    from the last point, without a step size to choose.
    """
    epsilon = radius * unit(gradient, tau=1e-12)
    for _ in range(ascents):
        epsilon = radius * unit(surface.gradient(w + epsilon), tau=1e-12)
    return epsilon


def l2_norm(v: Tensor) -> float:
    """Return the L2 norm of a vector as a float."""
    return float(norm(v))
