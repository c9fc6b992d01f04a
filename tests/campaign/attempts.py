"""Commands in processes forked from one that has imported PyTorch already: a trial does not take seconds to begin.

The parent must never train anything itself: PyTorch refuses to differentiate in the fork of a process that has done so.
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

Sabotage = Callable[[], None]
"""Called in the new process before the command."""
PATIENCE = 240.0
"""Seconds after which an attempt counts as hung; on a quiet machine one takes a quarter of a second."""


class Child:
    """A forked process, with as much of subprocess.Popen as the library uses."""

    def __init__(self, life: Callable[[], None]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                life()
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

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def pause(self) -> None:
        """Stop it and wait until it has stopped, unless it is over."""
        self.send_signal(signal.SIGSTOP)
        while (
            self.poll() is None
            and Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T"
        ):
            time.sleep(0.001)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Attempt(Child):
    """One command; what it says on its error output is kept."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        sabotage: Sabotage | None = None,
        fork_workers: bool = True,
    ) -> None:
        self.errors, theirs = os.pipe()
        os.set_blocking(self.errors, False)
        super().__init__(lambda: command(arguments, theirs, sabotage, fork_workers))
        os.close(theirs)

    def end(self) -> tuple[int, str]:
        """Exit code (negative: the signal that ended it) and error output."""
        try:
            code = self.wait()
            return code, os.read(self.errors, 1 << 16).decode(errors="replace")
        except BlockingIOError:  # nothing was said, and a worker still holds the other end
            return code, ""
        finally:
            os.close(self.errors)

    def workers(self) -> list[int]:
        """The processes it has started and not yet buried."""
        try:
            return [
                int(pid)
                for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            ]
        except OSError:
            return []


def command(
    arguments: Sequence[str | Path], errors: int, sabotage: Sabotage | None, fork_workers: bool
) -> None:
    os.setsid()  # Ctrl-C is for the campaign, not for its trials
    os.dup2(errors, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if fork_workers:
        worker_process.start_process = forked_worker
    if sabotage is not None:
        sabotage()
    sys.argv = ["fedwmsam", *map(str, arguments)]
    cli.main()


def forked_worker() -> worker_process.IdleProcess:
    """As `worker_process.start_process`, which runs a new Python: nothing but the one channel is inherited."""
    ours, theirs = socket.socketpair()
    channel = theirs.fileno()

    def life() -> None:
        os.setsid()
        os.closerange(3, channel)
        os.closerange(channel + 1, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        workers.worker_main(channel)

    process = Child(life)
    theirs.close()
    return worker_process.IdleProcess(process, ours)  # type: ignore[arg-type]
