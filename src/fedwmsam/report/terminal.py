"""The terminal: live displays of runs, comparisons and analyses, and tables when they are done."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from fedwmsam.comparison.estimate import ComparisonEstimate
from fedwmsam.comparison.grid import Grid
from fedwmsam.comparison.queue import QueuedRun, estimate_seconds_left
from fedwmsam.engine.estimate import RunEstimate
from fedwmsam.engine.records import Record
from fedwmsam.engine.run import Progress
from fedwmsam.errors import format_duration, format_privacy_guarantee, printable
from fedwmsam.experiment.experiment import Experiment
from fedwmsam.experiment.progress import format_metrics, make_bar
from fedwmsam.experiment.result import Result
from fedwmsam.methods import METHODS, method_class
from fedwmsam.report.text_tables import TextTable
from fedwmsam.settings.config import Settings, requested_method
from fedwmsam.settings.method_table import METHOD_TABLE, registered_methods
from fedwmsam.settings.options import describe_range
from fedwmsam.settings.presets import BY_METHOD, PRESET_SETTINGS, preset_values

LONG = 3600
"""Seconds from which on a comparison is told how it would take less."""
SHARE_OF_ROUNDS = 4
"""By how much the rounds are divided in what such a comparison is told."""


class LiveDisplay:
    """A display of what is going on.

    On a terminal it is redrawn in place; elsewhere a line is printed now and then. If it is quiet,
    nothing is shown.
    """

    def __init__(self, console: Console, quiet: bool, line_interval: float = 15.0) -> None:
        self.console = console
        self.quiet = quiet
        self.line_interval = line_interval
        """Seconds between lines where there is no terminal."""
        self.live: Live | None = None
        if console.is_terminal and not quiet:
            self.live = Live(console=console, refresh_per_second=4)
        self.last_line_time = -math.inf

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
            self.console.print(printable(text), soft_wrap=True)

    def show(self, renderable: RenderableType, line: str, at_once: bool = False) -> None:
        """Redraw the display, or print the line if it is time for one.

        With `at_once` the line does not wait for that.
        """
        now = time.monotonic()
        if self.live:
            self.live.update(renderable)
        elif at_once or now - self.last_line_time > self.line_interval:
            self.say(line)
            self.last_line_time = now


class RunDisplay(LiveDisplay):
    """The display of a run: a bar with round, accuracy, loss, α and the time left."""

    def __init__(self, console: Console, experiment: Experiment, folder: Path, quiet: bool) -> None:
        super().__init__(console, quiet, line_interval=5.0)
        config = experiment.config
        self.rounds = config.rounds
        self.say(
            f"{config.method} on {config.dataset} ({experiment.dataset.source}), "
            f"{experiment.task.parameter_count:,} parameters"
        )
        self.say(experiment.partition.describe())
        self.say(f"Run folder: {folder}")
        self.bar = make_bar()
        self.task = self.bar.add_task("", total=self.rounds)

    def update(self, progress: Progress) -> None:
        """Show the round that was just completed."""
        round = progress.record["round"]
        metrics = format_metrics(progress.record, ("accuracy", "loss", "alpha"))
        self.bar.update(self.task, completed=round, description=metrics)
        line = f"round {round}/{self.rounds}  {metrics}"
        self.show(self.bar, line, at_once=round == self.rounds)


class QueueDisplay(LiveDisplay):
    """The display of a comparison: a bar over all rounds, and a line for each active run."""

    def __init__(self, console: Console, quiet: bool, runs: Sequence[QueuedRun], jobs: int) -> None:
        super().__init__(console, quiet)
        self.runs = runs
        self.jobs = jobs
        finished = sum(run.is_finished for run in runs)
        self.say(f"{len(runs)} runs, {finished} of them done before, {jobs} at a time")

    def update(self) -> None:
        """Show how far the runs have come."""
        is_last = all(run.is_finished for run in self.runs)
        self.show(self.render(), self.summary(), at_once=is_last)

    def count_rounds(self) -> tuple[int, int]:
        """Return how many rounds are done, and how many there are in all.

        All rounds of a finished run count as done, however early it ended.
        """
        done = sum(run.rounds if run.is_finished else run.rounds_done for run in self.runs)
        return done, sum(run.rounds for run in self.runs)

    def summary(self) -> str:
        """Return one line with the runs and rounds done and the time left."""
        done, total = self.count_rounds()
        finished = sum(run.is_finished for run in self.runs)
        seconds = estimate_seconds_left(self.runs, self.jobs)
        time_left = f", about {format_duration(seconds)} left" if seconds else ""
        return f"{finished} of {len(self.runs)} runs, {done:,} of {total:,} rounds{time_left}"

    def render(self) -> Group:
        """Return the bar, the summary and the table of the active runs."""
        done, total = self.count_rounds()
        table = Table.grid(padding=(0, 2))
        for run in self.runs:
            if run.status == "running":
                table.add_row(
                    run.spec.label,
                    f"seed {run.spec.config.seed}",
                    f"round {run.rounds_done}/{run.rounds}",
                    format_metrics(run.last_record, ("accuracy", "loss")),
                )
        return Group(ProgressBar(total=total, completed=done), Text(self.summary()), table)


class AnalysisDisplay(LiveDisplay):
    """The display of an analysis: one line that says what is being computed."""

    def __init__(self, console: Console, quiet: bool) -> None:
        super().__init__(console, quiet)
        # An analysis that is done before the first interval is over needs no line.
        self.last_line_time = time.monotonic()

    def update(self, text: str) -> None:
        """Show what is being computed now."""
        self.show(Spinner("dots", text=text), text)


class ComparisonDisplay:
    """The messages and the live display of a comparison on the terminal."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self.console = console
        self.quiet = quiet

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line, however long."""
        self.console.print(printable(text, 10_000), style=style, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line unless the display is quiet."""
        if not self.quiet:
            self.say(text)

    @contextmanager
    def track_progress(self, runs: Sequence[QueuedRun], jobs: int) -> Iterator[Callable[[], None]]:
        """Show the runs, and yield the function that is called whenever one of them changes."""
        with QueueDisplay(self.console, self.quiet, runs, jobs) as display:
            yield display.update


# Results


def print_result(console: Console, result: Result) -> None:
    """Print the results of a run and where they are saved."""

    def say(text: str) -> None:
        console.print(printable(text), soft_wrap=True)

    values = accuracies(result.rows)
    say("")
    say(f"{result.status.capitalize()} after {result.rounds} rounds, {result.seconds:.0f} s.")
    if values:
        count = min(10, len(values))
        tail = f"{tail_mean(values):.4f} mean of the last {count} evaluations"
        say(f"Test accuracy: {values[-1]:.4f} last, {tail}")
    averaged = result.last("averaged_accuracy")
    if averaged is not None:
        say(f"Averaged twin: test accuracy {averaged:.4f} last")
    if result.best_round is not None:
        best = result.rows[result.best_round - 1].get("accuracy", math.nan)
        say(f"Best by validation: round {result.best_round}, test accuracy {best:.4f}")
    epsilon = result.rows[-1].get("epsilon") if result.rows else None
    if epsilon is not None:
        guarantee = format_privacy_guarantee(epsilon, result.config["dp_delta"])
        say(f"Differential privacy for clients: {guarantee}")
    if result.rows:
        traffic = format_bytes(sum(row["bytes_down"] + row["bytes_up"] for row in result.rows))
        backprops = sum(row["backprops"] for row in result.rows)
        say(f"Communication: {traffic}; backprops: {backprops:,}")
    say(f"Model, metrics and configuration: {result.folder}")


def print_text_tables(console: Console, text_tables: Sequence[TextTable]) -> None:
    """Print tables of text, each with its notes."""
    for text_table in text_tables:
        console.print(text_table.title, style="bold", soft_wrap=True)
        console.print(render_cells(text_table))
        for note in text_table.notes:
            console.print(f"- {note}", soft_wrap=True)
        console.print()


def render_cells(text_table: TextTable) -> Table:
    """Return the cells of a table of text, without its title and notes."""
    table = make_rich_table(*text_table.header)
    for row in text_table.format_rows(Text, lambda cell: Text(cell, "bold")):
        table.add_row(*row)
    return table


def render_text_table(text_table: TextTable) -> Group:
    """Return a table of text with its title and notes, for a display that is redrawn."""
    notes = [Text(f"- {note}") for note in text_table.notes]
    return Group(Text(text_table.title, "bold"), render_cells(text_table), *notes)


def show_estimate(console: Console, estimate: RunEstimate, config: Settings) -> None:
    """Print what a run that was not started would take."""
    table = Table.grid(padding=(0, 2))
    for name, text in estimate_lines(estimate, config).items():
        table.add_row(name, text)
    console.print(table)
    console.print("Nothing was trained or written; leave out --dry-run to start.")


def estimate_lines(estimate: RunEstimate, config: Settings) -> dict[str, str]:
    """Return what a run would take, in words, by the kind of resource."""
    rounds = estimate.rounds
    model_bytes = estimate.parameters * estimate.dtype.itemsize
    traffic = estimate.cohort * (estimate.bytes_down + estimate.bytes_up)
    seconds = rounds * estimate.round_seconds
    held = ""
    if estimate.process_bytes is not None:
        held = f"{format_bytes(estimate.process_bytes)} this process has held so far, "
    return {
        "model": f"{estimate.parameters:,} trainable parameters, {format_bytes(model_bytes)}",
        "round": f"{estimate.cohort:,} of {estimate.clients:,} clients, "
        f"{estimate.steps:,.0f} local steps each on average",
        "traffic": f"{format_bytes(estimate.bytes_down)} down and "
        f"{format_bytes(estimate.bytes_up)} up a client, {format_bytes(traffic)} a round, "
        f"{format_bytes(traffic * rounds)} in {rounds:,} rounds",
        "memory": f"{held}{format_bytes(estimate.row_bytes_in_ram)} for clients' rows "
        f"({format_bytes(estimate.row_bytes)} each, about {estimate.participants:,.0f} clients "
        f"seen; memory_budget {config.memory_budget:g} MB)",
        "disk": f"at most about {format_bytes(estimate.disk_bytes)} in the run folder",
        "time": f"about {format_duration(estimate.round_seconds)} a round, "
        f"{format_duration(seconds)} in all ({1000 * estimate.step_seconds:.1f} ms a local step, "
        f"{estimate.workers} of them at a time; {format_duration(estimate.evaluate_seconds)} an "
        "evaluation) if the machine stays as busy as it is now",
    }


def show_comparison_estimate(console: Console, estimate: ComparisonEstimate, grid: Grid) -> None:
    """Print what a comparison that was not started would take, by method and in all."""
    table = make_rich_table("method", "runs", "rounds", "a round", "one at a time", "disk")
    for method in estimate.methods:
        table.add_row(
            method.method,
            f"{method.runs:,}",
            f"{method.rounds:,}",
            format_duration(method.seconds / max(1, method.rounds)),
            format_duration(method.seconds),
            format_bytes(method.disk_bytes),
        )
    console.print(table)
    for line in comparison_estimate_lines(estimate, grid):
        console.print(printable(line), soft_wrap=True)
    console.print("Nothing was trained or written; leave out --dry-run to start.")


def comparison_estimate_lines(estimate: ComparisonEstimate, grid: Grid) -> Iterator[str]:
    """Yield what a comparison will take, and how it takes less if that is more than an hour."""
    if not estimate.runs:
        yield f"All {estimate.done:,} runs are done."
        return
    seeds = f"seed {grid.seeds[0]}" if len(grid.seeds) == 1 else f"{len(grid.seeds):,} seeds"
    done = f", {estimate.done:,} more are done" if estimate.done else ""
    is_short = estimate.seconds < 60  # the processes take seconds to start, which no probe measures
    duration = "less than a minute" if is_short else f"about {format_duration(estimate.seconds)}"
    yield (
        f"{estimate.runs:,} runs ahead ({seeds}{done}), {estimate.rounds:,} rounds: "
        f"{duration}, {estimate.jobs} at a time; at most about "
        f"{format_bytes(estimate.disk_bytes)} on disk."
    )
    if estimate.seconds > LONG:
        yield f"To make it smaller: {', '.join(ways_to_shorten(estimate, grid))}."


def ways_to_shorten(estimate: ComparisonEstimate, grid: Grid) -> Iterator[str]:
    """Yield flags that make a comparison shorter, each with the time that it would take then."""
    fewer = 3 if len(grid.seeds) > 3 else 1
    if len(grid.seeds) > fewer:
        flag = f"--seeds {fewer}" if fewer > 1 else f"--seed {grid.seeds[0]}"
        yield f"{flag} ({format_duration(estimate.seconds * fewer / len(grid.seeds))})"
    rounds = estimate.rounds // estimate.runs
    if rounds >= SHARE_OF_ROUNDS:
        shorter = format_duration(estimate.seconds / SHARE_OF_ROUNDS)
        yield f"--rounds {rounds // SHARE_OF_ROUNDS} ({shorter})"
    if len(estimate.methods) > 2:
        names = ",".join(method.method for method in estimate.methods[:2])
        share = sum(method.seconds for method in estimate.methods[:2])
        total = sum(method.seconds for method in estimate.methods)
        yield f"--methods {names} ({format_duration(estimate.seconds * share / total)})"
    for key, values in grid.axes.items():
        if len(values) > 1:
            yield f"fewer than {len(values)} values of {key}"


def show_evaluation(console: Console, evaluation: Record) -> None:
    """Print the metrics of `Experiment.evaluate_breakdown`, then tables by class and by client."""
    breakdowns = {name: value for name, value in evaluation.items() if isinstance(value, dict)}
    metrics = {name: value for name, value in evaluation.items() if name not in breakdowns}
    line = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    console.print(printable(line), soft_wrap=True)
    console.print(make_value_table("class", {"accuracy": breakdowns["by_class"]}))
    client_columns = {"accuracy": breakdowns["by_client"]}
    if "by_client_fine_tuned" in breakdowns:
        client_columns["after fine-tuning"] = breakdowns["by_client_fine_tuned"]
    console.print(make_value_table("client", client_columns))


def make_value_table(row_kind: str, columns: dict[str, dict[str, float]]) -> Table:
    """Return a table with a row for each key of the columns, such as a class or a client."""
    table = make_rich_table(row_kind, *columns)
    for name in next(iter(columns.values())):
        table.add_row(
            printable(name), *(format_metric(values.get(name)) for values in columns.values())
        )
    return table


def accuracies(records: Sequence[Record]) -> list[float]:
    """Return the test accuracies of the rounds that were evaluated."""
    return [record["accuracy"] for record in records if record.get("accuracy") is not None]


def tail_mean(values: Sequence[float], count: int = 10) -> float:
    """Return the mean of the last values, of all if there are fewer."""
    tail = values[-count:]
    return math.fsum(tail) / len(tail)


# Formats


def format_metric(value: float | None) -> str:
    """Return a metric with four decimals, a dash if there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def format_bytes(count: float) -> str:
    """Return a number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def make_rich_table(*names: str) -> Table:
    """Return an empty table for the terminal.

    Its first column is never wrapped; the others break long words instead of cutting them off.
    """
    first, *others = names
    return Table(Column(first, no_wrap=True), *(Column(name, overflow="fold") for name in others))


# Methods


OTHER_PACKAGES = "of installed packages"
"""Heads the methods that are not the library's, in the place of an idea."""


def list_methods() -> Group:
    """Return the list of all methods by idea, those of installed packages last.

    A method has a line with its costs and its paper, and one that says when to use it.
    """
    names = [*METHODS, *registered_methods()]
    width = max(map(len, names))
    heads = method_line("method", width, "backprops", "down", "up", "memory", "paper")
    lines: list[RenderableType] = []
    idea = ""
    for name in names:
        entry = METHOD_TABLE.get(name)
        before = idea
        idea = entry.idea if entry else OTHER_PACKAGES
        if idea != before:
            lines += [Text(f"\n{idea}" if before else idea, style="bold"), heads]
        lines.append(method_line(name, width, *describe_costs(name)))
        if entry:
            lines.append(Padding(entry.use, (0, 0, 0, 4), expand=False))
    lines.append(
        "\nBackprops are those of a local step; a pass is one over the client's data in a round. "
        "Down and up are per client and round, memory per client, held by the server. "
        "P is the number of trainable parameters. Options: fedwmsam methods NAME"
    )
    return Group(*lines)


def method_line(
    name: str, width: int, backprops: str, down: str, up: str, memory: str, paper: str
) -> str:
    """Return a line of the list of methods whose names are up to so many letters long."""
    return f"  {name:<{width}}  {backprops:<9}  {down:<7}  {up:<3}  {memory:<7}  {paper}"


def describe_costs(name: str) -> tuple[str, str, str, str, str]:
    """Return a method's backprops a step, what travels down and up, its memory, and its paper."""
    cls = method_class(name)
    cost = cls.cost
    return (
        f"{cost.backprops}" + (" + pass" if cost.full_gradients else ""),
        describe_traffic(cost.down, cost.down_scalars),
        describe_traffic(cost.up),
        describe_traffic(cost.memory, cost.memory_scalars) if cost.memory else "–",
        cls.paper,
    )


def describe_traffic(vectors: int, scalars: int = 0) -> str:
    """Return a number of vectors of P parameters and of single numbers, such as "2 P + 1"."""
    return ("P" if vectors == 1 else f"{vectors} P") + (f" + {scalars}" if scalars else "")


def method_details(name: str) -> Group:
    """Return what is printed about one method: its summary, options and values in the presets.

    Of a method of the library also its idea and when to use it. The user has named the method, so
    that it may be imported.
    """
    name = requested_method({"method": name})
    cls = method_class(name)
    table = make_rich_table("option", "default", "meaning", "values", *PRESET_SETTINGS)
    for f in fields(cls):
        values = ", ".join(f.metadata["choices"]) or describe_range(f.metadata)
        preset_cells = [str(BY_METHOD[p].get(name, {}).get(f.name, "")) for p in PRESET_SETTINGS]
        table.add_row(f.name, str(f.default), f.metadata["help"], values, *preset_cells)
    presets = [describe_preset(preset, name) for preset in PRESET_SETTINGS]
    summary = " ".join((cls.__doc__ or "").split())
    lines = [f"{name}: {summary} ({cls.paper})"]
    if name in METHOD_TABLE:
        entry = METHOD_TABLE[name]
        lines.append(f"Idea: {entry.idea}. Use it {entry.use}.")
    return Group(*lines, table, *presets)


def describe_preset(preset: str, method: str) -> str:
    """Return the preset's settings that are not options of the method, in one line."""
    options = {f.name for f in fields(method_class(method))}
    values = preset_values(preset, method)
    settings = [f"{key} = {value}" for key, value in values.items() if key not in options]
    return f"preset {preset}: {', '.join(settings)}"
