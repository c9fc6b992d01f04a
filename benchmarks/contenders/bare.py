"""The limit: the same steps on flat buffers with no federation at all.

Weights and gradients are views of one flat buffer each, the data are resident and batches are
gathered by index. The gradient comes from autograd, as it must for any model, or ("--by-hand") from
the MLP's own backward pass written out, into memory that is never allocated anew. A "round" is
as many steps as a federated one, on one client after the other, from wherever the last one ended.
Convolutional networks are those of this library, so that the difference is the federation.
"""

import argparse
from collections.abc import Callable, Iterator

import protocol
import torch
import workload
from ours import own_model
from torch import Tensor
from torch.nn import functional

from fedwmsam.training.task import keep_freed_memory

SHRINKAGE = 1 - workload.LEARNING_RATE * workload.WEIGHT_DECAY
"""Factor of the weights in a step, before the gradient is subtracted."""


class BareLoop:
    """Local steps without a federation; with `share` = 2, half of those of each round."""

    def __init__(self, by_hand: bool, share: int) -> None:
        keep_freed_memory()
        self.data = workload.load()
        self.model = own_model(self.data)
        self.generator = torch.Generator().manual_seed(0)
        self.clients = workload.COHORT // share
        self.weights, self.gradient = flatten(self.model)
        make_gradient = by_hand_gradient if by_hand else autograd_gradient
        if workload.MODEL != "mlp":
            make_gradient = module_gradient
        self.compute_gradient = make_gradient(self.model, self.gradient)

    def run(self, rounds: int) -> int:
        """Train some rounds and return the number of local steps."""
        steps = 0
        size = (rounds * self.clients,)
        clients = torch.randint(workload.CLIENTS, size, generator=self.generator).tolist()
        for client in clients:
            inputs, labels = self.data.client(client)
            for rows in self.batches(len(labels)):
                self.compute_gradient(inputs.index_select(0, rows), labels.index_select(0, rows))
                self.step()
                steps += 1
        return steps

    def batches(self, samples: int) -> Iterator[Tensor]:
        """Yield the indices of the batches of all epochs, in a random order."""
        for _ in range(workload.EPOCHS):
            yield from torch.randperm(samples, generator=self.generator).split(workload.BATCH)

    @torch.no_grad()
    def step(self) -> None:
        """Clip the gradient and subtract it from the weights."""
        norm = float(torch.linalg.vector_norm(self.gradient))
        scale = min(1.0, workload.CLIP_NORM / (norm + 1e-6))
        self.weights.mul_(SHRINKAGE).sub_(self.gradient, alpha=workload.LEARNING_RATE * scale)


def flatten(model: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Return flat buffers of weights and gradients; the model's parameters become views of them."""
    parameters = list(model.parameters())
    weights = torch.cat([p.detach().reshape(-1) for p in parameters])
    gradient = torch.zeros_like(weights)
    start = 0
    for p in parameters:
        end = start + p.numel()
        p.data = weights[start:end].view(p.shape)
        p.grad = gradient[start:end].view(p.shape)
        start = end
    return weights, gradient


def autograd_gradient(model: torch.nn.Module, gradient: Tensor) -> Callable[[Tensor, Tensor], None]:
    """Return a function that computes the gradient with autograd.

    It uses plain functions instead of modules. Fresh gradients and one copy of them are faster than
    adding to views that were set to zero.
    """
    parameters = list(model.parameters())
    w1, b1, w2, b2, w3, b3 = parameters

    def compute_gradient(x: Tensor, y: Tensor) -> None:
        h1 = torch.relu(functional.linear(x.flatten(1), w1, b1))
        h2 = torch.relu(functional.linear(h1, w2, b2))
        loss = functional.cross_entropy(functional.linear(h2, w3, b3), y)
        gradients = torch.autograd.grad(loss, parameters)
        torch.cat([tensor.view(-1) for tensor in gradients], out=gradient)

    return compute_gradient


def module_gradient(model: torch.nn.Module, gradient: Tensor) -> Callable[[Tensor, Tensor], None]:
    """Return a function that computes the gradient of any model with autograd."""
    parameters = list(model.parameters())

    def compute_gradient(x: Tensor, y: Tensor) -> None:
        loss = functional.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, parameters)
        torch.cat([tensor.reshape(-1) for tensor in gradients], out=gradient)

    return compute_gradient


def by_hand_gradient(model: torch.nn.Module, gradient: Tensor) -> Callable[[Tensor, Tensor], None]:
    """Return a function that computes the gradient with the model's own backward pass."""
    w1, b1, w2, b2, w3, b3 = (p.detach() for p in model.parameters())
    g1, d1, g2, d2, g3, d3 = (p.grad for p in model.parameters())
    batch = workload.BATCH
    h1, h2, e1, e2 = (torch.empty(batch, len(b1)) for _ in range(4))
    outputs = torch.empty(batch, len(b3))
    order = torch.arange(batch)

    @torch.no_grad()
    def compute_gradient(images: Tensor, y: Tensor) -> None:
        x = images.flatten(1)
        torch.addmm(b1, x, w1.t(), out=h1).relu_()
        torch.addmm(b2, h1, w2.t(), out=h2).relu_()
        error = torch.softmax(torch.addmm(b3, h2, w3.t(), out=outputs), 1)
        error[order, y] -= 1
        error.div_(batch)
        torch.mm(error.t(), h2, out=g3)
        torch.sum(error, 0, out=d3)
        torch.mm(error, w3, out=e2).mul_(h2 > 0)
        torch.mm(e2.t(), h1, out=g2)
        torch.sum(e2, 0, out=d2)
        torch.mm(e2, w2, out=e1).mul_(h1 > 0)
        torch.mm(e1.t(), x, out=g1)
        torch.sum(e1, 0, out=d1)

    return compute_gradient


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--by-hand", action="store_true")
    parser.add_argument(
        "--share", type=int, default=1, help="do only one part in SHARE of each round"
    )
    arguments = parser.parse_args()
    loop = BareLoop(arguments.by_hand, arguments.share)
    protocol.serve(loop.run, lambda: loop.data.accuracy(loop.model))


if __name__ == "__main__":
    main()
