"""Launchers: how many workers they start where, and what they say when these do not work."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from fedwmsam.comparison import launchers, slurm
from fedwmsam.comparison.launchers import LocalLauncher, SlurmLauncher
from fedwmsam.comparison.queue import Demand, MetricsTail
from fedwmsam.comparison.slurm import SlurmJob, parse_slurm_options, parse_time
from fedwmsam.errors import InputError

# This machine


@pytest.fixture
def workers(monkeypatch):
    """Return the programs that the next workers run; without one they wait for their input."""
    programs: list[str] = []

    def command(out, trusts):
        return [sys.executable, "-c", programs.pop(0) if programs else "input()"]

    monkeypatch.setattr(launchers, "worker_command", command)
    return programs


def wait_for_all(launcher: LocalLauncher) -> None:
    for worker in launcher.workers:
        worker.wait(timeout=30)


def test_no_more_workers_than_can_be_busy(tmp_path, workers):
    with LocalLauncher(tmp_path, 4, trusts=False) as launcher:
        launcher.provide(Demand(open=2, waiting=2, lost=0, claims=0))
        assert len(launcher.workers) == 2
        launcher.provide(Demand(open=2, waiting=0, lost=0, claims=2))
        launcher.provide(Demand(open=9, waiting=9, lost=0, claims=2))
        assert len(launcher.workers) == 4
    assert [worker.poll() is None for worker in launcher.workers] == 4 * [False]


def test_a_worker_that_died_is_replaced_if_a_run_waits(tmp_path, workers):
    workers += ["exit(9)"]
    with LocalLauncher(tmp_path, 1, trusts=False) as launcher:
        launcher.provide(Demand(open=1, waiting=1, lost=0, claims=0))
        wait_for_all(launcher)
        launcher.provide(Demand(open=1, waiting=0, lost=0, claims=1))
        assert launcher.workers == []
        launcher.provide(Demand(open=1, waiting=1, lost=1, claims=1))
        assert len(launcher.workers) == 1


def test_workers_that_always_end_at_once_end_the_comparison(tmp_path, workers):
    workers += 9 * ["print('no PyTorch here'); exit(7)"]
    demand = Demand(open=3, waiting=3, lost=0, claims=0)
    launcher = LocalLauncher(tmp_path, 1, trusts=False)
    with launcher, pytest.raises(InputError, match=r"with code 7; .*messages\.log"):
        for _ in range(9):
            launcher.provide(demand)
            wait_for_all(launcher)
    assert "no PyTorch here" in (tmp_path / "messages.log").read_text()
    assert len(workers) > 3


# Slurm


class PretendedSlurm:
    """What a launcher sees of a cluster."""

    def __init__(self, monkeypatch) -> None:
        self.jobs: list[SlurmJob] | None = []
        self.submitted: list[int] = []
        self.scripts: list[str] = []
        self.said: list[str] = []
        self.now = 0.0
        monkeypatch.setattr(launchers, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(slurm, "list_jobs", lambda *, name: self.jobs)
        monkeypatch.setattr(slurm, "submit", self.submit)

    def submit(self, words, script):
        (array,) = [word for word in words if word.startswith("--array=0-")]
        self.submitted.append(int(array.removeprefix("--array=0-")) + 1)
        self.scripts.append(script)
        return "12"

    def run(self, count: int, state: str = "RUNNING") -> None:
        self.jobs = [SlurmJob(f"12_{number}", state, 0, "Priority") for number in range(count)]

    def provide(self, launcher, **numbers) -> None:
        self.now += 10
        launcher.provide(Demand(**({"open": 0, "waiting": 0, "lost": 0, "claims": 0} | numbers)))


@pytest.fixture
def cluster(monkeypatch):
    return PretendedSlurm(monkeypatch)


def make_launcher(cluster, out, jobs=5) -> SlurmLauncher:
    return SlurmLauncher(out, jobs, trusts=True, options={}, say=cluster.said.append)


def test_workers_are_submitted_once(cluster, tmp_path):
    launcher = make_launcher(cluster, tmp_path)
    cluster.provide(launcher, open=24, waiting=24)
    cluster.run(5, "PENDING")
    cluster.provide(launcher, open=24, waiting=24)
    cluster.run(5)
    cluster.provide(launcher, open=20, waiting=15)
    assert cluster.submitted == [5]
    assert f"work {tmp_path} --trust --requeue" in cluster.scripts[0]


def test_jobs_from_before_count(cluster, tmp_path):
    cluster.run(3)
    cluster.provide(make_launcher(cluster, tmp_path), open=24, waiting=21)
    assert cluster.submitted == [2]
    assert cluster.said[0] == "In Slurm's queue from before: 3 running"


def test_jobs_from_before_that_are_about_to_end_do_not_count(cluster, tmp_path):
    cluster.run(5, "COMPLETING")
    cluster.provide(make_launcher(cluster, tmp_path), open=24, waiting=24)
    assert cluster.submitted == [5]
    cluster.run(5)  # these have just looked for a run in vain, in an older plan
    launcher = make_launcher(cluster, tmp_path)
    cluster.provide(launcher, open=24, waiting=24)
    cluster.jobs = []
    cluster.provide(launcher, open=24, waiting=24)
    assert cluster.submitted == [5, 5]


def test_lost_runs_get_new_workers_when_the_old_ones_are_gone(cluster, tmp_path):
    launcher = make_launcher(cluster, tmp_path)
    cluster.provide(launcher, open=6, waiting=6)
    cluster.run(1)
    cluster.provide(launcher, open=3, waiting=2, lost=2, claims=5)
    assert cluster.submitted == [5], "the worker that is left will take them"
    cluster.jobs = []
    cluster.provide(launcher, open=2, waiting=2, lost=2, claims=5)
    assert cluster.submitted == [5, 2]


def test_workers_that_end_before_they_take_a_lost_run_are_not_submitted_again(cluster, tmp_path):
    """Their program is not there, say: a claim on a lost run stays until somebody takes it."""
    launcher = make_launcher(cluster, tmp_path)
    cluster.provide(launcher, open=6, waiting=6)
    cluster.jobs = []
    with pytest.raises(InputError, match=r"queue with 2 runs to do: .*could not start"):
        for _ in range(24):
            cluster.provide(launcher, open=2, waiting=2, lost=2, claims=5)
    assert cluster.submitted == [5, 2]
    assert cluster.now > 100, "a disk may show claims later"


def test_jobs_that_somebody_cancelled_are_not_submitted_again(cluster, tmp_path):
    launcher = make_launcher(cluster, tmp_path)
    cluster.provide(launcher, open=6, waiting=6)
    cluster.jobs = []
    with pytest.raises(InputError, match="left Slurm's queue with 4 runs to do"):
        for _ in range(12):
            cluster.provide(launcher, open=4, waiting=4)
    assert cluster.now > 100, "a disk may show results later"
    assert cluster.submitted == [5]


def test_a_controller_of_slurm_that_is_away_is_waited_for(cluster, tmp_path):
    launcher = make_launcher(cluster, tmp_path)
    cluster.provide(launcher, open=6, waiting=6)
    cluster.jobs = None
    for _ in range(30):
        cluster.provide(launcher, open=4, waiting=4)
    cluster.run(5)
    cluster.provide(launcher, open=4, waiting=4)
    assert cluster.submitted == [5]
    assert sum("does not answer" in text for text in cluster.said) == 1


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (["partition=gpu,time=4:00:00"], {"partition": "gpu", "time": "4:00:00"}),
        (
            ["exclude=a1,a2,mem=4G", "exclusive"],
            {"exclude": "a1,a2", "mem": "4G", "exclusive": None},
        ),
        (["--gres=gpu:1"], {"gres": "gpu:1"}),
        ([], {}),
    ],
)
def test_options_of_sbatch_are_taken_as_they_are_written(texts, options):
    assert parse_slurm_options(texts) == options


@pytest.mark.parametrize(
    "text", ["partition=", "=gpu", "p=gpu", "a b=1", "", "Partition=gpu", ";x=1"]
)
def test_what_is_no_option_of_sbatch_is_refused(text):
    with pytest.raises(InputError, match="--slurm takes long options"):
        parse_slurm_options([text])


def test_what_the_launcher_needs_cannot_be_chosen():
    with pytest.raises(InputError, match="array is set by fedwmsam itself"):
        parse_slurm_options(["array=0-3"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:15", 1815),
        ("4:00:00", 14400),
        ("2-1", 176400),
        ("2-1:30", 178200),
        ("1-0:0:1", 86401),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_limits_of_time_are_read_as_slurm_writes_them(text, seconds):
    assert parse_time(text) == seconds


def test_a_job_with_little_time_is_told_late_enough(tmp_path):
    def signal_of(**options):
        words = slurm.sbatch_words(tmp_path, tmp_path, 1, options)
        return next(word for word in words if word.startswith("--signal"))

    assert signal_of() == "--signal=B:USR1@120"
    assert signal_of(time="4:00:00") == "--signal=B:USR1@120"
    assert signal_of(time="2") == "--signal=B:USR1@30", "it would be told at its beginning"
    assert signal_of(signal="B:USR1@600") == "--signal=B:USR1@600"


def test_what_sbatch_says_is_passed_on(monkeypatch):
    answer = subprocess.CompletedProcess(
        [], 1, "", "sbatch: error: invalid partition specified: gup\n"
    )
    monkeypatch.setattr(slurm, "ask_slurm", lambda *words, input: answer)
    with pytest.raises(InputError, match="refused the jobs: invalid partition specified: gup"):
        slurm.submit(["sbatch"], "")


# Following runs


def test_metrics_are_read_as_they_grow_and_anew_when_they_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path, 0.0)
    assert tail.read() == 0
    path.write_text('{"round": 1, "accuracy": 0.5}\n{"round": 2, "accu')
    assert (tail.read(), tail.rounds, tail.last_record) == (1, 1, {"accuracy": 0.5})
    path.write_text('{"round": 1, "accuracy": 0.5}\n{"round": 2, "accuracy": 0.6}\n{"round": 3}\n')
    assert (tail.read(), tail.rounds, tail.last_record) == (2, 3, {})
    path.write_text('{"round": 1, "accuracy": 0.5}\n')
    assert (tail.read(), tail.rounds, tail.last_record) == (-2, 1, {"accuracy": 0.5})
