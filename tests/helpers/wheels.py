"""The wheel that a release would be, and environments it is installed into."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")


def build_wheel(folder: Path) -> Path:
    """From a copy of the sources: a `build` folder left in the repository could bring old files into the wheel."""
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(
                path,
                folder / "sources" / name,
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
            )
        else:
            shutil.copy(path, folder / "sources" / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    call([*pip, "--wheel-dir", folder / "dist", folder / "sources"], folder)
    (wheel,) = (folder / "dist").glob("fedwmsam-*.whl")
    return wheel


def borrowing_environment(folder: Path, wheel: Path) -> Path:
    """A new environment with the wheel, which finds everything else (PyTorch …) in the one that runs this."""
    call([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    python = folder / "bin" / "python"
    # A line with a path only: that folder's own .pth files, which may lead to the sources, are not read.
    own = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    call(
        [sys.executable, "-m", "pip", "--quiet", "--python", python, "install", "--no-deps", wheel],
        folder.parent,
    )
    return python


def call(command: list[str | Path], folder: Path) -> str:
    """Its output; nothing of this repository is on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout
