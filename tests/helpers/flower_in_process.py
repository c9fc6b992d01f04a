"""A Flower without processes: messages reach a ClientApp in this process.

Tests say what goes wrong on the way.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import cache

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedwmsam.flower import make_client_app, wire

CLIENTS = 6
# Message() asks for these.
TaskIdentity.run_id = 1
TaskIdentity.node_id = 1
TaskIdentity.task_id = 1


def network():
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))


def load_data(partition, node_config):
    generator = torch.Generator().manual_seed(partition)
    count = 25 + 3 * partition
    y = torch.randint(3, (count,), generator=generator)
    return torch.randn(count, 8, generator=generator) + y[:, None] + 0.1 * partition, y


def load_test(partition, node_config):
    generator = torch.Generator().manual_seed(100 + partition)
    y = torch.randint(3, (20 + partition,), generator=generator)
    return torch.randn(len(y), 8, generator=generator) + y[:, None], y


SETTINGS = {"participation": 0.5, "rounds": 3, "local_epochs": 2, "batch_size": 10, "seed": 4}
Fault = Callable[[Message, Callable[[], Message]], Message | Exception | None]
"""A function from a message and a call for the honest reply to the reply that arrives, or None.

An exception instead is what Flower raises when it reads the reply.
"""


class FakeGrid(Grid):
    """Flower's grid, with all nodes in this process; it replies as soon as a message is pushed."""

    def __init__(self, app: ClientApp | None = None, clients: int = CLIENTS) -> None:
        self.app = app or make_client_app(network, load_data, load_test=load_test)
        self.nodes = {1000 + client: {"partition-id": client} for client in range(clients)}
        self.faults: dict[tuple[int, int], Fault] = {}
        """Faults of train messages by round (from 1) and client."""
        self.node_faults: dict[tuple[str, int], Fault] = {}
        """Faults by the type of the message and the node that it goes to."""
        self.public_keys: dict[int, bytes] = {}
        """The keys of nodes, where there are any."""
        self.replies: dict[str, Message | Exception] = {}
        """Replies by message; an exception is raised when somebody asks for it."""
        self.sent: list[Message] = []
        self.number = itertools.count()

    def set_run(self, run) -> None: ...

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=self.public_keys.get(node, b""))
            for node in self.nodes
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self.deliver(message) for message in messages]

    def deliver(self, message: Message) -> str:
        message_id = f"message {next(self.number)}"
        message.metadata.__dict__["_message_id"] = message_id
        self.sent.append(message)
        node = self.nodes.get(message.metadata.dst_node_id)
        if node is None:
            reply = Message(Error(5, "node unavailable"), reply_to=message)
        else:
            key = (int(message.metadata.group_id or 0), node.get("partition-id"))
            kind = message.metadata.message_type
            fault = self.faults.get(key) if kind == "train" else None
            fault = fault or self.node_faults.get((kind, message.metadata.dst_node_id))
            if fault:
                reply = fault(message, lambda: self.reply_to(message))
            else:
                reply = self.reply_to(message)
        if reply is not None:
            self.replies[message_id] = reply
        return message_id

    def reply_to(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, dict(self.nodes[node]), RecordDict(), {})
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        arrived = [message_id for message_id in message_ids if message_id in self.replies]
        replies = [self.replies.pop(message_id) for message_id in arrived]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))

    def asked_clients(self, round: int) -> list[int]:
        """Return the clients that were sent a train message in a round (from 1)."""
        messages = [
            message
            for message in self.sent
            if message.metadata.message_type == "train" and message.metadata.group_id == str(round)
        ]
        return [message.content[wire.CONFIG_KEY]["client"] for message in messages]


@cache
def public_key(number: int) -> bytes:
    """Return a public key in the format in which Flower tells the keys of nodes."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def authenticated_grid(clients: int = CLIENTS) -> FakeGrid:
    """Return a grid whose nodes have keys; the key of client K's node is `public_key(K)`."""
    grid = FakeGrid(clients=clients)
    grid.public_keys = {1000 + client: public_key(client) for client in range(clients)}
    return grid


def no_reply(message: Message, honest_reply: Callable[[], Message]) -> None:
    """A fault: no reply comes."""


def error_reply(message: Message, honest_reply: Callable[[], Message]) -> Message:
    """A fault: the client raises."""
    return Message(Error(2, "<class 'RuntimeError'>:<'out of memory'>"), reply_to=message)


def with_entries(**entries) -> Fault:
    """Return the fault that the honest reply has other entries in its record."""

    def fault(message: Message, honest_reply: Callable[[], Message]) -> Message:
        reply = honest_reply()
        reply.content[wire.CONFIG_KEY] = ConfigRecord({**reply.content[wire.CONFIG_KEY], **entries})
        return reply

    return fault


def with_vectors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Fault:
    """Return the fault that the honest reply has other vectors."""

    def fault(message: Message, honest_reply: Callable[[], Message]) -> Message:
        reply = honest_reply()
        vectors = change(wire.unpack(reply.content[wire.VECTORS]))
        reply.content[wire.VECTORS], _ = wire.pack(vectors)
        return reply

    return fault
