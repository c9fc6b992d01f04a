"""The clients' side on Flower.

A client holds data, trains the global model on them when the server asks for it, and keeps no state
between two messages: the server remembers what a method needs to remember of each client.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedwmsam import rng
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.data.clients import Collate
from fedwmsam.data.frames import has_frame
from fedwmsam.engine.rounds import Federation, Job, train_client
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.own_training import (
    TrainLoop,
    count_samples,
    require_replaceable_steps,
    train_with_loop,
)
from fedwmsam.flower.replies import METRICS, NUM_EXAMPLES
from fedwmsam.flower.wire import TrainConfig, WireError
from fedwmsam.methods import Method
from fedwmsam.training.objectives import MetricFunction, make_objective
from fedwmsam.training.task import ModelSource, Samples, Task, deterministic_torch

NodeConfig = Mapping[str, Any]
"""The values of `--node-config` that a SuperNode was started with."""
LoadData = Callable[[int, NodeConfig], Any]
"""A function from partition id and node config to data, as `fit` takes them for a client."""


def make_client_app(
    model: ModelSource,
    load_data: LoadData,
    *,
    load_test: LoadData | None = None,
    loss: str | MetricFunction = "classification",
    metrics: Mapping[str, MetricFunction] | None = None,
    monitor: str | None = None,
    collate: Collate | None = None,
    target: str | None = None,
    methods: Sequence[type[Method]] = (),
    train: TrainLoop | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
) -> ClientApp:
    """Return a Flower ClientApp that trains on what `load_data(partition, node_config)` returns.

    That is what `fit` takes as the data of one client: a pair whose x may be a tensor, a tuple or a
    mapping, a mapping with "labels", a DataFrame with the column `target`, a dataset or a
    DataLoader. The method, its options and all settings come from the server. Model and loss must
    be the server's, and metrics that it is to report for the clients, too. `load_test` returns data
    to evaluate the global model on, if the server asks for it. `methods` are the classes of your
    own methods: a server can only name those, and the library's. With one thread the results are
    those of the simulator; more are faster.

    `train(model, data, config)` is a loop of your own instead of the library's local training, for
    methods that allow it (those whose `needs_own_steps` is empty, such as FedAvg and FedAdam). It
    trains `model`, which has the global weights, in place on what `load_data` returned, whatever
    that is; `config` holds what the server sends ("lr", "local-epochs", "batch-size",
    "server-round", "seed" …, the method's options). It returns what a Flower client reports:
    {"train_loss": …, "num-examples": …}.
    """
    objective = (loss, None if metrics is None else tuple(metrics.items()), monitor)
    reading = (collate, target)
    return TrainingApp(
        Client(
            model,
            load_data,
            load_test,
            objective,
            reading,
            tuple(methods),
            train,
            str(device),
            threads,
        )
    )


class TrainingApp(ClientApp):
    """A Flower ClientApp that passes each kind of message to a client."""

    def __init__(self, client: "Client") -> None:
        super().__init__()
        self.client = client
        self.query("whoami")(client.whoami)
        self.train()(client.train)
        self.evaluate()(client.evaluate)


@dataclass(frozen=True)
class Client:
    """The handlers of the server's three kinds of messages.

    It keeps no state: Ray copies it with every message.
    """

    model: ModelSource
    load_data: LoadData
    load_test: LoadData | None
    objective: tuple[Any, ...]
    """The loss, the metrics as pairs or None, and the metric to monitor or None."""
    reading: tuple[Collate | None, str | None]
    """How data are read: the function that collates samples, and the column to predict."""
    methods: tuple[type[Method], ...]
    loop: TrainLoop | None
    """The user's own local training, if there is one."""
    device: str
    threads: int

    def whoami(self, message: Message, context: Context) -> Message:
        """Reply which client this node is, and how many samples it has."""
        with deterministic_torch():
            config = self.read_config(message)
            samples = self.count_samples(self.make_checked_task(config), context.node_config)
        record = ConfigRecord(
            {
                "version": wire.VERSION,
                "client": partition_of(context.node_config),
                "samples": samples,
                "process": launcher_process_id(),
            }
        )
        return Message(RecordDict({wire.CONFIG_KEY: record}), reply_to=message)

    def train(self, message: Message, context: Context) -> Message:
        """Train this client for one round, as the simulator does, and reply with the result.

        Raise WireError if the message is for another client, or for another number of samples.
        """
        with deterministic_torch():
            torch.set_num_threads(self.threads)
            config = self.read_config(message)
            task = self.make_checked_task(config)
            job = wire.unpack_job(message.content, task)
            partition = partition_of(context.node_config)
            samples = self.count_samples(task, context.node_config)
            if (job.client, job.info.samples) != (partition, samples):
                raise WireError(
                    f"The server takes this node for client {job.client} "
                    f"with {job.info.samples} samples; it is "
                    f"client {partition} with {samples}."
                )
            content = self.train_job(task, config, job, context.node_config)
        return Message(content, reply_to=message)

    def train_job(
        self, task: Task, config: TrainConfig, job: Job, node_config: NodeConfig
    ) -> RecordDict:
        """Return the content of the reply to a train message, by the library's steps or a loop."""
        if self.loop is not None:
            data = self.load_unread(node_config)
            result, metrics = train_with_loop(self.loop, task, config, job, data)
            content = wire.pack_result(job, result, config.transport)
            content[METRICS] = metrics
            return content
        federation = Federation(
            method=config.method,
            task=task,
            clients={job.client: self.load_samples(task, node_config)},
            schedule=config.schedule(job.info),
            local_rules=config.local_rules,
        )
        return wire.pack_result(job, train_client(federation, job), config.transport)

    def evaluate(self, message: Message, context: Context) -> Message:
        """Evaluate the global model on this client's own test data and reply with the metrics.

        Raise InputError if the app was made without `load_test`.
        """
        if self.load_test is None:
            raise InputError(
                "The server asks to evaluate, but this ClientApp was made without load_test=."
            )
        with deterministic_torch():
            torch.set_num_threads(self.threads)
            config = self.read_config(message)
            task = self.make_checked_task(config)
            job = wire.unpack_job(message.content, task)
            samples = self.load_samples(task, context.node_config, test=True)
            values = task.evaluate(job.down["w"], job.buffers, samples)
        metrics = MetricRecord({NUM_EXAMPLES: len(samples), **values})
        return Message(RecordDict({METRICS: metrics}), reply_to=message)

    def read_config(self, message: Message) -> TrainConfig:
        """Return the settings that the server has sent with a message.

        Raise InputError if their method does not allow this app's own training loop.
        """
        config = TrainConfig.from_record(wire.config_record_of(message.content), self.methods)
        if self.loop is not None:
            require_replaceable_steps(config.method)
        return config

    def try_training(self, node_config: NodeConfig) -> int:
        """Load the data, compute a gradient on a few samples, and return how many there are.

        What a training loop of the user does with them is not tried.
        """
        with deterministic_torch():
            task = self.make_task(0)
            if self.loop is not None:
                return self.count_samples(task, node_config)
            samples = self.load_samples(task, node_config)
            task.start_training(task.initial_buffers)
            batch = samples.batch(torch.arange(min(8, len(samples))), seed=0)
            task.compute_gradient(task.initial_weights, batch, seed=0, update_buffers=False)
        return len(samples)

    def make_checked_task(self, config: TrainConfig) -> Task:
        """Return the task; raise InputError if its model or loss differ from the server's."""
        task = self.make_task(rng.derive_seed(config.seed, "init"))
        if wire.task_fingerprint(task) != config.task:
            raise InputError(
                "The model, its frozen weights or the loss of this ClientApp differ "
                "from the server's; use the same."
            )
        return task

    def make_task(self, seed: int) -> Task:
        """Return the task with initial weights from this seed."""
        return make_task(self.model, self.objective, seed, self.device)

    def count_samples(self, task: Task, node_config: NodeConfig) -> int:
        """Return how many training samples this node has."""
        if self.loop is None:
            return len(self.load_samples(task, node_config))
        return count_samples(self.load_unread(node_config), f"Client {partition_of(node_config)}")

    def load_unread(self, node_config: NodeConfig) -> Any:
        """Return the training data of this node as the user's function returns them."""
        key = tuple(sorted(node_config.items()))
        return load_cached(self.load_data, partition_of(node_config), key)

    def load_samples(self, task: Task, node_config: NodeConfig, test: bool = False) -> Samples:
        """Return the training samples of this node, or with `test` its test samples."""
        load = self.load_test if test else self.load_data
        assert load is not None
        partition = partition_of(node_config)
        first = self.load_data if test and self.loop is None else None
        key = tuple(sorted(node_config.items()))
        return read_samples(task, load, self.reading, partition, key, first)


# Tasks and samples are cached: a process that gets several messages uses them again, as long as
# model and data come from the same functions.


@lru_cache(maxsize=2)
def make_task(model: ModelSource, objective: tuple[Any, ...], seed: int, device: str) -> Task:
    """Return the task of a client; `objective` is loss, metrics as pairs or None, and monitor."""
    loss, metrics, monitor = objective
    metric_functions = None if metrics is None else dict(metrics)
    made_objective = make_objective(loss, metric_functions, monitor)
    return Task(model, made_objective, seed=seed, device=device)


@lru_cache(maxsize=32)
def read_samples(
    task: Task,
    load: LoadData,
    reading: tuple[Collate | None, str | None],
    partition: int,
    node_config: tuple[tuple[str, Any], ...],
    first: LoadData | None = None,
) -> Samples:
    """Return what `load` returns for this partition as samples, checked against the task.

    Columns that have names are taken in the order in which what `first` returns has them.
    """
    name = f"Client {partition}"
    data = load(partition, dict(node_config))
    adapter = make_data_adapter(task, *reading)
    if first is not None and has_frame(data):
        adapter.to_samples(first(partition, dict(node_config)), name)
    return adapter.to_samples(data, name)


@lru_cache(maxsize=32)
def load_cached(load: LoadData, partition: int, node_config: tuple[tuple[str, Any], ...]) -> Any:
    """Return what `load` returns for this partition."""
    return load(partition, dict(node_config))


def launcher_process_id() -> str:
    """Return the id and the start time of the process that starts the clients of this node.

    They differ when the node has been restarted. The id alone would not do: in a container the new
    process may have the id of the old one. Return nothing in Flower's simulation, where a later
    message may be replied to before an earlier one.
    """
    if "ray" in sys.modules:
        return ""
    process = os.getppid()
    try:
        started = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{process} {started}"


def partition_of(node_config: NodeConfig) -> int:
    """Return the partition id of a node; raise InputError if it has none."""
    partition = node_config.get("partition-id")
    if not isinstance(partition, int):
        raise InputError(
            f"This SuperNode's partition-id is {partition!r}; "
            "start it with --node-config 'partition-id=0', 1, 2 …"
        )
    return partition
