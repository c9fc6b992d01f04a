"""Whatever one node sends, the run goes on as if it had sent nothing, and the log says why."""

import logging
import re
from functools import cache

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from helpers.flower_in_process import (
    SETTINGS,
    authenticated_grid,
    load_test,
    network,
    no_reply,
    public_key,
    with_entries,
    with_vectors,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwmsam.flower import FlowerStrategy, exchange, wire
from fedwmsam.flower.identities import fingerprint
from fedwmsam.flower.replies import METRICS, NUM_EXAMPLES
from fedwmsam.methods import FedWMSAM

CLIENTS = 3
HOSTILE = 0
"""The client whose node sends anything; it is the first to be asked who it is."""
NODE = 1000 + HOSTILE
REFUSAL = re.compile("Node 1000 cannot take|without client 0: |The evaluation of client 0 is not")
"""What the log says if something of the hostile node is not used."""
KINDS = ("query.whoami", "train", "evaluate")
WORDS = st.text(max_size=12) | st.sampled_from(
    [
        *("float32", "int64", "nn", "__class__", "[" * 2000, "a\nWARNING: forged", "\x1b[31m"),
        *("loss", "accuracy", "round", "client", "samples", NUM_EXAMPLES, "delta"),
    ]
)
INTEGERS = st.integers(-4, 40) | st.sampled_from([2**40 + 1, 2**63, -(2**63), 2**64, 10**5000])
FLOATS = st.floats() | st.sampled_from([1.7e308, -1.7e308, float("inf"), float("nan"), 1e300])
SCALARS = st.one_of(INTEGERS, FLOATS, st.booleans(), WORDS, st.binary(max_size=8))
LISTS = st.lists(st.integers(-3, 3), max_size=3) | st.lists(FLOATS, max_size=3)
ARRAYS = st.builds(
    Array,
    WORDS,
    st.lists(INTEGERS, max_size=3).map(tuple),
    st.sampled_from([wire.RAW, wire.HALF, "numpy.ndarray", "x\ny"]),
    st.binary(max_size=40),
)
CONFIGS = st.dictionaries(WORDS, SCALARS | LISTS, max_size=4).map(ConfigRecord)
METRIC_RECORDS = st.dictionaries(WORDS, INTEGERS | FLOATS | LISTS, max_size=4).map(MetricRecord)
ARRAY_RECORDS = st.dictionaries(WORDS, ARRAYS, max_size=3).map(ArrayRecord)
RECORDS = CONFIGS | METRIC_RECORDS | ARRAY_RECORDS
KEYS = st.sampled_from([wire.CONFIG_KEY, wire.VECTORS, wire.BUFFERS, METRICS]) | WORDS
CONTENTS = st.dictionaries(KEYS, RECORDS, max_size=4).map(RecordDict)
UNREADABLE = st.sampled_from([ValueError("a\nb"), KeyError("x"), RecursionError(), TypeError()])
ERRORS = st.builds(Error, INTEGERS, st.text(max_size=40) | st.none())


class Messages(logging.Handler):
    """Collects what is logged."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture(scope="module", autouse=True)
def short_waits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "POLL_SECONDS", 0.001)
        patch.setattr(exchange, "TTL_MARGIN", 0.02)
        yield


@pytest.fixture(scope="module")
def flower_log():
    handler = Messages()
    logger = logging.getLogger("flwr.fedwmsam")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def run_with(kind, fault):
    """Return the run in which the hostile node replies like this to messages of a kind.

    It replies so to every message that asks who it is, and to the first of another kind.
    """
    identities = {client: fingerprint(public_key(client)) for client in range(CLIENTS)}
    strategy = FlowerStrategy(
        FedWMSAM(),
        network,
        clients=CLIENTS,
        test=load_test(0, {}),
        evaluate_clients=True,
        identities=identities,
        wait=0.02,
        timeout=0.05,
        **SETTINGS | {"participation": 1.0, "rounds": 2},
    )
    grid = authenticated_grid(CLIENTS)

    def fault_once(message, honest_reply):
        if kind != "query.whoami":
            del grid.node_faults[kind, NODE]
        return fault(message, honest_reply)

    grid.node_faults[kind, NODE] = fault_once
    strategy.start(grid)
    return strategy


@cache
def run_without(kind):
    """Return the run in which no reply comes."""
    return run_with(kind, no_reply)


@cache
def honest_run():
    return run_with("none", no_reply)


def outcome(strategy):
    """Return the loss, the model and what the server remembers of each client."""
    memory = strategy.run.state.memory
    vectors = {f"client {client}": memory[client]["c_k"] for client in memory}
    losses = [row["loss"] for row in strategy.result.rows]
    return losses, {name: v.tolist() for name, v in (strategy.result.model | vectors).items()}


def client_means(strategy):
    """Return the means of the clients' evaluations in the first round."""
    return {key: value for key, value in strategy.result.rows[0].items() if "clients_" in key}


def altered(data, content):
    """Return the honest content with records dropped, exchanged, or with other entries."""
    records = {}
    for key, record in content.items():
        change = data.draw(st.sampled_from(["keep", "keep", "drop", "exchange", "alter"]))
        if change == "exchange":
            records[key] = data.draw(RECORDS)
        elif change == "alter":
            entries = dict(record)
            values = {ConfigRecord: SCALARS | LISTS, MetricRecord: INTEGERS | FLOATS | LISTS}
            name = data.draw(st.sampled_from([*entries, "more\nlines"]))
            entries[name] = data.draw(values.get(type(record), ARRAYS))
            records[key] = type(record)(entries)
        elif change == "keep":
            records[key] = record
    if data.draw(st.booleans()):
        records[data.draw(WORDS)] = data.draw(RECORDS)
    return RecordDict(records)


def hostile_reply(data):
    """Return a fault: anything that a node, or Flower on reading its bytes, can come up with."""
    kind = data.draw(st.sampled_from(["anything", "altered", "altered", "error", "unreadable"]))
    drawn = []

    def fault(message, honest_reply):
        if not drawn:
            drawn.append(draw(honest_reply))
        if isinstance(drawn[0], Exception):
            return drawn[0]
        return Message(drawn[0], reply_to=message)

    def draw(honest_reply):
        if kind == "altered":
            return altered(data, honest_reply().content)
        return data.draw({"anything": CONTENTS, "error": ERRORS, "unreadable": UNREADABLE}[kind])

    return fault


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_others_results_are_as_if_it_had_not_answered(kind, flower_log, data):
    flower_log.texts.clear()
    ours = run_with(kind, hostile_reply(data))
    assert all(text.isprintable() for text in flower_log.texts), flower_log.texts
    is_refused = any(map(REFUSAL.search, flower_log.texts))
    expected = run_without(kind) if is_refused else honest_run()
    assert outcome(ours) == outcome(expected)
    if kind == "evaluate" and is_refused:
        assert client_means(ours) == client_means(expected)


TORCH_MAX = torch.finfo(torch.float32).max
REJECTED = {
    "infinite loss": with_entries(loss=float("inf")),
    "huge loss": with_entries(loss=1.7e308),
    "negative backprops": with_entries(backprops=-1),
    "huge backprops": with_entries(backprops=2**63 - 1),
    "negative error": with_entries(transport_error=-1.0),
    "huge round": with_entries(round=2**62),
    "huge update": with_vectors(lambda up: {"delta": torch.full_like(up["delta"], TORCH_MAX)}),
    "large update": with_vectors(lambda up: {"delta": torch.full_like(up["delta"], 2e9)}),
}


@pytest.mark.parametrize("name", REJECTED)
def test_numbers_out_of_range_are_rejected_and_counted(name, flower_log):
    flower_log.texts.clear()
    ours = run_with("train", REJECTED[name])
    assert ours.result.rows[0]["rejected"] == [HOSTILE]
    assert outcome(ours) == outcome(run_without("train"))
    assert any("without client 0: its answer is rejected" in text for text in flower_log.texts)
