"""What `fedwmsam compare` does once its settings are read: pilot, runs, and where everything is."""

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
from fedwmsam.files import atomic_replace
from fedwmsam.trackers import make_trackers


class ProgressDisplay(Protocol):
    """Where a comparison tells a person what it does."""

    def say(self, text: str, style: str | None = None) -> None: ...

    def watching(
        self, tasks: Sequence[QueuedRun], jobs: int
    ) -> AbstractContextManager[Callable[[], None]]:
        """While the runs go on; what is entered is called after every change of the tasks and once a second."""
        ...


class ComparisonRunner:
    """Runs in one folder; asking again for what is done already costs nothing."""

    def __init__(self, out: Path, jobs: int, display: ProgressDisplay) -> None:
        self.out = out
        self.jobs = jobs or cores()
        self.display = display

    def run(self, members: Sequence[RunSpec]) -> list[Path]:
        """The runs' folders, all over; those that failed are said to have."""
        anchored_members = [
            replace(member, config=with_absolute_paths(member.config)) for member in members
        ]
        for names in {member.config.track for member in members}:
            make_trackers(names)  # what is missing is said once, before any run
        tasks = make_queue(anchored_members, self.out)
        with self.display.watching(tasks, self.jobs) as update:
            run_queue(tasks, self.jobs, self.out / "messages.log", update)
        self.complain(tasks)
        return [task.path for task in tasks]

    def complain(self, tasks: Sequence[QueuedRun]) -> None:
        failed = [task for task in tasks if task.failed]
        for task in failed:
            self.display.say(f"{task.path.name}: {task.status}", style="red")
        if len(failed) == len(tasks):
            raise InputError(
                f"No run succeeded; {self.out / 'messages.log'} has what they printed."
            )


def run_comparison(
    grid: Grid,
    out: Path,
    jobs: int,
    pilot: GridAxes,
    pilot_rounds: int | None,
    display: ProgressDisplay,
) -> list[Path]:
    """Carry out the grid's runs below `out` and return their folders."""
    grid.members()  # a mistake is better found before the pilot than after it
    with lock_folder(out):
        if pilot:
            trial = ComparisonRunner(out / "pilot", jobs, display)
            trial.out.mkdir(exist_ok=True)
            grid, choices = tune(grid, pilot, pilot_rounds, trial.run)
            write_tuning_results(out / "pilot.json", choices)
            for choice in choices:
                display.say(describe_tuning(choice))
        return ComparisonRunner(out, jobs, display).run(grid.members())


def describe_tuning(choice: TuningResult) -> str:
    def words(values: dict[str, Any]) -> str:
        return " ".join(f"{key}={value}" for key, value in values.items())

    tried = ", ".join(f"{words(values)}: {score:.4f}" for values, score in choice.scores)
    return f"Pilot for {words(choice.variant) or 'it'}: {words(choice.best)}, best on validation data ({tried})"


def write_tuning_results(path: Path, choices: Sequence[TuningResult]) -> None:
    content = [
        {"variant": choice.variant, "chosen": choice.best, "validation_scores": choice.scores}
        for choice in choices
    ]
    with atomic_replace(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n")
