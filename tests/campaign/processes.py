"""Commands of `fedwmsam` in forked processes.

They are forked from a process that has imported PyTorch already, so that a trial does not take
seconds to start. The parent must never train anything itself: PyTorch refuses to differentiate in
the fork of a process that has done so.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import sklearn.datasets  # noqa: F401  (imported here once, for all the children)

from fedwmsam import cli
from fedwmsam.engine import worker_process, workers
from fedwmsam.recording import recorder  # noqa: F401
from fedwmsam.report import terminal  # noqa: F401

FaultInjection = Callable[[], None]
"""A function that is called in the new process before the command, and prepares a fault."""
TIMEOUT = 240.0
"""Seconds after which a process counts as hung; on a quiet machine one takes 0.25 s."""


class ForkedProcess:
    """A forked process, with as much of subprocess.Popen as the library uses."""

    def __init__(self, target: Callable[[], None]) -> None:
        """Fork this process and call `target` in the child."""
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            call_and_exit(target)

    def poll(self) -> int | None:
        """Return the exit code, or None if the process is running."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Wait for the process and return its exit code; raise TimeoutExpired after the timeout."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def pause(self) -> None:
        """Stop the process and wait until it has stopped, unless it has ended."""
        self.send_signal(signal.SIGSTOP)
        while self.poll() is None and self.state() != "T":
            time.sleep(0.001)

    def state(self) -> str:
        """Return the letter by which Linux describes the state of the process."""
        return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def call_and_exit(target: Callable[[], None]) -> None:
    """Call a function and end this process with the exit code that Python would have."""
    code = 1
    try:
        target()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class CliProcess(ForkedProcess):
    """A command of `fedwmsam` in a forked process; its error output is kept."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        fault: FaultInjection | None = None,
        fork_workers: bool = True,
    ) -> None:
        """Start the command, with forked workers or with new Python processes as workers."""
        self.errors, child_errors = os.pipe()
        os.set_blocking(self.errors, False)
        super().__init__(lambda: run_command(arguments, child_errors, fault, fork_workers))
        os.close(child_errors)

    def wait_with_output(self) -> tuple[int, str]:
        """Return the exit code (negative: the signal that ended it) and the error output."""
        try:
            code = self.wait()
            return code, os.read(self.errors, 1 << 16).decode(errors="replace")
        except BlockingIOError:  # there is no output, and a worker still holds the other end
            return code, ""
        finally:
            os.close(self.errors)

    def workers(self) -> list[int]:
        """Return the processes that it has started and not yet waited for."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in children.split()]


def run_command(
    arguments: Sequence[str | Path], errors: int, fault: FaultInjection | None, fork_workers: bool
) -> None:
    """Prepare the fault and run the command in this process."""
    os.setsid()  # Ctrl-C is for the campaign, not for its trials
    os.dup2(errors, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if fork_workers:
        worker_process.start_process = fork_worker
    if fault is not None:
        fault()
    sys.argv = ["fedwmsam", *map(str, arguments)]
    cli.main()


def fork_worker() -> worker_process.IdleProcess:
    """Fork a worker, in place of `worker_process.start_process`, which starts a new Python.

    The worker inherits no open file but the one channel.
    """
    parent_socket, child_socket = socket.socketpair()
    channel = child_socket.fileno()

    def work() -> None:
        os.setsid()
        os.closerange(3, channel)
        os.closerange(channel + 1, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        workers.worker_main(channel)

    process = ForkedProcess(work)
    child_socket.close()
    return worker_process.IdleProcess(process, parent_socket)  # type: ignore[arg-type]
