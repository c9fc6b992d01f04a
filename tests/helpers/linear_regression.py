"""A linear regression among four clients of unequal size, in the round loop and in plain numpy.

Its gradient can be written down, so that a method has an independent version of a few lines: the
functions below are its parts. `check_models` compares the two.
"""

import numpy as np
import torch
from torch import nn

from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.rounds import Federation, first_state, run_round
from fedwmsam.training.local import LocalRules, Step
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task

COHORTS = [[0, 2], [1, 2], [0, 1, 3], [2, 3], [0, 3], [1, 2]]
SIZES = (6, 9, 4, 7)
BATCH = 4
EPOCHS = 2
LR = 0.05
DECAY = 0.9
DATA = np.random.default_rng(4)
XS = [DATA.normal(size=(n, 3)) + k for k, n in enumerate(SIZES)]
YS = [x @ [[1.0], [-2.0], [0.5]] + DATA.normal(size=(len(x), 1)) for x in XS]
START = np.array([0.3, -0.1, 0.2])
N = len(SIZES)


class FixedSchedule:
    """A schedule of the cohorts above, whose batches are in the order of the samples."""

    def cohort(self, round):
        return COHORTS[round]

    def lr(self, round):
        return step_size(round)

    def steps(self, round, client, samples):
        epoch = [Step(batch, 0) for batch in torch.arange(samples).split(BATCH)]
        return epoch * EPOCHS

    def step_count(self, round, client, samples):
        return EPOCHS * self.steps_per_epoch(samples)

    def steps_per_epoch(self, samples):
        return -(-samples // BATCH)


def step_size(r):
    return LR * DECAY**r


def global_models(method, clip=None, **settings):
    """Return the global model after each round of the real round loop.

    The settings are those of the federation, such as `averaging`.
    """
    task = Task(lambda: nn.Linear(3, 1, bias=False).double(), OBJECTIVES["regression"])
    task.initial_weights = torch.tensor(START)
    clients = [TensorSamples(torch.tensor(x), torch.tensor(y)) for x, y in zip(XS, YS, strict=True)]
    rules = LocalRules(0.0, "objective", clip)
    federation = Federation(method, task, clients, FixedSchedule(), rules, **settings)
    state = first_state(federation)
    models = []
    for _ in COHORTS:
        state, _ = run_round(federation, state)
        models.append(state.server["w"].numpy())
    return models


def gradient(w, k, rows=slice(None)):
    x = XS[k][rows]
    y = YS[k][rows][:, 0]
    return 2 * x.T @ (x @ w - y) / len(x)


def batches(k):
    epoch = [slice(i, i + BATCH) for i in range(0, SIZES[k], BATCH)]
    return epoch * EPOCHS


def clipped(v, limit):
    return v if limit is None else v * min(1, limit / (np.linalg.norm(v) + 1e-6))


def descend(w, k, r, direction, pull=lambda w: 0.0, clip=None):
    for rows in batches(k):
        w = w - step_size(r) * (clipped(direction(w, rows), clip) + pull(w))
    return w


def check_models(method, expected, **kwargs):
    """Compare the method's global models with those of numpy, which must have moved."""
    for ours, theirs in zip(global_models(method, **kwargs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    assert np.abs(expected[-1] - START).max() > 1e-2
