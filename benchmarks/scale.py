"""Peak memory of FedWMSAM runs with many clients, each in a process of its own.

    python benchmarks/scale.py registered    # 1,000 clients sampled, of 2,000 and of 100,000
    python benchmarks/scale.py many          # 100,000 clients, 1,000 per round, Fashion-MNIST
    python benchmarks/scale.py large         # ResNet-18 and 1,000 clients, 20 per round, CIFAR-10

A client's data are a function of its number: 50 samples, drawn with replacement from a random
stream of its own when it is sampled. So nothing is kept for the other clients. `large` holds 500 MB
of client memory in RAM and the rest on disk.
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
"""Samples per client."""


def train(
    dataset: str, model: str, clients: int, per_round: int, rounds: int, budget: int
) -> dict[str, float]:
    """Train in this process and return accuracy, peak memory, disk space and time."""
    data = load_dataset(dataset)

    def client_data(number: int) -> tuple[Tensor, Tensor]:
        generator = rng.generator(0, "scale", number)
        rows = torch.from_numpy(generator.integers(len(data.train), size=SAMPLES))
        return data.transform(data.train.inputs[rows]), data.train.labels[rows]

    start = time.perf_counter()
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
