"""A Flower without processes: messages reach the ClientApp in this process, tests say what goes wrong on the way."""

import itertools
from collections.abc import Callable, Iterable

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedwmsam.flower import make_client_app, wire

CLIENTS = 6
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Message() asks for them


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
Fault = Callable[[Message, Callable[[], Message]], Message | None]
"""(the message, the honest answer on demand) → what arrives at the server, if anything."""


class FakeGrid(Grid):
    def __init__(self, app: ClientApp | None = None, clients: int = CLIENTS) -> None:
        self.app = app or make_client_app(network, load_data, load_test=load_test)
        self.nodes = {1000 + client: {"partition-id": client} for client in range(clients)}
        self.faults: dict[tuple[int, int], Fault] = {}
        """By round (from 1) and client."""
        self.replies: dict[str, Message] = {}
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

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self.deliver(message) for message in messages]

    def deliver(self, message: Message) -> str:
        identity = f"message {next(self.number)}"
        message.metadata.__dict__["_message_id"] = identity
        self.sent.append(message)
        node = self.nodes.get(message.metadata.dst_node_id)
        if node is None:
            reply = Message(Error(5, "node unavailable"), reply_to=message)
        else:
            key = (int(message.metadata.group_id or 0), node.get("partition-id"))
            fault = self.faults.get(key) if message.metadata.message_type == "train" else None
            reply = fault(message, lambda: self.answer(message)) if fault else self.answer(message)
        if reply is not None:
            self.replies[identity] = reply
        return identity

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, dict(self.nodes[node]), RecordDict(), {})
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(identity) for identity in message_ids if identity in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))

    def trained(self, round: int) -> list[int]:
        """The clients that were asked in a round."""
        orders = [
            m
            for m in self.sent
            if m.metadata.message_type == "train" and m.metadata.group_id == str(round)
        ]
        return [message.content[wire.CONFIG_KEY]["client"] for message in orders]


def silent(message: Message, answer: Callable[[], Message]) -> None:
    """No answer comes."""


def raising(message: Message, answer: Callable[[], Message]) -> Message:
    return Message(Error(2, "<class 'RuntimeError'>:<'out of memory'>"), reply_to=message)


def changed(**entries) -> Fault:
    """The honest answer with other entries in its record."""

    def fault(message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        reply.content[wire.CONFIG_KEY] = ConfigRecord({**reply.content[wire.CONFIG_KEY], **entries})
        return reply

    return fault


def with_vectors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Fault:
    """The honest answer with other vectors."""

    def fault(message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        reply.content[wire.VECTORS] = wire.pack(change(wire.unpack(reply.content[wire.VECTORS])))[0]
        return reply

    return fault
