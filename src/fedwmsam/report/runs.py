"""Run folders as a report needs them: found, read without a model, and each with its state, whole or not."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedwmsam import toml
from fedwmsam.analysis.statistics import Numbers
from fedwmsam.engine.records import Record, read_json, read_lines
from fedwmsam.engine.run import AVERAGED
from fedwmsam.engine.run_folder import is_run
from fedwmsam.errors import InputError
from fedwmsam.settings.config import defaults_of

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
            "bytes": [number(row.get("bytes_down")) + number(row.get("bytes_up")) for row in self.rows],
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
        return self.remark if self.state is State.DIVERGED else f"{self.state}: {self.remark}".rstrip(": ")


SPENT = ("round", "lr", "cohort", "bytes_down", "bytes_up", "backprops", "epsilon")
"""What a round took, whichever model is evaluated after it."""


def with_twins(runs: Sequence[Run]) -> list[Run]:
    """Each run without the columns of its averaged twin, and after it the twin as if it were a run of its own."""
    found = []
    for run in runs:
        twin = [
            {name: row[name] for name in SPENT if name in row}
            | {name.removeprefix(AVERAGED): value for name, value in row.items() if name.startswith(AVERAGED)}
            for row in run.rows
        ]
        own = [{name: value for name, value in row.items() if not name.startswith(AVERAGED)} for row in run.rows]
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
        raise InputError(f"{path} speaks of {summary.get('rounds')} rounds, metrics.jsonl has {len(run.rows)}")
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
        raise InputError(f"{path} is of round {record.get('round')}, metrics.jsonl ends with {len(run.rows)}")
    accuracies = record.get("accuracy")
    clients = [number(accuracy) for accuracy in accuracies] if isinstance(accuracies, list) else []
    if not any(map(math.isfinite, clients)):
        raise InputError(f"{path} holds no accuracies")
    return replace(run, clients=clients)
