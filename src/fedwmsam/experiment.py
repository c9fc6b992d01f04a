"""A run described by a configuration alone: data set, partition, model, method. What the command line runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedwmsam import streams, toml
from fedwmsam.api import check_stopping, execute, make_reader, make_run
from fedwmsam.config import RunConfig, resolve
from fedwmsam.data import Dataset, Partition, load_dataset, make_partition
from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.folder import RunFolder, existing, read_json
from fedwmsam.engine.run import Callback
from fedwmsam.errors import InputError
from fedwmsam.models import model_factory
from fedwmsam.result import Result
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import ModelSource, Samples, Task, calm_torch


@dataclass(frozen=True)
class Experiment:
    config: RunConfig
    dataset: Dataset
    partition: Partition
    clients: list[Samples]
    validation: Samples | None
    test: Samples
    task: Task

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
            "input_shape": list(self.dataset.inputs.shape[1:]), "partition_hash": self.partition.hash,
            "class_counts": self.partition.counts.tolist(), "test_samples": len(self.test),
            "validation_samples": len(self.validation) if self.validation else 0,
        }  # fmt: skip

    def run(self, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> Result:
        with calm_torch():
            run = make_run(
                self.config, self.config.make_method(), self.task, self.clients, self.test, self.validation, callbacks
            )
            run.folder = folder
            return execute(run, self.config.flat(), make_reader(self.task))


def prepare(config: RunConfig) -> Experiment:
    """Load the data, cut the validation share, deal the rest to the clients, make the model."""
    data = load_dataset(config.dataset, Path(config.data_dir) if config.data_dir else None)
    pool, held = split_pool(len(data.labels), config.validation, config.seed)
    split = make_partition(config.partition, data.labels[pool].numpy(), config.clients, config.seed, data.classes)
    with calm_torch():
        factory = model_factory(config.model, tuple(data.inputs.shape[1:]), data.classes)
        task = Task(factory, OBJECTIVES["classification"], seed=streams.key(config.seed, "init"), device=config.device)
    inputs, labels = data.inputs.to(task.device), data.labels.to(task.device)
    clients: list[Samples] = [TensorSamples(inputs, labels, pool[torch.from_numpy(rows)]) for rows in split.clients]
    test = TensorSamples(data.test_inputs.to(task.device), data.test_labels.to(task.device))
    validation = TensorSamples(inputs, labels, held) if len(held) else None
    check_stopping(config, task.objective, test, validation)  # before a folder is made for a run that cannot be
    return Experiment(config, data, split, clients, validation, test, task)


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
