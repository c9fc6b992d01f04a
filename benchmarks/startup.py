"""What `fedwmsam run` takes besides training: Python's and PyTorch's start, data, workers, results, exit.

    python benchmarks/startup.py [--repeats 3]

A run of two rounds on Fashion-MNIST, less its evaluations and twice its second round. The second, because workers are
still starting while they are waited for in the first.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contenders.protocol import Failed
from measuring import Sample, Samples, interleave, median, table

HEAD = ["workers", "wall s", "CPU s"]
WORKERS = (1, 2)
SETTINGS = "--method fedavg --dataset fashion-mnist --partition iid --clients 100 --participation 0.1 --rounds 2"


def startup(repeats: int) -> Samples:
    samples, failures = interleave(
        "start-up", {str(n): lambda n=n: once(n) for n in WORKERS}, repeats
    )
    if failures:
        raise Failed(next(iter(failures.values())))
    return samples


def once(workers: int) -> Sample:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "fedwmsam",
            "run",
            *SETTINGS.split(),
            "--workers",
            str(workers),
        ]
        wall, cpu = time.perf_counter(), children_seconds()
        done = subprocess.run(
            [*command, "--out", folder, "--name", "run", "--quiet"],
            capture_output=True,
            text=True,
            check=False,
        )
        wall, cpu = time.perf_counter() - wall, children_seconds() - cpu
        if done.returncode:
            raise Failed(done.stderr.strip().splitlines()[-1])
        lines = (Path(folder) / "run" / "timings.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    evaluations = sum(round["evaluate_seconds"] for round in rounds)
    # Evaluations run in the main process, so their CPU time is within a round's own.
    return Sample(
        wall - evaluations - 2 * rounds[1]["train_seconds"], cpu - 2 * rounds[1]["cpu_seconds"]
    )


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows(samples: Samples) -> list[list[str]]:
    return [
        [n, *(f"{median(found, clock):.1f}" for clock in ("wall", "cpu"))]
        for n, found in samples.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    print(table(HEAD, rows(startup(parser.parse_args().repeats))))


if __name__ == "__main__":
    main()
