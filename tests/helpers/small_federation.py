"""A small real problem in float64: five clients of unequal size, last batches partial."""

import contextlib
import resource

import torch
from torch import nn

from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.rounds import Federation, first_state, run_round
from fedwmsam.engine.schedule import KeyedSchedule
from fedwmsam.training.local import LocalRules
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task

PLAIN = LocalRules(weight_decay=0.0, weight_decay_mode="objective", clip_norm=None)
FULL = LocalRules(weight_decay=1e-3, weight_decay_mode="objective", clip_norm=1.0)


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def make(method, rules=FULL, *, sizes=(9, 14, 5, 11, 7), per_round=3, batch_size=4, epochs=2):
    generator = torch.Generator().manual_seed(0)
    clients = [
        TensorSamples(
            torch.randn(n, 4, generator=generator, dtype=torch.float64) + k,
            torch.randint(3, (n,), generator=generator),
        )
        for k, n in enumerate(sizes)
    ]
    schedule = KeyedSchedule(
        seed=1,
        clients=len(sizes),
        per_round=per_round,
        sampling="fixed",
        local_epochs=epochs,
        batch_size=batch_size,
        learning_rate=0.1,
        lr_decay=0.99,
    )
    return Federation(
        method, Task(network, OBJECTIVES["classification"], seed=3), clients, schedule, rules
    )


def run(federation, rounds=6):
    states = [first_state(federation)]
    records = []
    for _ in range(rounds):
        state, record = run_round(federation, states[-1])
        states.append(state)
        records.append(record)
    return states, records


def final(method, rules=FULL, **kwargs):
    return run(make(method, rules, **kwargs))[0][-1].server["w"]


@contextlib.contextmanager
def largest_file(size):
    """No file may grow beyond so many bytes, as with a quota: writing more is an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Broken:
    """A dataset whose labels no model of three classes has."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return torch.zeros(8), 7
