"""Measures of oscillation and drift, on sequences whose values are known."""

import math

import numpy as np
import pytest
import torch
from helpers.small_federation import make_federation

from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.methods import make_method
from fedwmsam.recording.drift import Drift, update_statistics
from fedwmsam.recording.echo import (
    autocorrelation,
    echo,
    flips,
    in_order,
    oscillation,
    push_update,
    straightness,
)


def test_updates_that_alternate_have_alternating_cosines():
    u = torch.tensor([1.0, -2.0, 0.0])
    record = echo(u, [-u, u, -u])
    assert record["lags"] == pytest.approx([-1, 1, -1])
    assert record["norm"] == pytest.approx(math.sqrt(5))
    assert record["flips"] == 1  # of the two that moved
    assert autocorrelation([u, -u, u, -u], 3) == pytest.approx([-1, 1, -1])


def test_updates_in_one_direction_have_cosines_of_one():
    u = torch.tensor([1.0, -2.0, 3.0])
    assert echo(u, [u, 2 * u])["lags"] == pytest.approx([1, 1])
    assert echo(u, [u])["flips"] == 0
    assert echo(u, []) == {"norm": pytest.approx(math.sqrt(14)), "lags": []}


def test_a_turning_update_has_the_autocorrelation_of_its_angle():
    angle = 2 * math.pi / 20  # as slow an oscillation as a momentum of ten rounds makes
    updates = [torch.tensor([math.cos(k * angle), math.sin(k * angle)]) for k in range(30)]
    expected = [math.cos(lag * angle) for lag in range(1, 11)]
    assert autocorrelation(updates, 10) == pytest.approx(expected, abs=1e-6)


def test_flips_of_parameters_that_did_not_move_do_not_count():
    assert flips(torch.tensor([1.0, 1.0, 0.0, 3.0]), torch.tensor([-1.0, 1.0, 5.0, 0.0])) == 0.5
    assert flips(torch.zeros(3), torch.ones(3)) is None


def test_past_updates_are_kept_newest_first():
    past_updates = {}
    for value in range(5):
        past_updates = push_update(past_updates, torch.tensor([float(value)]), lags=3)
    assert [float(update) for update in in_order(past_updates)] == [4, 3, 2]


def test_straightness_is_the_displacement_per_length_of_the_path():
    assert straightness(10.0, [1.0], 10) == 1
    assert straightness(math.sqrt(10), [0.5, 1.5], 10) == pytest.approx(1 / math.sqrt(10))
    assert straightness(0.0, [0.0], 10) is None


def test_an_oscillating_column_is_told_from_a_line_and_from_noise():
    oscillating = oscillation([0.5, 0.7] * 10)
    assert oscillating["alternation"] == 1
    assert oscillating["noise"] == pytest.approx(0.2 * math.sqrt(19 / 18 / 2), 0.01)
    line = oscillation([0.1 * k for k in range(10)])
    assert line["noise"] == pytest.approx(0, abs=1e-12)
    assert line["residual"] == pytest.approx(0, abs=1e-12)
    assert line["alternation"] == 0
    noise = oscillation(np.random.default_rng(0).normal(size=20_000).tolist())
    assert noise["noise"] == pytest.approx(1, abs=0.02)
    assert noise["residual"] == pytest.approx(1, abs=0.02)
    assert noise["alternation"] == pytest.approx(2 / 3, abs=0.02)
    assert oscillation([1.0, 2.0])["noise"] is None


def test_statistics_of_two_orthogonal_updates_are_those_computed_by_hand():
    statistics = update_statistics({"3": torch.tensor([3.0, 0.0]), "8": torch.tensor([0.0, 4.0])})
    assert statistics["norm"]["clients"] == {"3": 3, "8": 4} and statistics["norm"]["mean"] == 3.5
    assert statistics["distance"]["clients"] == pytest.approx({"3": 2.5, "8": 2.5})
    assert statistics["to_mean"]["clients"] == pytest.approx({"3": 0.6, "8": 0.8})
    assert statistics["pairs"] == {"mean": 0, "spread": None}
    assert statistics["coherence"] == pytest.approx(0.5)


def test_clients_that_agree_have_coherence_one_and_no_distance():
    statistics = update_statistics({str(k): torch.tensor([1.0, 2.0]) for k in range(4)})
    assert statistics["coherence"] == pytest.approx(1) and statistics["pairs"][
        "mean"
    ] == pytest.approx(1)
    assert statistics["distance"]["mean"] == pytest.approx(0)


def test_drift_records_what_the_method_keeps():
    federation = make_federation(make_method("fedwmsam"))
    state = first_state(federation)
    for _ in range(3):
        state, _ = run_round(federation, state)
    drift = Drift(federation, state)
    after, record = run_round(federation, state, drift.observe_result)
    recorded = drift.to_record()
    assert recorded["scalars"]["similarity"]["mean"] == pytest.approx(record["similarity"])
    assert recorded["norm"]["mean"] == pytest.approx(record["update_norm"])
    assert recorded["server"] == pytest.approx(
        {name: float(state.server[name].norm()) for name in ("Delta", "c")}
    )
    for client, value in recorded["memory"]["c_k"]["clients"].items():
        assert value == pytest.approx(float(after.memory[int(client)]["c_k"].norm()))
