"""Run folders: a run that goes on ends as if it had never paused, and none is overwritten."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    QUICK,
    TEST,
    are_equal,
    linear_model,
    stateful_model,
)
from torch import Tensor, nn
from torch.nn import functional

from fedwmsam import SCAFFOLD, FedAvg, FedCM, FedWMSAM, InputError, Method, Result, fit
from fedwmsam.engine import checkpoint

RESUMABLE: dict[str, Any] = {
    "method": FedWMSAM(),
    "test": TEST,
    "validation": 0.2,
    "participation": 0.5,
    "local_epochs": 2,
    "batch_size": 6,
    "checkpoint_every": 2,
}
"""Settings, all but the rounds, of a run with every kind of result file."""


def read_reproducible_files(folder: Path) -> dict[str, bytes]:
    """Return the contents, by name, of the files that a rerun must reproduce byte for byte."""
    names = ("metrics.jsonl", "model.safetensors", "best.safetensors")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def read_all_files(folder: Path) -> dict[Path, bytes]:
    """Return the contents, by path, of every file in the folder and below."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def eight_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of eight rounds without a pause."""
    folder = tmp_path_factory.mktemp("eight") / "run"
    fit(stateful_model, CLIENTS, rounds=8, run_folder=folder, **RESUMABLE)
    return folder


def test_going_on_from_five_to_eight_is_eight_at_once(tmp_path: Path, eight_rounds: Path) -> None:
    settings = RESUMABLE | {"run_folder": tmp_path / "run", "resume": True}
    first = fit(stateful_model, CLIENTS, rounds=5, **settings)
    assert first.rounds == 5
    second = fit(stateful_model, CLIENTS, rounds=8, **settings)
    files = read_reproducible_files(tmp_path / "run")
    assert files == read_reproducible_files(eight_rounds)
    assert len(files) == 3
    uninterrupted = Result.load(eight_rounds)
    assert second.rows == uninterrupted.rows
    assert second.best_round == uninterrupted.best_round
    assert are_equal(second.model, uninterrupted.model)
    assert are_equal(second.best_model, uninterrupted.best_model)
    timings = (tmp_path / "run" / "timings.jsonl").read_text().splitlines()
    assert len(timings) == len(second.timings) == 8
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 8


def test_the_folder_says_how_many_rounds_it_went_on_to(tmp_path: Path) -> None:
    for rounds in (1, 3):
        settings = QUICK | {"rounds": rounds, "resume": True}
        fit(linear_model, CLIENTS, run_folder=tmp_path / "run", **settings)
    assert Result.load(tmp_path / "run").config["rounds"] == 3


@pytest.mark.parametrize(
    ("method", "error"),
    [
        (FedAvg(), RuntimeError),
        (FedCM(), KeyboardInterrupt),
        (SCAFFOLD(), KeyboardInterrupt),
        (FedWMSAM(), KeyboardInterrupt),
    ],
)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, method: Method, error: type[BaseException]
) -> None:
    def interrupt(progress: Any) -> None:
        if progress.record["round"] == 3:
            raise error

    settings = RESUMABLE | {"method": method, "rounds": 5, "checkpoint_every": 4}
    interrupted = tmp_path / "interrupted"
    with pytest.raises(error):
        fit(stateful_model, CLIENTS, run_folder=interrupted, callbacks=[interrupt], **settings)
    result = fit(stateful_model, CLIENTS, run_folder=interrupted, resume=True, **settings)
    assert [timing["round"] for timing in result.timings] == [1, 2, 3, 4, 5]
    uninterrupted = tmp_path / "uninterrupted"
    fit(stateful_model, CLIENTS, run_folder=uninterrupted, **settings)
    assert read_reproducible_files(interrupted) == read_reproducible_files(uninterrupted)


def test_an_interruption_during_evaluation_leaves_no_trace_in_the_clients_memory(
    tmp_path: Path,
) -> None:
    """Ctrl-C comes after the clients' memories were settled but before the round counts."""
    calls: list[int] = []

    def interrupt_third_call(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(len(outputs))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return outputs.mean()

    settings = QUICK | {
        "method": SCAFFOLD(),
        "test": TEST,
        "rounds": 5,
        "participation": 1.0,
        "metrics": {"mean": interrupt_third_call},
    }
    interrupted = tmp_path / "interrupted"
    uninterrupted = tmp_path / "uninterrupted"
    with pytest.raises(KeyboardInterrupt):
        fit(linear_model, CLIENTS, run_folder=interrupted, **settings)
    for folder in (interrupted, uninterrupted):
        fit(linear_model, CLIENTS, run_folder=folder, resume=True, **settings)
    assert read_reproducible_files(interrupted) == read_reproducible_files(uninterrupted)


def test_a_modules_name_may_hold_a_slash(tmp_path: Path) -> None:
    def factory() -> nn.Module:
        model = stateful_model()
        model.add_module("in/out", nn.BatchNorm1d(3))
        return model

    for rounds in (1, 2):
        settings = QUICK | {"rounds": rounds, "resume": True}
        result = fit(factory, CLIENTS, run_folder=tmp_path / "run", **settings)
    assert are_equal(result.model, fit(factory, CLIENTS, **QUICK | {"rounds": 2}).model)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, eight_rounds: Path) -> None:
    folder = tmp_path / "run"
    fit(stateful_model, CLIENTS, rounds=5, run_folder=folder, **RESUMABLE)
    newest = checkpoint.path_of(folder / "checkpoints", 5)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    fit(stateful_model, CLIENTS, rounds=8, run_folder=folder, resume=True, **RESUMABLE)
    assert read_reproducible_files(folder) == read_reproducible_files(eight_rounds)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.05},
        {"batch_size": 7},
        {"seed": 1},
        {"participation": 1.0},
        {"averaging": "size"},
        {"method": FedAvg()},
        {"method": FedWMSAM(rho=0.02)},
        {"clip_norm": None},
        {"evaluate_every": 2},
        {"validation": 0.4},
        {"validation": None},
        {"clients": CLIENTS[:3]},
        {"loss": "multilabel"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_run_does_not_go_on_with_other_settings(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    settings = RESUMABLE | {"model": linear_model, "clients": CLIENTS, "run_folder": folder}
    fit(**settings, rounds=2)
    before = read_reproducible_files(folder)
    if change.get("loss") == "multilabel":
        change = change | {
            "clients": [(x, np.eye(3)[y]) for x, y in CLIENTS],
            "test": (TEST[0], np.eye(3)[TEST[1]]),
        }
    with pytest.raises(InputError) as caught:
        fit(**settings | change, rounds=4, resume=True)
    message = str(caught.value)
    assert "\n" not in message
    assert next(iter(change)) in message or "rho" in message
    assert read_reproducible_files(folder) == before
    fit(**settings, rounds=3, resume=True)  # the refusal has not locked the folder


def test_stopping_rules_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    fit(linear_model, CLIENTS, rounds=2, run_folder=tmp_path / "run", **RESUMABLE)
    changed = RESUMABLE | {
        "rounds": 4,
        "patience": 50,
        "time_budget": 1e6,
        "target_accuracy": 1.0,
        "checkpoint_every": 1,
    }
    result = fit(linear_model, CLIENTS, run_folder=tmp_path / "run", resume=True, **changed)
    uninterrupted = fit(linear_model, CLIENTS, rounds=4, **RESUMABLE)
    assert result.rows[:3] == uninterrupted.rows[:3]


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    fit(linear_model, CLIENTS, run_folder=tmp_path / "run", **QUICK)
    before = read_all_files(tmp_path / "run")
    with pytest.raises(InputError, match="already holds a run") as caught:
        fit(linear_model, CLIENTS, run_folder=tmp_path / "run", **QUICK)
    # `fedwmsam resume` refuses a folder that fit() made.
    assert f"run_folder={str(tmp_path / 'run')!r}, resume=True)" in str(caught.value)
    assert "fedwmsam resume" not in str(caught.value)
    assert read_all_files(tmp_path / "run") == before


def test_two_runs_cannot_share_a_folder_at_the_same_time(tmp_path: Path) -> None:
    refusals: list[str] = []

    def intrude(progress: Any) -> None:
        try:
            fit(linear_model, CLIENTS, run_folder=tmp_path / "run", resume=True, **QUICK)
        except InputError as error:
            refusals.append(str(error))

    fit(linear_model, CLIENTS, run_folder=tmp_path / "run", callbacks=[intrude], **QUICK)
    assert len(refusals) == 3 and "nother process" in refusals[0]


@pytest.mark.parametrize(
    "mistake",
    [{"patience": 2}, {"target_accuracy": 0.5}, {"initial_weights": {"weight": torch.zeros(3, 4)}}],
    ids=lambda mistake: next(iter(mistake)),
)
def test_a_mistake_does_not_use_up_the_folder(tmp_path: Path, mistake: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        fit(linear_model, CLIENTS, run_folder=tmp_path / "run", **mistake, **QUICK)
    assert fit(linear_model, CLIENTS, run_folder=tmp_path / "run", **QUICK).status == "completed"


def test_a_refused_worker_does_not_use_up_the_folder(tmp_path: Path) -> None:
    lock = threading.Lock()

    def guarded_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        with lock:
            return functional.cross_entropy(outputs, targets)

    settings: dict[str, Any] = {"rounds": 1, "loss": guarded_loss, "run_folder": tmp_path / "run"}
    with pytest.raises(InputError, match="another process"):
        fit(linear_model(), CLIENTS, workers=2, **settings)
    fit(linear_model(), CLIENTS, **settings)


def test_a_killed_extension_is_not_finished(tmp_path: Path) -> None:
    """What an earlier end wrote must not pass for the outcome of rounds that came after it."""
    settings: dict[str, Any] = {"run_folder": tmp_path / "run", "seed": 1}
    fit(linear_model(), CLIENTS, rounds=2, **settings)

    def interrupt(progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(linear_model(), CLIENTS, rounds=9, resume=True, callbacks=[interrupt], **settings)
    with pytest.raises(InputError, match="resume"):
        Result.load(tmp_path / "run", linear_model())


def test_going_on_to_fewer_rounds_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    model = linear_model()
    fit(model, CLIENTS, rounds=4, run_folder=tmp_path / "run")
    before = read_all_files(tmp_path / "run")
    with pytest.raises(InputError, match="4 rounds"):
        fit(model, CLIENTS, rounds=2, run_folder=tmp_path / "run", resume=True)
    assert read_all_files(tmp_path / "run") == before


def test_another_architecture_does_not_go_on(tmp_path: Path) -> None:
    def build_with(activation: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 3))

    fit(build_with(nn.ReLU()), CLIENTS, rounds=2, run_folder=tmp_path / "run")
    with pytest.raises(InputError, match="architecture"):
        fit(build_with(nn.Tanh()), CLIENTS, rounds=4, run_folder=tmp_path / "run", resume=True)
