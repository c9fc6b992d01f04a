"""A worker of a comparison: takes runs from its folder, one at a time, until none is left.

`fedwmsam work FOLDER` is this, on whatever machine sees the folder. Who else works there it learns
from the folder alone (`comparison/queue_folder.py`). PyTorch is imported once for all runs.
"""

import contextlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedwmsam.comparison.claims import DONE, FAILED, RELEASED, Claim, Heartbeat, Owner
from fedwmsam.comparison.owners import Fate, OwnerObserver
from fedwmsam.comparison.queue_folder import PlannedRun, QueueFolder, RunPlan
from fedwmsam.engine.run import Callback
from fedwmsam.engine.run_folder import FolderBusy, RunFolder, is_run
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import Experiment, prepare
from fedwmsam.experiment.trust import Trust
from fedwmsam.files import own_folder
from fedwmsam.settings.config import resolve_config
from fedwmsam.termination import interrupt_main_thread
from fedwmsam.trackers import make_trackers

MAX_CRASHES = 2
"""How many workers may die with a run before that counts as its failure."""
LOCK_TIMEOUT = 60
"""Seconds to wait for another process that still holds a run's folder."""
WATCH_INTERVAL = 2.0
"""Seconds between two looks at runs that others hold."""


@dataclass
class RunWorker:
    """A worker in the folder of a comparison."""

    queue: QueueFolder
    trust: Trust
    say: Callable[[str], None]
    observer: OwnerObserver = field(default_factory=OwnerObserver)
    owner: Owner = field(default_factory=Owner.this_process)
    plan: RunPlan = field(default_factory=RunPlan)
    """The plan as it was when a run was last looked for."""
    is_stopping: bool = False

    def work(self) -> None:
        """Carry out runs until none is left to take.

        Runs that others hold are theirs; they are waited for only while it is not known whether
        these others live. Raise InputError if a run names code that is not trusted.
        """
        try:
            while claim := self.take_run():
                self.carry_out(claim)
            self.say(f"No run of {self.queue.out} is left to take")
        except BaseException:
            self.give_back()
            raise

    def take_run(self) -> Claim | None:
        """Return a claim on a run that is free or whose worker has died; None if there is none."""
        while not self.queue.is_cancelled():
            self.read_plan()
            names = [run.name for run in self.plan.runs]
            claims = self.queue.newest_claims(names)
            for name in names:
                claim = self.take_free(name, claims.get(name))
                if claim:
                    return claim
            held = [claim for claim in claims.values() if claim.is_held]
            fates = self.observer.judge(held)
            for claim, fate in zip(held, fates, strict=True):
                successor = self.take_over(claim, fate) if fate.is_dead else None
                if successor:
                    return successor
            if all(fate is Fate.ALIVE for fate in fates):
                return None
            time.sleep(WATCH_INTERVAL)
        return None

    def read_plan(self) -> None:
        """Read the plan if it has changed; raise InputError if code in it is not trusted."""
        plan = self.queue.read_plan()
        if plan is not self.plan:
            for run in plan.runs:
                self.trust.check_model(self.queue.out, run.config.get("model"))
                self.trust.check_method(self.queue.out, run.config.get("method"))
            self.plan = plan

    def take_free(self, name: str, newest: Claim | None) -> Claim | None:
        """Return a claim on a run that nobody holds; None if it is not to be had."""
        if name in self.queue.ended or (newest and not newest.is_free):
            return None
        if self.queue.is_finished(name):
            self.queue.ended.add(name)
            return None
        number = newest.number + 1 if newest else 1
        crashes = newest.crashes if newest else 0
        return self.queue.claims.create(name, number, self.owner, crashes)

    def take_over(self, claim: Claim, fate: Fate) -> Claim | None:
        """Return a claim on the run of a worker that has died; None if it was tried often enough.

        A job that was preempted says nothing against its run.
        """
        crashes = claim.crashes + (fate is Fate.CRASHED)
        claims = self.queue.claims
        if crashes < MAX_CRASHES:
            self.say(f"{claim.run}: taken over from {claim.owner.place}, which has ended")
            return claims.create(claim.run, claim.number + 1, self.owner, crashes)
        state = f"{FAILED}: its process died {crashes} times, last as {claim.owner.place}"
        claims.create(claim.run, claim.number + 1, self.owner, crashes, state)
        return None

    def carry_out(self, claim: Claim) -> None:
        """Carry out the run of a claim and write how it ended."""
        run = next(run for run in self.plan.runs if run.name == claim.run)
        self.say(f"{claim.run}: begins")
        with Heartbeat(claim, self.stop_if_cancelled) as heartbeat:
            status = self.train(run, heartbeat.check)
        self.queue.claims.end(claim, status if status.startswith(FAILED) else DONE)
        self.say(f"{claim.run}: {status}")

    def give_back(self) -> None:
        """Release the run that this worker holds, for another to go on with."""
        claims = self.queue.newest_claims([run.name for run in self.plan.runs])
        for claim in claims.values():
            if claim.is_held and claim.owner == self.owner:
                self.queue.claims.end(claim, RELEASED)

    def stop_if_cancelled(self) -> None:
        """Interrupt the run, which saves its last round, if the comparison was called off."""
        if self.queue.is_cancelled() and not self.is_stopping:
            self.is_stopping = True  # a second signal would not wait for the round to be saved
            interrupt_main_thread()

    def train(self, run: PlannedRun, check: Callback) -> str:
        """Carry out a run and return its final status."""
        values = {key: value for key, value in run.config.items() if value is not None}
        try:
            experiment = prepare(resolve_config(values))
            trackers = make_trackers(experiment.config.track)
            folder = open_run_folder(experiment, own_folder(self.queue.out / run.name))
            return experiment.run(folder, [check, *trackers], self.plan.command).status
        except InputError as error:
            return f"{FAILED}: {error}"
        except OSError as error:
            return f"{FAILED}: {error.strerror or error} ({error.filename})"
        except Exception as error:  # a bug in a user's model, say: the other runs go on
            traceback.print_exc()
            return f"{FAILED}: {type(error).__name__}: {error}"


def open_run_folder(experiment: Experiment, path: Path) -> RunFolder:
    """Open the run in `path`, or create it; wait while another process holds the folder.

    A worker that outlived a killed comparison may still be saving its last round there. Raise
    FolderBusy if it has not finished after LOCK_TIMEOUT seconds.
    """
    for _ in range(LOCK_TIMEOUT):
        with contextlib.suppress(FolderBusy):
            return experiment.reopen(path) if is_run(path) else experiment.create(path)
        time.sleep(1)
    return experiment.reopen(path)
