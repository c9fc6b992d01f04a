"""Execution of the commands that train.

They share worker processes that start early, a live display, and a hint how to resume when they are
interrupted.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedwmsam.commands import output
from fedwmsam.errors import printable

if TYPE_CHECKING:
    from fedwmsam.engine.run_folder import RunFolder
    from fedwmsam.experiment.experiment import Experiment
    from fedwmsam.trackers import Tracker


def start_workers(requested: object) -> None:
    """Start worker processes if the setting `workers` asks for several.

    This comes before PyTorch is imported here, so that all processes import it at the same time. A
    wrong number starts nothing: it is refused where the settings are checked.
    """
    from fedwmsam.engine.worker_process import cores, start_early

    count = 1
    if requested in ("auto", 0, "0"):
        count = cores()
    elif str(requested).isdecimal():
        count = int(str(requested))
    if 1 < count <= 64:
        start_early(count)


@contextmanager
def print_hint_on_interrupt(hint: str) -> Iterator[None]:
    """Print how to go on when Ctrl-C or SIGTERM ends what is done in this context."""
    try:
        yield
    except KeyboardInterrupt:
        output.error_console.print(printable(hint), soft_wrap=True)
        raise


def run_with_display(
    experiment: "Experiment", folder: "RunFolder", trackers: "Sequence[Tracker]", quiet: bool
) -> None:
    """Run an experiment with a live display and print its result; exit with 1 if it diverged.

    An interrupted run has saved its last completed round.
    """
    from fedwmsam.engine.run_folder import resume_advice
    from fedwmsam.report.terminal import RunDisplay, print_result

    with print_hint_on_interrupt(
        f"Stopped; the last completed round is saved. Go on with: {resume_advice(folder.path)}"
    ):
        display = RunDisplay(output.console, experiment, folder.path, quiet)
        with display:
            result = experiment.run(folder, [display.update, *trackers])
    if not quiet:
        print_result(output.console, result)
        for tracker in trackers:
            output.say(tracker.viewing_hint())
    if result.status.startswith("diverged"):
        sys.exit(1)
