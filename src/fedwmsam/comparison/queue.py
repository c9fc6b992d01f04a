"""The runs of a comparison, and following them until all are finished.

`run_queue` writes the runs into the comparison's folder, has a launcher provide workers for them,
and reads from the folder how far they have come (`comparison/queue_folder.py`). It carries out none
itself, and need not know where the workers are: other processes of this machine, jobs of Slurm, or
a `fedwmsam work` that somebody has typed elsewhere.

This queue lives as long as the runs of one comparison. results/run_queue.py is another, for the
published results: it works for days on the plans in results/plans, and shares only the run folders'
format with this one.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from fedwmsam import files
from fedwmsam.comparison.claims import Claim
from fedwmsam.comparison.grid import RunSpec
from fedwmsam.comparison.owners import Fate, OwnerObserver
from fedwmsam.comparison.queue_folder import PlannedRun, QueueFolder, RunPlan
from fedwmsam.engine.provenance import command_line
from fedwmsam.engine.records import LINES_LIMIT, Record, parse_record, read_json, read_metrics
from fedwmsam.errors import InputError, printable


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


@dataclass(frozen=True)
class Demand:
    """How many runs need workers, as a launcher is told."""

    open: int
    """Runs that are not finished."""
    waiting: int
    """Those of them that no living worker holds."""
    lost: int
    """Those whose worker has died."""
    claims: int
    """How many claims there have been on all runs: as long as it grows, workers get to work."""


class Launcher(Protocol):
    """What provides a comparison with workers; leaving its context ends those that depend on it."""

    poll_interval: float
    """Seconds between two looks at the runs."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def provide(self, demand: Demand) -> None:
        """See to it that there are workers; raise InputError if that cannot be done."""
        ...


def run_queue(
    runs: Sequence[QueuedRun], out: Path, launcher: Launcher, on_change: Callable[[], None]
) -> None:
    """Have the runs carried out that are not finished, and update them in place.

    `on_change` is called at every look at the runs. Raise InputError if there are no workers to be
    had, or if somebody calls the comparison off.
    """
    on_change()
    ahead = {run.path.name: run for run in runs if not run.is_finished}
    if not ahead:
        return
    queue = QueueFolder(out)
    planned = [PlannedRun(run.path.name, run.spec.config.to_flat_dict()) for run in runs]
    queue.write_plan(RunPlan(planned, command_line()))
    follower = Follower(queue, ahead)
    with launcher:
        while True:
            demand = follower.update()
            on_change()
            if not demand.open:
                return
            if queue.is_cancelled():
                raise InputError(
                    f"The comparison in {out} was called off with {demand.open} runs to do; the "
                    "same command goes on with them."
                )
            launcher.provide(demand)
            time.sleep(launcher.poll_interval)


class Follower:
    """Reads from a comparison's folder how far its runs have come."""

    def __init__(self, queue: QueueFolder, runs: dict[str, QueuedRun]) -> None:
        self.queue = queue
        self.runs = runs
        self.observer = OwnerObserver()
        self.tails: dict[str, MetricsTail] = {}

    def update(self) -> Demand:
        """Update the runs in place, and return what they need."""
        names = [name for name, run in self.runs.items() if not run.is_finished]
        claims = self.queue.newest_claims(names)
        held = [claim for claim in claims.values() if claim.is_held]
        fates = dict(zip((claim.run for claim in held), self.observer.judge(held), strict=True))
        for name, claim in claims.items():
            self.update_run(self.runs[name], claim, fates.get(name))
        unfinished = [run for run in self.runs.values() if not run.is_finished]
        return Demand(
            open=len(unfinished),
            waiting=sum(run.status == "waiting" for run in unfinished),
            lost=sum(fates[name].is_dead for name in fates if not self.runs[name].is_finished),
            claims=sum(self.queue.claims.newest_numbers().values()),
        )

    def update_run(self, run: QueuedRun, claim: Claim, fate: Fate | None) -> None:
        """Update a run from the newest claim on it, and from its metrics."""
        is_held = fate is not None and not fate.is_dead
        if is_held or claim.run in self.queue.ended:
            self.update_rounds(run)
        if is_held:
            run.status = "running"
        elif self.queue.is_finished(claim.run):  # whatever became of its worker after that
            run.status = printable(read_json(run.path / "summary.json").get("status"))
        elif fate is not None or claim.is_free:
            run.status = "waiting"
        elif claim.state.startswith("failed"):
            run.status = printable(claim.state)
        else:  # done, but the summary cannot be seen yet
            self.queue.ended.discard(claim.run)

    def update_rounds(self, run: QueuedRun) -> None:
        """Read the rounds that the run has completed since the last look, and time them."""
        now = time.monotonic()
        if run.path.name not in self.tails:
            tail = MetricsTail(run.path / "metrics.jsonl", now)
            tail.read()
            self.tails[run.path.name] = tail
        else:
            tail = self.tails[run.path.name]
            new_rounds = tail.read()
            if new_rounds > 0:
                run.timed_rounds += new_rounds
                run.elapsed_seconds += now - tail.last_time
                tail.last_time = now
        run.rounds_done = tail.rounds
        run.last_record = tail.last_record


@dataclass
class MetricsTail:
    """The end of a run's metrics.jsonl, read as it grows."""

    path: Path
    last_time: float
    """When a new line was last seen."""
    position: int = 0
    rounds: int = 0
    last_record: dict[str, Any] = field(default_factory=dict)

    def read(self) -> int:
        """Read the lines that are new, and return how many; a file that was cut begins anew."""
        before = self.rounds
        try:
            if self.path.stat().st_size < self.position:
                self.position = 0
                self.rounds = 0
            content = files.read_part(self.path, self.position, LINES_LIMIT)
        except OSError:  # it is not there yet
            return 0
        *lines, _ = content.split(b"\n")
        self.position += sum(len(line) + 1 for line in lines)
        self.rounds += len(lines)
        if lines:
            try:
                self.last_record = finite_numbers(parse_record(lines[-1]))
            except ValueError as error:
                raise InputError(f"{self.path} is damaged: {error}.") from error
        return self.rounds - before


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
