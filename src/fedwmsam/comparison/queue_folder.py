"""The folder through which a comparison and its workers know of each other.

Below a comparison's folder it holds

    queue/plan.json      the runs: what all of them share, and what each has of its own
    queue/claims/        who carries out which run (`comparison/claims.py`)
    queue/logs/          what workers in jobs of Slurm print
    queue/cancelled      there while the comparison is called off: workers save and end

and nothing else passes between them. All of it is JSON and may be a stranger's: a plan names
settings, which are checked like those of a file, and code that it names is imported only where the
user trusts it (`experiment/trust.py`).
"""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import Timeout

from fedwmsam import files
from fedwmsam.comparison.claims import RELEASED, Claim, ClaimFolder, Owner
from fedwmsam.engine.records import read_json
from fedwmsam.errors import InputError, printable

QUEUE_FOLDER = "queue"
FORMAT = 1
"""The version of the plan's form; workers of another version of the library may know another."""


@dataclass(frozen=True)
class PlannedRun:
    """A run as the plan has it: the name of its folder, and its flat configuration."""

    name: str
    config: dict[str, Any]


@dataclass(frozen=True)
class RunPlan:
    """The runs of a comparison, in the order in which they are carried out."""

    runs: Sequence[PlannedRun] = ()
    command: Sequence[str] = ()
    """What the person typed who asked for the runs, for provenance.json."""

    def to_record(self) -> dict[str, Any]:
        """Return the content of plan.json, with what all runs share written once."""
        shared = dict(self.runs[0].config) if self.runs else {}
        for run in self.runs:
            for key in [key for key in shared if run.config.get(key, run) != shared[key]]:
                del shared[key]
        runs = []
        for run in self.runs:
            own = {key: value for key, value in run.config.items() if key not in shared}
            runs.append({"name": run.name, "settings": own})
        return {
            "format": FORMAT,
            "command": list(self.command),
            "settings": shared,
            "runs": runs,
        }


def parse_plan(record: dict[str, Any], path: Path) -> RunPlan:
    """Return the plan that a file holds; raise InputError if it holds none."""
    if record.get("format") != FORMAT:
        raise InputError(
            f"{path} has the format {printable(record.get('format'), 50)!r}, expected {FORMAT}: "
            "give workers the version of fedwmsam that compares."
        )
    shared = record.get("settings")
    command = record.get("command")
    entries = record.get("runs")
    runs = []
    if isinstance(shared, dict) and isinstance(entries, list):
        for entry in entries:
            own = entry.get("settings") if isinstance(entry, dict) else None
            if isinstance(own, dict) and is_folder_name(entry.get("name")):
                runs.append(PlannedRun(entry["name"], shared | own))
    if not isinstance(entries, list) or not isinstance(command, list) or len(runs) < len(entries):
        raise InputError(f"{path} holds no plan of runs; `fedwmsam compare` writes it again.")
    return RunPlan(runs, [str(word) for word in command])


def is_folder_name(name: object) -> bool:
    """Return whether this is the plain name of a folder, as runs of a comparison have it."""
    is_plain = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name)
    return bool(is_plain) and len(str(name)) < 200


@dataclass
class QueueFolder:
    """The queue of the comparison in the folder `out`."""

    out: Path
    stamp: tuple[int, int] = (0, 0)
    """By what the plan was recognised that was read last."""
    plan: RunPlan = field(default_factory=RunPlan)
    ended: set[str] = field(default_factory=set)
    """Runs whose newest claim says that they are over, which stays so while workers work."""

    @property
    def path(self) -> Path:
        """Return the folder of the queue, which must be one of the comparison itself."""
        return files.own_folder(self.out / QUEUE_FOLDER)

    @property
    def plan_path(self) -> Path:
        """Return the file of the plan."""
        return self.path / "plan.json"

    @property
    def claims(self) -> ClaimFolder:
        """Return the folder of the claims."""
        return ClaimFolder(self.path / "claims")

    @property
    def log_folder(self) -> Path:
        """Return the folder of what jobs print."""
        return files.own_folder(self.path / "logs")

    def exists(self) -> bool:
        """Return whether there is a plan."""
        return self.plan_path.exists()

    def require(self) -> None:
        """Raise InputError unless the folder is that of a comparison with a plan."""
        if not self.out.is_dir():
            raise InputError(f"There is no folder {self.out}.")
        if not self.exists():
            tuning = QueueFolder(self.out / "tuning")
            hint = f"fedwmsam compare … --out {self.out} makes one."
            if tuning.exists():
                hint = f"its values are being tuned first: fedwmsam work {tuning.out}."
            raise InputError(f"{self.out} is no comparison: it has no queue/plan.json; {hint}")

    # The plan

    def write_plan(self, plan: RunPlan) -> None:
        """Write the plan, let its runs be carried out, and take back that they were called off.

        Workers that read it look at all runs anew, so those that are to be repeated come first.
        """
        for folder in (self.path, self.claims.path, self.log_folder):
            folder.mkdir(exist_ok=True)
        self.reopen([run.name for run in plan.runs])
        files.write_text(self.plan_path, json.dumps(plan.to_record(), indent=1) + "\n")
        (self.path / "cancelled").unlink(missing_ok=True)

    def read_plan(self) -> RunPlan:
        """Return the plan, which is read again if its file has changed.

        Raise InputError if there is none, or if it is damaged.
        """
        try:
            status = self.plan_path.stat()
        except FileNotFoundError:
            raise InputError(f"{self.plan_path} has disappeared: the runs are not known.") from None
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self.stamp:
            self.plan = parse_plan(read_json(self.plan_path), self.plan_path)
            self.stamp = stamp
            self.ended.clear()
        return self.plan

    # Calling it off

    def cancel(self) -> None:
        """Tell all workers to save their last rounds and to end."""
        files.write_text(self.path / "cancelled", "")

    def is_cancelled(self) -> bool:
        """Return whether the comparison was called off."""
        return (self.path / "cancelled").exists()

    # Claims

    def newest_claims(self, names: Sequence[str]) -> dict[str, Claim]:
        """Return the newest claim on each of these runs that has one and is not known as over."""
        numbers = self.claims.newest_numbers()
        claims = {}
        for name in names:
            if name in numbers and name not in self.ended:
                claim = read_settled(self.claims, name, numbers[name])
                claims[name] = claim
                if not claim.is_held and not claim.is_free:
                    self.ended.add(name)
        return claims

    def is_finished(self, name: str) -> bool:
        """Return whether a run has a summary."""
        return (self.out / name / "summary.json").exists()

    def reopen(self, names: Sequence[str]) -> None:
        """Let runs be carried out again that have failed, or whose results were removed.

        Only who asks for the runs does this: for workers a run that is over stays so.
        """
        owner = Owner.this_process()
        for name, claim in self.newest_claims(names).items():
            if name in self.ended and not self.is_finished(name):
                self.claims.create(name, claim.number + 1, owner, 0, RELEASED)
                self.ended.discard(name)


def read_settled(claims: ClaimFolder, name: str, number: int) -> Claim:
    """Return a claim, also where its owner replaces the file at this moment."""
    with contextlib.suppress(OSError):  # a network file system may say that it is stale
        return claims.read(name, number)
    return claims.read(name, number)


@contextlib.contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Create a comparison's folder and lock it; two comparisons in it would start the same workers.

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
