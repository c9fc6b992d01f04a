"""What the machine has: how much memory this process may use, and its processor."""

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
