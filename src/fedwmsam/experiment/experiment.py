"""An experiment: a run described by a configuration alone, as the command line makes it.

`prepare` loads the data set, partitions it over the clients and builds the model; the `Experiment`
that it returns is run, estimated or evaluated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from fedwmsam.engine.estimate import PROBE_SECONDS, RunEstimate, estimate, shorten_data
from fedwmsam.engine.provenance import command_line
from fedwmsam.engine.records import read_json
from fedwmsam.engine.run import Callback, Run
from fedwmsam.engine.run_folder import RunFolder, require_run_folder
from fedwmsam.engine.worker_process import cores
from fedwmsam.errors import InputError
from fedwmsam.experiment.assembly import (
    check_method_settings,
    check_single_samples,
    check_stopping,
    execute_run,
    make_federation,
    make_run,
    use_workers,
)
from fedwmsam.experiment.evaluation import AccuracyBreakdown, fine_tune_accuracies
from fedwmsam.experiment.result import Result
from fedwmsam.experiment.trust import UNTRUSTED, Trust
from fedwmsam.methods.vectors import Vectors
from fedwmsam.models import model_factory
from fedwmsam.settings.config import RunConfig, is_natural, resolve_config
from fedwmsam.settings.options import parse_typed
from fedwmsam.training.objectives import (
    MetricFunction,
    Objective,
    accuracy,
    compute_metrics,
    make_objective,
    top5,
)
from fedwmsam.training.task import Samples, Task, deterministic_torch


@dataclass(frozen=True)
class Experiment:
    """Everything that a configuration describes, ready to be run: data, clients and model."""

    config: RunConfig
    dataset: Dataset
    partition: Partition
    clients: list[Samples]
    validation: Samples | None
    test: Samples
    task: Task
    breakdown: AccuracyBreakdown
    client_names: tuple[str, ...] = ()
    """Names of the clients where the data have groups; otherwise empty."""

    def create(self, path: Path) -> RunFolder:
        """Create the run's folder, with its configuration and a description of the data.

        Raise InputError if there is a run already.
        """
        files = {"data.json": self.describe_data()}
        return RunFolder.create(path, self.config.to_flat_dict(), files)

    def reopen(self, path: Path) -> RunFolder:
        """Return the folder of an earlier run of this configuration.

        Raise InputError if the data or the partition have changed since.
        """
        folder = RunFolder.open(path)
        try:
            self.check_data(path)
        except InputError:
            folder.close()
            raise
        return folder

    def check_data(self, path: Path) -> None:
        """Raise InputError unless the run in this folder had the same data and partition."""
        saved = read_json(path / "data.json")
        current = self.describe_data()
        for key in ("data_hash", "partition_hash"):
            if saved.get(key) != current[key]:
                raise InputError(
                    f"The data have changed since {path} was begun ({key.replace('_', ' ')}); "
                    "put the old ones back, or start a new run."
                )

    def describe_data(self) -> dict[str, Any]:
        """Return the content of data.json: the data set, the partition and their hashes."""
        return {
            "dataset": self.dataset.name,
            "source": self.dataset.source,
            "data_hash": self.dataset.hash,
            "classes": self.dataset.num_classes,
            "input_shape": list(self.dataset.input_shape),
            "partition_hash": self.partition.hash,
            "class_counts": self.partition.class_counts.tolist(),
            "class_names": list(self.dataset.class_names),
            "group_names": list(self.client_names),
            "test_samples": len(self.test),
            "validation_samples": len(self.validation) if self.validation else 0,
        }

    def make_run(self, callbacks: Sequence[Callback] = ()) -> Run:
        """Return a run of this experiment that has not begun."""
        return make_run(
            self.config,
            self.config.make_method(),
            self.task,
            self.clients,
            self.test,
            self.validation,
            callbacks,
        )

    def run(
        self,
        folder: RunFolder,
        callbacks: Sequence[Callback] = (),
        command: Sequence[str] | None = None,
    ) -> Result:
        """Train to the end in this folder, from its last checkpoint, and return the result.

        The command is that of the person who asked for the run, if it is not that of this process.
        """
        with deterministic_torch():
            run = self.make_run(callbacks)
            run.folder = folder
            # A client's accuracy is weighed by its classes, which a private run must not tell.
            run.breakdown = None if self.config.uses_privacy else self.breakdown
            with use_workers(run, self.config.workers):
                config = self.config.to_flat_dict()
                adapter = make_data_adapter(self.task)
                return execute_run(run, config, adapter, command or command_line())

    def estimate(self, seconds: float = PROBE_SECONDS) -> RunEstimate:
        """Return what the run would cost, measured by short rounds of a few clients and steps.

        A probe takes about so many seconds, of a large model as long as a dozen steps and two
        batches of the evaluation; several workers are started for it. Raise InputError for workers
        that are not processes of this machine.
        """
        if isinstance(self.config.workers, str):
            raise InputError(
                f"What a run takes is measured on this machine, not with workers="
                f"{self.config.workers}: ask with a number of workers."
            )
        workers = self.config.workers or cores()
        with deterministic_torch():
            run = self.make_run()
            lengths = shorten_data(run, workers)
            try:
                with use_workers(run, workers):
                    return estimate(run, lengths, workers, seconds)
            finally:
                run.close()

    def evaluate_breakdown(
        self, weights: Vectors, fine_tune: int = 0, lr: float = 0.01
    ) -> dict[str, Any]:
        """Return a model's test metrics, and its accuracy by class and by client.

        `weights` is the model's state_dict. With `fine_tune` epochs, "by_client_fine_tuned" is the
        accuracy after each client has trained the model on its own data with step size `lr`.
        """
        with deterministic_torch():
            w, buffers = self.task.unpack_state_dict(weights)
            predictions = self.task.compute_outputs(w, buffers, self.test)
            outputs, targets, _ = predictions
            result: dict[str, Any] = compute_metrics(self.task.objective, predictions)
            result |= self.breakdown.columns(outputs, targets)
            by_class = self.breakdown.by_class(outputs, targets)
            by_client = self.breakdown.by_client(outputs, targets)
            result["by_class"] = label_values(by_class, self.dataset.class_names, "class")
            result["by_client"] = label_values(by_client, self.client_names, "client")
            if fine_tune:
                tuned = self.fine_tune_clients(w, buffers, fine_tune, lr)
                result["by_client_fine_tuned"] = label_values(tuned, self.client_names, "client")
        return result

    def fine_tune_clients(self, w: Tensor, buffers: Vectors, epochs: int, lr: float) -> Tensor:
        """Return each client's accuracy after some epochs of training on its own data."""
        method = self.config.make_method()
        federation = make_federation(self.config, method, self.task, self.clients)
        return fine_tune_accuracies(federation, w, buffers, self.test, self.breakdown, epochs, lr)


def label_values(values: Tensor, names: Sequence[str], kind: str) -> dict[str, float]:
    """Return the values by name; where there is no name, by kind and number ("client 3")."""
    return {
        names[i] if i < len(names) else f"{kind} {i}": value
        for i, value in enumerate(values.tolist())
    }


def prepare(config: RunConfig) -> Experiment:
    """Return the experiment of a configuration, with its data loaded and its model built.

    Validation data are held out before the training data are partitioned over the clients. Raise
    InputError for settings that do not go with the data, the model or each other.
    """
    data = load_data(config.dataset, config.data_dir)
    train_indices, validation_indices = hold_out_indices(
        len(data.train), config.validation, config.seed
    )
    partition = partition_data(config, data, train_indices)
    config = replace(config, clients=len(partition.client_indices))
    with deterministic_torch():
        factory = model_factory(config.model, data.input_shape, data.num_classes)
        seed = rng.derive_seed(config.seed, "init")
        task = Task(factory, choose_objective(data), seed=seed, device=config.device)
    augmentation = get_augmentation(config.augmentation)

    def make_samples(
        split: Split, indices: Tensor | None = None, augmentation: Augmentation | None = None
    ) -> Samples:
        return TensorSamples(split.inputs, split.labels, indices, data.transform, augmentation)

    train = move_split(data.train, task.device)  # once: all clients share its memory
    clients = [
        make_samples(train, train_indices[torch.from_numpy(indices)], augmentation)
        for indices in partition.client_indices
    ]
    test = make_samples(move_split(data.test, task.device))
    validation = make_samples(train, validation_indices) if len(validation_indices) else None
    # Checked here, before a folder is made for a run that cannot start.
    check_stopping(config, task.objective, test, validation)
    check_method_settings(config, config.make_method(), task)
    check_single_samples(config, task, clients)
    inputs, labels = clients[0].batch(torch.arange(min(2, len(clients[0]))), seed=0)
    DataCheck(task)("The data", inputs, labels)
    groups: Tensor | None = None
    names: tuple[str, ...] = ()
    if is_natural(config.partition):
        groups, names = clients_of_test_samples(data, train_indices)
    class_counts = torch.from_numpy(partition.class_counts)
    breakdown = AccuracyBreakdown(data.num_classes, class_counts, groups)
    return Experiment(config, data, partition, clients, validation, test, task, breakdown, names)


def move_split(split: Split, device: torch.device) -> Split:
    """Return the samples of a split on the device."""
    return replace(split, inputs=split.inputs.to(device), labels=split.labels.to(device))


def clients_of_test_samples(data: Dataset, train_indices: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Return the client that each test sample belongs to, and the clients' names.

    The groups of the training samples are numbered first; groups without any (left out, or all in
    the validation data) follow.
    """
    assert data.train.groups is not None and data.test.groups is not None
    trained = torch.unique(data.train.groups[train_indices]).tolist()
    order = trained + [group for group in range(len(data.group_names)) if group not in set(trained)]
    client_of_group = torch.empty(len(order), dtype=torch.int64)
    client_of_group[torch.tensor(order)] = torch.arange(len(order))
    return client_of_group[data.test.groups], tuple(data.group_names[group] for group in order)


def load_data(name: str, data_dir: str | None) -> Dataset:
    """Return a data set by name or path.

    Options follow the name, as in "office-caltech10,leave_out=amazon". Raise InputError for an
    unknown data set or option, and for files that are missing or broken.
    """
    name, *texts = name.split(",")
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"Options of a data set are written name,key=value, not {text!r}.")
        key = key.strip()
        options[key] = parse_option(key, value.strip(), dataset_options(name).get(key))
    return load_dataset(name, data_dir, **options)


def parse_option(key: str, text: str, default: Any) -> Any:
    """Return an option's text as the type of its default; raise InputError if it is none."""
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InputError(f"The option {key} must be true or false, not {text!r}.")
        return text.lower() == "true"
    return parse_typed(key, text, (type(default),)) if isinstance(default, int | float) else text


def partition_data(config: RunConfig, data: Dataset, train_indices: Tensor) -> Partition:
    """Return which of the training samples each client has, as positions in `train_indices`.

    A natural partition has as many clients as these samples have groups.
    """
    groups = None if data.train.groups is None else data.train.groups[train_indices].numpy()
    labels = data.train.labels[train_indices].numpy()
    return make_partition(
        config.partition, labels, config.clients, config.seed, data.num_classes, groups
    )


def choose_objective(data: Dataset) -> Objective:
    """Return the classification objective, with top-5 accuracy if there are many classes."""
    metrics: dict[str, MetricFunction] = {"accuracy": accuracy}
    if data.num_classes >= 50:
        metrics["top5"] = top5
    return make_objective("classification", metrics)


def hold_out_indices(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the training and of the validation samples, both sorted.

    This comes before the partition: a partition may give one sample to several clients, and none of
    them may train on a validation sample.
    """
    held_out = round(share * count)
    order = torch.from_numpy(rng.generator(seed, "validation").permutation(count))
    return order[held_out:].sort().values, order[:held_out].sort().values


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the configuration with absolute paths, so that it can be resumed from any folder."""
    name, comma, options = config.dataset.partition(",")
    if name not in DATASETS and Path(name).expanduser().exists():
        config = replace(config, dataset=f"{Path(name).expanduser().resolve()}{comma}{options}")
    if config.data_dir:
        config = replace(config, data_dir=str(Path(config.data_dir).expanduser().resolve()))
    return config


def load_config(folder: Path, trust: Trust = UNTRUSTED) -> RunConfig:
    """Return the configuration of a run folder.

    Raise InputError if there is no run, if `fit` made it (its data and model are not in the
    configuration), or if it names a model or a method to import that is not trusted.
    """
    values = toml.load(require_run_folder(folder) / "config.toml")
    if "dataset" not in values:
        raise InputError(
            f"{folder} was made by fit() from Python; go on there with fit(..., resume=True), or "
            "use Result.load(folder, model)."
        )
    if is_natural(values.get("partition")):
        values.pop("clients", None)  # the data set says how many there are
    trust.check_model(folder, values.get("model"))
    trust.check_method(folder, values.get("method"))
    return resolve_config(values)
