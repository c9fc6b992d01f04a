"""Slurm, as far as a comparison needs it: `sbatch`, `squeue`, `scancel` and `scontrol`.

Nothing is asked of Slurm's accounting (`sacct`), which many clusters do not have: what has become
of a run is in the comparison's folder, and `squeue` says which jobs are still there. Jobs are found
by their name, which is made from the folder, so that no list of them has to be kept.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwmsam.errors import InputError, printable

TIMEOUT = 60
"""Seconds after which a command of Slurm counts as not answered."""
ASK_INTERVAL = 5.0
"""Seconds at least between two questions to Slurm."""
OUR_OPTIONS = ("array", "error", "job-name", "open-mode", "output", "parsable", "requeue", "wrap")
"""Options of `sbatch` that are given by `submit` and cannot be chosen."""
SIGNAL_SECONDS = 120
"""Seconds before the end of its time at which a job is told to save; less if it has little."""
OUT_OF_TIME = "USR1"
"""The signal with which Slurm tells a worker that its time is nearly over."""


@dataclass(frozen=True)
class SlurmJob:
    """A job in Slurm's queue, or one task of an array of jobs."""

    id: str
    """Such as 123, or 123_4."""
    state: str
    """Such as RUNNING, PENDING, COMPLETING."""
    restarts: int
    """How often Slurm has put it back into the queue."""
    reason: str
    """Why it waits."""


# Asking


def has_slurm(command: str = "squeue") -> bool:
    """Return whether this machine has a command of Slurm."""
    return shutil.which(command) is not None


def require_slurm() -> None:
    """Raise InputError unless jobs can be submitted from this machine."""
    if not has_slurm("sbatch"):
        raise InputError(
            "--on slurm needs the command sbatch, which this machine does not have: call it on a "
            "login node of the cluster, or leave --on slurm out."
        )


def ask_slurm(*words: str, input: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Return the outcome of a command of Slurm; if it does not answer in time its code is 1."""
    try:
        return subprocess.run(
            words, input=input, capture_output=True, text=True, timeout=TIMEOUT, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def list_jobs(*, name: str | None = None, ids: Collection[str] = ()) -> list[SlurmJob] | None:
    """Return the jobs in the queue with this name or with these numbers; None without an answer.

    Jobs that have ended are not listed. Slurm does not know a number that is long gone: if all are,
    the answer is an empty list.
    """
    bases = sorted({id.partition("_")[0] for id in ids})
    chosen = f"--name={name}" if name else f"--jobs={','.join(bases)}"
    columns = "JobArrayID:|,State:|,RestartCnt:|,Reason:|"
    answer = ask_slurm("squeue", "--noheader", "--array", chosen, f"--Format={columns}")
    if answer.returncode:
        return [] if "Invalid job id" in answer.stderr else None
    jobs = []
    for line in answer.stdout.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) >= 4 and words[2].isdecimal():
            jobs.append(SlurmJob(words[0], words[1], int(words[2]), words[3]))
    return jobs


def cluster_name() -> str:
    """Return the name of the cluster that this machine belongs to; empty if Slurm does not say."""
    answer = ask_slurm("scontrol", "show", "config")
    found = re.search(r"^ClusterName\s*=\s*(\S+)", answer.stdout, re.MULTILINE)
    return found[1] if found else ""


def describe_jobs(jobs: Sequence[SlurmJob]) -> str:
    """Return how many jobs are in which state, and why they wait."""
    kinds: dict[str, int] = {}
    for job in jobs:
        reason = f" ({job.reason})" if job.state == "PENDING" else ""
        kind = f"{job.state.lower()}{reason}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


# Submitting


def job_name(out: Path) -> str:
    """Return the name of the jobs that work on a comparison: other folders have others."""
    digest = hashlib.blake2b(str(out.resolve()).encode(), digest_size=4).hexdigest()
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", out.resolve().name)
    return f"fedwmsam-{words[:40]}-{digest}"


def parse_slurm_options(texts: Sequence[str]) -> dict[str, str | None]:
    """Return the options of `sbatch` in texts such as "partition=gpu,time=4:00:00".

    What follows a comma belongs to the value before it unless it has an equals sign of its own, as
    in "exclude=a1,a2". An option without a value, such as exclusive, is a text of its own. Raise
    InputError for a text of another form, and for an option that is given elsewhere.
    """
    options: dict[str, str | None] = {}
    for text in texts:
        parts: list[str] = []
        for part in text.split(","):
            if parts and "=" not in part:
                parts[-1] += f",{part}"
            else:
                parts.append(part)
        for part in parts:
            key, equals, value = part.strip().partition("=")
            key = key.strip().removeprefix("--")
            if not re.fullmatch(r"[a-z][a-z-]+", key) or (equals and not value.strip()):
                raise InputError(
                    "--slurm takes long options of sbatch, as in partition=gpu,time=4:00:00, "
                    f"not {printable(part, 100)!r}."
                )
            if key in OUR_OPTIONS:
                raise InputError(f"{key} is set by fedwmsam itself; leave it out of --slurm.")
            options[key] = value.strip() if equals else None
    return options


def parse_time(text: str) -> int | None:
    """Return the seconds in a limit of time as Slurm writes it; None if it is no such text.

    The forms are minutes, minutes:seconds, hours:minutes:seconds, and days-hours with minutes and
    seconds or without.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        return None
    days, *numbers = [None if part is None else int(part) for part in found.groups()]
    given = [number for number in numbers if number is not None]
    begins_with_hours = days is not None or len(given) == 3
    units = (3600, 60, 1) if begins_with_hours else (60, 1)
    seconds = sum(number * unit for number, unit in zip(given, units, strict=False))
    return seconds + 86400 * (days or 0)


def sbatch_words(
    out: Path, log_folder: Path, workers: int, options: Mapping[str, str | None]
) -> list[str]:
    """Return the command that submits an array of workers, whose script is its input.

    A job that is preempted, or whose node fails, goes back into the queue. Before its time is over
    a job gets a signal, and puts itself back when it has saved.
    """
    limit = parse_time(options.get("time") or "")
    seconds = SIGNAL_SECONDS if limit is None else min(SIGNAL_SECONDS, limit // 4)
    words = {
        "parsable": None,
        "job-name": job_name(out),
        "array": f"0-{workers - 1}",
        "requeue": None,
        "open-mode": "append",
        "output": str(log_folder / "%A_%a.log"),
        "signal": f"B:{OUT_OF_TIME}@{seconds}",
        **options,
    }
    flags = [f"--{key}" if value is None else f"--{key}={value}" for key, value in words.items()]
    return ["sbatch", *flags]


def submit(words: Sequence[str], script: str) -> str:
    """Submit a script and return the job's number; raise InputError with what `sbatch` says."""
    answer = ask_slurm(*words, input=script)
    if answer.returncode:
        lines = [line.removeprefix("sbatch: error: ") for line in answer.stderr.splitlines()]
        reason = "; ".join(line.strip() for line in lines if line.strip()) or "it gave no reason"
        raise InputError(
            f"sbatch refused the jobs: {printable(reason, 400)}. Give its options with --slurm, "
            "as in --slurm partition=gpu,time=4:00:00; sinfo lists the partitions."
        )
    return answer.stdout.strip().partition(";")[0]


# Ending


def cancel(name: str) -> str | None:
    """Cancel the jobs of this name, which save their last rounds; return what went wrong."""
    answer = ask_slurm("scancel", f"--name={name}")
    return answer.stderr.strip() or None if answer.returncode else None


def requeue_this_job() -> str | None:
    """Put the job of this process back into the queue; return what went wrong."""
    answer = ask_slurm("scontrol", "requeue", os.environ.get("SLURM_JOB_ID", ""))
    return answer.stderr.strip() or "scontrol failed" if answer.returncode else None
