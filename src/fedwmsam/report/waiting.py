"""What an analysis is at, for whoever waits: one line that changes on a terminal, a line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console

EVERY = 15.0
"""Seconds between lines where there is no terminal."""


class Waiting:
    def __init__(self, console: Console, quiet: bool) -> None:
        self.console, self.quiet = console, quiet
        self.status = console.status("") if console.is_terminal and not quiet else None
        self.last_line = time.monotonic()

    def __enter__(self) -> "Waiting":
        if self.status:
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status:
            self.status.stop()

    def say(self, text: str) -> None:
        if self.status:
            self.status.update(text)
        elif not self.quiet and time.monotonic() - self.last_line > EVERY:
            self.console.print(text, soft_wrap=True)
            self.last_line = time.monotonic()
