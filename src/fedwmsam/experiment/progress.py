"""What is shown of a run while it trains: a bar in a terminal or a notebook, else lines of a log.

A terminal is the standard error, so that a program's own output stays its own.
"""

import logging
import sys
import time
from collections.abc import Sequence
from html import escape
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBars

from fedwmsam.engine.records import Record
from fedwmsam.engine.run import Progress
from fedwmsam.errors import InputError, format_duration
from fedwmsam.settings.config import Settings
from fedwmsam.training.objectives import Objective

log = logging.getLogger("fedwmsam")
REDRAW_SECONDS = 0.2
"""Seconds at least between two pictures of a bar in a notebook, each of which is a message."""


class RunProgress:
    """An `Observer` that knows the newest metrics; this one writes them to the log.

    There is a line for each round whose model is due to be evaluated. Libraries leave it to the
    program whether lines of level INFO are shown.
    """

    def __init__(self, settings: Settings, objective: Objective) -> None:
        self.settings = settings
        self.rounds = settings.rounds
        metrics = [*objective.metrics, "loss"]
        monitored = f"validation_{objective.monitor}"
        self.names = [*dict.fromkeys((*metrics, monitored)), "train_loss"]
        self.values: Record = {}
        """The newest value of each of the names."""

    def start(self, progress: Progress) -> None:
        """Take over what a resumed run has already."""
        for record in progress.history:
            self.note_values(record)

    def __call__(self, progress: Progress) -> None:
        """Show the round that was just completed."""
        self.note_values(progress.record)
        self.show(progress.record["round"])

    def finish(self, progress: Progress) -> None:
        """Show how the run has ended."""

    def note_values(self, record: Record) -> None:
        """Keep those of the main metrics that the record has."""
        self.values |= {name: record[name] for name in self.names if record.get(name) is not None}

    def describe_metrics(self) -> str:
        """Return the newest metrics in one line."""
        return format_metrics(self.values, self.names)

    def show(self, round: int) -> None:
        """Show that so many rounds are done."""
        if round % self.settings.evaluate_every == 0 or round == self.rounds:
            log.info("round %d/%d  %s", round, self.rounds, self.describe_metrics())


class TerminalProgress(RunProgress):
    """A bar on the standard error."""

    def start(self, progress: Progress) -> None:
        """Show the bar as far as the run has come."""
        super().start(progress)
        # What callbacks print goes above the bar, but stays in a file that it is redirected to.
        self.bar = make_bar(
            console=Console(stderr=True),
            redirect_stdout=is_terminal(sys.stdout),
            refresh_per_second=4,
        )
        self.task = self.bar.add_task("", total=self.rounds, completed=len(progress.history))
        self.bar.start()

    def finish(self, progress: Progress) -> None:
        """Leave the bar as it is."""
        self.bar.stop()

    def show(self, round: int) -> None:
        """Move the bar on, with the newest metrics."""
        self.bar.update(self.task, completed=round, description=self.describe_metrics())


class NotebookProgress(RunProgress):
    """A bar below a notebook's cell, which needs no widgets: one output that is replaced."""

    def start(self, progress: Progress) -> None:
        """Show the bar as far as the run has come."""
        super().start(progress)
        self.first_round = len(progress.history)
        self.started = time.monotonic()
        self.drawn = self.started
        content = self.render(self.first_round, "")
        self.output = notebook_display()(content, raw=True, display_id=True)

    def finish(self, progress: Progress) -> None:
        """Replace the time left by how the run has ended."""
        summary = progress.summary
        self.output.update(self.render(summary["rounds"], summary["status"]), raw=True)

    def show(self, round: int) -> None:
        """Redraw the bar, if the last picture is not too recent."""
        now = time.monotonic()
        if now - self.drawn < REDRAW_SECONDS:
            return
        self.drawn = now
        per_round = (now - self.started) / (round - self.first_round)
        left = f"{format_duration(per_round * (self.rounds - round))} left"
        self.output.update(self.render(round, left), raw=True)

    def render(self, round: int, ending: str) -> dict[str, str]:
        """Return the bar as HTML, and as text where a notebook is not shown in a browser."""
        parts = [f"round {round}/{self.rounds}", self.describe_metrics(), ending]
        text = "  ".join(filter(None, parts))
        bar = f'<progress value="{round}" max="{self.rounds}"></progress>'
        return {"text/html": f"<div>{bar} {escape(text)}</div>", "text/plain": text}


def make_progress(
    shown: bool | None, settings: Settings, objective: Objective
) -> list[RunProgress]:
    """Return what shows a run's progress; nothing if `shown` is False.

    None means a bar where somebody looks on, otherwise the log; True a bar in any case. Raise
    InputError for anything else.
    """
    if shown is not None and not isinstance(shown, bool):
        raise InputError(f"progress must be True, False or None, not {shown!r}.")
    if shown is False:
        return []
    if notebook_display():
        return [NotebookProgress(settings, objective)]
    if shown or is_terminal(sys.stderr):
        return [TerminalProgress(settings, objective)]
    return [RunProgress(settings, objective)]


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream of the process leads to a terminal; it may have been closed."""
    return stream is not None and not stream.closed and stream.isatty()


def notebook_display() -> Any:
    """Return the function that shows an output in the notebook of this process, None without one.

    Whoever runs in a notebook has imported IPython, and its shell has a kernel.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if ipython is None or getattr(shell, "kernel", None) is None:
        return None
    return ipython.display.display


def make_bar(**options: Any) -> ProgressBars:
    """Return a bar of the rounds, with the metrics and the time left beside it."""
    return ProgressBars(
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        **options,
    )


def format_metrics(record: Record, names: Sequence[str]) -> str:
    """Return those of the named metrics that the record has, in one line."""
    recorded = [name for name in names if record.get(name) is not None]
    return "  ".join(f"{name} {record[name]:.4f}" for name in recorded)
