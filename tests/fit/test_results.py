"""What a `Result` tells: rows, columns, models and timings, in memory and loaded from a folder."""

from pathlib import Path

import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    QUICK,
    REGRESSION_CLIENTS,
    TEST,
    VALIDATION,
    ArrayDataset,
    are_equal,
    linear_model,
    make_line,
    regression_model,
    stateful_model,
)
from torch import Tensor
from torch.nn import functional

from fedwmsam import FedWMSAM, InputError, Result, fit


def test_every_round_has_a_row_and_evaluated_rounds_have_scores() -> None:
    settings = QUICK | {"rounds": 7, "evaluate_every": 3}
    result = fit(linear_model, CLIENTS, test=TEST, validation=VALIDATION, **settings)
    assert result.status == "completed" and result.rounds == 7
    assert [row["round"] for row in result.rows] == list(range(1, 8))
    columns = result.columns
    for name in ("accuracy", "loss", "validation_accuracy", "validation_loss"):
        values = enumerate(columns[name], start=1)
        assert [number for number, value in values if value is not None] == [3, 6, 7]
        assert len(columns[name]) == 7
    for name in ("train_loss", "lr", "alpha", "similarity", "update_norm"):
        assert None not in columns[name]
    for name in ("bytes_up", "bytes_down", "backprops"):
        assert None not in columns[name]
    assert columns["lr"] == pytest.approx([0.1 * 0.998**number for number in range(7)])
    assert result.last() == columns["accuracy"][6]
    assert result.last("alpha") == columns["alpha"][6]
    assert result.last("no such column") is None
    assert result.best_round in (3, 6, 7)


def test_last_skips_rounds_that_were_not_evaluated(tmp_path: Path) -> None:
    settings = QUICK | {"rounds": 4, "evaluate_every": 2}
    fit(linear_model, CLIENTS, test=TEST, run_folder=tmp_path / "run", **settings)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join(lines[:3]) + "\n")
    loaded = Result.load(tmp_path / "run")
    assert loaded.columns["accuracy"][2] is None
    assert loaded.last("accuracy") == loaded.columns["accuracy"][1] is not None


def test_without_test_data_nothing_is_evaluated() -> None:
    result = fit(linear_model, CLIENTS, **QUICK)
    assert "accuracy" not in result.columns and "loss" not in result.columns
    assert result.last() is None and result.best_model is None and result.best_round is None
    with pytest.raises(InputError, match="validation"):
        result.predict(TEST[0], best=True)


def test_the_models_fit_the_users_own() -> None:
    settings = QUICK | {"rounds": 6}
    result = fit(stateful_model, CLIENTS, test=TEST, validation=VALIDATION, **settings)
    model = stateful_model()
    for state, best in ((result.model, False), (result.best_model, True)):
        model.load_state_dict(state)
        model.eval()
        with torch.no_grad():
            expected = model(torch.from_numpy(TEST[0]))
        outputs = result.predict(TEST[0], best=best)
        torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=1e-6)
        in_batches = result.predict(TEST[0], best=best, batch_size=7)
        torch.testing.assert_close(in_batches, expected, rtol=1e-5, atol=1e-6)
        accuracy = float((expected.argmax(1).numpy() == TEST[1]).mean())
        scores = result.evaluate(TEST, best=best)
        assert scores["accuracy"] == pytest.approx(accuracy)
        loss = functional.cross_entropy(expected, torch.from_numpy(TEST[1]))
        assert scores["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert result.evaluate(TEST)["accuracy"] == result.last("accuracy")
    assert result.evaluate(ArrayDataset(*TEST)) == pytest.approx(result.evaluate(TEST))


def test_predicting_does_not_change_the_result() -> None:
    result = fit(stateful_model, CLIENTS, validation=VALIDATION, **QUICK)
    before = {name: value.clone() for name, value in result.model.items()}
    first = result.predict(TEST[0])
    result.predict(VALIDATION[0], best=True)
    result.evaluate(VALIDATION, best=True)
    assert torch.equal(result.predict(TEST[0]), first)
    assert are_equal(result.model, before)


def test_every_round_is_timed_and_the_seconds_add_up() -> None:
    result = fit(linear_model, CLIENTS, test=TEST, **QUICK)
    assert [timing["round"] for timing in result.timings] == [1, 2, 3]
    for name in ("train_seconds", "evaluate_seconds", "cpu_seconds"):
        assert all(timing[name] > 0 for timing in result.timings)
    trained = sum(timing["train_seconds"] for timing in result.timings)
    evaluated = sum(timing["evaluate_seconds"] for timing in result.timings)
    assert result.seconds == pytest.approx(trained + evaluated)


def test_a_run_folder_loads_as_the_result_it_came_from(tmp_path: Path) -> None:
    settings = QUICK | {"test": TEST, "validation": 0.3, "run_folder": tmp_path / "run"}
    result = fit(stateful_model, CLIENTS, FedWMSAM(rho=0.02), **settings)
    assert result.folder == tmp_path / "run"
    loaded = Result.load(tmp_path / "run", model=stateful_model)
    assert loaded.status == result.status
    assert loaded.best_round == result.best_round
    assert loaded.rounds == result.rounds
    assert loaded.rows == result.rows
    assert loaded.timings == result.timings
    assert are_equal(loaded.model, result.model)
    assert are_equal(loaded.best_model, result.best_model)
    config = {name: value for name, value in result.config.items() if value is not None}
    assert config == loaded.config
    assert loaded.config["rho"] == 0.02
    for best in (False, True):
        assert torch.equal(loaded.predict(TEST[0], best=best), result.predict(TEST[0], best=best))
        assert loaded.evaluate(TEST, best=best) == result.evaluate(TEST, best=best)


def test_a_loaded_run_without_its_model_says_what_it_needs(tmp_path: Path) -> None:
    fit(linear_model, CLIENTS, run_folder=tmp_path / "run", **QUICK)
    with pytest.raises(InputError, match="model="):
        Result.load(tmp_path / "run").predict(TEST[0])
    with pytest.raises(InputError, match="do not fit"):
        Result.load(tmp_path / "run", model=stateful_model).predict(TEST[0])
    with pytest.raises(InputError, match="no run folder"):
        Result.load(tmp_path / "elsewhere")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no finished model"):
        Result.load(tmp_path / "run")


def test_a_loaded_run_evaluates_by_its_own_loss(tmp_path: Path) -> None:
    settings = QUICK | {"loss": "regression", "run_folder": tmp_path / "run"}
    result = fit(regression_model, REGRESSION_CLIENTS, **settings)
    loaded = Result.load(tmp_path / "run", model=regression_model)
    assert loaded.evaluate(make_line(20, 9)) == result.evaluate(make_line(20, 9))


def test_a_metric_that_is_not_a_number_is_the_same_in_memory_and_on_disk(tmp_path: Path) -> None:
    def undefined(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.tensor(torch.nan)

    settings = QUICK | {"metrics": {"auc": undefined}, "run_folder": tmp_path / "run"}
    result = fit(linear_model, CLIENTS, test=TEST, **settings)
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert result.rows == Result.load(tmp_path / "run").rows
    assert result.last("auc") is None
