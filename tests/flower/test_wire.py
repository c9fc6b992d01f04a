"""What travels on Flower: the same numbers on both sides, and nothing else is let in."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from helpers.flower_in_process import network
from hypothesis import given
from hypothesis import strategies as st

from fedwmsam.engine.client_state import RowLayout
from fedwmsam.engine.rounds import Job, make_jobs, sample_cohort
from fedwmsam.errors import InputError
from fedwmsam.flower import wire
from fedwmsam.flower.strategy import FlowerStrategy
from fedwmsam.flower.wire import TrainConfig, WireError
from fedwmsam.methods import METHODS, make_method
from fedwmsam.models import model_factory
from fedwmsam.training.local import LocalResult

BUNDLE = {
    "w": torch.randn(1000),
    "alpha": torch.tensor(0.25),
    "count": torch.tensor(3),
    "exact": torch.randn(7).double(),
    "brain": torch.randn(5).bfloat16(),
    "nothing": torch.empty(0),
}


def test_numbers_arrive_as_they_were():
    arrived = wire.unpack(wire.pack(BUNDLE)[0], RowLayout.of(BUNDLE))
    assert arrived.keys() == BUNDLE.keys()
    assert all(
        torch.equal(arrived[name], value) and arrived[name].dtype == value.dtype
        for name, value in BUNDLE.items()
    )


def test_half_precision_says_how_wrong_it_is():
    small = {"delta": torch.randn(10_000) * 1e-7}  # plain float16 would make most of them zero
    record, error = wire.pack(small, "float16")
    arrived = wire.unpack(record, RowLayout.of(small))["delta"]
    true = float((arrived - small["delta"]).norm() / small["delta"].norm())
    assert error == pytest.approx(true, rel=1e-3) and 1e-5 < true < 2**-11
    assert len(record["delta"].data) == 2 * 10_000 + 4
    assert wire.pack({"zero": torch.zeros(5)}, "float16")[1] == 0
    spoilt = wire.unpack(wire.pack({"v": torch.tensor([1.0, torch.nan, 2.0])}, "float16")[0])["v"]
    assert not torch.isfinite(spoilt).all()


def array(dtype="float32", shape=(4,), stype=wire.RAW, data=bytes(16)):
    return ArrayRecord({"delta": Array(dtype, shape, stype, data)})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (array(shape=(5,), data=bytes(20)), "instead of float32"),
        (array(data=bytes(15)), "15 bytes"),
        (array(data=bytes(17)), "17 bytes"),
        (array(dtype="float64", data=bytes(32)), "instead of float32"),
        (array(dtype="load"), "unknown way"),
        (array(shape=(2, 2)), "instead of float32"),
        (ArrayRecord({"delta": Array(np.zeros(4, dtype=np.float32))}), "unknown way"),
        (array(stype=wire.HALF, data=bytes(8)), "8 bytes"),
        (ArrayRecord({"other": array()["delta"]}), "other instead of delta"),
        (
            ArrayRecord({"delta": array()["delta"], "more": array()["delta"]}),
            "delta, more instead of delta",
        ),
        (ArrayRecord(), "nothing instead of delta"),
        (None, "missing"),
    ],
)
def test_anything_else_is_refused(record, reason):
    with pytest.raises(WireError, match=reason):
        wire.unpack(record, RowLayout.of({"delta": torch.zeros(4)}))


def test_a_claimed_size_takes_no_memory():
    with pytest.raises(WireError, match="16 bytes"):
        wire.unpack(array(shape=(10**15,)))
    with pytest.raises(WireError, match="unknown way"):
        wire.unpack(array(shape=(-4,)))


@pytest.mark.parametrize("name", METHODS)
def test_serialized_messages_are_as_large_as_the_methods_declare(name):
    """All bytes of Flower's own serialization, for the MLP of 199,210 parameters."""
    strategy = FlowerStrategy(
        make_method(name), model_factory("mlp", (1, 28, 28), 10), clients=2, participation=1.0
    )
    run, cost = strategy.run, make_method(name).cost
    size = run.federation.task.size
    assert size == 199_210
    server = {
        key: torch.randn_like(value) for key, value in run.state.server.items()
    }  # zeros would be sent once
    _, info = sample_cohort(run.federation, 0)
    memory = {
        key: torch.randn_like(value)
        for key, value in run.federation.method.memory_init(server["w"]).items()
    }
    job = Job(0, run.federation.method.downlink(server, memory, info), {}, info)
    down = Message(wire.pack_job(job, TrainConfig.of(run.federation, "float32"))[0], 1, "train")
    result = LocalResult(random(strategy.answer), {}, loss=1.5, backprops=300)
    up = Message(wire.pack_result(job, result, "float32"), reply_to=down)
    assert serialized(down) == pytest.approx(4 * (cost.down * size + cost.down_scalars), rel=0.05)
    assert serialized(up) == pytest.approx(4 * cost.up * size, rel=0.05)


def random(layout):
    return {name: torch.randn(shape) for name, (_, shape) in layout.parts.items()}


def serialized(message):
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


def test_terms_reach_the_client_exactly():
    strategy = FlowerStrategy(
        make_method("fedwmsam", rho=0.1 + 0.2), network, clients=4, clip_norm=None, lr=1 / 3
    )
    federation, state = strategy.run.federation, strategy.run.state
    cohort, info = sample_cohort(federation, 0)
    job = next(make_jobs(federation, state, cohort, info))
    content, _ = wire.pack_job(job, strategy.terms)
    assert TrainConfig.read(wire.config_record_of(content)) == strategy.terms
    arrived = wire.unpack_job(content, federation.task)
    assert arrived.info == job.info and arrived.client == job.client
    assert all(torch.equal(arrived.down[name], value) for name, value in job.down.items())


# Anything may arrive

WORDS = st.text(max_size=8) | st.sampled_from(
    ["float32", "float16", "load", "int64", "Tensor", "", "[" * 5000, "{}"]
)
SIZES = st.integers(-3, 5) | st.sampled_from([2**31, 10**15, 2**63])
ARRAYS = st.builds(
    Array,
    WORDS,
    st.lists(SIZES, max_size=3).map(tuple),
    st.sampled_from([wire.RAW, wire.HALF, "numpy.ndarray", "x"]),
    st.binary(max_size=40),
)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans()
VALUES = NUMBERS | WORDS | st.binary(max_size=8) | st.lists(st.integers(-3, 3), max_size=3)


@given(
    record=st.dictionaries(st.sampled_from(["delta", "w", "c"]), ARRAYS, max_size=3),
    strict=st.booleans(),
)
def test_any_arrays_are_tensors_or_refused(record, strict):
    expected = RowLayout.of({"delta": torch.zeros(2)}) if strict else None
    try:
        found = wire.unpack(ArrayRecord(record), expected)
    except WireError:
        return
    assert all(isinstance(value, torch.Tensor) for value in found.values())
    assert expected is None or RowLayout.of(found) == expected


@pytest.fixture(scope="module")
def exchange():
    """An order, the client's answer to it and what both were made from."""
    strategy = FlowerStrategy(make_method("fedwmsam"), network, clients=4)
    federation = strategy.run.federation
    job = next(make_jobs(federation, strategy.run.state, *sample_cohort(federation, 0)))
    result = LocalResult(
        {k: torch.ones(v[1], dtype=v[0]) for k, v in strategy.answer.parts.items()}, {}, 0.5, 3
    )
    return (
        strategy,
        job,
        wire.pack_job(job, strategy.terms)[0],
        wire.pack_result(job, result, "float32"),
    )


@pytest.mark.parametrize(
    "options", ["[1]", "3", "null", '{"name": "fedavg"}', '{"rho": []}', "[" * 5000, "{"]
)
def test_options_that_are_none_are_refused(exchange, options):
    note = ConfigRecord(dict(exchange[2][wire.CONFIG_KEY]) | {"options": options})
    with pytest.raises(InputError):
        TrainConfig.read(note)


def altered(content, data):
    """The message with some notes changed, dropped or added, and perhaps other arrays."""
    note = dict(content[wire.CONFIG_KEY])
    for key in data.draw(st.lists(st.sampled_from([*note, "more"]), max_size=3)):
        if data.draw(st.booleans()):
            note.pop(key, None)
        else:
            note[key] = data.draw(VALUES)
    records = {
        wire.CONFIG_KEY: ConfigRecord(note),
        wire.VECTORS: content[wire.VECTORS],
        wire.BUFFERS: content[wire.BUFFERS],
    }
    for name in data.draw(
        st.lists(st.sampled_from([wire.VECTORS, wire.BUFFERS, wire.CONFIG_KEY]), max_size=1)
    ):
        records[name] = ArrayRecord({data.draw(st.sampled_from(["w", "delta"])): data.draw(ARRAYS)})
    return RecordDict(records)


@given(data=st.data())
def test_any_answer_is_taken_as_it_should_be_or_refused(exchange, data):
    strategy, job, _, answer = exchange
    content = altered(answer, data)
    try:
        result, _ = wire.unpack_result(content, job, strategy.answer, RowLayout.of(job.buffers))
    except InputError as refusal:
        assert str(refusal)
        return
    assert RowLayout.of(result.up) == strategy.answer and isinstance(result.backprops, int)


@given(data=st.data())
def test_any_order_is_understood_or_refused(exchange, data):
    strategy, job, order, _ = exchange
    content = altered(order, data)
    try:
        TrainConfig.read(wire.config_record_of(content))
        arrived = wire.unpack_job(content, strategy.run.federation.task)
    except InputError as refusal:
        assert str(refusal)
        return
    assert arrived.down["w"].shape == job.down["w"].shape
