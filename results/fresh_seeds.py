"""Methods and their averaged twins on seeds on which nothing was decided: the tables.

Everything here is over the seeds that all methods of a plan have finished, so that it stays true
while more of the runs are added. `eight_seeds.py` and `cifar.py` have the plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import mean

import run_queue
import store
from paired import (
    AVERAGED,
    SPANS,
    Estimate,
    cpu_seconds,
    difference,
    format_estimate,
    format_interval,
    mean_of_last,
    top_eigenvalue,
    windows,
)
from sections import (
    PageSection,
    compare_command,
    load_runs,
    queue_command,
    rounds_to,
    targets_table,
)

from fedwmsam.comparison.grid import RunSpec
from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs
from fedwmsam.report.summary import ResultRow, summarise
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell, window_cell
from fedwmsam.statistics import mean_spread

OURS = ("fedwmsam", "fedwmsam-plus")
Rows = dict[str, ResultRow]
"""Names of methods, with AVERAGED behind it for the averaged model → rows over the seeds."""
Pair = tuple[str, str]
"""The names of two rows that are compared."""


@dataclass(frozen=True)
class FreshSeeds:
    """A plan with several methods, each at one step size, over several seeds."""

    plan: str
    rivals: tuple[str, ...]
    chosen_by: str | None = None
    """The plan that chose each method's step size; None if all have the same."""

    @cached_property
    def specs(self) -> list[RunSpec]:
        """Return the runs; those of a method whose step size is not chosen yet are missing."""
        return run_queue.QueuedPlan(self.plan, chosen_by=self.chosen_by).run_specs(store.HERE)

    @property
    def command(self) -> str:
        """Return the command that makes the runs."""
        return queue_command(self.plan) if self.chosen_by else compare_command(self.plan)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return all methods, in the order of the tables."""
        return (*self.rivals, *OURS)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Return the rows that are compared: as trained, averaged alike, and FedWMSAM-plus."""
        rivals = self.rivals
        return (
            *(("fedwmsam", rival) for rival in rivals),
            *((f"fedwmsam{AVERAGED}", f"{rival}{AVERAGED}") for rival in rivals),
            *(("fedwmsam-plus", f"{rival}{AVERAGED}") for rival in rivals),
            ("fedwmsam-plus", "fedwmsam"),
            ("fedwmsam-plus", f"fedwmsam{AVERAGED}"),
        )

    def seeds(self, runs: Path) -> tuple[int, ...]:
        """Return the seeds that all methods have finished."""
        rows = complete_rows(self, runs)
        return tuple(rows["fedwmsam"].seeds) if rows else ()

    def is_complete(self, runs: Path) -> bool:
        """Return whether all seeds of the plan are finished."""
        return set(self.seeds(runs)) == {spec.config.seed for spec in self.specs}

    def seeds_text(self, runs: Path) -> str:
        """Return how many of the seeds are complete, and which."""
        return describe_seeds(self.seeds(runs), self.specs)

    def complete_runs(self, loaded: Sequence[LoadedRun]) -> list[LoadedRun]:
        """Return those of the runs whose seed all methods have finished."""
        seeds = self.seeds(loaded[0].path.parent) if loaded else ()
        return [run for run in loaded if run.seed in seeds]

    # Tables

    def method_cells(self, rows: Rows, method: str) -> tuple[str, ...]:
        """Return a method's name, and its step size if each method has its own."""
        return (method, f"{rows[method].config['lr']:g}") if self.chosen_by else (method,)

    @property
    def method_header(self) -> tuple[str, ...]:
        """Return the header of those cells."""
        return ("method", "lr") if self.chosen_by else ("method",)

    def accuracy_tables(self, runs: Path) -> list[TextTable]:
        """Return the table of accuracies, trained and averaged models side by side."""
        rows = complete_rows(self, runs)
        lines = []
        for method in self.methods if rows else ():
            cells = []
            for end in ("", AVERAGED):
                cells += [span_cell(rows[f"{method}{end}"], rounds) for rounds in SPANS]
            lines.append((*self.method_cells(rows, method), *cells))
        columns = [f"last {rounds}" for rounds in SPANS]
        header = (*self.method_header, *columns, *(f"averaged, {column}" for column in columns))
        return self.tables("Accuracy", header, lines, runs)

    def difference_tables(self, runs: Path) -> list[TextTable]:
        """Return the table of the paired differences, and which of them are leads."""
        rows = complete_rows(self, runs)
        lines = []
        for first, second in self.pairs if rows else ():
            estimates = estimate_spans(rows[first], rows[second])
            cells = []
            for value in estimates:
                cells += [format_estimate(value), format_interval(value)]
            shares = window_cell(windows(rows[first], rows[second]))
            name = f"{display_name(first)} − {display_name(second)}"
            lines.append((name, *cells, shares, lead_word(estimates)))
        columns = []
        for rounds in SPANS:
            columns += [f"last {rounds}", "95% interval"]
        header = ("difference", *columns, "windows better / worse", "lead")
        return self.tables("Paired differences", header, lines, runs)

    def target_tables(self, runs: Path, targets: Sequence[float]) -> list[TextTable]:
        """Return the table of the rounds to each target."""
        rows = {display_name(name): row for name, row in complete_rows(self, runs).items()}
        title = f"Rounds until ten of them have this mean accuracy, {self.seeds_text(runs)}"
        return [targets_table(title, rows, targets)] if rows else []

    def cost_tables(self, runs: Path, target: float) -> list[TextTable]:
        """Return the table of what a round costs, and what a target costs in CPU time."""
        rows = complete_rows(self, runs)
        lines = []
        for method in self.methods if rows else ():
            scores = rows[method].scores
            total = scores[0].total
            seconds = mean_spread([cpu_seconds(score.run) for score in scores])
            minutes = [cpu_seconds(s.run) * rounds_to(target)(s.run) / 60 for s in scores]
            lines.append(
                (
                    method,
                    f"{total.bytes / total.rounds / 1e6:.1f}",
                    f"{total.backprops / total.rounds:.0f}",
                    f"{seconds.mean:.2f} ± {seconds.deviation:.2f}",
                    f"{mean(minutes):.1f}" if min(minutes) == min(minutes) else MISSING,
                )
            )
        accuracy = f"{target:g}".removeprefix("0")
        header = (
            "method",
            "MB down + up",
            "backprops",
            "CPU s",
            f"CPU min to a mean of {accuracy}",
        )
        return self.tables("Cost of a round", header, lines, runs)

    def curvature_tables(self, runs: Path) -> list[TextTable]:
        """Return the table of λ₁ of the last models and of their averages."""
        rows = complete_rows(self, runs)
        lines = []
        for method in self.methods if rows else ():
            models = (rows[method], rows[f"{method}{AVERAGED}"])
            cells = [curvature_cell(row) for row in models]
            lines.append((*self.method_cells(rows, method), *cells))
        header = (*self.method_header, "λ₁", "λ₁ of the average")
        return self.tables("λ₁ of the last model", header, lines, runs)

    def tables(
        self, title: str, header: tuple[str, ...], lines: Sequence[tuple[str, ...]], runs: Path
    ) -> list[TextTable]:
        """Return a table whose title names the seeds, or none if it has no lines."""
        title = f"{title}, {self.seeds_text(runs)}"
        return [TextTable(title, header, tuple(lines))] if lines else []

    # Sections

    def accuracy_section(self) -> PageSection:
        """Return the section of the accuracies, which also has the command."""
        return PageSection(self.accuracy_tables, self.command, self.specs)

    def difference_section(self) -> PageSection:
        """Return the section of the paired differences."""
        return PageSection(self.difference_tables)

    def curvature_section(self) -> PageSection:
        """Return the section of λ₁."""
        return PageSection(self.curvature_tables)


@cache
def complete_rows(plan: FreshSeeds, runs: Path) -> Rows:
    """Return the rows of all methods and averages, over the seeds that every method has.

    There are none before the first seed is complete.
    """
    loaded = add_averaged_model_runs(load_runs(plan.specs, runs))
    if not loaded:
        return {}
    (table,) = summarise(loaded).tables
    rows = {row_name(row): row for row in table.rows}
    if {*plan.methods} - rows.keys():
        return {}
    return over_common_seeds(rows)


def over_common_seeds(rows: Rows) -> Rows:
    """Return the rows over the seeds that all of them have; none if there is no such seed."""
    seeds = set.intersection(*(set(row.seeds) for row in rows.values()))
    complete = {}
    for name, row in rows.items():
        scores = tuple(score for score in row.scores if score.run.seed in seeds)
        complete[name] = replace(row, scores=scores)
    return complete if seeds else {}


def describe_seeds(seeds: Sequence[int], specs: Sequence[RunSpec]) -> str:
    """Return which seeds there are, and how many of those that are planned."""
    planned = {spec.config.seed for spec in specs}
    listed = ", ".join(map(str, seeds))
    if len(seeds) == len(planned):
        return f"seeds {listed}"
    return f"{len(seeds)} of {len(planned)} seeds so far: {listed}"


def row_name(row: ResultRow) -> str:
    """Return the method of a row, with AVERAGED behind it if the row is of averaged models."""
    return f"{row.method}{AVERAGED if row.is_averaged_model else ''}"


def display_name(name: str) -> str:
    """Return the name of a row as tables print it."""
    return name.replace(AVERAGED, ", averaged")


def span_cell(row: ResultRow, rounds: int) -> str:
    """Return mean ± deviation over the seeds of the mean of so many last rounds."""
    quantity = mean_of_last(rounds)
    return spread_cell(mean_spread([quantity(score.run) for score in row.scores]))


def curvature_cell(row: ResultRow) -> str:
    """Return mean ± deviation over the seeds of λ₁."""
    spread = mean_spread([top_eigenvalue(score.run) for score in row.scores])
    return f"{spread.mean:.3g} ± {spread.deviation:.2g}" if spread.n > 1 else f"{spread.mean:.3g}"


def estimate_spans(first: ResultRow, second: ResultRow) -> list[Estimate]:
    """Return the differences of two rows in the means of the last 50 and of the last ten."""
    return [difference(first, second, mean_of_last(rounds)) for rounds in SPANS]


def lead_word(estimates: Sequence[Estimate]) -> str:
    """Return who leads, by the rule: both intervals leave out zero, on the same side."""
    if all(value.is_above for value in estimates):
        return "the first"
    if all(value.is_below for value in estimates):
        return "the second"
    return "open"
