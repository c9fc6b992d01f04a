"""Invariants of methods.md 3.9 and the exact reductions between methods, on a small real problem in float64."""

import itertools

import pytest
import torch
from helpers.small_federation import FULL, PLAIN, final, make, run

from fedwmsam.engine.rounds import run_round
from fedwmsam.methods import (
    SCAFFOLD,
    SCAFFOLDM,
    FedAvg,
    FedCM,
    FedDyn,
    FedGAMMA,
    FedGloSS,
    FedLESAM,
    FedLESAMD,
    FedLESAMS,
    FedProx,
    FedSAM,
    FedSpeed,
    FedWMSAM,
    MoFedSAM,
)
from fedwmsam.training.local import LocalRules


@pytest.mark.parametrize(
    "rules", [FULL, PLAIN, LocalRules(1e-3, "sgd", 1.0)], ids=["full", "plain", "sgd"]
)
@pytest.mark.parametrize(
    ("reduced", "plain"),
    [
        (FedCM(alpha=1.0), FedAvg()),
        (FedWMSAM(rho=0.0, correction="none", similarity="fixed", alpha=0.3), FedCM(alpha=0.3)),
        (
            FedWMSAM(perturbation="none", correction="none", similarity="fixed", alpha=0.1),
            FedCM(alpha=0.1),
        ),
        (FedWMSAM(rho=0.0), FedWMSAM(perturbation="none")),
        (FedSAM(rho=0.0), FedAvg()),
        (MoFedSAM(rho=0.0), FedCM()),
        (FedGAMMA(rho=0.0), SCAFFOLD()),
        (FedLESAM(rho=0.0), FedAvg()),
        (FedLESAM(rho=0.0, reference="last_round"), FedAvg()),
        (FedLESAMS(rho=0.0), SCAFFOLD()),
        (FedLESAMD(rho=0.0), FedDyn()),
        (FedSpeed(rho=0.0), FedDyn()),
        (FedProx(lam=0.0), FedAvg()),
    ],
    ids=lambda m: type(m).__name__,
)
def test_reductions_are_exact(reduced, plain, rules):
    assert torch.equal(final(reduced, rules), final(plain, rules))
    assert not torch.equal(final(plain, rules), make(plain).task.initial_weights)


@pytest.mark.parametrize(
    ("reduced", "plain"),
    [
        (SCAFFOLDM(beta=1.0), SCAFFOLD()),
        (
            FedWMSAM(rho=0.0, similarity="fixed", alpha=0.3, correction="mean_gradient"),
            SCAFFOLDM(beta=0.3),
        ),
        (FedGloSS(rho=0.0, beta=10.0), FedDyn(lam=0.1)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_reductions_of_other_form(reduced, plain):
    """The same method written with other intermediate vectors: equal up to rounding, while no clip is active."""
    assert torch.allclose(final(reduced, PLAIN), final(plain, PLAIN), atol=1e-12)


def test_the_methods_differ():
    results = [
        final(m)
        for m in (
            FedAvg(),
            FedCM(),
            SCAFFOLD(),
            FedWMSAM(),
            FedWMSAM(correction="none"),
            FedWMSAM(rho=0.1),
        )
    ]
    for a, b in itertools.combinations(results, 2):
        assert not torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [SCAFFOLD(), FedWMSAM(), FedWMSAM(correction="mean_gradient")],
    ids=["scaffold", "fedwmsam", "mean_gradient"],
)
def test_c_is_the_mean_of_all_c_k(method):
    federation = make(method)
    for state in run(federation, 8)[0][1:]:
        total = sum(state.memory.get(k)["c_k"] for k in range(5) if state.memory.get(k)) / 5
        assert torch.allclose(state.server["c"], total, atol=1e-14)
    assert state.server["c"].abs().max() > 1e-3


def test_c_is_the_sample_weighted_mean_when_averaging_by_size():
    from dataclasses import replace

    federation = make(SCAFFOLD())
    sizes = [len(c) for c in federation.clients]
    federation = replace(federation, averaging="size", total_samples=sum(sizes))
    state = run(federation, 8)[0][-1]
    weighted = sum(
        n * state.memory.get(k)["c_k"] for k, n in enumerate(sizes) if state.memory.get(k)
    ) / sum(sizes)
    assert torch.allclose(state.server["c"], weighted, atol=1e-14)


class Spy(FedWMSAM):
    """FedWMSAM that notes what each step saw."""

    def direction(self, w, grad, down, scratch):
        points, gradients = [], []

        def noted(at):
            points.append(at.clone())
            gradient = grad(at)
            gradients.append(gradient.clone())
            return gradient

        before = w.clone()
        v, after = super().direction(w, noted, down, scratch)
        assert torch.equal(w, before)
        LOG.append((w.clone(), points, gradients, {k: t.clone() for k, t in scratch.items()}, down))
        return v, after


LOG: list = []


def test_the_target_minus_the_position_is_the_gradients_in_excess_of_the_momentum():
    """Invariant 5: t_b − x_b = η α Σ_{j<b} (g_j − m_k), without clip and decay."""
    LOG.clear()
    federation = make(Spy(rho=0.05), PLAIN)
    states, _ = run(federation, 3)
    start = 0
    for r in range(3):
        lr, alpha = federation.schedule.lr(r), states[r].server["alpha"]
        for client in federation.schedule.cohort(r):
            steps = len(federation.schedule.steps(r, client, len(federation.clients[client])))
            excess = torch.zeros_like(states[0].server["w"])
            for w, _, gradients, scratch, down in LOG[start : start + steps]:
                assert torch.allclose(
                    Spy().ahead(w, down, scratch), lr * alpha * excess, atol=1e-14
                )
                excess = excess + gradients[0] - down["m"]
            start += steps
    assert start == len(LOG)


def test_the_new_control_is_a_moving_average():
    """Invariant 5: c_k⁺ = α ḡ + (1 − α)(Δ_r + c_k − c), without clip and decay."""
    LOG.clear()
    federation = make(Spy(), PLAIN, per_round=5)
    states, _ = run(federation, 1)
    memory = {k: dict(states[1].memory.get(k)) for k in range(5)}
    LOG.clear()
    state, _ = run_round(federation, states[1])
    server, start = states[1].server, 0
    for client in federation.schedule.cohort(1):
        steps = len(federation.schedule.steps(1, client, len(federation.clients[client])))
        mean = sum(gradients[0] for _, _, gradients, _, _ in LOG[start : start + steps]) / steps
        start += steps
        alpha = server["alpha"]
        expected = alpha * mean + (1 - alpha) * (
            server["Delta"] + memory[client]["c_k"] - server["c"]
        )
        assert torch.allclose(state.memory.get(client)["c_k"], expected, atol=1e-12)


def test_the_perturbation_has_length_rho_after_the_first_step():
    LOG.clear()
    run(make(Spy(rho=0.07)), 2)
    for w, points, _, scratch, down in LOG:
        first = scratch["b"] == 0 and torch.equal(w, down["w"])
        assert float((points[0] - w).norm()) == pytest.approx(
            0.0 if first else 0.07, rel=1e-6, abs=0.0
        )
    assert (
        sum(torch.equal(w, down["w"]) for w, _, _, _, down in LOG) == 6
    )  # one first step a client and round


def test_one_backprop_a_step():
    LOG.clear()
    federation = make(Spy())
    _, records = run(federation, 2)
    assert all(len(points) == 1 for _, points, _, _, _ in LOG)
    for r, record in enumerate(records):
        steps = [
            len(federation.schedule.steps(r, k, len(federation.clients[k])))
            for k in federation.schedule.cohort(r)
        ]
        assert record["backprops"] == sum(steps)


@pytest.mark.parametrize("similarity", ["personalized", "update", "disagreement"])
@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0])
def test_alpha_stays_in_its_range_and_moves_slowly(similarity, rate):
    states, records = run(make(FedWMSAM(similarity=similarity, adapt_rate=rate)), 12)
    alphas = [float(s.server["alpha"]) for s in states]
    assert alphas[1] == pytest.approx((1 - rate) * 0.1 + rate * 0.1)
    assert all(0.1 - 1e-12 <= a <= 0.9 + 1e-12 for a in alphas)
    assert all(abs(b - a) <= rate * 0.8 + 1e-12 for a, b in itertools.pairwise(alphas))
    assert len(set(alphas)) > 2
    assert records[0]["similarity"] == 0.0
    assert [r["alpha"] for r in records] == alphas[:-1]  # a round's line tells the α it used


def test_a_fixed_alpha_does_not_move():
    states, records = run(make(FedWMSAM(similarity="fixed", alpha=0.37)), 4)
    assert all(float(s.server["alpha"]) == 0.37 for s in states)
    assert (
        records == run(make(FedWMSAM(adapt_rate=0.0, alpha=0.37)), 4)[1]
    )  # the similarity is told all the same


def test_mean_gradient_is_the_mean_of_the_local_gradients():
    LOG.clear()
    federation = make(Spy(correction="mean_gradient"), PLAIN, per_round=5)
    states, _ = run(federation, 1)
    LOG.clear()
    state, _ = run_round(federation, states[1])
    start = 0
    for client in federation.schedule.cohort(1):
        steps = len(federation.schedule.steps(1, client, len(federation.clients[client])))
        mean = sum(gradients[0] for _, _, gradients, _, _ in LOG[start : start + steps]) / steps
        start += steps
        assert torch.allclose(state.memory.get(client)["c_k"], mean, atol=1e-12)


def test_unequal_step_counts_give_each_client_its_own_direction():
    """Δ_{r+1} is the mean of each client's mean direction, not of the summed updates."""
    LOG.clear()
    federation = make(
        Spy(perturbation="none", correction="none", similarity="fixed"),
        PLAIN,
        sizes=(4, 40),
        per_round=2,
    )
    state = run(federation, 1)[0][-1]
    few, many = LOG[:2], LOG[2:]
    assert len(many) == 20
    expected = (
        sum(0.1 * sum(g[0] for _, _, g, _, _ in part) / len(part) for part in (few, many)) / 2
    )
    assert torch.allclose(state.server["Delta"], expected, atol=1e-13)


def test_scaffold_with_everybody_and_one_step_is_gradient_descent():
    federation = make(SCAFFOLD(), PLAIN, sizes=(6, 6, 6), per_round=3, batch_size=6, epochs=1)
    states, _ = run(federation, 3)
    task = federation.task
    for r, (before, after) in enumerate(itertools.pairwise(states)):
        gradients = [
            task.gradient(before.server["w"], c.batch(torch.arange(6)), seed=0, keep_buffers=True)[
                0
            ]
            for c in federation.clients
        ]
        expected = before.server["w"] - federation.schedule.lr(r) * sum(gradients) / 3
        assert torch.allclose(after.server["w"], expected, atol=1e-14)
