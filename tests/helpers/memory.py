"""The memory that reading a data set takes, measured in processes of its own.

Run as a program, this file is the process that imports the library once and then forks for each
data set, so that every measurement begins with the same memory.
"""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ADDRESS_SPACE_BYTES = 4 << 30
"""The address space of a measured process: a bomb must not take the machine's memory."""
TIMEOUT_SECONDS = 120
"""Seconds of a processor after which a measured process is killed."""


@dataclass(frozen=True)
class Reading:
    """A data set to read, as `load_dataset` takes it."""

    name_or_path: str
    data_dir: str | None = None


@dataclass(frozen=True)
class Measurement:
    """What became of reading a data set."""

    outcome: str
    """Nothing if it was read, the sentence if it was refused, else the type of the exception."""
    was_refused: bool
    added_bytes: int
    """How far the peak of the resident memory rose above what the process had before."""
    seconds: float


def measure_readings(readings: list[Reading], cache: Path) -> list[Measurement]:
    """Return what reading each data set took; `cache` stands in for the user's."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([[reading.name_or_path, reading.data_dir] for reading in readings]),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return [Measurement(**json.loads(line)) for line in finished.stdout.splitlines()]


def peak_bytes() -> int:
    """Return the peak of this process's resident memory; that of a fork begins anew."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name_or_path: str, data_dir: str | None) -> dict[str, Any]:
    """Read a data set in this process and return the fields of its `Measurement`."""
    from fedwmsam.data import load_dataset
    from fedwmsam.errors import InputError

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (TIMEOUT_SECONDS, TIMEOUT_SECONDS))
    before = peak_bytes()
    begin = time.monotonic()
    outcome = ""
    was_refused = False
    try:
        load_dataset(name_or_path, data_dir)
    except InputError as error:
        outcome = str(error)
        was_refused = True
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    return {
        "outcome": outcome,
        "was_refused": was_refused,
        "added_bytes": peak_bytes() - before,
        "seconds": time.monotonic() - begin,
    }


def main() -> None:
    """Measure what standard input names, each in a fork, and print a line for each."""
    import fedwmsam.data.image_folder  # noqa: F401  # imported before anything is measured

    for arguments in json.load(sys.stdin):
        child = os.fork()
        if child == 0:
            print(json.dumps(measure(*arguments)), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            died = Measurement(f"killed: {status}", False, ADDRESS_SPACE_BYTES, TIMEOUT_SECONDS)
            print(json.dumps(asdict(died)), flush=True)


if __name__ == "__main__":
    main()
