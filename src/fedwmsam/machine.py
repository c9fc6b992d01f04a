"""What the machine has: the memory that this process may use, its processor, other processes."""

import os
import platform
from functools import cache
from pathlib import Path

CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files in which Linux says how many bytes a container may use, if it has such a limit."""


@cache
def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of the container that limits it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CONTAINER_LIMITS:
        try:
            memory = min(memory, int(Path(path).read_text()))
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
    return memory


@cache
def cpu_name() -> str:
    """Return the processor's name where the system tells it (Linux), else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@cache
def process_space() -> str:
    """Return what identifies this machine and the numbers that its processes have.

    Linux names each start of a machine and each space of process numbers, so that a container and
    its host are told apart; elsewhere it is the name of the machine.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def process_start(pid: int) -> str | None:
    """Return when a process began, in the system's own unit, or None if there is no such process.

    With it a process is told from a later one that has got the same number. Where the system does
    not say it, it is empty.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else start_elsewhere(pid)
    except OSError:  # it has just ended
        return None
    state, *numbers = stat.rpartition(")")[2].split()
    return None if state in "ZX" else numbers[18]


def start_elsewhere(pid: int) -> str | None:
    """Return an empty text if there is such a process, where the system lists none in files."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # it is somebody else's
        return ""
    return ""
