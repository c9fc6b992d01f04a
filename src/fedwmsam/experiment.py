"""A run described by a configuration alone: data set, partition, model, method. What the command line runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedwmsam import streams, toml
from fedwmsam.api import check_stopping, execute, make_federation, make_reader, make_run
from fedwmsam.config import RunConfig, resolve
from fedwmsam.data import Dataset, Partition, Split, load_dataset, make_partition, parse_rule
from fedwmsam.data.augmentation import Augmentation, augment
from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.folder import RunFolder, existing, read_json
from fedwmsam.engine.run import Callback
from fedwmsam.errors import InputError
from fedwmsam.evaluation import Breakdown, fine_tuned
from fedwmsam.models import model_factory
from fedwmsam.result import Result
from fedwmsam.training.objectives import Objective, accuracy, make_objective, measure, top5
from fedwmsam.training.task import ModelSource, Samples, Task, calm_torch
from fedwmsam.training.vectors import Vectors


@dataclass(frozen=True)
class Experiment:
    config: RunConfig
    dataset: Dataset
    partition: Partition
    clients: list[Samples]
    validation: Samples | None
    test: Samples
    task: Task
    breakdown: Breakdown

    def create(self, path: Path) -> RunFolder:
        folder = RunFolder.create(path, self.config.flat())
        folder.write_json("data.json", self.description())
        return folder

    def reopen(self, path: Path) -> RunFolder:
        """The folder of an earlier run of this configuration; its data must be what they were."""
        folder = RunFolder.open(path)
        before = read_json(path / "data.json")["partition_hash"] if (path / "data.json").exists() else None
        if before not in (None, self.partition.hash):
            folder.close()
            raise InputError(
                f"The data have changed since {path} was begun: partition {self.partition.hash}, then {before}."
            )
        folder.write_config(self.config.flat())
        return folder

    def description(self) -> dict[str, Any]:
        """What the run trains on, for whoever reads its folder."""
        return {
            "dataset": self.dataset.name, "source": self.dataset.source, "classes": self.dataset.classes,
            "input_shape": list(self.dataset.input_shape), "partition_hash": self.partition.hash,
            "class_counts": self.partition.counts.tolist(), "class_names": list(self.dataset.class_names),
            "group_names": list(self.dataset.group_names), "test_samples": len(self.test),
            "validation_samples": len(self.validation) if self.validation else 0,
        }  # fmt: skip

    def run(self, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> Result:
        with calm_torch():
            run = make_run(
                self.config, self.config.make_method(), self.task, self.clients, self.test, self.validation, callbacks
            )
            run.folder, run.breakdown = folder, self.breakdown.columns
            return execute(run, self.config.flat(), make_reader(self.task), self.config.workers)

    def examine(self, weights: Vectors, fine_tune: int = 0, lr: float = 0.01) -> dict[str, Any]:
        """Accuracy by class and by client of a model, and after each client has trained it on its own data."""
        with calm_torch():
            w, buffers = self.task.adopt(weights)
            outputs, targets = self.task.outputs_of(w, buffers, self.test)
            found: dict[str, Any] = measure(self.task.objective, outputs, targets)
            found |= self.breakdown.columns(outputs, targets)
            found["by_class"] = named(self.breakdown.by_class(outputs, targets), self.dataset.class_names, "class")
            names = self.dataset.group_names if self.breakdown.groups is not None else ()
            found["by_client"] = named(self.breakdown.by_client(outputs, targets), names, "client")
            if fine_tune:
                federation = make_federation(self.config, self.config.make_method(), self.task, self.clients)
                tuned = fine_tuned(federation, w, buffers, self.test, self.breakdown, fine_tune, lr)
                found["by_client_fine_tuned"] = named(tuned, names, "client")
        return found


def named(values: torch.Tensor, names: Sequence[str], what: str) -> dict[str, float]:
    return {names[i] if i < len(names) else f"{what} {i}": value for i, value in enumerate(values.tolist())}


def prepare(config: RunConfig) -> Experiment:
    """Load the data, cut the validation share, deal the rest to the clients, make the model."""
    data = load_data(config.dataset, config.data_dir)
    pool, held = split_pool(len(data.train), config.validation, config.seed)
    split = deal(config, data, pool)
    with calm_torch():
        factory = model_factory(config.model, data.input_shape, data.classes)
        task = Task(factory, objective_for(data), seed=streams.key(config.seed, "init"), device=config.device)
    change = augment(config.augmentation)

    def samples(part: Split, rows: torch.Tensor | None = None, how: Augmentation | None = None) -> Samples:
        return TensorSamples(part.inputs.to(task.device), part.labels.to(task.device), rows, data.prepare, how)

    clients = [samples(data.train, pool[torch.from_numpy(rows)], change) for rows in split.clients]
    test, validation = samples(data.test), samples(data.train, held) if len(held) else None
    check_stopping(config, task.objective, test, validation)  # before a folder is made for a run that cannot be
    natural = split.rule == "natural"
    breakdown = Breakdown(data.classes, torch.from_numpy(split.counts), data.test.groups if natural else None)
    return Experiment(config, data, split, clients, validation, test, task, breakdown)


def load_data(name: str, data_dir: str | None) -> Dataset:
    """A data set by name or path; options follow the name: "office-caltech10,leave_out=amazon"."""
    name, *texts = name.split(",")
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"Options of a data set are written name,key=value, not {text!r}.")
        options[key.strip()] = int(value) if value.strip().isdecimal() else value.strip()
    return load_dataset(name, Path(data_dir) if data_dir else None, **options)


def deal(config: RunConfig, data: Dataset, pool: torch.Tensor) -> Partition:
    """Which of the pool's rows each client has; a natural split has as many clients as the data have groups."""
    groups = None if data.train.groups is None else data.train.groups[pool].numpy()
    natural = parse_rule(config.partition).name == "natural"
    clients = None if natural and config.clients == RunConfig.clients else config.clients
    labels = data.train.labels[pool].numpy()
    return make_partition(config.partition, labels, clients, config.seed, data.classes, groups)


def objective_for(data: Dataset) -> Objective:
    """Classification; with many classes the top five are worth a column."""
    return make_objective("classification", {"accuracy": accuracy} | ({"top5": top5} if data.classes >= 50 else {}))


def split_pool(count: int, share: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and validation rows. Cut before the partition: a partition may deal one sample to several clients, and
    a validation sample must be with none of them."""
    held = round(share * count)
    order = torch.from_numpy(streams.generator(seed, "validation").permutation(count))
    return order[held:].sort().values, order[:held].sort().values


def load_config(folder: Path) -> RunConfig:
    """The configuration a run folder was made with."""
    values = toml.load(existing(folder) / "config.toml")
    if "dataset" not in values:
        raise InputError(f"{folder} was made by fit() from Python; go on there with fit(..., resume=True).")
    return resolve(values)


def model_of(folder: Path) -> ModelSource:
    """A new model like that of a saved run."""
    config, data = toml.load(folder / "config.toml"), read_json(folder / "data.json")
    return model_factory(config["model"], tuple(data["input_shape"]), data["classes"])
