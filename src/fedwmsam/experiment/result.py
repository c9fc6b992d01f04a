"""What a run leaves: its history, its models, and predictions on new data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedwmsam import toml
from fedwmsam.data.adapter import DataAdapter, make_data_adapter
from fedwmsam.data.clients import Collate
from fedwmsam.engine.checkpoint import read_tensors
from fedwmsam.engine.records import Record, read_json, read_lines
from fedwmsam.engine.run_folder import require_run_folder
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors
from fedwmsam.models import model_factory
from fedwmsam.training.objectives import OBJECTIVES, MetricFunction, make_objective
from fedwmsam.training.task import ModelSource, Task, deterministic_torch


class Result:
    """The outcome of `fit`, or of a run folder: `Result.load("runs/name")`."""

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
        reader: DataAdapter | None,
    ) -> None:
        self.status, self.rows, self.timings, self.recordings = status, rows, timings, recordings
        self.model, self.best_model, self.best_round = model, best_model, best_round
        self.averaged_model = averaged_model
        self.config, self.folder = config, folder
        self._task, self._reader = task, reader

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The history by name, one entry a round; None where a round has no such value (not evaluated)."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return {name: [row.get(name) for row in self.rows] for name in names}

    @property
    def rounds(self) -> int:
        return len(self.rows)

    @property
    def seconds(self) -> float:
        return float(sum(t["train_seconds"] + t["evaluate_seconds"] for t in self.timings))

    def last(self, name: str = "accuracy") -> float | None:
        """The newest value of a column."""
        values = [row[name] for row in self.rows if row.get(name) is not None]
        return values[-1] if values else None

    def evaluate(
        self, data: Any, *, best: bool = False, averaged: bool = False
    ) -> dict[str, float]:
        """Loss and metrics on new data, an (x, y) pair or a dataset; of the last model, or another as in `weights`."""
        task, reader = self._parts()
        with deterministic_torch():
            return task.evaluate(
                *task.adopt(self.weights(best, averaged)), reader.samples(data, "The data")
            )

    def predict(
        self, inputs: Any, *, best: bool = False, averaged: bool = False, batch_size: int = 1000
    ) -> Tensor:
        """The outputs for a tensor or array of inputs; of the last model, or of another as in `weights`."""
        task, reader = self._parts()
        with deterministic_torch():
            w, buffers = task.adopt(self.weights(best, averaged))
            task.load(w)
            task.load_buffers(buffers)
            return task.predict(reader.inputs(inputs), batch_size)

    def weights(self, best: bool = False, averaged: bool = False) -> Vectors:
        """The last model's state_dict, or the best-by-validation one's, or the averaged twin's."""
        if best and averaged:
            raise InputError("Ask for the best model or for the averaged one: they are two.")
        if averaged:
            if self.averaged_model is None:
                raise InputError(
                    "There is no averaged model: the run was made without a twin (twin=8 keeps one)."
                )
            return self.averaged_model
        if not best:
            return self.model
        if self.best_model is None:
            raise InputError(
                "There is no best model: the run had no validation data to choose it on."
            )
        return self.best_model

    def _parts(self) -> tuple[Task, DataAdapter]:
        if self._task is None or self._reader is None:
            raise InputError(
                "The run folder does not say how to build the model; use Result.load(folder, model=...)."
            )
        return self._task, self._reader

    @classmethod
    def load(
        cls,
        folder: str | Path,
        model: Any = None,
        loss: Any = None,
        metrics: Any = None,
        collate: Any = None,
    ) -> "Result":
        """A run folder's result. A model and a loss the configuration names are rebuilt; pass your own as to `fit`."""
        path = require_run_folder(Path(folder))
        config = toml.load(path / "config.toml")
        if not all((path / name).exists() for name in ("summary.json", "model.safetensors")):
            raise InputError(
                f"{path} has no finished model yet; go on with it: fedwmsam resume {path}"
            )
        best, averaged = path / "best.safetensors", path / "averaged.safetensors"
        summary = read_json(path / "summary.json")
        task, reader = rebuild(path, config, model, loss, metrics, collate)
        return cls(
            status=str(summary.get("status")),
            rows=read_lines(path / "metrics.jsonl"),
            timings=read_lines(path / "timings.jsonl"),
            recordings=read_lines(path / "recordings.jsonl"),
            model=read_tensors(path / "model.safetensors"),
            best_model=read_tensors(best) if best.exists() else None,
            averaged_model=read_tensors(averaged) if averaged.exists() else None,
            best_round=summary.get("best_round"),
            config=config,
            folder=path,
            task=task,
            reader=reader,
        )


def rebuild(
    folder: Path,
    config: dict[str, Any],
    model: ModelSource | None,
    loss: str | MetricFunction | None,
    metrics: Mapping[str, MetricFunction] | None,
    collate: Collate | None,
) -> tuple[Task | None, DataAdapter | None]:
    """The task and reader of a saved run: from the given model, or from the data set and model the folder names."""
    if model is None and (folder / "data.json").exists():
        model = model_of(folder)
    if model is None:
        return None, None
    wanted = loss or config.get("loss", "classification")
    if isinstance(wanted, str) and wanted not in OBJECTIVES:
        raise InputError(
            f"The run was made with its own loss {wanted!r}; pass it: Result.load(folder, model, loss=...)."
        )
    with deterministic_torch():
        task = Task(model, make_objective(wanted, metrics))
        return task, make_data_adapter(task, collate)


def model_of(folder: Path) -> ModelSource:
    """A new model like that of a saved run."""
    config, data = toml.load(folder / "config.toml"), read_json(folder / "data.json")
    return model_factory(config["model"], tuple(data["input_shape"]), data["classes"])
