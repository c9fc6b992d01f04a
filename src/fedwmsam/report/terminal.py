"""Runs in the terminal: progress while they go, tables when they are done."""

import math
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from fedwmsam.engine.estimate import Estimate
from fedwmsam.engine.records import Record
from fedwmsam.engine.run import Progress as RoundProgress
from fedwmsam.errors import duration, guarantee
from fedwmsam.experiment.result import Result
from fedwmsam.methods import METHODS, method_class
from fedwmsam.report.sheets import Sheet
from fedwmsam.settings.config import Settings
from fedwmsam.settings.options import limits
from fedwmsam.settings.presets import BY_METHOD, COMMON, preset_values


class Display:
    """A bar with round, accuracy, loss, α and time left on a terminal; a line now and then elsewhere."""

    def __init__(self, console: Console, experiment: Any, folder: Path, quiet: bool) -> None:
        self.console, self.quiet, self.rounds = console, quiet, experiment.config.rounds
        self.bar: Progress | None = None
        self.last_line = -math.inf
        if not quiet:
            say = partial(console.print, soft_wrap=True)
            config, data = experiment.config, experiment.dataset
            say(f"{config.method} on {config.dataset} ({data.source}), {experiment.task.size:,} parameters")
            say(experiment.partition.describe())
            say(f"Run folder: {folder}")
        if console.is_terminal and not quiet:
            self.bar = Progress(
                TextColumn("round {task.completed:.0f}/{task.total:.0f}"), BarColumn(bar_width=None),
                TextColumn("{task.description}"), TimeRemainingColumn(), console=console,
            )  # fmt: skip

    def __enter__(self) -> "Display":
        if self.bar:
            self.bar.start()
            self.task = self.bar.add_task("", total=self.rounds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, progress: RoundProgress) -> None:
        record = progress.record
        shown = [f"{name} {record[name]:.4f}" for name in ("accuracy", "loss", "alpha") if record.get(name) is not None]
        if self.bar:
            self.bar.update(self.task, completed=record["round"], description="  ".join(shown))
        elif not self.quiet and (time.monotonic() - self.last_line > 5 or record["round"] == self.rounds):
            self.console.print(f"round {record['round']}/{self.rounds}  {'  '.join(shown)}")
            self.last_line = time.monotonic()


def summarise(console: Console, result: Result) -> None:
    """What was reached and where it is."""
    say = partial(console.print, soft_wrap=True)
    values = accuracies(result.rows)
    say(f"\n{result.status.capitalize()} after {result.rounds} rounds, {result.seconds:.0f} s.")
    if values:
        count = min(10, len(values))
        say(f"Test accuracy: {values[-1]:.4f} last, {tail_mean(values):.4f} mean of the last {count} evaluations")
    averaged = result.last("averaged_accuracy")
    if averaged is not None:
        say(f"Averaged twin: test accuracy {averaged:.4f} last")
    if result.best_round is not None:
        best = result.rows[result.best_round - 1].get("accuracy", math.nan)
        say(f"Best by validation: round {result.best_round}, test accuracy {best:.4f}")
    epsilon = result.rows[-1].get("epsilon") if result.rows else None
    if epsilon is not None:
        say(f"Differential privacy for clients: {guarantee(epsilon, result.config['dp_delta'])}")
    if result.rows:
        traffic = size(sum(row["bytes_down"] + row["bytes_up"] for row in result.rows))
        say(f"Communication: {traffic}; backprops: {sum(row['backprops'] for row in result.rows):,}")
    say(f"Model, metrics and configuration: {result.folder}")


def show_sheets(console: Console, sheets: Sequence[Sheet]) -> None:
    """The tables of a report, each with what must be known to read it."""
    for sheet in sheets:
        console.print(sheet.title, style="bold", soft_wrap=True)
        table = folding(*sheet.header)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
        for note in sheet.notes:
            console.print(f"- {note}", soft_wrap=True)
        console.print()


def show_estimate(console: Console, found: Estimate, config: Settings) -> None:
    """The plan of a run that was not started."""
    total = found.rounds * found.round_seconds
    traffic = found.cohort * (found.bytes_down + found.bytes_up)
    lines = {
        "model": f"{found.parameters:,} trainable parameters, {size(found.parameters * found.bytes_each)}",
        "round": f"{found.cohort:,} of {found.clients:,} clients, {found.steps:,.0f} local steps each on average",
        "traffic": f"{size(found.bytes_down)} down and {size(found.bytes_up)} up a client, {size(traffic)} a round, "
        f"{size(traffic * found.rounds)} in {found.rounds:,} rounds",
        "memory": f"{size(found.process)} this process has held so far, {size(found.rows_in_ram)} for clients' rows "
        f"({size(found.row)} each, about {found.seen:,.0f} clients seen; memory_budget {config.memory_budget:g} MB)",
        "disk": f"at most about {size(found.disk)} in the run folder",
        "time": f"about {duration(found.round_seconds)} a round, {duration(total)} in all "
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
    console.print("  ".join(f"{name} {value:.4f}" for name, value in found.items() if name not in by), soft_wrap=True)
    console.print(columns("class", {"accuracy": by["by_class"]}))
    tuned = {"after fine-tuning": by["by_client_fine_tuned"]} if "by_client_fine_tuned" in by else {}
    console.print(columns("client", {"accuracy": by["by_client"]} | tuned))


def columns(what: str, values: dict[str, dict[str, float]]) -> Table:
    table = folding(what, *values)
    for name in next(iter(values.values())):
        table.add_row(name, *(number(column.get(name)) for column in values.values()))
    return table


def accuracies(rows: Sequence[Record]) -> list[float]:
    return [row["accuracy"] for row in rows if row.get("accuracy") is not None]


def tail_mean(values: Sequence[float], count: int = 10) -> float:
    tail = values[-count:]
    return math.fsum(tail) / len(tail)


def number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def folding(*names: str) -> Table:
    """A table whose first column stays whole and whose others break long words instead of cutting them off."""
    first, *others = names
    return Table(Column(first, no_wrap=True), *(Column(name, overflow="fold") for name in others))


def method_table() -> Table:
    table = folding("method", "backprops\na step", "down", "up", "memory\na client", "paper", "options")
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
    table.caption = "P: the number of trainable parameters; per client and round, memory held by the server"
    return table


def method_details(name: str) -> Group:
    """One method: what it is, its options, and its values in the presets."""
    cls = method_class(name)
    table = folding("option", "default", "meaning", "values", *COMMON)
    for f in fields(cls):
        values = ", ".join(f.metadata["choices"]) or limits(f.metadata)
        preset = [str(BY_METHOD[p].get(name, {}).get(f.name, "")) for p in COMMON]
        table.add_row(f.name, str(f.default), f.metadata["help"], values, *preset)
    shared = [f"preset {p}: " + ", ".join(f"{k} = {v}" for k, v in shared_values(p, name).items()) for p in COMMON]
    return Group(f"{name}: {cls.__doc__} ({cls.paper})", table, *shared)


def shared_values(preset: str, name: str) -> Record:
    """The preset's settings that are not options of the method."""
    own = {f.name for f in fields(method_class(name))}
    return {k: v for k, v in preset_values(preset, name).items() if k not in own}
