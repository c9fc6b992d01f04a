"""Losses whose curvature is known: small networks with their dense Hessian, and quadratics."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fedwmsam.analysis.loss_surface import LossSurface, Sample, draw_sample
from fedwmsam.data.clients import TensorSamples
from fedwmsam.training.objectives import OBJECTIVES, MetricFunction, make_objective
from fedwmsam.training.task import Task

DATA = torch.Generator().manual_seed(5)
X, Y = (
    torch.randn(60, 4, generator=DATA, dtype=torch.float64),
    torch.randint(3, (60,), generator=DATA),
)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """83 weights."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 3)).to(dtype)


def surface_of(
    model: nn.Module,
    x: Tensor = X,
    y: Tensor = Y,
    loss: MetricFunction | None = None,
    batch: int = 7,
) -> LossSurface:
    objective = make_objective(loss) if loss else OBJECTIVES["classification"]
    task = Task(model, objective)
    x = x.to(task.dtype) if x.is_floating_point() else x
    return LossSurface(task, draw_sample(TensorSamples(x, y), None, batch, 0))


def dense_hessian(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> Tensor:
    """By torch.func, in float64, on all samples at once."""
    model = model.double().eval()
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def loss(w: Tensor) -> Tensor:
        pieces = torch.split(w, [shape.numel() for shape in shapes.values()])
        values = {
            name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)
        }
        return nn.functional.cross_entropy(
            torch.func.functional_call(model, values, (x.double(),)), y
        )

    w = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    hessian: Tensor = torch.func.hessian(loss)(w)
    return hessian


class Weights(nn.Module):
    """A model whose output is its weights, so that the loss is any function of them."""

    def __init__(self, w: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w


def function_surface(
    function: Callable[[Tensor], Tensor], w: list[float]
) -> tuple[LossSurface, Tensor]:
    """The surface of any function of a few weights, and the point w."""
    task = Task(Weights(w), make_objective(lambda outputs, _: function(outputs)))
    sample = Sample(((torch.zeros(1, 1), torch.zeros(1)),), 1, 1, 1)
    return LossSurface(task, sample), task.initial_weights


def quadratic(eigenvalues: list[float], seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    random = np.random.default_rng(seed)
    q, _ = np.linalg.qr(random.standard_normal((len(eigenvalues), len(eigenvalues))))
    return torch.from_numpy(q @ np.diag(eigenvalues) @ q.T)
