"""Invariants of methods, and the exact reductions between them, on a small problem in float64."""

import itertools
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from helpers.reductions import ALL_RULES, REDUCTIONS
from helpers.small_federation import PLAIN_RULES, make_federation, run_rounds, train_weights
from torch import Tensor

from fedwmsam.engine.rounds import run_round
from fedwmsam.methods import SCAFFOLD, FedAvg, FedCM, FedLESAM, FedWMSAM
from fedwmsam.methods.vectors import Vectors

REDUCTIONS_UNDER_RULES = [
    pytest.param(reduction, rules, id=f"{reduction.method.name}-{reduction.becomes.name}-{rules}")
    for reduction, rules in itertools.product(REDUCTIONS, ALL_RULES)
    if rules in reduction.rules
]


@pytest.mark.parametrize(("reduction", "rules"), REDUCTIONS_UNDER_RULES)
def test_a_reduction_holds(reduction, rules):
    weights, expected = reduction.train_both(ALL_RULES[rules])
    assert torch.allclose(weights, expected, rtol=0.0, atol=reduction.tolerance)
    assert not torch.equal(expected, make_federation(FedAvg()).task.initial_weights)


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda r: f"{r.method.name}-{r.becomes.name}")
def test_a_reduction_says_something(reduction):
    """With its default options, among unequal clients, the method is not what it reduces to."""
    models = []
    for method in (type(reduction.method)(), reduction.becomes):
        states, _ = run_rounds(make_federation(method), 12)  # GHBM's first ten are FedAvg's
        models.append(states[-1].server["w"])
    assert not torch.allclose(*models, atol=1e-5)


@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
@pytest.mark.parametrize(
    ("reduced", "plain"),
    [
        (FedWMSAM(rho=0.0), FedWMSAM(perturbation="none")),
        (
            FedWMSAM(perturbation="none", correction="none", similarity="fixed", alpha=0.1),
            FedCM(alpha=0.1),
        ),
        (FedLESAM(rho=0.0, reference="last_round"), FedAvg()),
    ],
    ids=["fedwmsam", "fedwmsam-fedcm", "fedlesam"],
)
def test_a_perturbation_of_length_zero_is_none(reduced, plain, rules):
    assert torch.equal(train_weights(reduced, rules), train_weights(plain, rules))


def test_the_methods_differ():
    methods = (
        FedAvg(),
        FedCM(),
        SCAFFOLD(),
        FedWMSAM(),
        FedWMSAM(correction="none"),
        FedWMSAM(rho=0.1),
    )
    results = [train_weights(method) for method in methods]
    for a, b in itertools.combinations(results, 2):
        assert not torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [SCAFFOLD(), FedWMSAM(), FedWMSAM(correction="mean_gradient")],
    ids=["scaffold", "fedwmsam", "mean_gradient"],
)
def test_c_is_the_mean_of_all_c_k(method):
    federation = make_federation(method)
    for state in run_rounds(federation, 8)[0][1:]:
        mean = sum(row["c_k"] for row in state.memory.values()) / 5
        assert torch.allclose(state.server["c"], mean, atol=1e-14)
    assert state.server["c"].abs().max() > 1e-3


def test_c_is_the_sample_weighted_mean_when_averaging_by_size():
    federation = make_federation(SCAFFOLD())
    sizes = [len(c) for c in federation.clients]
    federation = replace(federation, averaging="size", total_samples=sum(sizes))
    state = run_rounds(federation, 8)[0][-1]
    weighted = sum(sizes[k] * row["c_k"] for k, row in state.memory.items()) / sum(sizes)
    assert torch.allclose(state.server["c"], weighted, atol=1e-14)


class RecordedStep(NamedTuple):
    """What a method was given in one local step, and the gradients that it took."""

    w: Tensor
    points: list[Tensor]
    gradients: list[Tensor]
    scratch: Vectors
    down: Vectors


LOG: list[RecordedStep] = []


class RecordedFedWMSAM(FedWMSAM):
    """FedWMSAM that records each of its steps in LOG."""

    def direction(self, w, grad, down, scratch):
        points = []
        gradients = []

        def recorded_grad(at):
            points.append(at.clone())
            gradient = grad(at)
            gradients.append(gradient.clone())
            return gradient

        before = w.clone()
        v, after = super().direction(w, recorded_grad, down, scratch)
        assert torch.equal(w, before)
        kept = {name: value.clone() for name, value in scratch.items()}
        LOG.append(RecordedStep(before, points, gradients, kept, down))
        return v, after


def steps_by_client(federation, round):
    """Yield each client of a round with its steps, which are taken off the beginning of LOG."""
    for client in federation.schedule.cohort(round):
        samples = len(federation.clients[client])
        count = federation.schedule.step_count(round, client, samples)
        yield client, LOG[:count]
        del LOG[:count]


def mean_gradient(steps):
    return sum(step.gradients[0] for step in steps) / len(steps)


def test_the_target_minus_the_position_is_the_gradients_in_excess_of_the_momentum():
    """Invariant 5: t_b − x_b = η α Σ_{j<b} (g_j − m_k), without clip and decay."""
    LOG.clear()
    method = RecordedFedWMSAM(rho=0.05)
    federation = make_federation(method, PLAIN_RULES)
    states, _ = run_rounds(federation, 3)
    for r in range(3):
        lr = federation.schedule.lr(r)
        alpha = states[r].server["alpha"]
        for _, steps in steps_by_client(federation, r):
            excess = torch.zeros_like(states[0].server["w"])
            for step in steps:
                offset = method.target_offset(step.w, step.down, step.scratch)
                assert torch.allclose(offset, lr * alpha * excess, atol=1e-14)
                excess = excess + step.gradients[0] - step.down["m"]
    assert not LOG


def test_the_new_control_is_a_moving_average():
    """Invariant 5: c_k⁺ = α ḡ + (1 − α)(Δ_r + c_k − c), without clip and decay."""
    federation = make_federation(RecordedFedWMSAM(), PLAIN_RULES, per_round=5)
    states, _ = run_rounds(federation, 1)
    memory = {k: dict(states[1].memory.get(k)) for k in range(5)}
    LOG.clear()
    state, _ = run_round(federation, states[1])
    server = states[1].server
    alpha = server["alpha"]
    for client, steps in steps_by_client(federation, 1):
        old = server["Delta"] + memory[client]["c_k"] - server["c"]
        expected = alpha * mean_gradient(steps) + (1 - alpha) * old
        assert torch.allclose(state.memory.get(client)["c_k"], expected, atol=1e-12)


def test_the_perturbation_has_length_rho_after_the_first_step():
    LOG.clear()
    run_rounds(make_federation(RecordedFedWMSAM(rho=0.07)), 2)
    first_steps = 0
    for step in LOG:
        is_at_start = torch.equal(step.w, step.down["w"])
        first_steps += is_at_start
        expected = 0.0 if is_at_start and step.scratch["b"] == 0 else 0.07
        length = float((step.points[0] - step.w).norm())
        assert length == pytest.approx(expected, rel=1e-6, abs=0.0)
    assert first_steps == 6  # one per client and round


def test_one_backprop_a_step():
    LOG.clear()
    federation = make_federation(RecordedFedWMSAM())
    _, records = run_rounds(federation, 2)
    assert all(len(step.points) == 1 for step in LOG)
    for r, record in enumerate(records):
        counts = [len(steps) for _, steps in steps_by_client(federation, r)]
        assert record["backprops"] == sum(counts)
    assert not LOG


@pytest.mark.parametrize("similarity", ["personalized", "update", "disagreement"])
@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0])
def test_alpha_stays_in_its_range_and_moves_slowly(similarity, rate):
    method = FedWMSAM(similarity=similarity, adapt_rate=rate)
    states, records = run_rounds(make_federation(method), 12)
    alphas = [float(s.server["alpha"]) for s in states]
    assert alphas[1] == pytest.approx((1 - rate) * 0.1 + rate * 0.1)
    assert all(0.1 - 1e-12 <= a <= 0.9 + 1e-12 for a in alphas)
    assert all(abs(b - a) <= rate * 0.8 + 1e-12 for a, b in itertools.pairwise(alphas))
    assert len(set(alphas)) > 2
    assert records[0]["similarity"] == 0.0
    assert [r["alpha"] for r in records] == alphas[:-1]  # a round's line tells the α it used


def test_a_fixed_alpha_does_not_move():
    states, records = run_rounds(make_federation(FedWMSAM(similarity="fixed", alpha=0.37)), 4)
    assert all(float(s.server["alpha"]) == 0.37 for s in states)
    slow = FedWMSAM(adapt_rate=0.0, alpha=0.37)
    assert records == run_rounds(make_federation(slow), 4)[1]  # the similarity is still recorded


def test_mean_gradient_is_the_mean_of_the_local_gradients():
    method = RecordedFedWMSAM(correction="mean_gradient")
    federation = make_federation(method, PLAIN_RULES, per_round=5)
    states, _ = run_rounds(federation, 1)
    LOG.clear()
    state, _ = run_round(federation, states[1])
    for client, steps in steps_by_client(federation, 1):
        assert torch.allclose(state.memory.get(client)["c_k"], mean_gradient(steps), atol=1e-12)


def test_unequal_step_counts_give_each_client_its_own_direction():
    """Δ_{r+1} is the mean of each client's mean direction, not of the summed updates."""
    LOG.clear()
    method = RecordedFedWMSAM(perturbation="none", correction="none", similarity="fixed")
    federation = make_federation(method, PLAIN_RULES, sizes=(4, 40), per_round=2)
    state = run_rounds(federation, 1)[0][-1]
    few = LOG[:2]
    many = LOG[2:]
    assert len(many) == 20
    expected = 0.1 * (mean_gradient(few) + mean_gradient(many)) / 2
    assert torch.allclose(state.server["Delta"], expected, atol=1e-13)


def test_scaffold_with_everybody_and_one_step_is_gradient_descent():
    federation = make_federation(
        SCAFFOLD(), PLAIN_RULES, sizes=(6, 6, 6), per_round=3, batch_size=6, epochs=1
    )
    states, _ = run_rounds(federation, 3)
    for r, (before, after) in enumerate(itertools.pairwise(states)):
        w = before.server["w"]
        gradients = []
        for samples in federation.clients:
            batch = samples.batch(torch.arange(6))
            gradient, _ = federation.task.compute_gradient(w, batch, seed=0, update_buffers=True)
            gradients.append(gradient)
        expected = w - federation.schedule.lr(r) * sum(gradients) / 3
        assert torch.allclose(after.server["w"], expected, atol=1e-14)
