"""Worker processes before they know their work. This module does not import PyTorch, which takes seconds: the command
line starts its workers first and imports after, so that all of them import at the same time."""

import os
import socket
import subprocess
import sys
from typing import NamedTuple


class IdleProcess(NamedTuple):
    """A process that waits at the other end of `channel` to be told what it works on."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket


waiting: list[IdleProcess] = []


def start_early(count: int) -> None:
    """Processes for whoever will need them; those nobody takes end with this process."""
    waiting.extend(start_process() for _ in range(count))


def take_process() -> IdleProcess:
    return waiting.pop() if waiting else start_process()


def start_process() -> IdleProcess:
    ours, theirs = socket.socketpair()
    # It ends without PyTorch's own teardown, which would take half a second.
    program = f"import os; from fedwmsam.engine.workers import worker_main; worker_main({theirs.fileno()}); os._exit(0)"
    # A session of its own: Ctrl-C in the terminal is for the main process, which ends its workers itself.
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        env=environment(),
    )
    theirs.close()
    return IdleProcess(process, ours)


def environment() -> dict[str, str]:
    """Of a process that computes beside this one: on one thread, with the same modules."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


def cores() -> int:
    """How many processes can work at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
