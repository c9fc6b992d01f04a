"""The loss that training minimises, on a sample that stays the same: its value and gradient wherever one asks.

Unlike `analysis.loss_surface.LossSurface` it is in training mode and with the weight penalty, as a local step sees it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.engine.rounds import Federation
from fedwmsam.methods.vectors import norm, unit
from fedwmsam.training.task import Batch, Task


class TrainingSurface:
    """The mean loss of all batches together, with the weight penalty where the run has it in its objective.

    Asking changes nothing the training sees: no buffer, and no random number that another step would draw.
    """

    def __init__(self, federation: Federation, batches: Sequence[Batch]) -> None:
        self.task: Task = federation.task
        self.batches = merge_batches(batches)
        self.size = sum(len(targets) for _, targets in self.batches)
        rules = federation.rules
        self.decay = rules.weight_decay if rules.weight_decay_mode == "objective" else 0.0

    def gradient(self, w: Tensor) -> Tensor:
        return self.measured(w)[0]

    def loss(self, w: Tensor) -> float:
        return self.measured(w)[1]

    def measured(self, w: Tensor) -> tuple[Tensor, float]:
        total, loss = torch.zeros_like(w), 0.0
        for batch in self.batches:
            share = len(batch[1]) / self.size
            piece, value = self.task.gradient(w, batch, seed=0, keep_buffers=False)
            total.add_(piece, alpha=share)
            loss += share * float(value)
        return total.add_(w, alpha=self.decay), loss + self.decay / 2 * float(torch.dot(w, w))


LARGEST_BATCH = 1000


def merge_batches(batches: Sequence[Batch]) -> list[Batch]:
    """Tensors side by side in few batches: one large pass is quicker than many small ones."""
    if not all(isinstance(inputs, Tensor) for inputs, _ in batches):
        return list(batches)
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return list(
        zip(torch.split(inputs, LARGEST_BATCH), torch.split(targets, LARGEST_BATCH), strict=True)
    )


def global_surface(federation: Federation, seed: int, size: int) -> TrainingSurface:
    """What the federation minimises: clients weigh alike, or by their samples if they are averaged so.

    Every client gives equally many samples (those by size: as many as it is drawn for), drawn from the training data
    by a stream of their own.
    """
    random, clients = rng.generator(seed, "held sample"), federation.clients
    if federation.averaging == "size":
        sizes = [len(clients[k]) for k in range(len(clients))]
        drawn = random.choice(len(clients), size, p=[n / sum(sizes) for n in sizes]).tolist()
    else:
        rounds = -(-size // len(clients))
        drawn = [k for _ in range(rounds) for k in random.permutation(len(clients)).tolist()][
            : max(size, 1)
        ]
    batches = []
    for client in sorted(set(drawn)):
        samples = clients[client]
        chosen = random.permutation(len(samples))[: drawn.count(client)]
        batches.append(samples.batch(torch.from_numpy(chosen).sort().values))
    return TrainingSurface(federation, batches)


def local_surface(federation: Federation, client: int, seed: int, size: int) -> TrainingSurface:
    """One client's own loss, on all its data or on that many of its samples."""
    samples = federation.clients[client]
    chosen = rng.generator(seed, "local sample", client).permutation(len(samples))[:size]
    index = torch.from_numpy(chosen).sort().values
    return TrainingSurface(
        federation, [samples.batch(piece) for piece in torch.split(index, LARGEST_BATCH)]
    )


def worst_direction(
    surface: TrainingSurface, w: Tensor, gradient: Tensor, radius: float, ascents: int
) -> Tensor:
    """The way to the highest loss at that distance: ε ← radius · g(w + ε)/‖g(w + ε)‖, from the gradient at w.

    Where the loss is largest on the sphere, ε is parallel to the gradient at w + ε; each ascent goes there from the
    last point, without a step size to choose.
    """
    epsilon = radius * unit(gradient, tau=1e-12)
    for _ in range(ascents):
        epsilon = radius * unit(surface.gradient(w + epsilon), tau=1e-12)
    return epsilon


def l2_norm(v: Tensor) -> float:
    return float(norm(v))
