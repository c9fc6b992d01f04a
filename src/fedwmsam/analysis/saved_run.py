"""Saved runs: the models that a run folder keeps, their training data, and analyses of them.

A `SavedRun` loads the models of a run folder. An `AnalysisCache` keeps what an analysis found for
each round, so that it is not computed again; `save_analysis` and `load_analysis` keep one record
per run.
"""

import json
from functools import cached_property
from pathlib import Path

from torch import Tensor

from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import DamagedFileError
from fedwmsam.engine.records import Record, read_json, replace_nonfinite
from fedwmsam.engine.run_folder import (
    bundle_like,
    read_state,
    require_run_folder,
    resume_advice,
    unpack_model,
)
from fedwmsam.errors import InputError, printable
from fedwmsam.experiment.experiment import Experiment, load_config, prepare
from fedwmsam.experiment.trust import UNTRUSTED, Trust
from fedwmsam.files import own_folder, write_text
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.task import Task


class SavedRun:
    """A run folder whose models can be loaded; only its subfolder `analysis` is ever written to."""

    def __init__(self, path: Path, trust: Trust = UNTRUSTED) -> None:
        self.path = require_run_folder(path)
        self.trust = trust
        """Whether a model that the folder names may be imported."""

    @cached_property
    def experiment(self) -> Experiment:
        """Return the run's experiment: its data, partition and model, prepared anew.

        Raise InputError if the data are not those of the run.
        """
        experiment = prepare(load_config(self.path, self.trust))
        experiment.check_data(self.path)
        return experiment

    @property
    def task(self) -> Task:
        """Return the task of the run's experiment."""
        return self.experiment.task

    @cached_property
    def model_files(self) -> dict[int, Path]:
        """Return the file that holds the model after so many completed rounds, in rising order.

        Raise InputError if the folder holds no model.
        """
        files: dict[int, Path] = {}
        for name in ("checkpoints", "states"):
            folder = own_folder(self.path / name)
            for round in checkpoint.rounds_in(folder):
                files[round] = checkpoint.path_of(folder, round)
        model = self.path / "model.safetensors"
        summary = self.path / "summary.json"
        if model.exists() and summary.exists():
            rounds = read_json(summary).get("rounds")
            if type(rounds) is not int or rounds < 0:
                raise InputError(f"{summary} does not say how many rounds were done.")
            files[rounds] = model
        if not files:
            raise InputError(
                f"{self.path} holds no model yet; go on with it: {resume_advice(self.path)}"
            )
        return dict(sorted(files.items()))

    def select_rounds(self, selection: str) -> list[int]:
        """Return the rounds that "last", "all" or a list such as "10,100" selects.

        Raise InputError if the folder has no model of a listed round.
        """
        available = list(self.model_files)
        if selection in ("last", "all"):
            return available[-1:] if selection == "last" else available
        chosen = parse_whole_numbers("--rounds", selection, "last, all or rounds such as 10,100")
        missing = [round for round in chosen if round not in self.model_files]
        if missing:
            raise InputError(
                f"{self.path} has no model of round {missing[0]}; "
                f"it has {', '.join(map(str, available))}. "
                "(`--keep-states 10` keeps one every tenth round.)"
            )
        return chosen

    def load(self, round: int, averaged: bool = False) -> tuple[Tensor, Vectors]:
        """Load the model after so many rounds into the task and return its weights and buffers.

        `averaged` loads the averaged model (the twin) instead. Frozen weights are loaded as well.
        Raise InputError if there is no averaged model or the file is damaged.
        """
        if averaged and self.experiment.config.twin is None:
            raise InputError(
                f"{self.path} has no averaged model: "
                "the run was made without a twin (--twin 8 keeps one)."
            )
        file = self.model_files[round]
        if file.suffix == ".safetensors":
            if averaged:
                file = file.with_name("averaged.safetensors")
            w, buffers = self.task.unpack_state_dict(checkpoint.read_tensors(file))
        else:
            w, buffers = self._read_state(file, round, averaged)
        self.task.load_weights(w)
        self.task.load_buffers(buffers)
        return w, buffers

    def _read_state(self, file: Path, round: int, averaged: bool) -> tuple[Tensor, Vectors]:
        """Return weights and buffers from a checkpoint or kept state; load its frozen weights."""
        try:
            saved = read_state(file.parent, round)
            self.task.load_frozen(bundle_like(saved, "frozen", self.task.copy_frozen()))
            if averaged:
                return unpack_model(self.task, saved, "averaged", "averaged buffers")
            return unpack_model(self.task, saved, "server", "buffers")
        except DamagedFileError as damage:
            raise InputError(f"{file}: {damage}; leave round {round} out.") from damage


def parse_whole_numbers(name: str, text: str, expected: str) -> list[int]:
    """Parse a list such as "10,100" and return its numbers in rising order, each once.

    Raise InputError, naming the option `name` and what is `expected`, if the text is no such list.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"{name} must be {expected}, not {text!r}.")
    return sorted(set(map(int, parts)))


class AnalysisCache:
    """A JSON file with an analysis of a run's models: one record per round.

    Records that were computed with other settings are ignored, and overwritten by the next `put`.
    """

    def __init__(self, path: Path, settings: Record) -> None:
        self.path = path
        self.settings = json.loads(json.dumps(settings))
        self.records: dict[int, Record] = {}
        if path.exists():
            saved_settings, records = read_analysis_cache(path)
            if saved_settings == self.settings:
                self.records = records

    def __contains__(self, round: int) -> bool:
        """Return whether the file has a record of this round."""
        return round in self.records

    def put(self, round: int, record: Record) -> None:
        """Add the record of a round and write the file."""
        records = self.records | {round: {"round": round} | replace_nonfinite(record)}
        self.records = dict(sorted(records.items()))
        write_json(self.path, {"settings": self.settings, "rounds": list(self.records.values())})


def read_analysis_cache(path: Path) -> tuple[Record, dict[int, Record]]:
    """Return the settings of an `AnalysisCache` file and its records by round.

    Raise InputError if the file is damaged.
    """
    own_folder(path.parent)
    content = read_json(path)
    try:
        return content["settings"], {record["round"]: record for record in content["rounds"]}
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged: it lacks {printable(error)}; remove it and analyse again."
        ) from error


def save_analysis(run: Path, name: str, record: Record) -> Path:
    """Write a record to the run's folder `analysis` and return the file's path."""
    path = own_folder(run / "analysis") / name
    write_json(path, record, "make the run's folder writable")
    return path


def load_analysis(run: Path, name: str) -> Record | None:
    """Return the record of that name in the run's folder `analysis`, None if there is none."""
    path = own_folder(run / "analysis") / name
    return read_json(path) if path.exists() else None


def write_json(path: Path, record: Record, advice: str = "name another place with --out") -> None:
    """Write a record as JSON, replacing the file atomically; values that are not finite are null.

    Raise InputError, ending with the advice, if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(replace_nonfinite(record)) + "\n")
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; {advice}.") from error
