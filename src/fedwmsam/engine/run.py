"""A run: round after round until it is done, each evaluated, recorded and at times saved.

First comes how a model is scored, then what looks on without taking part (callbacks, trackers,
recorders), then the run itself, and last what it leaves on disk: the checkpoint from which it can
be resumed, and its outcome when it is over.
"""

import contextlib
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError, to_device, write_tensors
from fedwmsam.engine.client_state import ClientMemory, Store
from fedwmsam.engine.records import (
    Record,
    nonfinite_to_none,
    read_lines,
    read_metrics,
    replace_nonfinite,
)
from fedwmsam.engine.rounds import (
    AveragedModel,
    ClientFailure,
    Diverged,
    Federation,
    Job,
    State,
    first_state,
    run_round,
    state_from,
)
from fedwmsam.engine.run_folder import (
    RunFolder,
    bundle_like,
    check_rows,
    pack_replay_state,
    pack_state,
    unpack_model,
    unpack_state,
)
from fedwmsam.errors import InputError, printable
from fedwmsam.methods.base import Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.config import Settings
from fedwmsam.training.local import LocalResult
from fedwmsam.training.objectives import Objective, Predictions, compute_metrics
from fedwmsam.training.task import Samples, Task

log = logging.getLogger("fedwmsam")
AVERAGED = "averaged_"
"""The prefix of the columns of the averaged model (the twin)."""


# Scores of a model


@dataclass(frozen=True)
class Best:
    """The model that scored best on the validation data so far."""

    round: int
    score: float
    w: torch.Tensor
    buffers: Vectors


class Breakdown(Protocol):
    """Breaks a model's test accuracy down by client, given its outputs and the targets."""

    def columns(self, outputs: torch.Tensor, targets: torch.Tensor) -> Record:
        """Return further columns of the metrics, such as the worst client's accuracy."""

    def by_client(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the accuracy of every client, NaN for one without test samples."""


Predict = Callable[[torch.Tensor, Vectors, Samples], Predictions]
"""(weights, buffers, samples) → a model's outputs for all samples, with the targets."""


def scores(
    objective: Objective,
    predict: Predict,
    state: State,
    test: Samples | None,
    validation: Samples | None,
    breakdown: Breakdown | None,
    columns: Record,
) -> Record:
    """Return the metrics of the state's models, with None for what is not finite.

    Test metrics have their own names, validation metrics begin with validation_, those of the
    averaged model (the twin) with averaged_ and averaged_validation_. Raise InputError if a metric
    has the name of one of the columns that the round's line has already.
    """
    metrics = objective.metrics
    taken = [name for name in metrics if name in columns]
    if state.average:
        taken += [name for name in metrics if name.startswith(AVERAGED)]
    if taken:
        raise InputError(
            f"A metric cannot be called {taken[0]!r}: the run has a column of that name."
        )
    record: Record = {}
    if validation is not None:
        predictions = predict(state.server["w"], state.buffers, validation)
        values = compute_metrics(objective, predictions)
        record |= {f"validation_{name}": value for name, value in values.items()}
    if test is not None:
        predictions = predict(state.server["w"], state.buffers, test)
        record |= compute_metrics(objective, predictions)
        if breakdown:
            record |= breakdown.columns(predictions.outputs, predictions.targets)
    if state.average:
        record |= averaged_scores(objective, predict, state.average, test, validation)
    return replace_nonfinite(record)


def averaged_scores(
    objective: Objective,
    predict: Predict,
    average: AveragedModel,
    test: Samples | None,
    validation: Samples | None,
) -> Record:
    """Return the metrics of the averaged model (the twin), named averaged_…."""
    record: Record = {}
    for prefix, samples in (("validation_", validation), ("", test)):
        if samples is not None:
            values = compute_metrics(objective, predict(average.w, average.buffers, samples))
            record |= {f"{AVERAGED}{prefix}{name}": value for name, value in values.items()}
    return record


def best_of(best: Best | None, state: State, record: Record, objective: Objective) -> Best | None:
    """Return the state's model if its validation score is better than the best, else the best."""
    score = record.get(f"validation_{objective.monitor}")
    if score is not None and objective.is_better(score, best.score if best else None):
        return Best(state.round, score, state.server["w"], state.buffers)
    return best


def client_accuracies(
    predict: Predict, state: State, test: Samples, breakdown: Breakdown
) -> Record:
    """Return the accuracy of a run's last model for each client, as clients.json holds it.

    The outputs are computed once more: a run resumed after its last round has none to reuse.
    """
    outputs, targets, _ = predict(state.server["w"], state.buffers, test)
    accuracies = breakdown.by_client(outputs, targets).tolist()
    return {
        "round": state.round,
        "accuracy": [nonfinite_to_none(accuracy) for accuracy in accuracies],
    }


# Callbacks, trackers and recorders


class Progress:
    """A run's progress, which a callback is given after each round."""

    def __init__(self, run: "Run", record: Record) -> None:
        self._run = run
        self.record = record

    @property
    def history(self) -> list[Record]:
        """Return the lines of the metrics so far."""
        return self._run.history

    @property
    def config(self) -> Record:
        """Return the settings, as config.toml holds them."""
        return self._run.config

    @property
    def folder(self) -> Path | None:
        """Return the path of the run folder; None if the run has none."""
        return self._run.folder.path if self._run.folder else None

    @property
    def summary(self) -> Record:
        """Return the status, the number of rounds and the best round as they are now."""
        return self._run.summary()

    def state_dict(self) -> Vectors:
        """Return a copy of the global model as it is now."""
        return self._run.model()

    def stop(self, reason: str = "stopped by a callback") -> None:
        """End the run after this round."""
        self._run.status = reason


Callback = Callable[[Progress], object]


@runtime_checkable
class Observer(Protocol):
    """A callback that is also told when a run begins and when it ends, however it ends.

    `start` comes before anything is trained. The call after a round comes once the round is
    recorded, after all other callbacks: its record is the line of metrics.jsonl.
    """

    def start(self, progress: Progress) -> object:
        """Be called before the first round."""

    def __call__(self, progress: Progress) -> object:
        """Be called after each round that has been recorded."""

    def finish(self, progress: Progress) -> object:
        """Be called when the run has ended, however it ended."""


class RoundHook:
    """Observes one round; this one observes nothing."""

    seconds = 0.0
    """Seconds that observing took, which are no part of the training."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        """The federation that the round is run with; a hook may replace its trainer by another
        one with bitwise identical results."""

    def observe_result(self, job: Job, result: LocalResult) -> None:
        """Observe what a client has returned."""

    def finish_round(self, state: State) -> tuple[Record, Vectors]:
        """Return the round's line in recordings.jsonl and the updates that the next rounds need.

        `state` is the state after the round. Without a recording both are empty.
        """
        return {}, {}


class RoundRecorder(Protocol):
    """Makes a hook for every round of a run."""

    def make_hook(self, federation: Federation, state: State, past_updates: Vectors) -> RoundHook:
        """Return a hook for the round after `state`.

        The past updates are those that the hook of the round before has returned.
        """
        ...


# The run


class Helpers(Protocol):
    """What does a run's work elsewhere, such as `Pool` on worker processes or `RayCrew` on Ray.

    Results are those of this process, bit for bit.
    """

    cpu_seconds: float
    """CPU seconds that the work has taken there so far."""

    def train(
        self, federation: Federation, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, LocalResult | ClientFailure]]:
        """Train the jobs' clients, and yield the results in the jobs' order."""
        ...

    def compute_outputs(self, w: torch.Tensor, buffers: Vectors, samples: Samples) -> Predictions:
        """Return a model's outputs for all samples, as `Task.compute_outputs` does."""
        ...

    def describe(self) -> Record:
        """Return what provenance.json says of the workers."""
        ...

    @property
    def packages(self) -> Mapping[str, str]:
        """Return the versions of further packages that they need."""
        ...


@dataclass
class Run:
    """A run: what it trains, how far it has come, and what it has recorded."""

    federation: Federation
    settings: Settings
    test: Samples | None = None
    validation: Samples | None = None
    breakdown: Breakdown | None = None
    extra_columns: Callable[[State, bool], Record] | None = None
    """Maps (state after a round, whether it is evaluated) to columns that its trainer adds."""
    helpers: Helpers | None = None
    """What shares the run's work, such as a pool of workers; None: all is done in this process."""
    recorder: RoundRecorder | None = None
    folder: RunFolder | None = None
    callbacks: Sequence[Callback] = ()
    config: Record = field(default_factory=dict)
    """The settings as config.toml holds them, for callbacks; the run itself does not read them."""
    state: State = field(init=False)
    best: Best | None = None
    history: list[Record] = field(default_factory=list)
    timings: list[Record] = field(default_factory=list)
    recordings: list[Record] = field(default_factory=list)
    recent_updates: Vectors = field(default_factory=dict)
    """The newest updates of the global model, with which the recorder compares the next."""
    status: str = "running"
    saved_round: int = -1
    """The round of the newest checkpoint; -1 if there is none."""

    def __post_init__(self) -> None:
        device = self.federation.task.device
        memory = ClientMemory(Store(), self.settings.memory_budget * 1e6, device)
        self.state = first_state(self.federation, memory)

    def warm_start(self, weights: Vectors) -> None:
        """Start from these weights instead of the model's own."""
        w, buffers = self.federation.task.unpack_state_dict(weights)
        self.state = state_from(self.federation, w, buffers, self.state.memory)

    def execute(self) -> None:
        """Train until all rounds are done, and tell the observers when it begins and ends."""
        with contextlib.ExitStack() as stack:
            for observer in self.observers():
                stack.enter_context(self.notify_observer(observer))
            self.train()

    @contextlib.contextmanager
    def notify_observer(self, observer: Observer) -> Iterator[None]:
        """Tell the observer that the run begins and, on exit, that it is over."""
        observer.start(self.progress())
        try:
            yield
        finally:
            observer.finish(self.progress())

    def observers(self) -> list[Observer]:
        """Return the callbacks that are observers."""
        return [callback for callback in self.callbacks if isinstance(callback, Observer)]

    def progress(self) -> Progress:
        """Return the progress after the last round."""
        return Progress(self, self.history[-1] if self.history else {})

    def train(self) -> None:
        """Train until all rounds are done or a reason to stop has come.

        However this ends, the last completed round is on disk if the run has a folder.
        """
        self.started = time.perf_counter()
        if self.history:
            self.update_status(self.history[-1])  # a resumed run may have reached its goal already
        if self.folder and self.status == "running" and self.state.round < self.settings.rounds:
            self.folder.remove_results()
        try:
            while self.status == "running" and self.state.round < self.settings.rounds:
                self.train_one_round()
            if self.status == "running":
                self.status = "completed"
        except BaseException:
            self.status = "interrupted"
            raise
        finally:
            if self.folder and self.saved_round != self.state.round:
                # An interrupt may have come between a round's end and its line.
                self.folder.append_missing_metrics(self.history[: self.state.round])
                self.save()
        if self.folder:
            write_results(self, self.folder)

    def train_one_round(self) -> None:
        """Train, evaluate and record the next round; a round that diverges only sets the status."""
        start = time.perf_counter()
        cpu_start = self.cpu_seconds()
        self.keep_state()
        hook = self.make_hook()
        try:
            state, record = run_round(hook.federation, self.state, hook.observe_result)
        except Diverged as reason:
            self.status = f"diverged at round {self.state.round + 1}: {reason}"
            log.warning("The run %s; the model of round %d is kept.", self.status, self.state.round)
            return
        except Exception as error:
            note_own_method(error, type(self.federation.method))
            raise
        recording, recent_updates = hook.finish_round(state)
        # Before the round counts as done: a line too many is cut off, one too few is lost.
        self.write_recording(recording)
        trained = time.perf_counter()
        if self.federation.privacy:
            record |= self.federation.privacy.spent_budget(state.round)
        is_due = self.is_evaluation_due(state.round)
        if self.extra_columns:
            record |= self.extra_columns(state, is_due)
        if is_due:
            record |= self.evaluate(state, record)
        self.history.append(record)
        self.state = state
        self.recent_updates = recent_updates
        try:
            self.update_status(record)
            for callback in self.callbacks:
                if not isinstance(callback, Observer):
                    callback(self.progress())
        finally:  # also when a callback fails: the round is done
            if self.status != "running" and not is_due:
                record |= self.evaluate(state, record)
            timing: Record = {
                "round": state.round,
                "train_seconds": trained - start - hook.seconds,
                "evaluate_seconds": time.perf_counter() - trained,
            }
            if self.recorder:
                timing["record_seconds"] = hook.seconds
            timing["cpu_seconds"] = self.cpu_seconds() - cpu_start
            self.write_metrics(record, timing)
        if self.folder and state.round % self.settings.checkpoint_every == 0:
            self.save()
        for observer in self.observers():
            observer(self.progress())

    def is_evaluation_due(self, round: int) -> bool:
        """Return whether the model after this round is evaluated, as the last one always is."""
        return round % self.settings.evaluate_every == 0 or round == self.settings.rounds

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of this process and its helpers so far."""
        return time.process_time() + (self.helpers.cpu_seconds if self.helpers else 0.0)

    def keep_state(self) -> None:
        """Save the state for later replay if the settings ask for it at this round."""
        every = self.settings.keep_states
        if self.folder and every and self.state.round % every == 0:
            self.folder.save_replay_state(pack_replay_state(self.federation, self.state))

    def write_metrics(self, record: Record, timing: Record) -> None:
        """Keep a round's timing, and append its lines to metrics.jsonl and timings.jsonl."""
        self.timings.append(timing)
        if self.folder:
            self.folder.append("metrics.jsonl", record)
            self.folder.append("timings.jsonl", timing)

    def make_hook(self) -> RoundHook:
        """Return the hook for the next round: the recorder's, or one that observes nothing."""
        if self.recorder:
            return self.recorder.make_hook(self.federation, self.state, self.recent_updates)
        return RoundHook(self.federation)

    def write_recording(self, line: Record) -> None:
        """Keep a round's recording, if there is one, and append it to recordings.jsonl."""
        if line:
            self.recordings.append(line)
            if self.folder:
                self.folder.append("recordings.jsonl", line)

    def evaluate(self, state: State, columns: Record) -> Record:
        """Return the scores of a round's model, and remember the model if it is the best so far.

        `columns` are those that the round's line has already.
        """
        objective = self.federation.task.objective
        record = scores(
            objective, self.predict, state, self.test, self.validation, self.breakdown, columns
        )
        self.best = best_of(self.best, state, columns | record, objective)
        return record

    def predict(self, w: torch.Tensor, buffers: Vectors, samples: Samples) -> Predictions:
        """Return a model's outputs for all samples, computed by the helpers if there are any."""
        return (self.helpers or self.federation.task).compute_outputs(w, buffers, samples)

    def update_status(self, record: Record) -> None:
        """Set the status if the run is to stop early after the round of this record.

        The target accuracy is judged on the validation data if there are any, otherwise on the
        test data.
        """
        target = self.settings.target_accuracy
        budget = self.settings.time_budget
        accuracy = record.get("accuracy" if self.validation is None else "validation_accuracy")
        if target is not None and accuracy is not None and accuracy >= target:
            self.status = f"reached accuracy {target:g}"
        elif self.is_patience_over(record):
            self.status = f"no better validation score for {self.settings.patience} rounds"
        elif budget is not None and time.perf_counter() - self.started >= budget:
            self.status = f"time budget of {budget:g} s used up"

    def is_patience_over(self, record: Record) -> bool:
        """Return whether the validation score has not improved for too many rounds."""
        monitored = f"validation_{self.federation.task.objective.monitor}"
        if self.settings.patience is None or self.best is None or monitored not in record:
            return False
        return self.state.round - self.best.round >= self.settings.patience

    def model(self) -> Vectors:
        """Return a copy of the global model as a state_dict."""
        return self.federation.task.state_dict(self.state.server["w"], self.state.buffers)

    def best_model(self) -> Vectors | None:
        """Return a copy of the model with the best validation score; None if there is none."""
        best = self.best
        return self.federation.task.state_dict(best.w, best.buffers) if best else None

    def averaged_model(self) -> Vectors | None:
        """Return a copy of the averaged model (the twin); None if there is none."""
        average = self.state.average
        return self.federation.task.state_dict(average.w, average.buffers) if average else None

    def save(self) -> None:
        """Save a checkpoint of the last completed round to the run's folder."""
        assert self.folder
        self.folder.save(checkpoint_of(self), self.state.memory)
        self.saved_round = self.state.round

    def close(self) -> None:
        """Close the clients' store and the run's folder."""
        self.state.memory.store.close()
        if self.folder:
            self.folder.close()

    def summary(self) -> Record:
        """Return the status, the number of rounds and the best round."""
        best_round = self.best.round if self.best else None
        return {"status": self.status, "rounds": self.state.round, "best_round": best_round}


# What a run leaves on disk


def note_own_method(error: Exception, method: type[Method]) -> None:
    """Add to an error in a round how a method of the user's own is tested, if there is one."""
    if method.__module__.startswith("fedwmsam.") or isinstance(error, InputError):
        return
    name = method.__name__
    check = f"fedwmsam.testing.check_method({name})"
    module = method.__module__
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is method:
        test = f"import fedwmsam.testing as t, {module} as m; t.check_method(m.{name})"
        check = f'{shlex.quote(sys.executable)} -c "{test}"'
    error.add_note(f"Is it {name}? {check} says what is wrong.")


def checkpoint_of(run: "Run") -> Checkpoint:
    """Return all that the next round needs but the clients' rows, which the folder adds."""
    state = pack_state(run.federation, run.state)
    bundles = dict(state.bundles)
    notes = dict(state.notes)
    if run.recent_updates:
        bundles["trail"] = run.recent_updates
    if run.federation.privacy:
        notes["dp_noise"] = run.federation.privacy.noise_multiplier
    if run.best:
        bundles |= {"best": {"w": run.best.w}, "best buffers": run.best.buffers}
        notes |= {"best_round": run.best.round, "best_score": run.best.score}
    return Checkpoint(bundles, notes)


def restore(run: "Run", folder: RunFolder) -> None:
    """Set the run to the folder's newest intact checkpoint, or to the start if there is none.

    Raise InputError if the checkpoint is that of another kind of run.
    """
    memory = replace(run.state.memory, store=folder.store)
    run.state = replace(run.state, memory=memory)
    saved = folder.rewind_to_checkpoint()
    if saved is None:
        return
    task = run.federation.task
    try:
        check_vectors(run, saved)
        check_resumable(run, folder, saved)
        run.state = unpack_state(run.federation, saved, folder.restore_memory(saved, memory))
        run.best = unpack_best(task, saved)
    except DamagedFileError as damage:
        raise InputError(
            f"The checkpoint of round {saved.notes['round']} in {folder.path} belongs to another "
            f"method or model and cannot go on: {damage}."
        ) from damage
    run.history = read_metrics(folder.path / "metrics.jsonl")
    run.timings = read_lines(folder.path / "timings.jsonl")
    run.recordings = read_lines(folder.path / "recordings.jsonl")
    run.recent_updates = to_device(saved.bundles.get("trail", {}), task.device)
    run.saved_round = run.state.round


def check_vectors(run: "Run", saved: Checkpoint) -> None:
    """Raise DamagedFileError unless the method, the clients' rows and the trail are this run's."""
    method = run.federation.method
    w = run.federation.task.initial_weights
    if saved.notes.get("method") != method.name:
        raise DamagedFileError(f"it was made by {printable(saved.notes.get('method'), 80)}")
    check_rows(run.federation, saved)
    if trail := saved.bundles.get("trail"):
        bundle_like(saved, "trail", {str(number): w for number in range(len(trail))})


def unpack_best(task: Task, saved: Checkpoint) -> Best | None:
    """Return the best model that a checkpoint holds; None if it holds none.

    Raise DamagedFileError unless it is one of this model, with its round and its score.
    """
    if "best" not in saved.bundles:
        return None
    round = saved.notes.get("best_round")
    score = saved.notes.get("best_score")
    if not isinstance(round, int) or not isinstance(score, int | float) or round < 1:
        raise DamagedFileError("It does not say of which round its best model is")
    return Best(round, score, *unpack_model(task, saved, "best", "best buffers"))


def check_resumable(run: "Run", folder: RunFolder, saved: Checkpoint) -> None:
    """Raise InputError unless this run's settings let it go on from the checkpoint."""
    notes = saved.notes
    had_twin = "averaged" in saved.bundles
    if had_twin != (run.federation.twin is not None):
        raise InputError(
            f"{folder.path} was begun {'with' if had_twin else 'without'} an averaged twin, which "
            "is an average over all rounds; go on with the same twin, or start a new run."
        )
    if run.settings.rounds < notes["round"]:
        raise InputError(
            f"{folder.path} has done {notes['round']} rounds already; "
            f"{run.settings.rounds} is less."
        )
    privacy = run.federation.privacy
    if privacy and notes.get("dp_noise") != privacy.noise_multiplier:
        raise InputError(
            f"{folder.path} was begun with noise {notes.get('dp_noise')}; for so many rounds "
            f"dp_epsilon asks for {privacy.noise_multiplier}. "
            "Go on with the same number of rounds."
        )


def write_results(run: "Run", folder: RunFolder) -> None:
    """Write a run's outcome to its folder: the models, clients.json and last summary.json."""
    write_tensors(folder.path / "model.safetensors", run.model())
    best = run.best_model()
    if best is not None:
        write_tensors(folder.path / "best.safetensors", best)
    averaged = run.averaged_model()
    if averaged is not None:
        write_tensors(folder.path / "averaged.safetensors", averaged)
    if run.breakdown and run.test is not None:
        accuracies = client_accuracies(run.predict, run.state, run.test, run.breakdown)
        if any(accuracy is not None for accuracy in accuracies["accuracy"]):
            folder.write_json("clients.json", accuracies)
    last: Record = run.history[-1] if run.history else {}
    last_values = {f"last_{key}": value for key, value in last.items() if key != "round"}
    folder.write_json("summary.json", run.summary() | last_values)
