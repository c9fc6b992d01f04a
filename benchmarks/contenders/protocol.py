"""How bench.py and the contenders talk: one line to a contender's input, one line of JSON from its output.

"go 2" runs two rounds and answers with their wall time, the CPU time of that process and all below it, and the number
of local steps taken; "accuracy" answers with the test accuracy of the model as it is now.
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
    """A contender's life; `run` does so many rounds and returns how many local steps they took."""
    reply(ready=1)
    for line in sys.stdin:
        command, *count = line.split()
        if command == "go":
            cpu, start = cpu_seconds(), time.perf_counter()
            steps = run(int(count[0]))
            wall = time.perf_counter() - start
            reply(wall=wall, cpu=cpu_seconds() - cpu, steps=steps)
        else:
            reply(accuracy=accuracy())


def reply(**values: float) -> None:
    print(json.dumps(values), flush=True)


class Failed(Exception):
    """Something measured did not do its work; the rest goes on without it."""


class Contender:
    """A contender's process, seen from outside."""

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: IO[str] | None
    ) -> None:
        self.log = log
        # A session each: Linux divides a busy machine between sessions, and fedwmsam's workers have one each as well.
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def ask(self, line: str) -> dict[str, float]:
        self.send(line)
        return self.receive()

    def send(self, line: str) -> None:
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.failure() from None

    def receive(self) -> dict[str, float]:
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries print what they like
                return json.loads(line)
        raise self.failure()

    def failure(self) -> Failed:
        place = f"; see {self.log.name}" if self.log else ""
        return Failed(f"ended with exit code {self.process.wait()}{place}")

    def close(self, patience: float = 30) -> None:
        """Without its input a contender ends; if not, it is killed with all that it started."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """To its whole family."""
        for process in family(self.process.pid):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(process, number)


def cpu_seconds() -> float:
    """CPU time of this process and its descendants so far, whatever they are (workers, Ray's processes)."""
    return sum(map(process_seconds, family(os.getpid())))


def family(process: int) -> list[int]:
    found = [process]
    for parent in found:  # grows while it is walked
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                found += map(int, children.read_text().split())
    return found


def process_seconds(process: int) -> float:
    """All threads of a process, to the nanosecond: on Linux the number of a process's CPU clock is made of its own."""
    return time.clock_gettime(~process << 3 | 2)
