"""Whether the workers that hold claims still live, judged by what can be known of each.

- A worker in a job of Slurm is dead if `squeue` no longer lists the job, or lists it as waiting or
  started again since: a job that was preempted has left its claim behind.
- A worker on this machine is dead if there is no process with its number that began when it did;
  Windows is not asked. Where a process's beginning is not known, as on macOS, one that is there is
  judged by its signs of life.
- Of any other only the signs of life are seen. It is dead if its claim has not changed for LEASE
  seconds while somebody watched. Times of files are only compared with each other, and seconds are
  counted by the clock of whoever watches: clocks of machines need not agree.

Where nothing is known yet, a claim is left to its owner.
"""

import time
from collections.abc import Sequence
from enum import Enum

from fedwmsam import files
from fedwmsam.comparison import slurm
from fedwmsam.comparison.claims import LEASE, Claim, Owner, cluster_mark
from fedwmsam.machine import LISTS_PROCESSES, process_space, process_start


class Fate(Enum):
    """What has become of the owner of a claim."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    """Nothing speaks for its death yet, nor for its life."""
    CRASHED = "crashed"
    PREEMPTED = "preempted"
    """Slurm has ended its job and put it back into the queue, through no fault of the run."""

    @property
    def is_dead(self) -> bool:
        """Return whether another worker may take the run."""
        return self in (Fate.CRASHED, Fate.PREEMPTED)


class OwnerObserver:
    """Judges the owners of claims, and remembers between two looks when they last gave a sign."""

    def __init__(self, lease: float = LEASE) -> None:
        self.lease = lease
        self.signs: dict[str, tuple[int, float, bool]] = {}
        """By token: when the claim last changed, since when that is known, whether it ever did."""
        self.slurm = SlurmAnswers()

    def judge(self, claims: Sequence[Claim]) -> list[Fate]:
        """Return what has become of the owner of each of these claims, which must all be held."""
        self.slurm.ask([claim.owner for claim in claims])
        return [self.fate_of(claim) for claim in claims]

    def fate_of(self, claim: Claim) -> Fate:
        """Return what has become of the owner of a claim."""
        owner = claim.owner
        fate = self.slurm.fate_of(owner)
        if fate is not None and fate is not Fate.ALIVE:
            return fate
        if LISTS_PROCESSES and owner.space == process_space():
            start = process_start(owner.pid)
            if start is None or start != owner.start:
                return Fate.CRASHED
            if start:
                return Fate.ALIVE
            # Here nobody says when a process began: another one may have the number by now.
        return fate or self.fate_by_signs(claim)

    def fate_by_signs(self, claim: Claim) -> Fate:
        """Return what the signs of life in a claim's file say, as long as they were watched."""
        now = time.monotonic()
        try:
            changed = files.change_time(claim.path)
        except OSError:
            return Fate.UNKNOWN
        seen, since, is_alive = self.signs.get(claim.owner.token, (changed, now, False))
        if changed != seen:
            since = now
            is_alive = True
        self.signs[claim.owner.token] = (changed, since, is_alive)
        if now - since >= self.lease:
            return Fate.CRASHED
        return Fate.ALIVE if is_alive else Fate.UNKNOWN


class SlurmAnswers:
    """What Slurm last said about the jobs of owners, asked once for all and not too often."""

    def __init__(self) -> None:
        self.asked_at = float("-inf")
        self.cluster = ""
        """What the cluster of this machine is recognised by, once Slurm has named it."""
        self.tokens: frozenset[str] = frozenset()
        """The owners that the answer is about: of one whose claim is newer it says nothing."""
        self.jobs: dict[str, slurm.SlurmJob] | None = None

    def ask(self, owners: Sequence[Owner]) -> None:
        """Ask for the jobs of these owners, if there are any of this cluster and it is time."""
        now = time.monotonic()
        owners = [owner for owner in owners if owner.job]
        if not owners or now - self.asked_at < slurm.ASK_INTERVAL or not slurm.has_slurm():
            return
        self.asked_at = now
        self.cluster = self.cluster or cluster_mark(slurm.cluster_name())
        owners = [owner for owner in owners if owner.cluster == self.cluster]
        jobs = slurm.list_jobs(ids=[owner.job for owner in owners]) if owners else []
        self.jobs = None if jobs is None else {job.id: job for job in jobs}
        self.tokens = frozenset(owner.token for owner in owners)

    def fate_of(self, owner: Owner) -> Fate | None:
        """Return what Slurm says about an owner; None if it cannot be asked about this one.

        A job that is completing has processes that may still be saving.
        """
        if not owner.job or owner.cluster != self.cluster:
            return None
        if owner.token not in self.tokens:
            return Fate.UNKNOWN
        if self.jobs is None:  # no answer: Slurm's controller is down, its jobs go on
            return None
        job = self.jobs.get(owner.job)
        if job is None:
            return Fate.CRASHED
        if job.state == "COMPLETING":
            return Fate.UNKNOWN
        if job.restarts > owner.restarts or job.state == "PENDING":
            return Fate.PREEMPTED
        return Fate.ALIVE
