"""FedWMSAM with decay in the objective minus SCAFFOLD over every seed that has both, pooled."""

from collections.abc import Sequence
from pathlib import Path

from eight_seeds import EIGHT_SEEDS
from fresh_seeds import complete_rows
from paired import (
    SPANS,
    estimate,
    format_estimate,
    format_interval,
    load_rows,
    mean_of_last,
    pair_runs,
)
from sections import PageSection

from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import TextTable
from fedwmsam.statistics import wilcoxon

RunPairs = Sequence[tuple[LoadedRun, LoadedRun]]


def pooled_tables(runs: Path) -> list[TextTable]:
    """Return the table of the differences, for each set of seeds and for sets together."""
    first = load_rows(runs, "fashion-mnist-seeds.toml")
    second = load_rows(runs, "plus.toml")
    fresh = complete_rows(EIGHT_SEEDS, runs)
    early = pair_runs(first["fedwmsam weight_decay_mode=objective"], first["scaffold"])
    late = pair_runs(second["fedwmsam"], second["scaffold"])
    eight = pair_runs(fresh["fedwmsam"], fresh["scaffold"])
    sets = (early, late, eight, [*early, *late], [*early, *late, *eight])
    columns = []
    for rounds in SPANS:
        columns += [f"last {rounds}", "95% interval", "p"]
    header = ("seeds", *columns)
    rows = tuple(pooled_row(pairs) for pairs in sets)
    return [TextTable("FedWMSAM − SCAFFOLD, decay in the objective", header, rows)]


def pooled_row(pairs: RunPairs) -> tuple[str, ...]:
    """Return the row of a set of seeds: differences, intervals and exact Wilcoxon tests."""
    cells = []
    for rounds in SPANS:
        quantity = mean_of_last(rounds)
        values = [quantity(run) - quantity(other) for run, other in pairs]
        value = estimate(values)
        cells += [format_estimate(value), format_interval(value), f"{wilcoxon(values):.2g}"]
    return ", ".join(str(run.seed) for run, _ in pairs), *cells


POOLED = PageSection(pooled_tables)
