"""What a round's model is worth: its scores on test and validation data, and the best model so far."""

from dataclasses import dataclass
from typing import Protocol

import torch

from fedwmsam.engine.folder import Record, finite, finite_only
from fedwmsam.engine.rounds import Average, State
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.objectives import Objective, measure
from fedwmsam.training.task import Samples, Task

AVERAGED = "averaged_"
"""How the columns of the averaged twin begin."""


@dataclass(frozen=True)
class Best:
    """The model that scored best on the validation data."""

    round: int
    score: float
    w: torch.Tensor
    buffers: Vectors


class Breakdown(Protocol):
    """Whom a model serves, told from its outputs for the test data and their targets."""

    def columns(self, outputs: torch.Tensor, targets: torch.Tensor) -> Record:
        """Further columns of the metrics, such as the worst client's accuracy."""

    def by_client(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The accuracy of every client, NaN for one that has none."""


def scores(
    task: Task, state: State, test: Samples | None, validation: Samples | None, breakdown: Breakdown | None,
    columns: Record,
) -> Record:  # fmt: skip
    """Test metrics under their own names, validation metrics as validation_…, the averaged twin's as averaged_… (and
    averaged_validation_…); what is not finite is None."""
    reserved = [name for name in task.objective.metrics if state.average and name.startswith(AVERAGED)]
    taken = [name for name in task.objective.metrics if name in columns] + reserved
    if taken:
        raise InputError(f"A metric cannot be called {taken[0]!r}: the run has a column of that name.")
    record: Record = {}
    if validation is not None:
        values = task.evaluate(state.server["w"], state.buffers, validation)
        record |= {f"validation_{name}": value for name, value in values.items()}
    if test is not None:
        outputs, targets = task.outputs_of(state.server["w"], state.buffers, test)
        record |= measure(task.objective, outputs, targets)
        record |= breakdown.columns(outputs, targets) if breakdown else {}
    if state.average:
        record |= averaged_scores(task, state.average, test, validation)
    return finite_only(record)


def averaged_scores(task: Task, average: Average, test: Samples | None, validation: Samples | None) -> Record:
    record: Record = {}
    for prefix, samples in (("validation_", validation), ("", test)):
        if samples is not None:
            values = task.evaluate(average.w, average.buffers, samples)
            record |= {f"{AVERAGED}{prefix}{name}": value for name, value in values.items()}
    return record


def best_of(best: Best | None, state: State, record: Record, objective: Objective) -> Best | None:
    score = record.get(f"validation_{objective.monitor}")
    if score is not None and objective.better(score, best.score if best else None):
        return Best(state.round, score, state.server["w"], state.buffers)
    return best


def client_accuracies(task: Task, state: State, test: Samples, breakdown: Breakdown) -> Record:
    """Of a run's last model. A pass of its own: a run resumed after its last round has no outputs to reuse."""
    outputs, targets = task.outputs_of(state.server["w"], state.buffers, test)
    accuracies = breakdown.by_client(outputs, targets).tolist()
    return {"round": state.round, "accuracy": [finite(accuracy) for accuracy in accuracies]}
