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
    help="Federated learning on clients whose data differ.\n\nStart with `fedwmsam run`: no data needed, no network.",
)
for command in (run, resume, compare, reproduce, partition, evaluate, report, methods, verify):
    app.command()(command)
app.add_typer(analyse.app, name="analyse")
app.add_typer(flower.app, name="flower")


def main() -> None:
    """Entry point: a mistake in the input is one sentence and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app()
    except InputError as error:
        error_console.print(f"Error: {error}", style="red", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `fedwmsam … | head`: the reader has had enough
        sys.stderr.close()
        sys.exit(0)
    except (
        OSError
    ) as error:  # a full disk, a file that cannot be read: what was saved before stays whole
        place = f" ({error.filename})" if error.filename else ""
        error_console.print(
            f"Error: {error.strerror or error}{place}; once that is mended, `fedwmsam resume` goes on.",
            style="red",
        )
        sys.exit(2)


def version(show: bool) -> None:
    if show:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...
