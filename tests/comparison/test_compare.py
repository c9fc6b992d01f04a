"""A comparison as a person runs it: real processes, killed and started again."""

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedwmsam.engine.records import read_json, read_lines

ARGUMENTS = (
    "--methods",
    "fedavg,fedwmsam",
    "--seeds",
    "2",
    "--rounds",
    "12",
    "--set",
    "checkpoint_every=2",
    "--jobs",
    "2",
)


def command(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedwmsam", "compare", *arguments, "--out", str(out)]


def read_both(run: Path) -> tuple[bytes, bytes]:
    return (run / "metrics.jsonl").read_bytes(), (run / "model.safetensors").read_bytes()


def contents(out: Path) -> dict[str, tuple[bytes, bytes]]:
    """Return the metrics and the model of each run below `out`."""
    runs = [path.parent for path in sorted(out.glob("*/config.toml"))]
    return {run.name: read_both(run) for run in runs}


def modification_times(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}


def test_a_comparison_runs_once_and_is_then_done(cli, tmp_path):
    arguments = [
        "--methods",
        "fedavg,fedsam",
        "--rounds",
        "2",
        "--grid",
        "rho=0.01,0.1",
        "--jobs",
        "2",
    ]
    first = cli("compare", *arguments, "--out", tmp_path / "c", "--baseline", "fedavg")
    assert first.code == 0, first.err
    assert "fedsam rho=0.1" in first.out and "difference" in first.out
    before = modification_times(tmp_path / "c")
    again = cli("compare", *arguments, "--out", tmp_path / "c")
    assert again.code == 0 and "3 of them done before" in again.out
    assert modification_times(tmp_path / "c") == before and len(before) == 3
    more = cli("compare", "--methods", "fedavg", "--rounds", "1", "--out", tmp_path / "c")
    assert "3 finished runs with other settings" in more.out, more.err
    nothing = cli("compare", "--rounds", "1", "--out", tmp_path / "c")
    assert nothing.code == 2 and "--methods" in nothing.err and nothing.err.count("\n") == 1
    assert "command that made a comparison" in cli("resume", tmp_path / "c").err


def test_methods_of_one_seed_share_clients_and_seeds_do_not(cli, tmp_path):
    outcome = cli(
        "compare",
        "--methods",
        "fedavg,fedcm",
        "--seeds",
        "2",
        "--rounds",
        "1",
        "--out",
        tmp_path / "c",
        "-q",
    )
    assert outcome.code == 0, outcome.err
    hashes = {
        path.parent.name[:12]: read_json(path)["partition_hash"]
        for path in (tmp_path / "c").rglob("data.json")
    }
    assert hashes["fedavg-seed0"] == hashes["fedcm-seed0-"[:12]] != hashes["fedavg-seed1"]


def test_a_run_that_fails_is_named_and_the_others_go_on(cli, tmp_path):
    outcome = cli(
        "compare",
        "--rounds",
        "1",
        "--grid",
        "partition=iid,shards:900",
        "--out",
        tmp_path / "c",
        "--jobs",
        "1",
    )
    assert outcome.code == 1
    assert "failed" in outcome.out and "shards" in outcome.out and "iid" in outcome.out


def test_tuning_says_what_it_chose_and_the_runs_use_it(cli, tmp_path):
    arguments = [
        "--methods",
        "fedavg,fedsam",
        "--rounds",
        "2",
        "--tune",
        "rho=0.01,5.0",
        "--tune-rounds",
        "3",
    ]
    outcome = cli("compare", *arguments, "--out", tmp_path / "c")
    assert outcome.code == 0, outcome.err
    (choice,) = read_json(tmp_path / "c" / "tuning.json")["rows"]
    scores = {entry["values"]["rho"]: entry["scores"][0] for entry in choice["candidates"]}
    chosen = choice["chosen"]["rho"]
    assert chosen == max(scores, key=scores.get) and choice["rounds"] == 3
    assert f"Tuning of fedsam: rho={chosen}, best on validation data" in outcome.out
    assert "How the values were chosen" in outcome.out and "Not tuned: fedavg." in outcome.out
    (folder,) = (tmp_path / "c").glob("fedsam*")
    assert f"rho = {chosen}\n" in (folder / "config.toml").read_text()
    assert choice["runs"] == [folder.name]
    tuning_runs = list((tmp_path / "c" / "tuning").glob("fedsam*/metrics.jsonl"))
    assert len(tuning_runs) == 2 and all(
        "validation_accuracy" in read_lines(path)[-1] for path in tuning_runs
    )
    report = cli("report", tmp_path / "c")
    assert "3 rounds" not in report.out.replace("runs of 3 rounds", ""), "tuning runs are mixed in"
    assert f"fedsam: rho={chosen} of 2 tried" in report.out


def test_a_folder_with_pilot_runs_of_an_older_version_is_refused(cli, tmp_path):
    (tmp_path / "c" / "pilot").mkdir(parents=True)
    (tmp_path / "c" / "pilot" / "messages.log").touch()
    outcome = cli("compare", "--methods", "fedsam", "--tune", "rho=1,2", "--out", tmp_path / "c")
    assert outcome.code == 2 and "pilot runs of an older version" in outcome.err
    assert not (tmp_path / "c" / "tuning").exists()


def test_two_comparisons_in_one_folder_are_refused(cli, tmp_path):
    (tmp_path / "c").mkdir()
    with (tmp_path / "c" / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = cli("compare", "--rounds", "1", "--out", tmp_path / "c")
    assert outcome.code == 2 and "Another comparison" in outcome.err


def test_an_unknown_baseline_is_refused_before_anything_runs(cli, tmp_path):
    outcome = cli(
        "compare", "--methods", "fedavg,fedcm", "--baseline", "fedavgg", "--out", tmp_path / "c"
    )
    assert outcome.code == 2 and "fedavgg" in outcome.err and not (tmp_path / "c").exists()


def test_an_empty_baseline_beside_tuning_is_refused_before_anything_runs(cli, tmp_path):
    arguments = ("--methods", "fedavg,fedcm", "--tune", "lr=0.1,0.2", "--out", tmp_path / "c")
    outcome = cli("compare", *arguments, "--baseline", "")
    assert (outcome.code, (tmp_path / "c").exists()) == (2, False)
    assert "Unknown baseline" in outcome.err


def test_a_baseline_that_could_be_several_rows_is_refused_before_anything_runs(cli, tmp_path):
    arguments = (
        "--methods",
        "fedavg,fedsam",
        "--grid",
        "rho=0.01,0.1",
        "--rounds",
        "1",
        "--out",
        tmp_path / "c",
    )
    outcome = cli("compare", *arguments, "--baseline", "fedsam")
    assert (
        outcome.code == 2
        and "'fedsam rho=0.01', 'fedsam rho=0.1'" in outcome.err
        and not (tmp_path / "c").exists()
    )
    outcome = cli("compare", *arguments, "--baseline", "fedsam rho=0.1")
    assert outcome.code == 0 and "difference to fedsam rho=0.1" in outcome.out, outcome.err


@pytest.mark.slow
def test_a_comparison_that_was_killed_ten_times_ends_as_if_it_never_was(tmp_path):
    subprocess.run(command(tmp_path / "whole", *ARGUMENTS), check=True, capture_output=True)
    chance = random.Random(0)
    for number in range(10):
        process = subprocess.Popen(
            command(tmp_path / "killed", *ARGUMENTS),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(3, 8))
        workers = children(process.pid)
        process.send_signal(chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        if number % 3 == 0:
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        process.wait()
    subprocess.run(command(tmp_path / "killed", *ARGUMENTS), check=True, capture_output=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert len(contents(tmp_path / "whole")) == 4


@pytest.mark.slow
def test_no_process_outlives_a_killed_comparison(tmp_path):
    process = subprocess.Popen(
        command(tmp_path / "c", *ARGUMENTS), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (workers := children(process.pid)):
        time.sleep(0.2)
    process.kill()
    process.wait()
    end = time.monotonic() + 120
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < end:
        time.sleep(0.5)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def children(pid: int) -> list[int]:
    list_children = ["ps", "-o", "pid=", "--ppid", str(pid)]
    listing = subprocess.run(list_children, capture_output=True, text=True)
    return [int(word) for word in listing.stdout.split()]
