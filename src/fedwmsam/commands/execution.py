"""What the commands that train share: workers that start early, a live display, and an end that can be resumed."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedwmsam.commands import output
from fedwmsam.termination import install_sigterm_handler

if TYPE_CHECKING:
    from fedwmsam.engine.run_folder import RunFolder
    from fedwmsam.experiment.experiment import Experiment
    from fedwmsam.trackers import Tracker


def start_workers(wanted: object) -> None:
    """Before PyTorch is imported here, so that it is imported everywhere at once; a wrong number is refused later."""
    from fedwmsam.engine.worker_process import cores, start_early

    count = (
        cores()
        if wanted in ("auto", 0, "0")
        else int(str(wanted))
        if str(wanted).isdecimal()
        else 1
    )
    if 1 < count <= 64:
        start_early(count)


@contextmanager
def print_hint_on_interrupt(advice: str) -> Iterator[None]:
    """Ctrl-C or SIGTERM ends what is done here, and the advice says how to go on."""
    install_sigterm_handler()
    try:
        yield
    except KeyboardInterrupt:
        output.error_console.print(advice, soft_wrap=True)
        raise


def run_with_display(
    experiment: "Experiment", folder: "RunFolder", trackers: "Sequence[Tracker]", quiet: bool
) -> None:
    """Run with a live display; what is interrupted has saved its last completed round."""
    from fedwmsam.report.terminal import RunDisplay, print_result

    with print_hint_on_interrupt(
        f"Stopped; the last completed round is saved. Go on with: fedwmsam resume {folder.path}"
    ):
        display = RunDisplay(output.console, experiment, folder.path, quiet)
        with display:
            result = experiment.run(folder, [display.update, *trackers])
    if not quiet:
        print_result(output.console, result)
        for tracker in trackers:
            output.say(tracker.advice())
    if result.status.startswith("diverged"):
        sys.exit(1)
