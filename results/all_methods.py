"""Every method of the library once: the table of docs/results/all-methods.md."""

import math
from pathlib import Path

from paired import top_eigenvalue
from sections import PageSection, compare_command, load_run_specs, load_runs
from tuned import chosen_steps

from fedwmsam.report.runs import LoadedRun, add_averaged_model_runs
from fedwmsam.report.summary import Goal, find_cost_to_target, score_run
from fedwmsam.report.text_tables import MISSING, TextTable, number_cell

PLAN = "all-methods.toml"
SPECS = load_run_specs(PLAN)
EVALUATED_ROUNDS = 2
"""Rounds from one evaluation of these runs to the next."""
GOAL = Goal("accuracy", True, (0.8,), target_window=10 // EVALUATED_ROUNDS)
"""The mean of ten rounds, as elsewhere."""


def make_tables(runs: Path) -> list[TextTable]:
    """Return one table with a row for each method whose run has ended, the most accurate first."""
    loaded = load_runs(SPECS, runs)
    rows = sorted(map(method_row, loaded), key=lambda row: row[3], reverse=True)
    header = (
        "method",
        "lr",
        "lr is",
        "mean of last ten",
        "averaged twin",
        "rounds to .80",
        "λ₁",
    )
    notes = (
        "Mean of last ten: of the evaluations after every second round, so of rounds 182 to 200. "
        "Rounds to .80: until ten rounds have that mean.",
        "lr is tuned where five step sizes were tried on validation data, else published.",
    )
    return [TextTable("200 rounds, one seed", header, tuple(rows), notes)] if rows else []


def method_row(run: LoadedRun) -> tuple[str, ...]:
    """Return the row of a method's run."""
    method = run.config["method"]
    name_and_step = (method, f"{run.config['lr']:g}", step_origin(method))
    if not run.is_usable:
        return (*name_and_step, str(run.status), MISSING, MISSING, MISSING)
    model, *average = add_averaged_model_runs([run])
    cost = find_cost_to_target(model, 0.8, GOAL)
    sharpness = top_eigenvalue(model)
    return (
        *name_and_step,
        number_cell(score_run(model, GOAL).tail),
        number_cell(score_run(average[0], GOAL).tail) if average else MISSING,
        f"{cost.rounds:.0f}" if cost else "not reached",
        MISSING if math.isnan(sharpness) else f"{sharpness:.3g}",
    )


def step_origin(method: str) -> str:
    """Return where the step size of a method comes from."""
    return "tuned" if method in chosen_steps() else "published"


TABLE = PageSection(make_tables, compare_command(PLAN), SPECS)
