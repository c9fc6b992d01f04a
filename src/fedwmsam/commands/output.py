"""The consoles that commands print to, and functions that print lines and tables."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from fedwmsam.report.text_tables import TextTable

# No markup, because what people type must be printed as it is. A pipe or a file has no width.
console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)
error_console = Console(stderr=True, markup=False, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """Print the text in one line, however long, so that paths and commands can be copied."""
    console.print(text, style=style, soft_wrap=True)


def print_written(paths: Sequence[Path]) -> None:
    """Print a line for each file that was written."""
    for path in paths:
        say(f"Written: {path}")


def print_tables(tables: "Sequence[TextTable]") -> None:
    """Print the tables to the standard output."""
    from fedwmsam.report.terminal import print_text_tables

    print_text_tables(console, tables)
