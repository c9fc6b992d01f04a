"""Every method of the library once: the table of docs/results/all-methods.md."""

from pathlib import Path

from looks import method_cells
from sections import PageSection, compare_command, load_run_specs, load_runs
from tuned import chosen_steps

from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import TextTable

PLAN = "all-methods.toml"
SPECS = load_run_specs(PLAN)


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
    """Return the row of a method's run, with where its step size comes from."""
    name, lr, *cells = method_cells(run, 0.8)
    return (name, lr, "tuned" if name in chosen_steps() else "published", *cells)


TABLE = PageSection(make_tables, compare_command(PLAN), SPECS)
