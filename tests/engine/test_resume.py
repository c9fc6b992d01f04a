"""Killed at any moment, a run goes on and ends bit-identical to one never killed."""

import pickle
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import killed_run

import fedwmsam
from fedwmsam.engine import checkpoint
from fedwmsam.engine.records import read_lines
from fedwmsam.engine.run_folder import RunFolder
from fedwmsam.errors import InputError
from fedwmsam.files import atomic_replace
from fedwmsam.settings.config import ALWAYS_IDENTIFYING

SCRIPT = Path(__file__).parents[1] / "helpers" / "killed_run.py"
ROUNDS = 40


def start(folder, kind, budget=1000):
    return subprocess.Popen(
        [sys.executable, SCRIPT, folder, kind, str(ROUNDS), str(budget)], stderr=subprocess.PIPE
    )


def finish(folder, kind, budget=1000):
    process = start(folder, kind, budget)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors.decode()


def contents(folder):
    return {
        name: (folder / name).read_bytes()
        for name in (
            "metrics.jsonl",
            "model.safetensors",
            "best.safetensors",
            "averaged.safetensors",
            "summary.json",
        )
        if (folder / name).exists()
    }


@pytest.mark.parametrize(("kind", "budget"), [("plain", 0), ("dropout", 1000), ("batchnorm", 1000)])
def test_a_run_killed_at_random_moments_ends_as_one_never_killed(tmp_path, kind, budget):
    kill_and_compare(tmp_path, kind, times=3, budget=budget)


@pytest.mark.slow
def test_a_run_killed_many_times_ends_as_one_never_killed(tmp_path):
    for trial in range(4):
        (tmp_path / str(trial)).mkdir()
        kill_and_compare(tmp_path / str(trial), "dropout", times=8)


@pytest.mark.slow
def test_a_killed_run_with_every_row_on_disk_ends_as_one_never_killed(tmp_path):
    for trial in range(4):
        (tmp_path / str(trial)).mkdir()
        kill_and_compare(tmp_path / str(trial), "plain", times=8, budget=0)


def kill_and_compare(tmp_path, kind, times, budget=1000):
    finish(tmp_path / "whole", kind)
    folder = tmp_path / "killed"
    seed = random.randrange(2**32)
    generator = random.Random(seed)
    kills = 0
    print("seed", seed)
    while kills < times:
        process = start(folder, kind, budget)
        deadline = time.monotonic() + 60
        while (
            not (folder / "metrics.jsonl").exists()
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.4))
        if process.poll() is not None:
            break  # it finished before it could be killed
        process.kill()
        process.wait()
        process.stderr.close()
        kills += 1
    assert kills, "the run never lived long enough to be killed"
    finish(folder, kind, budget)
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_run_older_than_a_setting_goes_on_with_its_default(tmp_path, monkeypatch):
    """As if lr_decay were new: folders made before do not say it."""
    folder = small_run(tmp_path, rounds=3)
    file = folder / "config.toml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("lr_decay")))
    (folder / "provenance.json").unlink()  # they have no digest of that file either
    with pytest.raises(InputError, match=r"was run with lr_decay = None, not 0\.998"):
        small_run(tmp_path, rounds=4)
    monkeypatch.setattr(
        "fedwmsam.settings.config.ALWAYS_IDENTIFYING", ALWAYS_IDENTIFYING - {"lr_decay"}
    )
    small_run(tmp_path, rounds=4)
    assert len(read_lines(folder / "metrics.jsonl")) == 4


def small_run(tmp_path, rounds=9):
    folder = tmp_path / "run"
    killed_run.main(folder, "plain", rounds)
    return folder


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path, caplog):
    folder = small_run(tmp_path)
    whole = contents(folder)
    newest = checkpoint.path_of(folder / "checkpoints", 9)
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    small_run(tmp_path)
    assert "damaged" in caplog.text
    assert contents(folder) == whole


@pytest.mark.parametrize("length", [0, 5, 40, 500])
def test_a_truncated_checkpoint_is_noticed(tmp_path, length):
    path = tmp_path / "round-0000001.checkpoint"
    content = checkpoint.Checkpoint({"server": {"w": torch.ones(1000)}}, {"round": 1})
    checkpoint.write_checkpoint(path, content)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(checkpoint.DamagedFileError):
        checkpoint.read_checkpoint(path)


def test_all_checkpoints_damaged_starts_again(tmp_path):
    folder = small_run(tmp_path)
    whole = contents(folder)
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"nonsense")
    small_run(tmp_path)
    assert contents(folder) == whole


def test_metrics_written_after_the_checkpoint_are_cut_off(tmp_path):
    folder = small_run(tmp_path)
    whole = contents(folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 10, "accuracy": 1.0}\n{"round": 11, "acc')
    small_run(tmp_path)
    assert contents(folder) == whole


def test_lost_metrics_make_an_older_checkpoint_the_right_one(tmp_path):
    folder = small_run(tmp_path)
    whole = contents(folder)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:7]))
    small_run(tmp_path)
    assert contents(folder) == whole


def test_only_two_checkpoints_are_kept(tmp_path):
    folder = small_run(tmp_path)
    assert checkpoint.rounds_in(folder / "checkpoints") == [9, 6]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_replace(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_one_process_at_a_time_opens_a_folder(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {"rounds": 1})
    with pytest.raises(InputError, match="Another process"):
        RunFolder.open(tmp_path / "run")
    folder.close()
    RunFolder.open(tmp_path / "run").close()


def test_an_error_in_a_callback_loses_no_round(tmp_path):
    def fail(progress):
        if progress.record["round"] == 5:
            raise ZeroDivisionError

    data = list(killed_run.make_clients())
    settings = {"rounds": 8, "batch_size": 10, "run_folder": tmp_path / "run", "seed": 1}
    with pytest.raises(ZeroDivisionError):
        fedwmsam.fit(killed_run.NETWORKS["plain"], data, callbacks=[fail], **settings)
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 5
    assert checkpoint.rounds_in(tmp_path / "run" / "checkpoints") == [5]
    result = fedwmsam.fit(killed_run.NETWORKS["plain"], data, resume=True, **settings)
    settings["run_folder"] = None
    whole = fedwmsam.fit(killed_run.NETWORKS["plain"], data, **settings)
    assert all(torch.equal(result.model[k], whole.model[k]) for k in whole.model)


def test_loading_a_checkpoint_runs_nothing(tmp_path):
    """A pickle where a checkpoint should be is refused, not executed."""

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    path = tmp_path / "round-0000001.checkpoint"
    path.write_bytes(checkpoint.MAGIC + pickle.dumps(Evil()))
    with pytest.raises(checkpoint.DamagedFileError):
        checkpoint.read_checkpoint(path)
    assert not (tmp_path / "executed").exists()
