"""Recording changes nothing about a run, and a killed run records what an intact one would."""

import shutil

import pytest
import torch
from torch import nn

import fedwmsam
from fedwmsam.engine.records import read_lines
from fedwmsam.errors import InputError

ALL = "alignment,drift,echo"


def network():
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Linear(12, 3))


def clients():
    generator = torch.Generator().manual_seed(5)
    for k in range(6):
        y = torch.randint(3, (20,), generator=generator)
        yield torch.randn(20, 8, generator=generator) + y[:, None] + 0.2 * k, y


def fit(**options):
    usual = {
        "rounds": 8,
        "participation": 0.5,
        "batch_size": 10,
        "local_epochs": 2,
        "record_every": 3,
    }
    return fedwmsam.fit(network, list(clients()), **usual | options)


def test_a_recorded_run_has_the_results_of_one_that_is_not():
    plain = fit()
    recorded = fit(record=ALL)
    assert recorded.rows == plain.rows
    assert all(torch.equal(recorded.model[name], plain.model[name]) for name in plain.model)
    assert not plain.recordings
    lines = recorded.recordings
    assert [line["round"] for line in lines] == list(range(1, 9))
    assert [line["round"] for line in lines if "alignment" in line] == [1, 4, 7]
    assert [line["round"] for line in lines if "drift" in line] == [1, 4, 7]
    assert [len(line["echo"]["lags"]) for line in lines] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert all(
        0 <= timing["record_seconds"] < 60 and timing["train_seconds"] > 0
        for timing in recorded.timings
    )


def test_only_the_kinds_that_were_asked_for_are_recorded():
    lines = fit(record="drift").recordings
    assert [line.keys() for line in lines] == [{"round", "drift"}] * 3


def test_workers_do_not_change_what_is_recorded():
    assert fit(record=ALL, workers=2).recordings == fit(record=ALL).recordings


@pytest.mark.parametrize("killed_after", [1, 5, 6])
def test_a_run_killed_between_checkpoints_records_the_same_when_resumed(tmp_path, killed_after):
    """A copy of the folder after some round is what a kill leaves; checkpoints are at 3 and 6."""
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"

    def snapshot(progress):
        if progress.record["round"] == killed_after:
            shutil.copytree(whole, killed)

    options = {"record": ALL, "checkpoint_every": 3}
    fit(**options, run_folder=whole, callbacks=[snapshot])
    assert len(read_lines(killed / "recordings.jsonl")) >= killed_after
    result = fit(**options, run_folder=killed, resume=True)
    for name in ("recordings.jsonl", "metrics.jsonl", "model.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert result.recordings == read_lines(whole / "recordings.jsonl")


def test_an_interrupted_run_records_the_same_when_resumed(tmp_path):
    def interrupt(progress):
        if progress.record["round"] == 5:
            raise KeyboardInterrupt

    fit(record=ALL, run_folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(record=ALL, run_folder=tmp_path / "run", callbacks=[interrupt])
    fit(record=ALL, run_folder=tmp_path / "run", resume=True)
    name = "recordings.jsonl"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_unknown_kind_of_recording_is_refused_with_a_suggestion():
    with pytest.raises(InputError, match=r"kind of recording.*'alignement'.*alignment"):
        fit(record="echo,alignement")
