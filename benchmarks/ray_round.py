"""Rounds on two actors of Ray beside rounds on two of our own worker processes.

    python benchmarks/ray_round.py [--repeats 5]

Both train the same clients, and both have started before the first turn. The CPU time is that of
this process and all its descendants, those of Ray included. A turn is a round of ten clients:
"small" ones have a perceptron of 80,000 parameters and few steps, so that what a round costs
besides training counts; "large" ones have two million parameters. Needs `fedwmsam[ray]`.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import torch
from contenders.protocol import cpu_seconds
from measuring import Sample, Turn, interleave, markdown_table, time_cells
from torch import nn

from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.ray_workers import RayCrew
from fedwmsam.engine.rounds import Federation, State, first_state, run_round
from fedwmsam.engine.workers import Pool
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.methods import FedWMSAM
from fedwmsam.settings.config import Settings
from fedwmsam.settings.parsers import RayWorkers
from fedwmsam.training.objectives import make_objective
from fedwmsam.training.task import Task, deterministic_torch

HEADER = ["clients", "workers", "wall s a round", "× own", "CPU s a round", "× own"]
WORKERS = 2
CLIENTS = 10
FEATURES = 784
CLASSES = 10
CASES = {"small": (100, 1), "large": (1600, 5)}
"""By name: the width of the hidden layer, and the local epochs of 600 samples."""


def case_federation(width: int, epochs: int) -> Federation:
    """Return a federation whose clients all take part in each round."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.ReLU(),
        nn.Linear(width, width // 2),
        nn.Linear(width // 2, CLASSES),
    )
    task = Task(model, make_objective("classification", None, None))
    data = [(torch.randn(600, FEATURES), torch.randint(CLASSES, (600,))) for _ in range(CLIENTS)]
    clients = make_data_adapter(task).to_clients(data, None)
    return make_federation(
        Settings(participation=1.0, local_epochs=epochs), FedWMSAM(), task, clients
    )


def make_turn(federation: Federation) -> tuple[Turn, Callable[[], State]]:
    """Return what trains one more round, and what tells the state after the last one."""
    state = first_state(federation)

    def turn() -> Sample:
        nonlocal state
        wall = time.perf_counter()
        cpu = cpu_seconds()
        state, _ = run_round(federation, state)
        return Sample(time.perf_counter() - wall, cpu_seconds() - cpu)

    return turn, lambda: state


def compare(case: str, repeats: int) -> list[list[str]]:
    """Return the rows of one case; fail if the two do not end with the same bits."""
    federation = case_federation(*CASES[case])
    with Pool(federation, WORKERS) as pool, RayCrew(federation, RayWorkers(WORKERS)) as crew:
        trainers = {"own processes": pool.train, "Ray": crew.train}
        pairs = {name: make_turn(replace(federation, trainer=t)) for name, t in trainers.items()}
        turns = {name: turn for name, (turn, _) in pairs.items()}
        samples, _ = interleave(case, turns, repeats)
        (_, own), (_, ray) = pairs.values()
        assert torch.equal(own().server["w"], ray().server["w"]), "the bits differ"
    own_times = samples["own processes"]
    return [[case, name, *time_cells(times, own_times)] for name, times in samples.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    os.environ["RAY_ADDRESS"] = "local"
    with deterministic_torch():
        rows = list(chain.from_iterable(compare(case, repeats) for case in CASES))
    print(markdown_table(HEADER, rows))


if __name__ == "__main__":
    main()
