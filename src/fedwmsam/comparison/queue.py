"""Processes that carry out a comparison's runs, one run each at a time, until all are done.

The crew talks to its processes in lines of JSON. A process that loses its connection, because the crew was killed,
stops after saving its last completed round; a run whose process died is tried again once, from its last checkpoint.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from filelock import FileLock, Timeout

from fedwmsam.comparison.grid import RunSpec
from fedwmsam.engine.records import read_json, read_lines
from fedwmsam.engine.worker_process import environment
from fedwmsam.errors import InputError

MAX_ATTEMPTS = 2
SHUTDOWN_TIMEOUT = 60
"""Seconds a process may take to save its last round when it is told to end."""
POLL_INTERVAL = 1.0
"""Seconds after which a watcher hears that nothing has happened, so that a clock can go on."""


@dataclass
class QueuedRun:
    """A run as the crew sees it."""

    member: RunSpec
    path: Path
    status: str = "waiting"
    done: int = 0
    record: dict[str, Any] = field(default_factory=dict)
    tries: int = 0
    seconds: float = 0.0
    """Spent on it here, over `fresh` rounds."""
    fresh: int = 0

    @property
    def rounds(self) -> int:
        return self.member.config.rounds

    @property
    def is_over(self) -> bool:
        return self.status not in ("waiting", "running")

    @property
    def failed(self) -> bool:
        return self.status.startswith("failed")


def make_queue(members: Sequence[RunSpec], out: Path) -> list[QueuedRun]:
    """What is there already is not done again."""
    found = []
    for member in members:
        task = QueuedRun(member, member.place(out))
        rows = read_lines(task.path / "metrics.jsonl")
        task.done, task.record = len(rows), rows[-1] if rows else {}
        if (task.path / "summary.json").exists():
            task.status = str(read_json(task.path / "summary.json").get("status"))
        found.append(task)
    return found


def run_queue(tasks: Sequence[QueuedRun], jobs: int, log: Path, watch: Callable[[], None]) -> None:
    """Run what is not over, `jobs` at a time; `watch` is called after every change of the tasks and once a second."""
    queue = [task for task in tasks if not task.is_over]
    watch()
    if not queue:
        return
    news: SimpleQueue[tuple[RunWorker, str]] = SimpleQueue()
    with log.open("a") as messages, contextlib.ExitStack() as stack:
        for _ in range(min(jobs, len(queue))):
            stack.enter_context(RunWorker(news, messages)).take(queue)
        while any(not task.is_over for task in tasks):
            with contextlib.suppress(Empty):
                hand, line = news.get(timeout=POLL_INTERVAL)
                hand.hear(line)
                if hand.task and hand.task.status == "waiting":  # its process died: once more
                    queue.insert(0, hand.task)
                if not hand.task or hand.task.status != "running":
                    hand.take(queue)
            watch()


class RunWorker:
    """One process and the run it is busy with."""

    def __init__(self, news: "SimpleQueue[tuple[RunWorker, str]]", messages: IO[str]) -> None:
        self.news, self.messages = news, messages
        self.task: QueuedRun | None = None
        self.start()

    def start(self) -> None:
        # A session of its own: Ctrl-C in the terminal is for the crew, which ends its processes itself.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedwmsam.comparison.run_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.messages,
            text=True,
            start_new_session=True,
            env=environment(),
        )
        threading.Thread(target=self.listen, args=(self.process.stdout,), daemon=True).start()

    def listen(self, answers: IO[str]) -> None:
        with answers:
            for line in answers:
                self.news.put((self, line))
        self.news.put((self, ""))

    def __enter__(self) -> "RunWorker":
        return self

    def __exit__(self, *_: object) -> None:
        """Losing its input, a process saves its last completed round and ends."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=SHUTDOWN_TIMEOUT)
        self.process.kill()
        self.process.wait()

    def take(self, queue: list[QueuedRun]) -> None:
        self.task = queue.pop(0) if queue else None
        if self.task is None:
            return
        self.task.status, self.task.tries, self.since = (
            "running",
            self.task.tries + 1,
            time.monotonic(),
        )
        order = {"path": str(self.task.path), "config": self.task.member.config.flat()}
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has died: the end of its answers says so
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def hear(self, line: str) -> None:
        """One line of news; an empty one means that the process is no more."""
        task = self.task
        if not line:
            code = self.process.wait()
            self.start()
        if task is None:
            return
        if not line:
            task.status = (
                "waiting"
                if task.tries < MAX_ATTEMPTS
                else f"failed: its process ended with code {code}"
            )
            return
        said, now = json.loads(line), time.monotonic()
        if "round" in said:
            task.fresh, task.seconds = task.fresh + 1, task.seconds + now - self.since
            task.done, task.record = said["round"], said
        task.status, self.since = said.get("status", task.status), now


def estimate_seconds_left(tasks: Sequence[QueuedRun], jobs: int) -> float | None:
    """From the time rounds took so far: of the same method where known, else of all."""
    known = [task for task in tasks if task.fresh]
    if not known:
        return None
    waiting = [task for task in tasks if not task.is_over]
    return sum(
        (task.rounds - task.done) * seconds_per_round(task, known) for task in waiting
    ) / max(1, min(jobs, len(waiting)))


def seconds_per_round(task: QueuedRun, known: Sequence[QueuedRun]) -> float:
    alike = [
        other for other in known if other.member.config.method == task.member.config.method
    ] or known
    return sum(other.seconds for other in alike) / sum(other.fresh for other in alike)


@contextlib.contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Two comparisons in one folder would start the same runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with FileLock(out / ".lock", timeout=0):
            yield
    except Timeout:
        raise InputError(
            f"Another comparison is working in {out}; wait for it or stop it first."
        ) from None
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{out} is a file; choose a folder for the comparison.") from None
