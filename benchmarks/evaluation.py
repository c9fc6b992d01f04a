"""Time of one evaluation of a model on the test data, in this process and on worker processes.

    python benchmarks/evaluation.py [--repeats 5] [--workers 2] [--model resnet18]
                                    [--dataset cifar-10] [--data-dir FOLDER]

Both are executed in turn. The outputs must be the same, bit for bit.
"""

import argparse
import time

import torch
from measuring import Sample, Turn, interleave, markdown_table, time_cells

from fedwmsam.engine.run import Run
from fedwmsam.experiment.assembly import use_workers
from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve_config
from fedwmsam.training.task import deterministic_torch

HEADER = ["evaluated by", "wall s", "× one process", "CPU s", "× one process"]


def make_turn(run: Run, outputs: list[torch.Tensor]) -> Turn:
    """Return a turn that evaluates the run's first model and notes its outputs."""

    def evaluate() -> Sample:
        wall = time.perf_counter()
        cpu = run.cpu_seconds()
        assert run.test is not None
        outputs.append(run.predict(run.state.server["w"], run.state.buffers, run.test).outputs)
        return Sample(time.perf_counter() - wall, run.cpu_seconds() - cpu)

    return evaluate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--dataset", default="cifar-10")
    parser.add_argument("--data-dir", default=None)
    arguments = parser.parse_args()
    settings = {key: getattr(arguments, key) for key in ("model", "dataset", "data_dir")}
    experiment = prepare(resolve_config(settings))
    alone = experiment.make_run()
    shared = experiment.make_run()
    outputs: list[torch.Tensor] = []
    with deterministic_torch(), use_workers(shared, arguments.workers):
        names = ("one process", f"{arguments.workers} workers")
        turns = {
            name: make_turn(run, outputs) for name, run in zip(names, (alone, shared), strict=True)
        }
        samples, _ = interleave("evaluation", turns, arguments.repeats)
    assert all(torch.equal(outputs[0], others) for others in outputs)
    rows = [[name, *time_cells(times, samples[names[0]])] for name, times in samples.items()]
    print(markdown_table(HEADER, rows))


if __name__ == "__main__":
    main()
