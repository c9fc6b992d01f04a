"""One local step and one round against formulas: averaging, clipping, decay and sampling."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    FULL_PARTICIPATION,
    PLAIN_SGD,
    build_seeded,
    compute_gradient,
    flatten,
    linear_model,
    make_blobs,
)

from fedwmsam import FedAvg, fit


@pytest.mark.parametrize("averaging", ["uniform", "size"])
@pytest.mark.parametrize("global_lr", [1.0, 0.5])
def test_clients_are_weighed_alike_or_by_their_samples(averaging: str, global_lr: float) -> None:
    clients = [make_blobs(3, 0), make_blobs(9, 1)]
    model = build_seeded(linear_model).double()
    settings = FULL_PARTICIPATION | PLAIN_SGD | {"averaging": averaging, "lr": 0.2}
    result = fit(model, clients, FedAvg(global_lr=global_lr), **settings)
    first, second = (compute_gradient(model, data) for data in clients)
    share = 0.5 if averaging == "uniform" else 0.25
    for name, start in model.state_dict().items():
        mean = share * first[name] + (1 - share) * second[name]
        expected = start - global_lr * 0.2 * mean
        torch.testing.assert_close(result.model[name], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["objective", "sgd"])
def test_one_step_clips_and_decays_as_its_mode_says(mode: str) -> None:
    model = build_seeded(linear_model).double()
    result = fit(
        model,
        [CLIENTS[0]],
        "fedavg",
        lr=0.2,
        weight_decay=0.3,
        weight_decay_mode=mode,
        clip_norm=0.1,
        **FULL_PARTICIPATION,
    )
    w = flatten(model.state_dict())
    gradient = flatten(compute_gradient(model, CLIENTS[0]))
    decay = 0.3 * w
    if mode == "objective":  # the decay belongs to the gradient, and is clipped with it
        gradient = gradient + decay
        decay = torch.zeros_like(w)
    assert gradient.norm() > 0.1
    expected = w - 0.2 * (gradient * 0.1 / gradient.norm() + decay)
    torch.testing.assert_close(flatten(result.model), expected, rtol=1e-4, atol=1e-7)


def test_a_gradient_whose_norm_overflows_is_clipped_and_not_erased() -> None:
    """Each component fits in float32, but its square does not."""
    result = fit(
        linear_model,
        CLIENTS[:1],
        "fedavg",
        loss=lambda outputs, targets: outputs.sum() * 1e25,
        lr=1.0,
        clip_norm=10.0,
        **FULL_PARTICIPATION,
    )
    assert result.rows[0]["update_norm"] == pytest.approx(10.0, rel=1e-3)


def test_bernoulli_sampling_draws_cohorts_of_many_sizes_but_never_an_empty_one() -> None:
    clients = [*CLIENTS, *CLIENTS[:2]]
    settings: dict[str, Any] = {"rounds": 40, "local_epochs": 1, "participation": 0.2}
    bernoulli = fit(linear_model, clients, "fedavg", sampling="bernoulli", **settings)
    sizes = bernoulli.columns["cohort"]
    assert min(sizes) >= 1 and len(set(sizes)) >= 3
    assert 1.1 < np.mean(sizes) < 2.2  # 1.2 on average, 1.63 where the empty draws are repeated
    fixed = fit(linear_model, clients, "fedavg", **settings)
    assert set(fixed.columns["cohort"]) == {1}
