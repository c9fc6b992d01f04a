"""The best model is chosen on validation data, and stopping rules end a run as they say."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    FULL_PARTICIPATION,
    QUICK,
    REGRESSION_CLIENTS,
    TEST,
    VALIDATION,
    ArrayDataset,
    Arrays,
    are_equal,
    linear_model,
    make_line,
    regression_model,
)
from torch import Tensor, nn

from fedwmsam import fit


def make_two_classes(samples: int, seed: int) -> Arrays:
    """Return samples whose class is the sign of the first feature."""
    x = np.random.default_rng(seed).normal(size=(samples, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def two_class_model() -> nn.Module:
    return nn.Linear(4, 2)


TWO_CLASS_CLIENTS = [make_two_classes(20, seed) for seed in range(4)]
HELD_OUT = make_two_classes(50, 9)
HELD_OUT_FLIPPED = (HELD_OUT[0], 1 - HELD_OUT[1])
"""The same samples with every label wrong: the better the model, the lower its accuracy."""
WRONG_WEIGHTS = {"weight": torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]), "bias": torch.zeros(2)}
"""Initial weights that take every sample for one of the other class."""
IMPROVING: dict[str, Any] = {
    "method": "fedavg",
    "lr": 0.3,
    "participation": 1.0,
    "local_epochs": 1,
    "initial_weights": WRONG_WEIGHTS,
}
"""Settings with which accuracy on the two classes rises from 0 over some tens of rounds."""


def test_the_best_model_is_chosen_on_validation_and_never_on_test() -> None:
    states = []
    result = fit(
        two_class_model,
        TWO_CLASS_CLIENTS,
        test=HELD_OUT_FLIPPED,
        validation=HELD_OUT,
        rounds=25,
        callbacks=[lambda progress: states.append(progress.state_dict())],
        **IMPROVING,
    )
    scores = result.columns["validation_accuracy"]
    test_scores = result.columns["accuracy"]
    assert test_scores == pytest.approx([1 - score for score in scores])
    assert max(scores) - scores[0] > 0.5
    assert result.best_round == 1 + scores.index(max(scores))
    assert result.best_round != 1 + test_scores.index(max(test_scores))
    assert are_equal(result.best_model, states[result.best_round - 1])
    assert result.evaluate(HELD_OUT, best=True)["accuracy"] == max(scores)


class SampleRecorder(nn.Module):
    """A model that records the numbers of the samples it is trained and evaluated on.

    A sample's only feature is its number. The outputs are the number and a trained multiple of it.
    """

    trained: ClassVar[set[int]] = set()
    evaluated: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        record = self.trained if self.training else self.evaluated
        record.update(x[:, 0].long().tolist())
        return torch.cat([x, self.weight * x], dim=1)


def count_misplaced(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the number of samples whose target is that of another sample."""
    return (outputs[:, :1] != targets).sum()


@pytest.mark.parametrize("form", ["pairs", "datasets"])
def test_a_validation_share_is_cut_from_every_client_and_trained_on_by_none(form: str) -> None:
    owner = np.repeat(np.arange(4), (10, 20, 5, 1))
    clients: list[Any] = []
    for client in range(4):
        numbers = np.flatnonzero(owner == client).astype(np.float32)[:, None]
        clients.append((numbers, numbers) if form == "pairs" else ArrayDataset(numbers, numbers))
    SampleRecorder.trained.clear()
    SampleRecorder.evaluated.clear()
    result = fit(
        SampleRecorder,
        clients,
        "fedavg",
        validation=0.2,
        loss=lambda outputs, targets: outputs.square().mean() * 1e-6,
        metrics={"misplaced": count_misplaced},
        participation=1.0,
        rounds=2,
        local_epochs=1,
        batch_size=4,
    )
    # A look at the shape of the inputs may have evaluated samples that are trained on.
    held_out = SampleRecorder.evaluated - SampleRecorder.trained
    assert held_out | SampleRecorder.trained == set(range(36))
    assert np.bincount(owner[sorted(held_out)], minlength=4).tolist() == [2, 4, 1, 0]
    assert result.columns["validation_misplaced"] == [0, 0]


def test_a_validation_share_moves_with_the_seed() -> None:
    losses = []
    for seed in (0, 0, 1):
        result = fit(linear_model, CLIENTS, validation=0.3, seed=seed, **FULL_PARTICIPATION)
        losses.append(result.last("validation_loss"))
    assert losses[0] == losses[1] != losses[2]


def test_patience_ends_a_run_that_no_longer_improves() -> None:
    settings = QUICK | {"rounds": 50, "lr": 1e-9, "weight_decay": 0.0}
    result = fit(linear_model, CLIENTS, validation=VALIDATION, patience=4, **settings)
    assert result.best_round == 1 and result.rounds == 5
    assert "no better validation score" in result.status


def test_patience_counts_only_what_was_evaluated() -> None:
    """Every evaluation is better than the last; rounds between two are no failure to improve."""
    result = fit(
        regression_model,
        REGRESSION_CLIENTS,
        "fedavg",
        loss="regression",
        validation=make_line(30, 5),
        evaluate_every=4,
        patience=2,
        rounds=12,
        lr=0.01,
        local_epochs=1,
        participation=1.0,
    )
    scores = [score for score in result.columns["validation_loss"] if score is not None]
    assert scores == sorted(scores, reverse=True)
    assert result.status == "completed" and result.rounds == 12


def test_the_target_ends_the_run_when_it_is_first_reached() -> None:
    result = fit(
        two_class_model,
        TWO_CLASS_CLIENTS,
        test=HELD_OUT,
        target_accuracy=0.8,
        rounds=60,
        **IMPROVING,
    )
    accuracies = result.columns["accuracy"]
    assert accuracies[-1] >= 0.8 > max(accuracies[:-1])
    assert result.status == "reached accuracy 0.8"


def test_the_target_is_judged_on_validation_where_there_is_any() -> None:
    result = fit(
        two_class_model,
        TWO_CLASS_CLIENTS,
        test=HELD_OUT_FLIPPED,
        validation=HELD_OUT,
        target_accuracy=0.8,
        rounds=40,
        **IMPROVING,
    )
    scores = result.columns["validation_accuracy"]
    assert scores[-1] >= 0.8 > max(scores[:-1])
    assert result.columns["accuracy"][0] >= 0.8  # the test data would have ended it at once


def test_the_time_budget_ends_the_run() -> None:
    result = fit(linear_model, CLIENTS, time_budget=1e-9, **QUICK)
    assert result.rounds == 1 and "time budget" in result.status
    assert fit(linear_model, CLIENTS, time_budget=1e9, **QUICK).status == "completed"


def test_callbacks_see_every_round_and_can_end_the_run() -> None:
    rows = []
    lengths = []
    states = []

    def watch(progress: Any) -> None:
        rows.append(progress.record)
        lengths.append(len(progress.history))
        states.append(progress.state_dict())
        if progress.record["round"] == 2:
            progress.stop("enough for today")

    result = fit(linear_model, CLIENTS, test=TEST, callbacks=[watch], **QUICK | {"rounds": 9})
    assert result.status == "enough for today" and result.rounds == 2
    assert rows == result.rows and lengths == [1, 2]
    assert are_equal(states[1], result.model) and not are_equal(states[0], states[1])
    two_rounds = fit(linear_model, CLIENTS, test=TEST, **QUICK | {"rounds": 2})
    assert are_equal(result.model, two_rounds.model)


def test_the_round_a_run_is_stopped_at_is_evaluated() -> None:
    """Whatever `evaluate_every` says, the last round is always evaluated."""

    def stop(progress: Any) -> None:
        if progress.record["round"] == 4:
            progress.stop()

    settings = QUICK | {"rounds": 9, "evaluate_every": 3}
    result = fit(linear_model, CLIENTS, test=TEST, callbacks=[stop], **settings)
    assert result.rounds == 4
    assert result.columns["accuracy"][3] is not None
