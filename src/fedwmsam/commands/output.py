"""Where commands print."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from fedwmsam.report.text_tables import TextTable

# What people type must be printed as it is, so no markup. A pipe or a file has no width of its own.
console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)
error_console = Console(stderr=True, markup=False, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """One line, however long, so that a path or a command in it can be copied."""
    console.print(text, style=style, soft_wrap=True)


def print_written(paths: Sequence[Path]) -> None:
    for path in paths:
        say(f"Written: {path}")


def print_tables(sheets: "Sequence[TextTable]") -> None:
    from fedwmsam.report.terminal import print_text_tables

    print_text_tables(console, sheets)
