"""Claims: which worker carries out which run of a comparison, as files that all workers see.

A claim is a small file of JSON, `claims/RUN.N`, where N counts the claims on that run from 1. The
newest one says how things stand: a worker holds the run, it was released, it is done, or it
failed. Whoever makes the next file owns the run, and only one can: `files.create_text` links a
complete file to a name that must not exist, which holds on network file systems too. No claim is
ever removed, so that a worker with an outdated list of files fails to make the next one instead of
making one that somebody has had. Only its owner changes a claim, to say how it ended.

While a worker holds a claim it touches the file every HEARTBEAT seconds. `comparison/owners.py`
judges from that, and from better signs where there are some, whether an owner still lives.
"""

import contextlib
import hashlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from fedwmsam import files
from fedwmsam.engine.records import parse_record
from fedwmsam.errors import InputError, printable
from fedwmsam.machine import process_space, process_start

HELD = "held"
RELEASED = "released"
DONE = "done"
FAILED = "failed"
"""How a claim on a run that could not be carried out begins; the reason follows: "failed: …"."""
CLAIM_LIMIT = 2**16
"""Bytes of a claim's file at most."""
HEARTBEAT = 30.0
"""Seconds between two signs of life of a worker."""
LEASE = 600.0
"""Seconds without a sign of life after which an owner of whom nothing else is known is dead."""
CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))
"""The system's clock that `clock` reads, where there are several."""
LOST = 3
"""The exit code of a worker that has lost its claim to another."""


@dataclass(frozen=True)
class Owner:
    """A process that holds claims, described so that others can find out whether it still runs.

    Machines are not named: a comparison's folder may be passed on.
    """

    token: str
    """A random text, which no other process has."""
    space: str
    """The machine's start and its space of process numbers."""
    pid: int
    start: str
    """When the process began; another one may get its number."""
    job: str = ""
    """The job of Slurm that it runs in, such as 123_4; empty outside."""
    restarts: int = 0
    """How often Slurm had put this job back into its queue."""
    cluster: str = ""
    """What the job's cluster is recognised by."""

    @classmethod
    def this_process(cls) -> Self:
        """Return this process as an owner."""
        job = os.environ.get("SLURM_JOB_ID", "")
        array = os.environ.get("SLURM_ARRAY_JOB_ID")
        if array:
            job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
        restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
        return cls(
            secrets.token_hex(16),
            process_space(),
            os.getpid(),
            process_start(os.getpid()) or "",
            job,
            int(restarts) if restarts.isdecimal() else 0,
            cluster_mark(os.environ.get("SLURM_CLUSTER_NAME", "")),
        )

    @property
    def place(self) -> str:
        """Return in words where the process runs."""
        if self.job:
            return f"job {self.job} of Slurm"
        machine = "this machine" if self.space == process_space() else "another machine"
        return f"process {self.pid} of {machine}"


@dataclass(frozen=True)
class Claim:
    """One claim on a run, as its file says it."""

    path: Path
    run: str
    number: int
    state: str
    """HELD, RELEASED, DONE, or FAILED and the reason."""
    crashes: int
    """How many workers have died with this run so far, since somebody last asked for it."""
    owner: Owner

    @property
    def is_held(self) -> bool:
        """Return whether a worker is carrying out the run, or has died while it did."""
        return self.state == HELD

    @property
    def is_free(self) -> bool:
        """Return whether somebody has given the run back, for another to take it."""
        return self.state == RELEASED

    @property
    def next_path(self) -> Path:
        """Return the file of the claim after this one."""
        return self.path.with_name(f"{self.run}.{self.number + 1}")


class ClaimFolder:
    """The claims on the runs of one comparison."""

    def __init__(self, path: Path) -> None:
        self.path = files.own_folder(path)

    def newest_numbers(self) -> dict[str, int]:
        """Return the number of the newest claim on each run that has one."""
        numbers: dict[str, int] = {}
        for path in self.path.iterdir():
            run, _, number = path.name.rpartition(".")
            if run and not run.startswith(".") and number.isdecimal() and len(number) < 10:
                numbers[run] = max(int(number), numbers.get(run, 0))
        return numbers

    def read(self, run: str, number: int) -> Claim:
        """Return a claim; raise InputError if its file is damaged, and OSError if there is none."""
        path = self.path / f"{run}.{number}"
        content = files.read_bytes(path, CLAIM_LIMIT)
        try:
            record = parse_record(content)
            state = checked(record, "state", str)
            owner = read_owner(checked(record, "owner", dict))
            crashes = checked(record, "crashes", int)
        except ValueError as error:
            raise InputError(
                f"{path} is no claim on a run: {printable(error)}; remove the folder "
                f"{self.path.parent} if nobody works on the comparison."
            ) from error
        return Claim(path, run, number, state, crashes, owner)

    def create(
        self, run: str, number: int, owner: Owner, crashes: int, state: str = HELD
    ) -> Claim | None:
        """Make the claim of this number on a run; return None if somebody else has made it."""
        claim = Claim(self.path / f"{run}.{number}", run, number, state, crashes, owner)
        return claim if files.create_text(claim.path, text_of(claim)) else None

    def end(self, claim: Claim, state: str) -> None:
        """Write how one's own claim has ended."""
        files.write_text(claim.path, text_of(replace(claim, state=state)))


def cluster_mark(name: str) -> str:
    """Return what a cluster is recognised by; empty for none."""
    return hashlib.blake2b(name.encode(), digest_size=4).hexdigest() if name else ""


def text_of(claim: Claim) -> str:
    """Return the content of a claim's file."""
    record = {"state": claim.state, "crashes": claim.crashes, "owner": asdict(claim.owner)}
    return json.dumps(record, indent=2) + "\n"


def read_owner(record: Mapping[str, Any]) -> Owner:
    """Return the owner that a claim names; raise ValueError if it names none."""
    kinds = {"pid": int, "restarts": int}
    names = [f.name for f in fields(Owner)]
    if not 0 < checked(record, "pid", int) < 2**31:
        raise ValueError(f"its pid is {record['pid']}")
    return Owner(**{name: checked(record, name, kinds.get(name, str)) for name in names})


def checked(record: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return a value of a record; raise ValueError if it is missing or of another type."""
    value = record.get(key)
    if type(value) is not kind:
        raise ValueError(f"its {key} is {printable(repr(value), 100)}")
    return value


class Heartbeat:
    """Signs of life for a claim, from a thread, for as long as the run is carried out.

    A worker that finds that another one has taken its run ends at once, without saving: the files
    are no longer its own. It looks at every sign of life, and after each round if the last sign is
    old, since then this process, or its machine, was stopped for a while.
    """

    def __init__(
        self, claim: Claim, on_beat: Callable[[], None], interval: float = HEARTBEAT
    ) -> None:
        self.claim = claim
        self.on_beat = on_beat
        self.interval = interval
        self.last_beat = clock()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.beat_until_ended, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def beat_until_ended(self) -> None:
        """Give a sign of life every so many seconds."""
        while not self.ended.wait(self.interval):
            self.beat()

    def beat(self) -> None:
        """Touch the claim, unless it is another's: then end this process."""
        try:
            self.end_if_lost()
            try:
                files.touch(self.claim.path)
            except FileNotFoundError:
                self.end_process("has disappeared")
            self.last_beat = clock()
            self.on_beat()
        except OSError:  # the disk does not answer: by and by others will take the run over
            if clock() - self.last_beat > LEASE / 2:
                self.end_process("cannot be kept, the disk does not answer")

    def check(self, *_: object) -> None:
        """Look whether the claim is still one's own, if the last sign of life is old."""
        if clock() - self.last_beat > 3 * self.interval:
            with contextlib.suppress(OSError):  # the disk does not answer: the thread looks again
                self.end_if_lost()

    def end_if_lost(self) -> None:
        """End this process if another one has made the next claim on the run."""
        if self.claim.next_path.exists():
            self.end_process("was taken over by another worker")

    def end_process(self, what: str) -> None:
        """End this process at once, with one sentence."""
        sys.stderr.write(f"The claim on {self.claim.run} {what}; this worker ends.\n")
        sys.stderr.flush()
        os._exit(LOST)


def clock() -> float:
    """Return seconds that also pass while the machine sleeps, where the system counts these."""
    if not hasattr(time, "clock_gettime"):
        return time.monotonic()  # that of Windows counts them
    return float(time.clock_gettime(CLOCK))
