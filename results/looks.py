"""Plans of one seed, which decide nothing: tables by method, or by method and one option."""

import math
from pathlib import Path

from paired import top_eigenvalue
from pivots import curvature_cell, pivot, rounds_cell, tail_cell
from run_queue import QueuedPlan
from sections import PageSection, compare_command, load_runs, queue_command
from store import HERE

from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs
from fedwmsam.report.summary import Goal, find_cost_to_target, score_run
from fedwmsam.report.text_tables import MISSING, TextTable, number_cell


def option_section(
    plan: str, option: str, target: float, chosen_by: str | None = None
) -> PageSection:
    """Return the section of a plan's methods at several values of one option, on test data."""
    specs = QueuedPlan(plan, chosen_by=chosen_by).run_specs(HERE)
    command = queue_command(plan) if chosen_by else compare_command(plan)

    def make_tables(runs: Path) -> list[TextTable]:
        loaded = load_runs(specs, runs)
        tables = {
            "Accuracy, mean of the last ten evaluations": tail_cell("accuracy"),
            "The same of the averaged models": tail_cell("averaged_accuracy"),
            f"Rounds until ten of them have a mean of {target:g}": rounds_cell("accuracy", target),
            "λ₁ of the last model": curvature_cell,
        }
        return [
            pivot(title, loaded, option, make_cell) for title, make_cell in tables.items() if loaded
        ]

    return PageSection(make_tables, command, specs)


def method_cells(run: LoadedRun, target: float) -> tuple[str, ...]:
    """Return the cells of a method's run: step size, accuracies, rounds to the target, λ₁."""
    name_and_step = (run.config["method"], f"{run.config['lr']:g}")
    if not run.is_usable:
        return (*name_and_step, str(run.status), MISSING, MISSING, MISSING)
    goal = Goal("accuracy", True, (target,), target_window=10 // run.config["evaluate_every"])
    model, *average = add_averaged_model_runs([run])
    cost = find_cost_to_target(model, target, goal)
    sharpness = top_eigenvalue(model)
    return (
        *name_and_step,
        number_cell(score_run(model, goal).tail),
        number_cell(score_run(average[0], goal).tail) if average else MISSING,
        f"{cost.rounds:.0f}" if cost else "not reached",
        MISSING if math.isnan(sharpness) else f"{sharpness:.3g}",
    )


SKEW = option_section("skew.toml", "partition", 0.8, chosen_by="tuning-step-size.toml")
EPOCHS = option_section("epochs.toml", "local_epochs", 0.8)
SHAKESPEARE = option_section("shakespeare.toml", "lr", 0.4)
