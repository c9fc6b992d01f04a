"""How much memory many clients cost: peak memory of real FedWMSAM runs, each in a process of its own.

    python benchmarks/scale.py registered    # 1,000 clients seen, of 2,000 and of 100,000 registered
    python benchmarks/scale.py many          # 100,000 clients, 1,000 a round, three rounds, Fashion-MNIST
    python benchmarks/scale.py large         # ResNet-18 and 1,000 clients, 20 a round, CIFAR-10

A client is a function of its number: 50 samples drawn with reuse from its own keyed stream when it is asked for, so
nothing is kept for the clients that are not. `large` holds 500 MB of client memory in RAM and the rest on disk.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

import fedwmsam
from fedwmsam import rng
from fedwmsam.data import load_dataset
from fedwmsam.models import model_factory

SAMPLES = 50


def train(
    dataset: str, model: str, clients: int, per_round: int, rounds: int, budget: int
) -> dict[str, float]:
    data = load_dataset(dataset)

    def client(number: int) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(
            rng.generator(0, "scale", number).integers(len(data.train), size=SAMPLES)
        )
        return data.prepare(data.train.inputs[rows]), data.train.labels[rows]

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = fedwmsam.fit(
            model_factory(model, data.input_shape, data.classes),
            client,
            client_count=clients,
            clients_per_round=per_round,
            rounds=rounds,
            local_epochs=1,
            memory_budget=budget,
            test=(data.prepare(data.test.inputs[:2000]), data.test.labels[:2000]),
            run_folder=Path(folder) / "run",
            checkpoint_every=1,
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
        "seconds": time.perf_counter() - start,
    }


RUNS: dict[str, list[tuple[str, str, int, int, int, int]]] = {
    "registered": [("fashion-mnist", "mlp", n, 1000, 1, 10_000) for n in (2_000, 100_000)],
    "many": [("fashion-mnist", "mlp", 100_000, 1000, 3, 500)],
    "large": [("cifar-10", "resnet18", 1000, 20, 3, 500)],
}


def apart(*arguments: object) -> dict[str, float]:
    """The run in a new process, whose peak memory is then its own."""
    texts = [str(argument) for argument in arguments]
    answer = subprocess.run(
        [sys.executable, __file__, "one", *texts], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


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
    found = []
    for run in RUNS[arguments.what]:
        found.append(apart(*run))
        print("  ".join(f"{name} {value:,.4g}" for name, value in found[-1].items()), flush=True)
    if len(found) == 2:
        print(f"peak memory, second to first: {found[1]['peak_MB'] / found[0]['peak_MB']:.2f}")


if __name__ == "__main__":
    main()
