"""Replay reference-vector files through the real round loop and compare every number they hold."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine import rounds
from fedwmsam.engine.schedule import Schedule
from fedwmsam.errors import InputError
from fedwmsam.methods import Method, make_method, method_class
from fedwmsam.training.local import LocalResult, LocalRules, Step
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task, deterministic_torch

SHARED_OPTIONS = (
    "global_lr",
    "rho",
    "alpha",
    "adapt_rate",
    "similarity",
    "perturbation",
    "lam",
    "correction_weight",
)


@dataclass(frozen=True)
class FileSchedule:
    """A file's own cohorts and step sizes; batches in data-set order."""

    selected: list[list[int]]
    config: dict[str, Any]

    def cohort(self, round: int) -> list[int]:
        return self.selected[round]

    def lr(self, round: int) -> float:
        return float(self.config["local_lr"] * self.config["lr_decay"] ** round)

    def steps(self, round: int, client: int, samples: int) -> list[Step]:
        batches = torch.split(torch.arange(samples), self.config["batch_size"])
        return [
            Step(batch, seed=0) for _ in range(self.config["local_epochs"]) for batch in batches
        ]

    def count(self, round: int, client: int, samples: int) -> int:
        return int(self.config["local_epochs"]) * self.epoch(samples)

    def epoch(self, samples: int) -> int:
        return -(-samples // int(self.config["batch_size"]))


@dataclass(frozen=True)
class ReplayErrors:
    """The largest absolute difference over all rounds, for each thing the file records."""

    errors: dict[str, float]

    @property
    def worst(self) -> float:
        return max(self.errors.values())


def verify_file(path: Path) -> ReplayErrors:
    """Replay the file in float64 on one thread; every number it records is compared."""
    file = read_file(path)
    try:
        with deterministic_torch():
            return replay(file)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} is not a whole reference-vector file: {type(error).__name__} {reason}."
        ) from error


def replay(file: dict[str, Any]) -> ReplayErrors:
    federation, errors = federation_of(file), {"model": 0.0}

    def compare(name: str, ours: Tensor | float, theirs: Any) -> None:
        expected = torch.tensor(theirs, dtype=torch.float64)
        errors[name] = max(
            errors.get(name, 0.0), largest(torch.as_tensor(ours, dtype=torch.float64), expected)
        )

    state = rounds.first_state(federation)
    compare("model", state.server["w"], file["global"][0])
    if "alpha" in file:
        compare("alpha", state.server["alpha"], file["alpha"][0])
    for r in range(len(file["selected"])):
        answers: dict[str, Tensor] = {}
        state, record = rounds.run_round(federation, state, partial(note, answers))
        compare("model", state.server["w"], file["global"][r + 1])
        if "alpha" in file:
            compare("alpha", state.server["alpha"], file["alpha"][r + 1])
            compare("similarity", record["similarity"], file["similarity"][r])
        if "local_update" in file:
            for client, update in file["local_update"][r].items():
                compare("updates", answers[client], update)
    return ReplayErrors(errors)


def note(answers: dict[str, Tensor], job: rounds.Job, result: LocalResult) -> None:
    answers[str(job.client)] = result.up["delta"]


def largest(ours: Tensor, theirs: Tensor) -> float:
    error = (ours - theirs).abs().max()
    return float(torch.nan_to_num(error, nan=float("inf")))


def read_file(path: Path) -> dict[str, Any]:
    try:
        file = json.loads(path.read_text())
        missing = [k for k in ("config", "x", "y", "selected", "global") if k not in file]
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
        raise InputError(f"{path} is not a reference-vector file: {error}.") from error
    if missing:
        raise InputError(f"{path} is not a reference-vector file: it has no {missing[0]!r}.")
    assert isinstance(file, dict)
    return file


def federation_of(file: dict[str, Any]) -> rounds.Federation:
    config = file["config"]
    task = Task(lambda: small_network(config), OBJECTIVES["classification"])
    start = torch.tensor(file["global"][0], dtype=torch.float64)
    if task.size != len(start):
        raise InputError(f"The file's model has {len(start)} numbers, its sizes say {task.size}.")
    task.initial_weights = start
    clients = [
        TensorSamples(torch.tensor(x, dtype=torch.float64), torch.tensor(y))
        for x, y in zip(file["x"], file["y"], strict=True)
    ]
    schedule: Schedule = FileSchedule(file["selected"], config)
    rules = LocalRules(config["weight_decay"], "sgd", config["clip_norm"])
    return rounds.Federation(method_of(config), task, clients, schedule, rules)


def method_of(config: dict[str, Any]) -> Method:
    """The file's method with those of the file's hyper-parameters that it has."""
    name = str(config["method"]).lower().replace("_", "-")
    known = {*method_class(name).__dataclass_fields__}
    named = config | {"lam": config.get("lamb"), "correction_weight": config.get("lamb")}
    options = {
        key: named[key] for key in SHARED_OPTIONS if key in known and named.get(key) is not None
    }
    return make_method(name, **options)


def small_network(config: dict[str, Any]) -> nn.Module:
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[config["activation"]]()
    network = nn.Sequential(
        nn.Linear(config["dim"], config["hidden"]),
        activation,
        nn.Linear(config["hidden"], config["classes"]),
    )
    return network.double()
