"""A run on disk: config.toml, metrics.jsonl, timings.jsonl, recordings.jsonl, checkpoints/ (memory.rows beside them),
model.safetensors (best.safetensors, averaged.safetensors), clients.json, summary.json.

Metrics hold only what a rerun reproduces byte for byte; timings live in a file of their own.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import torch
from filelock import FileLock, Timeout

from fedwmsam import toml
from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError, to_device
from fedwmsam.engine.client_state import ClientMemory, FileSlot, Store, index_of
from fedwmsam.engine.records import Record, json_line, read_lines, replace_nonfinite, whole_lines
from fedwmsam.engine.rounds import AveragedModel, Federation, State
from fedwmsam.errors import InputError
from fedwmsam.files import atomic_replace

log = logging.getLogger("fedwmsam")
DIGEST = 16
"""Bytes of the digest of metrics.jsonl in a checkpoint."""


class Busy(InputError):
    """Another process holds the folder."""


class RunFolder:
    """An open run folder; one process at a time holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.store = Store(self.checkpoints / "memory.rows")
        self._kept: dict[int, dict[int, FileSlot]] = {}
        """The rounds of whole checkpoints, and their slots, which must not be written over."""
        self._lock = FileLock(path / "lock")
        self._files: dict[str, TextIO] = {}
        self._metrics = digest_of(b"")
        """Of what metrics.jsonl holds; a checkpoint remembers it."""

    @classmethod
    def create(
        cls, path: Path, config: Record, companions: Mapping[str, Record] | None = None
    ) -> "RunFolder":
        """A new folder; an existing run is never overwritten. Companions are JSON files that the run cannot do without:
        they come before config.toml, which makes the folder a run."""
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
            for name, record in (companions or {}).items():
                folder.write_json(name, record)
            folder.write_config(config)
        except OSError as error:
            raise InputError(
                f"Cannot write the run to {path}: {error.strerror}; choose a writable place."
            ) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        folder = cls(require_run_folder(path))
        folder._take()
        return folder

    def _take(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise Busy(
                f"Another process is working in {self.path}; wait for it or stop it first."
            ) from None
        except OSError as error:
            raise InputError(
                f"Cannot write in {self.path}: {error.strerror}; make it writable."
            ) from error

    def write_config(self, config: Record) -> None:
        with atomic_replace(self.path / "config.toml") as beside:
            beside.write_text(toml.dump(config))

    def close(self) -> None:
        """Also where a line cannot be written any more: another may then take the folder."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            for file in self._files.values():
                stack.callback(file.close)
            stack.callback(self.store.close)
            self._files = {}

    def append(self, name: str, record: Record) -> None:
        """Add a line to metrics.jsonl, timings.jsonl or recordings.jsonl."""
        if name not in self._files:
            self._files[name] = (self.path / name).open("a")
        line = json_line(record)
        self._files[name].write(line)
        if name == "metrics.jsonl":
            self._metrics.update(line.encode())
        self._files[name].flush()

    def complete(self, records: Sequence[Record]) -> None:
        """Append those of the records that metrics.jsonl lacks at its end."""
        if "metrics.jsonl" in self._files:
            self._files["metrics.jsonl"].flush()
        path = self.path / "metrics.jsonl"
        content = path.read_bytes() if path.exists() else b""
        self._metrics = digest_of(
            content
        )  # an interrupt may have come between a line and its digest
        for record in records[content.count(b"\n") :]:
            self.append("metrics.jsonl", record)

    def save(self, state: Checkpoint, memory: ClientMemory) -> None:
        """Make a checkpoint durable, its metrics and rows before it; then drop the ones no longer needed."""
        assert memory.store is self.store
        for file in self._files.values():
            os.fsync(file.fileno())
        slots, round = memory.save(), state.notes["round"]
        index = self.store.describe(slots)
        notes = state.notes | index.notes | {"metrics": self._metrics.hexdigest()}
        whole = Checkpoint(state.bundles | index.bundles, notes)
        checkpoint.write_checkpoint(checkpoint.path_of(self.checkpoints, round), whole)
        kept = dict(sorted((self._kept | {round: slots}).items())[-checkpoint.KEEP :])
        checkpoint.prune(self.checkpoints, kept)
        self._kept = kept

    def keep(self, state: Checkpoint) -> None:
        """Keep the state before a round for later analysis; unlike a checkpoint it stays."""
        (self.path / "states").mkdir(exist_ok=True)
        checkpoint.write_checkpoint(
            checkpoint.path_of(self.path / "states", state.notes["round"]), state
        )

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint whose metrics are as they were; what was written after it is cut off."""
        bereft = 0
        for round in checkpoint.rounds_in(self.checkpoints):
            try:
                found = self._read(round)
                self.store.check(found)
                bereft = round
                self._check_metrics(found)
                self._cut_to(round)
                return found
            except DamagedFileError as damage:
                log.warning("%s; using the checkpoint before it.", damage)
        if bereft:  # to begin again would throw away what somebody can still put right
            raise InputError(
                f"{self.path / 'metrics.jsonl'} is not as it was written, not even up to round {bereft}; put its lines "
                f"back, or begin again by removing the files in {self.checkpoints}."
            )
        self._cut_to(0)
        return None

    def _check_metrics(self, found: Checkpoint) -> None:
        """Raises Damaged unless every line up to the checkpoint is as it was written."""
        path, round = self.path / "metrics.jsonl", found.notes["round"]
        lines = whole_lines(path)[:round]
        if len(lines) < round:
            raise DamagedFileError(
                f"{path} lacks lines that belong to the checkpoint of round {round}"
            )
        digest = digest_of(b"".join(lines)).hexdigest()
        if (
            found.notes.get("metrics", digest) != digest
        ):  # checkpoints made before there was a digest have none
            raise DamagedFileError(f"{path} is damaged before its line {round + 1}")

    def _cut_to(self, round: int) -> None:
        """Drop what belongs to later rounds, and what a process left that was killed while it wrote."""
        for folder in (self.path, self.checkpoints, self.path / "states"):
            for leftover in folder.glob(".*.new"):
                leftover.unlink()
        self._cut("metrics.jsonl", round)
        self._cut("timings.jsonl", round)
        self._forget("recordings.jsonl", round)
        self._metrics = digest_of(b"".join(whole_lines(self.path / "metrics.jsonl")))

    def recall(self, found: Checkpoint, memory: ClientMemory) -> ClientMemory:
        """A checkpoint's rows; those of the checkpoints before it stay where they are, should they be needed."""
        newest = found.notes["round"]
        before = [
            self._whole(round) for round in checkpoint.rounds_in(self.checkpoints) if round < newest
        ]
        whole = [*filter(None, before), found]
        self._kept = {
            kept.notes["round"]: slots
            for kept, slots in zip(whole, self.store.adopt(whole), strict=True)
        }
        return memory.stored(self._kept[newest])

    def _whole(self, round: int) -> Checkpoint | None:
        try:
            found = self._read(round)
            return (
                found
                if all(self.store.reaches(number) for _, number, _ in index_of(found))
                else None
            )
        except DamagedFileError:
            return None

    def _read(self, round: int) -> Checkpoint:
        path = checkpoint.path_of(self.checkpoints, round)
        found = checkpoint.read_checkpoint(path)
        if found.notes.get("round") != round:
            raise DamagedFileError(f"{path} is a checkpoint of round {found.notes.get('round')}")
        return found

    def _cut(self, name: str, rounds: int) -> None:
        """Keep the first `rounds` lines."""
        path = self.path / name
        kept = b"".join(whole_lines(path)[:rounds])
        if path.exists() and path.stat().st_size != len(kept):
            with atomic_replace(path) as beside:
                beside.write_bytes(kept)

    def _forget(self, name: str, round: int) -> None:
        """Drop the lines of later rounds from a file that does not have a line for every round."""
        path = self.path / name
        if path.exists():
            kept = [line for line in read_lines(path) if line["round"] <= round]
            with atomic_replace(path) as beside:
                beside.write_text("".join(map(json_line, kept)))

    def reopen_results(self) -> None:
        """The run goes on: what an earlier end wrote is no longer its outcome."""
        for name in (
            "summary.json",
            "clients.json",
            "model.safetensors",
            "best.safetensors",
            "averaged.safetensors",
        ):
            (self.path / name).unlink(missing_ok=True)

    def write_json(self, name: str, record: Record) -> None:
        with atomic_replace(self.path / name) as beside:
            beside.write_text(json.dumps(replace_nonfinite(record), indent=2) + "\n")


def is_run(path: Path) -> bool:
    return (path / "config.toml").exists()


def require_run_folder(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"There is no run folder {path}.")
    if not is_run(path):
        raise InputError(f"{path} is not a run folder: it has no config.toml.")
    return path


def digest_of(content: bytes) -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=DIGEST)


def create_unused_folder(parent: Path, name: str, create: Callable[[Path], RunFolder]) -> RunFolder:
    """A new run folder parent/name, or parent/name-2, -3 … where that name is taken."""
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        if not is_run(path):
            return create(path)
        number += 1


# A state as a checkpoint holds it, and back


def pack_state(federation: Federation, state: State) -> Checkpoint:
    """A state but for what is remembered about clients."""
    bundles = {"server": state.server, "buffers": state.buffers, "frozen": federation.task.frozen()}
    if state.average:
        bundles |= {"averaged": {"w": state.average.w}, "averaged buffers": state.average.buffers}
    return Checkpoint(bundles, {"round": state.round, "method": federation.method.name})


def unpack_state(federation: Federation, found: Checkpoint, memory: ClientMemory) -> State:
    """The state that a checkpoint holds; its frozen weights are put into the model."""
    federation.task.load_frozen(found.bundles["frozen"])
    server, buffers = (
        to_device(found.bundles[name], federation.task.device) for name in ("server", "buffers")
    )
    return State(
        found.notes["round"], server, buffers, memory, average_in(found, federation.task.device)
    )


def average_in(found: Checkpoint, device: torch.device) -> AveragedModel | None:
    """The averaged twin that a checkpoint holds."""
    if "averaged" not in found.bundles:
        return None
    return AveragedModel(
        found.bundles["averaged"]["w"].to(device),
        to_device(found.bundles["averaged buffers"], device),
    )


def pack_replay_state(federation: Federation, state: State) -> Checkpoint:
    """All that the next round reads: the server's state and the memory of the clients that will take part."""
    cohort, kept = federation.schedule.cohort(state.round), pack_state(federation, state)
    rows = {f"memory/{client}": state.memory[client] for client in cohort if client in state.memory}
    return Checkpoint(kept.bundles | rows, kept.notes)


def unpack_replay_state(federation: Federation, kept: Checkpoint) -> State:
    """The state before a round, from what `kept_state` kept of it: `run_round` then repeats the round exactly."""
    device = federation.task.device
    changes = ClientMemory(device=device).changing()
    for name, row in kept.bundles.items():
        if name.startswith("memory/"):
            changes.put(int(name.removeprefix("memory/")), to_device(row, device))
    return unpack_state(federation, kept, changes.done())
