"""The replay of reference-vector files: do the methods compute what the file says?

A reference-vector file (JSON) holds a tiny federation (data, cohorts, hyper-parameters) and what
another implementation computed on it: the global model after every round and, where it has them,
α, the similarities and the clients' updates. `verify_file` runs the same rounds through the real
round loop, in float64 on one thread, and returns the largest difference for each of them.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine import rounds
from fedwmsam.engine.records import JSON_LIMIT, parse_record
from fedwmsam.engine.schedule import Schedule
from fedwmsam.errors import InputError, describe_error, printable
from fedwmsam.files import read_named
from fedwmsam.methods import Method, make_method, method_class
from fedwmsam.settings.options import truncated_repr
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
"""Options of methods that a file's configuration may set."""


@dataclass(frozen=True)
class FileSchedule:
    """A schedule with the cohorts and step sizes of a file, and with batches in data-set order."""

    selected: list[list[int]]
    """The cohort of each round."""
    config: dict[str, Any]

    def cohort(self, round: int) -> list[int]:
        return self.selected[round]

    def lr(self, round: int) -> float:
        return float(self.config["local_lr"] * self.config["lr_decay"] ** round)

    def steps(self, round: int, client: int, samples: int) -> list[Step]:
        batches = torch.split(torch.arange(samples), self.config["batch_size"])
        steps = []
        for _ in range(self.config["local_epochs"]):
            steps += [Step(batch, seed=0) for batch in batches]
        return steps

    def step_count(self, round: int, client: int, samples: int) -> int:
        return int(self.config["local_epochs"]) * self.steps_per_epoch(samples)

    def steps_per_epoch(self, samples: int) -> int:
        return -(-samples // int(self.config["batch_size"]))


@dataclass(frozen=True)
class ReplayErrors:
    """The largest absolute differences over all rounds between a file and its replay."""

    errors: dict[str, float]
    """By what is compared: "model" and, where the file has it, "alpha", "similarity", "updates"."""

    @property
    def worst(self) -> float:
        """Return the largest of the errors."""
        return max(self.errors.values())


def verify_file(path: Path) -> ReplayErrors:
    """Replay a reference-vector file and return the largest errors.

    Raise InputError if the file cannot be read or is incomplete.
    """
    file = read_reference_file(path)
    try:
        with deterministic_torch():
            return replay_rounds(file)
    except InputError:
        raise
    except (
        rounds.Diverged,
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"{path} is not a whole reference-vector file: {printable(describe_error(error))}."
        ) from error


def replay_rounds(file: dict[str, Any]) -> ReplayErrors:
    """Run all rounds of a file and return the largest errors."""
    federation = make_reference_federation(file)
    errors = {"model": 0.0}

    def compare(name: str, computed: Tensor | float, reference: Any) -> None:
        expected = torch.tensor(reference, dtype=torch.float64)
        error = largest_error(torch.as_tensor(computed, dtype=torch.float64), expected)
        errors[name] = max(errors.get(name, 0.0), error)

    state = rounds.first_state(federation)
    compare("model", state.server["w"], file["global"][0])
    if "alpha" in file:
        compare("alpha", state.server["alpha"], file["alpha"][0])
    for r in range(len(file["selected"])):
        updates: dict[str, Tensor] = {}
        state, record = rounds.run_round(federation, state, partial(store_update, updates))
        compare("model", state.server["w"], file["global"][r + 1])
        if "alpha" in file:
            compare("alpha", state.server["alpha"], file["alpha"][r + 1])
            compare("similarity", record["similarity"], file["similarity"][r])
        if "local_update" in file:
            for client, update in file["local_update"][r].items():
                compare("updates", updates[client], update)
    return ReplayErrors(errors)


def store_update(updates: dict[str, Tensor], job: rounds.Job, result: LocalResult) -> None:
    """Put a client's model update into `updates`, by the client's number as JSON writes it."""
    updates[str(job.client)] = result.up["delta"]


def largest_error(computed: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference, or infinity if one of them is not a number."""
    error = (computed - expected).abs().max()
    return float(torch.nan_to_num(error, nan=float("inf")))


def read_reference_file(path: Path) -> dict[str, Any]:
    """Return the content of a reference-vector file; raise InputError if it is none."""
    try:
        file = parse_record(read_named(path, JSON_LIMIT))
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a reference-vector file: {printable(error)}.") from error
    if not isinstance(file.get("config", {}), dict):
        raise InputError(f"{path} is not a reference-vector file: its config is no JSON object.")
    for key in ("config", "x", "y", "selected", "global"):
        if key not in file:
            raise InputError(f"{path} is not a reference-vector file: it has no {key!r}.")
    check_sizes(path, file["config"])
    return file


LARGEST_SIZE = 10_000
"""The largest size that the configuration of a reference-vector file may name."""


def check_sizes(path: Path, config: dict[str, Any]) -> None:
    """Raise InputError if a size is none or would take the machine's memory or time."""
    for key in ("dim", "hidden", "classes", "batch_size", "local_epochs"):
        size = config.get(key)
        if not isinstance(size, int) or not 1 <= size <= LARGEST_SIZE:
            raise InputError(
                f"{path} is not a reference-vector file: its {key} must be a whole number from 1 "
                f"to {LARGEST_SIZE}, not {printable(truncated_repr(size))}."
            )


def make_reference_federation(file: dict[str, Any]) -> rounds.Federation:
    """Return the federation that a file describes.

    Raise InputError if its first model does not have as many parameters as its sizes say.
    """
    config = file["config"]
    task = Task(lambda: make_network(config), OBJECTIVES["classification"])
    initial_weights = torch.tensor(file["global"][0], dtype=torch.float64)
    if task.parameter_count != len(initial_weights):
        raise InputError(
            f"The file's model has {len(initial_weights)} numbers, "
            f"its sizes say {task.parameter_count}."
        )
    task.initial_weights = initial_weights
    clients = [
        TensorSamples(torch.tensor(x, dtype=torch.float64), torch.tensor(y))
        for x, y in zip(file["x"], file["y"], strict=True)
    ]
    schedule: Schedule = FileSchedule(file["selected"], config)
    rules = LocalRules(config["weight_decay"], "sgd", config["clip_norm"])
    return rounds.Federation(make_reference_method(config), task, clients, schedule, rules)


def make_reference_method(config: dict[str, Any]) -> Method:
    """Return the file's method, with those of the file's hyper-parameters that it has."""
    name = str(config["method"]).lower().replace("_", "-")
    option_names = {*method_class(name).__dataclass_fields__}
    values = config | {"lam": config.get("lamb"), "correction_weight": config.get("lamb")}
    options = {
        key: values[key]
        for key in SHARED_OPTIONS
        if key in option_names and values.get(key) is not None
    }
    return make_method(name, **options)


def make_network(config: dict[str, Any]) -> nn.Module:
    """Return a network in float64 with one hidden layer of the file's sizes and activation."""
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[config["activation"]]()
    network = nn.Sequential(
        nn.Linear(config["dim"], config["hidden"]),
        activation,
        nn.Linear(config["hidden"], config["classes"]),
    )
    return network.double()
