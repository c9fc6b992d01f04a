"""What a comparison will take, judged before it starts: runs, rounds, hours and disk space.

Short rounds of one run of each method are probed, as `fedwmsam run --dry-run` does, and the runs of
the method are taken to cost the same whatever their seed. If there is no time to probe all methods,
the others follow from the number of their backpropagations.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from fedwmsam.comparison.comparison import with_absolute_config
from fedwmsam.comparison.grid import Grid
from fedwmsam.comparison.queue import QueuedRun, make_queue
from fedwmsam.comparison.tuning import TUNING_FOLDER, TuningPlan, plan_trials
from fedwmsam.engine.estimate import PROBE_SECONDS, RunEstimate, estimate_other_method
from fedwmsam.engine.worker_process import cores
from fedwmsam.experiment.experiment import Experiment, prepare
from fedwmsam.methods import make_method
from fedwmsam.settings.config import RunConfig

COST_SETTINGS = (
    "local_epochs",
    "local_steps",
    "batch_size",
    "micro_batch",
    "precision",
    "participation",
    "clients_per_round",
    "evaluate_every",
    "record",
    "twin",
    "workers",
)
"""Settings on which the time of a round depends, besides the method and the data."""
DATA_SETTINGS = ("dataset", "data_dir", "model", "partition", "clients", "validation", "device")
"""Settings that `prepare` reads; runs that share them share what it has loaded."""
CostKey = tuple[str, tuple[object, ...]]
"""The method, and the values of settings that decide on the cost."""


@dataclass(frozen=True)
class MethodEstimate:
    """What the runs of one method take that are not done."""

    method: str
    runs: int
    rounds: int
    seconds: float
    """Computing time of all of them, one after the other."""
    disk_bytes: float


@dataclass(frozen=True)
class ComparisonEstimate:
    """What the runs of a comparison take that are not done."""

    methods: tuple[MethodEstimate, ...]
    done: int
    """Runs that are finished already."""
    jobs: int
    """Runs that are carried out at the same time."""

    @property
    def runs(self) -> int:
        """Return how many runs are ahead."""
        return sum(method.runs for method in self.methods)

    @property
    def rounds(self) -> int:
        """Return how many rounds all of them have ahead."""
        return sum(method.rounds for method in self.methods)

    @property
    def disk_bytes(self) -> float:
        """Return the bytes that their folders will have at most, approximately."""
        return sum(method.disk_bytes for method in self.methods)

    @property
    def seconds(self) -> float:
        """Return the seconds until the last run ends."""
        total = sum(method.seconds for method in self.methods)
        return total / max(1, min(self.jobs, self.runs))


def planned_runs(grid: Grid, out: Path, plan: TuningPlan | None) -> list[QueuedRun]:
    """Return the runs of a comparison below `out` with what is done of them, tuning runs first."""
    runs = []
    if plan is not None:
        for trials in plan_trials(grid, plan):
            specs = chain.from_iterable(specs for _, specs in trials.candidates)
            runs += make_queue(list(map(with_absolute_config, specs)), out / TUNING_FOLDER)
    return runs + make_queue(list(map(with_absolute_config, grid.run_specs())), out)


def estimate_comparison(
    runs: Sequence[QueuedRun], jobs: int, seconds: float = math.inf
) -> ComparisonEstimate:
    """Return what the runs will take, `jobs` at a time, or as many as there are cores for 0.

    No probe but the first begins after so many seconds. Raise InputError if a run that is probed
    cannot be carried out.
    """
    ahead = [run for run in runs if not run.is_finished]
    probes = Probes(seconds)
    logging.disable(logging.WARNING)  # the runs themselves warn
    try:
        for run in ahead:
            probes.add(run.spec.config)
    finally:
        logging.disable(logging.NOTSET)
    estimates = []
    for method in dict.fromkeys(run.spec.config.method for run in ahead):
        own = [run for run in ahead if run.spec.config.method == method]
        costs = [probes.cost_of(run.spec.config) for run in own]
        rounds = [run.rounds - run.rounds_done for run in own]
        estimates.append(
            MethodEstimate(
                method,
                len(own),
                sum(rounds),
                sum(cost.round_seconds * n for cost, n in zip(costs, rounds, strict=True)),
                sum(cost.disk_bytes for cost in costs),
            )
        )
    return ComparisonEstimate(tuple(estimates), len(runs) - len(ahead), jobs or cores())


def check_shared_data(runs: Sequence[QueuedRun]) -> None:
    """Raise InputError if all runs are to have the same data and model, and cannot have them.

    Runs that have begun had them.
    """
    shared = {values_of(run.spec.config, DATA_SETTINGS) for run in runs}
    if len(shared) == 1 and not any(run.path.exists() for run in runs):
        prepare(runs[0].spec.config)


class Probes:
    """Probes of runs, one of all that cost the same, as long as there is time."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.probe_seconds = min(PROBE_SECONDS, seconds / 20)
        self.estimates: dict[CostKey, RunEstimate] = {}
        self.experiment: Experiment | None = None
        """What was loaded for the last probe."""

    def add(self, config: RunConfig) -> None:
        """Probe a run, unless one like it was probed or, but for the first, time is up."""
        key = cost_key(config)
        if key in self.estimates or (self.estimates and time.monotonic() > self.end):
            return
        shared = self.experiment
        if shared and values_of(shared.config, DATA_SETTINGS) == values_of(config, DATA_SETTINGS):
            experiment = replace(shared, config=config)
        else:
            experiment = prepare(config)
            # A natural partition has as many clients as it has; the next run asks for what it did.
            self.experiment = replace(experiment, config=config)
        self.estimates[key] = experiment.estimate(self.probe_seconds)

    def cost_of(self, config: RunConfig) -> RunEstimate:
        """Return the estimate of a run, if need be from one of another method."""
        key = cost_key(config)
        if key in self.estimates:
            return self.estimates[key]
        method, probed = next((key[0], value) for key, value in self.estimates.items())
        own = make_method(config.method, **config.options)
        return estimate_other_method(probed, make_method(method), own)


def cost_key(config: RunConfig) -> CostKey:
    """Return what is equal for runs whose rounds cost the same."""
    return config.method, values_of(config, (*COST_SETTINGS, *DATA_SETTINGS))


def values_of(config: RunConfig, names: Sequence[str]) -> tuple[object, ...]:
    """Return the values of these settings."""
    return tuple(getattr(config, name) for name in names)
