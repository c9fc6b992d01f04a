"""The result of a run: its history, its models, and predictions on new data."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedwmsam import toml
from fedwmsam.data.adapter import DataAdapter, make_data_adapter
from fedwmsam.data.clients import Collate
from fedwmsam.engine.checkpoint import (
    Checkpoint,
    DamagedFileError,
    read_tensors,
    rounds_in,
)
from fedwmsam.engine.records import Record, read_json, read_lines, read_metrics
from fedwmsam.engine.run import AVERAGED, unpack_best
from fedwmsam.engine.run_folder import (
    FINGERPRINT,
    bundle_like,
    is_busy,
    read_state,
    require_run_folder,
    resume_advice,
    unpack_average,
    unpack_model,
)
from fedwmsam.errors import InputError, printable, unknown_name_message
from fedwmsam.experiment.result_view import render_result
from fedwmsam.experiment.trust import Trust
from fedwmsam.files import own_folder
from fedwmsam.methods.vectors import Vectors
from fedwmsam.models import model_factory
from fedwmsam.training.objectives import (
    OBJECTIVES,
    RESERVED,
    MetricFunction,
    make_objective,
)
from fedwmsam.training.task import ModelSource, Task, deterministic_torch


class Result:
    """The result of `fit`, or of a run folder: `Result.load("runs/name")`.

    status: "completed", or the reason why the run ended earlier; "running" or "interrupted" of a
        folder loaded with `partial`.
    rows: the metrics of each round, as in metrics.jsonl.
    timings: the seconds that each round took, as in timings.jsonl.
    recordings: the measurements of the training dynamics, as in recordings.jsonl.
    best_model, best_round: the model with the best validation score, and its round; None without
        validation data.
    averaged_model: the state_dict of the averaged model (the twin); None without one.
    config: the run's settings, as in config.toml.
    folder: the run's folder; None if the run was not kept.
    client_names: the clients' names, where they have any, in the order of their numbers.
    client_accuracies: the test accuracy of the last model to be expected for each client by name,
        which weighs every class as often as the client has it.
    """

    def __init__(
        self,
        *,
        status: str,
        rows: list[Record],
        timings: list[Record],
        recordings: list[Record],
        model: Vectors | None,
        best_model: Vectors | None,
        averaged_model: Vectors | None,
        best_round: int | None,
        config: Record,
        folder: Path | None,
        task: Task | None,
        adapter: DataAdapter | None,
        client_names: Sequence[str] = (),
        client_accuracies: Mapping[str, float | None] | None = None,
    ) -> None:
        self.status = status
        self.rows = rows
        self.timings = timings
        self.recordings = recordings
        self._model = model
        self.best_model = best_model
        self.averaged_model = averaged_model
        self.best_round = best_round
        self.config = config
        self.folder = folder
        self.client_names = tuple(client_names)
        self.client_accuracies = dict(client_accuracies or {})
        self._task = task
        self._adapter = adapter

    @property
    def model(self) -> Vectors:
        """Return the state_dict of the last global model.

        Raise InputError if the run was loaded unfinished and has none yet, or none without a model
        to load it into.
        """
        if self._model is not None:
            return self._model
        if self._task is None:
            raise InputError(
                "A checkpoint can only be read into the run's own model; "
                "use Result.load(folder, model=..., partial=True)."
            )
        raise InputError(f"{self.folder} has no checkpoint of a model yet; wait for one.")

    @property
    def columns(self) -> dict[str, list[Any]]:
        """Return the history by the metrics' names, with one entry per round.

        The entry is None where a round has no such value, because it was not evaluated.
        """
        names = dict.fromkeys(itertools.chain.from_iterable(self.rows))
        columns = {}
        for name in names:
            columns[name] = [row.get(name) for row in self.rows]
        return columns

    @property
    def rounds(self) -> int:
        """Return the number of completed rounds."""
        return len(self.rows)

    @property
    def seconds(self) -> float:
        """Return the time spent on training and evaluation, over all rounds."""
        return float(sum(t["train_seconds"] + t["evaluate_seconds"] for t in self.timings))

    @property
    def trained(self) -> Vectors:
        """Return the part of `model` that was trained, an adapter or a head for example.

        It is the last model's state_dict without its frozen parameters, so that
        `load_state_dict(result.trained, strict=False)` completes a model that has them. Raise
        InputError if the result was loaded without its model.
        """
        task, _ = self._task_and_adapter()
        return task.trained_part(self.model)

    def last(self, name: str = "accuracy") -> float | None:
        """Return the newest value of a column, or None if no round has one.

        Raise InputError for a name that no column has.
        """
        points = self._points(name)
        if not points and self.rows and name not in self._known_columns():
            raise InputError(unknown_name_message("column", str(name), self.columns))
        return points[-1][1] if points else None

    def to_pandas(self) -> Any:
        """Return the history as a DataFrame of pandas with a row per round, which is its index.

        Raise InputError if pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError(
                "to_pandas() needs pandas; pip install pandas, or use Result.columns."
            ) from error
        return pandas.DataFrame(self.rows, columns=list(self.columns)).set_index("round")

    def __repr__(self) -> str:
        return f"<Result {', '.join(f'{k} {v}'.strip() for k, v in self._facts().items())}>"

    def _repr_html_(self) -> str:
        facts = self._facts()
        title = f"Result of {facts.pop('')}"
        main = self._main_columns()[0]
        return render_result(title, facts, main, self._points(main))

    def _facts(self) -> dict[str, str]:
        """Return what is worth knowing at a glance; the method's name has no heading."""
        facts = {"": printable(self.config.get("method"), 80)}
        facts["rounds"] = f"{self.rounds} of {printable(self.config.get('rounds'), 80)}"
        facts["status"] = printable(self.status, 200)
        for name in self._main_columns():
            facts |= {printable(name, 80): f"{value:.4g}" for _, value in self._points(name)[-1:]}
        if self.best_round is not None:
            facts["best round"] = printable(self.best_round, 80)
        if self.folder:
            facts["folder"] = printable(self.folder)
        return facts

    def _points(self, name: str) -> list[tuple[int, Any]]:
        """Return (round, value) for the rounds that have a value in this column."""
        rounds = enumerate(self.rows, start=1)
        return [(round, row[name]) for round, row in rounds if row.get(name) is not None]

    def _main_columns(self) -> list[str]:
        """Return the scores that the run has, the monitored one first; else the training loss."""
        monitor = str(self.config.get("monitor", "accuracy"))
        metrics = [monitor, *(self._task.objective.metrics if self._task else ()), "loss"]
        columns = dict.fromkeys([*metrics, *(f"validation_{name}" for name in metrics)])
        return [name for name in columns if self._points(name)] or ["train_loss"]

    def _known_columns(self) -> set[str]:
        """Return the columns of this run, and those that some run has."""
        metrics = {"loss"}
        for objective in (*OBJECTIVES.values(), *([self._task.objective] if self._task else ())):
            metrics |= set(objective.metrics)
        known = {*RESERVED, *self.columns}
        for prefix in ("", "validation_", AVERAGED, f"{AVERAGED}validation_"):
            known |= {prefix + name for name in metrics}
        return known

    def evaluate(
        self, data: Any, *, best: bool = False, averaged: bool = False
    ) -> dict[str, float]:
        """Return the loss and the metrics on new data, an (x, y) pair or a dataset.

        They are those of the last model, or of the one that `weights` returns. Raise InputError for
        data that the model cannot take, or if the run has no such model.
        """
        task, adapter = self._task_and_adapter()
        with deterministic_torch():
            w, buffers = task.unpack_state_dict(self.weights(best, averaged))
            return task.evaluate(w, buffers, adapter.to_samples(data, "The data"))

    def predict(
        self, inputs: Any, *, best: bool = False, averaged: bool = False, batch_size: int = 1000
    ) -> Tensor:
        """Return the model's outputs for a tensor or array of inputs.

        They are those of the last model, or of the one that `weights` returns. Raise InputError for
        inputs that the model cannot take, or if the run has no such model.
        """
        task, adapter = self._task_and_adapter()
        with deterministic_torch():
            w, buffers = task.unpack_state_dict(self.weights(best, averaged))
            task.load_weights(w)
            task.load_buffers(buffers)
            return task.predict(adapter.to_inputs(inputs), batch_size)

    def weights(self, best: bool = False, averaged: bool = False) -> Vectors:
        """Return the state_dict of the last model, the best by validation, or the averaged one.

        Raise InputError if the run has no such model, or if both are asked for.
        """
        if best and averaged:
            raise InputError("Ask for the best model or for the averaged one: they are two.")
        if averaged:
            if self.averaged_model is None:
                raise InputError(
                    "There is no averaged model: "
                    "the run was made without a twin (twin=8 keeps one)."
                )
            return self.averaged_model
        if not best:
            return self.model
        if self.best_model is None:
            raise InputError(
                "There is no best model: the run had no validation data to choose it on."
            )
        return self.best_model

    def _task_and_adapter(self) -> tuple[Task, DataAdapter]:
        if self._task is None or self._adapter is None:
            raise InputError(
                "The run folder does not say how to build the model; "
                "use Result.load(folder, model=...)."
            )
        return self._task, self._adapter

    @classmethod
    def load(
        cls,
        folder: str | Path,
        model: Any = None,
        loss: Any = None,
        metrics: Any = None,
        collate: Any = None,
        trust: bool = False,
        partial: bool = False,
    ) -> "Result":
        """Return the result of a finished run's folder.

        A model and a loss that the configuration names are rebuilt; pass your own as to `fit`.
        Without a model the result has the history and the weights, but cannot evaluate or predict.
        With `partial` also that of an unfinished run, whose status is "running" or "interrupted"
        and whose models are those of its newest checkpoint. Raise InputError if there is no run, if
        it is not finished, or if it names a model to import ("package.module:function"), which
        runs its code: pass the model, or trust=True.
        """
        path = require_run_folder(Path(folder))
        config = toml.load(path / "config.toml")
        is_finished = all((path / name).exists() for name in ("summary.json", "model.safetensors"))
        if not is_finished and not partial:
            raise InputError(
                f"{path} has no finished model yet; look at it with partial=True, or go on with "
                f"it: {resume_advice(path)}"
            )
        task, adapter = rebuild(
            path, config, model, loss, metrics, collate, Trust(everything=trust)
        )
        outcome = read_outcome(path) if is_finished else read_checkpoint_outcome(path, task)
        return cls(
            **outcome,
            rows=read_metrics(path / "metrics.jsonl"),
            timings=read_lines(path / "timings.jsonl"),
            recordings=read_lines(path / "recordings.jsonl"),
            config=config,
            folder=path,
            task=task,
            adapter=adapter,
            **read_clients(path),
        )


def read_clients(path: Path) -> dict[str, Any]:
    """Return the clients' names and accuracies in a run folder, as `Result` has them.

    Raise InputError if they are no lists.
    """
    fingerprint = path / FINGERPRINT
    clients = path / "clients.json"
    names = read_json(fingerprint).get("names") if fingerprint.exists() else []
    accuracies = read_json(clients).get("accuracy") if clients.exists() else []
    if not isinstance(names, list) or not isinstance(accuracies, list):
        raise InputError(f"{fingerprint} or {clients} is damaged: it should hold lists.")
    return {
        "client_names": list(map(str, names)),
        "client_accuracies": dict(zip(map(str, names), accuracies, strict=False)),
    }


def read_outcome(path: Path) -> dict[str, Any]:
    """Return the status, the models and the best round of a finished run, as `Result` has them."""
    best = path / "best.safetensors"
    averaged = path / "averaged.safetensors"
    summary = read_json(path / "summary.json")
    return {
        "status": str(summary.get("status")),
        "model": read_tensors(path / "model.safetensors"),
        "best_model": read_tensors(best) if best.exists() else None,
        "averaged_model": read_tensors(averaged) if averaged.exists() else None,
        "best_round": summary.get("best_round"),
    }


def read_checkpoint_outcome(path: Path, task: Task | None) -> dict[str, Any]:
    """Return the same of an unfinished run, from its newest checkpoint that can be read.

    There are no models without a checkpoint, or without a task to read them into. Raise InputError
    if the checkpoint is that of another model.
    """
    outcome: dict[str, Any] = dict.fromkeys(("model", "best_model", "averaged_model", "best_round"))
    outcome["status"] = "running" if is_busy(path) else "interrupted"
    saved = newest_checkpoint(own_folder(path / "checkpoints"))
    if saved is None or task is None:
        return outcome
    try:
        task.load_frozen(bundle_like(saved, "frozen", task.copy_frozen()))
        outcome["model"] = task.state_dict(*unpack_model(task, saved, "server", "buffers"))
        if best := unpack_best(task, saved):
            outcome["best_model"] = task.state_dict(best.w, best.buffers)
            outcome["best_round"] = best.round
        if average := unpack_average(task, saved):
            outcome["averaged_model"] = task.state_dict(average.w, average.buffers)
    except DamagedFileError as damage:
        raise InputError(
            f"The checkpoint of round {saved.notes['round']} in {path} belongs to another model: "
            f"{damage}; pass the run's own."
        ) from damage
    return outcome


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint of a folder that is intact; None if there is none.

    A run that goes on may remove one before it is read.
    """
    for round in rounds_in(folder):
        with contextlib.suppress(DamagedFileError, OSError):
            return read_state(folder, round)
    return None


def rebuild(
    folder: Path,
    config: dict[str, Any],
    model: ModelSource | None,
    loss: str | MetricFunction | None,
    metrics: Mapping[str, MetricFunction] | None,
    collate: Collate | None,
    trust: Trust,
) -> tuple[Task | None, DataAdapter | None]:
    """Return the task and the data adapter of a saved run, or None for both without a model.

    The model is the given one, or the one that the folder of a command-line run names. Raise
    InputError if the run had a loss of its own that is not given, or a model that is not trusted.
    """
    if model is None and (folder / "data.json").exists():
        trust.check_model(folder, config.get("model"))
        model = saved_model_source(folder, config)
    if model is None:
        return None, None
    loss = loss or config.get("loss", "classification")
    if isinstance(loss, str) and loss not in OBJECTIVES:
        raise InputError(
            f"The run was made with its own loss {loss!r}; "
            "pass it: Result.load(folder, model, loss=...)."
        )
    with deterministic_torch():
        task = Task(model, make_objective(loss, metrics))
        return task, make_data_adapter(task, collate)


def saved_model_source(folder: Path, config: Record) -> ModelSource:
    """Return a function that builds a new model like that of a command-line run.

    Raise InputError if data.json does not say for which inputs and classes.
    """
    path = folder / "data.json"
    data = read_json(path)
    shape = data.get("input_shape")
    sizes: list[Any] = [*shape, data.get("classes")] if isinstance(shape, list) else [None]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise InputError(f"{path} is damaged: it lacks the shape of the inputs or the classes.")
    return model_factory(str(config.get("model", "mlp")), tuple(sizes[:-1]), sizes[-1])
