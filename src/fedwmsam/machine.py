"""What the machine has: how much memory this process may use."""

import os
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
