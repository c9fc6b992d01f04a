"""Candidates for a method that is accurate and flat, screened on validation data: the table."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import run_queue
from paired import top_eigenvalue
from pivots import mean_of_tail
from sections import PLANS, PageSection, compare_command, load_run_specs, load_runs
from tuned import STEP_PLAN

from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import TextTable, number_cell

PLAN = "candidates-screening.toml"
SPECS = load_run_specs(PLAN)
BAR = {"fedwmsam-plus": 0.3, "scaffold": 0.1}
"""Methods that set the bar → their step sizes: accuracy of the first, λ₁ of the second."""


def make_tables(runs: Path) -> list[TextTable]:
    """Return the table of the candidates whose runs have ended, below those that set the bar."""
    accurate, flat = (load_bar(method, lr, runs) for method, lr in BAR.items())
    bar = (mean_of_tail(accurate), top_eigenvalue(flat))
    rows = [("the bar: FedWMSAM-plus, lr = 0.3", *cells(accurate), "")]
    rows.append(("the bar: SCAFFOLD, lr = 0.1", *cells(flat), ""))
    for variant, spec in zip(read_variants(), SPECS, strict=True):
        for run in load_runs([spec], runs):
            passed = mean_of_tail(run) >= bar[0] and top_eigenvalue(run) <= bar[1]
            rows.append((describe_variant(variant), *cells(run), "yes" if passed else "no"))
    header = ("candidate", "validation accuracy", "λ₁", "goes on")
    return [TextTable("Candidates, seed 100, 150 rounds", header, tuple(rows))]


def load_bar(method: str, lr: float, runs: Path) -> LoadedRun:
    """Return the tuning run of a method with this step size on the screening's seed."""
    (seed,) = {spec.config.seed for spec in SPECS}
    (run,) = (
        run
        for run in load_runs(run_queue.load_run_specs(STEP_PLAN), runs)
        if (run.config["method"], run.config["lr"], run.seed) == (method, lr, seed)
    )
    return run


def cells(run: LoadedRun) -> tuple[str, str]:
    """Return the cells of a run's accuracy and of λ₁ of the model that it returned."""
    return number_cell(mean_of_tail(run)), f"{top_eigenvalue(run):.3g}"


def read_variants() -> list[dict[str, object]]:
    """Return what the plan says of each candidate, in the order of its runs."""
    variants: list[dict[str, object]] = tomllib.loads((PLANS / PLAN).read_text())["variants"]
    return variants


def describe_variant(variant: Mapping[str, object]) -> str:
    """Return the name of a candidate's class and its options."""
    options = [f"{name} = {value}" for name, value in variant.items() if name != "method"]
    return ", ".join([str(variant["method"]).partition(":")[2], *options])


TABLE = PageSection(make_tables, compare_command(PLAN), SPECS)
