"""Tables with a row for each method and a column for each value of an option."""

import math
from collections.abc import Callable, Mapping, Sequence

import run_queue
from paired import top_eigenvalue

from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.summary import Goal, find_cost_to_target
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.statistics import mean_spread

CellFunction = Callable[[Sequence[LoadedRun]], str]
"""Makes a cell of the runs of all seeds."""


def pivot(
    title: str,
    runs: Sequence[LoadedRun],
    option: str,
    make_cell: CellFunction,
    steps: Mapping[str, float] | None = None,
) -> TextTable:
    """Return a table with a row for each method and a column for each value of the option.

    Of a table of step sizes, the one that `steps` has for a method is bold.
    """
    methods = list(dict.fromkeys(run.config["method"] for run in runs))
    values = list(dict.fromkeys(run.config[option] for run in runs))
    rows = []
    bold = set()
    for number, method in enumerate(methods):
        cells = []
        for column, value in enumerate(values):
            members = [
                run
                for run in runs
                if run.config["method"] == method and run.config[option] == value
            ]
            cells.append(make_cell(members))
            if steps and option == "lr" and math.isclose(value, steps.get(method, math.nan)):
                bold.add((number, column + 1))
        rows.append((method, *cells))
    header = ("method", *(f"{option} {format_value(value)}" for value in values))
    return TextTable(title, header, tuple(rows), bold_cells=frozenset(bold))


def format_value(value: object) -> str:
    """Return an option's value as a header has it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def mean_of_tail(run: LoadedRun, column: str = "validation_accuracy") -> float:
    """Return the mean of a run's last ten evaluations."""
    values = list(run.values_by_round(column).values())[-run_queue.TAIL :]
    return sum(values) / len(values)


def tail_cell(column: str) -> CellFunction:
    """Return the function for mean ± deviation over the seeds of the last ten evaluations."""

    def make_cell(runs: Sequence[LoadedRun]) -> str:
        means = [mean_of_tail(run, column) for run in runs]
        return spread_cell(mean_spread(means)) if means else MISSING

    return make_cell


def curvature_cell(runs: Sequence[LoadedRun]) -> str:
    """Return λ₁ of the last models, for each seed."""
    return ", ".join(f"{top_eigenvalue(run):.3g}" for run in runs) or MISSING


def rounds_cell(column: str, target: float) -> CellFunction:
    """Return the function for the rounds until ten of them have this mean, for each seed."""

    def make_cell(runs: Sequence[LoadedRun]) -> str:
        cells = []
        for run in runs:
            window = 10 // int(run.config["evaluate_every"])
            goal = Goal(column, True, (target,), target_window=window)
            cost = find_cost_to_target(run, target, goal)
            cells.append(f"{cost.rounds:.0f}" if cost else MISSING)
        return ", ".join(cells) or MISSING

    return make_cell
