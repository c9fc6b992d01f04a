"""Losses and metrics: those with a name, those of the user, and what a monitor makes of them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    QUICK,
    REGRESSION_CLIENTS,
    Arrays,
    are_equal,
    build_seeded,
    linear_model,
    make_line,
    regression_model,
)
from torch import Tensor
from torch.nn import functional

from fedwmsam import InputError, fit


def test_regression_learns_the_line() -> None:
    x, y = make_line(30, 5)
    result = fit(
        regression_model,
        REGRESSION_CLIENTS,
        "fedavg",
        loss="regression",
        test=(x, y),
        rounds=40,
        lr=0.1,
        participation=1.0,
        local_epochs=2,
        weight_decay=0.0,
    )
    assert result.last("loss") < 1e-3 < result.columns["loss"][0]
    slope = torch.tensor([[1.0, -2, 0, 0]])
    torch.testing.assert_close(result.model["weight"], slope, rtol=0, atol=0.05)
    errors = result.predict(x).numpy() - y
    assert result.last("mae") == pytest.approx(float(np.abs(errors).mean()), rel=1e-4)


def test_regression_takes_whole_number_targets() -> None:
    integers = [(x, np.round(10 * y).astype(np.int64)) for x, y in REGRESSION_CLIENTS]
    floats = [(x, y.astype(np.float32)) for x, y in integers]
    of_integers = fit(regression_model, integers, loss="regression", **QUICK)
    of_floats = fit(regression_model, floats, loss="regression", **QUICK)
    assert are_equal(of_integers.model, of_floats.model)


@pytest.mark.parametrize(
    ("monitor", "choose"), [("-mae", min), ("mae", max), ("loss", min), (None, min)]
)
def test_the_monitor_says_what_is_better(
    monitor: str | None, choose: Callable[[list[float]], float]
) -> None:
    result = fit(
        regression_model,
        REGRESSION_CLIENTS,
        "fedavg",
        loss="regression",
        monitor=monitor,
        validation=make_line(30, 5),
        lr=0.1,
        **QUICK | {"rounds": 6},
    )
    metric = (monitor or "loss").removeprefix("-")
    scores = result.columns[f"validation_{metric}"]
    assert result.best_round == 1 + scores.index(choose(scores))
    assert min(scores) != max(scores)


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.float64])
def test_multilabel_targets_of_any_kind_are_learned_and_scored_per_label(kind: type) -> None:
    def make_labelled(seed: int) -> Arrays:
        x = np.random.default_rng(seed).normal(size=(30, 4)).astype(np.float32)
        return x, (x[:, :3] > 0).astype(kind)

    x, y = make_labelled(9)
    result = fit(
        linear_model,
        [make_labelled(seed) for seed in range(3)],
        "fedavg",
        loss="multilabel",
        test=(x, y),
        validation=make_labelled(8),
        rounds=20,
        lr=0.5,
        participation=1.0,
        local_epochs=5,
    )
    is_right = (result.predict(x).numpy() > 0) == y.astype(bool)
    assert result.last("label_accuracy") == pytest.approx(is_right.mean())
    assert is_right.mean() > 0.9
    scores = result.columns["validation_label_accuracy"]
    assert result.best_round == 1 + scores.index(max(scores))


def test_an_own_loss_and_an_own_metric_see_all_outputs_at_once() -> None:
    sizes: list[int] = []

    def median_error(outputs: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(outputs))
        return (outputs - targets).abs().median()

    x, y = make_line(1203, 5)
    result = fit(
        regression_model,
        REGRESSION_CLIENTS,
        loss=functional.huber_loss,
        metrics={"median": median_error},
        monitor="-median",
        test=(x, y),
        validation=make_line(20, 6),
        **QUICK,
    )
    assert sizes == [20, 1203] * 3
    errors = np.abs(result.predict(x).numpy() - y)
    assert result.last("median") == pytest.approx(float(np.sort(errors.ravel())[601]), rel=1e-5)
    assert result.best_round == 1 + int(np.argmin(result.columns["validation_median"]))


def test_the_own_loss_is_what_is_minimised() -> None:
    model = build_seeded(regression_model)
    by_name = fit(model, REGRESSION_CLIENTS, "fedavg", loss="regression", **QUICK)
    squared = fit(model, REGRESSION_CLIENTS, "fedavg", loss=functional.mse_loss, **QUICK)
    absolute = fit(model, REGRESSION_CLIENTS, "fedavg", loss=functional.l1_loss, **QUICK)
    assert are_equal(by_name.model, squared.model)
    assert not are_equal(by_name.model, absolute.model)


def test_a_metric_that_would_hide_a_column_is_refused() -> None:
    def mean_output(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()

    for name in ("alpha", "validation_loss", "round"):
        with pytest.raises(InputError, match=name):
            fit(linear_model(), CLIENTS, rounds=1, test=CLIENTS[0], metrics={name: mean_output})
