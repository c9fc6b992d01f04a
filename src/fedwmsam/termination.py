"""The handler that treats SIGTERM like Ctrl-C."""

import signal


def install_sigterm_handler() -> None:
    """Make SIGTERM end a run in the way Ctrl-C does.

    This also works where a shell started the run in the background with Ctrl-C switched off.
    """
    signal.signal(signal.SIGTERM, interrupt)


def interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt, as Python's own handler of Ctrl-C does."""
    raise KeyboardInterrupt
