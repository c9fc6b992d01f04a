"""The files that a release would be, and environments they are installed into."""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of the repository."""
SOURCES = (
    "src",
    "MANIFEST.in",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
)
"""Everything of the repository that a release is built from."""
BUILD_SDIST = "from setuptools import build_meta; build_meta.build_sdist('../dist')"


@dataclass(frozen=True)
class Release:
    """The two files of a release."""

    sdist: Path
    """The sources."""
    wheel: Path
    """What is installed, built from these sources."""


def build_release(folder: Path) -> Release:
    """Build a release in the folder: the sdist, and the wheel from what is in it.

    It is built from a copy of the sources: a `build` folder left in the repository could bring
    old files into it.
    """
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    dist = folder / "dist"
    dist.mkdir()
    for name in SOURCES:
        copy = folder / "sources" / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy, ignore=leave_out)
        else:
            shutil.copy(ROOT / name, copy)
    run_command([sys.executable, "-c", BUILD_SDIST], folder / "sources")
    (sdist,) = dist.glob("fedwmsam-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    run_command([*pip, "--wheel-dir", dist, sdist], folder)
    (wheel,) = dist.glob("fedwmsam-*.whl")
    return Release(sdist, wheel)


def create_environment(folder: Path, wheel: Path) -> Path:
    """Create an environment with the wheel and return its Python.

    It finds everything else, such as PyTorch, in the environment that runs this.
    """
    run_command([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    python = folder / "bin" / "python"
    # The line holds a path alone, so that the .pth files of that folder, which may lead to the
    # sources of this repository, are not read.
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", python]
    run_command([*pip, "install", "--no-deps", wheel], folder.parent)
    return python


def run_command(command: list[str | Path], folder: Path) -> str:
    """Run a command in the folder, without this repository on its path, and return its output.

    The test fails if the command does.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    process = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, f"{' '.join(words)}\n{process.stdout}{process.stderr}"
    return process.stdout
