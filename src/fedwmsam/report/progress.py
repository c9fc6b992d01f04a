"""A comparison while it runs: one bar over all rounds with the time left, and a line for each run at work."""

import math
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedwmsam.comparison.queue import Task, seconds_left
from fedwmsam.errors import duration

EVERY = 15.0
"""Seconds between lines where there is no terminal."""


class Board:
    def __init__(self, console: Console, tasks: Sequence[Task], jobs: int, quiet: bool) -> None:
        self.console, self.tasks, self.jobs, self.quiet = console, tasks, jobs, quiet
        self.live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None
        self.last_line = -math.inf

    def __enter__(self) -> "Board":
        over = sum(task.is_over for task in self.tasks)
        if not self.quiet:
            self.console.print(f"{len(self.tasks)} runs, {over} of them done before, {self.jobs} at a time")
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.update(self.picture())
            self.live.stop()

    def update(self, tasks: Sequence[Task]) -> None:
        over = all(task.is_over for task in tasks)
        if self.live:
            self.live.update(self.picture())
        elif not self.quiet and (over or time.monotonic() - self.last_line > EVERY):
            self.last_line = time.monotonic()
            self.console.print(self.summary())

    def rounds(self) -> tuple[int, int]:
        """Done, and in all."""
        return sum(t.rounds if t.is_over else t.done for t in self.tasks), sum(t.rounds for t in self.tasks)

    def summary(self) -> str:
        done, total = self.rounds()
        over, left = sum(t.is_over for t in self.tasks), seconds_left(self.tasks, self.jobs)
        ends = f", about {duration(left)} left" if left else ""
        return f"{over} of {len(self.tasks)} runs, {done:,} of {total:,} rounds{ends}"

    def picture(self) -> Group:
        done, total = self.rounds()
        table = Table.grid(padding=(0, 2))
        for task in self.tasks:
            if task.status == "running":
                shown = [f"{k} {task.record[k]:.4f}" for k in ("accuracy", "loss") if task.record.get(k) is not None]
                seed = f"seed {task.member.config.seed}"
                table.add_row(task.member.label, seed, f"round {task.done}/{task.rounds}", "  ".join(shown))
        return Group(ProgressBar(total=total, completed=done), Text(self.summary()), table)
