"""The comparison that `fedwmsam compare` carries out once its settings are read.

`run_comparison` first lets tuning runs choose values where these are asked for, then hands all runs
to the queue and returns their folders. `RunPlace` says where the workers are that carry them out.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fedwmsam.comparison.grid import Grid, RunSpec
from fedwmsam.comparison.launchers import SLURM_WORKERS, LocalLauncher, SlurmLauncher
from fedwmsam.comparison.queue import QueuedRun, make_queue, run_queue
from fedwmsam.comparison.queue_folder import QueueFolder, lock_folder
from fedwmsam.comparison.tuning import (
    TUNING_FILE,
    TUNING_FOLDER,
    TuningPlan,
    count_again,
    describe_result,
    plan_trials,
    tune,
    write_tuning_file,
)
from fedwmsam.engine.worker_process import cores
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import with_absolute_paths
from fedwmsam.files import own_folder
from fedwmsam.trackers import make_trackers


class ProgressDisplay(Protocol):
    """A display that shows a person how far a comparison has come."""

    def say(self, text: str, style: str | None = None) -> None: ...

    def note(self, text: str) -> None:
        """Say something that a quiet display leaves out."""
        ...

    def track_progress(
        self, runs: Sequence[QueuedRun], jobs: int
    ) -> AbstractContextManager[Callable[[], None]]:
        """Return a context in which the runs are shown.

        The function that it yields is called at every look at the runs.
        """
        ...


@dataclass(frozen=True)
class RunPlace:
    """Where the runs of a comparison are carried out, and how many at a time."""

    jobs: int = 0
    """Runs at a time; 0 for one for each core, or on Slurm for up to SLURM_WORKERS."""
    slurm_options: Mapping[str, str | None] | None = None
    """Options of `sbatch`; None for processes of this machine."""

    @property
    def workers(self) -> int:
        """Return how many runs are carried out at a time."""
        return self.jobs or (cores() if self.is_this_machine else SLURM_WORKERS)

    @property
    def is_this_machine(self) -> bool:
        """Return whether the workers are processes of this machine."""
        return self.slurm_options is None

    def hint_on_interrupt(self, out: Path) -> str:
        """Return what becomes of the runs below `out` when whoever asked for them goes away."""
        if self.is_this_machine:
            return "Stopped; the same command goes on from the last completed rounds."
        return (
            "The jobs go on in Slurm; the same command follows them again, "
            f"`fedwmsam compare --out {out} --cancel` ends them."
        )

    def make_launcher(
        self, out: Path, runs: Sequence[QueuedRun], say: Callable[[str], None]
    ) -> LocalLauncher | SlurmLauncher:
        """Return what provides these runs with workers.

        These may import the models and methods that the runs name, since the user has named them.
        """
        names = {run.spec.config.model for run in runs} | {run.spec.config.method for run in runs}
        trusts = any(":" in name for name in names)
        if self.slurm_options is None:
            return LocalLauncher(out, self.workers, trusts)
        return SlurmLauncher(out, self.workers, trusts, self.slurm_options, say)


class ComparisonRunner:
    """Carries out the runs of one folder; finished runs are not repeated."""

    def __init__(self, out: Path, place: RunPlace, display: ProgressDisplay) -> None:
        self.out = out
        self.place = place
        self.display = display

    def run(self, specs: Sequence[RunSpec]) -> list[Path]:
        """Carry out the runs, report those that failed, and return the folders of all.

        Raise InputError if no run succeeded.
        """
        absolute_specs = [with_absolute_config(spec) for spec in specs]
        for names in {spec.config.track for spec in specs}:
            make_trackers(names)  # a missing tracker is reported once, before any run
        runs = make_queue(absolute_specs, self.out)
        launcher = self.place.make_launcher(self.out, runs, self.display.note)
        self.report_changed_plan(runs)
        with self.display.track_progress(runs, launcher.jobs) as update:
            run_queue(runs, self.out, launcher, update)
        self.report_failures(runs)
        return [run.path for run in runs]

    def report_changed_plan(self, runs: Sequence[QueuedRun]) -> None:
        """Say which runs of an earlier call are no longer asked for although they are not done."""
        queue = QueueFolder(self.out)
        if not queue.exists():
            return
        asked_for = {run.path.name for run in runs}
        earlier = [run.name for run in queue.read_plan().runs if run.name not in asked_for]
        left = [name for name in earlier if not queue.is_finished(name)]
        if left:
            self.display.note(
                f"The plan has changed: {len(left)} unfinished runs of the call before are not in "
                "it and are left as they are."
            )
        finished = [
            path for path in self.out.glob("*/summary.json") if path.parent.name not in asked_for
        ]
        if finished:
            self.display.note(
                f"{len(finished)} finished runs with other settings are in {self.out}, too, and "
                f"have rows of their own in `fedwmsam report {self.out}`."
            )

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
    grid: Grid, out: Path, place: RunPlace, plan: TuningPlan | None, display: ProgressDisplay
) -> list[Path]:
    """Carry out the grid's runs below `out` and return their folders.

    The values of the plan are chosen first, on validation data. Raise InputError if a configuration
    is invalid or no run succeeded.
    """
    grid.run_specs()  # raises InputError for an invalid configuration before the tuning runs start
    refuse_pilot_runs(out)
    if plan is not None:
        plan_trials(grid, plan)  # the same for those that are tried
    with lock_folder(out):
        if plan is not None:
            grid = choose_values(grid, plan, out, place, display)
        specs = grid.run_specs()
        count_again(out / TUNING_FILE, specs)
        return ComparisonRunner(out, place, display).run(specs)


def choose_values(
    grid: Grid, plan: TuningPlan, out: Path, place: RunPlace, display: ProgressDisplay
) -> Grid:
    """Return the grid with the values that tuning runs below `out` have chosen.

    How they were chosen is printed, and written for the reports.
    """
    write_tuning_file(out / TUNING_FILE, [])  # reports then leave the folder of these runs out
    runner = ComparisonRunner(out / TUNING_FOLDER, place, display)
    own_folder(runner.out).mkdir(exist_ok=True)
    tuned_grid, results = tune(grid, plan, runner.run)
    write_tuning_file(out / TUNING_FILE, results)
    for result in results:
        display.say(describe_result(result))
    return tuned_grid


def refuse_pilot_runs(out: Path) -> None:
    """Raise InputError if `out` holds runs with which an older version has chosen values.

    Reports of the folder would take them for runs of the comparison.
    """
    if (out / "pilot.json").exists() or (out / "pilot" / "messages.log").exists():
        raise InputError(
            f"{out / 'pilot'} holds pilot runs of an older version, which reports would mix with "
            "the comparison's: move it and pilot.json elsewhere, or choose another --out."
        )
