"""How the runs of a comparison stand, in words, as its folder says it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedwmsam.comparison.claims import FAILED, Claim
from fedwmsam.comparison.owners import Fate, OwnerObserver
from fedwmsam.comparison.queue_folder import QueueFolder
from fedwmsam.engine.records import complete_lines
from fedwmsam.errors import printable

WORDS = {
    Fate.ALIVE: "at work",
    Fate.UNKNOWN: "at work as far as is known",
    Fate.CRASHED: "lost, its process has ended",
    Fate.PREEMPTED: "preempted, its job waits in Slurm's queue",
}
"""What is said of a run by what has become of its worker."""


def describe_queue(queue: QueueFolder) -> Iterator[str]:
    """Yield a line about all runs of a plan, and one for each that is held or has failed."""
    names = [run.name for run in queue.read_plan().runs]
    claims = queue.newest_claims(names)
    done = set(filter(queue.is_finished, names))
    unfinished = [claim for claim in claims.values() if claim.run not in done]
    held = [claim for claim in unfinished if claim.is_held]
    failed = [claim for claim in unfinished if claim.state.startswith(FAILED)]
    waiting = len(names) - len(done) - len(held) - len(failed)
    called_off = ", called off" if queue.is_cancelled() else ""
    yield (
        f"{queue.out}: {len(names)} runs, {len(done)} done, {len(held)} held by workers, "
        f"{waiting} waiting, {len(failed)} failed{called_off}"
    )
    for claim, fate in zip(held, OwnerObserver().judge(held), strict=True):
        rounds = sum(1 for _ in complete_lines(queue.out / claim.run / "metrics.jsonl"))
        yield f"  {claim.run}: {rounds} rounds, {WORDS[fate]}: {place_of(claim)}"
    for claim in failed:
        yield f"  {claim.run}: {printable(claim.state)}"


class WorkerWatch:
    """Looks again and again whether anybody carries out runs of some comparisons."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.queues = [QueueFolder(root) for root in roots]
        self.observer = OwnerObserver()

    def anybody_works(self) -> bool:
        """Return whether a run is held by a worker that has not died as far as is known."""
        held = []
        for queue in self.queues:
            if queue.exists():
                names = [run.name for run in queue.read_plan().runs]
                held += [c for c in queue.newest_claims(names).values() if c.is_held]
        return any(not fate.is_dead for fate in self.observer.judge(held))


def place_of(claim: Claim) -> str:
    """Return in words where the worker of a claim is."""
    return printable(claim.owner.place, 200)
