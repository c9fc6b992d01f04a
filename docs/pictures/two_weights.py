"""Two federated problems with two weights, small enough to plot, and the paths of methods on them.

The bowl is linear regression: inputs and targets of ten clients differ, so that each has another
optimum. The valley is a network of two weights, y = w₁ w₂ x: all points with w₁ w₂ = 1 fit equally
well, and they differ in how sharp the loss is there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import fedwmsam
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.rounds import (
    Federation,
    Job,
    State,
    first_state,
    make_jobs,
    run_round,
    sample_cohort,
    train_client,
)
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.methods import Method
from fedwmsam.recording.instrumentation import ObservedMethod, StepObservation
from fedwmsam.settings.config import Settings
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task

CLIENTS = 10
SETTINGS = Settings(
    rounds=60,
    clients_per_round=3,
    local_epochs=4,
    batch_size=10,
    lr=0.05,
    lr_decay=1.0,
    weight_decay=0.0,
    clip_norm=None,
)
"""Settings of all runs: three clients per round, eight local steps each.

Without decay and clipping only the methods' own terms are seen.
"""


@dataclass(frozen=True)
class Problem:
    """A federated problem: a model with two weights, and the data of its clients."""

    model: Callable[[], nn.Module]
    clients: list[tuple[Tensor, Tensor]]

    def loss(self, w: Tensor, client: int | None = None) -> Tensor:
        """Return the loss at weights (..., 2), of one client or of the federation."""
        if client is None:
            return torch.stack([self.loss(w, k) for k in range(CLIENTS)]).mean(dim=0)
        x, y = self.clients[client]
        return ((self.predict(w, x) - y[:, 0]) ** 2).mean(dim=-1)

    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the model with these weights."""
        raise NotImplementedError

    def gradient(self, w: Tensor, client: int | None = None) -> Tensor:
        """Return the gradient of the loss, of one client or of the federation."""
        point = w.clone().requires_grad_()
        return torch.autograd.grad(self.loss(point, client), point)[0]


class Bowl(Problem):
    """Linear regression with two weights."""

    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        return w @ x.T

    def optimum(self, client: int | None = None) -> Tensor:
        """Return the weights with the lowest loss, of one client or of the federation."""
        clients = self.clients if client is None else [self.clients[client]]
        curvature = torch.stack([x.T @ x / len(x) for x, _ in clients]).mean(dim=0)
        correlation = torch.stack([x.T @ y / len(x) for x, y in clients]).mean(dim=0)
        return torch.linalg.solve(curvature, correlation)[:, 0]


class Valley(Problem):
    """Regression with a product of two weights."""

    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        return w.prod(dim=-1, keepdim=True) * x[:, 0]


class ProductModel(nn.Module):
    """The model y = w₁ w₂ x, which starts where the loss is sharp."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.6, 0.25]))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.prod() * x


def make_linear_model() -> nn.Module:
    """Return the model of the bowl, which starts far from the optimum."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-4.0, 3.5]]))
    return model


def bowl() -> Bowl:
    """Return the bowl.

    The inputs of client k lie along a direction of its own, and its optimum is on a circle around
    the origin.
    """
    generator = torch.Generator().manual_seed(0)
    clients = []
    for k in range(CLIENTS):
        inputs = torch.randn(20, 2, generator=generator) * torch.tensor([1.3, 0.25])
        inputs = inputs @ rotation(math.pi * k / CLIENTS).T * torch.tensor([1.4, 0.45])
        optimum = rotation(2 * math.pi * 3 * k / CLIENTS) @ torch.tensor([1.5, 0.0])
        clients.append((inputs, (inputs @ optimum)[:, None]))
    return Bowl(make_linear_model, clients)


def valley() -> Valley:
    """Return the valley; the best w₁ w₂ of a client is between 0.4 and 1.6."""
    generator = torch.Generator().manual_seed(1)
    clients = []
    for k in range(CLIENTS):
        inputs = torch.randn(20, 1, generator=generator)
        inputs = inputs / inputs.pow(2).mean().sqrt()
        slope = 0.4 + 1.2 * k / (CLIENTS - 1)
        clients.append((inputs, slope * inputs + 0.3 * torch.randn(20, 1, generator=generator)))
    return Valley(ProductModel, clients)


def rotation(angle: float) -> Tensor:
    """Return the matrix that rotates by this angle."""
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


@dataclass(frozen=True)
class GlobalPath:
    """A run: the global models and the columns of the metrics."""

    path: Tensor
    """The global model before the first round and after each: (rounds + 1, 2)."""
    columns: dict[str, list[float]]


def train(problem: Problem, method: Method, rounds: int = SETTINGS.rounds) -> GlobalPath:
    """Train with `fit` and return the path of the global model."""
    model = problem.model()
    path = [next(model.parameters()).detach().flatten().clone()]

    def append_model(progress: object) -> None:
        path.append(progress.state_dict()["weight"].flatten().clone())  # type: ignore[attr-defined]

    result = fedwmsam.fit(
        model,
        problem.clients,
        method,
        loss="regression",
        rounds=rounds,
        callbacks=[append_model],
        clients_per_round=SETTINGS.clients_per_round,
        local_epochs=SETTINGS.local_epochs,
        lr=SETTINGS.lr,
        batch_size=SETTINGS.batch_size,
        lr_decay=SETTINGS.lr_decay,
        weight_decay=SETTINGS.weight_decay,
        clip_norm=SETTINGS.clip_norm,
    )
    return GlobalPath(torch.stack(path), result.columns)


def problem_federation(problem: Problem, method: Method) -> Federation:
    """Return the federation that `fit` would make of a problem."""
    task = Task(problem.model(), make_objective("regression"))
    clients = make_data_adapter(task).to_clients(problem.clients, None)
    return make_federation(SETTINGS, method, task, clients)


def state_after(problem: Problem, method: Method, rounds: int) -> State:
    """Return the server's state after the first rounds of `train`."""
    federation = problem_federation(problem, method)
    state = first_state(federation)
    for _ in range(rounds):
        state, _ = run_round(federation, state)
    return state


@dataclass(frozen=True)
class LocalPath:
    """The local steps of one client in one round."""

    path: Tensor
    """Weights before the first step and after each."""
    perturbations: Tensor
    """ε of each step."""
    down: dict[str, Tensor]


def local_paths(problem: Problem, method: Method, state: State) -> list[LocalPath]:
    """Return the local steps that every client, sampled or not, would take after `state`.

    Nothing is sent back to the server.
    """
    federation = problem_federation(problem, method)
    _, info = sample_cohort(federation, state.round)
    jobs = make_jobs(federation, state, list(range(CLIENTS)), info)
    return [local_path(federation, job) for job in jobs]


def local_path(federation: Federation, job: Job) -> LocalPath:
    """Train one client and return its local steps."""
    points: list[Tensor] = []
    perturbations: list[Tensor] = []

    def observe(step: StepObservation) -> None:
        points.append(step.w.clone())
        perturbations.append(step.perturbation.clone())

    steps = frozenset(range(job.info.steps))
    observed = ObservedMethod(federation.method, observe, job.client, steps)
    result = train_client(replace(federation, method=observed), job)
    points.append(job.down["w"] + result.up["delta"])
    return LocalPath(torch.stack(points), torch.stack(perturbations), job.down)
