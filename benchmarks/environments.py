"""A virtual environment for each other library, made once.

What these libraries need must not meet what this project needs.
"""

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from contenders.protocol import Failed
from measuring import log_progress

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name(".environments")
REQUIREMENTS = {"pfl": "pfl", "flower": "flwr[simulation]>=1.41,<1.43"}
"""Names of environments → what pip installs in them besides PyTorch."""
PACKAGES = {"pfl": ["pfl"], "flower": ["flwr", "ray"]}
"""Names of environments → the packages whose versions are reported."""
VARIABLES = {
    "FLWR_HOME": str(FOLDER / "flower-home"),
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
"""Environment variables of contenders: no library reports that it is used, and Ray's workers have
the priority of all others."""


@contextlib.contextmanager
def exclusive_lock() -> Iterator[None]:
    """Exit if another benchmark is running: the two would measure each other."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("Another benchmark is running here; wait for it to end.")
        yield


def python_of(environment: str) -> Path:
    """Return the interpreter of an environment, which is made first if it does not exist.

    Raise Failed if it cannot be made.
    """
    folder = FOLDER / environment
    python = folder / "bin" / "python"
    installed = folder / "installed"
    if not installed.exists():
        log_progress(f"installing {environment} into {folder}, which takes some minutes")
        run_command([sys.executable, "-m", "venv", "--clear", folder])
        # The constraints pin torch, so that its build for the CPU is installed.
        pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
        run_command([*pip, "torch", REQUIREMENTS[environment]])
        installed.touch()
    return python


def package_versions(python: Path | str, packages: list[str]) -> dict[str, str]:
    """Return the versions of packages that an interpreter can import."""
    code = f"from importlib.metadata import version\nfor name in {packages!r}: print(version(name))"
    return dict(zip(packages, run_command([python, "-c", code]).split(), strict=True))


def run_command(command: list[str | Path]) -> str:
    """Run a command and return its output; raise Failed with its error message if it fails."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["no message"]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise Failed(f"not available: {errors[0] if errors else lines[-1]}")
    return process.stdout
