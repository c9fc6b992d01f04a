"""Time of `fedwmsam run` besides training: start of Python, data, workers, results and exit.

    python benchmarks/startup.py [--repeats 3]

It is the time of a run of two rounds on Fashion-MNIST, less its evaluations and twice its second
round. The second one is subtracted twice because in the first one workers are still starting.
"""

import argparse
import functools
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contenders.protocol import Failed
from measuring import Sample, Samples, Turn, interleave, markdown_table, median

HEADER = ["workers", "wall s", "CPU s"]
WORKERS = (1, 2)
SETTINGS = (
    "--method fedavg --dataset fashion-mnist --partition iid --clients 100 "
    "--participation 0.1 --rounds 2"
)


def startup(repeats: int) -> Samples:
    """Return the times by number of workers; raise Failed if a run fails."""
    turns: dict[str, Turn] = {
        str(workers): functools.partial(time_startup, workers) for workers in WORKERS
    }
    samples, failures = interleave("start-up", turns, repeats)
    if failures:
        raise Failed(next(iter(failures.values())))
    return samples


def time_startup(workers: int) -> Sample:
    """Execute a run and return its time without training and evaluations."""
    command = [sys.executable, "-m", "fedwmsam", "run", *SETTINGS.split()]
    command += ["--workers", str(workers)]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--out", folder, "--name", "run", "--quiet"]
        wall_start = time.perf_counter()
        cpu_start = children_seconds()
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - wall_start
        cpu = children_seconds() - cpu_start
        if process.returncode:
            raise Failed(process.stderr.strip().splitlines()[-1])
        lines = (Path(folder) / "run" / "timings.jsonl").read_text().splitlines()
    timings = [json.loads(line) for line in lines]
    evaluations = sum(timing["evaluate_seconds"] for timing in timings)
    training = 2 * timings[1]["train_seconds"]
    # Evaluations run in the main process, so that the CPU time of a round includes them.
    return Sample(wall - evaluations - training, cpu - 2 * timings[1]["cpu_seconds"])


def children_seconds() -> float:
    """Return the CPU time of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table_rows(samples: Samples) -> list[list[str]]:
    """Return the rows of the table of medians."""
    return [
        [workers, f"{median(times, 'wall'):.1f}", f"{median(times, 'cpu'):.1f}"]
        for workers, times in samples.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    samples = startup(parser.parse_args().repeats)
    print(markdown_table(HEADER, table_rows(samples)))


if __name__ == "__main__":
    main()
