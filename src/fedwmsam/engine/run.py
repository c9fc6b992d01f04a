"""A run: rounds until done, each evaluated, recorded and at times saved."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fedwmsam.engine.folder import Record, RunFolder
from fedwmsam.engine.memory import Memory
from fedwmsam.engine.observers import Callback, Observer, Progress, Recorder, Watch
from fedwmsam.engine.rounds import Diverged, Federation, State, first_state, run_round, state_from
from fedwmsam.engine.saving import checkpoint_of, write_results
from fedwmsam.engine.scoring import Best, Breakdown, best_of, scores
from fedwmsam.engine.states import kept_state
from fedwmsam.engine.store import Store
from fedwmsam.engine.workers import Pool
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.task import Samples

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
        self.state = state_from(self.federation, w, buffers, self.state.memory)

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
            write_results(self, self.folder)

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
        """The scores of a round's model, which may be the best so far; `columns` are what the round has already."""
        task = self.federation.task
        record = scores(task, state, self.test, self.validation, self.breakdown, columns)
        self.best = best_of(self.best, state, columns | record, task.objective)
        return record

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
