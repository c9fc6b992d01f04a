"""Messages on Flower arrive as they were sent, and anything else is refused."""

from dataclasses import fields
from typing import get_type_hints

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
from fedwmsam.training.local import LocalResult, LocalRules

BUNDLE = {
    "w": torch.randn(1000),
    "alpha": torch.tensor(0.25),
    "count": torch.tensor(3),
    "exact": torch.randn(7).double(),
    "brain": torch.randn(5).bfloat16(),
    "nothing": torch.empty(0),
}


def test_numbers_arrive_as_they_were():
    arrived = wire.unpack(wire.pack(BUNDLE)[0], RowLayout.from_row(BUNDLE))
    assert arrived.keys() == BUNDLE.keys()
    assert all(
        torch.equal(arrived[name], value) and arrived[name].dtype == value.dtype
        for name, value in BUNDLE.items()
    )


def test_half_precision_says_how_wrong_it_is():
    small = {"delta": torch.randn(10_000) * 1e-7}  # plain float16 would make most of them zero
    record, error = wire.pack(small, "float16")
    arrived = wire.unpack(record, RowLayout.from_row(small))["delta"]
    true = float((arrived - small["delta"]).norm() / small["delta"].norm())
    assert error == pytest.approx(true, rel=1e-3)
    assert 1e-5 < true < 2**-11
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
        (array("int64", (), wire.HALF, bytes(6)), "unknown way"),
        (array("float32", (), wire.HALF, bytes(6)), "unknown way"),
        (array("float64", (4,), wire.HALF, bytes(12)), "unknown way"),
        (array(dtype="complex64", shape=(2,)), "unknown way"),
        (array(dtype="nn"), "unknown way"),
        (array(dtype="__class__"), "unknown way"),
        (array(shape=(10**5000,)), "impossible shape a number of thousands of digits"),
        (array(shape=(2**40, 2**40), data=b""), "impossible shape"),
        (array(shape=(True,) * 4), "impossible shape"),
        (array(shape=(1,) * 17), "impossible shape"),
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
        wire.unpack(record, RowLayout.from_row({"delta": torch.zeros(4)}))


def test_a_claimed_size_takes_no_memory():
    with pytest.raises(WireError, match="16 bytes"):
        wire.unpack(array(shape=(10**12,)))
    for shape in ((10**15,), (-4,)):
        with pytest.raises(WireError, match="impossible shape"):
            wire.unpack(array(shape=shape))


def test_a_reason_is_one_line_whatever_it_quotes():
    record = ArrayRecord({"a\nWARNING: forged \x1b[31m": array()["delta"]})
    with pytest.raises(WireError) as refusal:
        wire.unpack(record, RowLayout.from_row({"delta": torch.zeros(4)}))
    assert "a\\nWARNING" in str(refusal.value) and str(refusal.value).isprintable()
    assert len(str(WireError("x" * 10**6))) == 300


@pytest.mark.parametrize("name", METHODS)
def test_serialized_messages_are_as_large_as_the_methods_declare(name):
    """Compare all bytes of Flower's serialization, for the MLP of 199,210 parameters."""
    method = make_method(name)
    model = model_factory("mlp", (1, 28, 28), 10)
    strategy = FlowerStrategy(method, model, clients=2, participation=1.0)
    federation = strategy.run.federation
    size = federation.task.parameter_count
    assert size == 199_210
    server = random_like(strategy.run.state.server)
    memory = random_like(method.memory_init(server["w"]))
    _, info = sample_cohort(federation, 0)
    job = Job(0, method.downlink(server, memory, info), {}, info)
    content, _ = wire.pack_job(job, TrainConfig.of(federation, "float32"))
    down = Message(content, 1, "train")
    result = LocalResult(random_vectors(strategy.reply_layout), {}, loss=1.5, backprops=300)
    up = Message(wire.pack_result(job, result, "float32"), reply_to=down)
    declared_down = 4 * (method.cost.down * size + method.cost.down_scalars)
    assert serialized_size(down) == pytest.approx(declared_down, rel=0.05)
    assert serialized_size(up) == pytest.approx(4 * method.cost.up * size, rel=0.05)


def random_like(vectors):
    """Return random vectors of these shapes: of two vectors of zeros Flower would send one."""
    return {name: torch.randn_like(value) for name, value in vectors.items()}


def random_vectors(layout):
    return {name: torch.randn(shape) for name, (_, shape) in layout.parts.items()}


def serialized_size(message):
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


OTHER_VALUES = {float: 0.625, int: 7, str: "another"}
"""Types of fields → a value that is no default."""


def rules_without_defaults():
    """Return rules with every field, whichever there are, set to another value than its default."""
    types = get_type_hints(LocalRules)
    values = {
        field.name: OTHER_VALUES[wire.without_none(types[field.name])]
        for field in fields(LocalRules)
    }
    return LocalRules(**values)


def train_config(local_rules):
    return TrainConfig(
        method=make_method("fedavg"),
        local_rules=local_rules,
        seed=1,
        local_epochs=2,
        local_steps=None,
        batch_size=3,
        last_batch="merge",
        task="fingerprint",
        transport="float32",
    )


def test_every_rule_of_local_training_reaches_the_client():
    rules = rules_without_defaults()
    for field in fields(LocalRules):
        assert getattr(rules, field.name) != field.default
    sent = train_config(rules)
    assert TrainConfig.from_record(ConfigRecord(sent.to_record())) == sent


def test_a_rule_that_is_none_travels_as_a_missing_entry():
    sent = train_config(LocalRules(clip_norm=None))
    record = ConfigRecord(sent.to_record())
    assert "clip_norm" not in record
    assert TrainConfig.from_record(record) == sent


@pytest.mark.parametrize(
    ("entry", "value"),
    [("batch_size", 0), ("local_epochs", -1), ("local_epochs", 2**62), ("transport", "int8")],
)
def test_a_server_s_impossible_settings_are_refused_in_one_sentence(entry, value):
    record = ConfigRecord(train_config(LocalRules()).to_record() | {entry: value})
    with pytest.raises(WireError, match=f"its '{entry}' is {value!r}"):
        TrainConfig.from_record(record)


@pytest.mark.parametrize("entry", ["weight_decay", "weight_decay_mode"])
def test_a_missing_rule_of_local_training_is_refused(entry):
    record = ConfigRecord(train_config(LocalRules()).to_record())
    del record[entry]
    with pytest.raises(WireError, match=f"its '{entry}' is None"):
        TrainConfig.from_record(record)


def test_the_entries_of_a_message_have_these_names_in_this_order():
    strategy = FlowerStrategy(make_method("fedavg"), network, clients=4)
    federation = strategy.run.federation
    job = next(make_jobs(federation, strategy.run.state, *sample_cohort(federation, 0)))
    content, _ = wire.pack_job(job, strategy.train_config)
    rules = [f.name for f in fields(LocalRules) if f.default is not None]
    config = ["version", "method", "options", "seed", "local_epochs", "local_steps", "batch_size"]
    config += ["last_batch", "task"]
    info = ["transport", "round", "lr", "clients", "cohort", "share", "steps", "samples", "client"]
    assert list(wire.config_record_of(content)) == rules + config + info


def test_the_train_config_reaches_the_client_exactly():
    strategy = FlowerStrategy(
        make_method("fedwmsam", rho=0.1 + 0.2), network, clients=4, clip_norm=None, lr=1 / 3
    )
    federation = strategy.run.federation
    cohort, info = sample_cohort(federation, 0)
    job = next(make_jobs(federation, strategy.run.state, cohort, info))
    content, _ = wire.pack_job(job, strategy.train_config)
    assert TrainConfig.from_record(wire.config_record_of(content)) == strategy.train_config
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
    expected = RowLayout.from_row({"delta": torch.zeros(2)}) if strict else None
    try:
        vectors = wire.unpack(ArrayRecord(record), expected)
    except WireError:
        return
    assert all(isinstance(value, torch.Tensor) for value in vectors.values())
    assert expected is None or RowLayout.from_row(vectors) == expected


@pytest.fixture(scope="module")
def exchange():
    """Return a strategy and a job, and the contents of its train message and of the reply."""
    strategy = FlowerStrategy(make_method("fedwmsam"), network, clients=4)
    federation = strategy.run.federation
    job = next(make_jobs(federation, strategy.run.state, *sample_cohort(federation, 0)))
    parts = strategy.reply_layout.parts.items()
    up = {name: torch.ones(shape, dtype=dtype) for name, (dtype, shape) in parts}
    content, _ = wire.pack_job(job, strategy.train_config)
    reply = wire.pack_result(job, LocalResult(up, {}, loss=0.5, backprops=3), "float32")
    return strategy, job, content, reply


@pytest.mark.parametrize(
    "options", ["[1]", "3", "null", '{"name": "fedavg"}', '{"rho": []}', "[" * 5000, "{"]
)
def test_options_that_are_none_are_refused(exchange, options):
    _, _, content, _ = exchange
    record = ConfigRecord(dict(content[wire.CONFIG_KEY]) | {"options": options})
    with pytest.raises(InputError):
        TrainConfig.from_record(record)


def alter(content, data):
    """Return the content with entries changed, dropped or added, and perhaps other arrays."""
    entries = dict(content[wire.CONFIG_KEY])
    for key in data.draw(st.lists(st.sampled_from([*entries, "more"]), max_size=3)):
        if data.draw(st.booleans()):
            entries.pop(key, None)
        else:
            entries[key] = data.draw(VALUES)
    records = {
        wire.CONFIG_KEY: ConfigRecord(entries),
        wire.VECTORS: content[wire.VECTORS],
        wire.BUFFERS: content[wire.BUFFERS],
    }
    for name in data.draw(st.lists(st.sampled_from(list(records)), max_size=1)):
        records[name] = ArrayRecord({data.draw(st.sampled_from(["w", "delta"])): data.draw(ARRAYS)})
    return RecordDict(records)


@given(data=st.data())
def test_any_train_message_is_understood_or_refused(exchange, data):
    strategy, job, content, _ = exchange
    altered = alter(content, data)
    try:
        TrainConfig.from_record(wire.config_record_of(altered))
        arrived = wire.unpack_job(altered, strategy.run.federation.task)
    except InputError as refusal:
        assert str(refusal)
        return
    assert arrived.down["w"].shape == job.down["w"].shape
