"""What is done to a process from within, before its command starts: it dies or fails at a chosen moment.

Python's audit events tell of every file that is opened, renamed or removed; `os.fsync`, which has none, is wrapped.
"""

import mmap
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaign.attempts import Sabotage

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate")


class Counter:
    """File operations below a folder, counted across processes."""

    def __init__(self) -> None:
        self.shared = mmap.mmap(-1, 8)

    @property
    def value(self) -> int:
        return int.from_bytes(self.shared[:], "little")

    def rise(self) -> int:
        self.shared[:] = (self.value + 1).to_bytes(8, "little")
        return self.value


def at_operations(
    folder: Path, act: Callable[[int], None], counter: Counter | None = None
) -> Sabotage:
    """Call `act` with the number of each file operation in the folder, before the operation."""
    counter = counter or Counter()
    inside = str(folder)

    def noticed(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event in EVENTS
            and isinstance(arguments[0], str | os.PathLike)
            and str(arguments[0]).startswith(inside)
        ):
            act(counter.rise())

    def install() -> None:
        fsync = os.fsync

        def noticed_fsync(descriptor: int) -> None:
            act(counter.rise())
            fsync(descriptor)

        os.fsync = noticed_fsync
        sys.addaudithook(noticed)

    return install


def dies_at(folder: Path, number: int) -> Sabotage:
    def act(now: int) -> None:
        if now == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return at_operations(folder, act)


def fails_at(folder: Path, number: int, reason: int, forever: bool) -> Sabotage:
    """The operation ends with this error, and if so all after it."""

    def act(now: int) -> None:
        if now == number or (forever and now > number):
            raise OSError(reason, os.strerror(reason))

    return at_operations(folder, act)


def largest_file(size: int, deadly: bool) -> Sabotage:
    """No file may grow beyond so many bytes; whoever tries is killed in the middle of the write, or gets an error."""

    def install() -> None:
        if deadly:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return install
