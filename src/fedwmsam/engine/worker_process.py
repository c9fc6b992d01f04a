"""Worker processes that are started before their work is known.

This module does not import PyTorch, which takes seconds: the command line starts its workers first
and imports PyTorch after, so that all processes import it at the same time.
"""

import os
import socket
import subprocess
import sys
from typing import Any, NamedTuple

SENDS_DESCRIPTORS = hasattr(socket, "send_fds")
"""Whether open files can be sent to another process: not on Windows."""
OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""What `start_new_session` is on Windows: Ctrl-C in the terminal does not reach the process."""


class IdleProcess(NamedTuple):
    """A process that waits at the other end of `channel` to be told what it works on."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket


idle_processes: list[IdleProcess] = []


def start_early(count: int) -> None:
    """Start processes for whoever will need them; those nobody takes end with this process."""
    idle_processes.extend(start_process() for _ in range(count))


def take_process() -> IdleProcess:
    """Return a process that was started early, or a new one if none is left."""
    return idle_processes.pop() if idle_processes else start_process()


def start_process() -> IdleProcess:
    """Start a worker process and return it with a channel to it."""
    our_end, worker_end = socket.socketpair()
    # It ends without PyTorch's own teardown, which would take half a second.
    program = (
        "import os; from fedwmsam.engine.workers import worker_main; "
        f"worker_main({worker_end.fileno()}); os._exit(0)"
    )
    inherited: dict[str, Any] = {"pass_fds": [worker_end.fileno()]}
    if not SENDS_DESCRIPTORS:
        # A socket is a handle, of which all that may be inherited are. The input is not: if a
        # thread here is reading it, whoever asks for its kind would wait for that.
        worker_end.set_inheritable(True)
        inherited = {"close_fds": False, "stdin": subprocess.DEVNULL}
    # It has a session of its own: Ctrl-C in the terminal is for the main process, which ends its
    # workers itself.
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        start_new_session=True,
        creationflags=OWN_GROUP,
        env=environment(),
        **inherited,
    )
    worker_end.close()
    return IdleProcess(process, our_end)


def environment() -> dict[str, str]:
    """Return the environment of a worker process: one thread, and the modules of this process."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


def cores() -> int:
    """Return how many processes can compute at the same time."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
