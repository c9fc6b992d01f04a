"""CPU time of a round of each method against FedAvg's, interleaved in one run.

    python benchmarks/method_cost.py [--repeats 7] [--methods fedavg,fedwmsam]

Ten clients × 60 local steps of batch 50 on Fashion-MNIST with the 784-200-200-10 MLP, in this process on one thread.
Every repeat runs one round of each method in turn, so that a slow moment of the machine hits them all; the ratio is of
medians. The first repeat warms up and is not counted.
"""

import argparse
import platform
import statistics
import time

import torch

from fedwmsam.api import make_federation
from fedwmsam.config import resolve
from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.experiment import prepare
from fedwmsam.methods import METHODS
from fedwmsam.training.task import calm_torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--methods", default=",".join(METHODS))
    arguments = parser.parse_args()
    names = list(dict.fromkeys(["fedavg", *arguments.methods.split(",")]))
    config = resolve({"dataset": "fashion-mnist", "preset": "paper"})
    experiment = prepare(config)
    runs = {}
    for name in names:
        method = resolve({"dataset": "fashion-mnist", "method": name}).make_method()
        federation = make_federation(config, method, experiment.task, experiment.clients)
        runs[name] = [federation, first_state(federation)]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with calm_torch():
        for _ in range(arguments.repeats + 1):
            for name, run in runs.items():
                start = time.process_time()
                run[1], _ = run_round(*run)
                seconds[name].append(time.process_time() - start)
    base = statistics.median(seconds["fedavg"][1:])
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, n = {arguments.repeats}")
    for name, values in seconds.items():
        middle = statistics.median(values[1:])
        spread = f"{min(values[1:]):.3f} to {max(values[1:]):.3f}"
        print(f"{name:12} {middle:.3f} s CPU a round ({spread})   {middle / base:.2f} × fedavg")


if __name__ == "__main__":
    main()
