"""The candidate that was chosen, on fresh seeds, beside what set its bar: the tables."""

from pathlib import Path

from fresh_seeds import Rows, curvature_cell, describe_seeds, over_common_seeds, span_cell
from paired import (
    SPANS,
    difference,
    format_estimate,
    format_interval,
    mean_of_last,
    ratio,
    top_eigenvalue,
)
from sections import PageSection, compare_command, load_run_specs, load_runs

from fedwmsam.report.summary import summarise
from fedwmsam.report.text_tables import TextTable

PLAN = "candidates-fresh.toml"
SPECS = load_run_specs(PLAN)
CANDIDATE = "Lagged, lr = 0.3, ρ = 0.2"
COMPARED = {
    CANDIDATE: ("candidates:Lagged", 0.3),
    "FedWMSAM-plus, lr = 0.3": ("fedwmsam-plus", 0.3),
    "FedWMSAM-plus, lr = 0.1": ("fedwmsam-plus", 0.1),
    "SCAFFOLD, lr = 0.1": ("scaffold", 0.1),
}
"""What is compared → its method and step size."""


def make_tables(runs: Path) -> list[TextTable]:
    """Return the tables of accuracy and λ₁, and of the differences, over the common seeds."""
    rows = common_rows(runs)
    if not rows:
        return []
    title = describe_seeds(rows[CANDIDATE].seeds, SPECS)
    return [value_table(rows, title), contest_table(rows, title)]


def common_rows(runs: Path) -> Rows:
    """Return the rows of what is compared, over the seeds that all have; none without a seed."""
    loaded = load_runs([*SPECS, *load_run_specs("eight-seeds.toml")], runs)
    if not loaded:
        return {}
    (table,) = summarise(loaded).tables
    found = {(row.method, row.config["lr"]): row for row in table.rows}
    if not found.keys() >= set(COMPARED.values()):
        return {}
    return over_common_seeds({name: found[key] for name, key in COMPARED.items()})


def value_table(rows: Rows, seeds: str) -> TextTable:
    """Return the table of the accuracies and of λ₁."""
    lines = []
    for name, row in rows.items():
        accuracies = (span_cell(row, rounds) for rounds in SPANS)
        lines.append((name, *accuracies, curvature_cell(row)))
    header = ("method", *(f"last {rounds}" for rounds in SPANS), "λ₁")
    return TextTable(f"The chosen candidate, {seeds}", header, tuple(lines))


def contest_table(rows: Rows, seeds: str) -> TextTable:
    """Return the table of the candidate's differences in accuracy and ratios of λ₁."""
    lines = []
    for other, row in rows.items():
        if other == CANDIDATE:
            continue
        pair = (rows[CANDIDATE], row)
        cells = []
        for rounds in SPANS:
            gain = difference(*pair, mean_of_last(rounds))
            cells.append(f"{format_estimate(gain)} ({format_interval(gain)})")
        sharpness = ratio(*pair, top_eigenvalue)
        cells.append(f"{format_estimate(sharpness)} ({format_interval(sharpness)})")
        lines.append((other, *cells))
    columns = [f"minus it, last {rounds}" for rounds in SPANS]
    header = ("the candidate and …", *columns, "λ₁ over its")
    return TextTable(f"Differences with their 95% interval, {seeds}", header, tuple(lines))


TABLE = PageSection(make_tables, compare_command(PLAN), SPECS)
