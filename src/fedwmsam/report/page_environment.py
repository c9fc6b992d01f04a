"""Versions and machine, for whoever wants the same numbers again."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedwmsam.version import __version__

PACKAGES = ("torch", "numpy", "scikit-learn")


def environment() -> dict[str, str]:
    versions = {name: installed(name) for name in PACKAGES}
    return {
        "fedwmsam": __version__,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **versions,
        "system": platform.platform(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
    }


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """Its name where the system tells it (Linux), else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
