"""The contract that every registered method must keep; a new method is tested by registering it."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers.loose_modules import load_module
from helpers.small_federation import FULL_RULES, make_federation, run_rounds

from fedwmsam import InputError
from fedwmsam.engine import checkpoint, rounds
from fedwmsam.engine.client_state import ClientMemory, Store
from fedwmsam.engine.rounds import Job, State, first_state, run_round, train_client
from fedwmsam.engine.schedule import SeededSchedule
from fedwmsam.experiment.verify import make_reference_federation
from fedwmsam.methods import METHODS, FedGloSS, FedLESAM, FedLESAMS, FedSpeed, FedWMSAM
from fedwmsam.methods.base import Method

REFERENCE = Path(__file__).parents[1] / "data" / "reference_vectors" / "fedavg-1.json"
FUNCTIONS = (
    "server_init",
    "memory_init",
    "downlink",
    "begin",
    "direction",
    "pull",
    "uplink",
    "settle",
    "aggregate",
)


def deep_copy(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {k: deep_copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def is_same(a, b):
    """Return whether two values are equal to the last bit; functions count as equal."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k]) for k in a)
    if isinstance(a, tuple) and not hasattr(a, "_fields"):
        return len(a) == len(b) and all(map(is_same, a, b))
    return a == b or callable(a)


class CheckedMethod:
    """A method whose every call is made twice, with its arguments compared before and after."""

    def __init__(self, method):
        self.method = method
        self.called = set()

    def __getattr__(self, name):
        function = getattr(self.method, name)
        if name not in FUNCTIONS:
            return function

        def call(*arguments):
            before = [deep_copy(argument) for argument in arguments]
            first = function(*arguments)
            second = function(*arguments)
            assert all(map(is_same, arguments, before)), f"{name} changed an argument"
            assert is_same(first, second), f"{name} gave two results for the same input"
            self.called.add(name)
            return first

        return call


def example_method() -> type[Method]:
    """Return the method of the guide "Add your own method", which must keep the contract, too."""
    return load_module(Path(__file__).parents[2] / "examples" / "fading_prox.py").FadingProx


TESTED = {**METHODS, "fading-prox": example_method()}
# Options that change what is kept or sent; costs are declared for the defaults only.
VARIANTS = [
    *(FedWMSAM(perturbation=p) for p in ("literal", "momentum", "none")),
    *(FedWMSAM(similarity=s) for s in ("update", "disagreement", "fixed")),
    *(FedWMSAM(correction=c) for c in ("mean_gradient", "none")),
    FedLESAM(reference="last_round"),
    FedLESAMS(correction_weight=0.1),
    FedSpeed(server_dual="participants"),
    FedGloSS(rho_local=0.05, warmup=3),
]


@pytest.fixture(params=[cls() for cls in TESTED.values()] + VARIANTS, ids=repr)
def method(request) -> Method:
    return request.param


def test_is_registered_under_its_own_name(method):
    assert TESTED[method.name] is type(method)
    assert type(method).__doc__ and method.paper


def test_is_pure(method):
    """No argument is changed, nothing is remembered, the same input gives the same output."""
    checked = CheckedMethod(method)
    before = dict(vars(method))
    states, _ = run_rounds(make_federation(checked), 3)
    assert checked.called >= set(FUNCTIONS) - {"begin", "pull"}
    plain_states, _ = run_rounds(make_federation(method), 3)
    assert torch.equal(states[-1].server["w"], plain_states[-1].server["w"])
    assert vars(method) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes_are_stable(method, dtype):
    federation = make_federation(method)
    w = federation.task.initial_weights.to(dtype)
    server = method.server_init(w)
    memory = method.memory_init(w)
    info = rounds.Info(round=0, lr=0.1, clients=5, cohort=2, share=0.4, steps=3, samples=9)
    down = method.downlink(server, memory, info)
    scratch = method.begin(down, lambda at: at * 0.1, info)
    at = down["w"]
    for _ in range(3):
        v, after = method.direction(at, lambda at: at * 0.1 + 0.01, down, scratch)
        assert v.shape == w.shape and v.dtype == dtype
        assert {k: t.shape for k, t in after.items()} == {k: t.shape for k, t in scratch.items()}
        at = at - 0.1 * v
        scratch = after
    up = method.uplink(at - down["w"], down, scratch, info)
    new_memory, contribution = method.settle(server, memory, up, info)
    new_server = method.aggregate(server, contribution, info)
    for before, after in ((server, new_server), (memory, new_memory)):
        assert {k: (t.shape, t.dtype) for k, t in before.items()} == {
            k: (t.shape, t.dtype) for k, t in after.items()
        }
    for bundle in (down, up, contribution):
        assert all(t.dtype == dtype and t.shape in (w.shape, ()) for t in bundle.values())
    assert "delta" in up and "w" in down and "w" in new_server


def test_the_wire_format_survives_bytes(method, monkeypatch):
    """If every downlink and uplink is sent through bytes, nothing changes."""

    def through_bytes(vectors):
        copies = {k: v.clone() for k, v in vectors.items()}
        return safetensors.torch.load(safetensors.torch.save(copies))

    def train_through_bytes(federation, job):
        received = Job(job.client, through_bytes(job.down), job.buffers, job.info)
        result = train_client(federation, received)
        return replace(result, up=through_bytes(result.up))

    expected = run_rounds(make_federation(method), 4)[0][-1]
    monkeypatch.setattr(rounds, "train_client", train_through_bytes)
    states, _ = run_rounds(make_federation(method), 4)
    assert is_same(states[-1].server, expected.server)


def test_the_order_of_clients_changes_only_rounding(method):
    class ReversedSchedule(SeededSchedule):
        def cohort(self, round):
            return super().cohort(round)[::-1]

    forward = make_federation(method)
    schedule = ReversedSchedule(**vars(forward.schedule))
    backward = replace(make_federation(method), schedule=schedule)
    a = run_rounds(forward)[0][-1].server
    b = run_rounds(backward)[0][-1].server
    assert all(torch.allclose(a[k], b[k], atol=1e-10) for k in a)


def test_declared_costs_are_the_counted_ones(method):
    if method in VARIANTS:
        return
    federation = make_federation(method)
    states, records = run_rounds(federation, 2)
    cost = method.cost
    P = federation.task.parameter_count
    S = records[1]["cohort"]
    assert records[1]["bytes_down"] == 8 * S * (cost.down * P + cost.down_scalars)
    assert records[1]["bytes_up"] == 8 * S * cost.up * P
    passes = 0
    steps = 0
    for k in federation.schedule.cohort(1):
        samples = len(federation.clients[k])
        steps += len(federation.schedule.steps(1, k, samples))
        passes += federation.schedule.steps_per_epoch(samples)
    assert records[1]["backprops"] == cost.backprops * steps + cost.full_gradients * passes
    for row in states[-1].memory.values():
        assert sum(v.numel() for v in row.values()) == cost.memory * P
    assert bool(len(states[-1].memory)) == bool(cost.memory)


def test_is_finite_and_learns_on_the_reference_problem(method):
    reference = make_reference_federation(json.loads(REFERENCE.read_text()))
    federation = replace(reference, method=method)
    states, records = run_rounds(federation, 6)
    assert all(torch.isfinite(v).all() for v in states[-1].server.values())
    assert records[-1]["train_loss"] < records[0]["train_loss"]


def test_server_vectors_that_are_means_of_memories_are_declared(method):
    """Robust aggregation would break them, so it asks for `means`."""
    federation = make_federation(method)
    state = run_rounds(federation, 5)[0][-1]
    names = method.memory_init(state.server["w"])
    means = {}
    for name in names:
        rows = [row[name] for row in state.memory.values()]
        means[name] = sum(rows) / len(federation.clients)
    actual = {}
    for server_name, value in state.server.items():
        for name, mean in means.items():
            if value.shape == mean.shape and torch.allclose(value, mean, atol=1e-12):
                actual[server_name] = name
    declared = {server_name: name for server_name, name in method.means.items() if name in names}
    assert actual == declared


def save_and_load(state, path):
    """Return the state as a checkpoint on disk gives it back."""
    store = Store(path.with_suffix(".rows"))
    changes = ClientMemory(store, budget=0).start_update()
    for client, row in state.memory.items():
        changes.put(client, row)
    index = store.describe(changes.build().save())
    bundles = {"server": state.server, "buffers": state.buffers} | index.bundles
    notes = {"round": state.round} | index.notes
    checkpoint.write_checkpoint(path, checkpoint.Checkpoint(bundles, notes))
    loaded = checkpoint.read_checkpoint(path)
    loaded_store = Store(store.path)
    loaded_store.check(loaded)
    slots = loaded_store.restore_slots([loaded])[0]
    memory = ClientMemory(loaded_store, budget=0).with_slots(slots)
    return State(state.round, loaded.bundles["server"], loaded.bundles["buffers"], memory)


def test_resumes_at_every_round_boundary(method, tmp_path):
    """A run cut at round r and continued from its state on disk equals one never cut."""
    federation = make_federation(method)
    state = first_state(federation)
    for _ in range(4):
        saved = save_and_load(state, tmp_path / "state")
        state, record = run_round(federation, state)
        resumed, resumed_record = run_round(make_federation(method), saved)
        assert is_same(resumed.server, state.server)
        assert is_same(dict(resumed.memory), dict(state.memory))
        assert record == resumed_record


def test_unequal_clients_and_partial_batches(method):
    """One client has a single sample, one a last batch of one; all is finite, everybody counts."""
    federation = make_federation(method, FULL_RULES, sizes=(1, 9, 25), per_round=3, batch_size=4)
    states, records = run_rounds(federation, 4)
    assert all(torch.isfinite(v).all() for v in states[-1].server.values())
    assert [r["cohort"] for r in records] == [3] * 4
    if method not in VARIANTS:
        epoch = 1 + 3 + 7
        backprops = method.cost.backprops * 2 * epoch + method.cost.full_gradients * epoch
        assert records[0]["backprops"] == backprops


def test_a_method_that_lacks_its_main_functions_says_which():
    class Incomplete(Method):
        name = "incomplete"

    info = rounds.Info(round=0, lr=0.1, clients=1, cohort=1, share=1.0)
    with pytest.raises(AssertionError, match=r"^Incomplete defines no direction$"):
        Incomplete().direction(torch.ones(1), lambda w: w, {}, {})
    with pytest.raises(AssertionError, match=r"^Incomplete defines no aggregate$"):
        Incomplete().aggregate({}, {}, info)


def test_options_out_of_range_are_refused(method):
    for f in fields(method):
        with pytest.raises(InputError, match=f.name):
            replace(method, **{f.name: "nonsense"})
        with pytest.raises(InputError, match=f.name):
            replace(method, **{f.name: float("nan")})
