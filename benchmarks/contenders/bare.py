"""The limit: the same steps on flat buffers with no federation at all.

Weights and gradients are views of one flat buffer each, the data are resident and batches are gathered by index. The
gradient comes from autograd, as it must for any model, or ("--by-hand") from this model's own backward pass written
out, into memory that is never allocated anew. A "round" is as many steps as a federated one, on one client after the
other, from wherever the last one ended.
"""

import argparse
import copy
from collections.abc import Callable

import protocol
import torch
import workload
from torch import Tensor
from torch.nn import functional

KEPT = 1 - workload.LEARNING_RATE * workload.WEIGHT_DECAY
"""What a step leaves of the weights before it subtracts the gradient."""


class BareLoop:
    def __init__(self, by_hand: bool, share: int) -> None:
        self.data = workload.load()
        self.model = copy.deepcopy(self.data.model)
        self.random = torch.Generator().manual_seed(0)
        self.clients = workload.COHORT // share
        self.weights, self.gradient = flatten(self.model)
        self.differentiate = (by_hand_gradient if by_hand else autograd_gradient)(
            self.model, self.gradient
        )

    def run(self, rounds: int) -> int:
        steps = 0
        for client in torch.randint(
            workload.CLIENTS, (rounds * self.clients,), generator=self.random
        ).tolist():
            inputs, labels = self.data.client(client)
            for _ in range(workload.EPOCHS):
                for rows in torch.randperm(len(labels), generator=self.random).split(
                    workload.BATCH
                ):
                    self.differentiate(
                        inputs.flatten(1).index_select(0, rows), labels.index_select(0, rows)
                    )
                    self.step()
                    steps += 1
        return steps

    @torch.no_grad()
    def step(self) -> None:
        scale = min(
            1.0, workload.CLIP_NORM / (float(torch.linalg.vector_norm(self.gradient)) + 1e-6)
        )
        self.weights.mul_(KEPT).sub_(self.gradient, alpha=workload.LEARNING_RATE * scale)


def flatten(model: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Two flat buffers whose views the parameters and their gradients become."""
    parameters = list(model.parameters())
    weights = torch.cat([p.detach().reshape(-1) for p in parameters])
    gradient, start = torch.zeros_like(weights), 0
    for p in parameters:
        end = start + p.numel()
        p.data, p.grad = weights[start:end].view(p.shape), gradient[start:end].view(p.shape)
        start = end
    return weights, gradient


def autograd_gradient(model: torch.nn.Module, gradient: Tensor) -> Callable[[Tensor, Tensor], None]:
    """Plain functions instead of modules; fresh gradients and one copy, which is faster than adding to zeroed views."""
    parameters = w1, b1, w2, b2, w3, b3 = list(model.parameters())

    def differentiate(x: Tensor, y: Tensor) -> None:
        h1 = torch.relu(functional.linear(x, w1, b1))
        h2 = torch.relu(functional.linear(h1, w2, b2))
        loss = functional.cross_entropy(functional.linear(h2, w3, b3), y)
        pieces = torch.autograd.grad(loss, parameters)
        torch.cat([piece.view(-1) for piece in pieces], out=gradient)

    return differentiate


def by_hand_gradient(model: torch.nn.Module, gradient: Tensor) -> Callable[[Tensor, Tensor], None]:
    w1, b1, w2, b2, w3, b3 = (p.detach() for p in model.parameters())
    g1, d1, g2, d2, g3, d3 = (p.grad for p in model.parameters())
    batch, hidden, classes = workload.BATCH, len(b1), len(b3)
    h1, h2, e1, e2 = (torch.empty(batch, hidden) for _ in range(4))
    outputs, order = torch.empty(batch, classes), torch.arange(batch)

    @torch.no_grad()
    def differentiate(x: Tensor, y: Tensor) -> None:
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

    return differentiate


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
