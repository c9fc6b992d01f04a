"""Tables that only a page has space for: costs of the runs, partitions, all settings."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from fedwmsam.data.partitions import Partition, measure_heterogeneity
from fedwmsam.engine.records import Record
from fedwmsam.methods import Method
from fedwmsam.page.figures import RecordedPartition
from fedwmsam.report.runs import format_value, to_float, varying_keys
from fedwmsam.report.summary import ResultRow, ResultTable
from fedwmsam.report.text_tables import COSTS, MISSING, TextTable, cost_cell
from fedwmsam.settings.config import RunConfig
from fedwmsam.settings.method_table import known_class
from fedwmsam.statistics import mean_spread

BAR_COLUMNS = (*COSTS, "rounds", "MB down", "MB up", "evaluation s")
"""Columns of costs, whose cells also show a bar."""


# Costs


def cost_table(table: ResultTable) -> TextTable:
    """Return the cost of the entire runs of each row, by kind."""
    rows = tuple((row.label, *total_cost_cells(row)) for row in table.rows if row.scores)
    header = ("method", "MB down", "MB up", "backprops", "training s", "evaluation s")
    return TextTable(
        "Whole runs: all clients and rounds together, mean over the seeds", header, rows
    )


def total_cost_cells(row: ResultRow) -> Iterator[str]:
    """Yield the cells of a row in the table of costs."""
    runs = [score.run for score in row.scores]
    for name, unit in (("bytes_down", 1e6), ("bytes_up", 1e6), ("backprops", 1.0)):
        yield cost_cell(mean_spread([sum_column(run.round_records, name) for run in runs]), unit)
    for name in ("train_seconds", "evaluate_seconds"):
        yield cost_cell(mean_spread([sum_column(run.timings, name) for run in runs]), 1.0)


def sum_column(records: Sequence[Record], name: str) -> float:
    """Return the sum of a column over all rounds, NaN if a round lacks it or there is none."""
    if not records:
        return float("nan")
    return float(np.sum([to_float(record.get(name)) for record in records]))


# Partition


def partition_table(rule: str, partitions: Sequence[RecordedPartition]) -> TextTable:
    """Return the sizes and the heterogeneity of each partition that the rule led to."""
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
        "Distance: total variation between a client's classes and those of all clients together, "
        "mean over the clients; 0 means the same shares, 1 no class in common.",
        "Effective classes: exp(entropy) of a client's classes, mean over the clients.",
    )
    rows = tuple(map(partition_cells, partitions))
    return TextTable(f"{rule}: how the data were dealt out", header, rows, notes)


def partition_cells(recorded: RecordedPartition) -> tuple[str, ...]:
    """Return the row of a partition."""
    sizes = recorded.counts.sum(axis=1)
    # The measures need only the counts of a partition.
    partition = Partition("", client_indices=(), class_counts=recorded.counts, reused=0)
    measures = measure_heterogeneity(partition)
    return (
        recorded.seed_label,
        f"{len(sizes):,}",
        f"{sizes.sum():,}",
        f"{sizes.min()} / {np.median(sizes):g} / {sizes.max()}",
        f"{measures.mean_tv_distance:.3f}",
        f"{measures.max_tv_distance:.3f}",
        f"{measures.effective_classes:.1f}",
        recorded.hash,
    )


# Settings


def differing_settings_table(table: ResultTable) -> TextTable:
    """Return the seeds of each row and its values of the settings in which rows differ."""
    varying = varying_keys([row.config for row in table.rows])
    names = [key for key in varying if key != "method"]
    rows = tuple((row.label, *setting_cells(row, names)) for row in table.rows)
    return TextTable("What sets the rows apart", ("method", "seeds", *names), rows)


def setting_cells(row: ResultRow, names: Sequence[str]) -> Iterator[str]:
    """Yield the seeds and the settings of a row."""
    yield ", ".join(map(str, row.seeds)) or MISSING
    for name in names:
        yield format_value(row.config[name]) if name in row.config else MISSING


def common_settings_table(table: ResultTable) -> TextTable:
    """Return the settings that all rows share, with their meanings.

    Among them are those by which the runs may be compared at all.
    """
    configs = [row.config for row in table.rows]
    varying = varying_keys(configs)
    common = {key: value for key, value in configs[0].items() if key not in varying}
    help_texts = setting_help({row.method for row in table.rows})
    rows = []
    for key, value in (table.shared_settings | common).items():
        if value is not None:
            rows.append((key, format_value(value), help_texts.get(key, "")))
    return TextTable("What all rows share", ("setting", "value", "meaning"), tuple(rows))


def setting_help(methods: set[str]) -> dict[str, str]:
    """Return the meaning of each setting, and of each option of these methods."""
    classes: list[type[RunConfig | Method]] = [RunConfig]
    classes += filter(None, map(known_class, sorted(methods)))
    help_texts: dict[str, str] = {}
    for cls in classes:
        help_texts |= {f.name: f.metadata["help"] for f in fields(cls) if f.metadata}
    return help_texts
