"""The server's side on Flower: the simulator's own round, run and checkpoints; only the training happens elsewhere."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedwmsam import streams
from fedwmsam.assembly import configuration, execute, make_run, open_folder
from fedwmsam.data.clients import Collate
from fedwmsam.engine.checkpoint import on
from fedwmsam.engine.folder import Busy, Record, RunFolder
from fedwmsam.engine.observers import Callback, Progress
from fedwmsam.engine.rounds import (
    Fault,
    Federation,
    Job,
    State,
    all_finite,
    jobs,
    opening,
)
from fedwmsam.engine.store import Layout
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.arguments import absolute, check_arguments, read_settings
from fedwmsam.flower.evaluation import mean_evaluation, read_evaluation
from fedwmsam.flower.exchange import MARGIN, Answers, Doubts, Nodes, Post, reason_of
from fedwmsam.flower.wire import Terms, WireError
from fedwmsam.methods import Method
from fedwmsam.reading import make_reader
from fedwmsam.result import Result
from fedwmsam.training.local import LocalResult
from fedwmsam.training.objectives import Measure, make_objective
from fedwmsam.training.task import ModelSource, Samples, Task, calm_torch

log = logging.getLogger("flwr.fedwmsam")
ATTEMPTS = 3
"""So often a client that does not answer is asked in a round that lacks its quorum."""
Outcome = dict[int, tuple[Job, LocalResult | Fault]]
"""What became of each client of a round, in the order their contributions are added."""


class TooFew(InputError):
    """A round got fewer answers than its quorum; the rounds before it are kept."""


class RemoteSamples:
    """Data that are elsewhere: only their number is known here."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def batch(self, index: Tensor, seed: int | None = None) -> Any:
        raise AssertionError("the data are with the client")


class RemoteClients:
    def __init__(self, count: int) -> None:
        self.count = count
        self.nodes: Nodes | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Samples:
        return RemoteSamples(self.nodes.samples(client) if self.nodes else 0)


class Traffic:
    """What one round sent and got."""

    def __init__(self) -> None:
        self.bytes_down = self.bytes_up = 0
        self.error_down = self.error_up = 0.0

    def record(self, transport: str) -> Record:
        record: Record = {"bytes_down": self.bytes_down, "bytes_up": self.bytes_up}
        if transport != "float32":
            record |= {"transport_error_down": self.error_down, "transport_error_up": self.error_up}
        return record


class FlowerStrategy(Strategy):
    """Drives any method over Flower's nodes: `FlowerStrategy(FedWMSAM(), model, clients=10).start(grid)`.

    method, model, test, validation, loss, metrics, monitor, collate, callbacks: as for `fedwmsam.fit`; the data are the
        server's own. All settings of `fit` (rounds, participation, local_epochs, lr, seed …) are taken, too.
    clients: how many there are; a SuperNode says which it is: `--node-config "partition-id=3"`.
    run_folder: where the run is kept, an absolute path. If it holds a run, that one goes on.
    quorum: the share of a round's clients without whose answers the round does not count.
    timeout: seconds from a round's first message to its deadline; later answers are not used.
    grace: seconds to wait for the others once the quorum has answered (None: until the deadline).
    wait: seconds to wait for nodes before the first round, and for a quorum later.
    transport: "float16" halves the traffic; the error it makes is in the metrics.
    evaluate_clients: also evaluate on the clients' own test data (`load_test` of their app).
    """

    def __init__(
        self,
        method: Method,
        model: ModelSource,
        *,
        clients: int,
        test: Any = None,
        validation: Any = None,
        loss: str | Measure = "classification",
        metrics: Mapping[str, Measure] | None = None,
        monitor: str | None = None,
        collate: Collate | None = None,
        run_folder: str | Path | None = None,
        quorum: float = 0.5,
        grace: float | None = None,
        timeout: float = 3600.0,
        wait: float = 300.0,
        transport: str = "float32",
        evaluate_clients: bool = False,
        callbacks: Sequence[Callback] = (),
        **settings: Any,
    ) -> None:
        check_arguments(method, clients, quorum, transport)
        self.settings = read_settings(settings)
        self.quorum, self.grace, self.wait, self.timeout = quorum, grace, wait, timeout
        self.folder = absolute(run_folder)
        self.evaluate_clients = evaluate_clients
        self.clients = RemoteClients(clients)
        with calm_torch():
            seed = streams.key(self.settings.seed, "init")
            task = Task(model, make_objective(loss, metrics, monitor), seed=seed, device=self.settings.device)
            self.reader = make_reader(task, collate)
            tested, held = (None if data is None else self.reader.samples(data, name) for data, name in (
                (test, "The test data"), (validation, "The validation data")))  # fmt: skip
            self.run = make_run(self.settings, method, task, self.clients, tested, held, [*callbacks, self.tell])
        self.config = configuration(self.settings, method, clients, task, loss, validation) | {"transport": transport}
        self.run.further = self.further
        self.terms = Terms.of(self.run.federation, transport)
        self.answer = answer_layout(self.run.federation, self.run.state)
        self.buffers = Layout.of(task.initial_buffers)
        self.asked: list[tuple[Job, Message | None]] = []
        self.traffic = Traffic()
        self.post: Post | None = None
        self.nodes: Nodes | None = None
        self.evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None
        self.result: Result | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Train until done, from the run folder's last completed round if it holds one.

        The outcome is also in `self.result`, as `fedwmsam.fit` returns it.
        """
        if train_config or evaluate_config:
            raise InputError("Give settings to FlowerStrategy itself; it sends the clients what they need.")
        self.timeout, self.evaluate_fn = timeout or self.timeout, evaluate_fn
        if num_rounds is not None:
            self.config["rounds"] = num_rounds
            self.run.plan = replace(self.run.plan, rounds=num_rounds)
        self.connect(grid)
        self.summary()
        with calm_torch():
            if initial_arrays:
                self.run.warm_start(initial_arrays.to_torch_state_dict())
            self.run.federation = replace(self.run.federation, trainer=self.train, total_samples=self.total_samples())
            if self.folder:
                self.run.folder = patiently_opened(self.folder, self.config)
            self.result = execute(self.run, self.config, self.reader)
        log.info("The run is over: %s after %d rounds.", self.result.status, self.result.rounds)
        return flower_result(self.result)

    def connect(self, grid: Grid) -> Nodes:
        if self.post is None or self.nodes is None or self.post.grid is not grid:
            self.post = Post(grid)
            self.nodes = self.clients.nodes = Nodes(self.post, len(self.clients), self.terms)
            self.nodes.wait_for(range(len(self.clients)), self.wait)
        return self.nodes

    def total_samples(self) -> int | None:
        if self.settings.averaging != "size":
            return None
        sizes = [len(self.clients[client]) for client in range(len(self.clients))]
        if 0 in sizes:
            raise InputError(f"Averaging by size needs all clients at the start; client {sizes.index(0)} is missing.")
        return sum(sizes)

    def train(self, federation: Federation, asked: Iterable[Job]) -> Iterator[tuple[Job, LocalResult | Fault]]:
        """The engine's trainer. Who does not answer is asked again while the round lacks its quorum."""
        assert self.nodes
        cohort, info = opening(federation, self.run.state.round)
        self.nodes.gather(cohort)
        self.traffic = Traffic()
        outcome = self.ask(asked)
        for _ in range(ATTEMPTS - 1):
            missing = [k for k, (_, result) in outcome.items() if isinstance(result, Fault) and not result.rejected]
            if accepted(outcome) >= self.needed(outcome) or not missing:
                break
            for client, (job, result) in outcome.items():
                if client in missing and isinstance(result, Fault):
                    log.warning("Round %d: client %d: %s; asked again.", job.info.round + 1, client, result.reason)
            self.nodes.wait_for(missing, self.wait)
            outcome |= self.ask(jobs(federation, self.run.state, missing, info))
        yield from self.counted(outcome)

    def ask(self, asked: Iterable[Job]) -> Outcome:
        """Send each client its job and judge the answers until all are there, the deadline or quorum and grace."""
        assert self.post and self.nodes
        outcome: Outcome = {}
        sent: dict[str, Job] = {}
        for job in asked:
            message, job = self.order(job), without_values(job)
            outcome[job.client] = job, Fault("not connected", rejected=False)
            if message is not None and self.post.send(message):
                sent[message.metadata.message_id] = job
                outcome[job.client] = job, Fault(f"no answer within {self.timeout:g} s", rejected=False)
        pending = {identity: f"client {job.client}, round {job.info.round + 1}" for identity, job in sent.items()}
        doubts = Doubts(self.nodes, {identity: job.client for identity, job in sent.items()})
        answers = Answers(self.post, pending, self.timeout, doubts)
        for reply in answers:
            job = sent[reply.metadata.reply_to_message_id]
            outcome[job.client] = job, self.judge(job, reply)
            if self.grace is not None and accepted(outcome) >= self.needed(outcome):
                answers.hurry(self.grace)
        for job in map(sent.__getitem__, answers.lost):
            self.nodes.forget(job.client)
            outcome[job.client] = job, Fault("its node was restarted and has lost the order", rejected=False)
        return outcome

    def order(self, job: Job) -> Message | None:
        """The message to the node that holds this client's data, if one is connected."""
        assert self.nodes
        node = self.nodes.by_client.get(job.client)
        if node is None:
            return None
        content, error = wire.write_order(job, self.terms)
        self.traffic.bytes_down += wire.payload(content)
        self.traffic.error_down = max(self.traffic.error_down, error)
        return Message(content, node.id, "train", group_id=str(job.info.round + 1), ttl=self.timeout + MARGIN)

    def judge(self, job: Job, reply: Message) -> LocalResult | Fault:
        """The answer as a result, or why it cannot be used."""
        if reply.has_error():
            if self.nodes:
                self.nodes.forget(job.client)
            return Fault(reason_of(reply), rejected=False)
        self.traffic.bytes_up += wire.payload(reply.content)
        try:
            result, error = wire.read_answer(reply.content, job, self.answer, self.buffers)
        except WireError as reason:
            return Fault(f"its answer is rejected: {reason}", rejected=True)
        if not all_finite(result.up) or not all_finite(result.buffers):
            return Fault("its answer is rejected: the update is not finite.", rejected=True)
        self.traffic.error_up = max(self.traffic.error_up, error)
        device = self.run.federation.task.device
        return replace(result, up=on(result.up, device), buffers=on(result.buffers, device))

    def needed(self, outcome: Outcome) -> int:
        return max(1, math.ceil(self.quorum * len(outcome)))

    def counted(self, outcome: Outcome) -> Iterator[tuple[Job, LocalResult | Fault]]:
        """A round's results in order, after its faults were told; TooFew if the quorum is missed."""
        number, enough = self.run.state.round + 1, accepted(outcome) >= self.needed(outcome)
        for client, (_, result) in outcome.items():
            if isinstance(result, Fault):
                what = "goes on without" if enough else "lacks"
                log.warning("Round %d %s client %d: %s", number, what, client, result.reason)
        if not enough:
            raise TooFew(
                f"Round {number} got {accepted(outcome)} usable answers of {len(outcome)} clients and needs "
                f"{self.needed(outcome)}; mend the clients and start the app again: it goes on from round {number}."
            )
        yield from outcome.values()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The next round's messages, for whoever drives the rounds without `start`; the model is the strategy's own."""
        with calm_torch():
            cohort, info = opening(self.run.federation, self.run.state.round)
            self.connect(grid).gather(cohort)
            self.traffic = Traffic()
            todo = jobs(self.run.federation, self.run.state, cohort, info)
            self.asked = [(without_values(job), self.order(job)) for job in todo]
        return [message for _, message in self.asked if message is not None]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round that `configure_train` began; None if too few answers can be used."""
        outcome: Outcome = {job.client: (job, Fault("no answer", rejected=False)) for job, _ in self.asked}
        sent = {message.metadata.message_id: job for job, message in self.asked if message is not None}
        with calm_torch():
            for reply in replies:
                job = sent.get(reply.metadata.reply_to_message_id)
                if job is None:
                    log.warning("An answer to no question of round %d is not used.", self.run.state.round + 1)
                else:
                    outcome[job.client] = job, self.judge(job, reply)
            self.run.federation = replace(self.run.federation, trainer=lambda *_: self.counted(outcome))
            try:
                self.run.one_round()
            except TooFew as reason:
                log.warning("%s", reason)
                return None, None
        return ArrayRecord(self.run.model()), metric_record(self.run.history[-1]) if self.run.history else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The global model to every connected client, if clients evaluate."""
        return self.evaluation_orders(self.run.state) if self.evaluate_clients else []

    def evaluation_orders(self, state: State) -> list[Message]:
        assert self.nodes
        _, info = opening(self.run.federation, state.round)
        messages = []
        for client, node in sorted(self.nodes.by_client.items()):
            job = Job(client, {"w": state.server["w"]}, state.buffers, replace(info, steps=1, samples=node.samples))
            content, _ = wire.write_order(job, self.terms)
            self.traffic.bytes_down += wire.payload(content)
            messages.append(Message(content, node.id, "evaluate", ttl=self.timeout + MARGIN))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Means over the clients' own test data; None if there are none."""
        records = []
        for reply in replies:
            try:
                records.append(read_evaluation(reply))
            except WireError as reason:
                log.warning("An evaluation is not used: %s", reason)
        return MetricRecord({**mean_evaluation(records), "clients_evaluated": len(records)}) if records else None

    def further(self, state: State, due: bool) -> Record:
        """What a round's line in the metrics holds beside the engine's own columns."""
        record: Record = {}
        if due and self.evaluate_clients and self.post:
            messages = [message for message in self.evaluation_orders(state) if self.post.send(message)]
            pending = {message.metadata.message_id: f"evaluation, round {state.round}" for message in messages}
            record |= self.aggregate_evaluate(state.round, Answers(self.post, pending, self.timeout)) or {}
        if due and self.evaluate_fn:
            arrays = ArrayRecord(self.run.federation.task.state_dict(state.server["w"], state.buffers))
            record |= self.evaluate_fn(state.round, arrays) or {}
        return self.traffic.record(self.terms.transport) | record

    def tell(self, progress: Progress) -> None:
        record = progress.record
        shown = {key: record[key] for key in ("train_loss", "loss", "accuracy", "clients_accuracy") if record.get(key)}
        numbers = ", ".join(f"{key} {value:.4f}" for key, value in shown.items())
        log.info("Round %d of %d: %d clients, %s", record["round"], self.run.plan.rounds, record["cohort"], numbers)

    def summary(self) -> None:
        federation = self.run.federation
        log.info(
            "%s over %d clients, %d parameters, quorum %g, transport %s; run folder: %s",
            federation.method, len(federation.clients), federation.task.size, self.quorum, self.terms.transport,
            self.folder or "none",
        )  # fmt: skip


def patiently_opened(path: Path, config: Record) -> RunFolder:
    """The process of a run that was cut off may take a minute to notice."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return open_folder(path, config, resume=True)
        except Busy:
            if time.monotonic() > deadline:
                raise
            log.info("Another process still holds %s; waiting.", path)
            time.sleep(5)


def answer_layout(federation: Federation, state: State) -> Layout:
    """What every answer must hold, found by one local step without data."""
    method, w = federation.method, state.server["w"]
    _, info = opening(federation, 0)
    info = replace(info, steps=1, samples=1)
    down = method.downlink(state.server, method.memory_init(w), info)
    scratch = method.begin(down, torch.zeros_like, info)
    _, scratch = method.direction(down["w"], torch.zeros_like, down, scratch)
    return Layout.of(method.uplink(torch.zeros_like(w), down, scratch, info))


def without_values(job: Job) -> Job:
    """A job whose vectors have a size only: those of a whole cohort would fill the memory while it is waited for."""
    return replace(job, down={name: value.to("meta") for name, value in job.down.items()})


def accepted(outcome: Outcome) -> int:
    return sum(not isinstance(result, Fault) for _, result in outcome.values())


def metric_record(record: Record) -> MetricRecord:
    return MetricRecord({key: value for key, value in record.items() if isinstance(value, int | float)})


def flower_result(result: Result) -> FlowerResult:
    metrics = {row["round"]: metric_record(row) for row in result.rows}
    return FlowerResult(arrays=ArrayRecord(result.model), train_metrics_clientapp=metrics)
