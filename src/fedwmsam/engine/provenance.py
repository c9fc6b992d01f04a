"""What made a run: versions, machine, command line and times, as provenance.json holds them.

A run may be begun by one version and resumed by another, or on another machine. So the file holds a
list of sessions: each is written when a process begins to work on the run, and completed with its
end. None of it is read by the run itself, whose results do not depend on it; only the digest of
config.toml that each session notes is compared when the run goes on.
"""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import torch

from fedwmsam.engine.records import Record, read_json
from fedwmsam.errors import InputError
from fedwmsam.machine import cpu_name
from fedwmsam.version import __version__

PROVENANCE = "provenance.json"
MAX_SESSIONS = 1000
"""Sessions that the file holds; of a run that is resumed more often, the newest."""
MAX_WORDS = 200
"""Words of a command line that are kept, and MAX_LETTERS of each."""
MAX_LETTERS = 1000
GIT_TIMEOUT = 5
"""Seconds after which it stays unknown which commit the library is."""


def describe_session(
    command: Sequence[str],
    device: torch.device,
    packages: Mapping[str, str],
    record_host: bool,
) -> Record:
    """Return the entry of a session that begins now.

    `packages` are the versions of further packages that the run uses, such as Flower. Whoever
    begins it adds which workers it has.
    """
    session: Record = {
        "begin": current_time(),
        "end": None,
        "command": [word[:MAX_LETTERS] for word in command[:MAX_WORDS]],
        "versions": {**find_versions(), **packages},
        "processor": cpu_name(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }
    return session | ({"host": platform.node()} if record_host else {})


def read_sessions(folder: Path) -> list[Record]:
    """Return the sessions of a run, none if it has no provenance.json.

    Raise InputError if the file is damaged. The entries may be a stranger's: they are objects, and
    nothing more is known of them.
    """
    path = folder / PROVENANCE
    if not path.exists() and not path.is_symlink():
        return []
    sessions = read_json(path).get("sessions")
    if not isinstance(sessions, list) or not all(isinstance(entry, dict) for entry in sessions):
        raise InputError(f"{path} is damaged: it holds no list of sessions; put it back.")
    return sessions[-MAX_SESSIONS:]


def current_time() -> str:
    """Return the time now in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# Commands


def command_line() -> list[str]:
    """Return the words with which this program was started, its own without its folder."""
    program = Path(sys.argv[0]).name
    return ["fedwmsam" if program == "__main__.py" else program, *sys.argv[1:]]


def script_name() -> str:
    """Return the name of the program that was started: of a script, and nothing of its words."""
    return Path(sys.argv[0]).name or "interactive"


# Versions


def find_versions() -> dict[str, str]:
    """Return the versions of the library and of all that its numbers depend on."""
    commit = library_commit()
    return {
        "fedwmsam": f"{__version__} ({commit})" if commit else __version__,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "PyTorch": str(torch.__version__),
        "numpy": np.__version__,
        "BLAS": find_blas(),
    }


@cache
def library_commit() -> str | None:
    """Return the commit that the library is, with "-dirty" if its files were changed since.

    Return None unless it lies in a checkout of its own, or if git does not answer.
    """
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=checkout,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},  # others may be at work in it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=GIT_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


@cache
def find_blas() -> str:
    """Return the library that multiplies matrices, and the instructions that PyTorch chose."""
    build = torch.__config__.show()
    name = re.search(r"BLAS_INFO=(\w+)", build)
    version = re.search(r"Math Kernel Library Version ([\w.]+)", build)
    words = [match[1] for match in (name, version) if match]
    return ", ".join([" ".join(words) or "unknown", torch.backends.cpu.get_cpu_capability()])


def package_version(package: str) -> str:
    """Return the version of an installed package, or that there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def device_name(device: torch.device) -> str:
    """Return the device of a run, with the name of a GPU."""
    return (
        f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    )
