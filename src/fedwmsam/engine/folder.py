"""A run on disk: config.toml, metrics.jsonl, timings.jsonl, recordings.jsonl, checkpoints/ (memory.rows beside them),
model.safetensors, clients.json, summary.json.

Metrics hold only what a rerun reproduces byte for byte; timings live in a file of their own.
"""

import fcntl
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from fedwmsam import toml
from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, Damaged
from fedwmsam.engine.memory import Memory
from fedwmsam.engine.store import Slot, Store
from fedwmsam.errors import InputError

log = logging.getLogger("fedwmsam")
Record = dict[str, Any]


class Busy(InputError):
    """Another process holds the folder."""


class RunFolder:
    """An open run folder; one process at a time holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.store = Store(self.checkpoints / "memory.rows")
        self._kept: dict[int, dict[int, Slot]] = {}
        """The rounds of whole checkpoints, and their slots, which must not be written over."""
        self._lock: TextIO | None = None
        self._files: dict[str, TextIO] = {}

    @classmethod
    def create(cls, path: Path, config: Record) -> "RunFolder":
        """A new folder; an existing run is never overwritten."""
        if is_run(path):
            raise InputError(
                f"{path} already holds a run; choose another folder, or go on with it: "
                f"fedwmsam resume {path}, or resume=True in fit()."
            )
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; choose a folder for the run.")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            folder = cls(path)
            folder._take()
            folder.write_config(config)
        except OSError as error:
            raise InputError(f"Cannot write the run to {path}: {error.strerror}; choose a writable place.") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        folder = cls(existing(path))
        folder._take()
        return folder

    def _take(self) -> None:
        try:
            self._lock = (self.path / "lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"Another process is working in {self.path}; wait for it or stop it first.") from None
        except OSError as error:
            raise InputError(f"Cannot write in {self.path}: {error.strerror}; make it writable.") from error

    def write_config(self, config: Record) -> None:
        with checkpoint.replacing(self.path / "config.toml") as beside:
            beside.write_text(toml.dump(config))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}
        self.store.close()
        if self._lock:
            self._lock.close()
            self._lock = None

    def append(self, name: str, record: Record) -> None:
        """Add a line to metrics.jsonl, timings.jsonl or recordings.jsonl."""
        if name not in self._files:
            self._files[name] = (self.path / name).open("a")
        self._files[name].write(json_line(record))
        self._files[name].flush()

    def complete(self, name: str, records: Sequence[Record]) -> None:
        """Append those of the records that the file lacks at its end."""
        if name in self._files:
            self._files[name].flush()
        path = self.path / name
        for record in records[path.read_bytes().count(b"\n") if path.exists() else 0 :]:
            self.append(name, record)

    def save(self, state: Checkpoint, memory: Memory) -> None:
        """Make a checkpoint durable, its metrics and rows before it; then drop the ones no longer needed."""
        assert memory.store is self.store
        for file in self._files.values():
            os.fsync(file.fileno())
        slots, round = memory.save(), state.notes["round"]
        index = self.store.describe(slots)
        whole = Checkpoint(state.bundles | index.bundles, state.notes | index.notes)
        checkpoint.write(checkpoint.path_of(self.checkpoints, round), whole)
        kept = dict(sorted((self._kept | {round: slots}).items())[-checkpoint.KEEP :])
        checkpoint.prune(self.checkpoints, kept)
        self._kept = kept

    def keep(self, state: Checkpoint) -> None:
        """Keep the state before a round for later analysis; unlike a checkpoint it stays."""
        (self.path / "states").mkdir(exist_ok=True)
        checkpoint.write(checkpoint.path_of(self.path / "states", state.notes["round"]), state)

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint whose metrics are all there; what was written after it is cut off."""
        for round in checkpoint.rounds_in(self.checkpoints):
            try:
                found = checkpoint.read(checkpoint.path_of(self.checkpoints, round))
                self.store.check(found)
                self._cut("metrics.jsonl", round, strict=True)
                self._cut("timings.jsonl", round, strict=False)
                self._forget("recordings.jsonl", round)
                return found
            except Damaged as damage:
                log.warning("%s; using the checkpoint before it.", damage)
        self._cut("metrics.jsonl", 0, strict=False)
        self._cut("timings.jsonl", 0, strict=False)
        self._forget("recordings.jsonl", 0)
        return None

    def recall(self, found: Checkpoint, memory: Memory) -> Memory:
        """A checkpoint's rows; those of the checkpoints before it stay where they are, should they be needed."""
        newest = found.notes["round"]
        before = [self._whole(round) for round in checkpoint.rounds_in(self.checkpoints) if round < newest]
        whole = [*filter(None, before), found]
        self._kept = {kept.notes["round"]: slots for kept, slots in zip(whole, self.store.adopt(whole), strict=True)}
        return memory.stored(self._kept[newest])

    def _whole(self, round: int) -> Checkpoint | None:
        try:
            return checkpoint.read(checkpoint.path_of(self.checkpoints, round))
        except Damaged:
            return None

    def _cut(self, name: str, rounds: int, *, strict: bool) -> None:
        """Keep the first `rounds` lines; `strict` demands that they are there."""
        path = self.path / name
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        kept = lines[:rounds]
        if strict and (len(kept) < rounds or (kept and not kept[-1].endswith(b"\n"))):
            raise Damaged(f"{path} lacks lines that belong to the checkpoint of round {rounds}")
        if kept != lines:
            with checkpoint.replacing(path) as beside:
                beside.write_bytes(b"".join(kept))

    def _forget(self, name: str, round: int) -> None:
        """Drop the lines of later rounds from a file that does not have a line for every round."""
        path = self.path / name
        if path.exists():
            kept = [line for line in read_lines(path) if line["round"] <= round]
            with checkpoint.replacing(path) as beside:
                beside.write_text("".join(map(json_line, kept)))

    def reopen_results(self) -> None:
        """The run goes on: what an earlier end wrote is no longer its outcome."""
        for name in ("summary.json", "clients.json", "model.safetensors", "best.safetensors"):
            (self.path / name).unlink(missing_ok=True)

    def write_json(self, name: str, record: Record) -> None:
        with checkpoint.replacing(self.path / name) as beside:
            beside.write_text(json.dumps(finite_only(record), indent=2) + "\n")


def is_run(path: Path) -> bool:
    return (path / "config.toml").exists()


def existing(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"There is no run folder {path}.")
    if not is_run(path):
        raise InputError(f"{path} is not a run folder: it has no config.toml.")
    return path


def read_lines(path: Path) -> list[Record]:
    """Whole lines of a .jsonl file; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged: {error}.") from error


def read_json(path: Path) -> Record:
    try:
        record: Record = json.loads(path.read_text())
        return record
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def json_line(record: Record) -> str:
    return json.dumps(finite_only(record)) + "\n"


def finite_only(record: Record) -> Record:
    """JSON has no NaN or infinity: they become null."""
    return {key: finite(value) for key, value in record.items()}


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return finite_only(value)
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def unused(parent: Path, name: str, create: Callable[[Path], RunFolder]) -> RunFolder:
    """A new run folder parent/name, or parent/name-2, -3 … where that name is taken."""
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        if not is_run(path):
            return create(path)
        number += 1
