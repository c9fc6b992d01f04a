"""The wheel that a release would be, and environments it is installed into."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of the repository."""
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
"""Everything of the repository that the wheel is built from."""


def build_wheel(folder: Path) -> Path:
    """Build the wheel in the folder and return its path.

    It is built from a copy of the sources: a `build` folder left in the repository could bring
    old files into the wheel.
    """
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        copy = folder / "sources" / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy, ignore=leave_out)
        else:
            shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    run_command([*pip, "--wheel-dir", folder / "dist", folder / "sources"], folder)
    (wheel,) = (folder / "dist").glob("fedwmsam-*.whl")
    return wheel


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
