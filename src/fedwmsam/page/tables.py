"""Tables that only a page has room for: whole costs, how the data were dealt out, all settings."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from fedwmsam.data.partitions import Partition, measure_heterogeneity
from fedwmsam.engine.records import Record
from fedwmsam.methods import METHODS, Method
from fedwmsam.page.figures import RecordedPartition
from fedwmsam.report.runs import format_value, to_float, varying_keys
from fedwmsam.report.summary import ResultRow, ResultTable
from fedwmsam.report.text_tables import COSTS, MISSING, TextTable, cost_cell
from fedwmsam.settings.config import RunConfig
from fedwmsam.statistics import mean_spread

BAR_COLUMNS = (*COSTS, "rounds", "MB down", "MB up", "evaluation s")
"""Columns of costs, which are drawn as lengths too."""


# Costs


def cost_table(table: ResultTable) -> TextTable:
    """What each row's runs spent."""
    rows = tuple((row.label, *ledger_cells(row)) for row in table.rows if row.scores)
    header = ("method", "MB down", "MB up", "backprops", "training s", "evaluation s")
    return TextTable(
        "Whole runs: all clients and rounds together, mean over the seeds", header, rows
    )


def ledger_cells(row: ResultRow) -> Iterator[str]:
    runs = [score.run for score in row.scores]
    for name, unit in (("bytes_down", 1e6), ("bytes_up", 1e6), ("backprops", 1.0)):
        yield cost_cell(mean_spread([sum_column(run.rows, name) for run in runs]), unit)
    for name in ("train_seconds", "evaluate_seconds"):
        yield cost_cell(mean_spread([sum_column(run.timings, name) for run in runs]), 1.0)


def sum_column(lines: Sequence[Record], name: str) -> float:
    return float(np.sum([to_float(line.get(name)) for line in lines])) if lines else float("nan")


# Partition


def partition_table(rule: str, dealt: Sequence[RecordedPartition]) -> TextTable:
    header = (
        "seed",
        "clients",
        "samples",
        "of a client",
        "distance",
        "largest distance",
        "effective classes",
        "hash",
    )
    notes = (
        "Of a client: smallest, median and largest number of samples.",
        "Distance: total variation between a client's classes and those of all clients together, mean over the "
        "clients; 0 means the same shares, 1 no class in common.",
        "Effective classes: exp(entropy) of a client's classes, mean over the clients.",
    )
    return TextTable(
        f"{rule}: how the data were dealt out", header, tuple(map(partition_cells, dealt)), notes
    )


def partition_cells(dealt: RecordedPartition) -> tuple[str, ...]:
    sizes = dealt.counts.sum(axis=1)
    figures = measure_heterogeneity(Partition("", clients=(), counts=dealt.counts, reused=0))
    return (
        dealt.whose,
        f"{len(sizes):,}",
        f"{sizes.sum():,}",
        f"{sizes.min()} / {np.median(sizes):g} / {sizes.max()}",
        f"{figures.mean_distance:.3f}",
        f"{figures.largest_distance:.3f}",
        f"{figures.effective_classes:.1f}",
        dealt.hash,
    )


# Settings


def differing_settings_table(table: ResultTable) -> TextTable:
    names = [key for key in varying_keys([row.config for row in table.rows]) if key != "method"]
    rows = tuple((row.label, *setting_cells(row, names)) for row in table.rows)
    return TextTable("What sets the rows apart", ("method", "seeds", *names), rows)


def setting_cells(row: ResultRow, names: Sequence[str]) -> Iterator[str]:
    yield ", ".join(map(str, row.seeds)) or MISSING
    for name in names:
        yield format_value(row.config[name]) if name in row.config else MISSING


def common_settings_table(table: ResultTable) -> TextTable:
    """Also what keeps the rows in one table."""
    configs = [row.config for row in table.rows]
    differing = varying_keys(configs)
    shared = table.held_equal | {
        key: value for key, value in configs[0].items() if key not in differing
    }
    known = setting_help({row.method for row in table.rows})
    rows = tuple(
        (key, format_value(value), known.get(key, ""))
        for key, value in shared.items()
        if value is not None
    )
    return TextTable("What all rows share", ("setting", "value", "meaning"), rows)


def setting_help(methods: set[str]) -> dict[str, str]:
    classes: list[type[RunConfig | Method]] = [
        RunConfig,
        *(METHODS[name] for name in sorted(methods) if name in METHODS),
    ]
    return {f.name: f.metadata["help"] for cls in classes for f in fields(cls) if f.metadata}
