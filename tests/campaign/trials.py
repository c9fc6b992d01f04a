"""Trials: a small run, one kind of fault, and a comparison.

However a run was disturbed, in the end it must be the same to the last bit as one that was not. On
the way a command may refuse, in one sentence and without a traceback.
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

from campaign import fault_injection, folders
from campaign.processes import CliProcess, FaultInjection

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
"""Options of every run."""
ON_DISK = ("--set", "memory_budget=0")
TWO_WORKERS = ("--workers", "2")
CASES = {
    "fedavg": ("--method", "fedavg"),
    "fedavg, workers": ("--method", "fedavg", *TWO_WORKERS),
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
    "fedwmsam, rows on disk, workers": ("--method", "fedwmsam", *ON_DISK, *TWO_WORKERS),
}
"""Names of runs → their further options."""
WITHOUT_WORKERS = tuple(case for case in CASES if "workers" not in case)
WITH_WORKERS = tuple(case for case in CASES if "workers" in case)
WITH_ROWS = tuple(case for case in CASES if "fedavg" not in case)
"""Cases whose method keeps a row for each client."""

SAME = "same"
REFUSED = "refused, then same"


class TrialFailure(Exception):
    """What must never happen: a result lost or different, a traceback, a process that hangs."""


@dataclass(frozen=True)
class Reference:
    """A case without a fault."""

    outcome: dict[str, bytes]
    operations: int
    """Number of file operations in its folder."""
    seconds: float


@dataclass
class Trial:
    """A run that is disturbed and then finished, in a folder of its own."""

    case: str
    folder: Path
    rng: random.Random
    reference: Reference | None = None
    has_refused: bool = field(default=False, init=False)
    """Whether a command has refused to work."""
    error_output: str = field(default="", init=False)
    """Error output of the last command."""

    @property
    def run_folder(self) -> Path:
        """Return the folder of the run."""
        return self.folder / "runs" / "run"

    def start(self, fault: FaultInjection | None = None) -> CliProcess:
        """Start the run, or resume it if there is one, as a person would."""
        # Now and then workers are new Python processes, which take their time to import PyTorch.
        fork_workers = self.rng.random() >= 0.05 or self.case not in WITH_WORKERS
        if (self.run_folder / "config.toml").exists():
            return CliProcess(["resume", self.run_folder, "-q"], fault, fork_workers)
        return CliProcess(["run", *self.arguments(), "-q"], fault, fork_workers)

    def arguments(self) -> list[str | Path]:
        """Return the arguments of `fedwmsam run`."""
        return [*COMMON, *CASES[self.case], "--out", self.folder / "runs", "--name", "run"]

    def wait_for(
        self, process: CliProcess, *signals: int, worker_may_complain: bool = False
    ) -> int:
        """Wait for a command and return its exit code.

        It may be done, stopped, killed by one of these signals, or refuse in one sentence; raise
        TrialFailure otherwise. With `worker_may_complain`, a worker may print a traceback when it
        dies.
        """
        code, self.error_output = process.wait_with_output()
        if "Traceback" in self.error_output and not worker_may_complain:
            raise TrialFailure(f"a traceback: {self.error_output[-1500:]}")
        if code == 2:
            if self.error_output.count("Error: ") != 1:
                raise TrialFailure(f"a refusal that is not one sentence: {self.error_output!r}")
            self.has_refused = True
        elif code not in (0, 130, *(-number for number in signals)):
            raise TrialFailure(f"exit code {code}: {self.error_output!r}")
        return code

    def run_with_fault(self, fault: FaultInjection | None = None, *signals: int) -> int:
        """Start or resume the run with a fault, wait for it, and return its exit code."""
        return self.wait_for(self.start(fault), *signals)

    def expect_refusal(self, process: CliProcess) -> None:
        """Raise TrialFailure unless the command refuses and leaves everything as it is."""
        before = folders.read_files(self.folder)
        if self.wait_for(process) != 2:
            raise TrialFailure("a command that had to refuse did not")
        if folders.read_files(self.folder) != before:
            raise TrialFailure("a command that refused has changed the folder")

    def finish_and_compare(self) -> str:
        """Finish the run without a fault, and return SAME or REFUSED.

        Raise TrialFailure if it does not finish, or differs from the reference.
        """
        has_refused = self.has_refused
        self.has_refused = False
        if self.run_with_fault() != 0:
            raise TrialFailure(f"the undisturbed command did not finish: {self.error_output!r}")
        outcome = folders.read_outcome(self.run_folder)
        expected = self.expected.outcome
        names = sorted(outcome.keys() | expected.keys())
        different = [name for name in names if outcome.get(name) != expected.get(name)]
        if different:
            raise TrialFailure(f"another result: {', '.join(different)}")
        return REFUSED if has_refused else SAME

    @property
    def expected(self) -> Reference:
        """Return the reference, which only a reference itself does not have."""
        assert self.reference
        return self.reference

    def random_moment(self) -> float:
        """Return a number of seconds, most often before the run would end."""
        return self.rng.uniform(0, 1.1 * self.expected.seconds)

    def random_operation(self) -> int:
        """Return the number of one of the file operations of the run."""
        return self.rng.randint(1, self.expected.operations)


def run_reference(case: str, folder: Path) -> Reference:
    """Execute a case without a fault."""
    trial = Trial(case, folder, random.Random(0))
    counter = fault_injection.OperationCounter()
    count = fault_injection.at_operations(trial.run_folder, lambda number: None, counter)
    start = time.monotonic()
    if trial.run_with_fault(count) != 0:
        raise TrialFailure(f"{case} does not run at all")
    outcome = folders.read_outcome(trial.run_folder)
    return Reference(outcome, counter.value, time.monotonic() - start)


def send_signals(trial: Trial) -> str:
    """Send SIGKILL, SIGTERM or SIGINT at random moments, up to three times."""
    for _ in range(trial.rng.randint(1, 3)):
        number = trial.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        process = trial.start()
        time.sleep(trial.random_moment())
        process.send_signal(number)
        trial.wait_for(process, number)
    return trial.finish_and_compare()


def kill_at_operation(trial: Trial) -> str:
    """Kill the run before an open, rename, remove, mkdir or fsync in its folder, up to twice."""
    for _ in range(trial.rng.randint(1, 2)):
        fault = fault_injection.die_at(trial.run_folder, trial.random_operation())
        trial.run_with_fault(fault, signal.SIGKILL)
    return trial.finish_and_compare()


def kill_in_write(trial: Trial) -> str:
    """Kill the run when a file has some number of bytes, with part of the write on disk."""
    fault = fault_injection.limit_file_size(trial.rng.randint(1, 30_000), deadly=True)
    trial.run_with_fault(fault, signal.SIGXFSZ)
    return trial.finish_and_compare()


def fail_operation(trial: Trial) -> str:
    """Let a file operation, or all from it on, fail with an error of the disk."""
    error = trial.rng.choice([errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
    number = trial.random_operation()
    forever = trial.rng.random() < 0.5
    trial.run_with_fault(fault_injection.fail_at(trial.run_folder, number, error, forever))
    return trial.finish_and_compare()


def limit_file_size(trial: Trial) -> str:
    """Let a write fail in its middle when a file reaches a limit, as a quota does."""
    fault = fault_injection.limit_file_size(trial.rng.randint(1, 30_000), deadly=False)
    trial.run_with_fault(fault)
    return trial.finish_and_compare()


def fill_disk(trial: Trial) -> str:
    """Run on a disk with hardly any free space, and enlarge it later."""
    disk = trial.folder / "runs"
    with folders.small_disk(disk, trial.rng.randint(1, 40) * 4096):
        trial.run_with_fault()
        folders.enlarge(disk)
        return trial.finish_and_compare()


def kill_worker(trial: Trial) -> str:
    """Kill one of the worker processes, once or twice; the run itself must not need help."""
    process = trial.start()
    for _ in range(trial.rng.randint(1, 2)):
        time.sleep(trial.random_moment() / 2)
        workers = process.workers()
        for pid in trial.rng.sample(workers, min(1, len(workers))):
            number = trial.rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.kill(pid, number)
    if trial.wait_for(process, worker_may_complain=True) != 0:
        raise TrialFailure(f"the run did not survive its worker: {trial.error_output!r}")
    return trial.finish_and_compare()


def run_partly(trial: Trial) -> None:
    """Kill the run in its later half, when it has a checkpoint; now and then it is finished."""
    operations = trial.expected.operations
    number = trial.rng.randint(operations // 2, operations + 5)
    trial.run_with_fault(fault_injection.die_at(trial.run_folder, number), signal.SIGKILL)


def newest_checkpoint(trial: Trial) -> Path:
    return max((trial.run_folder / "checkpoints").glob("round-*.checkpoint"))


def damage(trial: Trial, path: Path) -> None:
    """Remove a file, cut it off, flip one of its bits, overwrite a part of it or empty it."""
    content = bytearray(path.read_bytes())
    choice = trial.rng.randrange(5)
    if choice == 0 or not content:
        path.unlink()
        return
    if choice == 1:
        del content[trial.rng.randrange(len(content)) :]
    elif choice == 2:
        content[trial.rng.randrange(len(content))] ^= 1 << trial.rng.randrange(8)
    elif choice == 3:
        start = trial.rng.randrange(len(content))
        content[start : start + 512] = trial.rng.randbytes(min(512, len(content) - start))
    else:
        content.clear()
    path.write_bytes(content)


def damage_checkpoint(trial: Trial) -> str:
    """Damage the newest checkpoint, and now and then the one before it."""
    run_partly(trial)
    damage(trial, newest_checkpoint(trial))
    if trial.rng.random() < 0.3:
        damage(trial, newest_checkpoint(trial))  # the one that is the newest now
    return trial.finish_and_compare()


def damage_rows(trial: Trial) -> str:
    """Damage the file of the clients' rows."""
    run_partly(trial)
    damage(trial, trial.run_folder / "checkpoints" / "memory.rows")
    return trial.finish_and_compare()


def damage_metrics(trial: Trial) -> str:
    """Damage the metrics, and put them back if the command refuses.

    It may refuse lines that no checkpoint confirms.
    """
    run_partly(trial)
    path = trial.run_folder / "metrics.jsonl"
    content = path.read_bytes()
    damage(trial, path)
    before = folders.read_files(trial.folder)
    if trial.run_with_fault() == 2:
        if folders.read_files(trial.folder) != before:
            raise TrialFailure("a command that refused has changed the folder")
        path.write_bytes(content)
    return trial.finish_and_compare()


def damage_settings(trial: Trial) -> str:
    """Damage config.toml or data.json, without which there is no run, and put it back."""
    run_partly(trial)
    path = trial.run_folder / trial.rng.choice(["config.toml", "data.json"])
    content = path.read_bytes()
    path.write_bytes(content[: trial.rng.randrange(len(content) // 2)] + b"\x00[")
    trial.expect_refusal(trial.start())
    path.write_bytes(content)
    return trial.finish_and_compare()


def start_second_process(trial: Trial) -> str:
    """Start a second process in the same folder: it is refused and does not disturb the first."""
    first = trial.start()
    while not (trial.run_folder / "config.toml").exists() and first.poll() is None:
        time.sleep(0.001)
    time.sleep(trial.rng.uniform(0, 0.3 * trial.expected.seconds))
    first.pause()  # so that it cannot end before the second has started
    if folders.is_held(trial.run_folder):
        trial.expect_refusal(trial.start())
    first.send_signal(signal.SIGCONT)
    if trial.wait_for(first) != 0:
        raise TrialFailure(f"the first process was disturbed by the second: {trial.error_output!r}")
    return trial.finish_and_compare()


def start_two_at_once(trial: Trial) -> str:
    """Start the same run in two processes at once: one executes it, the other may refuse."""
    arguments = ["run", *trial.arguments(), "-q"]
    processes = [CliProcess(arguments), CliProcess(arguments)]
    codes = [trial.wait_for(process) for process in processes]
    if sorted(codes) != [0, 2]:
        raise TrialFailure(f"two processes began one run and ended with {codes}")
    return trial.finish_and_compare()


def make_unwritable(trial: Trial) -> str:
    """Make the folder of a half-done run unwritable for a while."""
    run_partly(trial)
    with folders.unwritable(trial.folder / "runs"):
        trial.expect_refusal(trial.start())
    return trial.finish_and_compare()


def put_obstacle(trial: Trial) -> str:
    """Put something else where the run or a part of it should be, and remove it later."""
    choice = trial.rng.randrange(3)
    if choice == 0:
        arguments = [*trial.arguments()[:-4], "--out", "/proc/runs", "--name", "run", "-q"]
        trial.expect_refusal(CliProcess(["run", *arguments]))
        return trial.finish_and_compare()
    obstacle = trial.run_folder if choice == 1 else trial.run_folder / "checkpoints"
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("something else")
    trial.expect_refusal(trial.start())
    obstacle.unlink()
    return trial.finish_and_compare()


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault: a function that executes a trial with it and returns SAME or REFUSED."""

    fault: Callable[[Trial], str]
    weight: int
    """Number of trials with this fault, relative to the others."""
    cases: tuple[str, ...] = tuple(CASES)
    is_supported: Callable[[Path], bool] = lambda folder: True
    """Returns whether the fault is possible on this machine, in this folder."""


FAULTS = {
    "signal at any moment": FaultKind(send_signals, 5),
    "killed at a file operation": FaultKind(kill_at_operation, 6),
    "killed in a write": FaultKind(kill_in_write, 3, WITHOUT_WORKERS),
    "file operation fails": FaultKind(fail_operation, 5, WITHOUT_WORKERS),
    "file too large": FaultKind(limit_file_size, 2, WITHOUT_WORKERS),
    "disk full": FaultKind(fill_disk, 3, WITHOUT_WORKERS, folders.can_mount),
    "worker killed": FaultKind(kill_worker, 3, WITH_WORKERS),
    "checkpoint damaged": FaultKind(damage_checkpoint, 4),
    "rows damaged or gone": FaultKind(damage_rows, 3, WITH_ROWS),
    "metrics damaged": FaultKind(damage_metrics, 2),
    "settings damaged": FaultKind(damage_settings, 1),
    "two processes": FaultKind(start_second_process, 2),
    "two begin at once": FaultKind(start_two_at_once, 1),
    "folder unwritable": FaultKind(make_unwritable, 2, is_supported=folders.can_be_unwritable),
    "something in the way": FaultKind(put_obstacle, 1),
}


def run_trial(kind: FaultKind, trial: Trial) -> str:
    """Execute a trial and return its outcome; its folder stays only if it went wrong."""
    trial.folder.mkdir(parents=True)
    outcome = kind.fault(trial)
    shutil.rmtree(trial.folder)
    return outcome
