"""Candidates for a method that is accurate and flat, screened on validation data: the tables."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import run_queue
from paired import top_eigenvalue
from pivots import curvature_cell, mean_of_tail
from sections import PLANS, PageSection, compare_command, load_run_specs, load_runs
from tuned import STEP_PLAN

from fedwmsam.comparison.grid import RunSpec
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import TextTable, number_cell

FIRST_PLAN = "candidates-screening.toml"
SECOND_PLAN = "candidates-second.toml"
BAR = {"fedwmsam-plus": 0.3, "scaffold": 0.1}
"""Methods that set the bar → their step sizes: accuracy of the first, λ₁ of the second."""


def first_tables(runs: Path) -> list[TextTable]:
    """Return the table of the screening on one seed."""
    header = ("candidate", "validation accuracy", "λ₁", "goes on")
    return [TextTable("Candidates, seed 100, 150 rounds", header, table_rows(FIRST_PLAN, runs))]


def second_tables(runs: Path) -> list[TextTable]:
    """Return the table of the candidates on two seeds, with the neighbours in ρ."""
    header = ("candidate", "validation accuracy, by seed", "mean", "λ₁, by seed", "within the bars")
    rows = table_rows(SECOND_PLAN, runs)
    return [TextTable("Candidates, seeds 100 and 101, 150 rounds", header, rows)]


def table_rows(plan: str, runs: Path) -> tuple[tuple[str, ...], ...]:
    """Return the rows of the candidates whose runs have ended, below those that set the bar."""
    bars = [(method, load_bar(method, lr, plan, runs)) for method, lr in BAR.items()]
    accurate, flat = (members for _, members in bars)
    rows = [
        (f"the bar: {method}, lr = {BAR[method]:g}", *cells(members), "")
        for method, members in bars
    ]
    for variant, specs in variant_specs(plan):
        members = load_runs(specs, runs)
        if len(members) == len(specs):
            passed = mean(map(mean_of_tail, members)) >= mean(map(mean_of_tail, accurate)) and all(
                top_eigenvalue(run) <= top_eigenvalue(bar)
                for run, bar in zip(members, flat, strict=True)
            )
            rows.append((describe_variant(variant), *cells(members), "yes" if passed else "no"))
    return tuple(rows)


def variant_specs(plan: str) -> list[tuple[Mapping[str, object], list[RunSpec]]]:
    """Return the candidates of a plan with their runs, in the order of the seeds."""
    variants = tomllib.loads((PLANS / plan).read_text())["variants"]
    specs = load_run_specs(plan)
    return [(variant, specs[number :: len(variants)]) for number, variant in enumerate(variants)]


def load_bar(method: str, lr: float, plan: str, runs: Path) -> list[LoadedRun]:
    """Return the tuning runs of a method with this step size on the seeds of the plan."""
    seeds = {spec.config.seed for spec in load_run_specs(plan)}
    return [
        run
        for run in load_runs(run_queue.load_run_specs(STEP_PLAN), runs)
        if (run.config["method"], run.config["lr"]) == (method, lr) and run.seed in seeds
    ]


def cells(runs: list[LoadedRun]) -> tuple[str, ...]:
    """Return the cells of accuracies, with their mean if there are several, and of λ₁."""
    scores = list(map(mean_of_tail, runs))
    accuracies = ", ".join(map(number_cell, scores))
    means = (number_cell(mean(scores)),) if len(scores) > 1 else ()
    return (accuracies, *means, curvature_cell(runs))


def describe_variant(variant: Mapping[str, object]) -> str:
    """Return the name of a candidate's class and its options."""
    options = [f"{name} = {value}" for name, value in variant.items() if name != "method"]
    return ", ".join([str(variant["method"]).partition(":")[2], *options])


FIRST = PageSection(first_tables, compare_command(FIRST_PLAN), load_run_specs(FIRST_PLAN))
SECOND = PageSection(second_tables, compare_command(SECOND_PLAN), load_run_specs(SECOND_PLAN))
