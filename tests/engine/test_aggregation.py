"""Robust aggregation: what each rule computes, with whom it goes, what it costs in memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.small_federation import FULL_RULES, make_federation, run_rounds

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine import aggregation
from fedwmsam.engine.aggregation import CoordinateTrimmedMean, check_rule
from fedwmsam.engine.faults import Faults
from fedwmsam.engine.rounds import run_round
from fedwmsam.methods import METHODS, FedAvg, FedCM, FedWMSAM, MimeLite
from fedwmsam.settings.config import Settings
from fedwmsam.settings.parsers import AggregationRule, Corruption, parse_aggregation
from fedwmsam.training.local import LocalResult

ALLOWED = {
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fednova",
    "fedexp",
    "fedacg",
    "fedcm",
    "fedadc",
    "mfl",
    "mimelite",
    "mime",
    "ghbm",
    "localghbm",
    "fedhbm",
    "adabest",
    "fedsam",
    "mofedsam",
    "fedlesam",
}
SHARES = {"median": None, "trimmed": 0.2}


def make_ruled_federation(method, kind, value=None, **settings):
    """Return a federation of five clients with this aggregation rule."""
    federation = make_federation(method, FULL_RULES, per_round=5, **settings)
    return replace(federation, aggregation_rule=AggregationRule(kind, value))


def make_contributions(count, size=37):
    generator = torch.Generator().manual_seed(count)
    return [
        {
            "delta": torch.randn(size, generator=generator, dtype=torch.float64),
            "similarity": torch.randn((), generator=generator, dtype=torch.float64),
            "buffer n": torch.tensor(k % 4),
        }
        for k in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 10, 11])
@pytest.mark.parametrize("kind", SHARES)
def test_rules_work_coordinate_by_coordinate(kind, count, monkeypatch):
    monkeypatch.setattr(aggregation, "BLOCK_COORDINATES", 8)  # several blocks and a rest
    aggregator = CoordinateTrimmedMean(AggregationRule(kind, SHARES[kind]), count)
    contributions = make_contributions(count)
    for contribution in contributions:
        aggregator.add(contribution, 1)
    combined = aggregator.value()
    for name in ("delta", "similarity"):
        stack = np.sort(np.stack([c[name].numpy() for c in contributions]), axis=0)
        cut = min(int(np.ceil(0.2 * count - 1e-9)), (count - 1) // 2)
        if kind == "median":
            expected = np.median(stack, axis=0)
        else:
            expected = stack[cut : count - cut].mean(axis=0)
        assert combined[name].shape == contributions[0][name].shape
        assert np.allclose(combined[name].numpy(), expected, atol=1e-15)
    assert combined["buffer n"] == max(k % 4 for k in range(count))
    assert combined["buffer n"].dtype == torch.int64


def test_at_least_one_is_trimmed_at_either_end():
    trimmed = AggregationRule("trimmed", 0.1)
    counts = [aggregation.trimmed_count(trimmed, count) for count in (1, 2, 3, 5, 10, 11, 30)]
    assert counts == [0, 0, 1, 1, 1, 2, 3]
    assert aggregation.trimmed_count(AggregationRule("trimmed", 0.0), 10) == 0
    median = AggregationRule("median")
    assert [aggregation.trimmed_count(median, count) for count in (1, 2, 5, 6)] == [0, 0, 2, 2]


@pytest.mark.parametrize("name", METHODS)
def test_a_norm_bound_goes_with_every_method_and_keeps_its_means(name):
    """An upload is clipped before it is settled, so memory and contribution come from the same."""
    method = METHODS[name]()
    hostile = Faults(2, 5, corruption=Corruption("huge", 0.4, 1000.0))
    for value in (None, 0.05):
        federation = replace(make_ruled_federation(method, "norm_bound", value), faults=hostile)
        states, records = run_rounds(federation, 3)
        for server_name, kept in method.means.items():
            total = sum(row[kept] for row in states[-1].memory.values()) / 5
            assert torch.allclose(states[-1].server[server_name], total, atol=1e-12)
        largest = max(record["update_norm"] for record in records)
        assert value is None or largest <= value * (1 + 1e-12)


def test_norms_are_bounded_vector_by_vector():
    federation = make_ruled_federation(MimeLite(), "norm_bound")
    uploads = []
    state = run_rounds(federation, 1)[0][-1]
    run_round(federation, state, lambda job, result: uploads.append(result.up))
    bounds = {}
    for name in ("delta", "F_k"):
        bounds[name] = float(np.median([float(up[name].norm()) for up in uploads]))
    updates = [(k, LocalResult(up, {}, 0.0, 0)) for k, up in enumerate(uploads)]
    norms = {name: set() for name in bounds}
    for job, result in aggregation.clip_uploads(AggregationRule("norm_bound"), updates, 5):
        for name, value in result.up.items():
            true = uploads[job][name]
            assert float(value.norm()) == pytest.approx(min(float(true.norm()), bounds[name]))
            assert torch.allclose(value / value.norm(), true / true.norm())
            norms[name].add(float(value.norm()))
    assert all(len(values) > 1 for values in norms.values())  # the shorter ones stay as they are
    generous = run_rounds(make_ruled_federation(MimeLite(), "norm_bound", 1e6))[0][-1].server["w"]
    assert torch.equal(
        generous, run_rounds(make_ruled_federation(MimeLite(), "mean"))[0][-1].server["w"]
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", SHARES)
def test_a_robust_mean_is_refused_where_the_server_must_know_the_mean(name, kind):
    method = METHODS[name]()
    w = make_federation(method).task.initial_weights
    if name in ALLOWED:
        check_rule(AggregationRule(kind, SHARES[kind]), method, w, "uniform")
        states, _ = run_rounds(make_ruled_federation(method, kind, SHARES[kind]), 3)
        assert all(torch.isfinite(value).all() for value in states[-1].server.values())
    else:
        kept_means = "|".join(method.means)
        with pytest.raises(InputError, match=f"{name}: its ({kept_means}) must stay the mean"):
            check_rule(AggregationRule(kind, SHARES[kind]), method, w, "uniform")


def test_options_decide_too():
    method = FedWMSAM(correction="none")
    w = make_federation(method).task.initial_weights
    check_rule(AggregationRule("median"), method, w, "uniform")
    clients = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))] * 4
    for settings in ({"method": "fedwmsam"}, {"method": "fedavg", "averaging": "size"}):
        with pytest.raises(InputError, match="aggregation median"):
            fedwmsam.fit(torch.nn.Linear(2, 2), clients, aggregation="median", rounds=1, **settings)


def test_a_refused_run_leaves_no_folder(cli, tmp_path):
    outcome = cli("run", "--model", "linear", "--aggregation", "median", "--out", tmp_path / "runs")
    assert outcome.code == 2 and "fedwmsam: its c must stay the mean" in outcome.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("method", [FedAvg(), FedCM()], ids=repr)
@pytest.mark.parametrize(
    ("kind", "value"), [("median", None), ("trimmed", 0.2), ("norm_bound", None)]
)
def test_one_huge_update_in_five_moves_the_mean_and_not_these(method, kind, value):
    def distance(rule):
        honest = replace(make_federation(method, FULL_RULES, per_round=5), aggregation_rule=rule)
        hostile = replace(honest, faults=Faults(2, 5, corruption=Corruption("huge", 0.2, 1000.0)))
        honest_states, _ = run_rounds(honest, 1)
        hostile_states, _ = run_rounds(hostile, 1)
        return float((honest_states[-1].server["w"] - hostile_states[-1].server["w"]).norm())

    assert distance(AggregationRule()) > 5 and distance(AggregationRule(kind, value)) < 0.5


def test_what_does_not_fit_into_memory_is_refused(monkeypatch):
    # Five clients of 51 parameters are a little more.
    monkeypatch.setattr(aggregation, "MAX_HELD_BYTES", 5 * 8 * 50)
    for kind in ("median", "norm_bound"):
        with pytest.raises(InputError, match=r"all 5 clients of a round send.*norm_bound:TAU"):
            run_rounds(make_ruled_federation(FedAvg(), kind), 1)
    run_rounds(make_ruled_federation(FedAvg(), "norm_bound", 1.0), 1)


def test_rules_are_read_as_written():
    rules = {
        "mean": AggregationRule("mean"),
        "median": AggregationRule("median"),
        "norm_bound": AggregationRule("norm_bound"),
        "norm_bound:2": AggregationRule("norm_bound", 2.0),
        "trimmed:0.1": AggregationRule("trimmed", 0.1),
    }
    for text, rule in rules.items():
        assert parse_aggregation(text) == rule
    assert Settings(aggregation="mean") == Settings()


@pytest.mark.parametrize(
    "text",
    ["", "krum", "mean:1", "median:2", "trimmed", "trimmed:0.5", "trimmed:x", "norm_bound:0"],
)
def test_wrong_rules_are_refused(text):
    with pytest.raises(InputError, match="aggregation"):
        Settings(aggregation=text)
