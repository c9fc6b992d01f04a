"""CPU time of the flatness measures on one thread.

    python benchmarks/flatness.py [RUN]

The model is that of a run folder, or an untrained 784-200-200-10 MLP; the data are 5,000 samples of
its training data, by default Fashion-MNIST. Prints the seconds of CPU time of each measure; the
first line is the largest eigenvalue alone.
"""

import argparse
import itertools
import time
from pathlib import Path

from fedwmsam import rng
from fedwmsam.analysis.flatness import FlatnessConfig, flatness_at
from fedwmsam.analysis.hessian import largest_eigenvalues
from fedwmsam.analysis.loss_surface import LossSurface, draw_sample, pool_clients
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.experiment.experiment import Experiment, prepare
from fedwmsam.settings.config import resolve_config
from fedwmsam.training.task import deterministic_torch

SAMPLES = 5000
MEASURES = (
    "gradient",
    "five eigenvalues",
    "trace, 30 probes",
    "sharpness, three radii",
    "adaptive sharpness",
)
"""The steps of `flatness_at`, in their order."""


def load_experiment(run: Path | None) -> Experiment:
    """Return the experiment of a run, starting from its last model, or an untrained one."""
    if run is None:
        return prepare(resolve_config({"dataset": "fashion-mnist", "preset": "paper"}))
    saved = SavedRun(run)
    w, _ = saved.load(saved.select_rounds("last")[0])
    saved.task.initial_weights = w
    return saved.experiment


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", type=Path)
    with deterministic_torch():
        experiment = load_experiment(parser.parse_args().run)
        task = experiment.task
        w = task.initial_weights
        seed = rng.derive_seed(0, "global sample")
        sample = draw_sample(pool_clients(experiment.clients), SAMPLES, 1000, seed)
        surface = LossSurface(task, sample)
        start = time.process_time()
        spectrum = largest_eigenvalues(lambda v: surface.hessian_vector_product(w, v), w, 1)
        seconds = time.process_time() - start
        print(f"{task.parameter_count:,} weights, {surface.sample.count:,} samples, one thread")
        print(
            f"largest eigenvalue {spectrum.values[0]:.5g}: {seconds:.1f} s, "
            f"{spectrum.products} products with the Hessian"
        )
        times = [time.process_time()]
        flatness_at(surface, w, FlatnessConfig(), lambda step: times.append(time.process_time()))
        times.append(time.process_time())
        for name, (start, end) in zip(MEASURES, itertools.pairwise(times), strict=True):
            print(f"{name}: {end - start:.1f} s")


if __name__ == "__main__":
    main()
