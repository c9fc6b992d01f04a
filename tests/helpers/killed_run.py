"""A run in a process of its own, for tests that kill it.

python killed_run.py FOLDER KIND ROUNDS BUDGET
"""

import sys

import torch
from torch import nn

import fedwmsam

NETWORKS = {
    "plain": lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)),
    "dropout": lambda: nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3)
    ),
    "batchnorm": lambda: nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)
    ),
}
"""Factories of small classifiers by KIND, the command line's second argument."""


def make_clients():
    """Yield the features and labels of eight clients, each with its features shifted further."""
    generator = torch.Generator().manual_seed(5)
    for client in range(8):
        y = torch.randint(3, (30,), generator=generator)
        x = torch.randn(30, 8, generator=generator) + y[:, None] + 0.2 * client
        yield x, y


def main(folder, kind, rounds, budget=1000):
    """Run, or go on with, the rounds in the folder; the last client's data is the test data."""
    data = list(make_clients())
    fedwmsam.fit(
        NETWORKS[kind],
        data[:7],
        test=data[7],
        validation=0.2,
        rounds=int(rounds),
        participation=0.5,
        batch_size=10,
        local_epochs=2,
        seed=3,
        run_folder=folder,
        resume=True,
        checkpoint_every=3,
        memory_budget=float(budget),
        twin=None if kind == "plain" else 8.0,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
