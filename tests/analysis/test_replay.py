"""What kept states and checkpoints give afterwards is what the run itself would have recorded."""

import json
from pathlib import Path

import pytest

from fedwmsam.analysis.dynamics import compute_dynamics, spread_out, value_at
from fedwmsam.analysis.replay import ReplayedRun
from fedwmsam.engine.records import read_lines
from fedwmsam.experiment.experiment import prepare
from fedwmsam.recording.recorder import QUICK, DynamicsRecorder
from fedwmsam.settings.config import RECORDABLE, resolve
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
    made = {}

    def run(method: str) -> Path:
        if method not in made:
            config = resolve(
                SETTINGS | {"method": method, "record": "alignment,drift,echo", "record_every": 3}
            )
            experiment = prepare(config)
            made[method] = tmp_path_factory.mktemp("runs") / method
            experiment.run(experiment.create(made[method]))
        return made[method]

    return run


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", ["fedsam", "fedwmsam"])
def test_a_replay_sees_what_the_run_saw(runs, method):
    folder = runs(method)
    before, recorded = contents(folder), read_lines(folder / "recordings.jsonl")
    with deterministic_torch():
        past = ReplayedRun.of(folder)
        assert past.kept() == [0, 3, 6]
        for round in past.kept():
            line = past.repeat(past.state(round), DynamicsRecorder(RECORDABLE, 1, 0, QUICK)).line
            ours = recorded[round]
            assert line["alignment"] == ours["alignment"] and line["drift"] == ours["drift"]
            assert (
                line["echo"]["norm"] == ours["echo"]["norm"]
                and line["echo"]["carried"] == ours["echo"]["carried"]
            )
    assert not past.strangers
    assert contents(folder) == before


def test_a_chain_goes_as_far_as_memory_reaches(runs):
    with deterministic_torch():
        plain, momentum = ReplayedRun.of(runs("fedsam")), ReplayedRun.of(runs("fedwmsam"))
        assert [found.after.round for found in plain.chain(plain.state(3), 3)] == [4, 5, 6]
        assert (
            len(list(momentum.chain(momentum.state(6), 3))) == 1
        )  # rows of the next cohort are not kept
        assert len(list(momentum.chain(momentum.state(0), 2))) == 2  # or nobody of it has one yet
    assert not plain.strangers and not momentum.strangers


@pytest.mark.parametrize("method", ["fedsam", "fedwmsam"])
def test_the_last_rounds(runs, method):
    """From the checkpoint after round 6, over rounds 7 to 9: the lags that were recorded there."""
    found = compute_dynamics(runs(method), states=2)
    recorded = read_lines(runs(method) / "recordings.jsonl")
    assert (found["last_rounds"]["first"], found["last_rounds"]["last"]) == (7, 9)
    lags = [recorded[place]["echo"]["lags"][0] for place in (7, 8)]
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
        past = ReplayedRun.of(tmp_path / "run")
        past.repeat(past.state(0))
        past.repeat(past.state(3))
    assert past.strangers == [4]


def test_states_are_spread_out():
    assert spread_out([0, 10, 20], 5) == [0, 10, 20]
    assert spread_out(list(range(0, 500, 10)), 3) == [0, 240, 490]
    assert spread_out([0, 10, 20], 1) == [0]


def test_the_command_and_the_page(cli, runs):
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
