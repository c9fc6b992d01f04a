"""The folder of a run on disk.

It holds

    config.toml             the settings; a folder with this file is a run
    metrics.jsonl           a line per round with only what a rerun reproduces byte for byte
    timings.jsonl           a line per round with how long it took
    recordings.jsonl        the lines of rounds whose dynamics were recorded
    checkpoints/            the newest checkpoints, and memory.rows with the clients' rows
    states/                 states kept for replay, if the run keeps any
    frozen.safetensors      the weights that are not trained, for checkpoints and kept states
    model.safetensors       the last model (and best.safetensors, averaged.safetensors)
    clients.json            the last model's accuracy for each client
    fingerprint.json        what the data of the clients of `fit` are recognised by
    provenance.json         what made the run: versions, machine, command lines and times
    summary.json            the outcome, once the run is over
    identities.json         on Flower, the keys that clients belong to
    status.json             on Flower, who is connected and what the server is doing
"""

import contextlib
import hashlib
import json
import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

import torch
from filelock import Timeout

from fedwmsam import files, toml
from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError, to_device
from fedwmsam.engine.client_state import ClientMemory, FileSlot, RowLayout, Store, index_of
from fedwmsam.engine.frozen import FrozenFile
from fedwmsam.engine.provenance import MAX_SESSIONS, PROVENANCE, current_time, read_sessions
from fedwmsam.engine.records import (
    Record,
    complete_lines,
    json_line,
    read_lines,
    replace_nonfinite,
    round_of,
)
from fedwmsam.engine.rounds import AveragedModel, Federation, State
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.task import Task

log = logging.getLogger("fedwmsam")
FINGERPRINT = "fingerprint.json"
DIGEST = 16
"""Bytes of the digests of metrics.jsonl in a checkpoint and of config.toml in a session."""


class FolderBusy(InputError):
    """Another process works in the folder."""


class RunFolder:
    """An open run folder, which one process at a time holds a lock on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = files.own_folder(path / "checkpoints")
        self.store = Store(self.checkpoints / "memory.rows")
        self.frozen = FrozenFile(path)
        self._kept_slots: dict[int, dict[int, FileSlot]] = {}
        """The slots of each intact checkpoint by round, which must not be overwritten."""
        self._lock = files.lock_for(path / "lock")
        self._files: dict[str, TextIO] = {}
        self._metrics_digest = digest_of(b"")
        """The digest of metrics.jsonl as it is now; every checkpoint notes it."""
        self._sessions: list[Record] = []
        """The content of provenance.json, this session last; empty until it begins."""

    @classmethod
    def create(
        cls, path: Path, config: Record, required_files: Mapping[str, Record] | None = None
    ) -> "RunFolder":
        """Create a run folder and return it; raise InputError if there is a run already.

        Required files are JSON files that the run cannot do without. They are written before
        config.toml, which makes the folder a run.
        """
        if is_run(path):
            raise InputError(
                f"{path} already holds a run; choose another folder, or go on with it: "
                f"{resume_advice(path)}."
            )
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; choose a folder for the run.")
        try:
            files.own_folder(path / "checkpoints").mkdir(parents=True, exist_ok=True)
            folder = cls(path)
            folder._acquire_lock()
            (path / PROVENANCE).unlink(missing_ok=True)  # of a run that somebody has removed
            for name, record in (required_files or {}).items():
                folder.write_json(name, record)
            folder.write_config(config)
        except OSError as error:
            raise InputError(
                f"Cannot write the run to {path}: {error.strerror}; choose a writable place."
            ) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return the folder of an existing run.

        Raise FolderBusy if another process works in it, and InputError if somebody has edited its
        config.toml: what was trained before would not be what the file says.
        """
        folder = cls(require_run_folder(path))
        folder._acquire_lock()
        try:
            if has_edited_config(path, read_sessions(path)):
                raise InputError(
                    f"{path / 'config.toml'} is not as the run wrote it; put it back, begin a new "
                    f"run, or remove {path / PROVENANCE} if you answer for the change."
                )
        except InputError:
            folder.close()
            raise
        return folder

    def _acquire_lock(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise FolderBusy(
                f"Another process is working in {self.path}; wait for it or stop it first."
            ) from None
        except OSError as error:
            raise InputError(
                f"Cannot write in {self.path}: {error.strerror}; make it writable."
            ) from error

    def write_config(self, config: Record) -> None:
        """Write config.toml, in place of the one that exists."""
        files.write_text(self.path / "config.toml", toml.dump(config))

    def begin_session(self, config: Record, session: Record) -> None:
        """Add a session to provenance.json, then write the config.toml that it works with.

        The digest comes before the file: if the process is killed in between, the file that is
        there is that of an earlier session, whose digest is there as well.
        """
        digest = digest_of(toml.dump(config).encode()).hexdigest()
        earlier = read_sessions(self.path)[1 - MAX_SESSIONS :]
        self._sessions = [*earlier, session | {"config": digest}]
        self.write_json(PROVENANCE, {"sessions": self._sessions})
        self.write_config(config)

    def end_session(self, round: int) -> None:
        """Complete the session in provenance.json with its last round and the time."""
        self._sessions[-1] |= {"last_round": round, "end": current_time()}
        self.write_json(PROVENANCE, {"sessions": self._sessions})

    def close(self) -> None:
        """Close all files and release the lock, also where closing a file fails."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            for file in self._files.values():
                stack.callback(file.close)
            stack.callback(self.store.close)
            self._files = {}

    def append(self, name: str, record: Record) -> None:
        """Append a line to metrics.jsonl, timings.jsonl or recordings.jsonl."""
        if name not in self._files:
            self._files[name] = files.open_to_append(self.path / name)
        line = json_line(record)
        self._files[name].write(line)
        if name == "metrics.jsonl":
            self._metrics_digest.update(line.encode())
        self._files[name].flush()

    def append_missing_metrics(self, records: Sequence[Record]) -> None:
        """Append those of the run's records that metrics.jsonl lacks at its end."""
        if "metrics.jsonl" in self._files:
            self._files["metrics.jsonl"].flush()
        # An interrupt may have come between writing a line and updating the digest.
        content = b"".join(complete_lines(self.path / "metrics.jsonl"))
        self._metrics_digest = digest_of(content)
        for record in records[content.count(b"\n") :]:
            self.append("metrics.jsonl", record)

    def save(self, state: Checkpoint, memory: ClientMemory) -> None:
        """Make a checkpoint of the state and the memory durable, then remove those not needed.

        Its metrics and rows are made durable before it, so that it never refers to anything lost.
        """
        assert memory.store is self.store
        for file in self._files.values():
            os.fsync(file.fileno())
        slots = memory.save()
        state = self.frozen.set_apart(state)
        round = state.notes["round"]
        index = self.store.describe(slots)
        notes = state.notes | index.notes | {"metrics": self._metrics_digest.hexdigest()}
        complete = Checkpoint(state.bundles | index.bundles, notes)
        checkpoint.write_checkpoint(checkpoint.path_of(self.checkpoints, round), complete)
        slots_by_round = sorted((self._kept_slots | {round: slots}).items())
        kept_slots = dict(slots_by_round[-checkpoint.KEPT_CHECKPOINTS :])
        checkpoint.prune(self.checkpoints, kept_slots)
        self._kept_slots = kept_slots

    def save_replay_state(self, state: Checkpoint) -> None:
        """Save the state before a round for later analysis; unlike a checkpoint it stays."""
        folder = files.own_folder(self.path / "states")
        folder.mkdir(exist_ok=True)
        path = checkpoint.path_of(folder, state.notes["round"])
        checkpoint.write_checkpoint(path, self.frozen.set_apart(state))

    def rewind_to_checkpoint(self) -> Checkpoint | None:
        """Rewind the folder to its newest intact checkpoint and return it; None if there is none.

        A checkpoint is intact if its file, its rows and the lines of metrics.jsonl up to it are as
        they were written. Lines of later rounds are removed from all .jsonl files, and so are the
        temporary files of a process that was killed. Raise InputError if there are checkpoints
        but none has its metrics, or if the frozen weights are not those of the checkpoint.
        """
        round_without_metrics = 0
        for round in checkpoint.rounds_in(self.checkpoints):
            try:
                saved = checkpoint.read_round(self.checkpoints, round)
                self.store.check(saved)
                round_without_metrics = round
                self._check_metrics(saved)
                complete = self.frozen.put_back(saved)
                self._rewind_to(round)
                return complete
            except DamagedFileError as damage:
                log.warning("%s; using the checkpoint before it.", damage)
        if round_without_metrics:
            # Starting again would throw away what somebody can still put right.
            raise InputError(
                f"{self.path / 'metrics.jsonl'} is not as it was written, not even up to round "
                f"{round_without_metrics}; put its lines "
                f"back, or begin again by removing the files in {self.checkpoints}."
            )
        self._rewind_to(0)
        return None

    def _check_metrics(self, saved: Checkpoint) -> None:
        """Raise DamagedFileError unless the metrics up to the checkpoint are as they were."""
        path = self.path / "metrics.jsonl"
        round = saved.notes["round"]
        lines = list(islice(complete_lines(path), round))
        if len(lines) < round:
            raise DamagedFileError(
                f"{path} lacks lines that belong to the checkpoint of round {round}"
            )
        digest = digest_of(b"".join(lines)).hexdigest()
        # Checkpoints written before there was a digest have none.
        if saved.notes.get("metrics", digest) != digest:
            raise DamagedFileError(f"{path} is damaged before its line {round + 1}")

    def _rewind_to(self, round: int) -> None:
        """Remove the lines of later rounds, and temporary files that a killed process left."""
        for folder in (self.path, self.checkpoints, files.own_folder(self.path / "states")):
            files.remove_temporary_files(folder)
        self._truncate("metrics.jsonl", round)
        self._truncate("timings.jsonl", round)
        self._remove_later_rounds("recordings.jsonl", round)
        self._metrics_digest = digest_of(b"".join(complete_lines(self.path / "metrics.jsonl")))

    def restore_memory(self, saved: Checkpoint, memory: ClientMemory) -> ClientMemory:
        """Return the memory with the rows of a checkpoint.

        The rows of older intact checkpoints stay in their slots, should they be needed.
        """
        newest = saved.notes["round"]
        rounds = [round for round in checkpoint.rounds_in(self.checkpoints) if round < newest]
        older = [self._read_if_intact(round) for round in rounds]
        intact = [*filter(None, older), saved]
        slots = self.store.restore_slots(intact)
        intact_rounds = [kept.notes["round"] for kept in intact]
        self._kept_slots = dict(zip(intact_rounds, slots, strict=True))
        return memory.with_slots(self._kept_slots[newest])

    def _read_if_intact(self, round: int) -> Checkpoint | None:
        """Return a checkpoint if it can be read and the store is large enough for its rows."""
        try:
            saved = checkpoint.read_round(self.checkpoints, round)
            has_rows = all(self.store.contains_slot(number) for _, number, _ in index_of(saved))
        except DamagedFileError:
            return None
        return saved if has_rows else None

    def _truncate(self, name: str, rounds: int) -> None:
        """Keep the first `rounds` lines of a file with a line per round."""
        path = self.path / name
        kept = b"".join(islice(complete_lines(path), rounds))
        if path.exists() and path.stat().st_size != len(kept):
            files.write_bytes(path, kept)

    def _remove_later_rounds(self, name: str, round: int) -> None:
        """Remove the lines of later rounds from a file that lacks a line for some rounds."""
        path = self.path / name
        if path.exists():
            kept = [line for line in read_lines(path) if round_of(line, path) <= round]
            files.write_text(path, "".join(map(json_line, kept)))

    def remove_results(self) -> None:
        """Remove what an earlier end of the run wrote, because the run goes on."""
        for name in (
            "summary.json",
            "clients.json",
            "model.safetensors",
            "best.safetensors",
            "averaged.safetensors",
        ):
            (self.path / name).unlink(missing_ok=True)

    def write_json(self, name: str, record: Record) -> None:
        """Write the record to a JSON file of the folder, in place of one that exists."""
        files.write_text(self.path / name, json.dumps(replace_nonfinite(record), indent=2) + "\n")


def is_run(path: Path) -> bool:
    """Return whether the path is a run folder: whether it has a config.toml."""
    return (path / "config.toml").exists()


def require_run_folder(path: Path) -> Path:
    """Return the path; raise InputError unless it is a run folder."""
    if not path.exists():
        raise InputError(f"There is no run folder {path}.")
    if not is_run(path):
        runs = sum(map(is_run, path.iterdir())) if path.is_dir() else 0
        advice = "; the command that made a comparison goes on with it" if runs else ""
        raise InputError(f"{path} is not a run folder: it has no config.toml{advice}.")
    return path


def is_busy(path: Path) -> bool:
    """Return whether a process works in the run folder."""
    return files.is_locked(path / "lock")


def has_edited_config(path: Path, sessions: Sequence[Record]) -> bool:
    """Return whether config.toml is another than the run's sessions have written.

    Runs of older versions have no sessions, and nothing is known of their file.
    """
    if not sessions:
        return False
    config = path / "config.toml"
    try:
        content = files.read_bytes(config, toml.LIMIT)
    except OSError as error:
        raise InputError(f"Cannot read {config}: {error.strerror}; make it readable.") from error
    return digest_of(content).hexdigest() not in [session.get("config") for session in sessions]


def resume_advice(path: Path) -> str:
    """Return how to go on with a run; only those of the command line have a data.json."""
    if (path / "data.json").exists():
        return f"fedwmsam resume {shlex.quote(path.as_posix())}"
    return f"fit(..., run_folder={str(path)!r}, resume=True)"


def digest_of(content: bytes) -> "hashlib.blake2b":
    """Return the digest of the content, to which more can be added."""
    return hashlib.blake2b(content, digest_size=DIGEST)


def read_state(folder: Path, round: int) -> Checkpoint:
    """Return the state of a round in `checkpoints` or `states`, with its frozen weights.

    Raise DamagedFileError if its file is damaged, and InputError if frozen.safetensors is not that
    of the run.
    """
    return FrozenFile(folder.parent).put_back(checkpoint.read_round(folder, round))


def create_unused_folder(parent: Path, name: str, create: Callable[[Path], RunFolder]) -> RunFolder:
    """Create and return a new run folder parent/name, or parent/name-2, -3 … if that is a run."""
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        if not is_run(path):
            return create(path)
        number += 1


# A state as a checkpoint holds it, and back


def pack_state(federation: Federation, state: State) -> Checkpoint:
    """Return the checkpoint of a state, without the rows of the clients."""
    bundles = {
        "server": state.server,
        "buffers": state.buffers,
        "frozen": federation.task.copy_frozen(),
    }
    if state.average:
        bundles |= {"averaged": {"w": state.average.w}, "averaged buffers": state.average.buffers}
    return Checkpoint(bundles, {"round": state.round, "method": federation.method.name})


def unpack_state(federation: Federation, saved: Checkpoint, memory: ClientMemory) -> State:
    """Return the state that a checkpoint holds, and load its frozen weights into the model.

    Raise DamagedFileError unless its vectors are those of this method and this model.
    """
    task = federation.task
    server = federation.method.server_init(task.initial_weights)
    state = State(
        saved.notes["round"],
        to_device(bundle_like(saved, "server", server), task.device),
        to_device(bundle_like(saved, "buffers", task.initial_buffers), task.device),
        memory,
        unpack_average(task, saved),
    )
    task.load_frozen(bundle_like(saved, "frozen", task.copy_frozen()))
    return state


def unpack_average(task: Task, saved: Checkpoint) -> AveragedModel | None:
    """Return the averaged model (the twin) that a checkpoint holds; None if it holds none."""
    if "averaged" not in saved.bundles:
        return None
    return AveragedModel(*unpack_model(task, saved, "averaged", "averaged buffers"))


def unpack_model(
    task: Task, saved: Checkpoint, weights: str, buffers: str
) -> tuple[torch.Tensor, Vectors]:
    """Return the weights and buffers in two bundles of a checkpoint, on the task's device.

    Raise DamagedFileError unless they are those of this model.
    """
    w = saved.bundles.get(weights, {}).get("w")
    example = task.initial_weights
    if w is None or (w.dtype, w.shape) != (example.dtype, example.shape):
        raise DamagedFileError(f"Its {weights!r} holds no weights of this model")
    model_buffers = bundle_like(saved, buffers, task.initial_buffers)
    return w.to(task.device), to_device(model_buffers, task.device)


def check_rows(federation: Federation, saved: Checkpoint) -> None:
    """Raise DamagedFileError unless the clients' rows are those of this method and model."""
    layout = RowLayout.from_notes(saved.notes.get("memory"))
    row = federation.method.memory_init(federation.task.initial_weights)
    if layout.parts and layout != RowLayout.from_row(row):
        raise DamagedFileError("The clients' rows are not those of this method and model")


def bundle_like(saved: Checkpoint, name: str, example: Vectors) -> Vectors:
    """Return a bundle of a checkpoint; raise DamagedFileError unless it is like the example.

    Its vectors must have the same names, types and shapes.
    """
    found = saved.bundles.get(name)
    if found is None or RowLayout.from_row(found) != RowLayout.from_row(example):
        raise DamagedFileError(f"Its {name!r} is not that of this method and model")
    return found


def pack_replay_state(federation: Federation, state: State) -> Checkpoint:
    """Return all that the next round reads: the state and the rows of the next cohort."""
    cohort = federation.schedule.cohort(state.round)
    packed = pack_state(federation, state)
    rows = {f"memory/{client}": state.memory[client] for client in cohort if client in state.memory}
    return Checkpoint(packed.bundles | rows, packed.notes)


def unpack_replay_state(federation: Federation, saved: Checkpoint) -> State:
    """Return the state that `pack_replay_state` packed; `run_round` repeats the round exactly."""
    task = federation.task
    first_row = federation.method.memory_init(task.initial_weights)
    memory_builder = ClientMemory(device=task.device).start_update()
    for client in range(len(federation.clients)):
        name = f"memory/{client}"
        if name in saved.bundles:
            row = bundle_like(saved, name, first_row)
            memory_builder.put(client, to_device(row, task.device))
    return unpack_state(federation, saved, memory_builder.build())
