"""Processor time of the flatness of the 784-200-200-10 MLP on 5,000 samples of Fashion-MNIST, on one thread.

    python benchmarks/flatness.py [RUN]

The model is that of a run folder (any with that model, or another), or an untrained one. Prints each measure's seconds
of processor time: the first line is the largest eigenvalue alone.
"""

import argparse
import time
from pathlib import Path

from fedwmsam import rng
from fedwmsam.analysis.flatness import FlatnessConfig, flatness_at
from fedwmsam.analysis.hessian import largest_eigenvalues
from fedwmsam.analysis.loss_surface import LossSurface, draw_sample, pool_clients
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.experiment.experiment import Experiment, prepare
from fedwmsam.settings.config import resolve
from fedwmsam.training.task import deterministic_torch

SAMPLES = 5000


def model(run: Path | None) -> Experiment:
    """With the model in place that is to be measured."""
    if run is None:
        return prepare(resolve({"dataset": "fashion-mnist", "preset": "paper"}))
    saved = SavedRun(run)
    w, _ = saved.load(saved.rounds("last")[0])
    saved.task.initial_weights = w
    return saved.experiment


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", type=Path)
    with deterministic_torch():
        experiment = model(parser.parse_args().run)
        task, w = experiment.task, experiment.task.initial_weights
        surface = LossSurface(
            task,
            draw_sample(
                pool_clients(experiment.clients), SAMPLES, 1000, rng.derive_seed(0, "global sample")
            ),
        )
        start = time.process_time()
        found = largest_eigenvalues(lambda v: surface.product(w, v), w, 1)
        taken = time.process_time() - start
        print(f"{task.size:,} weights, {surface.sample.count:,} samples, one thread")
        print(
            f"largest eigenvalue {found.values[0]:.5g}: {taken:.1f} s, {found.products} products with the Hessian"
        )
        before = [time.process_time()]
        flatness_at(surface, w, FlatnessConfig(), lambda what: before.append(time.process_time()))
        names = (
            "gradient",
            "five eigenvalues",
            "trace, 30 probes",
            "sharpness, three radii",
            "adaptive sharpness",
        )
        for name, begin, end in zip(names, before, [*before[1:], time.process_time()], strict=True):
            print(f"{name}: {end - begin:.1f} s")


if __name__ == "__main__":
    main()
