"""The consoles that commands print to, and functions that print lines and tables."""

import codecs
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedwmsam.errors import printable

if TYPE_CHECKING:
    from fedwmsam.report.text_tables import TextTable

MAX_LETTERS = 100_000
"""Letters of a line before it is cut off."""


def open_missing_streams() -> None:
    """Open the null device for each standard stream that is closed, as `fedwmsam … >&-` does.

    Otherwise a file that is opened later would get its number, and be written to by mistake.
    """
    for descriptor, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def replace_unprintable() -> None:
    """Print a question mark for each character that the standard output's encoding lacks.

    A pipe on Windows often has one without Greek letters, and printing them would be an error.
    """
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
        stream.reconfigure(errors="replace")


open_missing_streams()
replace_unprintable()
# No markup, because what people type must be printed as it is. A pipe or a file has no width.
console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)
error_console = Console(stderr=True, markup=False, highlight=False)


class PrintableFormatter(logging.Formatter):
    """Writes a message in one line that cannot steer the terminal, whoever named what is in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), MAX_LETTERS)


def say(text: str, style: str | None = None) -> None:
    """Print the text in one line, however long, so that paths and commands can be copied."""
    console.print(printable(text, MAX_LETTERS), style=style, soft_wrap=True)


def say_error(text: str) -> None:
    """Print an error in one line to the standard error."""
    error_console.print(printable(text, MAX_LETTERS), style="red", soft_wrap=True)


def print_written(paths: Sequence[Path]) -> None:
    """Print a line for each file that was written."""
    for path in paths:
        say(f"Written: {path}")


def print_tables(tables: "Sequence[TextTable]") -> None:
    """Print the tables to the standard output."""
    from fedwmsam.report.terminal import print_text_tables

    print_text_tables(console, tables)
