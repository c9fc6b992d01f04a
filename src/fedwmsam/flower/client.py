"""The clients' side on Flower: hold data, train when asked, keep nothing."""

import os
from collections.abc import Callable, Mapping
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
from fedwmsam.engine.rounds import Federation, train_client
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.exchange import SIZE
from fedwmsam.flower.wire import TrainConfig, WireError
from fedwmsam.training.objectives import MetricFunction, make_objective
from fedwmsam.training.task import ModelSource, Samples, Task, deterministic_torch

NodeConfig = Mapping[str, Any]
LoadData = Callable[[int, NodeConfig], Any]
"""(partition id, what `--node-config` of the SuperNode says) → an (x, y) pair or a dataset."""


def make_client_app(
    model: ModelSource,
    load_data: LoadData,
    *,
    load_test: LoadData | None = None,
    loss: str | MetricFunction = "classification",
    metrics: Mapping[str, MetricFunction] | None = None,
    monitor: str | None = None,
    collate: Collate | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> ClientApp:
    """A Flower ClientApp that trains `model` on what `load_data(partition, node_config)` returns.

    The method, its options and all settings come from the server. Model and loss must be the server's. `load_test`
    gives data to evaluate the global model on, if the server asks for it. One thread gives the numbers of the
    simulator; more are quicker.
    """
    objective = (loss, None if metrics is None else tuple(metrics.items()), monitor)
    return TrainingApp(Client(model, load_data, load_test, objective, collate, device, threads))


class TrainingApp(ClientApp):
    """Flower's ClientApp around a client."""

    def __init__(self, client: "Client") -> None:
        super().__init__()
        self.client = client
        self.query("whoami")(client.introduce)
        self.train()(client.train)
        self.evaluate()(client.evaluate)


@dataclass(frozen=True)
class Client:
    """Answers the server's three questions and keeps nothing: Ray copies it with every message."""

    model: ModelSource
    load_data: LoadData
    load_test: LoadData | None
    objective: tuple[Any, ...]
    collate: Collate | None
    device: str
    threads: int

    def introduce(self, message: Message, context: Context) -> Message:
        """Whose data are here, and how many samples."""
        with deterministic_torch():
            terms = TrainConfig.read(wire.config_record_of(message.content))
            samples = self.samples(self.checked_task(terms), context.node_config)
        partition = partition_of(context.node_config)
        note = ConfigRecord(
            {
                "version": wire.VERSION,
                "client": partition,
                "samples": len(samples),
                "process": launcher_process_id(),
            }
        )
        return Message(RecordDict({wire.CONFIG_KEY: note}), reply_to=message)

    def train(self, message: Message, context: Context) -> Message:
        """One client's round, as the simulator runs it."""
        with deterministic_torch():
            torch.set_num_threads(self.threads)
            terms = TrainConfig.read(wire.config_record_of(message.content))
            task = self.checked_task(terms)
            job = wire.unpack_job(message.content, task)
            samples = self.samples(task, context.node_config)
            partition = partition_of(context.node_config)
            if (job.client, job.info.samples) != (partition, len(samples)):
                raise WireError(
                    f"The server takes this node for client {job.client} with {job.info.samples} samples; it is "
                    f"client {partition} with {len(samples)}."
                )
            federation = Federation(
                terms.method, task, {job.client: samples}, terms.schedule(job.info), terms.rules
            )
            answer = wire.pack_result(job, train_client(federation, job), terms.transport)
        return Message(answer, reply_to=message)

    def evaluate(self, message: Message, context: Context) -> Message:
        """The global model on this client's own test data."""
        if self.load_test is None:
            raise InputError(
                "The server asks to evaluate, but this ClientApp was made without load_test=."
            )
        with deterministic_torch():
            torch.set_num_threads(self.threads)
            task = self.checked_task(TrainConfig.read(wire.config_record_of(message.content)))
            job = wire.unpack_job(message.content, task)
            samples = self.samples(task, context.node_config, test=True)
            values = task.evaluate(job.down["w"], job.buffers, samples)
        metrics = MetricRecord({SIZE: len(samples), **values})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def try_out(self, node_config: NodeConfig) -> int:
        """Read the data and take a gradient on a few of them; how many there are."""
        with deterministic_torch():
            task = self.task(0)
            samples = self.samples(task, node_config)
            task.start_training(task.initial_buffers)
            batch = samples.batch(torch.arange(min(8, len(samples))), seed=0)
            task.gradient(task.initial_weights, batch, seed=0, keep_buffers=False)
        return len(samples)

    def checked_task(self, terms: TrainConfig) -> Task:
        task = self.task(rng.derive_seed(terms.seed, "init"))
        if wire.task_fingerprint(task) != terms.task:
            raise InputError(
                "The model, its frozen weights or the loss of this ClientApp differ from the server's; use the same."
            )
        return task

    def task(self, seed: int) -> Task:
        return make_task(self.model, self.objective, seed, self.device)

    def samples(self, task: Task, node_config: NodeConfig, test: bool = False) -> Samples:
        load = self.load_test if test else self.load_data
        assert load is not None
        return read_samples(
            task, load, self.collate, partition_of(node_config), tuple(sorted(node_config.items()))
        )


# What a process has made for one message serves the next, as long as model and data come from the same functions.


@lru_cache(maxsize=2)
def make_task(model: ModelSource, objective: tuple[Any, ...], seed: int, device: str) -> Task:
    loss, metrics, monitor = objective
    measured = make_objective(loss, None if metrics is None else dict(metrics), monitor)
    return Task(model, measured, seed=seed, device=device)


@lru_cache(maxsize=32)
def read_samples(
    task: Task,
    load: LoadData,
    collate: Collate | None,
    partition: int,
    node_config: tuple[tuple[str, Any], ...],
) -> Samples:
    return make_data_adapter(task, collate).samples(
        load(partition, dict(node_config)), f"Client {partition}"
    )


def launcher_process_id() -> str:
    """The process that starts the clients of this node: another one when the node has been restarted."""
    process = os.getppid()
    try:  # in a container the new one may have the old one's number: so also when it began
        began = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        began = ""
    return f"{process} {began}"


def partition_of(node_config: NodeConfig) -> int:
    partition = node_config.get("partition-id")
    if not isinstance(partition, int):
        raise InputError(
            f"This SuperNode's partition-id is {partition!r}; start it with --node-config 'partition-id=0', 1, 2 …"
        )
    return partition
