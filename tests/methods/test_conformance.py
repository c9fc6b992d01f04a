"""What every registered method must keep; a new method is tested by being registered."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers.loose_modules import module_of
from helpers.small_federation import FULL, make, run

from fedwmsam.engine import checkpoint, rounds
from fedwmsam.engine.client_state import ClientMemory, Store
from fedwmsam.engine.rounds import Job, State, first_state, run_round, train_client
from fedwmsam.engine.schedule import KeyedSchedule
from fedwmsam.experiment.verify import federation_of
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


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {k: copied(v) for k, v in value.items()} if isinstance(value, dict) else value


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple) and not hasattr(a, "_fields"):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or callable(a)


class Watched:
    """A method whose every call is made twice, with its arguments compared before and after."""

    def __init__(self, method):
        self.method, self.called = method, set()

    def __getattr__(self, name):
        real = getattr(self.method, name)
        if name not in FUNCTIONS:
            return real

        def call(*arguments):
            before = [copied(a) for a in arguments]
            first, second = real(*arguments), real(*arguments)
            assert all(map(same, arguments, before)), f"{name} changed an argument"
            assert same(first, second), f"{name} gave two results for the same input"
            self.called.add(name)
            return first

        return call


def example_method() -> type[Method]:
    """The method of the guide "Add your own method", which must keep the contract like any other."""
    return module_of(Path(__file__).parents[2] / "examples" / "fading_prox.py").FadingProx


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
    watched, before = Watched(method), dict(vars(method))
    states, _ = run(make(watched), 3)
    assert watched.called >= set(FUNCTIONS) - {"begin", "pull"}
    assert torch.equal(states[-1].server["w"], run(make(method), 3)[0][-1].server["w"])
    assert vars(method) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes_are_stable(method, dtype):
    federation = make(method)
    w = federation.task.initial_weights.to(dtype)
    server, memory = method.server_init(w), method.memory_init(w)
    info = rounds.Info(round=0, lr=0.1, clients=5, cohort=2, share=0.4, steps=3, samples=9)
    down = method.downlink(server, memory, info)
    scratch = method.begin(down, lambda at: at * 0.1, info)
    at = down["w"]
    for _ in range(3):
        v, after = method.direction(at, lambda at: at * 0.1 + 0.01, down, scratch)
        assert v.shape == w.shape and v.dtype == dtype
        assert {k: t.shape for k, t in after.items()} == {k: t.shape for k, t in scratch.items()}
        at, scratch = at - 0.1 * v, after
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
    """What travels is all there is: send every downlink and uplink through bytes and nothing changes."""

    def through_bytes(vectors):
        own = {k: v.clone() for k, v in vectors.items()}
        return safetensors.torch.load(safetensors.torch.save(own))

    def sent(federation, job):
        result = train_client(
            federation, Job(job.client, through_bytes(job.down), job.buffers, job.info)
        )
        return replace(result, up=through_bytes(result.up))

    expected = run(make(method), 4)[0][-1]
    monkeypatch.setattr(rounds, "train_client", sent)
    states, _ = run(make(method), 4)
    assert same(states[-1].server, expected.server)


def test_the_order_of_clients_changes_only_rounding(method):
    class Turned(KeyedSchedule):
        def cohort(self, round):
            return super().cohort(round)[::-1]

    forward = make(method)
    backward = replace(make(method), schedule=Turned(**vars(forward.schedule)))
    a, b = run(forward)[0][-1].server, run(backward)[0][-1].server
    assert all(torch.allclose(a[k], b[k], atol=1e-10) for k in a)


def test_declared_costs_are_the_counted_ones(method):
    if method in VARIANTS:
        return
    federation = make(method)
    states, records = run(federation, 2)
    P, cost, S = federation.task.size, method.cost, records[1]["cohort"]
    assert records[1]["bytes_down"] == 8 * S * (cost.down * P + cost.down_scalars)
    assert records[1]["bytes_up"] == 8 * S * cost.up * P
    passes = steps = 0
    for k in federation.schedule.cohort(1):
        samples = len(federation.clients[k])
        steps += len(federation.schedule.steps(1, k, samples))
        passes += federation.schedule.epoch(samples)
    assert records[1]["backprops"] == cost.backprops * steps + cost.full_gradients * passes
    rows = states[-1].memory.values()
    assert {sum(v.numel() for v in row.values()) for row in rows} == (
        {cost.memory * P} if cost.memory else set()
    )


def test_is_finite_and_learns_on_the_reference_problem(method):
    federation = replace(federation_of(json.loads(REFERENCE.read_text())), method=method)
    states, records = run(federation, 6)
    assert all(torch.isfinite(v).all() for v in states[-1].server.values())
    assert records[-1]["train_loss"] < records[0]["train_loss"]


def test_server_vectors_that_are_means_of_memories_are_declared(method):
    """Robust aggregation would break them, so it asks for `means`."""
    federation = make(method)
    state = run(federation, 5)[0][-1]
    count, w = len(federation.clients), state.server["w"]
    kept = method.memory_init(w)
    means = {name: sum(row[name] for row in state.memory.values()) / count for name in kept}
    found = {
        server_name: name
        for server_name, value in state.server.items()
        for name, mean in means.items()
        if value.shape == mean.shape and torch.allclose(value, mean, atol=1e-12)
    }
    assert found == {
        server_name: name for server_name, name in method.means.items() if name in kept
    }


def from_disk(state, path):
    store = Store(path.with_suffix(".rows"))
    changes = ClientMemory(store, budget=0).changing()
    for client, row in state.memory.items():
        changes.put(client, row)
    index = store.describe(changes.done().save())
    bundles = {"server": state.server, "buffers": state.buffers} | index.bundles
    checkpoint.write_checkpoint(
        path, checkpoint.Checkpoint(bundles, {"round": state.round} | index.notes)
    )
    read, again = checkpoint.read_checkpoint(path), Store(store.path)
    again.check(read)
    memory = ClientMemory(again, budget=0).stored(again.adopt([read])[0])
    return State(state.round, read.bundles["server"], read.bundles["buffers"], memory)


def test_resumes_at_every_round_boundary(method, tmp_path):
    """A run cut at round r and continued from its state on disk equals one never cut."""
    federation = make(method)
    state = first_state(federation)
    for _ in range(4):
        frozen = from_disk(state, tmp_path / "state")
        state, record = run_round(federation, state)
        again, same_record = run_round(make(method), frozen)
        assert same(again.server, state.server) and same(dict(again.memory), dict(state.memory))
        assert record == same_record


def test_unequal_clients_and_partial_batches(method):
    """One client of a single sample, one with a last batch of one; everything stays finite and everybody counts."""
    federation = make(method, FULL, sizes=(1, 9, 25), per_round=3, batch_size=4)
    states, records = run(federation, 4)
    assert all(torch.isfinite(v).all() for v in states[-1].server.values())
    assert [r["cohort"] for r in records] == [3] * 4
    steps = 2 * (1 + 3 + 7)
    if method not in VARIANTS:
        assert records[0][
            "backprops"
        ] == method.cost.backprops * steps + method.cost.full_gradients * (1 + 3 + 7)


def test_a_method_that_lacks_its_main_functions_says_which():
    class Lacking(Method):
        name = "lacking"

    with pytest.raises(AssertionError, match=r"^Lacking defines no direction$"):
        Lacking().direction(torch.ones(1), lambda w: w, {}, {})
    with pytest.raises(AssertionError, match=r"^Lacking defines no aggregate$"):
        Lacking().aggregate({}, {}, rounds.Info(round=0, lr=0.1, clients=1, cohort=1, share=1.0))


def test_options_out_of_range_are_refused(method):
    from dataclasses import fields

    from fedwmsam import InputError

    for f in fields(method):
        with pytest.raises(InputError, match=f.name):
            replace(method, **{f.name: "nonsense"})
        with pytest.raises(InputError, match=f.name):
            replace(method, **{f.name: float("nan")})
