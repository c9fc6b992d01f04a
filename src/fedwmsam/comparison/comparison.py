"""What `fedwmsam compare` does once its settings are read: pilot, runs, and where everything is."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedwmsam.comparison.grid import Axes, Grid, Member
from fedwmsam.comparison.queue import Task, carry_out, only_one, tasks_of
from fedwmsam.comparison.tuning import Choice, choose
from fedwmsam.engine.checkpoint import replacing
from fedwmsam.engine.worker_process import cores
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import anchored
from fedwmsam.report.progress import Board
from fedwmsam.trackers import make_trackers


class Comparison:
    """Runs in one folder; asking again for what is done already costs nothing."""

    def __init__(self, out: Path, jobs: int, console: Console, quiet: bool) -> None:
        self.out, self.jobs, self.console, self.quiet = out, jobs or cores(), console, quiet

    def run(self, members: Sequence[Member]) -> list[Path]:
        """The runs' folders, all over; those that failed are said to have."""
        anchored_members = [replace(member, config=anchored(member.config)) for member in members]
        for names in {member.config.track for member in members}:
            make_trackers(names)  # what is missing is said once, before any run
        tasks = tasks_of(anchored_members, self.out)
        with Board(self.console, tasks, self.jobs, self.quiet) as board:
            carry_out(tasks, self.jobs, self.out / "messages.log", board.update)
        self.complain(tasks)
        return [task.path for task in tasks]

    def complain(self, tasks: Sequence[Task]) -> None:
        failed = [task for task in tasks if task.failed]
        for task in failed:
            self.console.print(f"{task.path.name}: {task.status}", style="red", soft_wrap=True)
        if len(failed) == len(tasks):
            raise InputError(f"No run succeeded; {self.out / 'messages.log'} has what they printed.")


def compare(
    grid: Grid, out: Path, jobs: int, pilot: Axes, pilot_rounds: int | None, console: Console,
    quiet: bool,
) -> list[Path]:  # fmt: skip
    """Carry out the grid's runs below `out` and return their folders."""
    grid.members()  # a mistake is better found before the pilot than after it
    with only_one(out):
        if pilot:
            trial = Comparison(out / "pilot", jobs, console, quiet)
            trial.out.mkdir(exist_ok=True)
            grid, choices = choose(grid, pilot, pilot_rounds, trial.run)
            write_choices(out / "pilot.json", choices)
            for choice in choices:
                console.print(sentence(choice), soft_wrap=True)
        return Comparison(out, jobs, console, quiet).run(grid.members())


def sentence(choice: Choice) -> str:
    def words(values: dict[str, Any]) -> str:
        return " ".join(f"{key}={value}" for key, value in values.items())

    tried = ", ".join(f"{words(values)}: {score:.4f}" for values, score in choice.scores)
    return f"Pilot for {words(choice.variant) or 'it'}: {words(choice.best)}, best on validation data ({tried})"


def write_choices(path: Path, choices: Sequence[Choice]) -> None:
    content = [
        {"variant": choice.variant, "chosen": choice.best, "validation_scores": choice.scores} for choice in choices
    ]
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n")
