"""Methods against independent numpy versions of a few lines each.

These are the methods without reference vectors, and cases that the vectors leave out. The problem
is linear regression, whose gradient numpy can write down; clients differ in size and so in step
count.
"""

import numpy as np
import pytest
import torch
from helpers.linear_regression import (
    COHORTS,
    DATA,
    DECAY,
    LR,
    START,
    N,
    batches,
    check_models,
    descend,
    global_models,
    gradient,
)
from torch import nn

from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.rounds import Federation, first_state, run_round
from fedwmsam.methods import (
    SCAFFOLDM,
    FedACG,
    FedAvgM,
    FedDyn,
    FedGloSS,
    FedLESAM,
    FedProx,
    FedSpeed,
    FedWMSAM,
    FedWMSAMPlus,
    MimeLite,
)
from fedwmsam.training.local import LocalRules, Step
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task


def test_mimelite():
    w = START
    m = np.zeros(3)
    models = []
    for r, cohort in enumerate(COHORTS):
        ends = [
            descend(w, k, r, lambda x, b, k=k, m=m: 0.1 * gradient(x, k, b) + 0.9 * m)
            for k in cohort
        ]
        m = 0.1 * np.mean([gradient(w, k) for k in cohort], axis=0) + 0.9 * m
        w = w + 0.8 * (np.mean(ends, axis=0) - w)
        models.append(w)
    check_models(MimeLite(beta=0.9, global_lr=0.8), models)


def test_scaffold_m():
    beta = 0.3
    w = START
    c_k = np.zeros((N, 3))
    Delta = np.zeros(3)
    models = []
    for r, cohort in enumerate(COHORTS):
        c = c_k.mean(axis=0)
        gradients = {}
        ends = []
        d = []
        for k in cohort:
            gradients[k] = []

            def direction(x, rows, k=k, c=c, Delta=Delta, gradients=gradients):
                gradients[k].append(gradient(x, k, rows))
                return beta * (gradients[k][-1] - c_k[k] + c) + (1 - beta) * Delta

            ends.append(descend(w, k, r, direction))
            d.append((w - ends[-1]) / (LR * DECAY**r * len(batches(k))))
        for k in cohort:
            c_k[k] = np.mean(gradients[k], axis=0)
        w = np.mean(ends, axis=0)
        Delta = np.mean(d, axis=0)
        models.append(w)
    check_models(SCAFFOLDM(beta=beta), models)


@pytest.mark.parametrize("clip", [None, 0.7])
def test_fedacg(clip):
    lam = 0.6
    beta = 0.05
    w = START
    m = np.zeros(3)
    models = []
    for r, cohort in enumerate(COHORTS):
        y = w + lam * m

        def pull(x, y=y):
            return 2 * beta * (x - y)

        ends = [descend(y, k, r, lambda x, b, k=k: gradient(x, k, b), pull, clip) for k in cohort]
        m = lam * m + np.mean(ends, axis=0) - y
        w = w + m
        np.testing.assert_allclose(w, np.mean(ends, axis=0), atol=1e-13)
        models.append(w)
    check_models(FedACG(lam=lam, beta=beta), models, clip=clip)


@pytest.mark.parametrize("rho_local", [0.0, 0.05])
def test_fedgloss(rho_local):
    rho = 0.1
    beta = 5.0
    warmup = 4
    w = START
    sigma_k = np.zeros((N, 3))
    sigma = np.zeros(3)
    q = np.zeros(3)
    models = []
    for r, cohort in enumerate(COHORTS):
        warm = min(r / warmup, 1)
        radius = 0.001 + (rho - 0.001) * warm
        local = 0.001 + (rho_local - 0.001) * warm
        start = w + radius * q / np.linalg.norm(q) if q.any() else w

        def direction(x, b, k, local=local):
            g = gradient(x, k, b)
            if rho_local:
                g = gradient(x + local * g / (np.linalg.norm(g) + 1e-7), k, b)
            return g - sigma_k[k]

        def pull(x, start=start):
            return (x - start) / beta

        ends = {k: descend(start, k, r, lambda x, b, k=k: direction(x, b, k), pull) for k in cohort}
        for k, end in ends.items():
            sigma_k[k] -= (end - start) / beta
            sigma = sigma - (end - start) / (beta * N)
        q = np.mean([start - end for end in ends.values()], axis=0)
        w = w - 0.9 * q - beta * sigma
        models.append(w)
    np.testing.assert_allclose(sigma, sigma_k.mean(axis=0), atol=1e-13)
    method = FedGloSS(rho=rho, rho_local=rho_local, beta=beta, warmup=warmup, global_lr=0.9)
    check_models(method, models)


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) if a.any() and b.any() else 0.0


def fedwmsam(perturbation, correction, rate, weight=lambda alpha, r: alpha, bounds=(0.2, 0.7)):
    """Return the global models for ρ = 0.05, α from 0.3 and η_g = 0.9.

    `weight` returns the α that a round uses from the α that is adapted.
    """
    adapted = 0.3
    w = START
    Delta = np.zeros(3)
    c_k = np.zeros((N, 3))
    models = []
    for r, cohort in enumerate(COHORTS):
        alpha = weight(adapted, r)
        eps = 0.0
        if Delta.any() and perturbation == "momentum":
            eps = 0.05 * Delta / np.linalg.norm(Delta)
        share = alpha / (1 - alpha)
        c = c_k.mean(axis=0)
        ends = []
        d = {}
        similarity = []
        for k in cohort:
            m = Delta + share * (c - c_k[k]) if correction == "scaffold" else Delta

            def direction(x, b, k=k, m=m, eps=eps, alpha=alpha):
                return alpha * gradient(x + eps, k, b) + (1 - alpha) * m

            ends.append(descend(w, k, r, direction))
            d[k] = (w - ends[-1]) / (LR * DECAY**r * len(batches(k)))
            similarity.append(cosine(Delta, m))
        for k in cohort:
            c_k[k] += d[k] - c
        adapted = (1 - rate) * adapted + rate * np.clip(np.mean(similarity), *bounds)
        w = w + 0.9 * (np.mean(ends, axis=0) - w)
        Delta = np.mean(list(d.values()), axis=0)
        models.append(w)
    return models


OPTIONS = {
    "rho": 0.05,
    "alpha": 0.3,
    "alpha_min": 0.2,
    "alpha_max": 0.7,
    "adapt_rate": 0.2,
    "global_lr": 0.9,
}


@pytest.mark.parametrize("correction", ["scaffold", "none"])
@pytest.mark.parametrize("perturbation", ["momentum", "none"])
def test_fedwmsam_perturbed_along_the_momentum_or_not_at_all(perturbation, correction):
    method = FedWMSAM(perturbation=perturbation, correction=correction, **OPTIONS)
    check_models(method, fedwmsam(perturbation, correction, rate=0.2))


@pytest.mark.parametrize("power", [0.0, 8.0])  # the share of the clients decides, or the power
@pytest.mark.parametrize("bounds", [(0.2, 0.7), (0.01, 0.99)])  # wide: every similarity counts
def test_fedwmsam_plus_is_the_weighted_mean_of_a_fedwmsam_that_starts_with_a_plain_mean(
    power, bounds
):
    def weight(alpha, r):
        return max(alpha, min(bounds[1], 1 / (r + 1)))

    trained = fedwmsam("momentum", "scaffold", 0.2, weight, bounds)
    models = [START]
    for r, x in enumerate(trained):
        share = max((power + 1) / (r + power + 1), len(COHORTS[r]) / N)
        models.append((1 - share) * models[-1] + share * x)
    options = OPTIONS | {"alpha_min": bounds[0], "alpha_max": bounds[1]}
    method = FedWMSAMPlus(perturbation="momentum", average_power=power, **options)
    check_models(method, models[1:])


def test_a_stack_of_clients_has_a_similarity_each():
    Delta, m, d = (torch.tensor(DATA.normal(size=(3, 5))) for _ in range(3))
    Delta[1] = 0.0
    rules = {
        "personalized": lambda k: cosine(Delta[k].numpy(), m[k].numpy()),
        "update": lambda k: cosine(Delta[k].numpy(), d[k].numpy()),
        "disagreement": lambda k: 1 - cosine(Delta[k].numpy(), d[k].numpy()) if k != 1 else 0.0,
    }
    for similarity, expected in rules.items():
        values = FedWMSAM(similarity=similarity).client_similarity(Delta, m, d)
        np.testing.assert_allclose(values.numpy(), [expected(k) for k in range(3)], atol=1e-14)


def test_the_bounds_of_alpha_may_meet():
    assert FedWMSAM(alpha_min=0.5, alpha_max=0.5).alpha_min == 0.5


def test_fedavgm():
    w = START
    m = np.zeros(3)
    models = []
    for r, cohort in enumerate(COHORTS):
        ends = [descend(w, k, r, lambda x, b, k=k: gradient(x, k, b)) for k in cohort]
        m = 0.4 * m + np.mean(ends, axis=0) - w
        w = w + 0.9 * m
        models.append(w)
    check_models(FedAvgM(beta=0.4, global_lr=0.9), models)


@pytest.mark.parametrize("reference", ["last_active", "last_round"])
def test_fedlesam_under_partial_participation(reference):
    w = START
    z = {}
    previous = START
    models = []
    for r, cohort in enumerate(COHORTS):
        ends = []
        for k in cohort:
            back = (z.get(k, w) if reference == "last_active" else previous) - w
            eps = 0.2 * back / np.linalg.norm(back) if back.any() else 0.0
            ends.append(descend(w, k, r, lambda x, b, k=k, eps=eps: gradient(x + eps, k, b)))
            z[k] = w
        previous = w
        w = np.mean(ends, axis=0)
        models.append(w)
    method = FedLESAM(rho=0.2, reference=reference)
    check_models(method, models)
    names = {"z_k"} if reference == "last_active" else set()
    assert method.memory_init(torch.tensor(w)).keys() == names


def test_the_two_references_differ():
    last_active = global_models(FedLESAM(rho=0.2))[-1]
    last_round = global_models(FedLESAM(rho=0.2, reference="last_round"))[-1]
    assert np.abs(last_active - last_round).max() > 1e-4


def test_fedprox_with_an_active_clip():
    w = START
    models = []
    for r, cohort in enumerate(COHORTS):

        def pull(x, w=w):
            return 0.4 * (x - w)

        ends = [descend(w, k, r, lambda x, b, k=k: gradient(x, k, b), pull, 0.7) for k in cohort]
        w = np.mean(ends, axis=0)
        models.append(w)
    check_models(FedProx(lam=0.4), models, clip=0.7)
    without_clip = global_models(FedProx(lam=0.4))[-1]
    assert np.abs(without_clip - models[-1]).max() > 1e-3


def test_feddyn_with_an_active_clip():
    w = START
    h = np.zeros((N, 3))
    models = []
    for r, cohort in enumerate(COHORTS):

        def direction(x, b, k):
            return gradient(x, k, b) + 0.4 * h[k]

        def pull(x, w=w):
            return 0.4 * (x - w)

        ends = {
            k: descend(w, k, r, lambda x, b, k=k: direction(x, b, k), pull, 0.7) for k in cohort
        }
        for k, end in ends.items():
            h[k] += end - w
        w = np.mean(list(ends.values()), axis=0) + h.mean(axis=0)
        models.append(w)
    check_models(FedDyn(lam=0.4), models, clip=0.7)


def test_fedspeed_with_the_duals_of_the_participants():
    w = START
    h = np.zeros((N, 3))
    models = []
    for r, cohort in enumerate(COHORTS):

        def direction(x, b, k):
            g = gradient(x, k, b)
            return gradient(x + 0.05 * g / (np.linalg.norm(g) + 1e-7), k, b) + 0.4 * h[k]

        def pull(x, w=w):
            return 0.4 * (x - w)

        ends = {k: descend(w, k, r, lambda x, b, k=k: direction(x, b, k), pull) for k in cohort}
        for k, end in ends.items():
            h[k] += end - w
        w = np.mean([end + h[k] for k, end in ends.items()], axis=0)
        models.append(w)
    check_models(FedSpeed(rho=0.05, lam=0.4, server_dual="participants"), models)


def test_one_step_by_hand():
    """One client, one step of one sample, in numbers that a person can check.

    w = 1, x = 1 and y = 0, so g(w) = 2w.
    """
    task = Task(lambda: nn.Linear(1, 1, bias=False).double(), OBJECTIVES["regression"])
    task.initial_weights = torch.tensor([1.0], dtype=torch.float64)
    samples = TensorSamples(torch.ones(1, 1).double(), torch.zeros(1, 1).double())

    class OneStepSchedule:
        cohort = staticmethod(lambda round: [0])
        lr = staticmethod(lambda round: 0.1)
        steps = staticmethod(lambda round, client, samples: [Step(torch.tensor([0]), 0)])
        step_count = staticmethod(lambda round, client, samples: 1)
        steps_per_epoch = staticmethod(lambda samples: 1)

    def after(method, rounds):
        rules = LocalRules(0.0, "objective", None)
        federation = Federation(method, task, [samples], OneStepSchedule(), rules)
        state = first_state(federation)
        for _ in range(rounds):
            state, _ = run_round(federation, state)
        return float(state.server["w"])

    assert after(FedAvgM(beta=0.5), 1) == pytest.approx(0.8)  # 1 − 0.1·2
    assert after(FedAvgM(beta=0.5), 2) == pytest.approx(0.54)  # 0.8 − (0.16 + 0.5·0.2)
    # It starts at 0.7 and ends at 0.7 − 0.14.
    assert after(FedACG(lam=0.5, beta=1.0), 2) == pytest.approx(0.56)
    assert after(MimeLite(beta=0.5), 1) == pytest.approx(0.9)  # 1 − 0.1·(0.5·2)
    assert after(MimeLite(beta=0.5), 2) == pytest.approx(0.76)  # m = 1; 0.9 − 0.1·(0.5·1.8 + 0.5·1)
    # c = c_k, Δ = 1: 0.9 − 0.1·(0.5·1.8 + 0.5·1).
    assert after(SCAFFOLDM(beta=0.5), 2) == pytest.approx(0.76)
    # u = −0.2, σ = 0.2: 1 − 0.2 − 0.2.
    assert after(FedGloSS(rho=0.0, beta=1.0), 1) == pytest.approx(0.6)
    # Round 1 leaves 0.6 and βσ = 0.2; round 2 starts at 0.6 + 0.1 and moves by −0.14:
    # 0.6 − 0.14 − (0.2 + 0.14).
    assert after(FedGloSS(rho=0.1, beta=1e9), 2) == pytest.approx(0.12)
