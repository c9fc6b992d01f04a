"""The methods beside the paper's own baselines, each against an independent numpy version, and what
is known of them exactly.

In numpy clients differ in size and so in step count, few take part, and the clip is active or not.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.linear_regression import (
    COHORTS,
    SIZES,
    START,
    N,
    batches,
    check_models,
    descend,
    global_models,
    gradient,
    step_size,
)
from helpers.small_federation import PLAIN_RULES, make_federation, run_rounds, train_weights

from fedwmsam.engine.faults import Faults
from fedwmsam.engine.rounds import run_round
from fedwmsam.methods import (
    GHBM,
    MFL,
    AdaBest,
    FedACG,
    FedAdagrad,
    FedAdam,
    FedADC,
    FedAvg,
    FedExP,
    FedHBM,
    FedNova,
    FedYogi,
    Info,
    LocalGHBM,
    Mime,
    MimeLite,
)
from fedwmsam.settings.parsers import Stragglers

# Against numpy


def train(w, cohort, r, clip, direction):
    """Return the updates of a cohort whose steps have `direction(x, rows, client)`."""
    return {
        k: descend(w, k, r, lambda x, b, k=k: direction(x, b, k), clip=clip) - w for k in cohort
    }


def average(updates):
    return np.mean(list(updates.values()), axis=0)


def mean_direction(updates, r):
    """Return the mean over the clients of −u_k/(η B_k)."""
    return np.mean([-u / (step_size(r) * len(batches(k))) for k, u in updates.items()], axis=0)


def plain(x, rows, k):
    return gradient(x, k, rows)


def ghbm(clip):
    models = [START]
    for r, cohort in enumerate(COHORTS):
        w = models[-1]
        m = (models[-3] - w) / 2 if r >= 2 else np.zeros(3)

        def direction(x, rows, k, m=m, r=r):
            return gradient(x, k, rows) + 0.7 / (step_size(r) * len(batches(k))) * m

        models.append(w + 0.9 * average(train(w, cohort, r, clip, direction)))
    return models[1:]


def local_ghbm(clip):
    w = START
    last = {}
    models = []
    for r, cohort in enumerate(COHORTS):
        m = {k: len(cohort) / N * (last.get(k, w) - w) for k in cohort}

        def direction(x, rows, k, m=m, r=r):
            return gradient(x, k, rows) + 0.7 / (step_size(r) * len(batches(k))) * m[k]

        updates = train(w, cohort, r, clip, direction)
        last.update(dict.fromkeys(cohort, w))
        w = w + average(updates)
        models.append(w)
    return models


def fedhbm(clip):
    w = START
    ends = {}
    models = []
    for r, cohort in enumerate(COHORTS):
        weight = 0.7 * len(cohort) / N / step_size(r)

        def direction(x, rows, k, weight=weight):
            away = ends[k] - x if k in ends else 0.0
            return gradient(x, k, rows) + weight / len(batches(k)) * away

        updates = train(w, cohort, r, clip, direction)
        ends.update({k: w + u for k, u in updates.items()})
        w = w + average(updates)
        models.append(w)
    return models


def fednova(clip, weights=(1, 1, 1, 1)):
    w = START
    models = []
    for r, cohort in enumerate(COHORTS):
        updates = train(w, cohort, r, clip, plain)
        total = sum(weights[k] for k in cohort)
        step = sum(weights[k] * u / len(batches(k)) for k, u in updates.items()) / total
        w = w + 0.9 * step * sum(weights[k] * len(batches(k)) for k in cohort) / total
        models.append(w)
    return models


def fedexp(clip):
    w = START
    models = []
    extrapolated = 0
    for r, cohort in enumerate(COHORTS):
        updates = train(w, cohort, r, clip, plain)
        mean = average(updates)
        ratio = np.mean([u @ u for u in updates.values()]) / (2 * (mean @ mean + 1e-3))
        extrapolated += ratio > 1
        w = w + max(1, ratio) * mean
        models.append(w)
    assert clip or extrapolated
    return models


def adabest(clip):
    w = START
    a = START
    h = np.zeros((N, 3))
    last = [-1] * N
    models = []
    for r, cohort in enumerate(COHORTS):
        updates = train(w, cohort, r, clip, lambda x, b, k: gradient(x, k, b) + 0.4 * h[k])
        for k, update in updates.items():
            h[k] = h[k] / (r - last[k]) + update
            last[k] = r
        before = a
        a = w + average(updates)
        w = a + 0.6 * (a - before)
        models.append(w)
    return models


def fedadc(clip, variant, local):
    w = START
    m = np.zeros(3)
    models = []
    for r, cohort in enumerate(COHORTS):
        push = local * m
        ahead = step_size(r) * push if variant == "nesterov" else 0.0

        def direction(x, rows, k, push=push, ahead=ahead):
            return push + gradient(x - ahead, k, rows)

        updates = train(w, cohort, r, clip, direction)
        steps = np.mean([len(batches(k)) for k in cohort])
        w = w + 0.9 * (average(updates) - step_size(r) * steps * (0.8 - local) * m)
        m = mean_direction(updates, r) + (0.8 - local) * m
        models.append(w)
    return models


def mime(clip):
    w = START
    m = np.zeros(3)
    c = None
    models = []
    for r, cohort in enumerate(COHORTS):

        def direction(x, rows, k, w=w, m=m, c=c):
            g = gradient(x, k, rows)
            if c is not None:
                g = g - gradient(w, k, rows) + c
            return 0.3 * g + 0.7 * m

        updates = train(w, cohort, r, clip, direction)
        c = np.mean([gradient(w, k) for k in cohort], axis=0)
        m = 0.3 * c + 0.7 * m
        w = w + 0.9 * average(updates)
        models.append(w)
    return models


def mfl(clip):
    w = START
    m = np.zeros(3)
    models = []
    for r, cohort in enumerate(COHORTS):
        momenta = dict.fromkeys(cohort, m)

        def direction(x, rows, k, momenta=momenta):
            momenta[k] = 0.5 * momenta[k] + gradient(x, k, rows)
            return momenta[k]

        updates = train(w, cohort, r, clip, direction)
        m = average(momenta)
        w = w + 0.9 * average(updates)
        models.append(w)
    return models


def adaptive(clip, beta1, next_s):
    w = START
    m = np.zeros(3)
    s = np.zeros(3)
    models = []
    for r, cohort in enumerate(COHORTS):
        mean = average(train(w, cohort, r, clip, plain))
        m = beta1 * m + (1 - beta1) * mean
        s = next_s(s, mean**2)
        w = w + 0.05 * m / (np.sqrt(s) + 0.1)
        models.append(w)
    return models


def fedyogi(clip):
    return adaptive(clip, 0.6, lambda s, square: s - 0.3 * square * np.sign(s - square))


def fedadagrad(clip):
    return adaptive(clip, 0.0, lambda s, square: s + square)


VERSIONS = {
    "ghbm": (GHBM(tau=2, beta=0.7, global_lr=0.9), ghbm),
    "localghbm": (LocalGHBM(beta=0.7), local_ghbm),
    "fedhbm": (FedHBM(beta=0.7), fedhbm),
    "fednova": (FedNova(global_lr=0.9), fednova),
    "fedexp": (FedExP(epsilon=1e-3), fedexp),
    "adabest": (AdaBest(mu=0.4, beta=0.6), adabest),
    "fedadc": (
        FedADC(beta=0.8, global_lr=0.9),
        lambda clip: fedadc(clip, "nesterov", 0.8),
    ),
    "fedadc split": (
        FedADC(beta=0.8, beta_local=0.5, global_lr=0.9),
        lambda clip: fedadc(clip, "nesterov", 0.5),
    ),
    "fedadc heavy ball": (
        FedADC(beta=0.8, beta_local=1.0, variant="heavy_ball", global_lr=0.9),
        lambda clip: fedadc(clip, "heavy_ball", 1.0),
    ),
    "mime": (Mime(beta=0.7, global_lr=0.9), mime),
    "mfl": (MFL(gamma=0.5, global_lr=0.9), mfl),
    "fedyogi": (FedYogi(global_lr=0.05, beta1=0.6, beta2=0.7, tau=0.1), fedyogi),
    "fedadagrad": (FedAdagrad(global_lr=0.05, tau=0.1), fedadagrad),
}
"""By name: a method, and a function that gives its global models from a clip."""


@pytest.mark.parametrize("name", VERSIONS)
def test_a_method_is_what_numpy_says(name):
    method, version = VERSIONS[name]
    check_models(method, version(None))
    check_models(method, version(0.7), clip=0.7)
    assert np.abs(version(None)[-1] - version(0.7)[-1]).max() > 1e-3, "the clip must be active"


def test_fednova_weighs_by_size_where_clients_are_averaged_so():
    models = fednova(None, SIZES)
    ours = global_models(FedNova(global_lr=0.9), averaging="size", total_samples=sum(SIZES))
    np.testing.assert_allclose(ours, models, atol=1e-12)
    assert np.abs(models[-1] - fednova(None)[-1]).max() > 1e-4


# What is known exactly


def test_fedexp_goes_at_least_as_far_as_fedavg_and_in_the_same_direction():
    federation = make_federation(FedExP(epsilon=0.0))
    further = []
    for state in run_rounds(federation)[0][:-1]:
        moves = []
        for method in (FedAvg(), FedExP(epsilon=0.0)):
            after = run_round_from(replace(federation, method=method), state)
            moves.append(after - state.server["w"])
        ratio = float(moves[1].norm() / moves[0].norm())
        assert ratio >= 1 - 1e-12 and torch.allclose(moves[1], ratio * moves[0], atol=1e-12)
        further.append(ratio > 1.001)
    assert any(further)


def run_round_from(federation, state):
    """Return the global weights after one more round."""
    return run_round(federation, state)[0].server["w"]


def test_fedexp_of_one_client_a_round_is_fedavg():
    alone = train_weights(FedExP(epsilon=0.0), per_round=1)
    assert torch.equal(alone, train_weights(FedAvg(), per_round=1))


def test_fedexp_stands_still_where_nobody_moves():
    method = FedExP(epsilon=0.0)
    zero = torch.zeros(3)
    mean = {"delta": zero, "squared_norm": torch.tensor(0.0)}
    assert torch.equal(method.aggregate({"w": zero + 1}, mean, None)["w"], zero + 1)


def test_adabest_without_drift_estimates_is_fedacg_without_a_pull():
    """Its mean model is FedACG's model, and the model it sends is FedACG's look-ahead."""
    adabest = run_rounds(make_federation(AdaBest(mu=0.0, beta=0.7)))[0][-1].server
    fedacg = run_rounds(make_federation(FedACG(lam=0.7, beta=0.0)))[0][-1].server
    assert torch.allclose(adabest["a"], fedacg["w"], atol=1e-14)
    assert torch.allclose(adabest["w"], fedacg["w"] + 0.7 * fedacg["m"], atol=1e-14)


def test_adabest_tells_rounds_apart_in_a_model_of_short_numbers():
    method = AdaBest()
    w = torch.ones(2, dtype=torch.bfloat16)
    memory = method.memory_init(w)
    info = Info(round=0, lr=0.1, clients=1, cohort=1, share=1.0)
    for r in (257, 258, 260):
        memory, _ = method.settle({}, memory, {"delta": w}, replace(info, round=r))
    assert memory["h_k"].dtype == w.dtype
    assert memory["h_k"].tolist() == [2.0, 2.0]  # (1 + 1)/2 + 1


def test_mime_begins_as_mimelite_and_goes_on_with_the_last_full_gradient():
    federation = make_federation(Mime(beta=0.7))
    states, records = run_rounds(federation, 2)
    lite, lite_records = run_rounds(make_federation(MimeLite(beta=0.7)), 2)
    for name in ("w", "m"):
        assert torch.equal(states[1].server[name], lite[1].server[name])
    assert torch.allclose(0.3 * states[1].server["c"], states[1].server["m"], atol=1e-15)
    assert not torch.allclose(states[2].server["w"], lite[2].server["w"], atol=1e-5)
    assert records[0]["backprops"] == lite_records[0]["backprops"]
    assert records[1]["backprops"] > lite_records[1]["backprops"]


def test_mfl_of_everybody_and_one_step_is_the_heavy_ball():
    federation = make_federation(
        MFL(gamma=0.6), PLAIN_RULES, sizes=(6, 6, 6), per_round=3, batch_size=6, epochs=1
    )
    states, _ = run_rounds(federation, 4)
    m = torch.zeros_like(states[0].server["w"])
    for r, (before, after) in enumerate(itertools.pairwise(states)):
        gradients = []
        for samples in federation.clients:
            batch = samples.batch(torch.arange(6))
            gradient, _ = federation.task.compute_gradient(
                before.server["w"], batch, seed=0, update_buffers=True
            )
            gradients.append(gradient)
        m = 0.6 * m + sum(gradients) / 3
        expected = before.server["w"] - federation.schedule.lr(r) * m
        assert torch.allclose(after.server["w"], expected, atol=1e-14)


def test_yogi_begins_as_adam_and_adagrad_never_forgets():
    first = {}
    for method in (FedYogi(), FedAdam()):
        first[method.name] = run_rounds(make_federation(method), 1)[0][-1].server
    for name, value in first["fedadam"].items():
        assert torch.allclose(first["fedyogi"][name], value, atol=1e-15)
    squares = [state.server["s"] for state in run_rounds(make_federation(FedAdagrad()))[0]]
    assert all((after >= before).all() for before, after in itertools.pairwise(squares))


# Fewer steps than were planned


class RecordedGHBM(GHBM):
    """GHBM that records how many steps a client was said to take, and how many it took."""

    def begin(self, down, full_gradient, info):
        SAID.append(info.steps)
        TAKEN.append(0)
        scratch = super().begin(down, full_gradient, info)
        assert torch.allclose(info.lr * info.steps * scratch["push"], self.beta * down["m"])
        return scratch

    def direction(self, w, grad, down, scratch):
        TAKEN[-1] += 1
        return super().direction(w, grad, down, scratch)


SAID: list[int] = []
TAKEN: list[int] = []


def test_a_client_that_takes_fewer_steps_is_pushed_as_far():
    faults = Faults(seed=2, clients=5, stragglers=Stragglers(0.6, 3.0, partial=True))
    federation = make_federation(RecordedGHBM(tau=1))
    planned = []
    for r in range(4):
        for client in federation.schedule.cohort(r):
            samples = len(federation.clients[client])
            planned.append(federation.schedule.step_count(r, client, samples))
    run_rounds(replace(federation, faults=faults), 4)
    assert SAID == TAKEN and sum(TAKEN) < sum(planned)


@pytest.mark.parametrize("method", [FedAdam, FedYogi])
def test_no_value_by_position_means_tau(method: type[FedAdam]) -> None:
    assert method(0.1, 0.9, 0.99).beta2 == 0.99
    with pytest.raises(TypeError):
        method(0.1, 0.9, 0.99, 0.01)  # type: ignore[misc]
