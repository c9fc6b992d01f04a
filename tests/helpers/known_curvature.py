"""Losses whose curvature is known: a small network with its dense Hessian, and quadratics."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fedwmsam.analysis.loss_surface import DrawnSample, LossSurface, draw_sample
from fedwmsam.data.clients import TensorSamples
from fedwmsam.training.objectives import OBJECTIVES, MetricFunction, make_objective
from fedwmsam.training.task import Task

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(60, 4, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(3, (60,), generator=GENERATOR)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return a classifier of three classes with 83 weights, the same in every call."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 3)).to(dtype)


def make_surface(
    model: nn.Module,
    x: Tensor = X,
    y: Tensor = Y,
    loss: MetricFunction | None = None,
    batch: int = 7,
) -> LossSurface:
    """Return the surface of the model's loss (by default cross-entropy) on all the samples."""
    objective = make_objective(loss) if loss else OBJECTIVES["classification"]
    task = Task(model, objective)
    x = x.to(task.dtype) if x.is_floating_point() else x
    return LossSurface(task, draw_sample(TensorSamples(x, y), None, batch, 0))


def dense_hessian(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> Tensor:
    """Return the Hessian of the mean cross-entropy, computed by torch.func in float64."""
    model = model.double().eval()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]

    def loss(w: Tensor) -> Tensor:
        pieces = zip(shapes, torch.split(w, sizes), strict=True)
        values = {name: piece.view(shapes[name]) for name, piece in pieces}
        outputs = torch.func.functional_call(model, values, (x.double(),))
        return nn.functional.cross_entropy(outputs, y)

    w = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    hessian: Tensor = torch.func.hessian(loss)(w)
    return hessian


class WeightsModel(nn.Module):
    """A model whose output is its weights, so that the loss is any function of them."""

    def __init__(self, w: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w


def make_function_surface(
    function: Callable[[Tensor], Tensor], w: list[float]
) -> tuple[LossSurface, Tensor]:
    """Return the surface of any function of a few weights, and the point w."""
    task = Task(WeightsModel(w), make_objective(lambda outputs, _: function(outputs)))
    sample = DrawnSample(((torch.zeros(1, 1), torch.zeros(1)),), 1, 1, 1)
    return LossSurface(task, sample), task.initial_weights


def make_symmetric_matrix(eigenvalues: list[float], seed: int = 0) -> Tensor:
    """Return a symmetric matrix with these eigenvalues and random eigenvectors."""
    random = np.random.default_rng(seed)
    q, _ = np.linalg.qr(random.standard_normal((len(eigenvalues), len(eigenvalues))))
    return torch.from_numpy(q @ np.diag(eigenvalues) @ q.T)
