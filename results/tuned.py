"""Step sizes, weight decay and radii that were tried on validation data: the tables."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import run_queue
import store
from pivots import curvature_cell, pivot, rounds_cell, tail_cell
from sections import PageSection, compare_command, load_runs, queue_command

from fedwmsam.comparison.grid import RunSpec
from fedwmsam.report.text_tables import TextTable

STEP_PLAN = "tuning-step-size.toml"
SCORE = "validation_accuracy"
"""The column by which everything here is chosen."""


def chosen_steps(plan: str = STEP_PLAN) -> dict[str, float]:
    """Return the step size that a plan of step sizes chose for each method."""
    return run_queue.best_steps(plan, store.HERE)


def chosen_specs(plan: str) -> list[RunSpec]:
    """Return the runs of a plan at the step sizes that were chosen."""
    return run_queue.load_run_specs(plan, chosen_steps())


def step_tables(runs: Path, plan: str, target: float) -> list[TextTable]:
    """Return the tables of a plan of step sizes."""
    loaded = load_runs(run_queue.load_run_specs(plan), runs)
    if not loaded:
        return []
    rounds = loaded[0].config["rounds"]
    accuracy = f"{target:.2f}".removeprefix("0")
    tables = {
        "Validation accuracy, the chosen step in bold": tail_cell(SCORE),
        "The same of the averaged models, which chose nothing": tail_cell(f"averaged_{SCORE}"),
        f"λ₁ after {rounds} rounds, by seed": curvature_cell,
        f"Rounds until ten of them have a mean of {accuracy}, by seed": rounds_cell(SCORE, target),
    }
    steps = chosen_steps(plan)
    return [pivot(title, loaded, "lr", make_cell, steps) for title, make_cell in tables.items()]


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
        pivot("Validation accuracy, by weight decay", loaded, "weight_decay", tail_cell(SCORE)),
        pivot("λ₁ by weight decay, by seed", loaded, "weight_decay", curvature_cell),
    ]


def radius_tables(runs: Path) -> list[TextTable]:
    """Return the tables of the radius ρ, at the chosen step sizes."""
    loaded = load_runs(chosen_specs("tuning-radius.toml"), runs)
    return [
        pivot("Validation accuracy, by ρ", loaded, "rho", tail_cell(SCORE)),
        pivot("λ₁ by ρ, by seed", loaded, "rho", curvature_cell),
    ]


def step_section(plan: str, target: float) -> PageSection:
    """Return the section of a plan of step sizes, with the rounds to a target."""
    make_tables = partial(step_tables, plan=plan, target=target)
    return PageSection(make_tables, compare_command(plan), run_queue.load_run_specs(plan))


def chosen_section(plan: str, make_tables: Callable[[Path], Sequence[TextTable]]) -> PageSection:
    """Return the section of a plan whose step sizes the queue sets."""
    return PageSection(make_tables, queue_command(plan), chosen_specs(plan))


STEPS = step_section(STEP_PLAN, 0.8)
DECAY = chosen_section("tuning-decay.toml", decay_tables)
RADII = chosen_section("tuning-radius.toml", radius_tables)
