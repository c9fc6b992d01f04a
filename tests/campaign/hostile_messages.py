"""Hostile messages of one Flower node among honest ones, to the real strategy in this process."""

import logging
import random
import re
import sys
from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from helpers.flower_in_process import CLIENTS, SETTINGS, FakeGrid, load_data, load_test
from torch import nn

from campaign.sandbox import FORGED, Attack, Stage
from fedwmsam.flower import FlowerStrategy, exchange, make_client_app, wire
from fedwmsam.methods import SCAFFOLD, FedAvg, FedWMSAM

HOSTILE_NODES = (1003, 1004)
"""Ids of the nodes that misbehave; those of the honest ones are below them and above them."""
INTEGERS = [0, -1, 1, 5, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)]
FLOATS = [0.0, -0.0, 1e308, 1.7e308, -1.7e308, 1e-320, float("nan"), float("inf"), float("-inf")]
TEXTS = ["", "\x1b[31mred", f"a\n{FORGED}: all is well", "x" * 1_000_000, "\0", "latin1", "3"]
OTHERS = [b"\xff\x00", True, [1, 2], [1.5], ["a"], [True]]
DTYPES = ["float32", "float64", "int64", "bool", "float16", "complex64", "x", "Tensor", "\x1b[31m"]
SHAPES = [(), (0,), (1,), (2, 3), (1 << 40,), (-1,), (1 << 31, 1 << 31), (135,), (1,) * 70]
Spoil = Callable[[Message, random.Random], Message]


def network() -> nn.Module:
    """Return a model that has buffers, one of them an integer."""
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def choose_entry(rng: random.Random) -> Any:
    """Return a value that a record of Flower can hold."""
    return rng.choice(rng.choice([INTEGERS, INTEGERS, FLOATS, FLOATS, TEXTS, OTHERS]))


def spoil_config(reply: Message, rng: random.Random) -> Message:
    """Remove, replace or add entries of the record of settings."""
    entries = dict(reply.content[wire.CONFIG_KEY])
    for _ in range(rng.randint(1, 2)):
        key = rng.choice([*entries, *entries, "samples", "loss", "new", f"a\n{FORGED}"])
        entries.pop(key, None)
        if rng.random() < 0.85:
            entries[key] = choose_entry(rng)
    reply.content[wire.CONFIG_KEY] = ConfigRecord(entries)
    return reply


def spoil_arrays(reply: Message, rng: random.Random) -> Message:
    """Change name, type, shape, way of writing or content of an array."""
    key = rng.choice([wire.VECTORS, wire.VECTORS, wire.BUFFERS])
    arrays = dict(reply.content[key])
    name = rng.choice(list(arrays) or ["delta"])
    array = arrays.pop(name, Array("float32", (), wire.RAW, bytes(4)))
    values = {
        "dtype": array.dtype,
        "shape": tuple(array.shape),
        "stype": array.stype,
        "data": array.data,
    }
    changes = {
        "dtype": rng.choice(DTYPES),
        "shape": rng.choice(SHAPES),
        "stype": rng.choice([wire.RAW, wire.HALF, "numpy.ndarray", "\x1b[31m", ""]),
        "data": rng.choice([b"", bytes(6), b"\xff" * len(array.data), array.data * 2, bytes(8)]),
    }
    for part in rng.sample(sorted(changes), rng.randint(1, 3)):
        values[part] = changes[part]
    if rng.random() < 0.2:
        name = rng.choice(TEXTS)
    if rng.random() < 0.9:
        arrays[name] = Array(*values.values())
    reply.content[key] = ArrayRecord(arrays)
    return reply


def spoil_records(reply: Message, rng: random.Random) -> Message:
    """Remove a record, put one of another kind in its place, or reply with an error."""
    keys = list(reply.content)
    key = rng.choice(keys)
    choice = rng.randrange(4)
    if choice == 0:
        del reply.content[key]
    elif choice == 1:
        reply.content[key] = rng.choice(
            [ConfigRecord({}), MetricRecord({"a": 1.0}), ArrayRecord({})]
        )
    elif choice == 2:
        reply.content[rng.choice(TEXTS)] = MetricRecord({"x": 1})
    else:
        reason = rng.choice([*TEXTS, "<class 'x'>:<'" + "a\n" * 9 + "'>"])
        return Message(
            Error(rng.choice([0, 2, 5, 8, 1 << 31]), reason), reply_to=reply_target(reply)
        )
    return reply


def reply_target(reply: Message) -> Message:
    """Return the message that a reply belongs to, which the grid has noted on it."""
    target: Message = reply.__dict__["answered"]
    return target


def spoil_metrics(reply: Message, rng: random.Random) -> Message:
    """Remove, replace or add metrics of an evaluation."""
    entries: dict[str, Any] = dict(reply.content["metrics"])
    for _ in range(rng.randint(1, 2)):
        names = [*entries, *["num-examples"] * 3, "accuracy", "new", f"a\n{FORGED}"]
        key = rng.choice(names)
        entries.pop(key, None)
        if rng.random() < 0.9:
            entries[key] = rng.choice(rng.choice([INTEGERS, FLOATS, [1.7e308], [[1, 2], [1.5]]]))
    reply.content["metrics"] = MetricRecord(entries)
    return reply


class HostileGrid(FakeGrid):
    """The grid in which one node, or two, spoil their replies of one kind."""

    def __init__(self, kind: str, spoil: Spoil, seed: float) -> None:
        super().__init__(make_client_app(network, load_data, load_test=load_test))
        self.kind = kind
        self.spoil = spoil
        self.seed = seed

    def reply_to(self, message: Message) -> Message:
        reply = super().reply_to(message)
        node = message.metadata.dst_node_id
        if node in HOSTILE_NODES and message.metadata.message_type.startswith(self.kind):
            reply.__dict__["answered"] = message
            # Both nodes spoil all their replies in the same way.
            return self.spoil(reply, random.Random(self.seed))
        return reply


REJECTION = re.compile(r"cannot take part|not used|goes on without|asked again")
"""What the strategy logs when it does not use what a node sent."""


class Journal(logging.Handler):
    """A handler that prints what the strategy logs, and remembers whether it rejected anything."""

    def __init__(self) -> None:
        super().__init__()
        self.has_rejected = False

    def emit(self, record: logging.LogRecord) -> None:
        self.has_rejected |= bool(REJECTION.search(record.getMessage()))
        print(record.getMessage(), file=sys.stderr)


def train_with(kind: str, spoil: Spoil, seed: float) -> None:
    """Train with a hostile node; it is a refusal if the strategy says so in its log."""
    rng = random.Random(seed)
    exchange.POLL_SECONDS = 0.01
    exchange.TTL_MARGIN = 0.2
    journal = Journal()
    log = logging.getLogger("flwr.fedwmsam")
    log.handlers = [journal]
    log.propagate = False
    log.setLevel(logging.INFO)
    # Flower's own log is coloured, and says what the hostile node does to its records.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    strategy = FlowerStrategy(
        rng.choice([FedAvg(), FedWMSAM(), SCAFFOLD()]),
        network,
        clients=CLIENTS,
        test=load_test(0, {}),
        wait=0.05,
        timeout=0.2,
        quorum=0.3,
        evaluate_clients=True,
        transport=rng.choice(["float32", "float16"]),
        **SETTINGS | {"participation": 1.0, "local_epochs": 1, "rounds": 2, "batch_size": 20},
    )
    strategy.start(HostileGrid(kind, spoil, seed))
    if journal.has_rejected:
        print("Error: the strategy has rejected it, see above.", file=sys.stderr)
        sys.exit(2)


def set_entry(key: str, value: Any) -> Spoil:
    """Return the fault that an entry has another value."""

    def spoil_entry(reply: Message, rng: random.Random) -> Message:
        record = reply.content.pop(wire.CONFIG_KEY, None) or reply.content.pop("metrics")
        name = wire.CONFIG_KEY if isinstance(record, ConfigRecord) else "metrics"
        reply.content[name] = type(record)({**record, key: value})
        return reply

    return spoil_entry


def spoil_integer_buffer(reply: Message, rng: random.Random) -> Message:
    """Announce an integer as a scale and one half, which agrees with its six bytes."""
    arrays = dict(reply.content.pop(wire.BUFFERS))
    (name,) = [name for name, array in arrays.items() if array.dtype == "int64"]
    arrays[name] = Array("int64", (), wire.HALF, bytes(6))
    reply.content[wire.BUFFERS] = ArrayRecord(arrays)
    return reply


def message_attack(
    rng: random.Random, stage: Stage, kind: str, known: list[Spoil], spoils: list[Spoil]
) -> Attack:
    """Return the attack of spoilt replies of a kind: first those that once ended the server."""
    chosen = rng.choice(spoils)
    spoil = known[stage.turn] if stage.turn < len(known) else chosen
    seed = rng.random()
    return Attack(f"{kind}: {spoil.__name__}", lambda: train_with(kind, spoil, seed))


def choose_introduction_attack(rng: random.Random, stage: Stage) -> Attack:
    """Spoil what a node says about itself."""
    known = [set_entry("samples", 1 << 63), set_entry("samples", 1 << 40)]
    spoils = [spoil_config, spoil_config, spoil_config, spoil_records]
    return message_attack(rng, stage, "query", known, spoils)


def choose_reply_attack(rng: random.Random, stage: Stage) -> Attack:
    """Spoil the result of local training."""
    known = [spoil_integer_buffer, set_entry("loss", 1.7e308), set_entry("loss", float("inf"))]
    spoils = [spoil_config, spoil_arrays, spoil_arrays, spoil_records]
    return message_attack(rng, stage, "train", known, spoils)


def choose_evaluation_attack(rng: random.Random, stage: Stage) -> Attack:
    """Spoil the numbers of an evaluation."""
    known = [set_entry("num-examples", 1.7e308), set_entry("num-examples", 1e300)]
    spoils = [spoil_metrics, spoil_metrics, spoil_records]
    return message_attack(rng, stage, "evaluate", known, spoils)
