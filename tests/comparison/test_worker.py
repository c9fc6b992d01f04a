"""Workers in one folder: each run is carried out by one, whatever becomes of the others."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fedwmsam.commands.places import cancel_comparison
from fedwmsam.comparison import slurm
from fedwmsam.comparison import worker as worker_module
from fedwmsam.comparison.claims import DONE, RELEASED, Owner
from fedwmsam.comparison.grid import make_grid
from fedwmsam.comparison.owners import Fate, OwnerObserver
from fedwmsam.comparison.queue import Demand, Follower, QueuedRun
from fedwmsam.comparison.queue_folder import PlannedRun, QueueFolder, RunPlan
from fedwmsam.comparison.status import describe_queue
from fedwmsam.comparison.worker import RunWorker
from fedwmsam.errors import InputError
from fedwmsam.experiment.trust import UNTRUSTED, Trust
from fedwmsam.settings.config import resolve_config

ELSEWHERE = Owner("token", "another machine", 1, "1")


@dataclass
class Bench:
    """A queue of runs that are not trained, only written down."""

    out: Path
    carried_out: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def queue(self) -> QueueFolder:
        return QueueFolder(self.out)

    def write(self, *names: str, **settings: object) -> None:
        self.queue.write_plan(RunPlan([PlannedRun(name, dict(settings)) for name in names]))

    def worker(self, **options) -> RunWorker:
        return RunWorker(self.queue, UNTRUSTED, self.said.append, **options)

    def train(self, run: PlannedRun) -> str:
        """Take the place of a training."""
        self.carried_out.append(run.name)
        (self.out / run.name).mkdir(exist_ok=True)
        (self.out / run.name / "summary.json").write_text('{"status": "completed"}')
        return "completed"

    def states(self) -> dict[str, str]:
        numbers = self.queue.claims.newest_numbers()
        return {name: self.queue.claims.read(name, n).state for name, n in numbers.items()}


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    bench = Bench(tmp_path)
    monkeypatch.setattr(RunWorker, "train", lambda self, run, check: bench.train(run))
    monkeypatch.setattr(worker_module, "WATCH_INTERVAL", 0.01)
    return bench


class KnownFates(OwnerObserver):
    """An observer that has been told what became of everybody."""

    def __init__(self, *fates: Fate) -> None:
        super().__init__()
        self.fates = list(fates)

    def judge(self, claims):
        fate = self.fates[0] if len(self.fates) == 1 else self.fates.pop(0)
        return [fate for _ in claims]


# Taking runs


def test_many_workers_carry_out_each_run_once(bench, monkeypatch):
    names = [f"run-{number}" for number in range(40)]
    bench.write(*names)
    train = bench.train

    def train_for_a_moment(self, run, check):
        time.sleep(0.002)
        return train(run)

    monkeypatch.setattr(RunWorker, "train", train_for_a_moment)
    threads = [threading.Thread(target=bench.worker().work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(bench.carried_out) == sorted(names)
    assert set(bench.states().values()) == {DONE}


def test_a_run_that_was_done_before_is_not_taken(bench):
    bench.write("old", "new")
    bench.train(PlannedRun("old", {}))
    bench.carried_out.clear()
    bench.worker().work()
    assert bench.carried_out == ["new"]


def test_a_run_that_another_holds_is_left_to_it(bench):
    bench.write("theirs", "mine")
    bench.queue.claims.create("theirs", 1, ELSEWHERE, 0)
    bench.worker(observer=KnownFates(Fate.ALIVE)).work()
    assert bench.carried_out == ["mine"]


def test_whether_the_other_lives_is_waited_for(bench):
    bench.write("theirs")
    bench.queue.claims.create("theirs", 1, ELSEWHERE, 0)
    fates = KnownFates(Fate.UNKNOWN, Fate.UNKNOWN, Fate.CRASHED)
    bench.worker(observer=fates).work()
    assert bench.carried_out == ["theirs"]


def test_the_run_of_a_dead_worker_is_tried_once_more(bench):
    bench.write("theirs")
    bench.queue.claims.create("theirs", 1, ELSEWHERE, 0)
    bench.worker(observer=KnownFates(Fate.CRASHED)).work()
    assert bench.carried_out == ["theirs"] and bench.states() == {"theirs": DONE}
    assert "taken over from process 1 of another machine" in bench.said[0]


def test_a_run_with_which_two_workers_died_has_failed_and_the_others_go_on(bench):
    bench.write("deadly", "other")
    bench.queue.claims.create("deadly", 1, ELSEWHERE, 1)
    bench.worker(observer=KnownFates(Fate.CRASHED)).work()
    assert bench.carried_out == ["other"]
    assert "failed: its process died 2 times" in bench.states()["deadly"]


def test_being_preempted_does_not_count_against_a_run(bench):
    bench.write("theirs")
    bench.queue.claims.create("theirs", 1, ELSEWHERE, 1)
    bench.worker(observer=KnownFates(Fate.PREEMPTED)).work()
    assert bench.carried_out == ["theirs"]


def test_two_that_find_the_same_dead_worker_do_not_both_take_its_run(bench):
    bench.write("theirs")
    dead = bench.queue.claims.create("theirs", 1, ELSEWHERE, 0)
    assert dead
    first = bench.worker().take_over(dead, Fate.CRASHED)
    second = bench.worker().take_over(dead, Fate.CRASHED)
    assert first and second is None


# How it ends


def test_an_interrupted_worker_gives_its_run_back(bench, monkeypatch):
    bench.write("run")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunWorker, "train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.worker().work()
    assert bench.states() == {"run": RELEASED}
    claim = bench.queue.claims.read("run", 1)
    assert claim.crashes == 0, "it counts as a crash"


def test_interrupted_just_after_taking_a_run_it_gives_it_back(bench, monkeypatch):
    bench.write("run")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunWorker, "carry_out", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.worker().work()
    assert bench.states() == {"run": RELEASED}


def test_a_comparison_that_is_called_off_interrupts_its_workers(bench, monkeypatch):
    bench.write("first", "second")
    monkeypatch.setattr(worker_module, "Heartbeat", QuickHeartbeat)
    interrupted = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: interrupted.set())

    def train(self, run, check):
        bench.queue.cancel()
        assert interrupted.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunWorker, "train", train)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.worker().work()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert bench.states() == {"first": RELEASED}
    bench.worker().work()
    assert bench.states() == {"first": RELEASED}, "it goes on although it was called off"
    bench.write("first", "second")
    monkeypatch.setattr(RunWorker, "train", lambda self, run, check: bench.train(run))
    bench.worker().work()
    assert bench.carried_out == ["first", "second"]


class QuickHeartbeat(worker_module.Heartbeat):
    """Signs of life in quick succession."""

    def __init__(self, claim, on_beat):
        super().__init__(claim, on_beat, interval=0.02)


def test_a_failed_run_keeps_its_sentence_until_somebody_asks_again(bench, monkeypatch):
    bench.write("run")
    monkeypatch.setattr(RunWorker, "train", lambda *_: "failed: the data are gone")
    bench.worker().work()
    monkeypatch.setattr(RunWorker, "train", lambda self, run, check: bench.train(run))
    bench.worker().work()
    assert bench.states() == {"run": "failed: the data are gone"}
    bench.write("run")
    bench.worker().work()
    assert bench.carried_out == ["run"]


def test_a_worker_at_work_notices_that_a_failed_run_is_asked_for_again(bench, monkeypatch):
    bench.write("first", "second")
    tried: list[str] = []
    train = bench.train

    def fail_once(self, run, check):
        tried.append(run.name)
        if tried == ["first"]:
            return "failed: the data are gone"
        if run.name == "second":
            bench.write("first", "second")
        return train(run)

    monkeypatch.setattr(RunWorker, "train", fail_once)
    bench.worker().work()
    assert tried == ["first", "second", "first"]


def test_a_run_whose_results_were_removed_is_made_again_if_it_is_asked_for(bench):
    bench.write("run")
    bench.worker().work()
    shutil.rmtree(bench.out / "run")
    bench.worker().work()
    assert bench.carried_out == ["run"]
    bench.write("run")
    bench.worker().work()
    assert bench.carried_out == ["run", "run"]


def test_a_plan_that_changes_is_followed(bench, monkeypatch):
    bench.write("first", "dropped")
    train = bench.train

    def change(self, run, check):
        if run.name == "first":
            bench.write("first", "added")
        return train(run)

    monkeypatch.setattr(RunWorker, "train", change)
    bench.worker().work()
    assert bench.carried_out == ["first", "added"]


def test_a_folder_that_disappears_ends_its_worker_with_an_error(bench, monkeypatch):
    bench.write("run", "other")

    def remove(*_):
        shutil.rmtree(bench.out / "queue")
        return "completed"

    monkeypatch.setattr(RunWorker, "train", remove)
    with pytest.raises(OSError, match="queue"):
        bench.worker().work()


# A stranger's folder


def test_the_plan_is_read_as_it_was_written(bench):
    runs = [
        PlannedRun("a", {"method": "fedavg", "lr": 0.1, "seed": 0, "twin": None}),
        PlannedRun("b", {"method": "fedsam", "lr": 0.1, "seed": 1, "rho": 0.05}),
    ]
    plan = RunPlan(runs, ["fedwmsam", "compare"])
    bench.queue.write_plan(plan)
    assert bench.queue.read_plan() == plan
    assert json.loads(bench.queue.plan_path.read_text())["settings"] == {"lr": 0.1}


@pytest.mark.parametrize("name", ["../run", "a/b", ".hidden", "", "..", 7, None, "a\nb", "x" * 300])
def test_a_name_that_is_no_plain_folder_is_refused(bench, name):
    bench.write("run")
    record = {"format": 1, "command": [], "settings": {}, "runs": [{"name": name, "settings": {}}]}
    bench.queue.plan_path.write_text(json.dumps(record))
    with pytest.raises(InputError, match="holds no plan of runs"):
        bench.worker().work()


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "format"),
        ({"format": 2}, "the version of fedwmsam"),
        ({"format": 1, "runs": {}, "settings": {}, "command": []}, "holds no plan"),
        ({"format": 1, "runs": [], "settings": {}, "command": "rm"}, "holds no plan"),
        ({"format": 1, "runs": [1], "settings": {}, "command": []}, "holds no plan"),
    ],
)
def test_a_damaged_plan_is_one_sentence(bench, record, words):
    bench.write("run")
    bench.queue.plan_path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=words):
        bench.worker().work()


@pytest.mark.parametrize("setting", ["model", "method"])
def test_code_that_only_the_folder_names_is_not_imported(bench, setting, tmp_path, monkeypatch):
    (tmp_path / "strange.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    bench.write("run", **{setting: "strange:thing"})
    with pytest.raises(InputError, match=r"would be imported and run.*--trust"):
        bench.worker().work()
    assert bench.states() == {}, "a run was taken that cannot be carried out"
    trusting = replace(bench.worker(), trust=Trust(everything=True))
    trusting.work()
    assert bench.carried_out == ["run"]


def test_a_queue_that_is_a_link_is_refused(bench, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (bench.out / "queue").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link"):
        bench.write("run")


# Real processes


def test_a_worker_that_is_killed_is_found_and_its_run_ends_as_if_it_never_was(cli, tmp_path):
    settings = {"model": "linear", "clients": 4, "local_epochs": 1, "checkpoint_every": 5}
    config = resolve_config(settings | {"rounds": 150, "method": "fedwmsam"})
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        plan = RunPlan([PlannedRun("run", config.to_flat_dict())], ["fedwmsam", "compare"])
        QueueFolder(tmp_path / name).write_plan(plan)
    command = [sys.executable, "-m", "fedwmsam", "work", tmp_path / "killed"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    assert cli("work", tmp_path / "whole").code == 0
    metrics = tmp_path / "killed" / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 8:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "run" / "summary.json").exists()
    outcome = cli("work", tmp_path / "killed")
    assert outcome.code == 0 and "run: taken over" in outcome.out, outcome
    assert QueueFolder(tmp_path / "killed").claims.read("run", 2).state == DONE
    for file in ("metrics.jsonl", "model.safetensors", "config.toml", "summary.json"):
        whole = (tmp_path / "whole" / "run" / file).read_bytes()
        assert (tmp_path / "killed" / "run" / file).read_bytes() == whole


# How far it is


@pytest.mark.parametrize("state", [RELEASED, None])
def test_a_run_that_is_saved_is_done_whatever_became_of_its_claim(bench, state):
    """Its worker was interrupted, or killed, between the run's last file and the claim's."""
    bench.write("a")
    owner = replace(Owner.this_process(), start="12")  # no process of this machine
    claim = bench.queue.claims.create("a", 1, owner, 0)
    if state:
        bench.queue.claims.create("a", 2, owner, 0, state)
    bench.train(bench.queue.read_plan().runs[0])
    assert claim
    (spec,) = make_grid({"methods": ["fedavg"], "seeds": 1}, {}).run_specs()
    run = QueuedRun(spec, bench.out / "a")
    assert Follower(bench.queue, {"a": run}).update() == Demand(0, 0, 0, 2 if state else 1)
    assert run.status == "completed"
    line, *others = describe_queue(bench.queue)
    assert line.endswith("1 runs, 1 done, 0 held by workers, 0 waiting, 0 failed") and not others


def test_all_parts_are_called_off_although_slurm_does_not_answer(bench, monkeypatch):
    bench.write("a")
    tuning = Bench(bench.out / "tuning")
    tuning.out.mkdir()
    tuning.write("b")
    tuning.queue.log_folder.mkdir(parents=True, exist_ok=True)
    (tuning.queue.log_folder / "12.log").write_text("")
    monkeypatch.setattr(slurm, "has_slurm", lambda *_: True)
    monkeypatch.setattr(slurm, "list_jobs", lambda **_: None)
    with pytest.raises(InputError, match="it does not answer"):
        cancel_comparison(bench.out)
    assert tuning.queue.is_cancelled() and bench.queue.is_cancelled()
