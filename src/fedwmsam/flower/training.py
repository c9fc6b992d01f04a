"""A round's training by clients elsewhere: their orders, what their answers are worth, and whether these are enough."""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from fedwmsam.engine.checkpoint import to_device
from fedwmsam.engine.client_state import RowLayout
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import (
    ClientFailure,
    Federation,
    Job,
    State,
    all_finite,
    make_jobs,
    sample_cohort,
)
from fedwmsam.engine.run import Run
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.exchange import (
    MARGIN,
    LostMessages,
    Mailbox,
    NodeRegistry,
    PendingReplies,
    reason_of,
)
from fedwmsam.flower.wire import TrainConfig, WireError
from fedwmsam.training.local import LocalResult
from fedwmsam.training.task import Samples


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
        self.nodes: NodeRegistry | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Samples:
        return RemoteSamples(self.nodes.samples(client) if self.nodes else 0)


log = logging.getLogger("flwr.fedwmsam")
ATTEMPTS = 3
"""So often a client that does not answer is asked in a round that lacks its quorum."""
Outcome = dict[int, tuple[Job, LocalResult | ClientFailure]]
"""What became of each client of a round, in the order their contributions are added."""


class TooFewReplies(InputError):
    """A round got fewer answers than its quorum; the rounds before it are kept."""


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


class RemoteTraining:
    """Trains a run's rounds on Flower's nodes; `train` is the engine's trainer."""

    def __init__(
        self,
        run: Run,
        clients: RemoteClients,
        terms: TrainConfig,
        answer: RowLayout,
        *,
        quorum: float,
        grace: float | None,
        timeout: float,
        wait: float,
    ) -> None:
        self.run, self.clients, self.terms, self.answer = run, clients, terms, answer
        self.quorum, self.grace, self.timeout, self.wait = quorum, grace, timeout, wait
        self.buffers = RowLayout.of(run.federation.task.initial_buffers)
        self.traffic = Traffic()
        self.post: Mailbox | None = None
        self.nodes: NodeRegistry | None = None

    def connect(self, grid: Grid) -> None:
        if self.post is None or self.nodes is None or self.post.grid is not grid:
            self.post = Mailbox(grid)
            self.nodes = self.clients.nodes = NodeRegistry(self.post, len(self.clients), self.terms)
            self.nodes.wait_for(range(len(self.clients)), self.wait)

    def begin(self, cohort: Sequence[int]) -> None:
        assert self.nodes
        self.nodes.gather(cohort)
        self.traffic = Traffic()

    def train(
        self, federation: Federation, asked: Iterable[Job]
    ) -> Iterator[tuple[Job, LocalResult | ClientFailure]]:
        """Who does not answer is asked again while the round lacks its quorum."""
        assert self.nodes
        cohort, info = sample_cohort(federation, self.run.state.round)
        self.begin(cohort)
        outcome = self.ask(asked)
        for _ in range(ATTEMPTS - 1):
            missing = [
                k
                for k, (_, result) in outcome.items()
                if isinstance(result, ClientFailure) and not result.rejected
            ]
            if accepted(outcome) >= self.needed(outcome) or not missing:
                break
            for client, (job, result) in outcome.items():
                if client in missing and isinstance(result, ClientFailure):
                    log.warning(
                        "Round %d: client %d: %s; asked again.",
                        job.info.round + 1,
                        client,
                        result.reason,
                    )
            self.nodes.wait_for(missing, self.wait)
            outcome |= self.ask(make_jobs(federation, self.run.state, missing, info))
        yield from self.counted(outcome)

    def ask(self, asked: Iterable[Job]) -> Outcome:
        """Send each client its job and judge the answers until all are there, the deadline or quorum and grace."""
        assert self.post and self.nodes
        outcome: Outcome = {}
        sent: dict[str, Job] = {}
        for job in asked:
            message, job = self.order(job), on_meta_device(job)
            outcome[job.client] = job, ClientFailure("not connected", rejected=False)
            if message is not None and self.post.send(message):
                sent[message.metadata.message_id] = job
                outcome[job.client] = (
                    job,
                    ClientFailure(f"no answer within {self.timeout:g} s", rejected=False),
                )
        pending = {
            identity: f"client {job.client}, round {job.info.round + 1}"
            for identity, job in sent.items()
        }
        doubts = LostMessages(self.nodes, {identity: job.client for identity, job in sent.items()})
        answers = PendingReplies(self.post, pending, self.timeout, doubts)
        for reply in answers:
            job = sent[reply.metadata.reply_to_message_id]
            outcome[job.client] = job, self.judge(job, reply)
            if self.grace is not None and accepted(outcome) >= self.needed(outcome):
                answers.hurry(self.grace)
        for job in map(sent.__getitem__, answers.lost):
            self.nodes.forget(job.client)
            outcome[job.client] = (
                job,
                ClientFailure("its node was restarted and has lost the order", rejected=False),
            )
        return outcome

    def order(self, job: Job) -> Message | None:
        """The message to the node that holds this client's data, if one is connected."""
        assert self.nodes
        node = self.nodes.by_client.get(job.client)
        if node is None:
            return None
        content, error = wire.pack_job(job, self.terms)
        self.traffic.bytes_down += wire.payload(content)
        self.traffic.error_down = max(self.traffic.error_down, error)
        return Message(
            content, node.id, "train", group_id=str(job.info.round + 1), ttl=self.timeout + MARGIN
        )

    def evaluation_orders(self, state: State) -> list[Message]:
        assert self.nodes
        _, info = sample_cohort(self.run.federation, state.round)
        messages = []
        for client, node in sorted(self.nodes.by_client.items()):
            job = Job(
                client,
                {"w": state.server["w"]},
                state.buffers,
                replace(info, steps=1, samples=node.samples),
            )
            content, _ = wire.pack_job(job, self.terms)
            self.traffic.bytes_down += wire.payload(content)
            messages.append(Message(content, node.id, "evaluate", ttl=self.timeout + MARGIN))
        return messages

    def evaluations(self, state: State) -> PendingReplies:
        """Order every connected client to evaluate; its answers as they come."""
        assert self.post
        messages = [message for message in self.evaluation_orders(state) if self.post.send(message)]
        pending = {
            message.metadata.message_id: f"evaluation, round {state.round}" for message in messages
        }
        return PendingReplies(self.post, pending, self.timeout)

    def judge(self, job: Job, reply: Message) -> LocalResult | ClientFailure:
        """The answer as a result, or why it cannot be used."""
        if reply.has_error():
            if self.nodes:
                self.nodes.forget(job.client)
            return ClientFailure(reason_of(reply), rejected=False)
        self.traffic.bytes_up += wire.payload(reply.content)
        try:
            result, error = wire.unpack_result(reply.content, job, self.answer, self.buffers)
        except WireError as reason:
            return ClientFailure(f"its answer is rejected: {reason}", rejected=True)
        if not all_finite(result.up) or not all_finite(result.buffers):
            return ClientFailure("its answer is rejected: the update is not finite.", rejected=True)
        self.traffic.error_up = max(self.traffic.error_up, error)
        device = self.run.federation.task.device
        return replace(
            result, up=to_device(result.up, device), buffers=to_device(result.buffers, device)
        )

    def needed(self, outcome: Outcome) -> int:
        return max(1, math.ceil(self.quorum * len(outcome)))

    def counted(self, outcome: Outcome) -> Iterator[tuple[Job, LocalResult | ClientFailure]]:
        """A round's results in order, after its faults were told; TooFew if the quorum is missed."""
        number, enough = self.run.state.round + 1, accepted(outcome) >= self.needed(outcome)
        for client, (_, result) in outcome.items():
            if isinstance(result, ClientFailure):
                what = "goes on without" if enough else "lacks"
                log.warning("Round %d %s client %d: %s", number, what, client, result.reason)
        if not enough:
            raise TooFewReplies(
                f"Round {number} got {accepted(outcome)} usable answers of {len(outcome)} clients and needs "
                f"{self.needed(outcome)}; mend the clients and start the app again: it goes on from round {number}."
            )
        yield from outcome.values()


def answer_layout(federation: Federation, state: State) -> RowLayout:
    """What every answer must hold, found by one local step without data."""
    method, w = federation.method, state.server["w"]
    _, info = sample_cohort(federation, 0)
    info = replace(info, steps=1, samples=1)
    down = method.downlink(state.server, method.memory_init(w), info)
    scratch = method.begin(down, torch.zeros_like, info)
    _, scratch = method.direction(down["w"], torch.zeros_like, down, scratch)
    return RowLayout.of(method.uplink(torch.zeros_like(w), down, scratch, info))


def on_meta_device(job: Job) -> Job:
    """A job whose vectors have a size only: those of a whole cohort would fill the memory while it is waited for."""
    return replace(job, down={name: value.to("meta") for name, value in job.down.items()})


def accepted(outcome: Outcome) -> int:
    return sum(not isinstance(result, ClientFailure) for _, result in outcome.values())
