"""A run's models at the rounds it kept, with the data it was trained on; and what was found out about them."""

import json
from functools import cached_property
from pathlib import Path

from torch import Tensor

from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import DamagedFileError, to_device
from fedwmsam.engine.records import Record, read_json, replace_nonfinite
from fedwmsam.engine.run_folder import require_run_folder
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import Experiment, load_config, prepare
from fedwmsam.files import atomic_replace
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.task import Task


class SavedRun:
    """A run folder to be looked at; nothing in it is changed but the folder `analysis`."""

    def __init__(self, path: Path) -> None:
        self.path = require_run_folder(path)

    @cached_property
    def experiment(self) -> Experiment:
        experiment = prepare(load_config(self.path))
        experiment.check_data(self.path)
        return experiment

    @property
    def task(self) -> Task:
        return self.experiment.task

    @cached_property
    def places(self) -> dict[int, Path]:
        """Completed rounds → the file with the model after them."""
        found = {
            round: checkpoint.path_of(self.path / folder, round)
            for folder in ("checkpoints", "states")
            for round in checkpoint.rounds_in(self.path / folder)
        }
        model, summary = self.path / "model.safetensors", self.path / "summary.json"
        if model.exists() and summary.exists():
            rounds = read_json(summary).get("rounds")
            if not isinstance(rounds, int):
                raise InputError(f"{summary} does not say how many rounds were done.")
            found[rounds] = model
        if not found:
            raise InputError(
                f"{self.path} holds no model yet; go on with it: fedwmsam resume {self.path}"
            )
        return dict(sorted(found.items()))

    def rounds(self, wanted: str) -> list[int]:
        """Those of "last", "all" or "10,100" that the folder has a model of; a missing one is an error."""
        known = list(self.places)
        if wanted in ("last", "all"):
            return known[-1:] if wanted == "last" else known
        chosen = whole_numbers("--rounds", wanted, "last, all or rounds such as 10,100")
        missing = [round for round in chosen if round not in self.places]
        if missing:
            raise InputError(
                f"{self.path} has no model of round {missing[0]}; it has {', '.join(map(str, known))}. "
                "(`--keep-states 10` keeps one every tenth round.)"
            )
        return chosen

    def load(self, round: int, averaged: bool = False) -> tuple[Tensor, Vectors]:
        """The weights and buffers after so many rounds, of the model or of its averaged twin; the task's model has them
        and the frozen weights in place."""
        if averaged and self.experiment.config.twin is None:
            raise InputError(
                f"{self.path} has no averaged model: the run was made without a twin (--twin 8 keeps one)."
            )
        place = self.places[round]
        if place.suffix == ".safetensors":
            file = place.with_name("averaged.safetensors") if averaged else place
            w, buffers = self.task.adopt(checkpoint.read_tensors(file))
        else:
            try:
                bundles = checkpoint.read_checkpoint(place).bundles
            except DamagedFileError as damage:
                raise InputError(f"{damage}; leave round {round} out.") from damage
            self.task.load_frozen(to_device(bundles["frozen"], self.task.device))
            weights, beside = (
                ("averaged", "averaged buffers") if averaged else ("server", "buffers")
            )
            w, buffers = (
                bundles[weights]["w"].to(self.task.device),
                to_device(bundles[beside], self.task.device),
            )
        self.task.load(w)
        self.task.load_buffers(buffers)
        return w, buffers


def whole_numbers(name: str, text: str, expected: str) -> list[int]:
    """From "10,100", each once, rising."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"{name} must be {expected}, not {text!r}.")
    return sorted(set(map(int, parts)))


class AnalysisCache:
    """What was found out about a run's models, round by round, under the same settings: asked again, it is there."""

    def __init__(self, path: Path, settings: Record) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.found: dict[int, Record] = {}
        if path.exists():
            before, found = read_analysis_cache(path)
            if before == self.settings:
                self.found = found

    def __contains__(self, round: int) -> bool:
        return round in self.found

    def put(self, round: int, record: Record) -> None:
        self.found = dict(
            sorted((self.found | {round: {"round": round} | replace_nonfinite(record)}).items())
        )
        write_json(self.path, {"settings": self.settings, "rounds": list(self.found.values())})


def read_analysis_cache(path: Path) -> tuple[Record, dict[int, Record]]:
    """Its settings, and what it holds for each round."""
    content = read_json(path)
    try:
        return content["settings"], {record["round"]: record for record in content["rounds"]}
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged: it lacks {error}; remove it and analyse again."
        ) from error


def save_analysis(run: Path, name: str, record: Record) -> Path:
    path = run / "analysis" / name
    write_json(path, record, "make the run's folder writable")
    return path


def load_analysis(run: Path, name: str) -> Record | None:
    path = run / "analysis" / name
    return read_json(path) if path.exists() else None


def write_json(path: Path, record: Record, advice: str = "name another place with --out") -> None:
    """Whole or not at all; the advice is for who cannot write there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replace(path) as beside:
            beside.write_text(json.dumps(replace_nonfinite(record)) + "\n")
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; {advice}.") from error
