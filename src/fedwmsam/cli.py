"""The command line: `fedwmsam` and its commands."""

import logging
import sys
from typing import Annotated

import typer

from fedwmsam.commands import analyse, flower
from fedwmsam.commands.compare import compare
from fedwmsam.commands.evaluate import evaluate
from fedwmsam.commands.methods import methods
from fedwmsam.commands.output import console, error_console
from fedwmsam.commands.partition import partition
from fedwmsam.commands.report import report
from fedwmsam.commands.reproduce import reproduce
from fedwmsam.commands.resume import resume
from fedwmsam.commands.run import run
from fedwmsam.commands.verify import verify
from fedwmsam.errors import InputError
from fedwmsam.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Federated learning on clients whose data differ.\n\n"
    "Start with `fedwmsam run`: no data needed, no network.",
)
for command in (run, resume, compare, reproduce, partition, evaluate, report, methods, verify):
    app.command()(command)
app.add_typer(analyse.app, name="analyse")
app.add_typer(flower.app, name="flower")


def main() -> None:
    """Run the command line; a mistake in the input is one sentence and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app()
    except InputError as error:
        error_console.print(f"Error: {error}", style="red", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # in `fedwmsam … | head` the reader closes the pipe early
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        # The disk is full, or a file cannot be read; what was saved before stays intact.
        path = f" ({error.filename})" if error.filename else ""
        error_console.print(
            f"Error: {error.strerror or error}{path}; "
            "once that is mended, `fedwmsam resume` goes on.",
            style="red",
        )
        sys.exit(2)


def print_version(show: bool) -> None:
    """Print the version and end the command, if the flag is set."""
    if show:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Declare the options that are given before the name of a command."""
