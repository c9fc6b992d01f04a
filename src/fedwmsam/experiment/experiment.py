"""A run described by a configuration alone: data set, partition, model, method. What the command line runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedwmsam import rng, toml
from fedwmsam.data import (
    DATASETS,
    Dataset,
    Partition,
    Split,
    dataset_options,
    load_dataset,
    make_partition,
)
from fedwmsam.data.adapter import DataCheck, make_data_adapter
from fedwmsam.data.augmentation import Augmentation, get_augmentation
from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.estimate import RunEstimate, estimate
from fedwmsam.engine.records import read_json
from fedwmsam.engine.run import Callback
from fedwmsam.engine.run_folder import RunFolder, require_run_folder
from fedwmsam.engine.worker_process import cores
from fedwmsam.errors import InputError
from fedwmsam.experiment.assembly import (
    check_method,
    check_stopping,
    execute,
    make_federation,
    make_run,
    with_workers,
)
from fedwmsam.experiment.evaluation import AccuracyBreakdown, fine_tune_accuracies
from fedwmsam.experiment.result import Result
from fedwmsam.methods.vectors import Vectors
from fedwmsam.models import model_factory
from fedwmsam.settings.config import RunConfig, is_natural, resolve
from fedwmsam.settings.options import parse_typed
from fedwmsam.training.objectives import Objective, accuracy, compute_metrics, make_objective, top5
from fedwmsam.training.task import Samples, Task, deterministic_torch


@dataclass(frozen=True)
class Experiment:
    config: RunConfig
    dataset: Dataset
    partition: Partition
    clients: list[Samples]
    validation: Samples | None
    test: Samples
    task: Task
    breakdown: AccuracyBreakdown
    client_names: tuple[str, ...] = ()

    def create(self, path: Path) -> RunFolder:
        return RunFolder.create(path, self.config.flat(), {"data.json": self.description()})

    def reopen(self, path: Path) -> RunFolder:
        """The folder of an earlier run of this configuration; its data must be what they were."""
        folder = RunFolder.open(path)
        try:
            self.check_data(path)
        except InputError:
            folder.close()
            raise
        return folder

    def check_data(self, path: Path) -> None:
        """Raise InputError unless the run in this folder had these data, dealt out like this."""
        before, now = read_json(path / "data.json"), self.description()
        for key in ("data_hash", "partition_hash"):
            if before.get(key) != now[key]:
                raise InputError(
                    f"The data have changed since {path} was begun ({key.replace('_', ' ')}); put the old ones "
                    "back, or start a new run."
                )

    def description(self) -> dict[str, Any]:
        """What the run trains on, for whoever reads its folder."""
        return {
            "dataset": self.dataset.name,
            "source": self.dataset.source,
            "data_hash": self.dataset.hash,
            "classes": self.dataset.classes,
            "input_shape": list(self.dataset.input_shape),
            "partition_hash": self.partition.hash,
            "class_counts": self.partition.counts.tolist(),
            "class_names": list(self.dataset.class_names),
            "group_names": list(self.client_names),
            "test_samples": len(self.test),
            "validation_samples": len(self.validation) if self.validation else 0,
        }

    def run(self, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> Result:
        with deterministic_torch():
            run = make_run(
                self.config,
                self.config.make_method(),
                self.task,
                self.clients,
                self.test,
                self.validation,
                callbacks,
            )
            run.folder, run.breakdown = folder, self.breakdown
            with with_workers(run, self.config.workers):
                return execute(run, self.config.flat(), make_data_adapter(self.task))

    def estimate(self) -> RunEstimate:
        """What the run would take, found by training one client for a few steps."""
        with deterministic_torch():
            run = make_run(
                self.config,
                self.config.make_method(),
                self.task,
                self.clients,
                self.test,
                self.validation,
            )
            try:
                return estimate(run, self.config.workers or cores())
            finally:
                run.close()

    def examine(self, weights: Vectors, fine_tune: int = 0, lr: float = 0.01) -> dict[str, Any]:
        """Accuracy by class and by client of a model, and after each client has trained it on its own data."""
        with deterministic_torch():
            w, buffers = self.task.adopt(weights)
            outputs, targets = self.task.outputs_of(w, buffers, self.test)
            found: dict[str, Any] = compute_metrics(self.task.objective, outputs, targets)
            found |= self.breakdown.columns(outputs, targets)
            found["by_class"] = named(
                self.breakdown.by_class(outputs, targets), self.dataset.class_names, "class"
            )
            names = self.client_names
            found["by_client"] = named(self.breakdown.by_client(outputs, targets), names, "client")
            if fine_tune:
                federation = make_federation(
                    self.config, self.config.make_method(), self.task, self.clients
                )
                tuned = fine_tune_accuracies(
                    federation, w, buffers, self.test, self.breakdown, fine_tune, lr
                )
                found["by_client_fine_tuned"] = named(tuned, names, "client")
        return found


def named(values: torch.Tensor, names: Sequence[str], what: str) -> dict[str, float]:
    return {
        names[i] if i < len(names) else f"{what} {i}": value
        for i, value in enumerate(values.tolist())
    }


def prepare(config: RunConfig) -> Experiment:
    """Load the data, cut the validation share, deal the rest to the clients, make the model."""
    data = load_data(config.dataset, config.data_dir)
    pool, held = split_pool(len(data.train), config.validation, config.seed)
    split = partition_data(config, data, pool)
    config = replace(config, clients=len(split.clients))
    with deterministic_torch():
        factory = model_factory(config.model, data.input_shape, data.classes)
        task = Task(
            factory,
            objective_for(data),
            seed=rng.derive_seed(config.seed, "init"),
            device=config.device,
        )
    change = get_augmentation(config.augmentation)

    def samples(
        part: Split, rows: torch.Tensor | None = None, how: Augmentation | None = None
    ) -> Samples:
        return TensorSamples(
            part.inputs.to(task.device), part.labels.to(task.device), rows, data.prepare, how
        )

    clients = [samples(data.train, pool[torch.from_numpy(rows)], change) for rows in split.clients]
    test, validation = samples(data.test), samples(data.train, held) if len(held) else None
    check_stopping(
        config, task.objective, test, validation
    )  # before a folder is made for a run that cannot be
    check_method(config, config.make_method(), task)
    first, labels = clients[0].batch(torch.arange(min(2, len(clients[0]))), seed=0)
    DataCheck(task)("The data", first, labels)
    groups, names = natural_clients(data, pool) if is_natural(config.partition) else (None, ())
    breakdown = AccuracyBreakdown(data.classes, torch.from_numpy(split.counts), groups)
    return Experiment(config, data, split, clients, validation, test, task, breakdown, names)


def natural_clients(data: Dataset, pool: torch.Tensor) -> tuple[torch.Tensor, tuple[str, ...]]:
    """The client each test sample belongs to, and the clients' names.

    Clients are numbered by the groups that the training pool has; those it lacks (left out, or all in the validation
    share) come after them.
    """
    assert data.train.groups is not None and data.test.groups is not None
    trained = torch.unique(data.train.groups[pool]).tolist()
    order = trained + [group for group in range(len(data.group_names)) if group not in set(trained)]
    numbers = torch.empty(len(order), dtype=torch.int64)
    numbers[torch.tensor(order)] = torch.arange(len(order))
    return numbers[data.test.groups], tuple(data.group_names[group] for group in order)


def load_data(name: str, data_dir: str | None) -> Dataset:
    """A data set by name or path; options follow the name: "office-caltech10,leave_out=amazon"."""
    name, *texts = name.split(",")
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"Options of a data set are written name,key=value, not {text!r}.")
        options[key.strip()] = typed(
            key.strip(), value.strip(), dataset_options(name).get(key.strip())
        )
    return load_dataset(name, data_dir, **options)


def typed(key: str, text: str, default: Any) -> Any:
    """An option's text as the type its default has."""
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InputError(f"The option {key} must be true or false, not {text!r}.")
        return text.lower() == "true"
    return parse_typed(key, text, (type(default),)) if isinstance(default, int | float) else text


def partition_data(config: RunConfig, data: Dataset, pool: torch.Tensor) -> Partition:
    """Which of the pool's rows each client has; a natural split has as many clients as the data have groups."""
    groups = None if data.train.groups is None else data.train.groups[pool].numpy()
    labels = data.train.labels[pool].numpy()
    return make_partition(
        config.partition, labels, config.clients, config.seed, data.classes, groups
    )


def objective_for(data: Dataset) -> Objective:
    """Classification; with many classes the top five are worth a column."""
    return make_objective(
        "classification", {"accuracy": accuracy} | ({"top5": top5} if data.classes >= 50 else {})
    )


def split_pool(count: int, share: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and validation rows. Cut before the partition: a partition may deal one sample to several clients, and
    a validation sample must be with none of them."""
    held = round(share * count)
    order = torch.from_numpy(rng.generator(seed, "validation").permutation(count))
    return order[held:].sort().values, order[:held].sort().values


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Paths as they are seen from anywhere, so that a run can be resumed from another folder."""
    name, comma, options = config.dataset.partition(",")
    if name not in DATASETS and Path(name).expanduser().exists():
        config = replace(config, dataset=f"{Path(name).expanduser().resolve()}{comma}{options}")
    return (
        replace(config, data_dir=str(Path(config.data_dir).expanduser().resolve()))
        if config.data_dir
        else config
    )


def load_config(folder: Path) -> RunConfig:
    """The configuration a run folder was made with."""
    values = toml.load(require_run_folder(folder) / "config.toml")
    if "dataset" not in values:
        raise InputError(
            f"{folder} was made by fit() from Python; go on there with fit(..., resume=True)."
        )
    if is_natural(values.get("partition")):
        values.pop("clients", None)  # the data say it again
    return resolve(values)
