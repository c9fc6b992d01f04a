"""Which runs are one row over its seeds, which rows may stand in one table, and what to call both."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedwmsam.engine.records import Record
from fedwmsam.report.runs import Run
from fedwmsam.settings.config import distinguishing, setting_names

HELD_EQUAL = (
    "dataset", "data_hash", "partition", "clients", "model", "architecture", "loss", "monitor", "validation", "rounds",
    "evaluate_every", "target_accuracy", "patience", "time_budget",
)  # fmt: skip
"""Runs that differ in any of these are not compared: another task, or another moment of it."""


def held_equal(run: Run) -> Record:
    return {key: run.config.get(key, run.data.get(key)) for key in HELD_EQUAL}


def configuration(run: Run) -> Record:
    """What sets a row apart within its table. That a run has a twin does not: its own numbers are the same."""
    shared = (*HELD_EQUAL, "seed") if run.is_twin else (*HELD_EQUAL, "seed", "twin")
    return {key: value for key, value in distinguishing(run.config).items() if key not in shared}


def grouped(runs: Iterable[Run], key: Callable[[Run], Record]) -> list[list[Run]]:
    """Runs with equal keys together, in the order in which they first come."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(key(run), sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def titles(tables: Sequence[Record]) -> list[str]:
    """What each table is about; what else tells two of them apart is added to those that would read alike."""
    plain = [title(table) for table in tables]
    return [
        text if plain.count(text) == 1 else ", ".join([text, *(f"{key} {shown(table[key])}" for key in varied(tables))])
        for text, table in zip(plain, tables, strict=True)
    ]


def title(table: Record) -> str:
    natural = str(table["partition"]).startswith("natural")  # there the data say how many clients there are
    parts = [table["dataset"] or "data given to fit()", table["partition"], table["model"]]
    parts += [] if natural else [f"{table['clients']} clients"]
    parts += [rounds(table["rounds"])]
    parts += [f"validation {shown(table['validation'])}"] if table["validation"] else []
    parts += [f"evaluated every {table['evaluate_every']} rounds"] if table["evaluate_every"] not in (1, None) else []
    stops = {"target_accuracy": "until accuracy {}", "patience": "patience {}", "time_budget": "at most {} s"}
    parts += [text.format(shown(table[key])) for key, text in stops.items() if table[key] is not None]
    return ", ".join(str(part) for part in parts if part is not None)


def labels(rows: Sequence[Record]) -> list[str]:
    """Each row's method, with what differs: settings in the table, options among the rows of the method.

    A value that more than half of these rows share goes without saying; `unsaid` says it once.
    """
    return [
        " ".join([row["method"], *(f"{key}={shown(row[key])}" for key in differing(rows, row) if key in row)])
        for row in rows
    ]


def differing(rows: Sequence[Record], row: Record) -> list[str]:
    usual = usual_settings(rows) | usual_options(rows, row["method"])
    return [key for key, values in usual.items() if row.get(key) not in values]


def unsaid(rows: Sequence[Record]) -> list[str]:
    """What the labels leave out, such as "lr=0.1" for all rows and "fedsam rho=0.05" for those of a method."""
    methods = dict.fromkeys(row["method"] for row in rows)
    usual = [("", usual_settings(rows)), *((f"{method} ", usual_options(rows, method)) for method in methods)]
    said = [(whose, [f"{key}={shown(value)}" for key, found in of.items() for value in found]) for whose, of in usual]
    return [whose + " ".join(words) for whose, words in said if words]


def usual_settings(rows: Sequence[Record]) -> dict[str, list[Any]]:
    """The settings that differ, each with the value that more than half of the rows have, if there is one."""
    names = [key for key in varied(rows) if key in setting_names() and key != "method"]
    return {key: majority([row.get(key) for row in rows]) for key in names}


def usual_options(rows: Sequence[Record], method: str) -> dict[str, list[Any]]:
    """The same of what is not a setting, among the rows of the method."""
    own = [row for row in rows if row["method"] == method]
    return {key: majority([row.get(key) for row in own]) for key in varied(own) if key not in setting_names()}


def majority(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if 2 * values.count(value) > len(values)][:1]


def varied(records: Sequence[Record]) -> list[str]:
    """Keys whose values are not the same in all of them."""
    keys = dict.fromkeys(key for record in records for key in record)
    return [key for key in keys if any(record.get(key) != records[0].get(key) for record in records)]


def rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def shown(value: Any) -> str:
    """As a person would write it; with enough digits that no two values look alike."""
    return "none" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
