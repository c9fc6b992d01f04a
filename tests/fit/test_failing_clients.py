"""Clients without a finite update are left out; a diverged run keeps its last good model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    FULL_PARTICIPATION,
    QUICK,
    REGRESSION_CLIENTS,
    TEST,
    ArrayDataset,
    are_equal,
    is_finite,
    linear_model,
    make_line,
    regression_model,
)
from torch import Tensor
from torch.nn import functional

from fedwmsam import SCAFFOLD, FedWMSAM, Method, Result, fit
from fedwmsam.engine import checkpoint
from fedwmsam.engine.client_state import Store, index_of
from fedwmsam.methods.vectors import Vectors

FAILING_TARGET = 99.0
"""The target that makes a client's loss NaN."""
FAILING_CLIENT = (
    REGRESSION_CLIENTS[2][0],
    np.full_like(REGRESSION_CLIENTS[2][1], FAILING_TARGET),
)


def failing_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error, or NaN if any target is the failing one."""
    loss = functional.mse_loss(outputs, targets)
    return loss * torch.nan if bool((targets == FAILING_TARGET).any()) else loss


SETTINGS: dict[str, Any] = FULL_PARTICIPATION | {"loss": failing_loss}


class UnreliableClient(ArrayDataset):
    """A client's data whose targets are the failing one while `is_failing` is set."""

    is_failing = False

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x, np.full_like(y, FAILING_TARGET) if self.is_failing else y


def fail_after(round: int, *clients: UnreliableClient) -> Callable[[Any], None]:
    """Return a callback with which the clients fail in all rounds after the given one."""

    def callback(progress: Any) -> None:
        for client in clients:
            client.is_failing = progress.record["round"] >= round

    return callback


def read_client_memories(folder: Path, round: int) -> dict[int, Vectors]:
    """Return by client the memories that the round's checkpoint refers to."""
    bundle = checkpoint.read_checkpoint(checkpoint.path_of(folder / "checkpoints", round))
    store = Store(folder / "checkpoints" / "memory.rows")
    store.check(bundle)
    memories = {client: store.read(slot) for client, slot, _ in index_of(bundle)}
    store.close()
    return memories


@pytest.mark.parametrize("averaging", ["uniform", "size"])
def test_a_client_without_a_finite_update_is_left_out_and_named(
    averaging: str, caplog: pytest.LogCaptureFixture
) -> None:
    good_clients = REGRESSION_CLIENTS[:2]
    settings = SETTINGS | {
        "method": "fedavg",
        "rounds": 3,
        "batch_size": 5,
        "averaging": averaging,
        "test": make_line(20, 9),
    }
    result = fit(regression_model, [*good_clients, FAILING_CLIENT], **settings)
    without = fit(regression_model, good_clients, **settings)
    assert result.status == "completed"
    assert result.columns["rejected"] == [[2]] * 3 and result.columns["cohort"] == [2] * 3
    assert "rejected" not in without.columns
    assert are_equal(result.model, without.model) and is_finite(result.model)
    assert result.columns["train_loss"] == without.columns["train_loss"]
    assert "left out client 2, update not finite" in caplog.text


@pytest.mark.parametrize("method", [SCAFFOLD(), FedWMSAM()], ids=lambda m: m.name)
def test_a_client_that_fails_keeps_the_memory_it_had(tmp_path: Path, method: Method) -> None:
    clients = [UnreliableClient(*data) for data in REGRESSION_CLIENTS]
    result = fit(
        regression_model,
        clients,
        method,
        run_folder=tmp_path / "run",
        checkpoint_every=1,
        callbacks=[fail_after(2, clients[1])],
        **SETTINGS | {"rounds": 3},
    )
    assert result.columns["rejected"] == [None, None, [1]]
    before = read_client_memories(tmp_path / "run", 2)
    after = read_client_memories(tmp_path / "run", 3)
    assert are_equal(before[1], after[1])
    assert before[1]["c_k"].norm() > 0
    assert not are_equal(before[0], after[0])
    assert is_finite(result.model)


def test_a_client_that_never_succeeded_has_no_memory(tmp_path: Path) -> None:
    clients = [*REGRESSION_CLIENTS[:2], FAILING_CLIENT]
    fit(regression_model, clients, SCAFFOLD(), run_folder=tmp_path / "run", **SETTINGS)
    assert read_client_memories(tmp_path / "run", 1).keys() == {0, 1}


def test_a_run_that_diverges_keeps_its_last_good_model(tmp_path: Path) -> None:
    clients = [UnreliableClient(*data) for data in REGRESSION_CLIENTS]
    settings = SETTINGS | {"validation": make_line(20, 9)}
    result = fit(
        regression_model,
        clients,
        callbacks=[fail_after(2, *clients)],
        run_folder=tmp_path / "run",
        **settings | {"rounds": 9},
    )
    assert result.status.startswith("diverged at round 3") and result.rounds == 2
    good = fit(regression_model, REGRESSION_CLIENTS, **settings | {"rounds": 2})
    assert are_equal(result.model, good.model) and result.rows == good.rows
    loaded = Result.load(tmp_path / "run")
    assert loaded.status == result.status and are_equal(loaded.model, good.model)


@pytest.mark.parametrize("method", ["fedavg", "fedcm", "scaffold", "fedwmsam"])
def test_an_absurd_step_size_ends_as_diverged_with_a_finite_model(method: str) -> None:
    settings = QUICK | {"rounds": 20, "lr": 1e30, "clip_norm": None}
    result = fit(linear_model, CLIENTS, method, test=TEST, **settings)
    assert result.status.startswith("diverged at round")
    assert is_finite(result.model) and result.rounds < 20
