"""What `run --dry-run` estimates for a round, beside what rounds of the same run then take.

    python benchmarks/estimate.py [--repeats 5] [--models mlp,cnn,resnet18] [--workers 1,2]
                                  [--data-dir FOLDER] [--clock cpu]

An estimate and a round of the real run, with its evaluation and its checkpoint in a folder, take
turns, so that both see the same machine, however busy; the first pair warms up. In brackets are the
smallest and the largest. The MLP is on Fashion-MNIST, the others on CIFAR-10; ResNet-18's rounds
are short (four clients × ten steps), since a whole one takes minutes. On a machine whose load
changes within seconds compare CPU times, which only one worker has: --workers 1 --clock cpu.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from measuring import log_progress, markdown_table

from fedwmsam.engine.run import Run, restore
from fedwmsam.experiment.assembly import use_workers
from fedwmsam.experiment.experiment import Experiment, prepare
from fedwmsam.settings.config import resolve_config
from fedwmsam.training.task import deterministic_torch

HEADER = ["model", "workers", "estimated s a round", "measured s a round", "estimated ÷ measured"]
COMMON: dict[str, Any] = {"preset": "paper", "method": "fedwmsam"}
WORKLOADS: dict[str, dict[str, Any]] = {
    "mlp": {"dataset": "fashion-mnist", "model": "mlp"},
    "cnn": {"dataset": "cifar-10", "model": "cnn", "local_epochs": 1},
    "resnet18": {
        "dataset": "cifar-10",
        "model": "resnet18",
        "clients_per_round": 4,
        "local_steps": 10,
    },
}


@contextmanager
def started_run(experiment: Experiment) -> Iterator[Run]:
    """Return a run in a temporary folder, on the workers of its settings."""
    with TemporaryDirectory() as path, deterministic_torch():
        run = experiment.make_run()
        run.folder = experiment.create(Path(path) / "run")
        run.breakdown = experiment.breakdown
        restore(run, run.folder)
        run.started = time.perf_counter()
        with use_workers(run, experiment.config.workers):
            yield run
        run.close()


def measure(settings: dict[str, Any], repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of a round as they are estimated, and as they are."""
    experiment = prepare(resolve_config(settings))
    estimated = []
    measured = []
    with started_run(experiment) as run:
        for _ in range(repeats + 1):
            estimated.append(experiment.estimate().round_seconds)
            start = time.perf_counter()
            run.train_one_round()
            measured.append(time.perf_counter() - start)
            log_progress(f"{settings['model']}: {estimated[-1]:.2f} s, {measured[-1]:.2f} s")
    return estimated[1:], measured[1:]


def table_row(
    model: str, workers: int, estimated: Sequence[float], measured: Sequence[float]
) -> list[str]:
    """Return the row of the table for one model and one number of workers."""
    ratios = [a / b for a, b in zip(estimated, measured, strict=True)]
    ratio = median(estimated) / median(measured)
    return [
        model,
        str(workers),
        f"{median(estimated):.2f} ({min(estimated):.2f} to {max(estimated):.2f})",
        f"{median(measured):.2f} ({min(measured):.2f} to {max(measured):.2f})",
        f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", default=",".join(WORKLOADS))
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    arguments = parser.parse_args()
    if arguments.clock == "cpu":
        time.perf_counter = time.process_time  # for the estimate, too
    rows = []
    for model in arguments.models.split(","):
        for workers in map(int, arguments.workers.split(",")):
            settings = COMMON | WORKLOADS[model] | {"workers": workers}
            if arguments.data_dir and settings["dataset"] == "cifar-10":
                settings["data_dir"] = arguments.data_dir
            estimated, measured = measure(settings, arguments.repeats)
            rows.append(table_row(model, workers, estimated, measured))
    print(markdown_table(HEADER, rows))


if __name__ == "__main__":
    main()
