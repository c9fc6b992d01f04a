"""The commands of `fedwmsam` put together, and what becomes of their errors."""

import contextlib
import logging
import os
import platform
import sys
from importlib import metadata
from typing import Annotated

import typer

from fedwmsam.commands import analyse, flower
from fedwmsam.commands.compare import compare
from fedwmsam.commands.evaluate import evaluate
from fedwmsam.commands.methods import methods
from fedwmsam.commands.options import SuggestingCommand, SuggestingGroup
from fedwmsam.commands.output import PrintableFormatter, console, say_error
from fedwmsam.commands.partition import partition
from fedwmsam.commands.report import report
from fedwmsam.commands.reproduce import reproduce
from fedwmsam.commands.resume import resume
from fedwmsam.commands.run import run
from fedwmsam.commands.verify import verify
from fedwmsam.commands.work import work
from fedwmsam.errors import InputError
from fedwmsam.termination import INTERRUPTED
from fedwmsam.version import __version__

app = typer.Typer(
    cls=SuggestingGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Federated learning on clients whose data differ.\n\n"
    "Start with `fedwmsam run`: no data needed, no network.",
)
COMMANDS = (
    run,
    resume,
    compare,
    work,
    reproduce,
    partition,
    evaluate,
    report,
    methods,
    verify,
)
for command in COMMANDS:
    app.command(cls=SuggestingCommand)(command)
app.add_typer(analyse.app, name="analyse")
app.add_typer(flower.app, name="flower")


def run_app() -> int:
    """Run the command that the program was called with, and return the exit code."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        code = exit_code_of_app()
        sys.stdout.flush()
        return code
    except InputError as error:
        say_error(f"Error: {error}")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # in `fedwmsam … | head` the reader closes the pipe early
        discard_output()
        return 0
    except OSError as error:
        # The disk is full, or a file cannot be read; what was saved before stays intact.
        path = f" ({error.filename})" if error.filename else ""
        discard_output()
        say_error(
            f"Error: {error.strerror or error}{path}; "
            "once that is mended, `fedwmsam resume` goes on."
        )
        return 2


def exit_code_of_app() -> int:
    """Return the code with which the command ends, which Typer raises."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def discard_output() -> None:
    """Let the rest of the standard output, which cannot be written, go nowhere."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def print_version(show: bool) -> None:
    """Print versions, as a bug report needs them, and end the command, if the flag is set."""
    if show:
        console.print(f"fedwmsam {__version__}")
        console.print(f"Python {platform.python_version()}, {platform.system()}")
        for name, package in (("PyTorch", "torch"), ("Flower", "flwr")):
            console.print(f"{name} {installed_version(package)}")
        raise typer.Exit


def installed_version(package: str) -> str:
    """Return the version of a package, which is not imported: that would take seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "is not installed"


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show versions."),
    ] = False,
) -> None:
    """Declare the options that are given before the name of a command."""
