"""Messages to nodes and their answers, whatever becomes of the nodes; and which node holds which client's data."""

import logging
import math
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedwmsam.flower import wire
from fedwmsam.flower.wire import TrainConfig, WireError

log = logging.getLogger("flwr.fedwmsam")
POLL = 0.5
"""Seconds between two looks for answers."""
REFUSED_RETRY_SECONDS = 60.0
"""Seconds after which a node that was refused is asked again: Flower may still have held its predecessor for alive."""
WHOAMI_TIMEOUT = 300.0
"""Seconds within which a node says who it is: it reads its data for that."""
MARGIN = 60.0
"""Seconds a message outlives its deadline, so that a late answer can be told from none."""
SILENCE = 60.0
"""Seconds without an answer after which a node is asked whether it is still the one that got the order."""


class Mailbox:
    """Sends messages and hands over the answers as they come."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.overdue: dict[str, str] = {}
        """Messages whose deadline has passed, and what they were about."""

    def send(self, message: Message) -> bool:
        return any(self.grid.push_messages([message]))

    def fetch(self, identities: Collection[str]) -> list[Message]:
        """The answers that are there; those that come too late are named and dropped."""
        wanted = [*identities, *self.overdue]
        fetched = list(self.grid.pull_messages(wanted)) if wanted else []
        for message in fetched:
            about = self.overdue.pop(message.metadata.reply_to_message_id, None)
            if about and not message.has_error():
                log.warning("An answer came after its deadline and is not used: %s.", about)
        return [
            message for message in fetched if message.metadata.reply_to_message_id in identities
        ]


class PendingReplies:
    """`for message in Answers(post, {message id: what it is about}, seconds)`: until all are there or time is up.

    With `doubts`, orders that nobody will answer are not waited for; they are in `lost`.
    """

    def __init__(
        self,
        post: Mailbox,
        pending: dict[str, str],
        seconds: float,
        doubts: "LostMessages | None" = None,
    ) -> None:
        self.post, self.pending, self.doubts = post, dict(pending), doubts
        self.deadline = time.monotonic() + seconds
        self.lost: set[str] = set()

    def hurry(self, seconds: float) -> None:
        """Wait no longer than this from now on."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def __iter__(self) -> Iterator[Message]:
        while self.pending:
            for message in self.post.fetch(self.pending):
                del self.pending[message.metadata.reply_to_message_id]
                yield message
            if self.doubts:
                self.give_up(self.doubts.lost(self.pending))
            if time.monotonic() >= self.deadline:
                break
            if self.pending:
                time.sleep(POLL)
        self.post.overdue |= self.pending

    def give_up(self, lost: Collection[str]) -> None:
        self.lost.update(lost)
        self.post.overdue |= {identity: self.pending.pop(identity) for identity in lost}


@dataclass(frozen=True)
class Node:
    id: int
    samples: int
    process: str
    """Another one after a restart, even if the id is the same."""


class NodeRegistry:
    """The connected nodes by the client whose data they hold. They say so themselves: a node's id is a random number,
    and another one after a restart."""

    def __init__(self, post: Mailbox, clients: int, terms: TrainConfig) -> None:
        self.post, self.clients, self.terms = post, clients, terms
        self.by_client: dict[int, Node] = {}
        self.asked: dict[str, int] = {}
        self.refused: dict[int, float] = {}

    def samples(self, client: int) -> int:
        return self.by_client[client].samples if client in self.by_client else 0

    def forget(self, client: int) -> None:
        """Its answer was an error: whatever the reason, it must introduce itself again."""
        self.by_client.pop(client, None)

    def refresh(self) -> None:
        """Drop nodes that left, ask new ones who they are, and take in what was answered."""
        connected = set(self.post.grid.get_node_ids())
        for client in [
            client for client, node in self.by_client.items() if node.id not in connected
        ]:
            log.warning("Client %d is no longer connected.", client)
            del self.by_client[client]
        self.refused = {
            node: since
            for node, since in self.refused.items()
            if time.monotonic() < since + REFUSED_RETRY_SECONDS
        }
        known = (
            {node.id for node in self.by_client.values()}
            | set(self.asked.values())
            | set(self.refused)
        )
        for node in sorted(connected - known):
            if identity := self.ask(node):
                self.asked[identity] = node
        for reply in self.post.fetch(self.asked):
            self.meet(self.asked.pop(reply.metadata.reply_to_message_id), reply)

    def ask(self, node: int) -> str | None:
        """Send a node the question who it is; the message's id."""
        question = RecordDict({wire.CONFIG_KEY: ConfigRecord(self.terms.note())})
        message = Message(question, node, "query.whoami", ttl=WHOAMI_TIMEOUT)
        return message.metadata.message_id if self.post.send(message) else None

    def gather(self, clients: Collection[int]) -> None:
        """Take in who came and went; a newcomer that may be one of these clients has a moment to say who it is."""
        self.refresh()
        deadline = time.monotonic() + MARGIN
        while (
            self.asked
            and not all(client in self.by_client for client in clients)
            and time.monotonic() < deadline
        ):
            time.sleep(POLL)
            self.refresh()

    def meet(self, node: int, reply: Message) -> None:
        """Take in a node's introduction, or say why not."""
        try:
            client, met = self.introduction(node, reply)
        except WireError as reason:
            log.warning("Node %d cannot take part: %s", node, reason)
            self.refused[node] = time.monotonic()
            return
        log.info("Client %d is connected as node %d with %d samples.", client, node, met.samples)
        self.by_client[client] = met

    def introduction(self, node: int, reply: Message) -> tuple[int, Node]:
        if reply.has_error():
            raise WireError(reason_of(reply))
        note = wire.config_record_of(reply.content)
        client, samples = (
            wire.typed_entry(note, "client", int),
            wire.typed_entry(note, "samples", int),
        )
        if not 0 <= client < self.clients:
            raise WireError(
                f"it says it is client {client}, but there are clients 0 to {self.clients - 1} only."
            )
        if samples < 1:
            raise WireError(f"it says it has {samples} samples.")
        if client in self.by_client:
            raise WireError(f"node {self.by_client[client].id} is client {client} already.")
        return client, Node(node, samples, wire.typed_entry(note, "process", str))

    def wait_for(self, clients: Collection[int], seconds: float) -> None:
        """Until all of these clients are connected, or time is up."""
        deadline, told = time.monotonic() + seconds, False
        while True:
            self.refresh()
            missing = [client for client in clients if client not in self.by_client]
            if not missing or time.monotonic() >= deadline:
                return
            if not told:
                log.info(
                    "Waiting up to %.0f s for client(s) %s.", seconds, ", ".join(map(str, missing))
                )
            told = True
            time.sleep(POLL)


class LostMessages:
    """Finds the orders of one round that nobody will answer.

    A node that is killed and back before Flower noticed has the same id, and its order is gone: Flower neither delivers
    it again nor reports it. So a node that is silent for long is asked who it is. It answers one message at a time, in
    order: if another process than before answers that, it never knew the order.
    """

    def __init__(self, nodes: NodeRegistry, clients: dict[str, int]) -> None:
        self.nodes = nodes
        self.holders = {order: nodes.by_client[client] for order, client in clients.items()}
        self.questions: dict[str, str] = {}
        """Messages to silent nodes → the orders they are about."""
        self.known: set[str] = set()
        """Orders whose node is the one that got them."""
        self.begun = time.monotonic()
        self.slowest = 0.0
        self.waiting = len(clients)

    def lost(self, pending: Collection[str]) -> list[str]:
        """Those of the pending orders of which it has turned out that they are lost."""
        passed = time.monotonic() - self.begun
        if len(pending) < self.waiting:
            self.waiting, self.slowest = len(pending), passed
        if passed > max(SILENCE, 2 * self.slowest):
            for order in set(pending) - self.known - set(self.questions.values()):
                if question := self.nodes.ask(self.holders[order].id):
                    self.questions[question] = order
        return [order for order in self.restarted() if order in pending]

    def restarted(self) -> Iterator[str]:
        """Orders whose node, as its answer shows, is no longer the process that got them."""
        for reply in self.nodes.post.fetch(self.questions):
            order = self.questions.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                continue  # too busy to answer in time, or gone: it is asked again, or its order ends with an error, too
            if process_of(reply) != self.holders[order].process:
                yield order
            self.known.add(order)


def process_of(reply: Message) -> object:
    """Which process answers, by its own words; None if it says nothing."""
    note = reply.content.get(wire.CONFIG_KEY)
    return note.get("process") if isinstance(note, ConfigRecord) else None


def reason_of(reply: Message) -> str:
    """A node's error in one line; Flower's own numbers mean: 2 the client raised, 5 node lost, 8 its process died."""
    error = reply.error
    text = " ".join(str(error.reason or "no reason given").split())
    raised = re.fullmatch(r"<class '[\w.]+'>:<'(.*)'>", text)
    return f"error {error.code}: {raised[1] if raised else text}"[:300]


SIZE = "num-examples"


def read_evaluation(reply: Message) -> dict[str, float]:
    """A client's numbers; WireError unless all of them are finite and they say how many samples they are over."""
    if reply.has_error():
        raise WireError(reason_of(reply))
    record = reply.content.metric_records.get("metrics", MetricRecord())
    values = {
        name: float(value) for name, value in record.items() if isinstance(value, int | float)
    }
    if (
        len(values) != len(record)
        or not all(map(math.isfinite, values.values()))
        or not values.get(SIZE, 0) > 0
    ):
        raise WireError(f"its numbers cannot be used: {dict(record)}.")
    return values


def mean_evaluation(records: list[dict[str, float]]) -> dict[str, float]:
    """Means over clients, weighted by their numbers of samples, under names that begin with clients_."""
    total = math.fsum(record[SIZE] for record in records)
    names = [
        name for name in records[0] if name != SIZE and all(name in record for record in records)
    ]
    return {
        f"clients_{name}": math.fsum(r[name] * r[SIZE] for r in records) / total for name in names
    }
