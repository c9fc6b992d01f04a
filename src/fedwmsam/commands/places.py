"""Where a comparison's runs are carried out, how they stand there, and calling them off."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedwmsam.commands.options import parse_jobs
from fedwmsam.commands.output import say
from fedwmsam.errors import InputError, unknown_name_message

if TYPE_CHECKING:
    from fedwmsam.comparison.comparison import RunPlace
    from fedwmsam.comparison.queue_folder import QueueFolder

PLACES = ("local", "slurm")
OnOption = Annotated[
    str, typer.Option(metavar="local|slurm", help="Processes here, or jobs of Slurm.")
]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE,…", help="Long options of sbatch; repeatable."),
]


def parse_place(on: str, slurm_texts: list[str], jobs: str) -> "RunPlace":
    """Return where the runs are carried out, from what the command line says.

    Raise InputError for an unknown place, options that belong to another one, and where Slurm is
    not to be had.
    """
    from fedwmsam.comparison import slurm
    from fedwmsam.comparison.comparison import RunPlace

    if on not in PLACES:
        raise InputError(unknown_name_message("place to run on", on, PLACES))
    if on == "local":
        if slurm_texts:
            raise InputError(f"--slurm {slurm_texts[0]} goes with --on slurm; add that.")
        return RunPlace(parse_jobs(jobs))
    options = slurm.parse_slurm_options(slurm_texts)
    slurm.require_slurm()
    return RunPlace(parse_jobs(jobs), options)


def queues_of(out: Path) -> "list[QueueFolder]":
    """Return the queues of a comparison, that of its tuning runs first.

    Raise InputError if it has none.
    """
    from fedwmsam.comparison.queue_folder import QueueFolder
    from fedwmsam.comparison.tuning import TUNING_FOLDER

    queues = [QueueFolder(out / TUNING_FOLDER), QueueFolder(out)]
    if not any(queue.exists() for queue in queues):
        queues[1].require()
    return [queue for queue in queues if queue.exists()]


def print_status(out: Path) -> None:
    """Print how the runs of a comparison stand, who carries them out, and its jobs in Slurm."""
    from fedwmsam.comparison import slurm
    from fedwmsam.comparison.status import describe_queue

    for queue in queues_of(out):
        for line in describe_queue(queue):
            say(line)
        if slurm.has_slurm():
            jobs = slurm.list_jobs(name=slurm.job_name(queue.out))
            if jobs is None and not any(queue.log_folder.glob("*")):
                continue  # no job has printed anything: Slurm has nothing to do with it
            words = "Slurm does not answer" if jobs is None else slurm.describe_jobs(jobs) or "none"
            say(f"  jobs in Slurm's queue: {words}")


def cancel_comparison(out: Path) -> None:
    """Call a comparison off: its workers save their last rounds and end, wherever they are."""
    from fedwmsam.comparison import slurm

    queues = list(queues_of(out))
    for queue in queues:
        queue.cancel()
    for queue in queues:
        if not slurm.has_slurm("scancel"):
            continue
        jobs = slurm.list_jobs(name=slurm.job_name(queue.out))
        if jobs is None and not any(queue.log_folder.glob("*")):
            continue  # no job has printed anything: Slurm has nothing to do with it
        reason = slurm.cancel(slurm.job_name(queue.out)) if jobs else None
        if jobs is None or reason:
            raise InputError(
                f"Slurm did not cancel the jobs ({reason or 'it does not answer'}); their workers "
                "end by themselves within a minute."
            )
        if jobs:
            say(f"Cancelled in Slurm: {slurm.describe_jobs(jobs)}")
    say(
        f"The comparison in {out} is called off; its workers save their last rounds and end. "
        "The same command without --cancel goes on."
    )
