"""`initial_weights`: a run that begins at given weights instead of drawn ones."""

from pathlib import Path

import torch
from helpers.fit_problems import (
    CLIENTS,
    FULL_PARTICIPATION,
    QUICK,
    TEST,
    are_equal,
    build_seeded,
    stateful_model,
)
from torch import nn

from fedwmsam import fit


def test_a_warm_start_begins_at_the_given_weights() -> None:
    source = build_seeded(stateful_model, 7)
    source.train()
    source(torch.from_numpy(TEST[0]))  # moves BatchNorm's statistics away from the initial ones
    weights = source.state_dict()
    settings = FULL_PARTICIPATION | {"lr": 1e-9}
    model = build_seeded(stateful_model, 8)
    result = fit(model, CLIENTS, "fedavg", initial_weights=weights, **settings)
    for name, parameter in source.named_parameters():
        torch.testing.assert_close(result.model[name], parameter.detach(), rtol=0, atol=1e-6)
    # BatchNorm moves by a tenth from the given statistics, not from zero, to the clients' batches.
    assert int(weights["1.num_batches_tracked"]) == 1
    assert int(result.model["1.num_batches_tracked"]) == 2
    with torch.no_grad():
        means = [source[0](torch.from_numpy(x)).mean(dim=0) for x, _ in CLIENTS]
    expected = 0.9 * weights["1.running_mean"] + 0.1 * torch.stack(means).mean(dim=0)
    torch.testing.assert_close(result.model["1.running_mean"], expected, rtol=1e-4, atol=1e-5)


def test_a_warm_start_from_the_models_own_weights_changes_nothing() -> None:
    model = build_seeded(stateful_model)
    result = fit(model, CLIENTS, initial_weights=model.state_dict(), **QUICK)
    assert are_equal(result.model, fit(model, CLIENTS, **QUICK).model)


def half_frozen_model() -> nn.Module:
    """Return a classifier whose first layer is not trained."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


def test_a_warm_start_takes_frozen_weights_too() -> None:
    weights = build_seeded(half_frozen_model, 1).state_dict()
    model = build_seeded(half_frozen_model, 0)
    result = fit(model, CLIENTS, initial_weights=weights, **FULL_PARTICIPATION)
    assert torch.equal(result.model["0.weight"], weights["0.weight"])


def test_frozen_weights_of_a_warm_start_are_in_the_checkpoint(tmp_path: Path) -> None:
    drawn = half_frozen_model().state_dict()
    weights = {name: value + 0.1 for name, value in drawn.items()}
    folder = tmp_path / "run"
    uninterrupted = fit(half_frozen_model, CLIENTS, rounds=4, initial_weights=weights)
    fit(half_frozen_model, CLIENTS, rounds=2, initial_weights=weights, run_folder=folder)
    resumed = fit(half_frozen_model, CLIENTS, rounds=4, run_folder=folder, resume=True)
    assert are_equal(uninterrupted.model, resumed.model)
