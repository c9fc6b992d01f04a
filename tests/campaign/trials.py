"""One trial: a small run, one kind of fault, and the verdict.

However it was disturbed, in the end the run must be the same to the last bit as one that never was. On the way a
command may refuse, in one sentence and without a traceback.
"""

import contextlib
import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from campaign import folders, sabotage
from campaign.attempts import Attempt, Sabotage

ROUNDS = 6
COMMON = (
    "--model",
    "linear",
    "--clients",
    "6",
    "--participation",
    "0.5",
    "--local-epochs",
    "1",
    "--batch-size",
    "100",
    "--rounds",
    str(ROUNDS),
    "--checkpoint-every",
    "2",
)
ON_DISK = ("--set", "memory_budget=0")
TWO = ("--workers", "2")
CASES = {
    "fedavg": ("--method", "fedavg"),
    "fedavg, workers": ("--method", "fedavg", *TWO),
    "scaffold": ("--method", "scaffold", "--validation", "0.1"),
    "scaffold, rows on disk": ("--method", "scaffold", *ON_DISK),
    "fedwmsam": ("--method", "fedwmsam", "--validation", "0.1"),
    "fedwmsam, rows on disk, recorded": (
        "--method",
        "fedwmsam",
        *ON_DISK,
        "--set",
        "keep_states=2",
        "--record",
        "echo,drift",
        "--record-every",
        "2",
    ),
    "fedwmsam, rows on disk, workers": ("--method", "fedwmsam", *ON_DISK, *TWO),
}
ALONE = tuple(case for case in CASES if "workers" not in case)
CROWDS = tuple(case for case in CASES if "workers" in case)

SAME = "same"
REFUSED = "refused, then same"


class Wrong(Exception):
    """What must never happen: a result lost or different, a traceback, a process that hangs."""


@dataclass(frozen=True)
class Reference:
    """A case as it goes undisturbed."""

    outcome: dict[str, bytes]
    operations: int
    seconds: float


@dataclass
class Trial:
    case: str
    place: Path
    chance: random.Random
    reference: Reference | None = None
    refused: bool = field(default=False, init=False)
    said: str = field(default="", init=False)

    @property
    def folder(self) -> Path:
        return self.place / "runs" / "run"

    def start(self, harm: Sabotage | None = None) -> Attempt:
        """The run, or what a person would type once there is one."""
        real = (
            self.chance.random() < 0.05 and self.case in CROWDS
        )  # workers that import PyTorch take their time
        if (self.folder / "config.toml").exists():
            return Attempt(["resume", self.folder, "-q"], harm, not real)
        return Attempt(["run", *self.arguments(), "-q"], harm, not real)

    def arguments(self) -> list[str | Path]:
        return [*COMMON, *CASES[self.case], "--out", self.place / "runs", "--name", "run"]

    def end(self, attempt: Attempt, *signals: int, last_words: bool = False) -> int:
        """Wait for it; it may be done, stopped, killed by these signals, or refuse in one sentence.

        `last_words`: a worker of it may say of what it died.
        """
        code, self.said = attempt.end()
        if "Traceback" in self.said and not last_words:
            raise Wrong(f"a traceback: {self.said[-1500:]}")
        if code == 2:
            if self.said.count("Error: ") != 1:
                raise Wrong(f"a refusal that is not one sentence: {self.said!r}")
            self.refused = True
        elif code not in (0, 130, *(-number for number in signals)):
            raise Wrong(f"exit code {code}: {self.said!r}")
        return code

    def disturbed(self, harm: Sabotage | None = None, *signals: int) -> int:
        return self.end(self.start(harm), *signals)

    def expect_refusal(self, attempt: Attempt) -> None:
        """It must say no and leave everything as it is."""
        before = folders.everything(self.place)
        if self.end(attempt) != 2:
            raise Wrong("a command that had to refuse did not")
        if folders.everything(self.place) != before:
            raise Wrong("a command that refused has changed the folder")

    def finish(self) -> str:
        """Left in peace, the run must get there."""
        refused, self.refused = self.refused, False
        if self.disturbed() != 0:
            raise Wrong(f"the undisturbed command did not finish: {self.said!r}")
        found, expected = folders.outcome(self.folder), self.known.outcome
        if found != expected:
            names = sorted(
                name
                for name in found.keys() | expected.keys()
                if found.get(name) != expected.get(name)
            )
            raise Wrong(f"another result: {', '.join(names)}")
        return REFUSED if refused else SAME

    @property
    def known(self) -> Reference:
        assert self.reference
        return self.reference

    def moment(self) -> float:
        return self.chance.uniform(0, 1.1 * self.known.seconds)

    def operation(self) -> int:
        return self.chance.randint(1, self.known.operations)


def undisturbed(case: str, place: Path) -> Reference:
    trial, counter = Trial(case, place, random.Random(0)), sabotage.Counter()
    start = time.monotonic()
    if trial.disturbed(sabotage.at_operations(trial.folder, lambda number: None, counter)) != 0:
        raise Wrong(f"{case} does not run at all")
    return Reference(folders.outcome(trial.folder), counter.value, time.monotonic() - start)


def signalled(trial: Trial) -> str:
    """SIGKILL, SIGTERM or SIGINT at any moment, up to three times."""
    for _ in range(trial.chance.randint(1, 3)):
        blow = trial.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        attempt = trial.start()
        time.sleep(trial.moment())
        attempt.send_signal(blow)
        trial.end(attempt, blow)
    return trial.finish()


def killed_at_an_operation(trial: Trial) -> str:
    """SIGKILL before an open, rename, remove, mkdir or fsync in the run's folder, up to twice."""
    for _ in range(trial.chance.randint(1, 2)):
        trial.disturbed(sabotage.dies_at(trial.folder, trial.operation()), signal.SIGKILL)
    return trial.finish()


def killed_in_a_write(trial: Trial) -> str:
    """Killed when a file has so many bytes: part of the write is on disk."""
    trial.disturbed(
        sabotage.largest_file(trial.chance.randint(1, 30_000), deadly=True), signal.SIGXFSZ
    )
    return trial.finish()


def failing_operation(trial: Trial) -> str:
    """An operation, or all from it on, end with an error of the disk."""
    reason = trial.chance.choice([errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
    trial.disturbed(
        sabotage.fails_at(trial.folder, trial.operation(), reason, trial.chance.random() < 0.5)
    )
    return trial.finish()


def largest_file(trial: Trial) -> str:
    """No file may grow beyond a limit: the quota's error, in the middle of a write."""
    trial.disturbed(sabotage.largest_file(trial.chance.randint(1, 30_000), deadly=False))
    return trial.finish()


def full_disk(trial: Trial) -> str:
    """A file system with hardly any room, enlarged later."""
    with folders.small_disk(trial.place / "runs", trial.chance.randint(1, 40) * 4096):
        trial.disturbed()
        folders.enlarge(trial.place / "runs")
        return trial.finish()


def worker_killed(trial: Trial) -> str:
    """One of the worker processes is killed; the run itself must not need help."""
    attempt = trial.start()
    for _ in range(trial.chance.randint(1, 2)):
        time.sleep(trial.moment() / 2)
        for pid in trial.chance.sample(found := attempt.workers(), min(1, len(found))):
            send(pid, trial.chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    if trial.end(attempt, last_words=True) != 0:
        raise Wrong(f"the run did not survive its worker: {trial.said!r}")
    return trial.finish()


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was over already
        os.kill(pid, number)


def partly_done(trial: Trial) -> None:
    """A run killed in its later half, with a checkpoint at least; or, now and then, one that is over."""
    number = trial.chance.randint(trial.known.operations // 2, trial.known.operations + 5)
    trial.disturbed(sabotage.dies_at(trial.folder, number), signal.SIGKILL)


def newest_checkpoint(trial: Trial) -> Path:
    return max((trial.folder / "checkpoints").glob("round-*.checkpoint"))


def damage(trial: Trial, path: Path) -> None:
    """Cut off, one bit flipped, overwritten, emptied or removed."""
    content, way = bytearray(path.read_bytes()), trial.chance.randrange(5)
    if way == 0 or not content:
        path.unlink()
        return
    if way == 1:
        del content[trial.chance.randrange(len(content)) :]
    elif way == 2:
        content[trial.chance.randrange(len(content))] ^= 1 << trial.chance.randrange(8)
    elif way == 3:
        start = trial.chance.randrange(len(content))
        content[start : start + 512] = trial.chance.randbytes(min(512, len(content) - start))
    else:
        content.clear()
    path.write_bytes(content)


def damaged_checkpoint(trial: Trial) -> str:
    partly_done(trial)
    damage(trial, newest_checkpoint(trial))
    if trial.chance.random() < 0.3:
        damage(trial, newest_checkpoint(trial))  # and what is the newest now
    return trial.finish()


def damaged_rows(trial: Trial) -> str:
    partly_done(trial)
    damage(trial, trial.folder / "checkpoints" / "memory.rows")
    return trial.finish()


def damaged_metrics(trial: Trial) -> str:
    """Lines that no checkpoint speaks for any more are a reason to refuse; put back, the run goes on."""
    partly_done(trial)
    path = trial.folder / "metrics.jsonl"
    content = path.read_bytes()
    damage(trial, path)
    before = folders.everything(trial.place)
    if trial.disturbed() == 2:
        if folders.everything(trial.place) != before:
            raise Wrong("a command that refused has changed the folder")
        path.write_bytes(content)
    return trial.finish()


def damaged_settings(trial: Trial) -> str:
    """config.toml or data.json spoilt: no run without them; with a copy put back it goes on."""
    partly_done(trial)
    path = trial.folder / trial.chance.choice(["config.toml", "data.json"])
    content = path.read_bytes()
    path.write_bytes(content[: trial.chance.randrange(len(content) // 2)] + b"\x00[")
    trial.expect_refusal(trial.start())
    path.write_bytes(content)
    return trial.finish()


def two_processes(trial: Trial) -> str:
    """A second process on the same folder is refused, and the first does not notice."""
    first = trial.start()
    while not (trial.folder / "config.toml").exists() and first.poll() is None:
        time.sleep(0.001)
    time.sleep(trial.chance.uniform(0, 0.3 * trial.known.seconds))
    first.pause()  # so that it cannot be over before the second has begun
    if folders.is_held(trial.folder):
        trial.expect_refusal(trial.start())
    first.send_signal(signal.SIGCONT)
    if trial.end(first) != 0:
        raise Wrong(f"the first process was disturbed by the second: {trial.said!r}")
    return trial.finish()


def race_to_begin(trial: Trial) -> str:
    """Two processes begin the same run at once: one does it, the other may refuse."""
    arguments = ["run", *trial.arguments(), "-q"]
    codes = [trial.end(attempt) for attempt in [Attempt(arguments), Attempt(arguments)]]
    if sorted(codes) != [0, 2]:
        raise Wrong(f"two processes began one run and ended with {codes}")
    return trial.finish()


def unwritable(trial: Trial) -> str:
    """The folder of a half-done run cannot be written."""
    partly_done(trial)
    with folders.unwritable(trial.place / "runs"):
        trial.expect_refusal(trial.start())
    return trial.finish()


def in_the_way(trial: Trial) -> str:
    """Something else is where the run or a part of it should be."""
    way = trial.chance.randrange(3)
    if way == 0:
        trial.expect_refusal(
            Attempt(["run", *trial.arguments()[:-4], "--out", "/proc/runs", "--name", "run", "-q"])
        )
        return trial.finish()
    obstacle = [trial.folder, trial.folder / "checkpoints"][way - 1]
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("something else")
    trial.expect_refusal(trial.start())
    obstacle.unlink()
    return trial.finish()


@dataclass(frozen=True)
class Kind:
    fault: Callable[[Trial], str]
    share: int
    cases: tuple[str, ...] = tuple(CASES)
    possible: Callable[[Path], bool] = lambda place: True


KINDS = {
    "signal at any moment": Kind(signalled, 5),
    "killed at a file operation": Kind(killed_at_an_operation, 6),
    "killed in a write": Kind(killed_in_a_write, 3, ALONE),
    "file operation fails": Kind(failing_operation, 5, ALONE),
    "file too large": Kind(largest_file, 2, ALONE),
    "disk full": Kind(full_disk, 3, ALONE, folders.can_mount),
    "worker killed": Kind(worker_killed, 3, CROWDS),
    "checkpoint damaged": Kind(damaged_checkpoint, 4),
    "rows damaged or gone": Kind(
        damaged_rows, 3, tuple(case for case in CASES if "fedavg" not in case)
    ),
    "metrics damaged": Kind(damaged_metrics, 2),
    "settings damaged": Kind(damaged_settings, 1),
    "two processes": Kind(two_processes, 2),
    "two begin at once": Kind(race_to_begin, 1),
    "folder unwritable": Kind(unwritable, 2, possible=folders.can_be_unwritable),
    "something in the way": Kind(in_the_way, 1),
}


def carry_out(kind: Kind, trial: Trial) -> str:
    """The outcome in a word or two; the trial's place is gone afterwards unless it went wrong."""
    trial.place.mkdir(parents=True)
    outcome = kind.fault(trial)
    shutil.rmtree(trial.place)
    return outcome
