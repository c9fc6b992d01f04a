"""The server's exchange of messages with the nodes.

A `Mailbox` sends messages and fetches replies over Flower's grid. `PendingReplies` waits for
replies until a deadline, whatever happens to the nodes. `NodeRegistry` knows which connected node
holds which client's data, and `LostMessages` finds the messages that no node will ever reply to.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedwmsam.errors import InputError, describe_error
from fedwmsam.flower import wire
from fedwmsam.flower.identities import Identities, fingerprint
from fedwmsam.flower.replies import Introduction, NodeFailure, Reply
from fedwmsam.flower.wire import TrainConfig, WireError

log = logging.getLogger("flwr.fedwmsam")
POLL_SECONDS = 0.5
"""Seconds between two looks for replies."""
REFUSED_RETRY_SECONDS = 60.0
"""Seconds until a refused node is asked again: Flower may still list its predecessor."""
WHOAMI_TIMEOUT = 300.0
"""Seconds within which a node replies which client it is; it reads its data for that."""
TTL_MARGIN = 60.0
"""Seconds a message outlives its deadline, so that a late reply can be told from none."""
SILENCE_SECONDS = 60.0
"""Seconds without a reply after which a node is asked whether it still is the same process."""


class Mailbox:
    """Sends messages to nodes and fetches their replies, over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.overdue: dict[str, str] = {}
        """Ids of messages whose deadline has passed → what they were about."""
        self.before_pause: Callable[[], None] = lambda: None
        """Called each time there is nothing to do but wait."""

    def send(self, message: Message) -> bool:
        """Send a message, which gets its id by that, and return whether Flower accepted it."""
        return any(self.grid.push_messages([message]))

    def fetch(self, message_ids: Collection[str]) -> dict[str, Reply]:
        """Return the replies to these messages that have arrived; log and drop overdue ones."""
        replies = {message_id: self.fetch_one(message_id) for message_id in message_ids}
        for message_id, subject in list(self.overdue.items()):
            reply = None if message_id in replies else self.fetch_one(message_id)
            if reply is None:
                continue
            del self.overdue[message_id]
            if isinstance(reply, WireError) or not reply.has_error():
                log.warning("An answer came after its deadline and is not used: %s.", subject)
        return {message_id: reply for message_id, reply in replies.items() if reply is not None}

    def pause(self) -> None:
        """Wait until it is time to look for replies again."""
        self.before_pause()
        time.sleep(POLL_SECONDS)

    def fetch_one(self, message_id: str) -> Reply | None:
        """Return the reply to a message, or None if it has not arrived.

        Each reply is fetched by itself. Flower reads the bytes of a reply as it fetches it, raises
        whatever their sender makes it raise, and loses all that it fetched together with them. And
        where several are fetched, their own bytes say which message each of them belongs to.
        """
        try:
            return next(iter(self.grid.pull_messages([message_id])), None)
        except (httpx.HTTPError, OSError):  # the SuperLink, not a node
            raise
        except Exception as error:
            return WireError(f"Flower cannot read it: {describe_error(error)}.")


class PendingReplies:
    """An iterable over the replies to some messages, as they arrive, until a deadline.

    It yields the ids of the messages with the replies. `pending` maps the ids to what the messages
    are about. With `lost_messages`, a message that no node will reply to is no longer waited for;
    it is in `lost` then.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        pending: dict[str, str],
        timeout: float,
        lost_messages: "LostMessages | None" = None,
    ) -> None:
        self.mailbox = mailbox
        self.pending = dict(pending)
        self.lost_messages = lost_messages
        self.deadline = time.monotonic() + timeout
        self.limit = f"timeout = {timeout:g} s"
        """The setting that the deadline comes from, for messages."""
        self.lost: dict[str, str] = {}
        """Ids of messages that no reply will come to → why."""

    def start_grace(self, grace: float) -> None:
        """Wait no longer than this many seconds from now on, because the quorum has replied."""
        deadline = time.monotonic() + grace
        if deadline < self.deadline:
            self.deadline = deadline
            self.limit = f"grace = {grace:g} s after the quorum"

    def __iter__(self) -> Iterator[tuple[str, Reply]]:
        while self.pending:
            for message_id, reply in self.mailbox.fetch(self.pending).items():
                del self.pending[message_id]
                yield message_id, reply
            if self.lost_messages:
                self.give_up(self.lost_messages.find(self.pending))
            if time.monotonic() >= self.deadline:
                break
            if self.pending:
                self.mailbox.pause()
        self.mailbox.overdue |= self.pending

    def give_up(self, reasons: Mapping[str, str]) -> None:
        """Wait no longer for the replies to these messages, for these reasons."""
        self.lost |= reasons
        for message_id in reasons:
            self.mailbox.overdue[message_id] = self.pending.pop(message_id)


@dataclass(frozen=True)
class Node:
    """A connected SuperNode that has said which client's data it holds."""

    id: int
    samples: int
    process: str
    """The process that starts the node's clients; another one after a restart, even if the id is
    the same."""


class NodeRegistry:
    """The connected nodes, by the client whose data they hold.

    The nodes say themselves which client they are. With `identities` a client's node must have the
    key that the client is bound to. Without them whoever comes first is the client, for as long as
    that node is connected: a node's id is a random number, and another one after a restart.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        clients: int,
        train_config: TrainConfig,
        identities: Identities | None = None,
    ) -> None:
        self.mailbox = mailbox
        self.clients = clients
        self.train_config = train_config
        self.identities = identities
        self.by_client: dict[int, Node] = {}
        self.places: dict[int, int] = {}
        """Clients → ids of the connected nodes that have their places, also after an error."""
        self.public_keys: dict[int, bytes] = {}
        """Ids of the connected nodes → their keys, if identities are checked."""
        self.unanswered: dict[str, int] = {}
        """Ids of whoami messages without a reply → ids of the nodes they went to."""
        self.refused_at: dict[int, float] = {}
        """Ids of the nodes that cannot take part → the time when they were refused."""
        self.refusals: dict[int, str] = {}
        """Ids of the nodes that were refused, the last one last → why; not those that left."""

    def samples(self, client: int) -> int:
        """Return how many samples a client has, and 0 if it is not connected."""
        return self.by_client[client].samples if client in self.by_client else 0

    def describe_absence(self) -> str:
        """Return why a client has no node: nobody came, or whoever did cannot take part."""
        if not self.refused_at:
            return "not connected"
        count = len(self.refused_at)
        nodes = "a node" if count == 1 else f"{count} nodes"
        reason = next(reversed(self.refusals.values()), "").rstrip(".")
        return f"not connected, but {nodes} cannot take part: {reason}"

    def forget(self, client: int) -> None:
        """Remove a client whose reply was an error, so that its node is asked again who it is.

        As long as the node is connected no other node can take the client's place.
        """
        self.by_client.pop(client, None)

    def refresh(self) -> None:
        """Remove nodes that left, ask new ones who they are, and register those that replied."""
        connected = self.connected_nodes()
        self.remove_disconnected(connected)
        self.refused_at = {
            node: refused_at
            for node, refused_at in self.refused_at.items()
            if time.monotonic() < refused_at + REFUSED_RETRY_SECONDS
        }
        self.refusals = {
            node: reason
            for node, reason in self.refusals.items()
            if node in connected or node in self.refused_at
        }
        identified = {node.id for node in self.by_client.values()}
        new = connected - identified - set(self.unanswered.values()) - set(self.refused_at)
        for node in sorted(new):
            if message_id := self.send_whoami(node):
                self.unanswered[message_id] = node
        for message_id, reply in self.mailbox.fetch(self.unanswered).items():
            self.register(self.unanswered.pop(message_id), reply)

    def connected_nodes(self) -> set[int]:
        """Return the ids of the connected nodes, and note their keys if identities are checked."""
        if self.identities is None:
            return set(self.mailbox.grid.get_node_ids())
        self.public_keys = {node.node_id: node.public_key for node in self.mailbox.grid.get_nodes()}
        return set(self.public_keys)

    def remove_disconnected(self, connected: Collection[int]) -> None:
        """Remove the clients whose node is not among the connected ones."""
        for client, node in list(self.by_client.items()):
            if node.id not in connected:
                log.warning("Client %d is no longer connected.", client)
                del self.by_client[client]
        self.places = {client: node for client, node in self.places.items() if node in connected}

    def send_whoami(self, node: int) -> str | None:
        """Ask a node which client it is; return the message's id, or None if it was not sent."""
        content = RecordDict({wire.CONFIG_KEY: ConfigRecord(self.train_config.to_record())})
        message = Message(content, node, "query.whoami", ttl=WHOAMI_TIMEOUT)
        return message.metadata.message_id if self.mailbox.send(message) else None

    def refresh_until_identified(self, clients: Collection[int]) -> None:
        """Refresh, and wait a moment for new nodes to reply if one may be one of these clients."""
        self.refresh()
        deadline = time.monotonic() + TTL_MARGIN
        while (
            self.unanswered
            and not all(client in self.by_client for client in clients)
            and time.monotonic() < deadline
        ):
            self.mailbox.pause()
            self.refresh()

    def register(self, node_id: int, reply: Reply) -> None:
        """Register a node by its whoami reply, or refuse it for a while and log the reason."""
        try:
            introduction = Introduction.read(reply)
            self.take_place(node_id, introduction.client)
        except InputError as reason:
            log.warning("Node %d cannot take part: %s", node_id, reason)
            self.refused_at[node_id] = time.monotonic()
            self.refusals.pop(node_id, None)
            self.refusals[node_id] = str(reason)
            return
        self.refusals.pop(node_id, None)
        client = introduction.client
        samples = introduction.samples
        log.info("Client %d is connected as node %d with %d samples.", client, node_id, samples)
        self.by_client[client] = Node(node_id, samples, introduction.process)

    def take_place(self, node_id: int, client: int) -> None:
        """Give a node the place of a client; raise InputError with the reason to refuse it."""
        if client >= self.clients:
            raise WireError(
                f"it says it is client {client}, "
                f"but there are clients 0 to {self.clients - 1} only."
            )
        if self.identities is not None:
            self.identities.bind(client, fingerprint(self.public_keys.get(node_id, b"")))
        holder = self.places.get(client, node_id)
        if holder != node_id:
            raise WireError(f"node {holder} is client {client} already.")
        kept = {place: node for place, node in self.places.items() if node != node_id}
        self.places = kept | {client: node_id}

    def wait_for(self, clients: Collection[int], seconds: float) -> None:
        """Wait until all of these clients are connected, or the time is over."""
        deadline = time.monotonic() + seconds
        is_logged = False
        while True:
            self.refresh()
            missing = [client for client in clients if client not in self.by_client]
            if not missing or time.monotonic() >= deadline:
                return
            if not is_logged:
                names = ", ".join(map(str, missing))
                log.info("Waiting up to wait = %g s for client(s) %s.", seconds, names)
            is_logged = True
            self.mailbox.pause()


class LostMessages:
    """Finds the train messages of one round that no node will reply to.

    A node that is killed and back before Flower noticed has the same id, and its message is gone:
    Flower neither delivers it again nor reports it. The same happens where the connection breaks
    while a message is on its way to a node or a reply on its way back. So a node that is silent for
    long is asked who it is. It replies to one message at a time, in order: once it has replied to
    that, no reply to the train message is to come.
    """

    def __init__(self, nodes: NodeRegistry, clients: dict[str, int]) -> None:
        """Watch the messages with these ids, each of which was sent to the node of its client."""
        self.nodes = nodes
        self.recipients = {
            message_id: nodes.by_client[client] for message_id, client in clients.items()
        }
        self.whoami_of: dict[str, str] = {}
        """Ids of whoami messages to silent nodes → ids of the train messages they are about."""
        self.overtaken: dict[str, str] = {}
        """Train messages whose node has replied to a later one → why theirs will not come; empty if
        it may come, because the node does not reply in order."""
        self.started = time.monotonic()
        self.slowest = 0.0
        """Seconds from the start to the last reply so far."""
        self.waiting = len(clients)
        """Train messages without a reply."""

    def find(self, pending: Collection[str]) -> dict[str, str]:
        """Ask silent nodes who they are, and return those pending messages that proved lost.

        Replies to the pending messages have just been looked for, which makes it certain that those
        to messages overtaken before will not come.
        """
        elapsed = time.monotonic() - self.started
        if len(pending) < self.waiting:
            self.waiting = len(pending)
            self.slowest = elapsed
        if elapsed > max(SILENCE_SECONDS, 2 * self.slowest):
            for message_id in set(pending) - set(self.overtaken) - set(self.whoami_of.values()):
                if whoami_id := self.nodes.send_whoami(self.recipients[message_id].id):
                    self.whoami_of[whoami_id] = message_id
        lost = {
            message_id: reason
            for message_id, reason in self.overtaken.items()
            if reason and message_id in pending
        }
        self.note_overtaken()
        return lost

    def note_overtaken(self) -> None:
        """Note the messages whose node has replied to the later question who it is."""
        for whoami_id, reply in self.nodes.mailbox.fetch(self.whoami_of).items():
            message_id = self.whoami_of.pop(whoami_id)
            try:
                process = Introduction.read(reply).process
            except NodeFailure:
                # The node is too busy to reply in time and is asked again, or it is gone and its
                # train message ends with an error, too.
                continue
            except WireError:
                process = "another one"
            self.overtaken[message_id] = self.explain(process, self.recipients[message_id].process)

    @staticmethod
    def explain(process: str, process_before: str) -> str:
        """Return why a message was lost, by the node's process now and when it was sent."""
        if not process:
            return ""
        if process != process_before:
            return "its node was restarted and has lost the order"
        return "the order or its answer was lost on the way"
