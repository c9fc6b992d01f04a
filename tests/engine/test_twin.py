"""The averaged model (the twin), an average of the global models that changes nothing of a run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_federation import make_federation
from torch import nn

import fedwmsam
from fedwmsam import InputError, Result
from fedwmsam.engine.records import read_json, read_lines
from fedwmsam.engine.rounds import ClientFailure, first_state, run_round
from fedwmsam.experiment.experiment import load_config, prepare
from fedwmsam.methods import METHODS, FedAvg

Cli = Callable[..., Any]
N = 6
GAMMA = 3.0


def data(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=samples)
    return (rng.normal(size=(samples, 5)) + labels[:, None]).astype(np.float32), labels


CLIENTS = [data(18 + 4 * (seed % 2), seed) for seed in range(N)]
TEST = data(60, 50)
VALIDATION = data(30, 51)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def fit(method: str = "scaffold", **settings: Any) -> Result:
    usual: dict[str, Any] = {"rounds": 7, "local_epochs": 1, "batch_size": 10, "participation": 0.4}
    return fedwmsam.fit(
        network, CLIENTS, method, **usual | {"sampling": "bernoulli", "test": TEST} | settings
    )


def test_the_twin_is_the_average_that_a_few_lines_of_numpy_give() -> None:
    models: list[dict[str, np.ndarray]] = []

    def remember(progress: Any) -> None:
        weights = progress.state_dict()
        models.append({name: value.double().numpy().copy() for name, value in weights.items()})

    result = fit(twin=GAMMA, callbacks=[remember])
    average = dict.fromkeys(models[0], np.float64(0))
    cohorts = result.columns["cohort"]
    assert len(set(cohorts)) > 1, "the share of the clients must vary to be tested"
    for r, (model, cohort) in enumerate(zip(models, cohorts, strict=True)):
        beta = max((GAMMA + 1) / (r + GAMMA + 1), cohort / N)
        average = {name: average[name] + beta * (model[name] - average[name]) for name in model}
    counter = "1.num_batches_tracked"
    average[counter] = models[-1][counter]  # a counter has no average
    assert result.averaged_model is not None and result.averaged_model.keys() == average.keys()
    for name, value in result.averaged_model.items():
        np.testing.assert_allclose(value.numpy(), average[name], rtol=2e-6, atol=1e-6)
    assert not np.allclose(average["1.running_mean"], models[-1]["1.running_mean"], rtol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_with_a_twin_is_the_run_without(method: str) -> None:
    plain = fit(method, validation=VALIDATION)
    with_twin = fit(method, validation=VALIDATION, twin=8.0)
    for row, plain_row in zip(with_twin.rows, plain.rows, strict=True):
        others = {name: row[name] for name in row if not name.startswith("averaged_")}
        assert others == plain_row
    assert plain.averaged_model is None
    assert all(torch.equal(with_twin.model[name], value) for name, value in plain.model.items())
    assert {name for name in with_twin.columns if name not in plain.columns} == {
        "averaged_accuracy",
        "averaged_loss",
        "averaged_validation_accuracy",
        "averaged_validation_loss",
    }


def test_the_columns_of_the_twin_are_its_scores() -> None:
    result = fit(twin=8.0, validation=VALIDATION)
    for prefix, samples in (("averaged_", TEST), ("averaged_validation_", VALIDATION)):
        scores = result.evaluate(samples, averaged=True)
        assert scores == {name: result.last(prefix + name) for name in ("accuracy", "loss")}
    assert result.evaluate(TEST, averaged=True) != result.evaluate(TEST)
    assert not torch.equal(result.predict(TEST[0], averaged=True), result.predict(TEST[0]))


def test_without_test_data_there_is_a_twin_and_no_column() -> None:
    result = fit(twin=8.0, test=None)
    assert result.averaged_model is not None
    assert not any(name.startswith("averaged") for name in result.columns)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_run_has_the_same_twin_to_the_last_bit(tmp_path: Path, workers: int) -> None:
    whole = fit(twin=8.0, run_folder=tmp_path / "whole", rounds=9)
    for rounds in (2, 5, 9):
        fit(
            twin=8.0,
            run_folder=tmp_path / "parts",
            resume=True,
            checkpoint_every=4,
            rounds=rounds,
            workers=workers,
        )
    for name in ("metrics.jsonl", "model.safetensors", "averaged.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    loaded = Result.load(tmp_path / "parts", network)
    assert whole.averaged_model is not None and loaded.averaged_model is not None
    assert all(
        torch.equal(loaded.averaged_model[name], value)
        for name, value in whole.averaged_model.items()
    )


def test_a_twin_cannot_come_later_or_change(tmp_path: Path) -> None:
    fit(run_folder=tmp_path / "without")
    with pytest.raises(InputError, match=r"was run with twin = None, not 8\.0"):
        fit(run_folder=tmp_path / "without", resume=True, rounds=9, twin=8.0)
    fit(run_folder=tmp_path / "with", twin=8.0)
    with pytest.raises(InputError, match=r"was run with twin = 8\.0, not None"):
        fit(run_folder=tmp_path / "with", resume=True, rounds=9)


def test_a_twin_written_into_a_runs_configuration_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "--rounds", "2", "--out", tmp_path, "--name", "run", "-q").code == 0
    with (tmp_path / "run" / "config.toml").open("a") as file:
        file.write("twin = 8.0\n")
    (tmp_path / "run" / "provenance.json").unlink()  # its digest would tell that already
    outcome = cli("resume", tmp_path / "run", "--rounds", "3")
    assert outcome.code == 2 and "was begun without an averaged twin" in outcome.err


def test_an_extended_run_loses_the_twin_of_its_first_end(tmp_path: Path) -> None:
    fit(run_folder=tmp_path / "run", twin=8.0, rounds=2)

    def look(_: Any) -> None:
        assert not (tmp_path / "run" / "averaged.safetensors").exists()

    fit(run_folder=tmp_path / "run", twin=8.0, rounds=3, resume=True, callbacks=[look])
    assert (tmp_path / "run" / "averaged.safetensors").exists()


def test_the_twin_starts_with_the_initial_weights() -> None:
    weights = network().state_dict()
    result = fit(twin=8.0, initial_weights=weights, dropout=1.0)  # all clients drop out
    assert result.averaged_model is not None
    assert all(torch.equal(result.averaged_model[name], value) for name, value in weights.items())


def test_a_round_without_updates_leaves_the_twin_as_it_is() -> None:
    federation = replace(make_federation(FedAvg()), twin=8.0)
    state, _ = run_round(federation, first_state(federation))

    def lose_all(_: Any, jobs: Any) -> Any:
        yield from ((job, ClientFailure("gone", rejected=False)) for job in jobs)

    after, _ = run_round(replace(federation, trainer=lose_all), state)
    assert after.round == 2 and after.average is state.average


def test_the_twin_does_not_tell_how_many_clients_took_part_where_that_is_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = []
    monkeypatch.setattr(
        "fedwmsam.engine.rounds.update_average",
        lambda average, newest, power, info: shares.append(info.share) or newest,
    )
    private = {"dp_noise": 1.0, "dp_clip": 1.0, "method": "fedavg"}
    fedwmsam.fit(
        lambda: nn.Linear(5, 3),
        CLIENTS,
        twin=8.0,
        rounds=5,
        participation=0.4,
        sampling="bernoulli",
        **private,
    )
    assert shares == pytest.approx([0.4] * 5, abs=1e-12)


def test_a_metric_cannot_have_the_name_of_a_column_of_the_twin() -> None:
    metrics = {"averaged_loss": lambda outputs, targets: outputs.mean()}
    with pytest.raises(InputError, match="cannot be called 'averaged_loss'"):
        fit(twin=8.0, metrics=metrics)
    assert fit(metrics=metrics).last("averaged_loss") is not None


def test_asking_for_a_twin_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="made without a twin"):
        fit().evaluate(TEST, averaged=True)
    with pytest.raises(InputError, match="they are two"):
        fit(twin=8.0).weights(best=True, averaged=True)


def test_the_command_line_keeps_evaluates_and_measures_the_twin(cli: Cli, tmp_path: Path) -> None:
    settings = (
        "--model",
        "linear",
        "--clients",
        "5",
        "--rounds",
        "5",
        "--set",
        "keep_states=2",
        "--set",
        "local_epochs=1",
    )
    outcome = cli("run", "--twin", "8", *settings, "--out", tmp_path, "--name", "run")
    assert outcome.code == 0 and "Averaged twin: test accuracy" in outcome.out
    run = tmp_path / "run"
    last = read_lines(run / "metrics.jsonl")[-1]
    assert f"{last['averaged_accuracy']:.4f}" in cli("evaluate", run, "--averaged").out
    few = (
        "--eigenvalues",
        "1",
        "--probes",
        "1",
        "--rho",
        "0.05",
        "--adaptive-rho",
        "",
        "--clients",
        "0",
        "-q",
    )
    for arguments in ((), ("--averaged",)):
        assert cli("analyse", "flatness", run, "--rounds", "4,5", *few, *arguments).code == 0
    plain_rounds = read_json(run / "analysis" / "flatness.json")["rounds"]
    twin_rounds = read_json(run / "analysis" / "flatness-averaged.json")["rounds"]
    experiment = prepare(load_config(run))
    result = Result.load(run)
    batches = [client.batch(torch.arange(len(client))) for client in experiment.clients]
    inputs, labels = zip(*batches, strict=True)
    all_samples = (torch.cat(inputs), torch.cat(labels))
    for rounds, is_averaged in ((plain_rounds, False), (twin_rounds, True)):
        assert [record["round"] for record in rounds] == [4, 5]
        expected = result.evaluate(all_samples, averaged=is_averaged)["loss"]
        assert rounds[1]["global"]["loss"] == pytest.approx(expected, rel=1e-5)
    losses = [rounds[0]["global"]["loss"] for rounds in (plain_rounds, twin_rounds)]
    assert losses[0] != losses[1], "that of a kept state"
    assert cli("run", *settings, "--out", tmp_path, "--name", "plain", "-q").code == 0
    refused = cli("analyse", "flatness", tmp_path / "plain", "--averaged", *few)
    assert refused.code == 2 and "has no averaged model" in refused.err
