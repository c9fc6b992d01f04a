"""Run folders as a report needs them: found, read without a model, and each with its state, whole or not."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedwmsam import toml
from fedwmsam.engine.records import Record, read_json, read_lines
from fedwmsam.engine.run import AVERAGED
from fedwmsam.engine.run_folder import is_run
from fedwmsam.errors import InputError
from fedwmsam.settings.config import (
    defaults_of,
    identifying_settings,
    setting_names,
    settings_by_panel,
)
from fedwmsam.statistics import FloatArray

MAX_SEARCH_DEPTH = 2
"""How far below a given folder runs are looked for."""


class RunStatus(StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped early"
    DIVERGED = "diverged"
    UNFINISHED = "not finished"
    EMPTY = "no round done"
    UNMEASURED = "no values"
    DAMAGED = "damaged"


class CumulativeCost(NamedTuple):
    """What was spent up to a round; NaN where the folder does not say."""

    rounds: float
    seconds: float
    bytes: float
    backprops: float


@dataclass(frozen=True)
class LoadedRun:
    path: Path
    state: RunStatus = RunStatus.DAMAGED
    remark: str = ""
    """Why it stopped, diverged or cannot be read."""
    config: Record = field(default_factory=dict)
    data: Record = field(default_factory=dict)
    rows: Sequence[Record] = ()
    timings: Sequence[Record] = ()
    best_round: int | None = None
    clients: Sequence[float] = ()
    """Every client's accuracy at the end, NaN for one that has none; empty if the run did not keep them."""
    is_twin: bool = False
    """It stands for the averaged twin of the run in its folder."""

    @property
    def counts(self) -> bool:
        """Its outcome is what its settings lead to; the others have none, or one of another kind."""
        return self.state in (RunStatus.COMPLETED, RunStatus.STOPPED)

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def pair(self) -> tuple[int, str | None]:
        """Runs with the same one see the same clients, data and batches."""
        return self.seed, self.data.get("partition_hash")

    def values(self, column: str) -> dict[int, float]:
        """A column by round, where it was recorded; NaN where it was not finite."""
        return {row["round"]: to_float(row.get(column)) for row in self.rows if column in row}

    @cached_property
    def spent(self) -> dict[str, FloatArray]:
        """Each field of `Cost`, added up to each round."""
        timings = self.timings if len(self.timings) == len(self.rows) else [{}] * len(self.rows)
        totals = {
            "rounds": [1.0 for _ in self.rows],
            "seconds": [to_float(timing.get("train_seconds")) for timing in timings],
            "bytes": [
                to_float(row.get("bytes_down")) + to_float(row.get("bytes_up")) for row in self.rows
            ],
            "backprops": [to_float(row.get("backprops")) for row in self.rows],
        }
        return {name: np.cumsum(values) for name, values in totals.items()}

    def cost(self, rounds: int) -> CumulativeCost:
        return CumulativeCost(
            **{name: float(values[rounds - 1]) for name, values in self.spent.items()}
        )

    def describe(self) -> str:
        """Its state in a few words."""
        if self.state in (RunStatus.STOPPED, RunStatus.UNFINISHED):
            after = f"{self.state} after {len(self.rows)} of {self.config['rounds']} rounds"
            return f"{after}: {self.remark}" if self.remark else after
        return (
            self.remark
            if self.state is RunStatus.DIVERGED
            else f"{self.state}: {self.remark}".rstrip(": ")
        )


COST_COLUMNS = ("round", "lr", "cohort", "bytes_down", "bytes_up", "backprops", "epsilon")
"""What a round took, whichever model is evaluated after it."""


def add_averaged_model_runs(runs: Sequence[LoadedRun]) -> list[LoadedRun]:
    """Each run without the columns of its averaged twin, and after it the twin as if it were a run of its own."""
    found = []
    for run in runs:
        twin = [
            {name: row[name] for name in COST_COLUMNS if name in row}
            | {
                name.removeprefix(AVERAGED): value
                for name, value in row.items()
                if name.startswith(AVERAGED)
            }
            for row in run.rows
        ]
        own = [
            {name: value for name, value in row.items() if not name.startswith(AVERAGED)}
            for row in run.rows
        ]
        found.append(replace(run, rows=own))
        if run.counts and any(row.keys() - set(COST_COLUMNS) for row in twin):
            found.append(replace(run, rows=twin, is_twin=True, best_round=None, clients=()))
    return found


def to_float(value: object) -> float:
    """JSON holds null for what was not finite."""
    return float(value) if isinstance(value, int | float) else math.nan


def find_runs(places: Sequence[Path]) -> tuple[list[LoadedRun], list[str]]:
    """Every run in these folders or up to two levels below, each once, and what was given without holding any."""
    found: dict[Path, Path] = {}
    without = []
    for place in places:
        if not place.exists():
            raise InputError(f"There is no run folder {place}.")
        here = list(iter_run_folders(place, MAX_SEARCH_DEPTH))
        found |= {path.resolve(): path for path in here}
        without += [] if here else [str(place)]
    if not found:
        raise InputError(
            f"No runs in {', '.join(without)}: neither there nor up to two folders below is a config.toml; "
            "name run folders or a folder that holds them."
        )
    return [read_run(path) for path in found.values()], without


def iter_run_folders(place: Path, depth: int) -> Iterator[Path]:
    if is_run(place):
        yield place
    elif depth and place.is_dir():
        for below in sorted(place.iterdir()):
            yield from iter_run_folders(below, depth - 1)


def read_run(path: Path) -> LoadedRun:
    """A run folder, whatever became of it: what can be read is kept, what cannot is the remark."""
    run = LoadedRun(path)
    for part in (read_config, read_history, read_outcome, read_clients):
        try:
            run = part(run)
        except InputError as error:
            return replace(run, state=RunStatus.DAMAGED, remark=str(error).rstrip("."))
    return run


def read_config(run: LoadedRun) -> LoadedRun:
    config = fill_defaults(toml.load(run.path / "config.toml"))
    for key, kind in (("method", str), ("seed", int), ("rounds", int)):
        if not isinstance(config.get(key), kind):
            raise InputError(f"{run.path / 'config.toml'} lacks {key}")
    described = run.path / "data.json"
    return replace(run, config=config, data=read_json(described) if described.exists() else {})


def fill_defaults(config: Record) -> Record:
    """With the defaults of settings newer than the run. (`fit` leaves out what is None: nothing to fill in there.)"""
    if "dataset" not in config:
        return config
    return defaults_of(config.get("method")) | config


def read_history(run: LoadedRun) -> LoadedRun:
    path = run.path / "metrics.jsonl"
    rows, timings = read_lines(path), read_lines(run.path / "timings.jsonl")
    for place, row in enumerate(rows, start=1):
        if row.get("round") != place:
            raise InputError(f"line {place} of {path} is not that of round {place}")
    state = RunStatus.UNFINISHED if rows else RunStatus.EMPTY
    return replace(run, rows=rows, timings=timings, state=state)


def read_outcome(run: LoadedRun) -> LoadedRun:
    """The state of a run that ended; one that has no summary goes on or was interrupted."""
    path = run.path / "summary.json"
    if not path.exists():
        return run
    summary = read_json(path)
    status, best = str(summary.get("status")), summary.get("best_round")
    if summary.get("rounds") != len(run.rows):
        raise InputError(
            f"{path} speaks of {summary.get('rounds')} rounds, metrics.jsonl has {len(run.rows)}"
        )
    if best is not None and (not isinstance(best, int) or not 1 <= best <= len(run.rows)):
        raise InputError(f"{path} names a best round {best!r} that is not in metrics.jsonl")
    if status == RunStatus.COMPLETED:
        # An extension writes its new goal just before it takes the summary away; a kill may come between the two.
        state = (
            RunStatus.COMPLETED if len(run.rows) >= run.config["rounds"] else RunStatus.UNFINISHED
        )
        return replace(run, state=state, best_round=best)
    state = RunStatus.DIVERGED if status.startswith(RunStatus.DIVERGED) else RunStatus.STOPPED
    return replace(run, state=state, remark=status, best_round=best)


def read_clients(run: LoadedRun) -> LoadedRun:
    path = run.path / "clients.json"
    if not run.counts or not path.exists():
        return run
    record = read_json(path)
    if record.get("round") != len(run.rows):
        raise InputError(
            f"{path} is of round {record.get('round')}, metrics.jsonl ends with {len(run.rows)}"
        )
    accuracies = record.get("accuracy")
    clients = (
        [to_float(accuracy) for accuracy in accuracies] if isinstance(accuracies, list) else []
    )
    if not any(map(math.isfinite, clients)):
        raise InputError(f"{path} holds no accuracies")
    return replace(run, clients=clients)


# Rows and tables


COMPARABILITY_KEYS = (
    *(f.name for f in settings_by_panel() if f.metadata["held_equal"]),
    "data_hash",
    "architecture",
    "loss",
    "monitor",
)
"""Runs that differ in any of these are not compared: another task, or another moment of it."""


def comparability_key(run: LoadedRun) -> Record:
    return {key: run.config.get(key, run.data.get(key)) for key in COMPARABILITY_KEYS}


def row_config(run: LoadedRun) -> Record:
    """What sets a row apart within its table. That a run has a twin does not: its own numbers are the same."""
    shared = (*COMPARABILITY_KEYS, "seed") if run.is_twin else (*COMPARABILITY_KEYS, "seed", "twin")
    return {
        key: value for key, value in identifying_settings(run.config).items() if key not in shared
    }


def group_runs(
    runs: Iterable[LoadedRun], key: Callable[[LoadedRun], Record]
) -> list[list[LoadedRun]]:
    """Runs with equal keys together, in the order in which they first come."""
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(key(run), sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def make_titles(tables: Sequence[Record]) -> list[str]:
    """What each table is about; what else tells two of them apart is added to those that would read alike."""
    plain = [make_title(table) for table in tables]
    return [
        text
        if plain.count(text) == 1
        else ", ".join(
            [text, *(f"{key} {format_value(table[key])}" for key in varying_keys(tables))]
        )
        for text, table in zip(plain, tables, strict=True)
    ]


def make_title(table: Record) -> str:
    natural = str(table["partition"]).startswith(
        "natural"
    )  # there the data say how many clients there are
    parts = [table["dataset"] or "data given to fit()", table["partition"], table["model"]]
    parts += [] if natural else [f"{table['clients']} clients"]
    parts += [format_rounds(table["rounds"])]
    parts += [f"validation {format_value(table['validation'])}"] if table["validation"] else []
    parts += (
        [f"evaluated every {table['evaluate_every']} rounds"]
        if table["evaluate_every"] not in (1, None)
        else []
    )
    stops = {
        "target_accuracy": "until accuracy {}",
        "patience": "patience {}",
        "time_budget": "at most {} s",
    }
    parts += [
        text.format(format_value(table[key]))
        for key, text in stops.items()
        if table[key] is not None
    ]
    return ", ".join(str(part) for part in parts if part is not None)


def make_labels(rows: Sequence[Record]) -> list[str]:
    """Each row's method, with what differs: settings in the table, options among the rows of the method.

    A value that more than half of these rows share goes without saying; `unsaid` says it once.
    """
    return [
        " ".join(
            [
                row["method"],
                *(f"{key}={format_value(row[key])}" for key in label_keys(rows, row) if key in row),
            ]
        )
        for row in rows
    ]


def label_keys(rows: Sequence[Record], row: Record) -> list[str]:
    usual = majority_settings(rows) | majority_options(rows, row["method"])
    return [key for key, values in usual.items() if row.get(key) not in values]


def omitted_values(rows: Sequence[Record]) -> list[str]:
    """What the labels leave out, such as "lr=0.1" for all rows and "fedsam rho=0.05" for those of a method."""
    methods = dict.fromkeys(row["method"] for row in rows)
    usual = [
        ("", majority_settings(rows)),
        *((f"{method} ", majority_options(rows, method)) for method in methods),
    ]
    said = [
        (whose, [f"{key}={format_value(value)}" for key, found in of.items() for value in found])
        for whose, of in usual
    ]
    return [whose + " ".join(words) for whose, words in said if words]


def majority_settings(rows: Sequence[Record]) -> dict[str, list[Any]]:
    """The settings that differ, each with the value that more than half of the rows have, if there is one."""
    names = [key for key in varying_keys(rows) if key in setting_names() and key != "method"]
    return {key: find_majority([row.get(key) for row in rows]) for key in names}


def majority_options(rows: Sequence[Record], method: str) -> dict[str, list[Any]]:
    """The same of what is not a setting, among the rows of the method."""
    own = [row for row in rows if row["method"] == method]
    return {
        key: find_majority([row.get(key) for row in own])
        for key in varying_keys(own)
        if key not in setting_names()
    }


def find_majority(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if 2 * values.count(value) > len(values)][:1]


def varying_keys(records: Sequence[Record]) -> list[str]:
    """Keys whose values are not the same in all of them."""
    keys = dict.fromkeys(key for record in records for key in record)
    return [
        key for key in keys if any(record.get(key) != records[0].get(key) for record in records)
    ]


def format_rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def format_value(value: Any) -> str:
    """As a person would write it; with enough digits that no two values look alike."""
    return "none" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
