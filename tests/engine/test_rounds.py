"""What a round tells the method, and what its line in the metrics tells the reader."""

import logging
import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers.small_federation import FULL_RULES, make_federation, run_rounds
from torch import nn

from fedwmsam import InputError
from fedwmsam.engine.aggregation import WeightedMean
from fedwmsam.engine.client_state import ClientMemory, Store
from fedwmsam.engine.faults import Faults
from fedwmsam.engine.rounds import (
    ClientFailure,
    Diverged,
    all_finite,
    first_state,
    run_round,
    scalars,
    train_cohort,
)
from fedwmsam.engine.schedule import SeededSchedule
from fedwmsam.methods import SCAFFOLD, FedAvg, FedWMSAM, MimeLite
from fedwmsam.settings.parsers import AggregationRule, Corruption, Stragglers
from fedwmsam.training.task import Task

SIZES = (9, 14, 5, 11, 7)
STEPS = {client: 2 * math.ceil(size / 4) for client, size in enumerate(SIZES)}
LOST = 3


@dataclass(frozen=True)
class Listening(SCAFFOLD):
    """A method that notes what each of its functions is told about the round."""

    name: ClassVar[str] = "listening"
    infos: dict = field(default_factory=dict, compare=False)

    def __post_init__(self):
        pass

    def note(self, function, info):
        self.infos.setdefault(function, []).append(info)

    def downlink(self, server, memory, info):
        self.note("downlink", info)
        return super().downlink(server, memory, info)

    def begin(self, down, full_gradient, info):
        self.note("begin", info)
        return super().begin(down, full_gradient, info)

    def uplink(self, delta, down, scratch, info):
        self.note("uplink", info)
        return super().uplink(delta, down, scratch, info)

    def settle(self, server, memory, up, info):
        self.note("settle", info)
        return super().settle(server, memory, up, info)

    def aggregate(self, server, mean, info):
        self.note("aggregate", info)
        return super().aggregate(server, mean, info)


def make_failing_trainer(*clients, rejected=False):
    """Return a trainer that gets no usable update from these clients."""

    def train(federation, jobs):
        for job, result in train_cohort(federation, jobs):
            yield job, ClientFailure("gone", rejected) if job.client in clients else result

    return train


@pytest.mark.parametrize("averaging", ["uniform", "size"])
def test_every_function_hears_of_its_own_client_and_the_server_of_those_that_counted(averaging):
    federation = replace(
        make_federation(Listening(), per_round=4), averaging=averaging, total_samples=sum(SIZES)
    )
    state = run_rounds(federation, 2)[0][-1]
    cohort = federation.schedule.cohort(2)
    lost = cohort[1]
    counted = [client for client in cohort if client != lost]
    infos = federation.method.infos
    infos.clear()
    run_round(replace(federation, trainer=make_failing_trainer(lost)), state)
    for function, clients in (
        ("downlink", cohort),
        ("begin", cohort),
        ("uplink", cohort),
        ("settle", counted),
    ):
        assert [info.samples for info in infos[function]] == [SIZES[client] for client in clients]
        assert [info.steps for info in infos[function]] == [STEPS[client] for client in clients]
        for info in infos[function]:
            assert (info.round, info.clients, info.cohort, info.share) == (2, 5, 4, 0.8)
            assert info.lr == federation.schedule.lr(2) and info.layout == federation.task.layout
    (closing,) = infos["aggregate"]
    samples = sum(SIZES[client] for client in counted)
    assert (closing.round, closing.clients, closing.cohort, closing.samples) == (2, 5, 3, samples)
    assert closing.steps == sum(STEPS[client] for client in counted)
    assert closing.share == pytest.approx(3 / 5 if averaging == "uniform" else samples / sum(SIZES))
    assert closing.lr == federation.schedule.lr(2) and closing.layout == federation.task.layout


def test_a_line_tells_means_and_spreads_of_what_counted_and_the_cost_of_all():
    federation = make_federation(FedWMSAM(), per_round=5)
    state = run_rounds(federation, 3)[0][-1]
    results = {}
    run_round(federation, state, lambda job, result: results.update({job.client: result}))
    faults = Faults(seed=2, clients=5, corruption=Corruption("nan", 0.2))
    (left_out,) = faults.hostile
    counted = [result for client, result in results.items() if client != left_out]
    _, record = run_round(replace(federation, faults=faults), state)

    norms = [float(result.up["delta"].norm()) for result in counted]
    losses = [result.loss for result in counted]
    assert record["train_loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert record["update_norm"] == pytest.approx(np.mean(norms), rel=1e-12)
    assert record["update_norm_spread"] == pytest.approx(np.std(norms), rel=1e-9)
    assert record["similarity_spread"] > 0 and record["alpha"] == float(state.server["alpha"])
    assert record["cohort"] == 4 and record["rejected"] == record["hostile"] == [left_out]
    size = federation.task.parameter_count
    assert record["bytes_down"] == 5 * 8 * (2 * size + 1) and record["bytes_up"] == 5 * 8 * size
    assert record["backprops"] == sum(STEPS.values())
    assert record["round"] == 4 and record["lr"] == federation.schedule.lr(3)
    assert not {"missing", "dropped", "late"} & record.keys()


def test_clients_after_one_that_dropped_out_are_trained_all_the_same():
    faults = Faults(seed=2, clients=5, dropout=0.4)
    federation = replace(make_federation(FedAvg(), per_round=5), faults=faults)
    _, records = run_rounds(federation, 6)
    for round, record in enumerate(records):
        cohort = federation.schedule.cohort(round)
        dropped = record.get("dropped", [])
        assert record["cohort"] + len(dropped) == 5
        assert dropped == [k for k in cohort if k in dropped]
        assert record["bytes_down"] == 5 * 8 * federation.task.parameter_count
    assert any("dropped" in record for record in records)


def test_the_schedule_is_asked_about_this_round_and_this_client():
    calls = []

    class Noting(SeededSchedule):
        def step_count(self, round, client, samples):
            calls.append((round, client, samples))
            return super().step_count(round, client, samples)

    federation = make_federation(FedAvg())
    federation = replace(federation, schedule=Noting(**vars(federation.schedule)))
    run_rounds(federation, 2)
    expected = []
    for round in range(2):
        cohort = federation.schedule.cohort(round)
        expected += [(round, client, SIZES[client]) for client in cohort]
    assert list(dict.fromkeys(calls)) == expected  # asking twice is no harm


def test_columns_come_in_one_order():
    """Lines must be identical after a checkpoint, too, which does not keep the order of names."""
    state = run_rounds(make_federation(FedWMSAM()), 1)[0][-1]
    turned = replace(state, server=dict(reversed(state.server.items())))
    _, record = run_round(make_federation(FedWMSAM()), state)
    assert list(run_round(make_federation(FedWMSAM()), turned)[1]) == list(record)
    bundle = {"b": torch.tensor(2.0), "w": torch.ones(1), "a": torch.tensor(1.0)}
    assert list(scalars(bundle).items()) == [("a", 1.0), ("b", 2.0)]
    assert list(record)[:4] == ["round", "lr", "alpha", "cohort"]


@pytest.mark.parametrize("rejected", [True, False])
def test_a_client_without_a_usable_update_is_listed_by_the_reason(rejected):
    federation = make_federation(MimeLite(), per_round=5)
    trainer = make_failing_trainer(LOST, 1, rejected=rejected)
    _, record = run_round(replace(federation, trainer=trainer), first_state(federation))
    kind, other = ("rejected", "missing") if rejected else ("missing", "rejected")
    assert sorted(record[kind]) == [1, LOST] and other not in record and record["cohort"] == 3


def test_reaching_no_client_is_no_divergence_and_rejecting_all_updates_is_one():
    federation = make_federation(SCAFFOLD(), per_round=5)
    state = first_state(federation)
    missing = make_failing_trainer(*range(5))
    after, record = run_round(replace(federation, trainer=missing), state)
    assert after.round == 1 and record["cohort"] == 0
    assert record["missing"] == federation.schedule.cohort(0)
    rejecting = replace(federation, trainer=make_failing_trainer(*range(5), rejected=True))
    with pytest.raises(Diverged, match=r"^no client of the cohort returned a finite update$"):
        run_round(rejecting, state)
    faults = Faults(seed=2, clients=5, corruption=Corruption("nan", 0.4))
    with pytest.raises(Diverged):  # two are known to be hostile, the other three are not
        run_round(replace(rejecting, faults=faults), state)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_model_that_is_no_longer_finite_is_a_divergence(value):
    @dataclass(frozen=True)
    class Breaks(FedAvg):
        def aggregate(self, server, mean, info):
            return super().aggregate(server, mean, info) | {"other": torch.tensor([1.0, value])}

    federation = make_federation(Breaks())
    with pytest.raises(Diverged, match=r"^the global model is no longer finite$"):
        run_round(federation, first_state(federation))


def test_the_log_names_the_round_and_the_client(caplog):
    federation = replace(
        make_federation(FedAvg(), per_round=5),
        faults=Faults(seed=2, clients=5, corruption=Corruption("nan", 0.2)),
    )
    (client,) = federation.faults.hostile
    with caplog.at_level(logging.WARNING, logger="fedwmsam"):
        run_rounds(federation, 2)
    lines = [f"Round {round}: left out client {client}, update not finite." for round in (1, 2)]
    assert [line.getMessage() for line in caplog.records] == lines


def test_a_bundle_whose_sum_overflows_is_finite():
    assert all_finite({"a": torch.full((4,), 3e38), "b": torch.zeros(2)})
    assert not all_finite({"a": torch.zeros(2), "b": torch.tensor([1.0, math.inf])})
    assert not all_finite({"a": torch.tensor([math.inf, -math.inf])})


def test_a_weighted_mean_leaves_its_contributions_alone():
    contributions = [{"v": torch.tensor([1.0, 2.0])}, {"v": torch.tensor([5.0, 4.0])}]
    for weight in (1, 3):
        mean = WeightedMean()
        mean.add(contributions[0], 1)
        mean.add(contributions[1], weight)
        expected = np.average([[1.0, 2.0], [5.0, 4.0]], axis=0, weights=[1, weight])
        np.testing.assert_allclose(mean.value()["v"].numpy(), expected)
    assert contributions[0]["v"].tolist() == [1.0, 2.0]
    assert contributions[1]["v"].tolist() == [5.0, 4.0]


def test_late_clients_are_listed_and_paid_for():
    """Clients that finish a part count with it; those that finish no step cost their downlink."""
    faults = Faults(seed=2, clients=5, stragglers=Stragglers(1.0, 3.0, partial=True))
    federation = replace(make_federation(SCAFFOLD(), FULL_RULES, per_round=5), faults=faults)
    _, record = run_round(federation, first_state(federation))
    cohort = federation.schedule.cohort(0)
    assert record["late"] == cohort and record["cohort"] == 5
    assert record["backprops"] == sum(steps // 3 for steps in STEPS.values())
    for lost in (Stragglers(1.0, 30.0, partial=True), Stragglers(1.0, 3.0, partial=False)):
        faults = replace(federation.faults, stragglers=lost)
        _, record = run_round(replace(federation, faults=faults), first_state(federation))
        assert record["late"] == cohort and record["cohort"] == record["bytes_up"] == 0
        assert record["bytes_down"] == 5 * 8 * 2 * federation.task.parameter_count


def test_a_norm_bound_without_a_number_is_the_median_of_the_round():
    federation = make_federation(FedAvg(), per_round=5)
    norms = []

    def note_norm(job, result):
        norms.append(float(result.up["delta"].norm()))

    run_round(federation, first_state(federation), note_norm)
    bounded = replace(federation, aggregation_rule=AggregationRule("norm_bound"))
    _, record = run_round(bounded, first_state(federation))
    expected = np.mean(np.minimum(norms, np.median(norms)))
    assert record["update_norm"] == pytest.approx(expected, rel=1e-12)


def test_rows_go_where_the_first_memory_says(tmp_path):
    federation = make_federation(SCAFFOLD(), per_round=5)
    store = Store(tmp_path / "rows")
    state, _ = run_round(federation, first_state(federation, ClientMemory(store, budget=0)))
    plain, _ = run_round(federation, first_state(federation))
    assert (tmp_path / "rows").stat().st_size >= 5 * 8 * federation.task.parameter_count
    for client in range(5):
        assert torch.equal(state.memory[client]["c_k"], plain.memory[client]["c_k"])


def with_batchnorm(federation):
    """Return the federation with a network that has BatchNorm."""

    def network():
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()

    return replace(federation, task=Task(network, federation.task.objective))


@pytest.mark.parametrize(
    "rule", [AggregationRule(), AggregationRule("median")], ids=lambda rule: rule.kind
)
def test_buffers_travel_and_are_combined_by_the_rule(rule):
    sizes = (7, 14, 7, 21, 14)
    federation = make_federation(FedAvg(), per_round=5, sizes=sizes, batch_size=7)
    federation = with_batchnorm(federation)
    client_buffers = []

    def note_buffers(job, result):
        client_buffers.append(result.buffers)

    state = run_rounds(federation, 1)[0][-1]
    after, record = run_round(replace(federation, aggregation_rule=rule), state, note_buffers)
    assert client_buffers[0].keys() == after.buffers.keys() and len(client_buffers) == 5
    for name, value in after.buffers.items():
        values = torch.stack([buffers[name] for buffers in client_buffers])
        if not value.is_floating_point():
            expected = values.amax(dim=0)
        elif rule.needs_all_uploads:
            expected = values.median(dim=0).values
        else:
            expected = values.double().mean(dim=0)
        assert value.dtype == values.dtype and torch.allclose(value, expected)
    statistics = 8 * (4 + 4 + 1)  # mean, variance, count
    size = 8 * federation.task.parameter_count + statistics
    assert record["bytes_up"] == record["bytes_down"] == 5 * size


def test_what_a_model_cannot_train_on_is_explained_and_other_errors_name_the_client():
    federation = with_batchnorm(make_federation(FedAvg(), per_round=1, sizes=(9,)))
    with pytest.raises(InputError, match=r"^Client 0 has a batch of one sample, .* GroupNorm\.$"):
        run_round(federation, first_state(federation))

    @dataclass(frozen=True)
    class Fails(FedAvg):
        def direction(self, w, grad, down, scratch):
            raise ValueError("my own mistake")

    federation = make_federation(Fails())
    with pytest.raises(
        ValueError, match=r"^my own mistake\n.* client \d was trained in round 1\.$"
    ):
        run_round(federation, first_state(federation))


def test_more_steps_than_memory_holds_are_refused() -> None:
    schedule = SeededSchedule(0, 4, 2, "fixed", 10**6, 5, 0.1, 1.0)
    with pytest.raises(InputError, match="2,000,000 steps in a round, expected at most 1,000,000"):
        schedule.steps(0, 1, 10)
