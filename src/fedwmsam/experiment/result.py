"""The result of a run: its history, its models, and predictions on new data."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedwmsam import toml
from fedwmsam.data.adapter import DataAdapter, make_data_adapter
from fedwmsam.data.clients import Collate
from fedwmsam.engine.checkpoint import read_tensors
from fedwmsam.engine.records import Record, read_json, read_lines, read_metrics
from fedwmsam.engine.run_folder import require_run_folder
from fedwmsam.errors import InputError
from fedwmsam.experiment.trust import Trust
from fedwmsam.methods.vectors import Vectors
from fedwmsam.models import model_factory
from fedwmsam.training.objectives import OBJECTIVES, MetricFunction, make_objective
from fedwmsam.training.task import ModelSource, Task, deterministic_torch


class Result:
    """The result of `fit`, or of a run folder: `Result.load("runs/name")`.

    status: "completed", or the reason why the run ended earlier.
    rows: the metrics of each round, as in metrics.jsonl.
    timings: the seconds that each round took, as in timings.jsonl.
    recordings: the measurements of the training dynamics, as in recordings.jsonl.
    model: the state_dict of the last global model.
    best_model, best_round: the model with the best validation score, and its round; None without
        validation data.
    averaged_model: the state_dict of the averaged model (the twin); None without one.
    config: the run's settings, as in config.toml.
    folder: the run's folder; None if the run was not kept.
    """

    def __init__(
        self,
        *,
        status: str,
        rows: list[Record],
        timings: list[Record],
        recordings: list[Record],
        model: Vectors,
        best_model: Vectors | None,
        averaged_model: Vectors | None,
        best_round: int | None,
        config: Record,
        folder: Path | None,
        task: Task | None,
        adapter: DataAdapter | None,
    ) -> None:
        self.status = status
        self.rows = rows
        self.timings = timings
        self.recordings = recordings
        self.model = model
        self.best_model = best_model
        self.averaged_model = averaged_model
        self.best_round = best_round
        self.config = config
        self.folder = folder
        self._task = task
        self._adapter = adapter

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

    def last(self, name: str = "accuracy") -> float | None:
        """Return the newest value of a column, or None if no round has one."""
        values = [row[name] for row in self.rows if row.get(name) is not None]
        return values[-1] if values else None

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
    ) -> "Result":
        """Return the result of a finished run's folder.

        A model and a loss that the configuration names are rebuilt; pass your own as to `fit`.
        Without a model the result has the history and the weights, but cannot evaluate or predict.
        Raise InputError if there is no run, if it is not finished, or if it names a model to
        import ("package.module:function"), which runs its code: pass the model, or trust=True.
        """
        path = require_run_folder(Path(folder))
        config = toml.load(path / "config.toml")
        if not all((path / name).exists() for name in ("summary.json", "model.safetensors")):
            raise InputError(
                f"{path} has no finished model yet; go on with it: fedwmsam resume {path}"
            )
        best = path / "best.safetensors"
        averaged = path / "averaged.safetensors"
        summary = read_json(path / "summary.json")
        task, adapter = rebuild(
            path, config, model, loss, metrics, collate, Trust(everything=trust)
        )
        return cls(
            status=str(summary.get("status")),
            rows=read_metrics(path / "metrics.jsonl"),
            timings=read_lines(path / "timings.jsonl"),
            recordings=read_lines(path / "recordings.jsonl"),
            model=read_tensors(path / "model.safetensors"),
            best_model=read_tensors(best) if best.exists() else None,
            averaged_model=read_tensors(averaged) if averaged.exists() else None,
            best_round=summary.get("best_round"),
            config=config,
            folder=path,
            task=task,
            adapter=adapter,
        )


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
