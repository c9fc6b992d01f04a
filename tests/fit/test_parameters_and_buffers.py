"""Tied and frozen parameters, BatchNorm's statistics and other buffers, and dropout's masks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    FULL_PARTICIPATION,
    PLAIN_SGD,
    QUICK,
    TEST,
    are_equal,
    build_seeded,
    compute_gradient,
    flatten,
    is_finite,
    linear_model,
    make_blobs,
    stateful_model,
)
from torch import Tensor, nn

from fedwmsam import SCAFFOLD, FedAvg, FedWMSAM, InputError, Method, Result, fit
from fedwmsam.methods import Gradient, Info
from fedwmsam.methods.vectors import Vectors


class TiedModel(nn.Module):
    """A classifier whose first two layers share one weight matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decode(torch.tanh(self.encode(x))))


def test_tied_parameters_are_trained_as_one_and_stay_tied(tmp_path: Path) -> None:
    model = build_seeded(TiedModel)
    settings = FULL_PARTICIPATION | {"run_folder": tmp_path / "run"}
    result = fit(model, CLIENTS, "fedavg", **settings)
    assert set(result.model) == set(model.state_dict())
    assert torch.equal(result.model["encode.weight"], result.model["decode.weight"])
    assert not torch.equal(result.model["encode.weight"], model.encode.weight.detach())
    parameters = 4 * 4 + 4 * 3 + 3
    bytes_per_client = 4 * parameters
    assert result.rows[0]["bytes_up"] == len(CLIENTS) * bytes_per_client
    assert result.rows[0]["bytes_down"] == len(CLIENTS) * bytes_per_client
    other = TiedModel()
    other.load_state_dict(result.model)
    assert other.encode.weight is other.decode.weight
    loaded = Result.load(tmp_path / "run", model=TiedModel)
    assert are_equal(loaded.model, result.model)
    assert torch.equal(loaded.predict(TEST[0]), result.predict(TEST[0]))


def test_a_tied_parameters_gradient_has_both_paths() -> None:
    model = build_seeded(TiedModel).double()
    x, y = CLIENTS[0]
    clients = [(x.astype(np.float64), y)]
    result = fit(model, clients, "fedavg", lr=0.1, **FULL_PARTICIPATION, **PLAIN_SGD)
    gradient = compute_gradient(model, CLIENTS[0])["encode.weight"]
    expected = model.encode.weight.detach() - 0.1 * gradient
    torch.testing.assert_close(result.model["decode.weight"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD(), FedWMSAM()], ids=lambda m: m.name)
def test_frozen_parameters_stay_as_they_are(method: Method) -> None:
    model = build_seeded(stateful_model)
    model[0].requires_grad_(False)
    initial = model.state_dict()
    result = fit(model, CLIENTS, method, weight_decay=0.1, **QUICK)
    for name in ("0.weight", "0.bias"):
        assert torch.equal(result.model[name], initial[name])
    assert not torch.equal(result.model["4.weight"], initial["4.weight"])
    trained_bytes = 4 * (6 + 6 + 6 * 3 + 3)
    buffer_bytes = 4 * 6 + 4 * 6 + 8
    assert result.rows[0]["bytes_up"] == 2 * (trained_bytes + buffer_bytes)


def test_a_loaded_run_predicts_with_its_own_frozen_weights(tmp_path: Path) -> None:
    def half_frozen_model() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
        model[0].requires_grad_(False)
        return model

    model = build_seeded(half_frozen_model, 1)
    result = fit(model, CLIENTS, run_folder=tmp_path / "run", **QUICK)
    loaded = Result.load(tmp_path / "run", model=build_seeded(half_frozen_model, 2))
    assert torch.equal(loaded.predict(TEST[0]), result.predict(TEST[0]))


def batchnorm_model() -> nn.Module:
    """Return a linear classifier, in double precision, behind BatchNorm of the inputs."""
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


@pytest.mark.parametrize("averaging", ["uniform", "size"])
def test_batchnorm_statistics_are_averaged_over_the_clients(averaging: str) -> None:
    model = build_seeded(batchnorm_model)
    result = fit(model, CLIENTS[:2], "fedavg", averaging=averaging, **FULL_PARTICIPATION)
    weights = np.array([0.5, 0.5] if averaging == "uniform" else [12 / 20, 8 / 20])
    inputs = [x.astype(np.float64) for x, _ in CLIENTS[:2]]
    means = np.stack([0.1 * x.mean(axis=0) for x in inputs])
    variances = np.stack([0.9 + 0.1 * x.var(axis=0, ddof=1) for x in inputs])
    running_mean = result.model["0.running_mean"].numpy()
    running_var = result.model["0.running_var"].numpy()
    np.testing.assert_allclose(running_mean, weights @ means, rtol=1e-12)
    np.testing.assert_allclose(running_var, weights @ variances, rtol=1e-12)
    parameter_bytes = 8 * (4 + 4 + 4 * 3 + 3)
    buffer_bytes = 8 * (4 + 4) + 8
    assert result.rows[0]["bytes_up"] == 2 * (parameter_bytes + buffer_bytes)
    assert result.rows[0]["bytes_down"] == result.rows[0]["bytes_up"]


def test_batchnorm_counts_the_batches_of_the_client_that_had_most() -> None:
    clients = [make_blobs(4, 0), make_blobs(12, 1), make_blobs(8, 2)]  # 1, 3 and 2 steps
    settings = FULL_PARTICIPATION | {"batch_size": 4, "rounds": 2}
    result = fit(build_seeded(batchnorm_model), clients, "fedavg", **settings)
    assert int(result.model["0.num_batches_tracked"]) == 6


def test_a_last_batch_of_one_sample_does_not_crash_batchnorm() -> None:
    """Of 13 samples in batches of 6 one is left, on which PyTorch's BatchNorm cannot train."""
    try:
        result = fit(stateful_model, [make_blobs(13, 0)] * 2, **QUICK)
    except InputError as error:
        assert "batch_size" in str(error) and "Client" in str(error)
    else:
        assert result.status == "completed" and is_finite(result.model)


class PassCounter(nn.Module):
    """A model that replaces its buffer instead of changing it in place, as many modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes = self.passes + 1
        return self.linear(x)


def test_a_buffer_that_its_module_replaces_is_averaged_like_any_other() -> None:
    result = fit(PassCounter, CLIENTS, "fedavg", **FULL_PARTICIPATION | {"rounds": 3})
    assert float(result.model["passes"]) == 3


def test_a_client_whose_statistics_overflow_does_not_spoil_the_model() -> None:
    """Squares beyond float32 leave the update finite, but not BatchNorm's running variance."""
    huge = (CLIENTS[1][0] * np.float32(1e30), CLIENTS[1][1])
    model = build_seeded(lambda: batchnorm_model().float())
    settings = FULL_PARTICIPATION | {"rounds": 3}
    result = fit(model, [CLIENTS[0], huge, CLIENTS[2]], "fedavg", test=TEST, **settings)
    assert is_finite(result.model)
    is_left_out = all(row.get("rejected") == [1] for row in result.rows)
    assert is_left_out or result.status.startswith("diverged")


GRADIENT_PAIRS: list[tuple[Tensor, Tensor]] = []
"""The two gradients of every step that RepeatedGradient took."""


@dataclass(frozen=True)
class RepeatedGradient(FedAvg):
    """FedAvg that computes the gradient twice at one point, as SAM does at two points."""

    name = "twice"

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        first = grad(w)
        second = grad(w)
        # The training loop writes into the memory of the returned tensor.
        GRADIENT_PAIRS.append((first, second.clone()))
        return second, scratch


def test_a_second_gradient_sees_the_same_dropout_and_moves_no_statistics() -> None:
    GRADIENT_PAIRS.clear()
    twice = fit(stateful_model, CLIENTS, RepeatedGradient(), **QUICK)
    once = fit(stateful_model, CLIENTS, FedAvg(), **QUICK)
    assert len(GRADIENT_PAIRS) > 10
    assert all(torch.equal(first, second) for first, second in GRADIENT_PAIRS)
    assert are_equal(twice.model, once.model)
    assert [row["backprops"] for row in twice.rows] == [2 * row["backprops"] for row in once.rows]
    assert twice.columns["train_loss"] == once.columns["train_loss"]


def test_dropout_draws_anew_in_every_step_of_every_client() -> None:
    GRADIENT_PAIRS.clear()
    model = build_seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 2)))
    client = (np.ones((4, 40), np.float32), np.zeros(4, np.int64))
    settings = FULL_PARTICIPATION | {"rounds": 2, "local_epochs": 2, "batch_size": 2}
    fit(model, [client, client], RepeatedGradient(), lr=1e-12, **settings, **PLAIN_SGD)
    masks = {tuple((first[:40] != 0).tolist()) for first, _ in GRADIENT_PAIRS}
    assert len(masks) == len(GRADIENT_PAIRS) == 16


FULL_GRADIENTS: list[tuple[Tensor, Tensor]] = []
"""The weights at which FullGradientRecorder began to train, and the full gradient there."""


@dataclass(frozen=True)
class FullGradientRecorder(FedAvg):
    """FedAvg that looks at the gradient over all local data before it trains."""

    name = "surveying"

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        FULL_GRADIENTS.append((down["w"], full_gradient(down["w"])))
        return {}


@pytest.mark.parametrize("mode", ["objective", "sgd"])
def test_the_full_gradient_is_that_of_all_local_data(mode: str) -> None:
    FULL_GRADIENTS.clear()
    model = build_seeded(linear_model).double()
    settings = FULL_PARTICIPATION | {
        "batch_size": 5,
        "local_epochs": 2,
        "weight_decay": 0.1,
        "weight_decay_mode": mode,
    }
    recorded = fit(model, CLIENTS[:1], FullGradientRecorder(), **settings)
    plain = fit(model, CLIENTS[:1], FedAvg(), **settings)
    w, full_gradient = FULL_GRADIENTS[0]
    expected = flatten(compute_gradient(model, CLIENTS[0]))
    if mode == "objective":
        expected = expected + 0.1 * w
    torch.testing.assert_close(full_gradient, expected, rtol=1e-12, atol=1e-12)
    assert recorded.rows[0]["backprops"] == plain.rows[0]["backprops"] + 3
    assert are_equal(recorded.model, plain.model)


def test_the_full_gradient_moves_no_statistics() -> None:
    recorded = fit(stateful_model, CLIENTS, FullGradientRecorder(), **QUICK)
    plain = fit(stateful_model, CLIENTS, FedAvg(), **QUICK)
    assert are_equal(recorded.model, plain.model)
