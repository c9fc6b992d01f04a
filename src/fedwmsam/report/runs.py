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
from fedwmsam.settings.config import defaults_of, distinguishing, setting_names, settings_by_panel
from fedwmsam.statistics import Numbers

DEPTH = 2
"""How far below a given folder runs are looked for."""


class State(StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped early"
    DIVERGED = "diverged"
    UNFINISHED = "not finished"
    EMPTY = "no round done"
    UNMEASURED = "no values"
    DAMAGED = "damaged"


class Cost(NamedTuple):
    """What was spent up to a round; NaN where the folder does not say."""

    rounds: float
    seconds: float
    bytes: float
    backprops: float


@dataclass(frozen=True)
class Run:
    path: Path
    state: State = State.DAMAGED
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
        return self.state in (State.COMPLETED, State.STOPPED)

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def pair(self) -> tuple[int, str | None]:
        """Runs with the same one see the same clients, data and batches."""
        return self.seed, self.data.get("partition_hash")

    def values(self, column: str) -> dict[int, float]:
        """A column by round, where it was recorded; NaN where it was not finite."""
        return {row["round"]: number(row.get(column)) for row in self.rows if column in row}

    @cached_property
    def spent(self) -> dict[str, Numbers]:
        """Each field of `Cost`, added up to each round."""
        timings = self.timings if len(self.timings) == len(self.rows) else [{}] * len(self.rows)
        totals = {
            "rounds": [1.0 for _ in self.rows],
            "seconds": [number(timing.get("train_seconds")) for timing in timings],
            "bytes": [
                number(row.get("bytes_down")) + number(row.get("bytes_up")) for row in self.rows
            ],
            "backprops": [number(row.get("backprops")) for row in self.rows],
        }
        return {name: np.cumsum(values) for name, values in totals.items()}

    def cost(self, rounds: int) -> Cost:
        return Cost(**{name: float(values[rounds - 1]) for name, values in self.spent.items()})

    def describe(self) -> str:
        """Its state in a few words."""
        if self.state in (State.STOPPED, State.UNFINISHED):
            after = f"{self.state} after {len(self.rows)} of {self.config['rounds']} rounds"
            return f"{after}: {self.remark}" if self.remark else after
        return (
            self.remark
            if self.state is State.DIVERGED
            else f"{self.state}: {self.remark}".rstrip(": ")
        )


SPENT = ("round", "lr", "cohort", "bytes_down", "bytes_up", "backprops", "epsilon")
"""What a round took, whichever model is evaluated after it."""


def with_twins(runs: Sequence[Run]) -> list[Run]:
    """Each run without the columns of its averaged twin, and after it the twin as if it were a run of its own."""
    found = []
    for run in runs:
        twin = [
            {name: row[name] for name in SPENT if name in row}
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
        if run.counts and any(row.keys() - set(SPENT) for row in twin):
            found.append(replace(run, rows=twin, is_twin=True, best_round=None, clients=()))
    return found


def number(value: object) -> float:
    """JSON holds null for what was not finite."""
    return float(value) if isinstance(value, int | float) else math.nan


def find_runs(places: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Every run in these folders or up to two levels below, each once, and what was given without holding any."""
    found: dict[Path, Path] = {}
    without = []
    for place in places:
        if not place.exists():
            raise InputError(f"There is no run folder {place}.")
        here = list(folders(place, DEPTH))
        found |= {path.resolve(): path for path in here}
        without += [] if here else [str(place)]
    if not found:
        raise InputError(
            f"No runs in {', '.join(without)}: neither there nor up to two folders below is a config.toml; "
            "name run folders or a folder that holds them."
        )
    return [read_run(path) for path in found.values()], without


def folders(place: Path, depth: int) -> Iterator[Path]:
    if is_run(place):
        yield place
    elif depth and place.is_dir():
        for below in sorted(place.iterdir()):
            yield from folders(below, depth - 1)


def read_run(path: Path) -> Run:
    """A run folder, whatever became of it: what can be read is kept, what cannot is the remark."""
    run = Run(path)
    for part in (read_config, read_history, read_outcome, read_clients):
        try:
            run = part(run)
        except InputError as error:
            return replace(run, state=State.DAMAGED, remark=str(error).rstrip("."))
    return run


def read_config(run: Run) -> Run:
    config = complete(toml.load(run.path / "config.toml"))
    for key, kind in (("method", str), ("seed", int), ("rounds", int)):
        if not isinstance(config.get(key), kind):
            raise InputError(f"{run.path / 'config.toml'} lacks {key}")
    described = run.path / "data.json"
    return replace(run, config=config, data=read_json(described) if described.exists() else {})


def complete(config: Record) -> Record:
    """With the defaults of settings newer than the run. (`fit` leaves out what is None: nothing to fill in there.)"""
    if "dataset" not in config:
        return config
    return defaults_of(config.get("method")) | config


def read_history(run: Run) -> Run:
    path = run.path / "metrics.jsonl"
    rows, timings = read_lines(path), read_lines(run.path / "timings.jsonl")
    for place, row in enumerate(rows, start=1):
        if row.get("round") != place:
            raise InputError(f"line {place} of {path} is not that of round {place}")
    state = State.UNFINISHED if rows else State.EMPTY
    return replace(run, rows=rows, timings=timings, state=state)


def read_outcome(run: Run) -> Run:
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
    if status == State.COMPLETED:
        # An extension writes its new goal just before it takes the summary away; a kill may come between the two.
        state = State.COMPLETED if len(run.rows) >= run.config["rounds"] else State.UNFINISHED
        return replace(run, state=state, best_round=best)
    state = State.DIVERGED if status.startswith(State.DIVERGED) else State.STOPPED
    return replace(run, state=state, remark=status, best_round=best)


def read_clients(run: Run) -> Run:
    path = run.path / "clients.json"
    if not run.counts or not path.exists():
        return run
    record = read_json(path)
    if record.get("round") != len(run.rows):
        raise InputError(
            f"{path} is of round {record.get('round')}, metrics.jsonl ends with {len(run.rows)}"
        )
    accuracies = record.get("accuracy")
    clients = [number(accuracy) for accuracy in accuracies] if isinstance(accuracies, list) else []
    if not any(map(math.isfinite, clients)):
        raise InputError(f"{path} holds no accuracies")
    return replace(run, clients=clients)


# Rows and tables


HELD_EQUAL = (
    *(f.name for f in settings_by_panel() if f.metadata["held_equal"]),
    "data_hash",
    "architecture",
    "loss",
    "monitor",
)
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
        text
        if plain.count(text) == 1
        else ", ".join([text, *(f"{key} {shown(table[key])}" for key in varied(tables))])
        for text, table in zip(plain, tables, strict=True)
    ]


def title(table: Record) -> str:
    natural = str(table["partition"]).startswith(
        "natural"
    )  # there the data say how many clients there are
    parts = [table["dataset"] or "data given to fit()", table["partition"], table["model"]]
    parts += [] if natural else [f"{table['clients']} clients"]
    parts += [rounds(table["rounds"])]
    parts += [f"validation {shown(table['validation'])}"] if table["validation"] else []
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
        text.format(shown(table[key])) for key, text in stops.items() if table[key] is not None
    ]
    return ", ".join(str(part) for part in parts if part is not None)


def labels(rows: Sequence[Record]) -> list[str]:
    """Each row's method, with what differs: settings in the table, options among the rows of the method.

    A value that more than half of these rows share goes without saying; `unsaid` says it once.
    """
    return [
        " ".join(
            [
                row["method"],
                *(f"{key}={shown(row[key])}" for key in differing(rows, row) if key in row),
            ]
        )
        for row in rows
    ]


def differing(rows: Sequence[Record], row: Record) -> list[str]:
    usual = usual_settings(rows) | usual_options(rows, row["method"])
    return [key for key, values in usual.items() if row.get(key) not in values]


def unsaid(rows: Sequence[Record]) -> list[str]:
    """What the labels leave out, such as "lr=0.1" for all rows and "fedsam rho=0.05" for those of a method."""
    methods = dict.fromkeys(row["method"] for row in rows)
    usual = [
        ("", usual_settings(rows)),
        *((f"{method} ", usual_options(rows, method)) for method in methods),
    ]
    said = [
        (whose, [f"{key}={shown(value)}" for key, found in of.items() for value in found])
        for whose, of in usual
    ]
    return [whose + " ".join(words) for whose, words in said if words]


def usual_settings(rows: Sequence[Record]) -> dict[str, list[Any]]:
    """The settings that differ, each with the value that more than half of the rows have, if there is one."""
    names = [key for key in varied(rows) if key in setting_names() and key != "method"]
    return {key: majority([row.get(key) for row in rows]) for key in names}


def usual_options(rows: Sequence[Record], method: str) -> dict[str, list[Any]]:
    """The same of what is not a setting, among the rows of the method."""
    own = [row for row in rows if row["method"] == method]
    return {
        key: majority([row.get(key) for row in own])
        for key in varied(own)
        if key not in setting_names()
    }


def majority(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if 2 * values.count(value) > len(values)][:1]


def varied(records: Sequence[Record]) -> list[str]:
    """Keys whose values are not the same in all of them."""
    keys = dict.fromkeys(key for record in records for key in record)
    return [
        key for key in keys if any(record.get(key) != records[0].get(key) for record in records)
    ]


def rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def shown(value: Any) -> str:
    """As a person would write it; with enough digits that no two values look alike."""
    return "none" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
