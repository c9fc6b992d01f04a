"""The clients' side on Flower: hold data, train when asked, keep nothing."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedwmsam import streams
from fedwmsam.api import make_reader
from fedwmsam.data.clients import Collate
from fedwmsam.engine.rounds import Federation, train_client
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.evaluation import SIZE
from fedwmsam.flower.wire import Terms, WireError
from fedwmsam.training.objectives import Measure, make_objective
from fedwmsam.training.task import ModelSource, Samples, Task, calm_torch

NodeConfig = Mapping[str, Any]
LoadData = Callable[[int, NodeConfig], Any]
"""(partition id, what `--node-config` of the SuperNode says) → an (x, y) pair or a dataset."""


def make_client_app(
    model: ModelSource,
    load_data: LoadData,
    *,
    load_test: LoadData | None = None,
    loss: str | Measure = "classification",
    metrics: Mapping[str, Measure] | None = None,
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
    return TrainingApp(Client(model, load_data, load_test, (loss, metrics, monitor), collate, device, threads))


class TrainingApp(ClientApp):
    """Flower's ClientApp around a client."""

    def __init__(self, client: "Client") -> None:
        super().__init__()
        self.client = client
        self.query("whoami")(client.introduce)
        self.train()(client.train)
        self.evaluate()(client.evaluate)


class Client:
    """Answers the server's three questions. What it holds is a cache: any process can answer any of them."""

    def __init__(
        self, model: ModelSource, load_data: LoadData, load_test: LoadData | None, objective: tuple[Any, Any, Any],
        collate: Collate | None, device: str, threads: int,
    ) -> None:  # fmt: skip
        self.model, self.load_data, self.load_test = model, load_data, load_test
        self.objective, self.collate = objective, collate
        self.device, self.threads = device, threads
        self.task = lru_cache(maxsize=1)(self.make_task)
        self.cached = lru_cache(maxsize=32)(self.read)

    def introduce(self, message: Message, context: Context) -> Message:
        """Whose data are here, and how many samples."""
        with calm_torch():
            terms = Terms.read(wire.note_of(message.content))
            samples = self.samples(self.checked_task(terms), context.node_config)
        partition = partition_of(context.node_config)
        note = ConfigRecord({"version": wire.VERSION, "client": partition, "samples": len(samples)})
        return Message(RecordDict({wire.NOTE: note}), reply_to=message)

    def train(self, message: Message, context: Context) -> Message:
        """One client's round, as the simulator runs it."""
        with calm_torch():
            torch.set_num_threads(self.threads)
            terms = Terms.read(wire.note_of(message.content))
            task = self.checked_task(terms)
            job = wire.read_order(message.content, task)
            samples = self.samples(task, context.node_config)
            partition = partition_of(context.node_config)
            if (job.client, job.info.samples) != (partition, len(samples)):
                raise WireError(
                    f"The server takes this node for client {job.client} with {job.info.samples} samples; it is "
                    f"client {partition} with {len(samples)}."
                )
            federation = Federation(terms.method, task, {job.client: samples}, terms.schedule(job.info), terms.rules)
            answer = wire.write_answer(job, train_client(federation, job), terms.transport)
        return Message(answer, reply_to=message)

    def evaluate(self, message: Message, context: Context) -> Message:
        """The global model on this client's own test data."""
        if self.load_test is None:
            raise InputError("The server asks to evaluate, but this ClientApp was made without load_test=.")
        with calm_torch():
            torch.set_num_threads(self.threads)
            task = self.checked_task(Terms.read(wire.note_of(message.content)))
            job = wire.read_order(message.content, task)
            samples = self.samples(task, context.node_config, test=True)
            values = task.evaluate(job.down["w"], job.buffers, samples)
        metrics = MetricRecord({SIZE: len(samples), **values})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def try_out(self, node_config: NodeConfig) -> int:
        """Read the data and take a gradient on a few of them; how many there are."""
        with calm_torch():
            task = self.task(0)
            samples = self.samples(task, node_config)
            task.start_training(task.initial_buffers)
            batch = samples.batch(torch.arange(min(8, len(samples))), seed=0)
            task.gradient(task.initial_weights, batch, seed=0, keep_buffers=False)
        return len(samples)

    def checked_task(self, terms: Terms) -> Task:
        task = self.task(streams.key(terms.seed, "init"))
        if wire.fingerprint(task) != terms.task:
            raise InputError(
                "The model, its frozen weights or the loss of this ClientApp differ from the server's; use the same."
            )
        return task

    def make_task(self, seed: int) -> Task:
        return Task(self.model, make_objective(*self.objective), seed=seed, device=self.device)

    def samples(self, task: Task, node_config: NodeConfig, test: bool = False) -> Samples:
        return self.cached(task, partition_of(node_config), tuple(sorted(node_config.items())), test)

    def read(self, task: Task, partition: int, node_config: tuple[tuple[str, Any], ...], test: bool) -> Samples:
        load = self.load_test if test else self.load_data
        assert load is not None
        return make_reader(task, self.collate).samples(load(partition, dict(node_config)), f"Client {partition}")


def partition_of(node_config: NodeConfig) -> int:
    partition = node_config.get("partition-id")
    if not isinstance(partition, int):
        raise InputError(
            f"This SuperNode's partition-id is {partition!r}; start it with --node-config 'partition-id=0', 1, 2 …"
        )
    return partition
