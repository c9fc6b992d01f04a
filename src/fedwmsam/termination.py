"""Ctrl-C, SIGTERM and SIGHUP: one ends the program cleanly, a second in a hurry does nothing."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended, as shells have it."""
PATIENCE = 2.0
"""Seconds after the first signal in which further ones are the same press of the keys."""


@dataclass
class Lifetime:
    """How far this program has come, which decides what a signal does."""

    can_be_interrupted: bool = False
    """Whether somebody catches KeyboardInterrupt: not while the program is still imported."""
    interrupted_at: float | None = None
    exit_code: int | None = None
    """The code of a program that has done everything but end."""


lifetime = Lifetime()


def install_handlers(can_be_interrupted: bool = False) -> None:
    """Let SIGTERM, and the SIGHUP of a closed terminal, end the program in the way Ctrl-C does.

    This also works where a shell started it in the background with Ctrl-C switched off. What
    `nohup` has switched off stays so.
    """
    lifetime.can_be_interrupted = can_be_interrupted
    lifetime.interrupted_at = None
    lifetime.exit_code = None
    signal.signal(signal.SIGTERM, interrupt)
    for name in ("SIGINT", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def interrupt_main_thread() -> None:
    """Send SIGTERM to this process, from any of its threads, so that its handler runs."""
    if hasattr(signal, "pthread_kill"):
        os.kill(os.getpid(), signal.SIGTERM)
    else:  # on Windows `os.kill` would end the process at once
        signal.raise_signal(signal.SIGTERM)


def hides_interrupt(error: BaseException) -> bool:
    """Return whether the error came up while KeyboardInterrupt was on its way out of a call.

    An interrupt can break off code that tidies up, as a `with` around a lock; where that fails,
    its own error is what the caller sees.
    """
    earlier = error.__context__
    while earlier is not None:
        if isinstance(earlier, KeyboardInterrupt):
            return True
        earlier = earlier.__context__
    return False


def finish(code: int) -> NoReturn:
    """Exit with this code, whatever signals still come.

    Python gives its handlers up before it has ended, and a signal then would kill it with another
    code; one that is ignored stays ignored.
    """
    lifetime.exit_code = code
    if lifetime.interrupted_at is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt at the first signal, and end the program at once at a late one.

    Files are complete at any instant, so ending at once loses no more than the work of a round.
    """
    now = time.monotonic()
    if lifetime.exit_code is not None:
        os._exit(lifetime.exit_code)
    if not lifetime.can_be_interrupted:
        os._exit(INTERRUPTED)
    if lifetime.interrupted_at is None:
        lifetime.interrupted_at = now
        raise KeyboardInterrupt
    if now - lifetime.interrupted_at > PATIENCE:
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), b"\x1b[?25h")  # a live display has hidden the cursor
        os._exit(INTERRUPTED)
