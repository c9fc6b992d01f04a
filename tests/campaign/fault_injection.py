"""Faults that are prepared in a process before its command starts: it dies or fails at some moment.

Python's audit events report every file that is opened, renamed or removed; `os.fsync`, which has no
such event, is wrapped.
"""

import mmap
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaign.processes import FaultInjection

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate")
"""The audit events that are counted as file operations."""


class OperationCounter:
    """A number of file operations that several processes count together."""

    def __init__(self) -> None:
        self.shared = mmap.mmap(-1, 8)

    @property
    def value(self) -> int:
        """Return the number of operations so far."""
        return int.from_bytes(self.shared[:], "little")

    def increment(self) -> int:
        """Count an operation and return its number."""
        self.shared[:] = (self.value + 1).to_bytes(8, "little")
        return self.value


def at_operations(
    folder: Path, act: Callable[[int], None], counter: OperationCounter | None = None
) -> FaultInjection:
    """Return a fault that calls `act` with the number of each file operation before it happens.

    Only operations in the folder count.
    """
    counter = counter or OperationCounter()
    prefix = str(folder)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        if str(arguments[0]).startswith(prefix):
            act(counter.increment())

    def install() -> None:
        fsync = os.fsync

        def counted_fsync(descriptor: int) -> None:
            act(counter.increment())
            fsync(descriptor)

        os.fsync = counted_fsync
        sys.addaudithook(audit)

    return install


def die_at(folder: Path, number: int) -> FaultInjection:
    """Return the fault that the process is killed before a file operation."""

    def act(current: int) -> None:
        if current == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return at_operations(folder, act)


def fail_at(folder: Path, number: int, error: int, forever: bool) -> FaultInjection:
    """Return the fault that a file operation, or with `forever` each one from it on, fails."""

    def act(current: int) -> None:
        if current == number or (forever and current > number):
            raise OSError(error, os.strerror(error))

    return at_operations(folder, act)


def limit_file_size(size: int, deadly: bool) -> FaultInjection:
    """Return the fault that no file can grow beyond so many bytes.

    If it is deadly, a process that tries is killed in the middle of the write; otherwise the write
    fails.
    """

    def install() -> None:
        if deadly:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return install
