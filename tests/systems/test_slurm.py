"""Comparisons on a real Slurm, whose jobs and daemons are ended in mid-run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign.folders import read_last_checkpoint
from helpers import slurm
from helpers.slurm import Cluster

from fedwmsam.comparison.queue_folder import QueueFolder

pytestmark = [
    pytest.mark.systems,
    pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not() or "Slurm can be started"),
]
TIMED = ("timings.jsonl", "provenance.json", "lock")
"""Files of a run that say when, where and how long, and nothing of what came out."""
SMALL = ("--model", "linear", "--clients", "6", "--local-epochs", "2", "--quiet")


@pytest.fixture(scope="module")
def slurm_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def cluster(slurm_here: Cluster) -> Iterator[Cluster]:
    yield slurm_here
    slurm_here.cancel_all()


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "fedwmsam", *map(str, words)]


def start(cluster: Cluster, *words: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command("compare", *words),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def call(cluster: Cluster, *words: str | Path) -> tuple[int, str]:
    process = start(cluster, *words)
    out, _ = process.communicate(timeout=200)
    return process.returncode, out


def contents(out: Path) -> dict[str, bytes]:
    """Return the files of all runs of a comparison, but for those that say when and where.

    Of checkpoints it is the content of the last: where clients' rows lie in the files depends on
    when they were saved.
    """
    files = [path for path in out.glob("*-seed*/*") if path.is_file() and path.name not in TIMED]
    contents = {str(path.relative_to(out)): path.read_bytes() for path in files}
    for folder in out.glob("*-seed*/checkpoints"):
        for name, content in read_last_checkpoint(folder).items():
            contents[f"{folder.relative_to(out)}: {name}"] = content
    return contents


def rounds_of(out: Path) -> int:
    """Return how many rounds all runs have together."""
    return sum(path.read_bytes().count(b"\n") for path in out.glob("*/metrics.jsonl"))


def finished(out: Path) -> int:
    return len(list(out.glob("*/summary.json")))


def test_24_runs_with_preemptions_and_lost_controllers_end_as_on_this_machine(cluster, tmp_path):
    """Jobs are requeued, the comparison is killed and called off, slurmctld is killed."""
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'methods = ["fedavg", "fedcm", "fedsam", "fedwmsam"]\nseeds = 6\nrounds = 150\n'
        'model = "linear"\nclients = 6\nlocal_epochs = 2\ncheckpoint_every = 10\n'
    )
    out = tmp_path / "slurm"
    words = (plan, "--on", "slurm", "--slurm", "time=10", "--quiet", "--out", out)
    first = start(cluster, *words, "--jobs", "1")
    wait_for_rounds(cluster, out)
    for _ in range(2):  # two preemptions
        cluster.requeue(*cluster.jobs("RUNNING"))
        wait_for_rounds(cluster, out)
    first.send_signal(signal.SIGKILL)  # the comparison dies, its jobs go on
    first.wait()
    wait_for_rounds(cluster, out)
    cluster.kill("slurmctld.pid", signal.SIGKILL)
    plan_before = QueueFolder(out).plan_path.stat().st_ino
    second = start(cluster, *words, "--jobs", "1")
    cluster.wait_until(lambda: QueueFolder(out).plan_path.stat().st_ino != plan_before)
    wait_for_rounds(cluster, out)
    cluster.start_controller()
    code, status = call(cluster, "--out", out, "--status")
    assert code == 0 and "24 runs" in status and "jobs in Slurm's queue: 1 running" in status, (
        status
    )
    code, said = call(cluster, "--out", out, "--cancel")
    assert code == 0 and "called off" in said, said
    words_of_second, _ = second.communicate(timeout=60)
    assert second.returncode == 2 and "was called off" in words_of_second, words_of_second
    cluster.wait_until(lambda: not cluster.jobs())
    assert finished(out) < 24, "it was over before it was called off"
    assert all(not claim.is_held for claim in claims_of(out)), "a run was not given back"
    assert len(list((out / "queue" / "logs").iterdir())) == 1, "more than one job was submitted"
    code, said = call(cluster, *words, "--jobs", "2")
    assert code == 0, said
    assert finished(out) == 24
    assert any(claim.number > 1 for claim in claims_of(out)), "no run was ever taken up again"
    here = tmp_path / "local"
    assert call(cluster, plan, "--jobs", "2", "--quiet", "--out", here)[0] == 0
    assert contents(out) == contents(here)
    assert len({Path(name).parts[0] for name in contents(here)}) == 24


def wait_for_rounds(cluster: Cluster, out: Path, count: int = 15) -> None:
    """Wait until the runs have so many more rounds than now."""
    before = rounds_of(out)
    cluster.wait_until(lambda: rounds_of(out) > before + count)


def claims_of(out: Path):
    queue = QueueFolder(out)
    numbers = queue.claims.newest_numbers()
    return [queue.claims.read(name, number) for name, number in numbers.items()]


def test_a_worker_that_is_killed_in_its_job_loses_its_run_to_a_new_one(cluster, tmp_path):
    words = ("--methods", "fedavg", "--seeds", "2", "--rounds", "300", *SMALL, "--on", "slurm")
    process = start(cluster, *words, "--jobs", "1", "--out", tmp_path)
    cluster.wait_until(lambda: rounds_of(tmp_path) > 20)
    (claim,) = claims_of(tmp_path)
    os.kill(claim.owner.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    claim = QueueFolder(tmp_path).claims.read(claim.run, 2)
    assert (claim.state, claim.crashes) == ("done", 1)
    logs = [path.read_text() for path in sorted((tmp_path / "queue" / "logs").iterdir())]
    assert any("taken over from job" in text for text in logs), logs


def test_values_are_tuned_on_slurm_as_on_this_machine(cluster, tmp_path):
    words = ("--methods", "fedavg,fedsam", "--tune", "rho=0.01,0.5", "--rounds", "3", *SMALL)
    code, out = call(cluster, *words, "--on", "slurm", "--jobs", "2", "--out", tmp_path / "slurm")
    assert code == 0, out
    assert call(cluster, *words, "--jobs", "2", "--out", tmp_path / "local")[0] == 0
    for name in ("slurm", "local"):
        assert (tmp_path / name / "tuning.json").exists()
    assert contents(tmp_path / "slurm") == contents(tmp_path / "local")
    assert contents(tmp_path / "slurm/tuning") == contents(tmp_path / "local/tuning")
    tuned = (tmp_path / "slurm" / "tuning.json").read_bytes()
    assert tuned == (tmp_path / "local" / "tuning.json").read_bytes()


def test_a_job_whose_time_is_over_saves_and_goes_on_in_the_queue(cluster, tmp_path):
    """Its time is a minute, and the signal comes at once; a cluster's administrator set neither."""
    words = ("--methods", "fedavg", "--rounds", "4000", *SMALL, "--on", "slurm", "--jobs", "1")
    process = start(cluster, *words, "--slurm", "time=1", "--out", tmp_path)
    cluster.wait_until(lambda: rounds_of(tmp_path) > 20)
    (job,) = cluster.jobs("RUNNING")
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    cluster.wait_until(lambda: job in cluster.jobs("PENDING"))
    (claim,) = claims_of(tmp_path)
    assert claim.is_free, "the run was not given back"
    saved = rounds_of(tmp_path)
    cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now")
    cluster.wait_until(lambda: rounds_of(tmp_path) > saved)
    (claim,) = claims_of(tmp_path)
    assert (claim.owner.job, claim.owner.restarts, claim.crashes) == (job, 1, 0)
    assert call(cluster, "--out", tmp_path, "--cancel")[0] == 0
    process.communicate(timeout=60)


def test_a_partition_that_does_not_exist_is_one_sentence(cluster, tmp_path):
    words = ("--rounds", "1", *SMALL, "--on", "slurm", "--slurm", "partition=gup")
    code, out = call(cluster, *words, "--out", tmp_path)
    assert code == 2 and "invalid partition specified: gup" in out, out
    assert len(out.strip().splitlines()) == 1


def test_jobs_that_go_on_are_found_after_ctrl_c(cluster, tmp_path):
    words = ("--methods", "fedavg", "--rounds", "600", *SMALL, "--on", "slurm", "--jobs", "1")
    process = start(cluster, *words, "--out", tmp_path)
    cluster.wait_until(lambda: rounds_of(tmp_path) > 5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "The jobs go on in Slurm" in out
    before = rounds_of(tmp_path)
    cluster.wait_until(lambda: rounds_of(tmp_path) > before)
    assert call(cluster, *words, "--out", tmp_path)[0] == 0
    assert len(list((tmp_path / "queue" / "logs").iterdir())) == 1, "another job was submitted"


def test_a_recipe_of_the_paper_runs_on_slurm_as_on_this_machine(cluster, tmp_path):
    words = ("reproduce", "table-5", "--rounds", "1", "--set", "dataset=digits", "--set")
    words = (*words, "model=linear", "--set", "clients=6", "--quiet", "--jobs", "2")
    for place in ("slurm", "local"):
        called = subprocess.run(
            command(*words, "--on", place, "--out", tmp_path / place),
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert called.returncode == 0, called.stdout + called.stderr
    assert contents(tmp_path / "slurm/runs") == contents(tmp_path / "local/runs")
    table = "table-5-small/table.md"
    assert (tmp_path / "slurm" / table).read_bytes() == (tmp_path / "local" / table).read_bytes()
    assert list((tmp_path / "slurm/runs/queue/logs").iterdir()), "no job was submitted"
