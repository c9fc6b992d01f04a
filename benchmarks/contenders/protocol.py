"""How bench.py and the contenders exchange messages.

A contender reads one command per line from its input and replies with one line of JSON. "go 2"
trains two rounds; the reply has their wall time, the CPU time of the process and all its
descendants, and the number of local steps. "accuracy" evaluates the current model on the test data.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO


def serve(run: Callable[[int], int], accuracy: Callable[[], float]) -> None:
    """Reply to commands until the input ends.

    `run` trains so many rounds and returns how many local steps they took.
    """
    reply(ready=1)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "go":
            cpu = cpu_seconds()
            start = time.perf_counter()
            steps = run(int(arguments[0]))
            wall = time.perf_counter() - start
            reply(wall=wall, cpu=cpu_seconds() - cpu, steps=steps)
        else:
            reply(accuracy=accuracy())


def reply(**values: float) -> None:
    print(json.dumps(values), flush=True)


class Failed(Exception):
    """Something that is measured did not do its work; the others continue without it."""


class ContenderProcess:
    """The process of a contender, as bench.py uses it."""

    def __init__(
        self, command: Sequence[str | Path], variables: Mapping[str, str], log: IO[str] | None
    ) -> None:
        """Start the process with these environment variables; `log` gets its error messages."""
        self.log = log
        # Each process has a session of its own: Linux divides a busy machine between sessions, and
        # the workers of fedwmsam have one each as well.
        self.process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def ask(self, line: str) -> dict[str, float]:
        """Send a command and return the reply; raise Failed if the process has ended."""
        self.send(line)
        return self.receive()

    def send(self, line: str) -> None:
        """Send a command; raise Failed if the process has ended."""
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.failure() from None

    def receive(self) -> dict[str, float]:
        """Return the next reply; raise Failed if the process ends before that."""
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries print what they like
                return json.loads(line)
        raise self.failure()

    def failure(self) -> Failed:
        """Return the exception for a process that has ended."""
        hint = f"; see {self.log.name}" if self.log else ""
        return Failed(f"ended with exit code {self.process.wait()}{hint}")

    def close(self, timeout: float = 30) -> None:
        """Close the input, on which the process ends; after the timeout kill its whole family."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all its descendants."""
        for process in family(self.process.pid):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(process, number)


def cpu_seconds() -> float:
    """Return the CPU time of this process and all its descendants (workers, Ray's processes)."""
    return sum(map(process_seconds, family(os.getpid())))


def family(process: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    members = [process]
    for parent in members:  # the list grows while it is read
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                members += map(int, children.read_text().split())
    return members


def process_seconds(process: int) -> float:
    """Return the CPU time of all threads of a process, to the nanosecond.

    On Linux the id of a process's CPU clock is made from the id of the process.
    """
    return time.clock_gettime(~process << 3 | 2)
