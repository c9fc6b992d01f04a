"""What a round tells the method, and what its line in the metrics tells the reader."""

import logging
import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers.small_federation import FULL, make, run
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
from fedwmsam.engine.schedule import KeyedSchedule
from fedwmsam.methods import SCAFFOLD, FedAvg, FedWMSAM, MimeLite
from fedwmsam.settings.parsers import AggregationRule, Corruption, Stragglers
from fedwmsam.training.task import Task

SIZES = (9, 14, 5, 11, 7)
STEPS = {client: 2 * math.ceil(size / 4) for client, size in enumerate(SIZES)}
LOST = 3


@dataclass(frozen=True)
class Listening(SCAFFOLD):
    """Notes what it is told about the round, by function."""

    name: ClassVar[str] = "listening"
    heard: dict = field(default_factory=dict, compare=False)

    def __post_init__(self):
        pass

    def note(self, function, info):
        self.heard.setdefault(function, []).append(info)

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


def losing(*clients, rejected=False):
    """A trainer whose connection to some clients breaks."""

    def trainer(federation, jobs):
        for job, result in train_cohort(federation, jobs):
            yield job, ClientFailure("gone", rejected) if job.client in clients else result

    return trainer


@pytest.mark.parametrize("averaging", ["uniform", "size"])
def test_every_function_hears_of_its_own_client_and_the_server_of_those_that_counted(averaging):
    federation = replace(
        make(Listening(), per_round=4), averaging=averaging, total_samples=sum(SIZES)
    )
    state = run(federation, 2)[0][-1]
    cohort = federation.schedule.cohort(2)
    lost, counted = cohort[1], [client for client in cohort if client != cohort[1]]
    federation.method.heard.clear()
    run_round(replace(federation, trainer=losing(lost)), state)
    heard = federation.method.heard
    for function, clients in (
        ("downlink", cohort),
        ("begin", cohort),
        ("uplink", cohort),
        ("settle", counted),
    ):
        assert [info.samples for info in heard[function]] == [SIZES[client] for client in clients]
        assert [info.steps for info in heard[function]] == [STEPS[client] for client in clients]
        for info in heard[function]:
            assert (info.round, info.clients, info.cohort, info.share) == (2, 5, 4, 0.8)
            assert info.lr == federation.schedule.lr(2) and info.layout == federation.task.layout
    (closing,) = heard["aggregate"]
    samples = sum(SIZES[client] for client in counted)
    assert (closing.round, closing.clients, closing.cohort, closing.samples) == (2, 5, 3, samples)
    assert closing.steps == sum(STEPS[client] for client in counted)
    assert closing.share == pytest.approx(3 / 5 if averaging == "uniform" else samples / sum(SIZES))
    assert closing.lr == federation.schedule.lr(2) and closing.layout == federation.task.layout


def test_a_line_tells_means_and_spreads_of_what_counted_and_the_cost_of_all():
    federation = make(FedWMSAM(), per_round=5)
    state = run(federation, 3)[0][-1]
    found = {}
    run_round(federation, state, lambda job, result: found.update({job.client: result}))
    hostile = Faults(seed=2, clients=5, corruption=Corruption("nan", 0.2))
    (left_out,) = hostile.hostile
    counted = [result for client, result in found.items() if client != left_out]
    _, record = run_round(replace(federation, faults=hostile), state)

    norms = [float(result.up["delta"].norm()) for result in counted]
    assert record["train_loss"] == pytest.approx(
        np.mean([result.loss for result in counted]), rel=1e-12
    )
    assert record["update_norm"] == pytest.approx(np.mean(norms), rel=1e-12)
    assert record["update_norm_spread"] == pytest.approx(np.std(norms), rel=1e-9)
    assert record["similarity_spread"] > 0 and record["alpha"] == float(state.server["alpha"])
    assert record["cohort"] == 4 and record["rejected"] == record["hostile"] == [left_out]
    size = federation.task.size
    assert record["bytes_down"] == 5 * 8 * (2 * size + 1) and record["bytes_up"] == 5 * 8 * size
    assert record["backprops"] == sum(STEPS.values())
    assert record["round"] == 4 and record["lr"] == federation.schedule.lr(3)
    assert not {"missing", "dropped", "late"} & record.keys()


def test_whoever_comes_after_one_that_dropped_out_is_asked_all_the_same():
    federation = replace(make(FedAvg(), per_round=5), faults=Faults(seed=2, clients=5, dropout=0.4))
    _, records = run(federation, 6)
    for round, record in enumerate(records):
        cohort, dropped = federation.schedule.cohort(round), record.get("dropped", [])
        assert record["cohort"] + len(dropped) == 5 and dropped == [
            k for k in cohort if k in dropped
        ]
        assert record["bytes_down"] == 5 * 8 * federation.task.size
    assert any("dropped" in record for record in records)


def test_the_schedule_is_asked_about_this_round_and_this_client():
    asked = []

    class Noting(KeyedSchedule):
        def count(self, round, client, samples):
            asked.append((round, client, samples))
            return super().count(round, client, samples)

    federation = make(FedAvg())
    federation = replace(federation, schedule=Noting(**vars(federation.schedule)))
    run(federation, 2)
    assert asked == [(r, k, SIZES[k]) for r in range(2) for k in federation.schedule.cohort(r)]


def test_columns_come_in_one_order():
    """Also after a checkpoint, which does not keep the order of names: lines must be the same, byte for byte."""
    state = run(make(FedWMSAM()), 1)[0][-1]
    turned = replace(state, server=dict(reversed(state.server.items())))
    _, record = run_round(make(FedWMSAM()), state)
    assert list(run_round(make(FedWMSAM()), turned)[1]) == list(record)
    assert list(
        scalars({"b": torch.tensor(2.0), "w": torch.ones(1), "a": torch.tensor(1.0)}).items()
    ) == [
        ("a", 1.0),
        ("b", 2.0),
    ]
    assert list(record)[:4] == ["round", "lr", "alpha", "cohort"]


@pytest.mark.parametrize("rejected", [True, False])
def test_a_client_without_a_usable_answer_is_listed_by_the_reason(rejected):
    federation = make(MimeLite(), per_round=5)
    _, record = run_round(
        replace(federation, trainer=losing(LOST, 1, rejected=rejected)), first_state(federation)
    )
    kind, other = ("rejected", "missing") if rejected else ("missing", "rejected")
    assert sorted(record[kind]) == [1, LOST] and other not in record and record["cohort"] == 3


def test_nobody_reached_is_no_divergence_and_wrong_answers_of_all_are_one():
    federation = make(SCAFFOLD(), per_round=5)
    state = first_state(federation)
    after, record = run_round(replace(federation, trainer=losing(*range(5))), state)
    assert (
        after.round == 1
        and record["cohort"] == 0
        and record["missing"] == federation.schedule.cohort(0)
    )
    with pytest.raises(Diverged, match=r"^no client of the cohort returned a finite update$"):
        run_round(replace(federation, trainer=losing(*range(5), rejected=True)), state)
    hostile = replace(
        federation, faults=Faults(seed=2, clients=5, corruption=Corruption("nan", 0.4))
    )
    with pytest.raises(Diverged):  # two are known liars; the others should have answered
        run_round(replace(hostile, trainer=losing(*range(5), rejected=True)), state)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_model_that_is_no_longer_finite_is_a_divergence(value):
    @dataclass(frozen=True)
    class Breaks(FedAvg):
        def aggregate(self, server, mean, info):
            return super().aggregate(server, mean, info) | {"other": torch.tensor([1.0, value])}

    federation = make(Breaks())
    with pytest.raises(Diverged, match=r"^the global model is no longer finite$"):
        run_round(federation, first_state(federation))


def test_the_log_names_the_round_and_the_client(caplog):
    federation = replace(
        make(FedAvg(), per_round=5),
        faults=Faults(seed=2, clients=5, corruption=Corruption("nan", 0.2)),
    )
    (client,) = federation.faults.hostile
    with caplog.at_level(logging.WARNING, logger="fedwmsam"):
        run(federation, 2)
    lines = [f"Round {round}: left out client {client}, update not finite." for round in (1, 2)]
    assert [line.getMessage() for line in caplog.records] == lines


def test_finite_numbers_whose_sum_overflows_are_finite():
    assert all_finite({"a": torch.full((4,), 3e38), "b": torch.zeros(2)})
    assert not all_finite({"a": torch.zeros(2), "b": torch.tensor([1.0, math.inf])})
    assert not all_finite({"a": torch.tensor([math.inf, -math.inf])})


def test_a_weighted_mean_leaves_its_contributions_alone():
    contributions = [{"v": torch.tensor([1.0, 2.0])}, {"v": torch.tensor([5.0, 4.0])}]
    for weight in (1, 3):
        mean = WeightedMean()
        for contribution, own in zip(contributions, (1, weight), strict=True):
            mean.add(contribution, own)
        expected = np.average([[1.0, 2.0], [5.0, 4.0]], axis=0, weights=[1, weight])
        np.testing.assert_allclose(mean.value()["v"].numpy(), expected)
    assert contributions[0]["v"].tolist() == [1.0, 2.0] and contributions[1]["v"].tolist() == [
        5.0,
        4.0,
    ]


def test_late_clients_are_listed_and_paid_for():
    """Those who finish a part count with it; those whose part would be no step at all cost their downlink."""
    slow = Stragglers(1.0, 3.0, partial=True)
    federation = replace(
        make(SCAFFOLD(), FULL, per_round=5), faults=Faults(seed=2, clients=5, stragglers=slow)
    )
    _, record = run_round(federation, first_state(federation))
    cohort = federation.schedule.cohort(0)
    assert record["late"] == cohort and record["cohort"] == 5
    assert record["backprops"] == sum(steps // 3 for steps in STEPS.values())
    for lost in (Stragglers(1.0, 30.0, partial=True), Stragglers(1.0, 3.0, partial=False)):
        faults = replace(federation.faults, stragglers=lost)
        _, record = run_round(replace(federation, faults=faults), first_state(federation))
        assert record["late"] == cohort and record["cohort"] == record["bytes_up"] == 0
        assert record["bytes_down"] == 5 * 8 * 2 * federation.task.size


def test_a_norm_bound_without_a_number_is_the_median_of_the_round():
    federation, norms = make(FedAvg(), per_round=5), []
    run_round(
        federation,
        first_state(federation),
        lambda _, result: norms.append(float(result.up["delta"].norm())),
    )
    _, record = run_round(
        replace(federation, rule=AggregationRule("norm_bound")), first_state(federation)
    )
    assert record["update_norm"] == pytest.approx(
        np.mean(np.minimum(norms, np.median(norms))), rel=1e-12
    )


def test_rows_go_where_the_first_memory_says(tmp_path):
    federation, store = make(SCAFFOLD(), per_round=5), Store(tmp_path / "rows")
    state, _ = run_round(federation, first_state(federation, ClientMemory(store, budget=0)))
    plain, _ = run_round(federation, first_state(federation))
    assert (tmp_path / "rows").stat().st_size >= 5 * 8 * federation.task.size
    assert all(
        torch.equal(state.memory[client]["c_k"], plain.memory[client]["c_k"]) for client in range(5)
    )


def normed(federation):
    task = Task(
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double(),
        federation.task.objective,
    )
    return replace(federation, task=task)


@pytest.mark.parametrize(
    "rule", [AggregationRule(), AggregationRule("median")], ids=lambda rule: rule.kind
)
def test_buffers_travel_and_are_combined_by_the_rule(rule):
    federation = normed(make(FedAvg(), per_round=5, sizes=(7, 14, 7, 21, 14), batch_size=7))
    found = []
    state = run(federation, 1)[0][-1]
    after, record = run_round(
        replace(federation, rule=rule), state, lambda _, result: found.append(result.buffers)
    )
    assert found[0].keys() == after.buffers.keys() and len(found) == 5
    for name, value in after.buffers.items():
        values = torch.stack([buffers[name] for buffers in found])
        middle = values.median(dim=0).values if rule.holds else values.double().mean(dim=0)
        expected = middle if value.is_floating_point() else values.amax(dim=0)
        assert value.dtype == values.dtype and torch.allclose(value, expected)
    statistics = 8 * (4 + 4 + 1)  # mean, variance, count
    assert record["bytes_up"] == record["bytes_down"] == 5 * (8 * federation.task.size + statistics)


def test_a_batch_of_one_is_explained_where_batchnorm_meets_it_and_other_errors_are_left_as_they_are():
    federation = normed(make(FedAvg(), per_round=1, sizes=(9,)))
    with pytest.raises(
        InputError, match=r"^Client 0 has a batch of one sample \(it has 9\), .* GroupNorm\.$"
    ):
        run_round(federation, first_state(federation))

    @dataclass(frozen=True)
    class Fails(FedAvg):
        def direction(self, w, grad, down, scratch):
            raise ValueError("my own mistake")

    federation = make(Fails())
    with pytest.raises(ValueError, match=r"^my own mistake$"):
        run_round(federation, first_state(federation))
