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

from fedwmsam.engine.checkpoint import on
from fedwmsam.engine.client_state import Layout
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Fault, Federation, Job, State, all_finite, jobs, opening
from fedwmsam.engine.run import Run
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.exchange import MARGIN, Answers, Doubts, Nodes, Post, reason_of
from fedwmsam.flower.wire import Terms, WireError
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
        self.nodes: Nodes | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Samples:
        return RemoteSamples(self.nodes.samples(client) if self.nodes else 0)


log = logging.getLogger("flwr.fedwmsam")
ATTEMPTS = 3
"""So often a client that does not answer is asked in a round that lacks its quorum."""
Outcome = dict[int, tuple[Job, LocalResult | Fault]]
"""What became of each client of a round, in the order their contributions are added."""


class TooFew(InputError):
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
        terms: Terms,
        answer: Layout,
        *,
        quorum: float,
        grace: float | None,
        timeout: float,
        wait: float,
    ) -> None:
        self.run, self.clients, self.terms, self.answer = run, clients, terms, answer
        self.quorum, self.grace, self.timeout, self.wait = quorum, grace, timeout, wait
        self.buffers = Layout.of(run.federation.task.initial_buffers)
        self.traffic = Traffic()
        self.post: Post | None = None
        self.nodes: Nodes | None = None

    def connect(self, grid: Grid) -> None:
        if self.post is None or self.nodes is None or self.post.grid is not grid:
            self.post = Post(grid)
            self.nodes = self.clients.nodes = Nodes(self.post, len(self.clients), self.terms)
            self.nodes.wait_for(range(len(self.clients)), self.wait)

    def begin(self, cohort: Sequence[int]) -> None:
        assert self.nodes
        self.nodes.gather(cohort)
        self.traffic = Traffic()

    def train(
        self, federation: Federation, asked: Iterable[Job]
    ) -> Iterator[tuple[Job, LocalResult | Fault]]:
        """Who does not answer is asked again while the round lacks its quorum."""
        assert self.nodes
        cohort, info = opening(federation, self.run.state.round)
        self.begin(cohort)
        outcome = self.ask(asked)
        for _ in range(ATTEMPTS - 1):
            missing = [
                k
                for k, (_, result) in outcome.items()
                if isinstance(result, Fault) and not result.rejected
            ]
            if accepted(outcome) >= self.needed(outcome) or not missing:
                break
            for client, (job, result) in outcome.items():
                if client in missing and isinstance(result, Fault):
                    log.warning(
                        "Round %d: client %d: %s; asked again.",
                        job.info.round + 1,
                        client,
                        result.reason,
                    )
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
                outcome[job.client] = (
                    job,
                    Fault(f"no answer within {self.timeout:g} s", rejected=False),
                )
        pending = {
            identity: f"client {job.client}, round {job.info.round + 1}"
            for identity, job in sent.items()
        }
        doubts = Doubts(self.nodes, {identity: job.client for identity, job in sent.items()})
        answers = Answers(self.post, pending, self.timeout, doubts)
        for reply in answers:
            job = sent[reply.metadata.reply_to_message_id]
            outcome[job.client] = job, self.judge(job, reply)
            if self.grace is not None and accepted(outcome) >= self.needed(outcome):
                answers.hurry(self.grace)
        for job in map(sent.__getitem__, answers.lost):
            self.nodes.forget(job.client)
            outcome[job.client] = (
                job,
                Fault("its node was restarted and has lost the order", rejected=False),
            )
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
        return Message(
            content, node.id, "train", group_id=str(job.info.round + 1), ttl=self.timeout + MARGIN
        )

    def evaluation_orders(self, state: State) -> list[Message]:
        assert self.nodes
        _, info = opening(self.run.federation, state.round)
        messages = []
        for client, node in sorted(self.nodes.by_client.items()):
            job = Job(
                client,
                {"w": state.server["w"]},
                state.buffers,
                replace(info, steps=1, samples=node.samples),
            )
            content, _ = wire.write_order(job, self.terms)
            self.traffic.bytes_down += wire.payload(content)
            messages.append(Message(content, node.id, "evaluate", ttl=self.timeout + MARGIN))
        return messages

    def evaluations(self, state: State) -> Answers:
        """Order every connected client to evaluate; its answers as they come."""
        assert self.post
        messages = [message for message in self.evaluation_orders(state) if self.post.send(message)]
        pending = {
            message.metadata.message_id: f"evaluation, round {state.round}" for message in messages
        }
        return Answers(self.post, pending, self.timeout)

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
