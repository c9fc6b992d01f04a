"""A description of the machine that a benchmark was executed on."""

import os
import platform
from pathlib import Path

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def describe() -> dict[str, str | int | bool]:
    """Return the properties of this machine that matter for times.

    A virtual machine shows the topology that it was given: two "cores" may still be two threads of
    a real one.
    """
    cpu_info = Path("/proc/cpuinfo").read_text()
    names = [
        line.partition(":")[2].strip()
        for line in cpu_info.splitlines()
        if line.startswith("model name")
    ]
    cpus = sorted(os.sched_getaffinity(0))
    cores = {Path(SIBLINGS.format(cpu)).read_text() for cpu in cpus}
    return {
        "machine": names[0] if names else platform.machine(),
        "cpus": len(cpus),
        "threads_of_one_core": len(cores) < len(cpus),
        "virtual_machine": " hypervisor" in cpu_info,
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
