"""What `fedwmsam compare` does once its settings are read: pilot, runs, and where everything is."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fedwmsam.comparison.grid import Axes, Grid, Member
from fedwmsam.comparison.queue import Task, carry_out, only_one, tasks_of
from fedwmsam.comparison.tuning import Choice, choose
from fedwmsam.engine.worker_process import cores
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import anchored
from fedwmsam.files import replacing
from fedwmsam.trackers import make_trackers


class Display(Protocol):
    """Where a comparison tells a person what it does."""

    def say(self, text: str, style: str | None = None) -> None: ...

    def watching(
        self, tasks: Sequence[Task], jobs: int
    ) -> AbstractContextManager[Callable[[], None]]:
        """While the runs go on; what is entered is called after every change of the tasks and once a second."""
        ...


class Comparison:
    """Runs in one folder; asking again for what is done already costs nothing."""

    def __init__(self, out: Path, jobs: int, display: Display) -> None:
        self.out = out
        self.jobs = jobs or cores()
        self.display = display

    def run(self, members: Sequence[Member]) -> list[Path]:
        """The runs' folders, all over; those that failed are said to have."""
        anchored_members = [replace(member, config=anchored(member.config)) for member in members]
        for names in {member.config.track for member in members}:
            make_trackers(names)  # what is missing is said once, before any run
        tasks = tasks_of(anchored_members, self.out)
        with self.display.watching(tasks, self.jobs) as update:
            carry_out(tasks, self.jobs, self.out / "messages.log", update)
        self.complain(tasks)
        return [task.path for task in tasks]

    def complain(self, tasks: Sequence[Task]) -> None:
        failed = [task for task in tasks if task.failed]
        for task in failed:
            self.display.say(f"{task.path.name}: {task.status}", style="red")
        if len(failed) == len(tasks):
            raise InputError(
                f"No run succeeded; {self.out / 'messages.log'} has what they printed."
            )


def compare(
    grid: Grid, out: Path, jobs: int, pilot: Axes, pilot_rounds: int | None, display: Display
) -> list[Path]:
    """Carry out the grid's runs below `out` and return their folders."""
    grid.members()  # a mistake is better found before the pilot than after it
    with only_one(out):
        if pilot:
            trial = Comparison(out / "pilot", jobs, display)
            trial.out.mkdir(exist_ok=True)
            grid, choices = choose(grid, pilot, pilot_rounds, trial.run)
            write_choices(out / "pilot.json", choices)
            for choice in choices:
                display.say(sentence(choice))
        return Comparison(out, jobs, display).run(grid.members())


def sentence(choice: Choice) -> str:
    def words(values: dict[str, Any]) -> str:
        return " ".join(f"{key}={value}" for key, value in values.items())

    tried = ", ".join(f"{words(values)}: {score:.4f}" for values, score in choice.scores)
    return f"Pilot for {words(choice.variant) or 'it'}: {words(choice.best)}, best on validation data ({tried})"


def write_choices(path: Path, choices: Sequence[Choice]) -> None:
    content = [
        {"variant": choice.variant, "chosen": choice.best, "validation_scores": choice.scores}
        for choice in choices
    ]
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n")
