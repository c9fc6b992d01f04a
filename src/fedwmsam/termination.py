"""SIGTERM as Ctrl-C."""

import signal


def install_sigterm_handler() -> None:
    """SIGTERM ends a run as Ctrl-C does, also where a shell started it in the background with Ctrl-C switched off."""
    signal.signal(signal.SIGTERM, interrupt)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
