"""Imports point one way, as docs/project/architecture.md says: to lower packages."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.markdown_pages import ROOT

SOURCE = ROOT / "src" / "fedwmsam"
ORDER = (
    ("errors", "machine", "rng", "statistics", "termination", "version"),
    ("files", "user_code"),
    ("toml",),
    ("settings",),
    ("methods",),
    ("training",),
    ("models", "data"),
    ("engine",),
    ("recording", "trackers"),
    ("experiment",),
    ("comparison", "flower", "testing"),
    ("report",),
    ("analysis",),
    ("page",),
    ("paper",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""Packages and single modules, the lowest first; those in one line do not use each other."""
LEVEL = {}
for level, names in enumerate(ORDER):
    LEVEL |= dict.fromkeys(names, level)
PUBLIC = "__init__"
"""The public interface imports from every package, and nothing in the library imports it."""


def find_packages() -> dict[str, list[Path]]:
    """Return the files of every package, and of every module that is in none, by its name."""
    files: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        first = path.relative_to(SOURCE).parts[0]
        files.setdefault(first.removesuffix(".py"), []).append(path)
    return files


def test_every_package_is_in_the_order():
    assert set(find_packages()) - {PUBLIC} == set(LEVEL)


@pytest.mark.parametrize("package", sorted(LEVEL))
def test_a_package_imports_only_lower_ones(package: str):
    wrong = []
    for path in find_packages()[package]:
        for module in imported_modules(path):
            other = module.split(".")[0]
            if other != package and LEVEL[other] >= LEVEL[package]:
                wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert wrong == []


def test_a_mistake_in_a_setting_is_found_without_pytorch():
    """Imports that come before the settings are checked must not take seconds."""
    program = """
import sys
from fedwmsam.settings.config import resolve_config
from fedwmsam.errors import InputError
import fedwmsam.cli
MISTAKES = (
    {"lr": -1.0},
    {"corrupt": "nan:3"},
    {"method": "fedagv"},
    {"preset": "papre"},
    {"track": "mlflow"},
)
for wrong in MISTAKES:
    try:
        resolve_config(wrong)
    except InputError:
        continue
    sys.exit(f"{wrong} was taken")
sys.exit("PyTorch was imported" if "torch" in sys.modules else 0)
"""
    outcome = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the library's modules that a file imports anywhere, also those for type checkers."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fedwmsam":
            yield from (alias.name for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedwmsam."):
            yield (node.module or "").removeprefix("fedwmsam.")
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("fedwmsam")]
            yield from (name.removeprefix("fedwmsam.") for name in names)
