"""What the machine has: the memory that this process may use, its processor, other processes."""

import ctypes
import importlib
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files in which Linux says how many bytes a container may use, if it has such a limit."""
LISTS_PROCESSES = hasattr(os, "getpgid")
"""Whether the system tells of other processes; on Windows `os.kill` can only end them."""


@cache
def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of the container that limits it."""
    if not hasattr(os, "sysconf"):
        return memory_of_windows()
    memory: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CONTAINER_LIMITS:
        try:
            memory = min(memory, int(Path(path).read_text("ascii")))
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
    return memory


def memory_of_windows() -> int:
    """Return the bytes of memory of a machine with Windows."""
    # A MEMORYSTATUSEX: its own size and the load in 4 bytes each, the memory, 6 other numbers.
    status = (ctypes.c_uint64 * 8)(64)
    windows: Any = ctypes
    windows.windll.kernel32.GlobalMemoryStatusEx(status)
    return int(status[1])


def peak_memory() -> int | None:
    """Return the most bytes that this process has held, or None on Windows, which is not asked."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return None
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@cache
def cpu_name() -> str:
    """Return the processor's name where the system tells it (Linux), else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
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
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def process_start(pid: int) -> str | None:
    """Return when a process began, in the system's own unit, or None if there is no such process.

    With it a process is told from a later one that has got the same number. Where the system does
    not say it, it is empty.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else start_elsewhere(pid)
    except OSError:  # it has just ended
        return None
    state, *numbers = stat.rpartition(")")[2].split()
    return None if state in "ZX" else numbers[18]


def start_elsewhere(pid: int) -> str | None:
    """Return an empty text if there is such a process, where the system lists none in files.

    It is also empty where nothing is known of processes.
    """
    if not LISTS_PROCESSES:
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # it is somebody else's
        return ""
    return ""
