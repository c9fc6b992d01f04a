"""What a node may send: its introduction, its answers to train messages, and its evaluations.

A reply is parsed once, here, into a value whose types and ranges are those in its docstring, before
anything computes with it. Whatever else a node sends is a WireError: one line with the reason.
"""

import re
from dataclasses import dataclass

import torch
from flwr.app import Message, MetricRecord, RecordDict

from fedwmsam.engine.client_state import RowLayout
from fedwmsam.engine.rounds import Job
from fedwmsam.flower import wire
from fedwmsam.flower.wire import LARGEST_COUNT, WireError
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.options import truncated_repr
from fedwmsam.training.local import LocalResult

LARGEST_METRIC = 1e100
"""The largest absolute value of a loss or another metric: sums of them stay finite."""
LARGEST_ENTRY = 1e9
"""The largest absolute value of an update's entry: squares and weighted sums stay finite."""
LARGEST_BUFFER = 1e18
"""The largest absolute value of a buffer's entry."""
MAX_METRICS = 64
"""Metrics that an evaluation may hold."""
MAX_PROCESS_NAME = 100
"""Characters of the name of a process."""
METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_@.-]{0,63}")
"""Names that a metric may have; they become the names of columns."""
MISSING_MODULE = re.compile(r"No module named '([\w.]{1,200})'")
"""What Python says of a module that is not there."""
NUM_EXAMPLES = "num-examples"
"""Flower's key for the number of samples that a client's metrics were computed over."""
METRICS = "metrics"
"""Key of the MetricRecord in an evaluation."""


class NodeFailure(WireError):
    """The reply is an error: the client raised, or Flower lost its node."""


Reply = Message | WireError
"""A node's reply, or the reason why Flower itself could not read it."""


def content_of(reply: Reply) -> RecordDict:
    """Return the content of a reply.

    Raise NodeFailure if it is an error, and WireError if it cannot be read or has no content.
    """
    if isinstance(reply, WireError):
        raise reply
    if reply.has_error():
        raise NodeFailure(describe_reply_error(reply))
    if not reply.has_content():
        raise WireError("it has no content.")
    return reply.content


def describe_reply_error(reply: Message) -> str:
    """Return the error of a node: an import error by that name, others with Flower's code.

    Code 2 means that the client raised, 3 and 4 that a message or its reply has outlived its ttl,
    5 that the node was lost, 8 that its process died.
    """
    text = " ".join(str(reply.error.reason or "no reason given")[:1000].split())
    missing = MISSING_MODULE.search(text)
    if missing:
        return (
            f"import error: the module {missing[1]!r} is missing on this client; "
            "install it in the environment of its SuperNode."
        )
    if reply.error.code in (3, 4):
        return f"error {reply.error.code}: no answer within the ttl of the message"
    raised = re.fullmatch(r"<class '([\w.]+)'>:<'(.*)'>", text)
    if raised and raised[1] == "ImportError":
        return f"import error: {raised[2]}"
    return f"error {truncated_repr(reply.error.code)}: {raised[2] if raised else text}"


@dataclass(frozen=True)
class Introduction:
    """What a node says about itself."""

    client: int
    """At least 0; whether there is such a client, and the node may be it, is for others to say."""
    samples: int
    """1 to LARGEST_COUNT."""
    process: str
    """The process that starts the node's clients, a text of at most MAX_PROCESS_NAME characters;
    another one after a restart, even if the node's id is the same."""

    @classmethod
    def read(cls, reply: Reply) -> "Introduction":
        """Return the introduction in a reply to a whoami message; raise WireError if there is none.

        The error is a NodeFailure if the reply is an error.
        """
        record = wire.config_record_of(content_of(reply))
        process = wire.typed_entry(record, "process", str)
        if len(process) > MAX_PROCESS_NAME:
            raise WireError(f"its 'process' has {len(process)} characters.")
        return cls(
            client=wire.number_entry(record, "client", int, 0, LARGEST_COUNT),
            samples=wire.number_entry(record, "samples", int, 1, LARGEST_COUNT),
            process=process,
        )


@dataclass(frozen=True)
class Answer:
    """The result of a train message."""

    result: LocalResult
    """Vectors of the expected names, types and shapes with entries up to LARGEST_ENTRY (buffers:
    LARGEST_BUFFER), a loss up to LARGEST_METRIC, and 0 to LARGEST_COUNT backpropagations."""
    transport_error: float
    """0 to LARGEST_METRIC."""
    metrics: "Evaluation | None"
    """What a training loop of the user reports beside its loss, if the client has one."""

    @classmethod
    def read(cls, reply: Reply, job: Job, up: RowLayout, buffers: RowLayout) -> "Answer":
        """Return the answer to the message of `job`.

        Raise NodeFailure if the reply is an error, and WireError if it belongs to another job, or
        if anything in it is not as it should be: `up` and `buffers` are the expected layouts.
        """
        content = content_of(reply)
        record = wire.config_record_of(content)
        round = wire.typed_entry(record, "round", int)
        client = wire.typed_entry(record, "client", int)
        if (round, client) != (job.info.round, job.client):
            raise WireError(
                f"it is client {truncated_repr(client)}'s for round {truncated_repr(round + 1)}, "
                f"not client {job.client}'s for round {job.info.round + 1}."
            )
        result = LocalResult(
            up=wire.unpack(content.get(wire.VECTORS), up),
            buffers=wire.unpack(content.get(wire.BUFFERS), buffers),
            loss=wire.number_entry(record, "loss", float, -LARGEST_METRIC, LARGEST_METRIC),
            backprops=wire.number_entry(record, "backprops", int, 0, LARGEST_COUNT),
        )
        error = wire.number_entry(record, "transport_error", float, 0.0, LARGEST_METRIC)
        require_bounded(result.up, LARGEST_ENTRY, "update")
        require_bounded(result.buffers, LARGEST_BUFFER, "buffers")
        metrics = Evaluation.read(reply) if METRICS in content else None
        return cls(result, error, metrics)


def require_bounded(vectors: Vectors, largest: float, what: str) -> None:
    """Raise WireError if an entry is not finite, or larger than `largest` in absolute value."""
    for value in vectors.values():
        low, high = torch.aminmax(value) if value.numel() else (0.0, 0.0)
        if not -largest <= float(low) <= float(high) <= largest:  # NaN does not
            raise WireError(f"the {what} is not finite, or has entries beyond {largest:g}.")


@dataclass(frozen=True)
class Evaluation:
    """A client's metrics on its own test data."""

    samples: int
    """1 to LARGEST_COUNT."""
    metrics: dict[str, float]
    """At most MAX_METRICS, with names like METRIC_NAME and values up to LARGEST_METRIC."""

    @classmethod
    def read(cls, reply: Reply) -> "Evaluation":
        """Return the evaluation in a reply; raise WireError if there is none.

        The error is a NodeFailure if the reply is an error.
        """
        record = content_of(reply).get(METRICS)
        if not isinstance(record, MetricRecord):
            raise WireError("it carries no metrics.")
        if len(record) > MAX_METRICS + 1:
            raise WireError(f"it holds {len(record)} metrics, more than {MAX_METRICS}.")
        samples = wire.number_entry(record, NUM_EXAMPLES, int, 1, LARGEST_COUNT)
        metrics = {}
        for name in record:
            if name == NUM_EXAMPLES:
                continue
            if not METRIC_NAME.fullmatch(name):
                raise WireError(f"{truncated_repr(name)} is no name of a metric.")
            value = record[name]
            number = float(value) if isinstance(value, int) and abs(value) <= 2**53 else value
            metrics[name] = wire.number_entry(
                {name: number}, name, float, -LARGEST_METRIC, LARGEST_METRIC
            )
        return cls(samples, metrics)
