"""A run: rounds until done, each evaluated, recorded and at times saved.

First what a model is worth (scores, the best so far), then those who look on (callbacks, trackers, recorders), then the
run itself, and last what it leaves on disk: the checkpoint it goes on from, and its outcome when it is over.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from fedwmsam.engine.checkpoint import Checkpoint, to_device, write_tensors
from fedwmsam.engine.client_state import ClientMemory, Store
from fedwmsam.engine.records import Record, finite, read_lines, replace_nonfinite
from fedwmsam.engine.rounds import (
    AveragedModel,
    Diverged,
    Federation,
    Job,
    State,
    first_state,
    run_round,
    state_from,
)
from fedwmsam.engine.run_folder import RunFolder, pack_replay_state, pack_state, unpack_state
from fedwmsam.engine.workers import Pool
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.config import Settings
from fedwmsam.training.local import LocalResult
from fedwmsam.training.objectives import Objective, compute_metrics
from fedwmsam.training.task import Samples, Task

log = logging.getLogger("fedwmsam")
AVERAGED = "averaged_"
"""How the columns of the averaged twin begin."""


# What a model is worth


@dataclass(frozen=True)
class Best:
    """The model that scored best on the validation data."""

    round: int
    score: float
    w: torch.Tensor
    buffers: Vectors


class Breakdown(Protocol):
    """Whom a model serves, told from its outputs for the test data and their targets."""

    def columns(self, outputs: torch.Tensor, targets: torch.Tensor) -> Record:
        """Further columns of the metrics, such as the worst client's accuracy."""

    def by_client(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The accuracy of every client, NaN for one that has none."""


def scores(
    task: Task,
    state: State,
    test: Samples | None,
    validation: Samples | None,
    breakdown: Breakdown | None,
    columns: Record,
) -> Record:
    """Test metrics under their own names, validation metrics as validation_…, the averaged twin's as averaged_… (and
    averaged_validation_…); what is not finite is None."""
    reserved = [
        name for name in task.objective.metrics if state.average and name.startswith(AVERAGED)
    ]
    taken = [name for name in task.objective.metrics if name in columns] + reserved
    if taken:
        raise InputError(
            f"A metric cannot be called {taken[0]!r}: the run has a column of that name."
        )
    record: Record = {}
    if validation is not None:
        values = task.evaluate(state.server["w"], state.buffers, validation)
        record |= {f"validation_{name}": value for name, value in values.items()}
    if test is not None:
        outputs, targets = task.outputs_of(state.server["w"], state.buffers, test)
        record |= compute_metrics(task.objective, outputs, targets)
        record |= breakdown.columns(outputs, targets) if breakdown else {}
    if state.average:
        record |= averaged_scores(task, state.average, test, validation)
    return replace_nonfinite(record)


def averaged_scores(
    task: Task, average: AveragedModel, test: Samples | None, validation: Samples | None
) -> Record:
    record: Record = {}
    for prefix, samples in (("validation_", validation), ("", test)):
        if samples is not None:
            values = task.evaluate(average.w, average.buffers, samples)
            record |= {f"{AVERAGED}{prefix}{name}": value for name, value in values.items()}
    return record


def best_of(best: Best | None, state: State, record: Record, objective: Objective) -> Best | None:
    score = record.get(f"validation_{objective.monitor}")
    if score is not None and objective.better(score, best.score if best else None):
        return Best(state.round, score, state.server["w"], state.buffers)
    return best


def client_accuracies(task: Task, state: State, test: Samples, breakdown: Breakdown) -> Record:
    """Of a run's last model. A pass of its own: a run resumed after its last round has no outputs to reuse."""
    outputs, targets = task.outputs_of(state.server["w"], state.buffers, test)
    accuracies = breakdown.by_client(outputs, targets).tolist()
    return {"round": state.round, "accuracy": [finite(accuracy) for accuracy in accuracies]}


# Those who look on


class Progress:
    """What a callback sees after each round."""

    def __init__(self, run: "Run", record: Record) -> None:
        self._run, self.record = run, record

    @property
    def history(self) -> list[Record]:
        return self._run.history

    @property
    def config(self) -> Record:
        """The settings, as config.toml holds them."""
        return self._run.config

    @property
    def folder(self) -> Path | None:
        return self._run.folder.path if self._run.folder else None

    @property
    def summary(self) -> Record:
        """Status, rounds and best round as they are now."""
        return self._run.summary()

    def state_dict(self) -> Vectors:
        """A copy of the global model as it is now."""
        return self._run.model()

    def stop(self, reason: str = "stopped by a callback") -> None:
        """End the run after this round."""
        self._run.status = reason


Callback = Callable[[Progress], object]


@runtime_checkable
class Observer(Protocol):
    """A callback that is also told when a run begins, before anything is trained, and when it ends, however it ends.

    It is called once the round is recorded, after all other callbacks: its record is the line of metrics.jsonl.
    """

    def start(self, progress: Progress) -> object: ...

    def __call__(self, progress: Progress) -> object: ...

    def finish(self, progress: Progress) -> object: ...


class RoundHook:
    """One round as it is looked at: this one sees nothing."""

    seconds = 0.0
    """What looking took; it is no part of the training."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        """What the round is run with; a watch may train the cohort in its own way, with the same numbers."""

    def observe(self, job: Job, result: LocalResult) -> None:
        """A client has answered."""

    def finish(self, after: State) -> tuple[Record, Vectors]:
        """The round's line in recordings.jsonl, if any, and what the next rounds need to know of this one."""
        return {}, {}


class RoundRecorder(Protocol):
    def watch(self, federation: Federation, state: State, trail: Vectors) -> RoundHook:
        """For the round after `state`; the trail is what the watches of the rounds before have left."""
        ...


# The run


@dataclass
class Run:
    federation: Federation
    settings: Settings
    test: Samples | None = None
    validation: Samples | None = None
    breakdown: Breakdown | None = None
    further: Callable[[State, bool], Record] | None = None
    """(state after a round, whether it is evaluated) → columns that whoever trained the round adds."""
    pool: Pool | None = None
    recorder: RoundRecorder | None = None
    folder: RunFolder | None = None
    callbacks: Sequence[Callback] = ()
    config: Record = field(default_factory=dict)
    """For those who watch; the run itself does not read it."""
    state: State = field(init=False)
    best: Best | None = None
    history: list[Record] = field(default_factory=list)
    timings: list[Record] = field(default_factory=list)
    recordings: list[Record] = field(default_factory=list)
    trail: Vectors = field(default_factory=dict)
    status: str = "running"
    saved_round: int = -1

    def __post_init__(self) -> None:
        device = self.federation.task.device
        self.state = first_state(
            self.federation, ClientMemory(Store(), self.settings.memory_budget * 1e6, device)
        )

    def warm_start(self, weights: Vectors) -> None:
        """Begin from these weights instead of the model's own."""
        w, buffers = self.federation.task.adopt(weights)
        self.state = state_from(self.federation, w, buffers, self.state.memory)

    def execute(self) -> None:
        """Train until all rounds are done, watched by those who asked for it."""
        with contextlib.ExitStack() as stack:
            for observer in self.observers():
                stack.enter_context(self.watched(observer))
            self.train()

    @contextlib.contextmanager
    def watched(self, observer: Observer) -> Iterator[None]:
        observer.start(self.progress())
        try:
            yield
        finally:
            observer.finish(self.progress())

    def observers(self) -> list[Observer]:
        return [callback for callback in self.callbacks if isinstance(callback, Observer)]

    def progress(self) -> Progress:
        return Progress(self, self.history[-1] if self.history else {})

    def train(self) -> None:
        """Whatever ends it, the last completed round is on disk."""
        self.started = time.perf_counter()
        if self.history:
            self.decide(self.history[-1])  # a resumed run may have reached its goal already
        if self.folder and self.status == "running" and self.state.round < self.settings.rounds:
            self.folder.reopen_results()
        try:
            while self.status == "running" and self.state.round < self.settings.rounds:
                self.one_round()
            if self.status == "running":
                self.status = "completed"
        except BaseException:
            self.status = "interrupted"
            raise
        finally:
            if self.folder and self.saved_round != self.state.round:
                # An interrupt may have come between a round's end and its line.
                self.folder.complete(self.history[: self.state.round])
                self.save()
        if self.folder:
            write_results(self, self.folder)

    def one_round(self) -> None:
        start, cpu = time.perf_counter(), self.cpu_seconds()
        if (
            self.folder
            and self.settings.keep_states
            and self.state.round % self.settings.keep_states == 0
        ):
            self.folder.keep(pack_replay_state(self.federation, self.state))
        watch = self.watch()
        try:
            state, record = run_round(watch.federation, self.state, watch.observe)
        except Diverged as reason:
            self.status = f"diverged at round {self.state.round + 1}: {reason}"
            log.warning("The run %s; the model of round %d is kept.", self.status, self.state.round)
            return
        line, trail = watch.finish(state)
        self.write_recording(
            line
        )  # before the round counts as done: a line too many is cut off, one too few is lost
        trained = time.perf_counter()
        if self.federation.privacy:
            record |= self.federation.privacy.spent(state.round)
        due = state.round % self.settings.evaluate_every == 0 or state.round == self.settings.rounds
        record |= self.further(state, due) if self.further else {}
        record |= self.evaluate(state, record) if due else {}
        self.history.append(record)
        self.state, self.trail = state, trail
        try:
            self.decide(record)
            for callback in self.callbacks:
                if not isinstance(callback, Observer):
                    callback(self.progress())
        finally:  # also when a callback fails: the round is done
            if self.status != "running" and not due:
                record |= self.evaluate(state, record)
            seconds = {
                "train_seconds": trained - start - watch.seconds,
                "evaluate_seconds": time.perf_counter() - trained,
                **({"record_seconds": watch.seconds} if self.recorder else {}),
            }
            self.record(
                record, {"round": state.round, **seconds, "cpu_seconds": self.cpu_seconds() - cpu}
            )
        if self.folder and state.round % self.settings.checkpoint_every == 0:
            self.save()
        for observer in self.observers():
            observer(self.progress())

    def cpu_seconds(self) -> float:
        """Of this process and its workers."""
        return time.process_time() + (self.pool.cpu_seconds if self.pool else 0.0)

    def record(self, record: Record, timing: Record) -> None:
        self.timings.append(timing)
        if self.folder:
            self.folder.append("metrics.jsonl", record)
            self.folder.append("timings.jsonl", timing)

    def watch(self) -> RoundHook:
        return (
            self.recorder.watch(self.federation, self.state, self.trail)
            if self.recorder
            else RoundHook(self.federation)
        )

    def write_recording(self, line: Record) -> None:
        if line:
            self.recordings.append(line)
            if self.folder:
                self.folder.append("recordings.jsonl", line)

    def evaluate(self, state: State, columns: Record) -> Record:
        """The scores of a round's model, which may be the best so far; `columns` are what the round has already."""
        task = self.federation.task
        record = scores(task, state, self.test, self.validation, self.breakdown, columns)
        self.best = best_of(self.best, state, columns | record, task.objective)
        return record

    def decide(self, record: Record) -> None:
        """Stop early? The target is judged on the validation data if there are any, else on the test data."""
        settings = self.settings
        accuracy = record.get("accuracy" if self.validation is None else "validation_accuracy")
        if (
            settings.target_accuracy is not None
            and accuracy is not None
            and accuracy >= settings.target_accuracy
        ):
            self.status = f"reached accuracy {settings.target_accuracy:g}"
        elif self.patience_is_over(record):
            self.status = f"no better validation score for {settings.patience} rounds"
        elif (
            settings.time_budget is not None
            and time.perf_counter() - self.started >= settings.time_budget
        ):
            self.status = f"time budget of {settings.time_budget:g} s used up"

    def patience_is_over(self, record: Record) -> bool:
        monitored = f"validation_{self.federation.task.objective.monitor}"
        if self.settings.patience is None or self.best is None or monitored not in record:
            return False
        return self.state.round - self.best.round >= self.settings.patience

    def model(self) -> Vectors:
        return self.federation.task.state_dict(self.state.server["w"], self.state.buffers)

    def best_model(self) -> Vectors | None:
        return (
            self.federation.task.state_dict(self.best.w, self.best.buffers) if self.best else None
        )

    def averaged_model(self) -> Vectors | None:
        average = self.state.average
        return self.federation.task.state_dict(average.w, average.buffers) if average else None

    def save(self) -> None:
        assert self.folder
        self.folder.save(checkpoint_of(self), self.state.memory)
        self.saved_round = self.state.round

    def close(self) -> None:
        self.state.memory.store.close()
        if self.folder:
            self.folder.close()

    def summary(self) -> Record:
        best_round = self.best.round if self.best else None
        return {"status": self.status, "rounds": self.state.round, "best_round": best_round}


# What it leaves on disk


def checkpoint_of(run: "Run") -> Checkpoint:
    """All that the next round needs but the clients' memory, which the folder keeps apart."""
    state = pack_state(run.federation, run.state)
    bundles, notes = state.bundles | ({"trail": run.trail} if run.trail else {}), dict(state.notes)
    if run.federation.privacy:
        notes["dp_noise"] = run.federation.privacy.noise
    if run.best:
        bundles |= {"best": {"w": run.best.w}, "best buffers": run.best.buffers}
        notes |= {"best_round": run.best.round, "best_score": run.best.score}
    return Checkpoint(bundles, notes)


def restore(run: "Run", folder: RunFolder) -> None:
    """Go on from the folder's newest whole checkpoint, or from the start if there is none."""
    memory = replace(run.state.memory, store=folder.store)
    run.state = replace(run.state, memory=memory)
    found = folder.newest()
    if found is None:
        return
    check_same(run, folder, found)
    run.state = unpack_state(run.federation, found, folder.recall(found, memory))
    bundles, notes, device = found.bundles, found.notes, run.federation.task.device
    if "best" in bundles:
        w, buffers = bundles["best"]["w"].to(device), to_device(bundles["best buffers"], device)
        run.best = Best(notes["best_round"], notes["best_score"], w, buffers)
    run.history = read_lines(folder.path / "metrics.jsonl")
    run.timings = read_lines(folder.path / "timings.jsonl")
    run.recordings = read_lines(folder.path / "recordings.jsonl")
    run.trail = to_device(bundles.get("trail", {}), device)
    run.saved_round = run.state.round


def check_same(run: "Run", folder: RunFolder, found: Checkpoint) -> None:
    """Raise InputError unless this run can go on from the checkpoint."""
    notes, ours, theirs = found.notes, run.state.server, found.bundles["server"]
    if notes["method"] != run.federation.method.name or shapes(ours) != shapes(theirs):
        raise InputError(
            f"The checkpoint in {folder.path} belongs to another method or model; it cannot go on."
        )
    begun = "averaged" in found.bundles
    if begun != (run.federation.twin is not None):
        raise InputError(
            f"{folder.path} was begun {'with' if begun else 'without'} an averaged twin, which is an average over all "
            "rounds; go on with the same twin, or start a new run."
        )
    if run.settings.rounds < notes["round"]:
        raise InputError(
            f"{folder.path} has done {notes['round']} rounds already; {run.settings.rounds} is less."
        )
    privacy = run.federation.privacy
    if privacy and notes.get("dp_noise") != privacy.noise:
        raise InputError(
            f"{folder.path} was begun with noise {notes.get('dp_noise')}; for so many rounds dp_epsilon asks "
            f"for {privacy.noise}. Go on with the same number of rounds."
        )


def shapes(vectors: Vectors) -> dict[str, Any]:
    return {name: value.shape for name, value in vectors.items()}


def write_results(run: "Run", folder: RunFolder) -> None:
    write_tensors(folder.path / "model.safetensors", run.model())
    best = run.best_model()
    if best is not None:
        write_tensors(folder.path / "best.safetensors", best)
    averaged = run.averaged_model()
    if averaged is not None:
        write_tensors(folder.path / "averaged.safetensors", averaged)
    if run.breakdown and run.test is not None:
        accuracies = client_accuracies(run.federation.task, run.state, run.test, run.breakdown)
        folder.write_json("clients.json", accuracies)
    last: Record = run.history[-1] if run.history else {}
    folder.write_json(
        "summary.json", run.summary() | {f"last_{k}": v for k, v in last.items() if k != "round"}
    )
