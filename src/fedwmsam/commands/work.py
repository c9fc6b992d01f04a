"""`fedwmsam work`: a worker that takes runs of a comparison from its folder."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedwmsam.commands.execution import print_hint_on_interrupt
from fedwmsam.commands.options import (
    QuietOption,
    RepeatedMethodOption,
    RepeatedModelOption,
    TrustOption,
)
from fedwmsam.commands.output import say, say_error
from fedwmsam.termination import interrupt, interrupt_main_thread


def work(
    folder: Annotated[Path, typer.Argument(help="The comparison's folder.")],
    model: RepeatedModelOption = None,
    method: RepeatedMethodOption = None,
    trust: TrustOption = False,
    attached: Annotated[bool, typer.Option("--attached", hidden=True)] = False,
    requeue: Annotated[bool, typer.Option("--requeue", hidden=True)] = False,
    quiet: QuietOption = False,
) -> None:
    """Take runs of a comparison from its folder and carry them out, until none is left.

    `fedwmsam compare` starts such workers itself. Type this where the folder is seen from another
    machine: any number of workers may share it, and each run is carried out by one.

    Examples:

    - `fedwmsam work comparison`
    - `fedwmsam work /shared/table1 --trust`
    - `srun --ntasks 4 fedwmsam work /shared/table1`
    """
    out_of_time = threading.Event()

    def save_and_requeue(*_: object) -> None:
        out_of_time.set()
        interrupt()

    if requeue and hasattr(signal, "SIGUSR1"):  # Slurm sends it some time before it ends the job
        signal.signal(signal.SIGUSR1, save_and_requeue)
    if attached:
        threading.Thread(target=end_with_input, daemon=True).start()
    from fedwmsam.comparison import slurm
    from fedwmsam.comparison.queue_folder import QueueFolder

    queue = QueueFolder(folder)
    queue.require()  # before PyTorch is imported, which takes seconds
    from fedwmsam.comparison.worker import RunWorker
    from fedwmsam.experiment.trust import Trust

    worker = RunWorker(queue, Trust(model, trust, method), say=ignore if quiet else say)
    try:
        with print_hint_on_interrupt("Stopped; the last completed round is saved, others go on."):
            worker.work()
    except KeyboardInterrupt:
        reason = slurm.requeue_this_job() if out_of_time.is_set() else None
        if reason:
            say_error(f"This job could not be put back into Slurm's queue: {reason}")
        raise


def ignore(_: str) -> None:
    """Leave unsaid what a worker would say."""


def end_with_input() -> None:
    """End this process as Ctrl-C does when its input ends: whoever started it has gone."""
    while os.read(sys.stdin.fileno(), 1024):
        continue
    interrupt_main_thread()
