"""Run folders as a report reads them: configuration, metrics and status, without any model.

`find_runs` reads every run below the given folders into a `LoadedRun`. A folder that is damaged or
unfinished is not an error: its run carries a status that says so. The second half of the module
says which runs may be compared (`comparability_key`), which are seeds of one configuration
(`row_config`), and how tables and rows are called (`make_titles`, `make_labels`).
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedwmsam import toml
from fedwmsam.comparison.tuning import (
    TUNING_FILE,
    TUNING_FOLDER,
    fingerprint_in,
    superseded_runs,
)
from fedwmsam.engine.provenance import PROVENANCE, read_sessions
from fedwmsam.engine.records import Record, read_json, read_lines
from fedwmsam.engine.run import AVERAGED
from fedwmsam.engine.run_folder import FINGERPRINT, has_edited_config, is_run
from fedwmsam.errors import InputError, printable
from fedwmsam.report import stored_values
from fedwmsam.settings.config import (
    defaults_of,
    identifying_settings,
    setting_names,
    settings_in_help_order,
)
from fedwmsam.statistics import FloatArray

MAX_SEARCH_DEPTH = 2
"""Levels of folders below a given folder in which runs are looked for."""


class RunStatus(StrEnum):
    """How a run ended, or why it has no result; the values are the words that reports print."""

    COMPLETED = "completed"
    STOPPED = "stopped early"
    DIVERGED = "diverged"
    UNFINISHED = "not finished"
    EMPTY = "no round done"
    UNMEASURED = "no values"
    DAMAGED = "damaged"


class CumulativeCost(NamedTuple):
    """The cost of a run up to a round; a field is NaN where the folder does not say."""

    rounds: float
    seconds: float
    bytes: float
    backprops: float


@dataclass(frozen=True)
class LoadedRun:
    """A run as a report reads it: the contents of its folder's text files, and its status.

    It holds no model. `analysis.saved_run.SavedRun` stands for the same folder with its models.
    """

    path: Path
    status: RunStatus = RunStatus.DAMAGED
    status_message: str = ""
    """Why the run stopped, diverged or cannot be read."""
    config: Record = field(default_factory=dict)
    """The content of config.toml; empty if that cannot be read."""
    data: Record = field(default_factory=dict)
    """The content of data.json, which describes the data and the partition."""
    round_records: Sequence[Record] = ()
    """The lines of metrics.jsonl, one per round."""
    timings: Sequence[Record] = ()
    """The lines of timings.jsonl, one per round."""
    best_round: int | None = None
    """The round that was best on the validation data, if there are such data."""
    client_accuracies: Sequence[float] = ()
    """The last model's accuracy on each client, NaN for a client that has none.

    Empty if the run did not keep them.
    """
    sessions: Sequence[Record] = ()
    """What made the run, from provenance.json; empty if that is not known."""
    has_edited_config: bool = False
    """Whether config.toml is not as the run wrote it, so that its settings are somebody's word."""
    is_averaged_model: bool = False
    """Whether this stands for the averaged model (the twin) of the run in the folder."""

    @property
    def is_usable(self) -> bool:
        """Return whether the run ended as its settings intend, so that its result may be used."""
        return self.status in (RunStatus.COMPLETED, RunStatus.STOPPED)

    @property
    def seed(self) -> int:
        """Return the seed of the run."""
        return int(self.config["seed"])

    @property
    def pairing_key(self) -> tuple[int, str | None]:
        """Return the key that is equal for runs with the same clients, data and batches."""
        return self.seed, self.data.get("partition_hash")

    def values_by_round(self, column: str) -> dict[int, float]:
        """Return a column of the metrics by round, for the rounds that recorded it.

        A value that was not finite is NaN.
        """
        return {
            record["round"]: to_float(record.get(column))
            for record in self.round_records
            if column in record
        }

    @cached_property
    def cumulative_costs(self) -> dict[str, FloatArray]:
        """Return each field of `CumulativeCost`, summed up to each round."""
        records = self.round_records
        timings = self.timings if len(self.timings) == len(records) else [{}] * len(records)
        costs = {
            "rounds": [1.0 for _ in records],
            "seconds": [to_float(timing.get("train_seconds")) for timing in timings],
            "bytes": [
                to_float(record.get("bytes_down")) + to_float(record.get("bytes_up"))
                for record in records
            ],
            "backprops": [to_float(record.get("backprops")) for record in records],
        }
        return {name: np.cumsum(values) for name, values in costs.items()}

    def cost_at(self, round: int) -> CumulativeCost:
        """Return the cost of the run up to and including a round."""
        costs = {name: float(values[round - 1]) for name, values in self.cumulative_costs.items()}
        return CumulativeCost(**costs)

    def describe(self) -> str:
        """Return the status in a few words, with its message."""
        if self.status in (RunStatus.STOPPED, RunStatus.UNFINISHED):
            rounds = f"{len(self.round_records)} of {self.config['rounds']} rounds"
            text = f"{self.status} after {rounds}"
            return f"{text}: {self.status_message}" if self.status_message else text
        if self.status is RunStatus.DIVERGED:
            return self.status_message
        return f"{self.status}: {self.status_message}".rstrip(": ")


MODEL_INDEPENDENT_COLUMNS = (
    "round",
    "lr",
    "cohort",
    "bytes_down",
    "bytes_up",
    "backprops",
    "epsilon",
)
"""Columns of the metrics that do not depend on which model is evaluated after the round."""


def add_averaged_model_runs(runs: Iterable[LoadedRun], metric: str = "accuracy") -> list[LoadedRun]:
    """Return the runs with the averaged model (the twin) of each as a run of its own after it.

    A run loses the columns of its averaged model to it. A run whose averaged model has no such
    metric stays as it is.
    """
    result = []
    for run in runs:
        has_averaged_model = run.is_usable and bool(run.values_by_round(AVERAGED + metric))
        if not has_averaged_model or run.config.get("twin") is None:
            result.append(run)
            continue
        global_records = [global_model_columns(record) for record in run.round_records]
        averaged_records = [averaged_model_columns(record) for record in run.round_records]
        averaged_run = replace(
            run,
            round_records=averaged_records,
            is_averaged_model=True,
            best_round=None,
            client_accuracies=(),
        )
        result += [replace(run, round_records=global_records), averaged_run]
    return result


def global_model_columns(record: Record) -> Record:
    """Return a round's record without the columns of the averaged model."""
    return {name: value for name, value in record.items() if not name.startswith(AVERAGED)}


def averaged_model_columns(record: Record) -> Record:
    """Return a round's record as it would be of the averaged model, with the round's costs."""
    costs = {name: record[name] for name in MODEL_INDEPENDENT_COLUMNS if name in record}
    metrics = {
        name.removeprefix(AVERAGED): value
        for name, value in record.items()
        if name.startswith(AVERAGED)
    }
    return costs | metrics


def to_float(value: object) -> float:
    """Return a number from JSON as a float; NaN for null, which stands for what was not finite."""
    return float(value) if isinstance(value, int | float) else math.nan


def find_runs(folders: Sequence[Path]) -> tuple[list[LoadedRun], list[str]]:
    """Return every run in these folders or up to two levels below, each once.

    The second list names the given folders that hold no run. Raise InputError if a folder does not
    exist or if none of them holds a run.
    """
    run_folders: dict[Path, Path] = {}
    folders_without_runs = []
    for folder in folders:
        if not folder.exists():
            raise InputError(f"There is no run folder {folder}.")
        paths = list(iter_run_folders(folder, MAX_SEARCH_DEPTH))
        run_folders |= {path.resolve(): path for path in paths}
        if not paths:
            folders_without_runs.append(str(folder))
    tuned = [folder for folder in folders if (folder / TUNING_FILE).exists()]
    if not run_folders and tuned:
        raise InputError(
            f"{tuned[0]} has tuning runs only so far: give the command that made it again, and its "
            "comparison goes on."
        )
    if not run_folders:
        raise InputError(
            f"No runs in {', '.join(folders_without_runs)}: neither there nor up to two folders "
            "below is a config.toml; name run folders or a folder that holds them."
        )
    return [read_run(path) for path in run_folders.values()], folders_without_runs


def iter_run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folder if it is a run's, else the run folders up to `depth` levels below it.

    The tuning runs of a comparison are left out: they have chosen values of its other runs. So are
    runs with values that a later tuning has replaced.
    """
    if is_run(folder):
        yield folder
    elif depth and folder.is_dir():
        has_tuning = (folder / TUNING_FILE).exists()
        replaced = superseded_runs(folder / TUNING_FILE)
        for subfolder in sorted(folder.iterdir()):
            is_tuning = has_tuning and subfolder.name == TUNING_FOLDER
            if not is_tuning and fingerprint_in(subfolder.name) not in replaced:
                yield from iter_run_folders(subfolder, depth - 1)


def read_run(path: Path) -> LoadedRun:
    """Return the run in a folder, whatever became of it.

    What can be read is kept; the first file that cannot be makes the run damaged, with the reason
    as its status message.
    """
    run = LoadedRun(path)
    parts = (read_config, read_data, read_history, read_outcome, read_clients, read_provenance)
    for read_part in parts:
        try:
            run = read_part(run)
        except InputError as error:
            message = printable(error).rstrip(".")
            return replace(run, status=RunStatus.DAMAGED, status_message=message)
    return run


def read_config(run: LoadedRun) -> LoadedRun:
    """Return the run with its configuration.

    Raise InputError if the file is damaged or the method, the seed or the rounds are missing.
    """
    path = run.path / "config.toml"
    config = fill_defaults(stored_values.check_config(path, toml.load(path)))
    for key in ("method", "seed", "rounds"):
        if config.get(key) is None:
            raise InputError(f"{path} lacks {key}")
    return replace(run, config=config)


def read_data(run: LoadedRun) -> LoadedRun:
    """Return the run with the description of its data, if it has one.

    Of a run of `fit` that is the names of its clients. Raise InputError if a file is damaged.
    """
    path = run.path / "data.json"
    if path.exists():
        return replace(run, data=stored_values.check_data(path, read_json(path)))
    path = run.path / FINGERPRINT
    if path.exists() and (names := read_json(path).get("names")):
        return replace(run, data=stored_values.check_data(path, {"group_names": names}))
    return run


def fill_defaults(config: Record) -> Record:
    """Return the configuration with the defaults of settings that are newer than the run.

    A configuration of `fit` is returned as it is: it leaves out what is None, so that nothing is to
    be filled in.
    """
    if "dataset" not in config:
        return config
    return defaults_of(config.get("method")) | config


def read_history(run: LoadedRun) -> LoadedRun:
    """Return the run with its metrics and timings, and the status of a run without a summary.

    Raise InputError if a file is damaged or a line is not that of its round.
    """
    path = run.path / "metrics.jsonl"
    records = stored_values.check_lines(path, read_lines(path))
    timings_path = run.path / "timings.jsonl"
    timings = stored_values.check_lines(timings_path, read_lines(timings_path))
    for round, record in enumerate(records, start=1):
        if not isinstance(record.get("round"), int) or record["round"] != round:
            raise InputError(f"line {round} of {path} is not that of round {round}")
    status = RunStatus.UNFINISHED if records else RunStatus.EMPTY
    return replace(run, round_records=records, timings=timings, status=status)


def read_outcome(run: LoadedRun) -> LoadedRun:
    """Return the run with the status and the best round of its summary.

    A run without a summary is still running or was interrupted, and returned as it is. Raise
    InputError if the summary contradicts the metrics.
    """
    path = run.path / "summary.json"
    if not path.exists():
        return run
    summary = read_json(path)
    status_text = stored_values.text((path, "status"), summary.get("status"))
    recorded_rounds = stored_values.whole_number((path, "rounds"), summary.get("rounds"))
    best_round = summary.get("best_round")
    rounds = len(run.round_records)
    if recorded_rounds != rounds:
        raise InputError(f"{path} speaks of {recorded_rounds} rounds, metrics.jsonl has {rounds}")
    if best_round is not None:
        best_round = stored_values.whole_number((path, "best_round"), best_round)
        if not 1 <= best_round <= rounds:
            raise InputError(f"{path} names a best round {best_round} that is not in metrics.jsonl")
    if status_text == RunStatus.COMPLETED:
        # An extension of a run writes the new number of rounds just before it removes the summary.
        # If it is killed in between, the summary of the shorter run is still there.
        is_complete = rounds >= run.config["rounds"]
        status = RunStatus.COMPLETED if is_complete else RunStatus.UNFINISHED
        return replace(run, status=status, best_round=best_round)
    has_diverged = status_text.startswith(RunStatus.DIVERGED)
    status = RunStatus.DIVERGED if has_diverged else RunStatus.STOPPED
    return replace(run, status=status, status_message=status_text, best_round=best_round)


def read_clients(run: LoadedRun) -> LoadedRun:
    """Return the run with the accuracies of its clients, if it is usable and kept them.

    Raise InputError if the file is of another round or holds no accuracy.
    """
    path = run.path / "clients.json"
    if not run.is_usable or not path.exists():
        return run
    record = read_json(path)
    rounds = len(run.round_records)
    recorded_round = stored_values.whole_number((path, "round"), record.get("round"))
    if recorded_round != rounds:
        raise InputError(f"{path} is of round {recorded_round}, metrics.jsonl ends with {rounds}")
    place = (path, "accuracy")
    entries = stored_values.list_of(place, record.get("accuracy"))
    accuracies = [to_float(stored_values.number(place, entry)) for entry in entries]
    if not any(map(math.isfinite, accuracies)):
        raise InputError(f"{path} holds no accuracies")
    return replace(run, client_accuracies=accuracies)


def read_provenance(run: LoadedRun) -> LoadedRun:
    """Return the run with what made it, and whether its configuration is as it was written.

    Raise InputError if the file is damaged.
    """
    stored = read_sessions(run.path)
    sessions = stored_values.check_sessions(run.path / PROVENANCE, stored)
    return replace(run, sessions=sessions, has_edited_config=has_edited_config(run.path, stored))


# Rows and tables


COMPARABILITY_KEYS = (
    *(f.name for f in settings_in_help_order() if f.metadata["must_match"]),
    "data_hash",
    "architecture",
    "loss",
    "monitor",
)
"""Settings and descriptions of data in which runs must agree to be compared.

Runs that differ in one of them have another task, or are measured at another moment of it.
"""


def comparability_key(run: LoadedRun) -> Record:
    """Return what must be equal for runs to stand in one table."""
    return {key: run.config.get(key, run.data.get(key)) for key in COMPARABILITY_KEYS}


def row_config(run: LoadedRun) -> Record:
    """Return the settings that set the run's row apart from the other rows of its table.

    That a run also evaluates an averaged model (`twin`) is not among them, unless the run stands
    for that model: the results of the global model are the same.
    """
    keys_not_in_rows = {*COMPARABILITY_KEYS, "seed"}
    if not run.is_averaged_model:
        keys_not_in_rows.add("twin")
    settings = identifying_settings(run.config)
    return {key: value for key, value in settings.items() if key not in keys_not_in_rows}


def group_runs(
    runs: Iterable[LoadedRun], key: Callable[[LoadedRun], Record]
) -> list[list[LoadedRun]]:
    """Return the runs grouped by equal keys, in the order in which the keys first occur."""
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(key(run), sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def make_titles(comparability_keys: Sequence[Record]) -> list[str]:
    """Return a title for each table, given what its runs have in common.

    Where two titles would be equal, the settings in which the tables differ are added.
    """
    titles = [make_title(key) for key in comparability_keys]
    varying = varying_keys(comparability_keys)
    unique_titles = []
    for title, settings in zip(titles, comparability_keys, strict=True):
        if titles.count(title) == 1:
            unique_titles.append(title)
        else:
            differing = [f"{name} {format_value(settings[name])}" for name in varying]
            unique_titles.append(", ".join([title, *differing]))
    return unique_titles


def make_title(settings: Record) -> str:
    """Return a table's title from the settings that its runs have in common.

    A setting that is None is not among them.
    """
    parts = [settings["dataset"] or "data given to fit()", settings["partition"], settings["model"]]
    # With a natural partition the data say how many clients there are.
    is_natural = str(settings["partition"]).startswith("natural")
    if settings["clients"] is not None and not is_natural:
        parts.append(f"{settings['clients']} clients")
    if settings["rounds"] is not None:
        parts.append(format_rounds(settings["rounds"]))
    if settings["validation"]:
        parts.append(f"validation {format_value(settings['validation'])}")
    if settings["evaluate_every"] not in (1, None):
        parts.append(f"evaluated every {settings['evaluate_every']} rounds")
    stopping_rules = {
        "target_accuracy": "until accuracy {}",
        "patience": "patience {}",
        "time_budget": "at most {} s",
    }
    for key, text in stopping_rules.items():
        if settings[key] is not None:
            parts.append(text.format(format_value(settings[key])))
    return ", ".join(str(part) for part in parts if part is not None)


def make_labels(rows: Sequence[Record]) -> list[str]:
    """Return a label for each row of a table: its method and the values that tell it apart.

    Settings are compared with all rows of the table, options with the rows of the same method. A
    value that more than half of these rows share is left out; `omitted_values` lists it once. The
    row of an averaged model always says so.
    """
    return [make_label(rows, row) for row in rows]


def make_label(rows: Sequence[Record], row: Record) -> str:
    """Return the label of one of the rows of a table, given the configurations of all."""
    keys = [key for key in label_keys(rows, row) if key in row]
    words = [row["method"]]
    if row.get("twin") is not None:
        words += ["averaged", f"twin={format_value(row['twin'])}"]
    return " ".join([*words, *(f"{key}={format_value(row[key])}" for key in keys)])


def label_keys(rows: Sequence[Record], row: Record) -> list[str]:
    """Return the settings and options in which a row is not like most rows of its table."""
    majority_values = majority_settings(rows) | majority_options(rows, row["method"])
    return [key for key, values in majority_values.items() if row.get(key) not in values]


def omitted_values(rows: Sequence[Record]) -> list[str]:
    """Return the values that the labels leave out.

    Examples are "lr=0.1" for all rows and "fedsam rho=0.05" for the rows of a method.
    """
    prefixed_values = [("", majority_settings(rows))]
    for method in dict.fromkeys(row["method"] for row in rows):
        prefixed_values.append((f"{method} ", majority_options(rows, method)))
    lines = []
    for prefix, values_by_key in prefixed_values:
        text = " ".join(
            f"{key}={format_value(values[0])}" for key, values in values_by_key.items() if values
        )
        if text:
            lines.append(prefix + text)
    return lines


def majority_settings(rows: Sequence[Record]) -> dict[str, list[Any]]:
    """Return each setting in which the rows differ, with the value that most of them have.

    The list of a setting is empty if no value is that of more than half of the rows.
    """
    keys = [
        key
        for key in varying_keys(rows)
        if key in setting_names() and key not in ("method", "twin")
    ]
    return {key: find_majority(rows, key) for key in keys}


def majority_options(rows: Sequence[Record], method: str) -> dict[str, list[Any]]:
    """Return each option in which the method's rows differ, with the value that most of them have.

    The list of an option is empty if no value is that of more than half of the rows.
    """
    method_rows = [row for row in rows if row["method"] == method]
    keys = [key for key in varying_keys(method_rows) if key not in setting_names()]
    return {key: find_majority(method_rows, key) for key in keys}


def find_majority(records: Sequence[Record], key: str) -> list[Any]:
    """Return the value that more than half of the records have for the key, in a list.

    The list is empty if there is no such value; None may be a value.
    """
    values = [record.get(key) for record in records]
    return [value for value in values if 2 * values.count(value) > len(values)][:1]


def varying_keys(records: Sequence[Record]) -> list[str]:
    """Return the keys whose values are not the same in all of the records."""
    keys = dict.fromkeys(chain.from_iterable(records))
    return [key for key in keys if varies(records, key)]


def varies(records: Sequence[Record], key: str) -> bool:
    """Return whether the records differ in the key; a missing value counts as None."""
    return any(record.get(key) != records[0].get(key) for record in records)


def format_rounds(count: int) -> str:
    """Return "1 round" or, for example, "20 rounds"."""
    return "1 round" if count == 1 else f"{count} rounds"


def format_value(value: Any) -> str:
    """Return a value as a person would write it, with so many digits that no two look the same."""
    if value is None:
        return "none"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
