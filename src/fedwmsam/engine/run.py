"""A run: rounds until done, evaluated, recorded, checkpointed, resumable."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, on
from fedwmsam.engine.folder import Record, RunFolder, finite, finite_only, read_lines
from fedwmsam.engine.memory import Memory
from fedwmsam.engine.rounds import Diverged, Federation, Job, State, first_state, run_round
from fedwmsam.engine.store import Store
from fedwmsam.engine.workers import Pool
from fedwmsam.errors import InputError
from fedwmsam.training.local import LocalResult
from fedwmsam.training.objectives import measure
from fedwmsam.training.task import Samples
from fedwmsam.training.vectors import Vectors

log = logging.getLogger("fedwmsam")


@dataclass(frozen=True)
class Plan:
    """How long, how often evaluated and saved, and when to stop early."""

    rounds: int
    evaluate_every: int = 1
    checkpoint_every: int = 10
    target_accuracy: float | None = None
    patience: int | None = None
    time_budget: float | None = None
    memory_budget: float = 1000
    """Megabytes of RAM for clients' rows; the others are on disk."""
    keep_states: int | None = None
    """Rounds from one kept state to the next."""


@dataclass(frozen=True)
class Best:
    """The model that scored best on the validation data."""

    round: int
    score: float
    w: torch.Tensor
    buffers: Vectors


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


class Breakdown(Protocol):
    """Whom a model serves, told from its outputs for the test data and their targets."""

    def columns(self, outputs: torch.Tensor, targets: torch.Tensor) -> Record:
        """Further columns of the metrics, such as the worst client's accuracy."""

    def by_client(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The accuracy of every client, NaN for one that has none."""


class Watch:
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


class Recorder(Protocol):
    def watch(self, federation: Federation, state: State, trail: Vectors) -> Watch:
        """For the round after `state`; the trail is what the watches of the rounds before have left."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A callback that is also told when a run begins, before anything is trained, and when it ends, however it ends.

    It is called once the round is recorded, after all other callbacks: its record is the line of metrics.jsonl.
    """

    def start(self, progress: Progress) -> object: ...

    def __call__(self, progress: Progress) -> object: ...

    def finish(self, progress: Progress) -> object: ...


@dataclass
class Run:
    federation: Federation
    plan: Plan
    test: Samples | None = None
    validation: Samples | None = None
    breakdown: Breakdown | None = None
    further: Callable[[State, bool], Record] | None = None
    """(state after a round, whether it is evaluated) → columns that whoever trained the round adds."""
    pool: Pool | None = None
    recorder: Recorder | None = None
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
        self.state = first_state(self.federation, Memory(Store(), self.plan.memory_budget * 1e6, device))

    def warm_start(self, weights: Vectors) -> None:
        """Begin from these weights instead of the model's own."""
        w, buffers = self.federation.task.adopt(weights)
        self.state = State(0, self.federation.method.server_init(w), buffers, self.state.memory)

    def execute(self) -> None:
        """Train until the plan is done, watched by those who asked for it."""
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
        if self.folder and self.status == "running" and self.state.round < self.plan.rounds:
            self.folder.reopen_results()
        try:
            while self.status == "running" and self.state.round < self.plan.rounds:
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
            self.write_results(self.folder)

    def one_round(self) -> None:
        start, cpu = time.perf_counter(), self.cpu_seconds()
        if self.folder and self.plan.keep_states and self.state.round % self.plan.keep_states == 0:
            self.folder.keep(kept_state(self.federation, self.state))
        watch = self.watch()
        try:
            state, record = run_round(watch.federation, self.state, watch.observe)
        except Diverged as reason:
            self.status = f"diverged at round {self.state.round + 1}: {reason}"
            log.warning("The run %s; the model of round %d is kept.", self.status, self.state.round)
            return
        line, trail = watch.finish(state)
        self.write_recording(line)  # before the round counts as done: a line too many is cut off, one too few is lost
        trained = time.perf_counter()
        if self.federation.privacy:
            record |= self.federation.privacy.spent(state.round)
        due = state.round % self.plan.evaluate_every == 0 or state.round == self.plan.rounds
        record |= self.further(state, due) if self.further else {}
        record |= self.evaluate(state, record) if due else {}
        self.keep_best(state, record)
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
                self.keep_best(state, record)
            seconds = {
                "train_seconds": trained - start - watch.seconds, "evaluate_seconds": time.perf_counter() - trained,
                **({"record_seconds": watch.seconds} if self.recorder else {}),
            }  # fmt: skip
            self.record(record, {"round": state.round, **seconds, "cpu_seconds": self.cpu_seconds() - cpu})
        if self.folder and state.round % self.plan.checkpoint_every == 0:
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

    def watch(self) -> Watch:
        return self.recorder.watch(self.federation, self.state, self.trail) if self.recorder else Watch(self.federation)

    def write_recording(self, line: Record) -> None:
        if line:
            self.recordings.append(line)
            if self.folder:
                self.folder.append("recordings.jsonl", line)

    def evaluate(self, state: State, columns: Record) -> Record:
        """Test metrics under their own names, validation metrics as validation_…; what is not finite is None."""
        task, w = self.federation.task, state.server["w"]
        taken = [name for name in task.objective.metrics if name in columns]
        if taken:
            raise InputError(f"A metric cannot be called {taken[0]!r}: the run has a column of that name.")
        record: Record = {}
        if self.validation is not None:
            values = task.evaluate(w, state.buffers, self.validation)
            record |= {f"validation_{name}": value for name, value in values.items()}
        if self.test is not None:
            outputs, targets = task.outputs_of(w, state.buffers, self.test)
            record |= measure(task.objective, outputs, targets)
            record |= self.breakdown.columns(outputs, targets) if self.breakdown else {}
        return finite_only(record)

    def keep_best(self, state: State, record: Record) -> None:
        objective = self.federation.task.objective
        score = record.get(f"validation_{objective.monitor}")
        if score is not None and objective.better(score, self.best.score if self.best else None):
            self.best = Best(state.round, score, state.server["w"], state.buffers)

    def decide(self, record: Record) -> None:
        """Stop early? The target is judged on the validation data if there are any, else on the test data."""
        plan = self.plan
        accuracy = record.get("accuracy" if self.validation is None else "validation_accuracy")
        if plan.target_accuracy is not None and accuracy is not None and accuracy >= plan.target_accuracy:
            self.status = f"reached accuracy {plan.target_accuracy:g}"
        elif self.patience_is_over(record):
            self.status = f"no better validation score for {plan.patience} rounds"
        elif plan.time_budget is not None and time.perf_counter() - self.started >= plan.time_budget:
            self.status = f"time budget of {plan.time_budget:g} s used up"

    def patience_is_over(self, record: Record) -> bool:
        monitored = f"validation_{self.federation.task.objective.monitor}"
        if self.plan.patience is None or self.best is None or monitored not in record:
            return False
        return self.state.round - self.best.round >= self.plan.patience

    def model(self) -> Vectors:
        return self.federation.task.state_dict(self.state.server["w"], self.state.buffers)

    def best_model(self) -> Vectors | None:
        return self.federation.task.state_dict(self.best.w, self.best.buffers) if self.best else None

    def save(self) -> None:
        assert self.folder
        bundles = {"server": self.state.server, "buffers": self.state.buffers, "frozen": self.federation.task.frozen()}
        bundles |= {"trail": self.trail} if self.trail else {}
        notes: dict[str, Any] = {"round": self.state.round, "method": self.federation.method.name}
        if self.federation.privacy:
            notes["dp_noise"] = self.federation.privacy.noise
        if self.best:
            bundles |= {"best": {"w": self.best.w}, "best buffers": self.best.buffers}
            notes |= {"best_round": self.best.round, "best_score": self.best.score}
        self.folder.save(Checkpoint(bundles, notes), self.state.memory)
        self.saved_round = self.state.round

    def restore(self) -> None:
        """Go on from the folder's newest whole checkpoint, or from the start if there is none."""
        assert self.folder
        memory = replace(self.state.memory, store=self.folder.store)
        self.state = replace(self.state, memory=memory)
        found = self.folder.newest()
        if found is None:
            return
        bundles, notes = found.bundles, found.notes
        ours, theirs = self.state.server, bundles["server"]
        if notes["method"] != self.federation.method.name or {k: v.shape for k, v in ours.items()} != {
            k: v.shape for k, v in theirs.items()
        }:
            raise InputError(
                f"The checkpoint in {self.folder.path} belongs to another method or model; it cannot go on."
            )
        if self.plan.rounds < notes["round"]:
            raise InputError(
                f"{self.folder.path} has done {notes['round']} rounds already; {self.plan.rounds} is less."
            )
        if self.federation.privacy and notes.get("dp_noise") != self.federation.privacy.noise:
            raise InputError(
                f"{self.folder.path} was begun with noise {notes.get('dp_noise')}; for so many rounds dp_epsilon asks "
                f"for {self.federation.privacy.noise}. Go on with the same number of rounds."
            )
        self.federation.task.load_frozen(bundles["frozen"])
        device, memory = self.federation.task.device, self.folder.recall(found, memory)
        self.state = State(notes["round"], on(theirs, device), on(bundles["buffers"], device), memory)
        if "best" in bundles:
            w, buffers = bundles["best"]["w"].to(device), on(bundles["best buffers"], device)
            self.best = Best(notes["best_round"], notes["best_score"], w, buffers)
        self.history = read_lines(self.folder.path / "metrics.jsonl")
        self.timings = read_lines(self.folder.path / "timings.jsonl")
        self.recordings = read_lines(self.folder.path / "recordings.jsonl")
        self.trail = on(bundles.get("trail", {}), device)
        self.saved_round = self.state.round

    def close(self) -> None:
        self.state.memory.store.close()
        if self.folder:
            self.folder.close()

    def write_results(self, folder: RunFolder) -> None:
        checkpoint.write_tensors(folder.path / "model.safetensors", self.model())
        best = self.best_model()
        if best is not None:
            checkpoint.write_tensors(folder.path / "best.safetensors", best)
        if self.breakdown and self.test is not None:
            folder.write_json("clients.json", self.client_accuracies(self.breakdown, self.test))
        last = self.history[-1] if self.history else {}
        folder.write_json("summary.json", self.summary() | {f"last_{k}": v for k, v in last.items() if k != "round"})

    def summary(self) -> Record:
        best_round = self.best.round if self.best else None
        return {"status": self.status, "rounds": self.state.round, "best_round": best_round}

    def client_accuracies(self, breakdown: Breakdown, test: Samples) -> Record:
        """Of the last model. A pass of its own: a run resumed after its last round has no outputs to reuse."""
        outputs, targets = self.federation.task.outputs_of(self.state.server["w"], self.state.buffers, test)
        accuracies = breakdown.by_client(outputs, targets).tolist()
        return {"round": self.state.round, "accuracy": [finite(accuracy) for accuracy in accuracies]}


def kept_state(federation: Federation, state: State) -> Checkpoint:
    """All that the next round reads: the server's state and the memory of the clients that will take part."""
    cohort = federation.schedule.cohort(state.round)
    rows = {f"memory/{client}": state.memory[client] for client in cohort if client in state.memory}
    bundles = {"server": state.server, "buffers": state.buffers, "frozen": federation.task.frozen()}
    return Checkpoint(bundles | rows, {"round": state.round, "method": federation.method.name})


def recalled_state(federation: Federation, kept: Checkpoint) -> State:
    """The state before a round, from what `kept_state` kept of it: `run_round` then repeats the round exactly."""
    device, changes = federation.task.device, Memory(device=federation.task.device).changing()
    federation.task.load_frozen(kept.bundles["frozen"])
    for name, row in kept.bundles.items():
        if name.startswith("memory/"):
            changes.put(int(name.removeprefix("memory/")), on(row, device))
    server, buffers = on(kept.bundles["server"], device), on(kept.bundles["buffers"], device)
    return State(kept.notes["round"], server, buffers, changes.done())
