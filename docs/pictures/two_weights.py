"""Two federated problems with two weights, small enough to draw whole, and ways to look inside a round on them.

The bowl is linear regression: ten clients whose inputs and answers differ, so that each would like to be somewhere
else. The valley is a network of two weights, y = w₁ w₂ x: all points with w₁ w₂ = 1 fit equally well, and they differ
in how sharp the loss is there.
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
"""Three clients a round, eight local steps each; no decay and no clip, so that only the methods' own terms are seen."""


@dataclass(frozen=True)
class Problem:
    model: Callable[[], nn.Module]
    clients: list[tuple[Tensor, Tensor]]

    def loss(self, w: Tensor, client: int | None = None) -> Tensor:
        """At weights (..., 2), of one client or of the federation."""
        if client is None:
            return torch.stack([self.loss(w, k) for k in range(CLIENTS)]).mean(dim=0)
        x, y = self.clients[client]
        return ((self.predict(w, x) - y[:, 0]) ** 2).mean(dim=-1)

    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError

    def gradient(self, w: Tensor, client: int | None = None) -> Tensor:
        at = w.clone().requires_grad_()
        return torch.autograd.grad(self.loss(at, client), at)[0]


class Bowl(Problem):
    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        return w @ x.T

    def optimum(self, client: int | None = None) -> Tensor:
        chosen = self.clients if client is None else [self.clients[client]]
        curvature = torch.stack([x.T @ x / len(x) for x, _ in chosen]).mean(dim=0)
        pull = torch.stack([x.T @ y / len(x) for x, y in chosen]).mean(dim=0)
        return torch.linalg.solve(curvature, pull)[:, 0]


class Valley(Problem):
    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        return w.prod(dim=-1, keepdim=True) * x[:, 0]


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.6, 0.25]))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.prod() * x


def linear() -> nn.Module:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-4.0, 3.5]]))
    return model


def bowl() -> Bowl:
    """Client k's inputs lie along a direction of its own, and its best weights on a circle around the origin."""
    draw, clients = torch.Generator().manual_seed(0), []
    for k in range(CLIENTS):
        inputs = torch.randn(20, 2, generator=draw) * torch.tensor([1.3, 0.25])
        inputs = inputs @ turn(math.pi * k / CLIENTS).T * torch.tensor([1.4, 0.45])
        best = turn(2 * math.pi * 3 * k / CLIENTS) @ torch.tensor([1.5, 0.0])
        clients.append((inputs, (inputs @ best)[:, None]))
    return Bowl(linear, clients)


def valley() -> Valley:
    """Client k would like w₁ w₂ to be between 0.4 and 1.6."""
    draw, clients = torch.Generator().manual_seed(1), []
    for k in range(CLIENTS):
        inputs = torch.randn(20, 1, generator=draw)
        inputs = inputs / inputs.pow(2).mean().sqrt()
        slope = 0.4 + 1.2 * k / (CLIENTS - 1)
        clients.append((inputs, slope * inputs + 0.3 * torch.randn(20, 1, generator=draw)))
    return Valley(Product, clients)


def turn(angle: float) -> Tensor:
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


@dataclass(frozen=True)
class Walk:
    path: Tensor
    """The global model before the first round and after each: (rounds + 1, 2)."""
    columns: dict[str, list[float]]


def walk(problem: Problem, method: Method, rounds: int = SETTINGS.rounds) -> Walk:
    """What `fit` does with a method."""
    model = problem.model()
    path = [next(model.parameters()).detach().flatten().clone()]

    def note(progress: object) -> None:
        path.append(progress.state_dict()["weight"].flatten().clone())  # type: ignore[attr-defined]

    result = fedwmsam.fit(
        model,
        problem.clients,
        method,
        loss="regression",
        rounds=rounds,
        callbacks=[note],
        clients_per_round=SETTINGS.clients_per_round,
        local_epochs=SETTINGS.local_epochs,
        lr=SETTINGS.lr,
        batch_size=SETTINGS.batch_size,
        lr_decay=SETTINGS.lr_decay,
        weight_decay=SETTINGS.weight_decay,
        clip_norm=SETTINGS.clip_norm,
    )
    return Walk(torch.stack(path), result.columns)


def federation(problem: Problem, method: Method) -> Federation:
    task = Task(problem.model(), make_objective("regression"))
    return make_federation(
        SETTINGS, method, task, make_data_adapter(task).clients(problem.clients, None)
    )


def state_after(problem: Problem, method: Method, rounds: int) -> State:
    """The same rounds as `walk`'s, for looking at what the server keeps."""
    members = federation(problem, method)
    state = first_state(members)
    for _ in range(rounds):
        state, _ = run_round(members, state)
    return state


@dataclass(frozen=True)
class LocalWalk:
    """One client's round."""

    path: Tensor
    perturbations: Tensor
    down: dict[str, Tensor]


def local_walks(problem: Problem, method: Method, state: State) -> list[LocalWalk]:
    """What every client, sampled or not, would do in the round after `state`; nothing is sent back."""
    members = federation(problem, method)
    _, info = sample_cohort(members, state.round)
    walks = []
    for job in make_jobs(members, state, list(range(CLIENTS)), info):
        seen: list[tuple[Tensor, Tensor]] = []

        def see(sight: StepObservation, seen: list[tuple[Tensor, Tensor]] = seen) -> None:
            seen.append((sight.w.clone(), sight.perturbation.clone()))

        watched = ObservedMethod(method, see, job.client, frozenset(range(job.info.steps)))
        result = train_client(replace(members, method=watched), job)
        points = [w for w, _ in seen] + [job.down["w"] + result.up["delta"]]
        walks.append(LocalWalk(torch.stack(points), torch.stack([e for _, e in seen]), job.down))
    return walks
