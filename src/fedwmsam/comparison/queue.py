"""A queue of runs, carried out by worker processes until all of them are finished.

`run_queue` starts some processes of `comparison/run_worker.py` and gives each of them one run at a
time, in lines of JSON that the module docstring there describes. A run whose worker died is tried
once more, from its last checkpoint. A worker that loses its connection, because this process was
killed, stops after saving its last completed round.

This queue lives as long as one `fedwmsam compare` or `fedwmsam reproduce`. results/run_queue.py is
another, long-running queue, for the published results: it works for days on the plans in
results/plans, and shares only the run folders' format with this one.

Workers run on this machine. The only seam for other launchers (another host, a container, a job
scheduler) is the command that `RunWorker.start` runs: any command will do that speaks the protocol
of `run_worker.py` on its standard input and output and sees the same paths.
"""

import contextlib
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from filelock import Timeout

from fedwmsam import files
from fedwmsam.comparison.grid import RunSpec
from fedwmsam.engine.provenance import command_line
from fedwmsam.engine.records import Record, read_json, read_metrics
from fedwmsam.engine.worker_process import environment
from fedwmsam.errors import InputError, printable

MAX_ATTEMPTS = 2
"""How often a run is started before a worker that died counts as its failure."""
SHUTDOWN_TIMEOUT = 60
"""Seconds a worker may take to save its last round when it is told to end."""
POLL_INTERVAL = 1.0
"""Seconds after which `on_change` is called although nothing has happened, for a running clock."""


@dataclass
class QueuedRun:
    """A run in the queue, with how far it has come."""

    spec: RunSpec
    path: Path
    """The run's folder."""
    status: str = "waiting"
    """Either "waiting", "running", or how the run ended ("failed: …" if it could not be done)."""
    rounds_done: int = 0
    last_record: dict[str, Any] = field(default_factory=dict)
    """The metrics of the last completed round."""
    attempts: int = 0
    """How often a worker has been given this run."""
    elapsed_seconds: float = 0.0
    """Time that this queue has spent on the run's `timed_rounds`."""
    timed_rounds: int = 0
    """Rounds that this queue has waited for, without those of an earlier comparison."""

    @property
    def rounds(self) -> int:
        """Return how many rounds the run is to have."""
        return self.spec.config.rounds

    @property
    def is_finished(self) -> bool:
        """Return whether the run has ended, in whatever way."""
        return self.status not in ("waiting", "running")

    @property
    def has_failed(self) -> bool:
        """Return whether the run could not be carried out."""
        return self.status.startswith("failed")


def make_queue(specs: Sequence[RunSpec], out: Path) -> list[QueuedRun]:
    """Return the runs with the progress that their folders in `out` already hold.

    Runs with a summary are finished and will not be repeated.
    """
    runs = []
    for spec in specs:
        run = QueuedRun(spec, spec.find_folder(out))
        rows = read_metrics(run.path / "metrics.jsonl")
        run.rounds_done = len(rows)
        run.last_record = finite_numbers(rows[-1]) if rows else {}
        summary = run.path / "summary.json"
        if summary.exists():
            run.status = printable(read_json(summary).get("status"))
        runs.append(run)
    return runs


def finite_numbers(record: Record) -> Record:
    """Return those columns of a line that a display can show: a folder may be a stranger's."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, float) and math.isfinite(value)
    }


def run_queue(
    runs: Sequence[QueuedRun], jobs: int, log_path: Path, on_change: Callable[[], None]
) -> None:
    """Carry out the runs that are not finished, `jobs` at a time, and update them in place.

    `on_change` is called after every change of the runs and at least once per second. What the
    workers print is appended to `log_path`.
    """
    waiting = [run for run in runs if not run.is_finished]
    on_change()
    if not waiting:
        return
    events: SimpleQueue[tuple[RunWorker, str]] = SimpleQueue()
    with files.open_to_append(log_path) as log_file, contextlib.ExitStack() as stack:
        for _ in range(min(jobs, len(waiting))):
            worker = stack.enter_context(RunWorker(events, log_file))
            worker.assign_next(waiting)
        while any(not run.is_finished for run in runs):
            with contextlib.suppress(Empty):
                worker, line = events.get(timeout=POLL_INTERVAL)
                worker.handle_message(line)
                if worker.run and worker.run.status == "waiting":  # its process died: try once more
                    waiting.insert(0, worker.run)
                if not worker.run or worker.run.status != "running":
                    worker.assign_next(waiting)
            on_change()


class RunWorker:
    """A worker process and the run that it carries out at the moment.

    `events` receives the worker's messages as lines, and an empty line when its process has ended.
    What the process prints goes to `log_file`.
    """

    def __init__(self, events: "SimpleQueue[tuple[RunWorker, str]]", log_file: IO[str]) -> None:
        self.events = events
        self.log_file = log_file
        self.run: QueuedRun | None = None
        self.start()

    def start(self) -> None:
        """Start the worker's process, and a thread that forwards what it writes."""
        # A new session, so that Ctrl-C in the terminal reaches only this process, which then ends
        # its workers itself.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedwmsam.comparison.run_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log_file,
            text=True,
            start_new_session=True,
            env=environment(),
        )
        thread = threading.Thread(
            target=self.forward_output, args=(self.process.stdout,), daemon=True
        )
        thread.start()

    def forward_output(self, output: IO[str]) -> None:
        """Put each line of the process into `events`, and an empty line at the end."""
        with output:
            for line in output:
                self.events.put((self, line))
        self.events.put((self, ""))

    def __enter__(self) -> "RunWorker":
        return self

    def __exit__(self, *_: object) -> None:
        """End the process: without an input it saves its last completed round and exits."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=SHUTDOWN_TIMEOUT)
        self.process.kill()
        self.process.wait()

    def assign_next(self, waiting: list[QueuedRun]) -> None:
        """Take the first of the waiting runs, if there is one, and send it to the process."""
        self.run = waiting.pop(0) if waiting else None
        if self.run is None:
            return
        self.run.status = "running"
        self.run.attempts += 1
        self.last_event_time = time.monotonic()
        request = {
            "path": str(self.run.path),
            "config": self.run.spec.config.to_flat_dict(),
            "command": command_line(),
        }
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has died: the end of its output will tell
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def handle_message(self, line: str) -> None:
        """Update the run from a message of the worker; an empty line means that it has ended.

        A worker that has ended is started anew. Its run waits again, or has failed if it has used
        up its attempts.
        """
        run = self.run
        if not line:
            code = self.process.wait()
            self.start()
            if run is not None and run.attempts < MAX_ATTEMPTS:
                run.status = "waiting"
            elif run is not None:
                run.status = f"failed: its process ended with code {code}"
            return
        if run is None:
            return
        message = json.loads(line)
        now = time.monotonic()
        if "round" in message:
            run.timed_rounds += 1
            run.elapsed_seconds += now - self.last_event_time
            run.rounds_done = message["round"]
            run.last_record = message
        run.status = message.get("status", run.status)
        self.last_event_time = now


def estimate_seconds_left(runs: Sequence[QueuedRun], jobs: int) -> float | None:
    """Return an estimate of the seconds until all runs are finished, or None without any timing.

    It takes the mean time per round so far, of the same method where that is known, else of all.
    """
    timed_runs = [run for run in runs if run.timed_rounds]
    if not timed_runs:
        return None
    unfinished = [run for run in runs if not run.is_finished]
    seconds = sum(
        (run.rounds - run.rounds_done) * seconds_per_round(run, timed_runs) for run in unfinished
    )
    return seconds / max(1, min(jobs, len(unfinished)))


def seconds_per_round(run: QueuedRun, timed_runs: Sequence[QueuedRun]) -> float:
    """Return the mean time per round of the run's method, or of all runs if it has no timing."""
    method = run.spec.config.method
    same_method = [other for other in timed_runs if other.spec.config.method == method]
    sample = same_method or timed_runs
    return sum(other.elapsed_seconds for other in sample) / sum(
        other.timed_rounds for other in sample
    )


@contextlib.contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Create a comparison's folder and lock it; two comparisons in it would start the same runs.

    Raise InputError if another comparison holds the lock, or if `out` is a file.
    """
    lock = files.lock_for(out / ".lock")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"Another comparison is working in {out}; wait for it or stop it first."
        ) from None
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{out} is a file; choose a folder for the comparison.") from None
    try:
        yield
    finally:
        lock.release()
