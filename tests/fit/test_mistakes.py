"""Mistakes are refused in one sentence that names what is wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    QUICK,
    REGRESSION_CLIENTS,
    TEST,
    ArrayDataset,
    linear_model,
    make_blobs,
    regression_model,
    stateful_model,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedwmsam import FedAvg, InputError, fit
from fedwmsam.methods import make_method


class Untrainable(nn.Module):
    """A module without any parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def frozen_model() -> nn.Module:
    return linear_model().requires_grad_(False)


def loss_of_each(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def failing_metric(outputs: Tensor, targets: Tensor) -> Tensor:
    raise KeyError("positive")


GOOD_X, GOOD_Y = CLIENTS[2]
X_WITH_NAN = np.where(np.arange(56).reshape(14, 4) == 7, np.nan, GOOD_X)
REGRESSION: dict[str, Any] = {"model": regression_model, "loss": "regression"}
ONE_SAMPLE: dict[str, Any] = {
    "model": stateful_model,
    "clients": [CLIENTS[0], (GOOD_X[:1], GOOD_Y[:1])],
}
LAZY_CLIENTS: dict[str, Any] = {"clients": lambda client: CLIENTS[client]}


def with_client(x: np.ndarray = GOOD_X, y: np.ndarray = GOOD_Y) -> dict[str, Any]:
    """Return clients of which only the third, number 2, may have something wrong."""
    return {"clients": [*CLIENTS[:2], (x, y)]}


MISTAKES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no clients": ({"clients": []}, ["no clients"]),
    "no lazy clients": (LAZY_CLIENTS | {"client_count": 0}, ["client"]),
    "lazy without count": (LAZY_CLIENTS, ["client_count"]),
    "wrong count": ({"client_count": 3}, ["client_count", "3", "4"]),
    "one pair for a list": ({"clients": CLIENTS[0]}, ["(x, y)", "each client"]),
    "a set": ({"clients": {1, 2}}, ["clients", "not set"]),
    "an empty client": (
        with_client(x=np.zeros((0, 4)), y=np.zeros(0, int)),
        ["Client 2", "no data"],
    ),
    "an empty dataset": (
        {"clients": [ArrayDataset(*CLIENTS[0]), ArrayDataset(*make_blobs(0, 0))]},
        ["Client 1", "no data"],
    ),
    "a client of three": ({"clients": [(x, y, y) for x, y in CLIENTS]}, ["Client 0", "(x, y)"]),
    "no data at all": ({"clients": [CLIENTS[0], 5]}, ["Client 1", "int"]),
    "words": (with_client(x=np.array([["a"] * 4] * 14)), ["numbers"]),
    "label too large": (with_client(y=GOOD_Y + 1), ["Client 2", "3", "0 to 2"]),
    "negative label": (with_client(y=GOOD_Y - 1), ["Client 2", "-1", "0 to 2"]),
    "label too large, dataset": (
        {"clients": [ArrayDataset(x, y + 1) for x, y in CLIENTS]},
        ["Client", "3", "0 to 2"],
    ),
    "float labels": (with_client(y=GOOD_Y.astype(float)), ["Client 2", "whole numbers"]),
    "column of labels": (with_client(y=GOOD_Y[:, None]), ["Client 2", "(14, 1)"]),
    "lengths": (with_client(y=GOOD_Y[:-1]), ["Client 2", "14", "13"]),
    "first client's shape": (
        {"clients": [(x[:, :3], y) for x, y in CLIENTS]},
        ["Client 0", "(1, 3)"],
    ),
    "another client's shape": (with_client(x=GOOD_X[:, :3]), ["Client 2", "3)"]),
    "the test data's shape": ({"test": (TEST[0][:, :3], TEST[1])}, ["test data", "3)"]),
    "the validation data's shape": (
        {"validation": (TEST[0][:, :3], TEST[1])},
        ["validation data", "3)"],
    ),
    "test labels": ({"test": (TEST[0], TEST[1] + 1)}, ["test data", "3", "0 to 2"]),
    "NaN": (with_client(x=X_WITH_NAN), ["Client 2", "NaN"]),
    "NaN in a dataset": (
        {"clients": [ArrayDataset(X_WITH_NAN, GOOD_Y)] * 2, "participation": 1.0},
        ["Client 0", "NaN"],
    ),
    "NaN in the test data": ({"test": (X_WITH_NAN, GOOD_Y)}, ["test data", "NaN"]),
    "infinite targets": (
        REGRESSION | {"clients": [(x, y * np.inf) for x, y in REGRESSION_CLIENTS]},
        ["Client 0", "targets", "infinity"],
    ),
    "regression shapes": (
        REGRESSION | {"clients": [(x, y[:, 0]) for x, y in REGRESSION_CLIENTS]},
        ["y[:, None]"],
    ),
    "multilabel shapes": ({"loss": "multilabel"}, ["shape"]),
    "method": ({"method": "fedwsam"}, ["fedwsam", "'fedwmsam'"]),
    "method class": ({"method": FedAvg}, ["FedAvg"]),
    "loss": ({"loss": "regresion"}, ["regresion", "'regression'"]),
    "monitor": ({"monitor": "acuracy"}, ["acuracy", "'accuracy'"]),
    "validation share": ({"validation": 1.5}, ["validation", "1.5"]),
    "tiny validation share": ({"validation": 0.001}, ["validation", "0.001"]),
    "lazy validation share": (
        LAZY_CLIENTS | {"client_count": 4, "validation": 0.1},
        ["validation=(x, y)"],
    ),
    "patience": ({"patience": 3}, ["patience", "validation"]),
    "target": ({"target_accuracy": 0.9}, ["target_accuracy", "test"]),
    "target without accuracy": (
        REGRESSION
        | {
            "clients": REGRESSION_CLIENTS,
            "test": REGRESSION_CLIENTS[0],
            "target_accuracy": 0.9,
        },
        ["target_accuracy", "accuracy"],
    ),
    "no parameters": ({"model": Untrainable()}, ["trainable"]),
    "all frozen": ({"model": frozen_model}, ["trainable", "requires_grad"]),
    "a word for a model": ({"model": "mlp"}, ["nn.Module", "str"]),
    "nothing for a model": ({"model": None}, ["nn.Module", "None"]),
    "a factory of words": ({"model": lambda: "mlp"}, ["nn.Module", "str"]),
    "a model without values": ({"model": linear_model().to("meta")}, ["'weight'", "meta device"]),
    "a word for collate": ({"collate": "pad"}, ["collate", "function", "'pad'"]),
    "weights lack one": ({"initial_weights": {"weight": torch.zeros(3, 4)}}, ["bias"]),
    "weights have one more": (
        {"initial_weights": linear_model().state_dict() | {"x": torch.zeros(1)}},
        ["'x'"],
    ),
    "weights of another shape": ({"initial_weights": nn.Linear(3, 3).state_dict()}, ["weight"]),
    "device": ({"device": "tpuu"}, ["device", "tpuu"]),
    "a loss for each sample": ({"loss": loss_of_each}, ["loss", "one number", "(6,)", "mean"]),
    "a loss without gradient": ({"loss": lambda a, b: cross_entropy(a, b).item()}, [".item()"]),
    "a detached loss": ({"loss": lambda a, b: cross_entropy(a, b).detach()}, [".detach()"]),
    "the class of a loss": (
        {"loss": nn.CrossEntropyLoss},
        ["class CrossEntropyLoss", "CrossEntropyLoss()"],
    ),
    "no function as loss": ({"loss": 0.5}, ["loss", "function of (outputs, targets)", "0.5"]),
    "names of metrics": ({"metrics": ["f1"]}, ["metrics", "mapping", "['f1']"]),
    "a name as metric": ({"metrics": {"f1": "f1"}}, ["metric 'f1'", "function"]),
    "the class of a metric": ({"metrics": {"mse": nn.MSELoss}}, ["metric 'mse'", "MSELoss()"]),
    "a metric that fails": (
        {"metrics": {"mse": cross_entropy, "f1": failing_metric}, "test": TEST},
        ["metric 'f1' failed", "KeyError: 'positive'", "(40, 3)", "(40,)"],
    ),
    "epochs": ({"epochs": 3}, ["argument of fit 'epochs'", "Did you mean 'local_epochs'?"]),
    "learning rate": ({"learning_rate": 0.1}, ["'learning_rate'", "Did you mean 'lr'?"]),
    "another paper's name of an option": (
        {"mu": 0.1, "method": "fedprox"},
        ["option of the method: pass method=FedProx(lam=...)"],
    ),
    "no device": ({"device": None}, ["device", "None"]),
    "an option": ({"rho": 0.1}, ["option of the method: pass method=FedWMSAM(rho=...)"]),
    "early stopping": ({"early_stopping": 3}, ["Did you mean 'patience'?"]),
    "a typo": ({"round": 3}, ["'round'", "Did you mean 'rounds'?"]),
    "resume nothing": ({"resume": True}, ["resume=True", "run_folder="]),
    "monitor nothing": ({"monitor": "accuracy"}, ["'accuracy'", "validation="]),
    "BatchNorm of one sample": (
        ONE_SAMPLE | {"last_batch": "merge"},
        ["Client 1 has one sample", "leave the client out", "GroupNorm"],
    ),
    "BatchNorm of single samples": (
        {"model": stateful_model, "batch_size": 1, "last_batch": "drop"},
        ["Client 0", "raise batch_size"],
    ),
    "rounds": ({"rounds": 0}, ["rounds", "0"]),
    "lr": ({"lr": -1.0}, ["lr", "-1.0"]),
    "participation": ({"participation": 1.5}, ["participation", "1.5"]),
    "clients per round": ({"clients_per_round": 5}, ["clients_per_round", "5", "4"]),
    "averaging": ({"averaging": "weighted"}, ["averaging", "uniform"]),
    "run folder is a file": ({"run_folder": Path(__file__)}, [Path(__file__).name]),
    "run folder below a file": ({"run_folder": Path(__file__) / "run"}, [Path(__file__).name]),
}
"""By name: the arguments of `fit` that are wrong, and words that the refusal must contain."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str) -> None:
    mistake, words = MISTAKES[name]
    with pytest.raises(InputError) as caught:
        fit(**{"model": linear_model, "clients": CLIENTS} | QUICK | mistake)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedwmsan", {}, ["Unknown method 'fedwmsan'", "Did you mean 'fedwmsam'?"]),
        ("fedwmsam", {"rhoo": 0.1}, ["Unknown option of fedwmsam 'rhoo'", "Did you mean 'rho'?"]),
        ("fedwmsam", {"alpha": 1.0}, ["alpha", "1.0"]),
        ("fedwmsam", {"alpha": 0.0}, ["alpha", "0.0"]),
        ("fedcm", {"alpha": -0.1}, ["alpha", "-0.1"]),
        ("fedwmsam", {"rho": -0.1}, ["rho", "-0.1"]),
        ("fedwmsam", {"rho": float("nan")}, ["rho", "nan"]),
        ("fedwmsam", {"adapt_rate": 2}, ["adapt_rate", "2"]),
        ("fedwmsam", {"similarity": "cosine"}, ["similarity", "personalized"]),
        ("fedwmsam", {"alpha_min": 0.8, "alpha_max": 0.2}, ["alpha_min", "alpha_max"]),
        ("fedavg", {"global_lr": -1}, ["fedavg: global_lr", "-1"]),
        ("fedavg", {"rho": 0.1}, ["rho", "fedavg"]),
    ],
)
def test_a_methods_bad_option_is_explained(
    name: str, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        make_method(name, **options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_new_data_of_the_wrong_shape_are_explained() -> None:
    result = fit(linear_model, CLIENTS, **QUICK)
    with pytest.raises(InputError, match="3"):
        result.evaluate((TEST[0][:, :3], TEST[1]))
    with pytest.raises(InputError, match="3"):
        result.predict(TEST[0][:, :3])
