"""The comparison that `fedwmsam compare` carries out once its settings are read.

`run_comparison` first lets pilot runs choose option values where these are asked for, then hands
all runs to the queue and returns their folders.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fedwmsam.comparison.grid import Grid, GridAxes, RunSpec
from fedwmsam.comparison.queue import QueuedRun, lock_folder, make_queue, run_queue
from fedwmsam.comparison.tuning import TuningResult, tune
from fedwmsam.engine.worker_process import cores
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import with_absolute_paths
from fedwmsam.files import own_folder, write_text
from fedwmsam.trackers import make_trackers


class ProgressDisplay(Protocol):
    """A display that shows a person how far a comparison has come."""

    def say(self, text: str, style: str | None = None) -> None: ...

    def track_progress(
        self, runs: Sequence[QueuedRun], jobs: int
    ) -> AbstractContextManager[Callable[[], None]]:
        """Return a context in which the runs are shown.

        The function that it yields is called after every change of the runs and once per second.
        """
        ...


class ComparisonRunner:
    """Carries out the runs of one folder, `jobs` at a time; finished runs are not repeated."""

    def __init__(self, out: Path, jobs: int, display: ProgressDisplay) -> None:
        self.out = out
        self.jobs = jobs or cores()
        self.display = display

    def run(self, specs: Sequence[RunSpec]) -> list[Path]:
        """Carry out the runs, report those that failed, and return the folders of all.

        Raise InputError if no run succeeded.
        """
        absolute_specs = [with_absolute_config(spec) for spec in specs]
        for names in {spec.config.track for spec in specs}:
            make_trackers(names)  # a missing tracker is reported once, before any run
        runs = make_queue(absolute_specs, self.out)
        with self.display.track_progress(runs, self.jobs) as update:
            run_queue(runs, self.jobs, self.out / "messages.log", update)
        self.report_failures(runs)
        return [run.path for run in runs]

    def report_failures(self, runs: Sequence[QueuedRun]) -> None:
        """Print the status of each failed run; raise InputError if all of them failed."""
        failed = [run for run in runs if run.has_failed]
        for run in failed:
            self.display.say(f"{run.path.name}: {run.status}", style="red")
        if len(failed) == len(runs):
            log_path = self.out / "messages.log"
            raise InputError(f"No run succeeded; {log_path} has what they printed.")


def with_absolute_config(spec: RunSpec) -> RunSpec:
    """Return the spec with absolute paths, which its worker process can read from any folder."""
    return replace(spec, config=with_absolute_paths(spec.config))


def run_comparison(
    grid: Grid,
    out: Path,
    jobs: int,
    pilot_axes: GridAxes,
    pilot_rounds: int | None,
    display: ProgressDisplay,
) -> list[Path]:
    """Carry out the grid's runs below `out` and return their folders.

    The values of `pilot_axes` are chosen first, on validation data, by runs of `pilot_rounds`
    rounds. Raise InputError if a configuration is invalid or no run succeeded.
    """
    grid.run_specs()  # raises InputError for an invalid configuration before the pilot runs start
    with lock_folder(out):
        if pilot_axes:
            pilot_runner = ComparisonRunner(out / "pilot", jobs, display)
            own_folder(pilot_runner.out).mkdir(exist_ok=True)
            grid, results = tune(grid, pilot_axes, pilot_rounds, pilot_runner.run)
            write_tuning_results(out / "pilot.json", results)
            for result in results:
                display.say(describe_tuning(result))
        return ComparisonRunner(out, jobs, display).run(grid.run_specs())


def describe_tuning(result: TuningResult) -> str:
    """Return one line that says which values were chosen for a variant, and all scores."""

    def words(values: dict[str, Any]) -> str:
        return " ".join(f"{key}={value}" for key, value in values.items())

    scores = ", ".join(f"{words(values)}: {score:.4f}" for values, score in result.scores)
    variant = words(result.variant) or "it"
    return f"Pilot for {variant}: {words(result.best)}, best on validation data ({scores})"


def write_tuning_results(path: Path, results: Sequence[TuningResult]) -> None:
    """Write the chosen values and the validation scores of each variant as JSON."""
    content = [
        {"variant": result.variant, "chosen": result.best, "validation_scores": result.scores}
        for result in results
    ]
    write_text(path, json.dumps(content, indent=2) + "\n")
