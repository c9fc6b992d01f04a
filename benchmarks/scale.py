"""Peak memory of FedWMSAM runs with many clients, each in a process of its own.

    python benchmarks/scale.py registered    # 1,000 clients sampled, of 2,000 and of 100,000
    python benchmarks/scale.py many          # 100,000 clients, 1,000 per round, Fashion-MNIST
    python benchmarks/scale.py million       # 1,000,000 clients, 10,000 per round, linear model
    python benchmarks/scale.py large         # ResNet-18 and 1,000 clients, 20 per round, CIFAR-10

A client's data are a function of its number: 50 samples, drawn with replacement from a random
stream of its own when it is sampled. So nothing is kept for the other clients. Client memory is
held in RAM up to a budget, 100 MB in `million` and 500 MB in `many` and `large`, and the rest on
disk, and every round is saved. CPU time is split: what clients take to read data and train is not
the server's, one evaluation on 2,000 samples is.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedwmsam
from fedwmsam import rng
from fedwmsam.data import load_dataset
from fedwmsam.data.clients import LazyClients
from fedwmsam.engine import rounds as engine_rounds
from fedwmsam.models import model_factory

SAMPLES = 50
"""Samples per client."""


def train(
    dataset: str, model: str, clients: int, per_round: int, rounds: int, budget: int
) -> dict[str, float]:
    """Train in this process and return accuracy, peak memory, disk space and CPU times."""
    data = load_dataset(dataset)

    def client_data(number: int) -> tuple[Tensor, Tensor]:
        generator = rng.generator(0, "scale", number)
        rows = torch.from_numpy(generator.integers(len(data.train), size=SAMPLES))
        return data.transform(data.train.inputs[rows]), data.train.labels[rows]

    clients_time = time_clients()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = fedwmsam.fit(
            model_factory(model, data.input_shape, data.num_classes),
            client_data,
            client_count=clients,
            clients_per_round=per_round,
            rounds=rounds,
            local_epochs=1,
            memory_budget=budget,
            test=(data.transform(data.test.inputs[:2000]), data.test.labels[:2000]),
            run_folder=Path(folder) / "run",
            checkpoint_every=1,
            evaluate_every=rounds,
        )
        disk = sum(
            path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file()
        )
    return {
        "clients": clients,
        "rounds": result.rounds,
        "accuracy": result.last() or 0.0,
        "peak_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "disk_MB": disk / 1e6,
        "clients_s": sum(clients_time),
        "server_s": time.process_time() - start - sum(clients_time),
    }


def time_clients() -> list[float]:
    """Let the engine time clients reading data and training; return the list the times go to.

    The engine reads a client's data before it calls the client, to know how many samples there are.
    """
    seconds: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.process_time()
            result = function(*arguments)
            seconds.append(time.process_time() - start)
            return result

        return call

    engine_rounds.train_client = timed(engine_rounds.train_client)
    LazyClients.__getitem__ = timed(LazyClients.__getitem__)  # type: ignore[method-assign]
    return seconds


RUNS: dict[str, list[tuple[str, str, int, int, int, int]]] = {
    "registered": [("fashion-mnist", "mlp", n, 1000, 1, 10_000) for n in (2_000, 100_000)],
    "many": [("fashion-mnist", "mlp", 100_000, 1000, 3, 500)],
    "million": [
        ("fashion-mnist", "linear", n, s, 2, 100) for n, s in ((10_000, 1000), (1_000_000, 10_000))
    ],
    "large": [("cifar-10", "resnet18", 1000, 20, 3, 500)],
}
"""Arguments of `train` for the runs of each benchmark."""


def run_in_subprocess(*arguments: object) -> dict[str, float]:
    """Call `train` in a new process, so that its peak memory is that of this run alone."""
    command = [sys.executable, __file__, "one", *map(str, arguments)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*RUNS, "one"])
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "one":
        dataset, model, *numbers = arguments.rest
        print(json.dumps(train(dataset, model, *map(int, numbers))))
        return
    results = []
    for run in RUNS[arguments.what]:
        result = run_in_subprocess(*run)
        results.append(result)
        print("  ".join(f"{name} {value:,.4g}" for name, value in result.items()), flush=True)
    if len(results) == 2:
        first, second = results
        print(f"peak memory, second to first: {second['peak_MB'] / first['peak_MB']:.2f}")


if __name__ == "__main__":
    main()
