"""The terminal: what runs, comparisons and analyses are at while they go on, and tables when they are done."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBars
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from fedwmsam.comparison.queue import QueuedRun, estimate_seconds_left
from fedwmsam.engine.estimate import RunEstimate
from fedwmsam.engine.records import Record
from fedwmsam.engine.run import Progress
from fedwmsam.errors import format_duration, format_privacy_guarantee
from fedwmsam.experiment.experiment import Experiment
from fedwmsam.experiment.result import Result
from fedwmsam.methods import METHODS, method_class
from fedwmsam.report.text_tables import TextTable
from fedwmsam.settings.config import Settings
from fedwmsam.settings.options import describe_range
from fedwmsam.settings.presets import BY_METHOD, COMMON, preset_values


class LiveDisplay:
    """What is going on: a picture that changes on a terminal, a line now and then elsewhere, nothing if quiet."""

    def __init__(self, console: Console, quiet: bool, every: float = 15.0) -> None:
        self.console = console
        self.quiet = quiet
        self.every = every
        """Seconds between lines where there is no terminal."""
        self.live = (
            Live(console=console, refresh_per_second=4)
            if console.is_terminal and not quiet
            else None
        )
        self.last_line = -math.inf

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        """Print a line, however long, so that a path or a command in it can be copied."""
        if not self.quiet:
            self.console.print(text, soft_wrap=True)

    def show(self, picture: RenderableType, line: str, at_once: bool = False) -> None:
        """Show the picture, or print the line if it is time for one; `at_once` does not wait for that."""
        now = time.monotonic()
        if self.live:
            self.live.update(picture)
        elif at_once or now - self.last_line > self.every:
            self.say(line)
            self.last_line = now


class RunDisplay(LiveDisplay):
    """A run: a bar with round, accuracy, loss, α and time left."""

    def __init__(self, console: Console, experiment: Experiment, folder: Path, quiet: bool) -> None:
        super().__init__(console, quiet, every=5.0)
        config = experiment.config
        self.rounds = config.rounds
        self.say(
            f"{config.method} on {config.dataset} ({experiment.dataset.source}), {experiment.task.size:,} parameters"
        )
        self.say(experiment.partition.describe())
        self.say(f"Run folder: {folder}")
        self.bar = ProgressBars(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        self.task = self.bar.add_task("", total=self.rounds)

    def update(self, progress: Progress) -> None:
        record = progress.record
        known = [name for name in ("accuracy", "loss", "alpha") if record.get(name) is not None]
        shown = "  ".join(f"{name} {record[name]:.4f}" for name in known)
        self.bar.update(self.task, completed=record["round"], description=shown)
        self.show(
            self.bar,
            f"round {record['round']}/{self.rounds}  {shown}",
            at_once=record["round"] == self.rounds,
        )


class QueueDisplay(LiveDisplay):
    """A comparison: one bar over all rounds with the time left, and a line for each run at work."""

    def __init__(
        self, console: Console, quiet: bool, tasks: Sequence[QueuedRun], jobs: int
    ) -> None:
        super().__init__(console, quiet)
        self.tasks = tasks
        self.jobs = jobs
        over = sum(task.is_over for task in tasks)
        self.say(f"{len(tasks)} runs, {over} of them done before, {jobs} at a time")

    def update(self) -> None:
        self.show(self.picture(), self.summary(), at_once=all(task.is_over for task in self.tasks))

    def rounds(self) -> tuple[int, int]:
        """How many rounds are done, and how many there are in all."""
        done = sum(task.rounds if task.is_over else task.done for task in self.tasks)
        return done, sum(task.rounds for task in self.tasks)

    def summary(self) -> str:
        done, total = self.rounds()
        over = sum(task.is_over for task in self.tasks)
        left = estimate_seconds_left(self.tasks, self.jobs)
        ends = f", about {format_duration(left)} left" if left else ""
        return f"{over} of {len(self.tasks)} runs, {done:,} of {total:,} rounds{ends}"

    def picture(self) -> Group:
        done, total = self.rounds()
        table = Table.grid(padding=(0, 2))
        for task in self.tasks:
            if task.status == "running":
                known = [name for name in ("accuracy", "loss") if task.record.get(name) is not None]
                shown = "  ".join(f"{name} {task.record[name]:.4f}" for name in known)
                table.add_row(
                    task.member.label,
                    f"seed {task.member.config.seed}",
                    f"round {task.done}/{task.rounds}",
                    shown,
                )
        return Group(ProgressBar(total=total, completed=done), Text(self.summary()), table)


class AnalysisDisplay(LiveDisplay):
    """An analysis: one line that says what it is at."""

    def __init__(self, console: Console, quiet: bool) -> None:
        super().__init__(console, quiet)
        self.last_line = time.monotonic()  # what takes less than a while needs no line

    def update(self, text: str) -> None:
        self.show(Spinner("dots", text=text), text)


class ComparisonDisplay:
    """What a comparison tells a person on the terminal."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self.console = console
        self.quiet = quiet

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, soft_wrap=True)

    @contextmanager
    def watching(self, tasks: Sequence[QueuedRun], jobs: int) -> Iterator[Callable[[], None]]:
        with QueueDisplay(self.console, self.quiet, tasks, jobs) as display:
            yield display.update


def print_result(console: Console, result: Result) -> None:
    """What was reached and where it is."""
    say = partial(console.print, soft_wrap=True)
    values = accuracies(result.rows)
    say(f"\n{result.status.capitalize()} after {result.rounds} rounds, {result.seconds:.0f} s.")
    if values:
        count = min(10, len(values))
        say(
            f"Test accuracy: {values[-1]:.4f} last, {tail_mean(values):.4f} mean of the last {count} evaluations"
        )
    averaged = result.last("averaged_accuracy")
    if averaged is not None:
        say(f"Averaged twin: test accuracy {averaged:.4f} last")
    if result.best_round is not None:
        best = result.rows[result.best_round - 1].get("accuracy", math.nan)
        say(f"Best by validation: round {result.best_round}, test accuracy {best:.4f}")
    epsilon = result.rows[-1].get("epsilon") if result.rows else None
    if epsilon is not None:
        say(
            f"Differential privacy for clients: {format_privacy_guarantee(epsilon, result.config['dp_delta'])}"
        )
    if result.rows:
        traffic = format_bytes(sum(row["bytes_down"] + row["bytes_up"] for row in result.rows))
        say(
            f"Communication: {traffic}; backprops: {sum(row['backprops'] for row in result.rows):,}"
        )
    say(f"Model, metrics and configuration: {result.folder}")


def print_text_tables(console: Console, sheets: Sequence[TextTable]) -> None:
    """The tables of a report, each with what must be known to read it."""
    for sheet in sheets:
        console.print(sheet.title, style="bold", soft_wrap=True)
        table = make_table(*sheet.header)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
        for note in sheet.notes:
            console.print(f"- {note}", soft_wrap=True)
        console.print()


def show_estimate(console: Console, found: RunEstimate, config: Settings) -> None:
    """The plan of a run that was not started."""
    total = found.rounds * found.round_seconds
    traffic = found.cohort * (found.bytes_down + found.bytes_up)
    lines = {
        "model": f"{found.parameters:,} trainable parameters, {format_bytes(found.parameters * found.bytes_each)}",
        "round": f"{found.cohort:,} of {found.clients:,} clients, {found.steps:,.0f} local steps each on average",
        "traffic": f"{format_bytes(found.bytes_down)} down and {format_bytes(found.bytes_up)} up a client, {format_bytes(traffic)} a round, "
        f"{format_bytes(traffic * found.rounds)} in {found.rounds:,} rounds",
        "memory": f"{format_bytes(found.process)} this process has held so far, {format_bytes(found.rows_in_ram)} for clients' rows "
        f"({format_bytes(found.row)} each, about {found.seen:,.0f} clients seen; memory_budget {config.memory_budget:g} MB)",
        "disk": f"at most about {format_bytes(found.disk)} in the run folder",
        "time": f"about {format_duration(found.round_seconds)} a round, {format_duration(total)} in all "
        f"({1000 * found.step_seconds:.1f} ms a local step, {found.workers} of them at a time)",
    }
    table = Table.grid(padding=(0, 2))
    for name, text in lines.items():
        table.add_row(name, text)
    console.print(table)
    console.print("Nothing was trained or written; leave out --dry-run to start.")


def show_evaluation(console: Console, found: Record) -> None:
    """The outcome of `Experiment.examine`: single numbers, then tables by class and by client."""
    by = {name: values for name, values in found.items() if isinstance(values, dict)}
    console.print(
        "  ".join(f"{name} {value:.4f}" for name, value in found.items() if name not in by),
        soft_wrap=True,
    )
    console.print(make_value_table("class", {"accuracy": by["by_class"]}))
    tuned = (
        {"after fine-tuning": by["by_client_fine_tuned"]} if "by_client_fine_tuned" in by else {}
    )
    console.print(make_value_table("client", {"accuracy": by["by_client"]} | tuned))


def make_value_table(what: str, values: dict[str, dict[str, float]]) -> Table:
    table = make_table(what, *values)
    for name in next(iter(values.values())):
        table.add_row(name, *(format_metric(column.get(name)) for column in values.values()))
    return table


def accuracies(rows: Sequence[Record]) -> list[float]:
    return [row["accuracy"] for row in rows if row.get("accuracy") is not None]


def tail_mean(values: Sequence[float], count: int = 10) -> float:
    tail = values[-count:]
    return math.fsum(tail) / len(tail)


def format_metric(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def make_table(*names: str) -> Table:
    """A table whose first column stays whole and whose others break long words instead of cutting them off."""
    first, *others = names
    return Table(Column(first, no_wrap=True), *(Column(name, overflow="fold") for name in others))


def make_method_table() -> Table:
    table = make_table(
        "method", "backprops\na step", "down", "up", "memory\na client", "paper", "options"
    )
    for name, cls in METHODS.items():
        cost = cls.cost
        table.add_row(
            name,
            f"{cost.backprops}" + (" + a full pass a round" if cost.full_gradients else ""),
            f"{cost.down} P" + (f" + {cost.down_scalars}" if cost.down_scalars else ""),
            f"{cost.up} P",
            f"{cost.memory} P" if cost.memory else "–",
            cls.paper,
            ", ".join(f.name for f in fields(cls)),
        )
    table.caption = (
        "P: the number of trainable parameters; per client and round, memory held by the server"
    )
    return table


def method_details(name: str) -> Group:
    """One method: what it is, its options, and its values in the presets."""
    cls = method_class(name)
    table = make_table("option", "default", "meaning", "values", *COMMON)
    for f in fields(cls):
        values = ", ".join(f.metadata["choices"]) or describe_range(f.metadata)
        preset = [str(BY_METHOD[p].get(name, {}).get(f.name, "")) for p in COMMON]
        table.add_row(f.name, str(f.default), f.metadata["help"], values, *preset)
    shared = [
        f"preset {p}: " + ", ".join(f"{k} = {v}" for k, v in shared_values(p, name).items())
        for p in COMMON
    ]
    return Group(f"{name}: {cls.__doc__} ({cls.paper})", table, *shared)


def shared_values(preset: str, name: str) -> Record:
    """The preset's settings that are not options of the method."""
    own = {f.name for f in fields(method_class(name))}
    return {k: v for k, v in preset_values(preset, name).items() if k not in own}
