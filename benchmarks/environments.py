"""A virtual environment for each peer, made once: what they need must not meet what this project needs."""

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from contenders.protocol import Failed
from measuring import progress

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name(".environments")
PEERS = {"pfl": "pfl", "flower": "flwr[simulation]>=1.41,<1.43"}
PACKAGES = {"pfl": ["pfl"], "flower": ["flwr", "ray"]}
"""Whose versions are worth knowing."""
VARIABLES = {
    "FLWR_HOME": str(FOLDER / "flower-home"),
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
"""Peers tell nobody that they run, and Ray's workers do not step back behind whatever else this machine does."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Two benchmarks at once would measure each other."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("Another benchmark is running here; wait for it to end.")
        yield


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made first if it is not there."""
    folder = FOLDER / peer
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists():
        progress(f"installing {peer} into {folder}, which takes some minutes")
        command([sys.executable, "-m", "venv", "--clear", folder])
        constraints = [
            "--constraint",
            ROOT / "constraints.txt",
        ]  # pins torch, so that the CPU build is taken
        command([python, "-m", "pip", "install", "--quiet", *constraints, "torch", PEERS[peer]])
        installed.touch()
    return python


def versions(python: Path | str, packages: list[str]) -> dict[str, str]:
    code = f"from importlib.metadata import version\nfor name in {packages!r}: print(version(name))"
    return dict(zip(packages, command([python, "-c", code]).split(), strict=True))


def command(line: list[str | Path]) -> str:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise Failed(
            f"not available: {next((line for line in said if line.startswith('ERROR')), said[-1])}"
        )
    return done.stdout
