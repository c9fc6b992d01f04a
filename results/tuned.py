"""Step sizes, weight decay and radii that were tried on validation data: the tables."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import run_queue
import store
from paired import top_eigenvalue
from sections import PageSection, compare_command, load_runs, queue_command

from fedwmsam.comparison.grid import RunSpec
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.summary import Goal, find_cost_to_target
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.statistics import mean_spread

STEP_PLAN = "tuning-step-size.toml"
EVALUATED_ROUNDS = 2
"""Rounds from one evaluation of these runs to the next."""
TARGET = Goal("validation_accuracy", True, (0.8,), target_window=10 // EVALUATED_ROUNDS)
"""The mean of ten rounds, as elsewhere."""
CellFunction = Callable[[Sequence[LoadedRun]], str]
"""Makes a cell of the runs of both seeds."""


def mean_of_tail(run: LoadedRun, column: str = "validation_accuracy") -> float:
    """Return the mean of a run's last ten evaluations."""
    values = list(run.values_by_round(column).values())[-run_queue.TAIL :]
    return sum(values) / len(values)


def accuracy_cell(runs: Sequence[LoadedRun], column: str = "validation_accuracy") -> str:
    """Return mean ± deviation over the seeds of the mean of the last ten evaluations."""
    means = [mean_of_tail(run, column) for run in runs]
    return spread_cell(mean_spread(means)) if runs else MISSING


def averaged_cell(runs: Sequence[LoadedRun]) -> str:
    """Return the same of the averaged models."""
    return accuracy_cell(runs, "averaged_validation_accuracy")


def curvature_cell(runs: Sequence[LoadedRun]) -> str:
    """Return λ₁ of the last models, for each seed."""
    return ", ".join(f"{top_eigenvalue(run):.3g}" for run in runs) or MISSING


def rounds_cell(runs: Sequence[LoadedRun]) -> str:
    """Return the rounds to a validation accuracy of .80, for each seed."""
    costs = [find_cost_to_target(run, 0.8, TARGET) for run in runs]
    return ", ".join(f"{cost.rounds:.0f}" if cost else MISSING for cost in costs) or MISSING


def chosen_steps() -> dict[str, float]:
    """Return the step size that was chosen for each method."""
    return run_queue.best_steps(STEP_PLAN, store.HERE)


def chosen_specs(plan: str) -> list[RunSpec]:
    """Return the runs of a plan at the step sizes that were chosen."""
    return run_queue.load_run_specs(plan, chosen_steps())


def pivot(title: str, runs: Sequence[LoadedRun], option: str, make_cell: CellFunction) -> TextTable:
    """Return a table with a row for each method and a column for each value of the option."""
    methods = list(dict.fromkeys(run.config["method"] for run in runs))
    values = list(dict.fromkeys(run.config[option] for run in runs))
    steps = chosen_steps()
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
            if option == "lr" and math.isclose(value, steps.get(method, math.nan)):
                bold.add((number, column + 1))
        rows.append((method, *cells))
    header = ("method", *(f"{option} {value:g}" for value in values))
    return TextTable(title, header, tuple(rows), bold_cells=frozenset(bold))


def step_tables(runs: Path) -> list[TextTable]:
    """Return the tables of the step sizes."""
    loaded = load_runs(run_queue.load_run_specs(STEP_PLAN), runs)
    tables = {
        "Validation accuracy, the chosen step in bold": accuracy_cell,
        "The same of the averaged models, which chose nothing": averaged_cell,
        "λ₁ after 150 rounds, by seed": curvature_cell,
        "Rounds until ten of them have a mean of .80, by seed": rounds_cell,
    }
    return [pivot(title, loaded, "lr", make_cell) for title, make_cell in tables.items()]


def decay_tables(runs: Path) -> list[TextTable]:
    """Return the tables of the weight decay, at the chosen step sizes."""
    steps = chosen_steps()
    loaded = [
        run
        for run in load_runs(run_queue.load_run_specs(STEP_PLAN), runs)
        if run.config["lr"] == steps.get(run.config["method"])
    ]
    loaded += load_runs(chosen_specs("tuning-decay.toml"), runs)
    return [
        pivot("Validation accuracy, by weight decay", loaded, "weight_decay", accuracy_cell),
        pivot("λ₁ by weight decay, by seed", loaded, "weight_decay", curvature_cell),
    ]


def radius_tables(runs: Path) -> list[TextTable]:
    """Return the tables of the radius ρ, at the chosen step sizes."""
    loaded = load_runs(chosen_specs("tuning-radius.toml"), runs)
    return [
        pivot("Validation accuracy, by ρ", loaded, "rho", accuracy_cell),
        pivot("λ₁ by ρ, by seed", loaded, "rho", curvature_cell),
    ]


def tuning_section(plan: str, make_tables: Callable[[Path], Sequence[TextTable]]) -> PageSection:
    """Return the section of a plan of the queue, whose step sizes `run_queue.py` sets."""
    if plan == STEP_PLAN:
        return PageSection(make_tables, compare_command(plan), run_queue.load_run_specs(plan))
    return PageSection(make_tables, queue_command(plan), chosen_specs(plan))


STEPS = tuning_section(STEP_PLAN, step_tables)
DECAY = tuning_section("tuning-decay.toml", decay_tables)
RADII = tuning_section("tuning-radius.toml", radius_tables)
