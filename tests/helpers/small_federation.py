"""A small federation in float64: five clients of unequal size whose last batches are partial."""

import contextlib
import resource

import torch
from torch import nn

from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.rounds import Federation, first_state, run_round
from fedwmsam.engine.schedule import LearningRate, SeededSchedule
from fedwmsam.settings.parsers import LearningRateRule
from fedwmsam.training.local import LocalRules
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task

PLAIN_RULES = LocalRules(weight_decay=0.0, weight_decay_mode="objective", clip_norm=None)
"""Local steps along the gradient as it is."""
FULL_RULES = LocalRules(weight_decay=1e-3, weight_decay_mode="objective", clip_norm=1.0)
"""Local steps with weight decay and clipping."""


def network():
    """Return a classifier of three classes in float64."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def make_federation(
    method, rules=FULL_RULES, *, sizes=(9, 14, 5, 11, 7), per_round=3, batch_size=4, epochs=2
):
    """Return a federation with one client for each of the sizes, `per_round` in a cohort."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for client, size in enumerate(sizes):
        x = torch.randn(size, 4, generator=generator, dtype=torch.float64) + client
        y = torch.randint(3, (size,), generator=generator)
        clients.append(TensorSamples(x, y))
    schedule = SeededSchedule(
        seed=1,
        clients=len(sizes),
        cohort_size=per_round,
        sampling="fixed",
        local_epochs=epochs,
        batch_size=batch_size,
        learning_rate=LearningRate(0.1, LearningRateRule("exponential", value=0.99)),
    )
    task = Task(network, OBJECTIVES["classification"], seed=3)
    return Federation(method, task, clients, schedule, rules)


def run_rounds(federation, rounds=6):
    """Return the server's states, the first one included, and the records of the rounds."""
    states = [first_state(federation)]
    records = []
    for _ in range(rounds):
        state, record = run_round(federation, states[-1])
        states.append(state)
        records.append(record)
    return states, records


def train_weights(method, rules=FULL_RULES, **options):
    """Return the global weights after six rounds of a federation with these options."""
    states, _ = run_rounds(make_federation(method, rules, **options))
    return states[-1].server["w"]


@contextlib.contextmanager
def limit_file_size(size):
    """Let no file grow beyond so many bytes, as a quota does: writing more is an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class MislabelledDataset:
    """A dataset whose labels no model of three classes has."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return torch.zeros(8), 7
