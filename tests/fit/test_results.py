"""What a `Result` tells: rows, columns, models and timings, in memory and loaded from a folder."""

import sys
from pathlib import Path
from xml.etree import ElementTree

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
from fedwmsam.engine.run import Progress
from fedwmsam.engine.run_folder import RunFolder
from fedwmsam.experiment.result_view import render_curve


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
    assert result.best_round in (3, 6, 7)


def test_last_names_the_nearest_of_a_column_that_is_none() -> None:
    result = fit(linear_model, CLIENTS, test=TEST, **QUICK)
    with pytest.raises(InputError, match=r"'acuracy'.* Did you mean 'accuracy'"):
        result.last("acuracy")
    for name in ("validation_accuracy", "averaged_loss", "epsilon", "rejected"):
        assert result.last(name) is None  # columns that another run has


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


# At a glance


def test_a_result_says_what_it_is(tmp_path: Path) -> None:
    result = fit(linear_model, CLIENTS, test=TEST, run_folder=tmp_path / "run", **QUICK)
    for text in (repr(result), result._repr_html_()):
        for part in ("fedwmsam", "3 of 3", "completed", f"{result.last():.4g}", str(tmp_path)):
            assert part in text
    assert "<Result fedwmsam, rounds 3 of 3, status completed, accuracy " in repr(result)


def test_a_result_without_scores_shows_the_training_loss() -> None:
    result = fit(linear_model, CLIENTS, **QUICK)
    assert f"train_loss {result.last('train_loss'):.4g}" in repr(result)
    assert "train_loss by round" in result._repr_html_()


def test_a_result_without_rounds_can_be_shown(tmp_path: Path) -> None:
    fit(linear_model, CLIENTS, run_folder=tmp_path / "run", **QUICK)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    result = Result.load(tmp_path / "run")
    assert "0 of 3" in repr(result) and "<svg" not in result._repr_html_()


def test_the_picture_is_a_curve_of_the_monitored_metric() -> None:
    settings = QUICK | {"rounds": 5, "loss": "regression", "monitor": "-mae"}
    result = fit(regression_model, REGRESSION_CLIENTS, test=make_line(20, 9), **settings)
    picture = ElementTree.fromstring(result._repr_html_()).find("svg")
    assert picture is not None and picture.get("aria-label") == "mae by round"
    line = picture.find("polyline")
    assert line is not None
    heights = [-float(place.split(",")[1]) for place in line.get("points", "").split()]
    values = result.columns["mae"]
    assert len(heights) == 5
    assert sorted(range(5), key=heights.__getitem__) == sorted(range(5), key=values.__getitem__)


def test_the_picture_of_a_long_run_stays_small() -> None:
    curve = render_curve("accuracy", [(round, round % 7) for round in range(1, 100_001)])
    assert len(curve) < 5000 and "100000</text>" in curve


def test_nothing_in_a_folder_gets_into_the_page_unescaped(tmp_path: Path) -> None:
    folder = tmp_path / "<b>run</b>"
    fit(linear_model, CLIENTS, test=TEST, run_folder=folder, **QUICK)
    evil = "<script>alert(1)</script>"
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('"fedwmsam"', f'"{evil}"'))
    summary = folder / "summary.json"
    summary.write_text(summary.read_text().replace("completed", evil + "\\n"))
    result = Result.load(folder)
    assert "<script>" not in result._repr_html_() and "<b>run" not in result._repr_html_()
    assert "\n" not in repr(result)


def test_without_pandas_there_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table itself is tested with the real package, in tests/systems."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = fit(linear_model, CLIENTS, **QUICK)
    with pytest.raises(InputError, match=r"needs pandas.*Result\.columns"):
        result.to_pandas()


# Unfinished runs


class Outage(Exception):
    """Ends a run in the middle."""


def fail_in_round_five(progress: Progress) -> None:
    if progress.record["round"] == 5:
        raise Outage


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    settings = QUICK | {"rounds": 8, "validation": VALIDATION, "twin": 8.0, "test": TEST}
    with pytest.raises(Outage):
        fit(
            stateful_model,
            CLIENTS,
            callbacks=[fail_in_round_five],
            run_folder=tmp_path / "my run",
            **settings,
        )
    return tmp_path / "my run"


def test_an_interrupted_run_loads_partially(interrupted: Path) -> None:
    settings = QUICK | {"rounds": 5, "validation": VALIDATION, "twin": 8.0, "test": TEST}
    expected = fit(stateful_model, CLIENTS, **settings)
    loaded = Result.load(interrupted, model=stateful_model, partial=True)
    assert loaded.status == "interrupted" and loaded.rounds == 5
    assert loaded.rows == expected.rows
    assert are_equal(loaded.model, expected.model)
    assert are_equal(loaded.best_model, expected.best_model)
    assert are_equal(loaded.averaged_model, expected.averaged_model)
    assert loaded.best_round == expected.best_round
    assert loaded.evaluate(TEST) == expected.evaluate(TEST)
    assert "5 of 8" in repr(loaded)


def test_an_unfinished_run_is_not_taken_for_a_finished_one(interrupted: Path) -> None:
    advice = f"fit(..., run_folder={str(interrupted)!r}, resume=True)"
    with pytest.raises(InputError, match="no finished model") as caught:
        Result.load(interrupted)
    assert advice in str(caught.value) and "fedwmsam resume" not in str(caught.value)
    settings = QUICK | {"rounds": 8, "validation": VALIDATION, "twin": 8.0, "test": TEST}
    resumed = fit(stateful_model, CLIENTS, run_folder=interrupted, resume=True, **settings)
    assert resumed.status == Result.load(interrupted, partial=True).status == "completed"


def test_a_partial_result_has_a_history_without_a_model(interrupted: Path) -> None:
    loaded = Result.load(interrupted, partial=True)
    assert loaded.last("validation_accuracy") is not None
    with pytest.raises(InputError, match="model=") as caught:
        print(loaded.model)
    assert "partial=True" in str(caught.value)
    with pytest.raises(InputError, match="another model"):
        Result.load(interrupted, model=linear_model, partial=True)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    settings = QUICK | {"rounds": 4, "checkpoint_every": 1, "run_folder": tmp_path / "run"}
    fit(linear_model, CLIENTS, **settings)
    (tmp_path / "run" / "summary.json").unlink()
    newest = sorted((tmp_path / "run" / "checkpoints").glob("round-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    loaded = Result.load(tmp_path / "run", model=linear_model, partial=True)
    assert are_equal(loaded.model, fit(linear_model, CLIENTS, **QUICK).model)
    for path in (tmp_path / "run" / "checkpoints").glob("round-*"):
        path.unlink()
    with pytest.raises(InputError, match="no checkpoint of a model yet"):
        print(Result.load(tmp_path / "run", model=linear_model, partial=True).model)


def test_a_run_that_goes_on_is_running(tmp_path: Path) -> None:
    seen = []

    def look(progress: Progress) -> None:
        seen.append(Result.load(tmp_path / "run", partial=True).status)

    fit(linear_model, CLIENTS, run_folder=tmp_path / "run", callbacks=[look], **QUICK)
    assert seen == ["running"] * 3
    assert Result.load(tmp_path / "run", partial=True).status == "completed"


def test_a_run_of_the_command_line_is_resumed_there(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "my run", {"method": "fedavg"}, {"data.json": {}})
    folder.close()
    command = f"fedwmsam resume '{folder.path}'"
    with pytest.raises(InputError, match="no finished model") as caught:
        Result.load(folder.path)
    assert str(caught.value).endswith(command)
    with pytest.raises(InputError, match="already holds a run") as caught:
        RunFolder.create(folder.path, {})
    assert command in str(caught.value)
