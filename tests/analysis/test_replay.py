"""What kept states and checkpoints give afterwards is what the run itself would have recorded."""

import json
from pathlib import Path

import pytest

from fedwmsam.analysis.dynamics import compute_dynamics, spread_out, value_at
from fedwmsam.analysis.replay import ReplayedRun
from fedwmsam.engine.records import read_lines
from fedwmsam.experiment.experiment import prepare
from fedwmsam.recording.recorder import QUICK, DynamicsRecorder
from fedwmsam.settings.config import RECORDABLE, resolve_config
from fedwmsam.training.task import deterministic_torch

SETTINGS = {
    "rounds": 9,
    "local_epochs": 1,
    "keep_states": 3,
    "checkpoint_every": 3,
    "memory_budget": 0,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = {}

    def run(method: str) -> Path:
        if method not in folders:
            config = resolve_config(
                SETTINGS | {"method": method, "record": "alignment,drift,echo", "record_every": 3}
            )
            experiment = prepare(config)
            folders[method] = tmp_path_factory.mktemp("runs") / method
            experiment.run(experiment.create(folders[method]))
        return folders[method]

    return run


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", ["fedsam", "fedwmsam"])
def test_a_replay_sees_what_the_run_saw(runs, method):
    folder = runs(method)
    before = contents(folder)
    recorded = read_lines(folder / "recordings.jsonl")
    with deterministic_torch():
        run = ReplayedRun.from_folder(folder)
        assert run.kept_rounds() == [0, 3, 6]
        for round in run.kept_rounds():
            recorder = DynamicsRecorder(RECORDABLE, 1, 0, QUICK)
            replayed = run.replay_round(run.load_state(round), recorder).recording
            line = recorded[round]
            assert replayed["alignment"] == line["alignment"] and replayed["drift"] == line["drift"]
            assert replayed["echo"]["norm"] == line["echo"]["norm"]
            assert replayed["echo"]["carried"] == line["echo"]["carried"]
    assert not run.mismatched_rounds
    assert contents(folder) == before


def test_rounds_are_replayed_as_far_as_client_memory_was_kept(runs):
    with deterministic_torch():
        plain = ReplayedRun.from_folder(runs("fedsam"))
        momentum = ReplayedRun.from_folder(runs("fedwmsam"))
        replayed = plain.replay_rounds(plain.load_state(3), 3)
        assert [after.state.round for after in replayed] == [4, 5, 6]
        # The memory of the cohort after the next one is not kept,
        assert len(list(momentum.replay_rounds(momentum.load_state(6), 3))) == 1
        # unless none of its clients has any yet.
        assert len(list(momentum.replay_rounds(momentum.load_state(0), 2))) == 2
    assert not plain.mismatched_rounds and not momentum.mismatched_rounds


@pytest.mark.parametrize("method", ["fedsam", "fedwmsam"])
def test_the_last_rounds_have_the_lags_that_were_recorded(runs, method):
    """They are replayed from the checkpoint after round 6: rounds 7 to 9."""
    found = compute_dynamics(runs(method), states=2)
    recorded = read_lines(runs(method) / "recordings.jsonl")
    assert (found["last_rounds"]["first"], found["last_rounds"]["last"]) == (7, 9)
    lags = [recorded[index]["echo"]["lags"][0] for index in (7, 8)]
    assert found["last_rounds"]["autocorrelation"][0] == pytest.approx(sum(lags) / 2)
    assert found["last_rounds"]["autocorrelation"][1] == pytest.approx(
        recorded[8]["echo"]["lags"][1]
    )
    assert found["not_as_it_was"] == [] and found["replayed"] == [0, 6]
    assert value_at(found["lines"][0], ("echo", "straightness")) is not None
    assert [line["round"] for line in found["lines"]] == list(range(1, 10))
    assert [line["echo"]["lags"] for line in found["lines"]] == [
        line["echo"]["lags"] for line in recorded
    ]
    assert [
        len(line["alignment"]["global"]["clients"])
        for line in found["lines"]
        if "alignment" in line
    ] == [5, 3, 5]


def test_a_run_that_does_not_repeat_is_told(runs, tmp_path):
    import shutil

    shutil.copytree(runs("fedsam"), tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    rows = read_lines(path)
    rows[3]["train_loss"] += 1e-9
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with deterministic_torch():
        run = ReplayedRun.from_folder(tmp_path / "run")
        run.replay_round(run.load_state(0))
        run.replay_round(run.load_state(3))
    assert run.mismatched_rounds == [4]


def test_states_are_spread_evenly_over_the_run():
    assert spread_out([0, 10, 20], 5) == [0, 10, 20]
    assert spread_out(list(range(0, 500, 10)), 3) == [0, 240, 490]
    assert spread_out([0, 10, 20], 1) == [0]


def test_the_command_writes_dynamics_that_the_page_shows(cli, runs):
    folder = runs("fedwmsam")
    outcome = cli(
        "analyse",
        "dynamics",
        folder,
        "--states",
        "1",
        "--sample",
        "100",
        "--plots",
        folder.parent / "plots",
    )
    assert outcome.code == 0, outcome.err
    assert "Alignment of perturbations" in outcome.out and "Momentum echo" in outcome.out
    assert json.loads((folder / "analysis" / "dynamics.json").read_text())["rounds"] == 9
    assert (folder.parent / "plots" / "alignment-over-rounds.png").stat().st_size > 1000
    assert "Replaying" not in cli("analyse", "dynamics", folder).out  # nothing has changed since
    assert cli("analyse", "theory", folder, "--states", "2", "--sample", "100").code == 0
    page = folder.parent / "page.html"
    assert cli("report", folder, "--html", page).code == 0
    assert (
        "Alignment, echo and drift" in page.read_text()
        and "The theorem and these runs" in page.read_text()
    )


def test_without_states_theory_says_what_to_do(cli, tmp_path):
    cli("run", "--rounds", "1", "--local-epochs", "1", "--out", tmp_path, "--name", "a", "-q")
    outcome = cli("analyse", "theory", tmp_path / "a")
    assert outcome.code == 2 and "keep_states" in outcome.err
    assert cli("analyse", "dynamics", tmp_path / "a", "-q").code == 0
