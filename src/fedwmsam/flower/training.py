"""The training of a round by clients on other machines.

`RemoteTraining.train` is the engine's trainer on Flower: it sends each client of the cohort a train
message, checks the replies, and raises `TooFewReplies` if fewer clients than the quorum replied
with a result that can be used.
"""

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
    make_jobs,
    sample_cohort,
)
from fedwmsam.engine.run import Run
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.exchange import (
    TTL_MARGIN,
    LostMessages,
    Mailbox,
    NodeRegistry,
    PendingReplies,
)
from fedwmsam.flower.identities import Identities
from fedwmsam.flower.replies import Answer, Evaluation, NodeFailure, Reply
from fedwmsam.flower.sizes import SizeRule
from fedwmsam.flower.status import StatusFile
from fedwmsam.flower.wire import TrainConfig, WireError
from fedwmsam.training.local import LocalResult
from fedwmsam.training.task import Samples

log = logging.getLogger("flwr.fedwmsam")
ATTEMPTS = 3
"""Times a client that does not reply is sent its message in a round that lacks its quorum."""
Outcome = dict[int, tuple[Job, LocalResult | ClientFailure]]
"""The job and the result or failure of each client of a round, in the order of aggregation."""


class RemoteSamples:
    """The samples of a client on another machine; only their number is known here."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    @property
    def index_device(self) -> torch.device:
        """Raise AssertionError: the server has no data of clients."""
        raise AssertionError("the data are with the client")

    def batch(self, index: Tensor, seed: int | None = None) -> Any:
        """Raise AssertionError: the server has no data of clients."""
        raise AssertionError("the data are with the client")


class RemoteClients:
    """The clients of a federation on other machines; one that is not connected has no samples."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.nodes: NodeRegistry | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Samples:
        return RemoteSamples(self.nodes.samples(client) if self.nodes else 0)


class TooFewReplies(InputError):
    """A round got fewer usable replies than its quorum; the rounds before it are kept."""


class Traffic:
    """The bytes that one round sent and received, and the relative errors of their transport."""

    def __init__(self) -> None:
        self.bytes_down = 0
        self.bytes_up = 0
        self.error_down = 0.0
        self.error_up = 0.0

    def record(self, transport: str) -> Record:
        """Return the columns for the round's line in the metrics."""
        record: Record = {"bytes_down": self.bytes_down, "bytes_up": self.bytes_up}
        if transport != "float32":
            record["transport_error_down"] = self.error_down
            record["transport_error_up"] = self.error_up
        return record


class RemoteTraining:
    """Trains the rounds of a run on Flower's nodes; `train` is the engine's trainer."""

    def __init__(
        self,
        run: Run,
        clients: RemoteClients,
        train_config: TrainConfig,
        reply_layout: RowLayout,
        *,
        quorum: float,
        grace: float | None,
        timeout: float,
        wait: float,
        sizes: SizeRule,
        identities: Identities | None,
    ) -> None:
        self.run = run
        self.clients = clients
        self.train_config = train_config
        self.reply_layout = reply_layout
        self.quorum = quorum
        self.grace = grace
        self.timeout = timeout
        self.wait = wait
        self.sizes = sizes
        self.identities = identities
        self.logged_sizes: dict[int, int] = {}
        """Clients → the sizes that they report and that have been logged."""
        self.buffer_layout = RowLayout.from_row(run.federation.task.initial_buffers)
        self.traffic = Traffic()
        self.loop_metrics: dict[int, Evaluation] = {}
        """What the training loops of clients report of the round, where they have their own."""
        self.status = StatusFile()
        self.mailbox: Mailbox | None = None
        self.nodes: NodeRegistry | None = None

    def connect(self, grid: Grid) -> None:
        """Use this grid from now on, and if it is a new one, wait for the clients to connect."""
        if self.mailbox is None or self.nodes is None or self.mailbox.grid is not grid:
            self.mailbox = Mailbox(grid)
            self.mailbox.before_pause = self.save_status
            self.nodes = NodeRegistry(
                self.mailbox, len(self.clients), self.train_config, self.identities
            )
            self.clients.nodes = self.nodes
            self.save_status("waiting for clients")
            self.nodes.wait_for(range(len(self.clients)), self.wait)

    def save_status(self, activity: str | None = None) -> None:
        """Bring the run's status up to date and keep it, at once if there is a new activity."""
        if self.nodes:
            connected = {
                client: (node.id, node.samples) for client, node in self.nodes.by_client.items()
            }
            self.status.note_nodes(connected, self.nodes.refusals)
        self.status.activity = activity or self.status.activity
        self.status.save(at_once=activity is not None)

    def start_round(self, cohort: Sequence[int]) -> None:
        """Find out which clients of the cohort are connected, and count traffic from zero."""
        assert self.nodes
        self.nodes.refresh_until_identified(cohort)
        self.log_other_sizes()
        self.traffic = Traffic()
        self.loop_metrics = {}
        self.status.round = self.run.state.round + 1
        self.save_status("training")

    def log_other_sizes(self) -> None:
        """Log, once each, the sizes that nodes report and that are not those of the operator."""
        for client, size in enumerate(self.sizes.client_sizes or ()):
            reported = len(self.clients[client])
            if reported not in (0, size, self.logged_sizes.get(client)):
                self.logged_sizes[client] = reported
                log.warning(
                    "Client %d reports %d samples; it counts with %d.", client, reported, size
                )

    def train(
        self, federation: Federation, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, LocalResult | ClientFailure]]:
        """Yield every job of a round with its result, or with the reason why there is none.

        Clients that do not reply get their message again while the round lacks its quorum. Raise
        TooFewReplies if it still does in the end.
        """
        assert self.nodes
        cohort, info = sample_cohort(federation, self.run.state.round)
        self.start_round(cohort)
        outcome = self.collect_results(jobs)
        for _ in range(ATTEMPTS - 1):
            missing = find_missing(outcome)
            if count_accepted(outcome) >= self.quorum_size(outcome) or not missing:
                break
            for client, reason in missing.items():
                number = self.run.state.round + 1
                log.warning("Round %d: client %d: %s; asked again.", number, client, reason)
            self.save_status("waiting for clients")
            self.nodes.wait_for(missing, self.wait)
            self.save_status("training")
            jobs_again = make_jobs(federation, self.run.state, list(missing), info)
            outcome |= self.collect_results(jobs_again)
        yield from self.require_quorum(outcome)

    def collect_results(self, jobs: Iterable[Job]) -> Outcome:
        """Send each client its job and return what came of it.

        Replies are waited for until all have arrived, until the deadline, or until the quorum has
        replied and the grace is over.
        """
        assert self.mailbox and self.nodes
        outcome: Outcome = {}
        sent: dict[str, Job] = {}
        absent = ClientFailure(self.nodes.describe_absence(), rejected=False)
        for job in jobs:
            message = self.make_train_message(job)
            job = on_meta_device(job)
            outcome[job.client] = job, absent
            if message is not None and self.mailbox.send(message):
                sent[message.metadata.message_id] = job
        pending = {}
        clients = {}
        for message_id, job in sent.items():
            pending[message_id] = f"client {job.client}, round {job.info.round + 1}"
            clients[message_id] = job.client
        lost_messages = LostMessages(self.nodes, clients)
        replies = PendingReplies(self.mailbox, pending, self.timeout, lost_messages)
        for message_id, reply in replies:
            job = sent[message_id]
            outcome[job.client] = job, self.check_reply(job, reply)
            if self.grace is not None and count_accepted(outcome) >= self.quorum_size(outcome):
                replies.start_grace(self.grace)
        late = ClientFailure(f"no answer within {replies.limit}", rejected=False)
        for job in map(sent.__getitem__, replies.pending):
            outcome[job.client] = job, late
        for message_id, reason in replies.lost.items():
            job = sent[message_id]
            self.nodes.forget(job.client)
            outcome[job.client] = job, ClientFailure(reason, rejected=False)
        for client, reason in find_missing(outcome).items():
            self.status.note_trouble(client, self.status.round, reason)
        return outcome

    def make_train_message(self, job: Job) -> Message | None:
        """Return the message to the node that holds this client's data; None if there is none."""
        assert self.nodes
        node = self.nodes.by_client.get(job.client)
        if node is None:
            return None
        content, error = wire.pack_job(job, self.train_config)
        size = wire.payload_size(content)
        self.traffic.bytes_down += size
        self.status.note_question(job.client, size)
        self.traffic.error_down = max(self.traffic.error_down, error)
        round = str(job.info.round + 1)
        return Message(content, node.id, "train", group_id=round, ttl=self.timeout + TTL_MARGIN)

    def make_evaluate_messages(self, state: State) -> list[tuple[int, Message]]:
        """Return every connected client with a message that holds the global model."""
        assert self.nodes
        _, info = sample_cohort(self.run.federation, state.round)
        messages = []
        for client, node in sorted(self.nodes.by_client.items()):
            client_info = replace(info, steps=1, samples=node.samples)
            job = Job(client, {"w": state.server["w"]}, state.buffers, client_info)
            content, _ = wire.pack_job(job, self.train_config)
            self.traffic.bytes_down += wire.payload_size(content)
            message = Message(content, node.id, "evaluate", ttl=self.timeout + TTL_MARGIN)
            messages.append((client, message))
        return messages

    def collect_evaluations(self, state: State) -> dict[int, Evaluation]:
        """Let every connected client evaluate the global model, and return what can be used."""
        assert self.mailbox
        self.save_status("evaluating on the clients' data")
        sent = {}
        for client, message in self.make_evaluate_messages(state):
            if self.mailbox.send(message):
                sent[message.metadata.message_id] = client
        pending = {
            message_id: f"evaluation of client {client}, round {state.round}"
            for message_id, client in sent.items()
        }
        evaluations = {}
        replies = PendingReplies(self.mailbox, pending, self.timeout)
        for message_id, reply in replies:
            if evaluation := self.check_evaluation(sent[message_id], reply):
                evaluations[sent[message_id]] = evaluation
        for client in map(sent.__getitem__, replies.pending):
            log.warning("Client %d sent no evaluation within %s.", client, replies.limit)
        return evaluations

    def check_evaluation(self, client: int, reply: Reply) -> Evaluation | None:
        """Return the evaluation in a client's reply, or None after logging why it has none."""
        try:
            return Evaluation.read(reply)
        except WireError as reason:
            log.warning("The evaluation of client %d is not used: %s", client, reason)
            return None

    def check_reply(self, job: Job, reply: Reply) -> LocalResult | ClientFailure:
        """Return the result in a client's reply, or the reason why it cannot be used."""
        size = 0
        if isinstance(reply, Message) and reply.has_content():
            size = wire.payload_size(reply.content)
        self.traffic.bytes_up += size
        self.status.note_reply(job.client, size)
        try:
            answer = Answer.read(reply, job, self.reply_layout, self.buffer_layout)
        except NodeFailure as reason:
            if self.nodes:
                self.nodes.forget(job.client)
            return ClientFailure(str(reason), rejected=False)
        except WireError as reason:
            self.status.note_trouble(job.client, self.status.round, f"rejected: {reason}")
            return ClientFailure(f"its answer is rejected: {reason}", rejected=True)
        self.status.note_answer(job.client, self.status.round)
        if answer.metrics:
            self.loop_metrics[job.client] = answer.metrics
        self.traffic.error_up = max(self.traffic.error_up, answer.transport_error)
        result = answer.result
        device = self.run.federation.task.device
        up = to_device(result.up, device)
        return replace(result, up=up, buffers=to_device(result.buffers, device))

    def weigh_clients(self, clients: Iterable[int]) -> dict[int, int]:
        """Return how much these clients weigh in a mean."""
        return self.sizes.weigh({client: len(self.clients[client]) for client in clients})

    def quorum_size(self, outcome: Outcome) -> int:
        """Return how many clients of a round must reply with a result that can be used."""
        return max(1, math.ceil(self.quorum * len(outcome)))

    def require_quorum(self, outcome: Outcome) -> Iterator[tuple[Job, LocalResult | ClientFailure]]:
        """Yield the jobs of a round with their results in order, after logging the failures.

        Raise TooFewReplies if the results are fewer than the quorum.
        """
        number = self.run.state.round + 1
        results = count_accepted(outcome)
        needed = self.quorum_size(outcome)
        for client, (_, result) in outcome.items():
            if isinstance(result, ClientFailure):
                effect = "goes on without" if results >= needed else "lacks"
                log.warning("Round %d %s client %d: %s", number, effect, client, result.reason)
        if results < needed:
            raise TooFewReplies(
                f"Round {number} got {results} usable answers of {len(outcome)} clients "
                f"and needs {needed}; mend the clients and start the app again: "
                f"it goes on from round {number}."
            )
        self.save_status("aggregating and evaluating")
        yield from self.weigh_results(outcome)

    def weigh_results(self, outcome: Outcome) -> Iterator[tuple[Job, LocalResult | ClientFailure]]:
        """Yield the jobs with their results, where clients count by size with that size.

        A client trains on the samples it has, but what counts is the weight that the rule gives it.
        """
        if self.sizes.averaging != "size":
            yield from outcome.values()
            return
        accepted = {
            client: job.info.samples
            for client, (job, result) in outcome.items()
            if not isinstance(result, ClientFailure)
        }
        weights = self.sizes.weigh(accepted)
        for client, (job, result) in outcome.items():
            samples = weights.get(client, job.info.samples)
            yield replace(job, info=replace(job.info, samples=samples)), result


def find_reply_layout(federation: Federation, state: State) -> RowLayout:
    """Return the layout of the uplink of every reply, found by one local step without data."""
    method = federation.method
    w = state.server["w"]
    _, info = sample_cohort(federation, 0)
    info = replace(info, steps=1, samples=1)
    down = method.downlink(state.server, method.memory_init(w), info)
    scratch = method.begin(down, torch.zeros_like, info)
    _, scratch = method.direction(down["w"], torch.zeros_like, down, scratch)
    return RowLayout.from_row(method.uplink(torch.zeros_like(w), down, scratch, info))


def on_meta_device(job: Job) -> Job:
    """Return the job with vectors that have a shape but no values.

    The vectors of all jobs of a cohort would fill the memory while their replies are waited for.
    """
    return replace(job, down={name: value.to("meta") for name, value in job.down.items()})


def count_accepted(outcome: Outcome) -> int:
    """Return how many clients of a round have a result that can be used."""
    return sum(not isinstance(result, ClientFailure) for _, result in outcome.values())


def find_missing(outcome: Outcome) -> dict[int, str]:
    """Return the clients from which no reply came, with the reason."""
    missing = {}
    for client, (_, result) in outcome.items():
        if isinstance(result, ClientFailure) and not result.rejected:
            missing[client] = result.reason
    return missing
