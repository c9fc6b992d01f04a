"""Launchers: what provides a comparison with workers, on this machine or on Slurm.

Every worker is the same command, `fedwmsam work FOLDER`; a launcher only decides where it is
started, and notices when there are too few of them. What the workers do is in the folder.
"""

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Self

from fedwmsam import files
from fedwmsam.comparison import slurm
from fedwmsam.comparison.queue import Demand
from fedwmsam.comparison.queue_folder import QueueFolder
from fedwmsam.engine.worker_process import OWN_GROUP, environment
from fedwmsam.errors import InputError

SHUTDOWN_TIMEOUT = 60
"""Seconds a worker may take to save its last round when it is told to end."""
MAX_FRUITLESS = 3
"""How many workers more than there are at a time may end without taking a run."""
SLURM_WORKERS = 50
"""Workers in Slurm at most, unless a number is given."""
VISIBLE_AFTER = 90.0
"""Seconds after which a network file system surely shows what a worker wrote before it ended."""


def worker_command(out: Path, trusts: bool) -> list[str]:
    """Return the command of a worker; what the user has named themselves is trusted."""
    words = [sys.executable, "-m", "fedwmsam", "work", str(out.resolve())]
    return [*words, "--trust"] if trusts else words


class LocalLauncher:
    """Workers as processes of this machine, which end with this one.

    What they print is appended to messages.log in the comparison's folder.
    """

    poll_interval = 0.2

    def __init__(self, out: Path, jobs: int, trusts: bool) -> None:
        self.out = out
        self.jobs = jobs
        self.trusts = trusts
        self.log_path = out / "messages.log"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.fruitless = 0
        """Workers that have ended since one last took a run."""
        self.claims = 0
        self.log_file: IO[str] | None = None

    def __enter__(self) -> Self:
        self.log_file = files.open_to_append(self.log_path)
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers: without an input each saves its last completed round and exits."""
        assert self.log_file
        for worker in self.workers:
            assert worker.stdin
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.close()
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(timeout=SHUTDOWN_TIMEOUT)
            worker.kill()
            worker.wait()
        self.log_file.close()

    def provide(self, demand: Demand) -> None:
        """Start as many workers as can be busy, also in place of those that have died.

        Raise InputError if they end again and again without having taken a run.
        """
        if demand.claims != self.claims:
            self.fruitless = 0
        self.claims = demand.claims
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            self.workers.remove(worker)
            self.fruitless += 1
            if self.fruitless > self.jobs + MAX_FRUITLESS:
                raise InputError(
                    f"The workers end before they have taken a run, with code {worker.returncode}; "
                    f"{self.log_path} has what they printed."
                )
        missing = min(self.jobs, demand.open) - len(self.workers)
        for _ in range(min(missing, demand.waiting)):
            self.workers.append(self.start())

    def start(self) -> "subprocess.Popen[bytes]":
        """Start a worker that ends when its input does."""
        # A new session, so that Ctrl-C in the terminal reaches only this process, which then ends
        # its workers itself.
        return subprocess.Popen(
            [*worker_command(self.out, self.trusts), "--attached"],
            stdin=subprocess.PIPE,
            stdout=self.log_file,
            stderr=self.log_file,
            start_new_session=True,
            creationflags=OWN_GROUP,
            env=environment(),
        )


class SlurmLauncher:
    """Workers as an array of jobs of Slurm, which go on without this process."""

    poll_interval = 1.0

    def __init__(
        self,
        out: Path,
        jobs: int,
        trusts: bool,
        options: Mapping[str, str | None],
        say: Callable[[str], None],
    ) -> None:
        self.out = out
        self.jobs = jobs
        self.trusts = trusts
        self.options = options
        self.say = say
        self.name = slurm.job_name(out)
        self.asked_at = float("-inf")
        self.has_looked = False
        self.claims_before: int | None = None
        """How many claims there had been when workers were last submitted; None before that."""
        self.is_answered = True
        self.without_jobs_since: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the jobs: they need nobody."""

    def provide(self, demand: Demand) -> None:
        """Submit workers if some are missing at first, or if all have ended and a run was lost.

        Raise InputError if those that were submitted here have ended in another way, which is
        somebody's doing, or have ended without taking a run: so would the next ones.
        """
        now = time.monotonic()
        if now - self.asked_at < slurm.ASK_INTERVAL:
            return
        self.asked_at = now
        jobs = slurm.list_jobs(name=self.name)
        if jobs is None:
            if self.is_answered:
                self.say("Slurm does not answer; waiting for it. Its jobs go on.")
            self.is_answered = False
            return
        self.is_answered = True
        if not self.has_looked:
            self.has_looked = True
            if jobs:
                self.say(f"In Slurm's queue from before: {slurm.describe_jobs(jobs)}")
            staying = [job for job in jobs if job.state != "COMPLETING"]
            self.submit(min(self.jobs, demand.open) - len(staying), demand)
        elif jobs or not demand.waiting:
            self.without_jobs_since = None
        elif self.claims_before is None or (demand.lost and demand.claims > self.claims_before):
            self.submit(min(self.jobs, demand.waiting), demand)
        else:
            self.check_jobs_left(now, demand)

    def submit(self, workers: int, demand: Demand) -> None:
        """Submit so many workers; raise InputError if Slurm refuses them."""
        if workers < 1:
            return
        log_folder = QueueFolder(self.out.resolve()).log_folder
        words = slurm.sbatch_words(self.out, log_folder, workers, self.options)
        command = shlex.join([*worker_command(self.out, self.trusts), "--requeue"])
        settings = {key: environment()[key] for key in ("OMP_NUM_THREADS", "PYTHONPATH")}
        exports = [f"export {key}={shlex.quote(value)}" for key, value in settings.items()]
        # The worker takes the shell's place, and with it the signals that are sent to the script.
        script = "\n".join(["#!/bin/sh", *exports, f"exec {command}", ""])
        job = slurm.submit(words, script)
        self.claims_before = demand.claims
        self.without_jobs_since = None
        self.say(f"Submitted job {job} to Slurm: {workers} workers; {log_folder} has what they say")

    def check_jobs_left(self, now: float, demand: Demand) -> None:
        """Raise InputError if the jobs have been gone for so long that nothing more is to come."""
        if self.without_jobs_since is None:
            self.without_jobs_since = now
        elif now - self.without_jobs_since > VISIBLE_AFTER:
            raise InputError(
                f"The jobs have left Slurm's queue with {demand.waiting} runs to do: somebody has "
                "cancelled them, or they could not start (logs in "
                f"{QueueFolder(self.out).log_folder}); the same command submits new ones."
            )
