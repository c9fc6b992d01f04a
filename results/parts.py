"""FedWMSAM without its parts, decay in the objective: what each part adds beside the others."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from paired import SPANS, mean_of_last, top_eigenvalue
from sections import PageSection, compare_command, load_run_specs, load_runs

from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import MISSING, TextTable, number_cell

PLAN = "ablation.toml"
SPECS = load_run_specs(PLAN)
PARTS = {
    "personalized momentum": ("correction", "scaffold"),
    "SAM": ("perturbation", "trajectory"),
    "adaptive weight": ("similarity", "personalized"),
}
"""Parts of FedWMSAM → the option that switches it, and the option's value with the part."""
Parts = tuple[bool, ...]
"""Which of the parts a run has, in the order of PARTS."""
Runs = Mapping[Parts, Sequence[LoadedRun]]
"""Runs by their parts, for each of them in the order of the seeds."""


def make_tables(runs: Path) -> list[TextTable]:
    """Return the accuracies of all combinations, and the gains of each part."""
    loaded = load_runs(SPECS, runs)
    by_parts: dict[Parts, list[LoadedRun]] = {}
    for run in sorted(loaded, key=lambda run: run.seed):
        by_parts.setdefault(parts_of(run), []).append(run)
    if len(loaded) < len(SPECS):
        return []
    return [accuracy_table(by_parts), gain_table(by_parts)]


def parts_of(run: LoadedRun) -> Parts:
    """Return which of the parts a run has."""
    return tuple(run.config.get(option, value) == value for option, value in PARTS.values())


def accuracy_table(runs: Runs) -> TextTable:
    """Return the table with a row for each combination of parts."""
    rows = []
    for parts in product((True, False), repeat=len(PARTS)):
        members = runs[parts]
        cells = []
        for rounds in SPANS:
            cells.append(", ".join(number_cell(mean_of_last(rounds)(run)) for run in members))
        cells.append(", ".join(f"{top_eigenvalue(run):.3g}" for run in members))
        rows.append(("".join("✓" if part else "×" for part in parts), *cells))
    header = ("parts", *(f"last {rounds}, by seed" for rounds in SPANS), "λ₁, by seed")
    note = f"Parts: {', '.join(PARTS)}; × is without. ××× is FedCM."
    return TextTable("Accuracy and λ₁ with and without each part", header, tuple(rows), (note,))


def gain_table(runs: Runs) -> TextTable:
    """Return the table of what each part adds beside each set of the others."""
    rows = []
    for number, part in enumerate(PARTS):
        for others in product((True, False), repeat=len(PARTS) - 1):
            first, second = (
                (*others[:number], has_part, *others[number:]) for has_part in (True, False)
            )
            pairs = list(zip(runs[first], runs[second], strict=True))
            cells = []
            for rounds in SPANS:
                score = mean_of_last(rounds)
                gains = (score(run) - score(other) for run, other in pairs)
                cells.append(", ".join(f"{gain:+.4f}" for gain in gains))
            names = [name for name in PARTS if name != part]
            beside = " and ".join(
                name for name, is_there in zip(names, others, strict=True) if is_there
            )
            rows.append((part, beside or MISSING, *cells))
    header = ("part", "beside", *(f"it adds, last {rounds}, by seed" for rounds in SPANS))
    return TextTable("What a part adds", header, tuple(rows))


TABLE = PageSection(make_tables, compare_command(PLAN), SPECS)
