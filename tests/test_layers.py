"""What imports what, as docs/architecture.md says: every package uses only those before it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.markdown_pages import ROOT

SOURCE = ROOT / "src" / "fedwmsam"
ORDER = (
    ("errors", "files", "rng", "statistics", "termination", "version"),
    ("toml",),
    ("settings",),
    ("methods",),
    ("training",),
    ("models", "data"),
    ("engine",),
    ("recording", "trackers"),
    ("experiment",),
    ("comparison", "flower"),
    ("report",),
    ("analysis",),
    ("page",),
    ("paper",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""Packages and single modules, the lowest first; those in one line do not use each other."""
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
PUBLIC = "__init__"
"""The library's front door knows where everything is, and nothing in the library goes through it."""


def parts() -> dict[str, list[Path]]:
    """The files of every package, and of every module that is in none."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        first = path.relative_to(SOURCE).parts[0]
        found.setdefault(first.removesuffix(".py"), []).append(path)
    return found


def test_every_part_has_its_place():
    assert set(parts()) - {PUBLIC} == set(LEVEL)


@pytest.mark.parametrize("part", sorted(set(LEVEL)))
def test_imports_point_one_way(part: str):
    wrong = [
        f"{path.relative_to(SOURCE)} imports {module}"
        for path in parts()[part]
        for module in imported(path)
        if module.split(".")[0] != part and LEVEL[module.split(".")[0]] >= LEVEL[part]
    ]
    assert wrong == []


def test_a_mistake_in_a_setting_is_found_without_pytorch():
    """What is imported before anybody knows that the input is right must not take seconds."""
    program = """
import sys
from fedwmsam.settings.config import resolve
from fedwmsam.errors import InputError
import fedwmsam.cli
for wrong in ({"lr": -1.0}, {"corrupt": "nan:3"}, {"method": "fedagv"}, {"preset": "papre"}, {"track": "mlflow"}):
    try:
        resolve(wrong)
    except InputError:
        continue
    sys.exit(f"{wrong} was taken")
sys.exit("PyTorch was imported" if "torch" in sys.modules else 0)
"""
    outcome = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr


def imported(path: Path) -> Iterator[str]:
    """This library's modules that a file imports, anywhere in it and also for type checkers alone."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fedwmsam":
            yield from (alias.name for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedwmsam."):
            yield (node.module or "").removeprefix("fedwmsam.")
        elif isinstance(node, ast.Import):
            yield from (
                a.name.removeprefix("fedwmsam.")
                for a in node.names
                if a.name.startswith("fedwmsam")
            )
