"""Claims on runs: of any number of workers one gets a run, and that of a dead one is found."""

import errno
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedwmsam import files
from fedwmsam.comparison import claims as claims_module
from fedwmsam.comparison import owners, slurm
from fedwmsam.comparison.claims import (
    HELD,
    LOST,
    RELEASED,
    Claim,
    ClaimFolder,
    Heartbeat,
    Owner,
    cluster_mark,
)
from fedwmsam.comparison.owners import Fate, OwnerObserver
from fedwmsam.comparison.slurm import SlurmJob
from fedwmsam.errors import InputError
from fedwmsam.machine import process_start

ELSEWHERE = Owner("token", "another machine", 1, "1")
"""A worker on a machine of which nothing but its claim is seen."""


@pytest.fixture
def folder(tmp_path) -> ClaimFolder:
    (tmp_path / "claims").mkdir()
    return ClaimFolder(tmp_path / "claims")


def held_by(folder: ClaimFolder, owner: Owner) -> Claim:
    claim = folder.create("run", 1, owner, 0)
    assert claim
    return claim


# Making a file that must not exist


def test_of_many_processes_one_makes_each_file(tmp_path):
    """Threads do: what decides is made by the system, and the lock of Python is not held for it."""
    wins: list[str] = []

    def make_all(owner: str) -> None:
        for number in range(60):
            path = tmp_path / str(number)
            if files.create_text(path, owner):
                wins.append(f"{number} {owner}")

    threads = [threading.Thread(target=make_all, args=[f"owner {i}"]) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [f"{number} {(tmp_path / str(number)).read_text()}" for number in range(60)]
    assert sorted(wins) == sorted(made)
    assert len(list(tmp_path.iterdir())) == 60, "temporary files are left"


def test_an_answer_of_the_server_that_is_lost_does_not_lose_the_file(tmp_path, monkeypatch):
    link = os.link

    def link_without_answer(*arguments, **options):
        link(*arguments, **options)
        raise OSError(errno.EIO, "the answer is lost")

    monkeypatch.setattr(os, "link", link_without_answer)
    assert files.create_text(tmp_path / "claim", "mine")
    assert (tmp_path / "claim").read_text() == "mine"


def test_a_disk_without_links_also_has_one_winner(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert files.create_text(tmp_path / "claim", "mine")
    assert not files.create_text(tmp_path / "claim", "yours")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_full_disk_is_an_error_and_no_claim(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="No space left"):
        files.create_text(tmp_path / "claim", "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_a_claim_is_neither_followed_nor_replaced(tmp_path):
    (tmp_path / "claim").symlink_to(tmp_path / "elsewhere")
    assert not files.create_text(tmp_path / "claim", "mine")
    assert not (tmp_path / "elsewhere").exists()


# Claims


def test_a_worker_with_an_outdated_list_takes_nothing(folder):
    """It has seen that claim 1 was released; meanwhile another has taken the run with claim 2."""
    first = held_by(folder, Owner.this_process())
    folder.end(first, RELEASED)
    outdated = folder.read("run", folder.newest_numbers()["run"])
    assert outdated.is_free
    second = folder.create("run", 2, ELSEWHERE, 0)
    assert second
    assert folder.create("run", outdated.number + 1, Owner.this_process(), 0) is None
    folder.end(second, RELEASED)
    assert folder.create("run", outdated.number + 1, Owner.this_process(), 0) is None


def test_a_claim_says_who_holds_it(folder):
    owner = Owner.this_process()
    held_by(folder, owner)
    claim = folder.read("run", 1)
    assert (claim.state, claim.owner, claim.crashes) == (HELD, owner, 0)
    assert "host" not in (folder.path / "run.1").read_text(), "a machine is named"
    assert owner.pid == os.getpid() and owner.token != Owner.this_process().token


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"state": 1, "crashes": 0, "owner": {}}',
        '{"state": "held", "crashes": 0, "owner": {"token": "a"}}',
        '{"state": "held", "crashes": "0", "owner": {}}',
    ],
)
def test_a_damaged_claim_is_one_sentence(folder, text):
    (folder.path / "run.1").write_text(text)
    with pytest.raises(InputError, match=r"run\.1 is no claim on a run"):
        folder.read("run", 1)


def test_other_files_beside_the_claims_are_left_alone(folder):
    held_by(folder, ELSEWHERE)
    for name in (".run.2.new", "run", "run.x", "run.99999999999999999999", "notes.txt"):
        (folder.path / name).touch()
    assert folder.newest_numbers() == {"run": 1}


# Signs of life


def test_a_worker_that_lost_its_claim_ends_without_saving(folder):
    """It was stopped for long, another has taken its run: the files are no longer its own."""
    held_by(folder, ELSEWHERE)
    program = """
import sys, time
from pathlib import Path
from fedwmsam.comparison.claims import ClaimFolder, Heartbeat
claim = ClaimFolder(Path(sys.argv[1])).read("run", 1)
with Heartbeat(claim, lambda: None, interval=0.05):
    print("ready", flush=True)
    try:
        time.sleep(30)
    finally:
        print("saved", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, folder.path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    folder.create("run", 2, Owner.this_process(), 1)
    out, err = process.communicate(timeout=30)
    assert process.returncode == LOST and "taken over by another worker" in err
    assert "saved" not in out


def test_after_a_pause_the_claim_is_checked_before_the_next_round(folder, monkeypatch):
    claim = held_by(folder, Owner.this_process())
    ends: list[str] = []
    monkeypatch.setattr(Heartbeat, "end_process", lambda self, what: ends.append(what))
    heartbeat = Heartbeat(claim, lambda: None, interval=10)
    folder.create("run", 2, ELSEWHERE, 0)
    heartbeat.check()
    assert ends == [], "the disk was asked although the last sign of life is recent"
    now = claims_module.clock()
    monkeypatch.setattr(claims_module, "clock", lambda: now + 1000)
    heartbeat.check()
    assert ends == ["was taken over by another worker"]


def test_a_claim_that_disappears_ends_its_worker(folder, monkeypatch):
    claim = held_by(folder, Owner.this_process())
    ends: list[str] = []
    monkeypatch.setattr(Heartbeat, "end_process", lambda self, what: ends.append(what))
    claim.path.unlink()
    Heartbeat(claim, lambda: None).beat()
    assert ends == ["has disappeared"]


def test_signs_of_life_go_on_after_a_disk_did_not_answer(folder, monkeypatch):
    heartbeat = Heartbeat(held_by(folder, Owner.this_process()), lambda: None, interval=0.01)
    exists = Path.exists
    failures = iter([False, True, False, True, False])

    def exists_at_times(path):
        if next(failures, False):
            raise OSError(errno.ESTALE, "Stale file handle")
        return exists(path)

    monkeypatch.setattr(Path, "exists", exists_at_times)
    heartbeat.last_beat -= 1000
    heartbeat.check()
    heartbeat.check()
    heartbeat.last_beat += 1000
    with heartbeat:
        time.sleep(0.2)
        assert heartbeat.thread.is_alive()
        begin = heartbeat.last_beat
        time.sleep(0.2)
        assert heartbeat.last_beat > begin


# Who lives


def test_where_no_beginning_is_known_a_process_must_also_give_signs_of_life(folder, monkeypatch):
    """On macOS, after a restart, another process may have the number."""
    now = [100.0]
    monkeypatch.setattr(owners, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(owners, "process_start", lambda pid: "" if pid == 1 else None)
    owner = replace(Owner.this_process(), pid=1, start="")
    claim = held_by(folder, owner)
    gone = replace(claim, owner=replace(owner, pid=2, token="other"))
    observer = OwnerObserver(lease=30)
    assert observer.judge([claim, gone]) == [Fate.UNKNOWN, Fate.CRASHED]
    now[0] += 31
    assert observer.judge([claim]) == [Fate.CRASHED]


def test_a_process_of_this_machine_is_known_by_its_number_and_its_beginning(folder):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = process_start(process.pid)
    assert start
    owner = replace(Owner.this_process(), pid=process.pid, start=start)
    claim = held_by(folder, owner)
    reused = replace(claim, owner=replace(owner, start="12"))
    assert OwnerObserver().judge([claim, reused]) == [Fate.ALIVE, Fate.CRASHED]
    process.kill()
    time.sleep(0.2)  # now nobody has asked for its code yet: the system still lists it
    assert OwnerObserver().judge([claim]) == [Fate.CRASHED]
    process.communicate()
    assert OwnerObserver().judge([claim]) == [Fate.CRASHED]


@pytest.mark.parametrize("clock_of_the_disk", [0, 10**9, 4 * 10**9])
def test_elsewhere_signs_of_life_count_whatever_the_clocks_say(
    folder, clock_of_the_disk, monkeypatch
):
    now = [100.0]
    monkeypatch.setattr(owners, "time", SimpleNamespace(monotonic=lambda: now[0]))
    claim = held_by(folder, ELSEWHERE)
    observer = OwnerObserver(lease=30)
    os.utime(claim.path, (clock_of_the_disk, clock_of_the_disk))
    assert observer.judge([claim]) == [Fate.UNKNOWN]
    os.utime(claim.path, (clock_of_the_disk - 7, clock_of_the_disk - 7))
    assert observer.judge([claim]) == [Fate.ALIVE], "it has changed while it was watched"
    now[0] += 29
    assert observer.judge([claim]) == [Fate.ALIVE]
    now[0] += 2
    assert observer.judge([claim]) == [Fate.CRASHED]
    assert OwnerObserver(lease=30).judge([claim]) == [Fate.UNKNOWN], "who comes anew must watch"


IN_SLURM = Owner("token", "another machine", 1, "1", "12_3", 1, cluster_mark("cluster"))


@pytest.mark.parametrize(
    ("jobs", "fate"),
    [
        ([SlurmJob("12_3", "RUNNING", 1, "None")], Fate.ALIVE),
        ([SlurmJob("12_3", "SUSPENDED", 1, "None")], Fate.ALIVE),
        ([SlurmJob("12_3", "PENDING", 1, "BeginTime")], Fate.PREEMPTED),
        ([SlurmJob("12_3", "RUNNING", 2, "None")], Fate.PREEMPTED),
        ([SlurmJob("12_3", "COMPLETING", 2, "None")], Fate.UNKNOWN),
        ([SlurmJob("12_4", "RUNNING", 1, "None")], Fate.CRASHED),
        ([], Fate.CRASHED),
        (None, Fate.UNKNOWN),
    ],
)
def test_a_job_is_judged_by_what_slurm_lists(folder, monkeypatch, jobs, fate):
    asked: list[list[str]] = []

    def list_jobs(*, ids):
        asked.append(list(ids))
        return jobs

    monkeypatch.setattr(slurm, "list_jobs", list_jobs)
    monkeypatch.setattr(slurm, "has_slurm", lambda: True)
    monkeypatch.setattr(slurm, "cluster_name", lambda: "cluster")
    observer = OwnerObserver()
    assert observer.judge([held_by(folder, IN_SLURM)]) == [fate]
    later = folder.create("other", 1, replace(IN_SLURM, token="later"), 0)
    assert later
    assert observer.judge([later]) == [Fate.UNKNOWN], "the answer is older than this claim"
    assert asked == [["12_3"]], "Slurm was asked again at once"


def test_a_job_of_another_cluster_is_not_taken_for_one_of_ours(folder, monkeypatch):
    monkeypatch.setattr(slurm, "list_jobs", lambda *, ids: [])
    monkeypatch.setattr(slurm, "has_slurm", lambda: True)
    monkeypatch.setattr(slurm, "cluster_name", lambda: "ours")
    assert OwnerObserver().judge([held_by(folder, IN_SLURM)]) == [Fate.UNKNOWN]


def test_the_owner_in_an_array_of_jobs_is_its_task(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert Owner.this_process().job == "77"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "70")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    owner = Owner.this_process()
    assert (owner.job, owner.restarts, owner.place) == ("70_7", 2, "job 70_7 of Slurm")
