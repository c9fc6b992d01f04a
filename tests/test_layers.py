"""What imports what, as docs/architecture.md says: the equations know nothing of engines, files or commands."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_pages import ROOT

SOURCE = ROOT / "src" / "fedwmsam"
HELPERS = ("errors", "options", "wording", "streams", "toml")
MAY_USE = {
    "methods": ("training.vectors",),
    "training": ("methods.base",),
    "models": (),
    "data": ("training.task",),
    "engine": ("training", "data.clients", "methods.average", "methods.base"),
}


@pytest.mark.parametrize("package", MAY_USE)
def test_imports_point_one_way(package: str):
    allowed = (package, *HELPERS, *MAY_USE[package])
    wrong = [
        f"{path.relative_to(SOURCE)} imports {module}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        for module in imported(path)
        if not any(module == name or module.startswith(f"{name}.") for name in allowed)
    ]
    assert wrong == []


def test_only_commands_use_the_page():
    paths = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
    users = {path.parts[0] for path in paths for module in imported(SOURCE / path) if module.split(".")[0] == "page"}
    assert users == {"page", "commands"}


def imported(path: Path) -> Iterator[str]:
    """This library's modules that a file imports, anywhere in it, without the library's own name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fedwmsam":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedwmsam."):
            yield (node.module or "").removeprefix("fedwmsam.")
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("fedwmsam.") for a in node.names if a.name.startswith("fedwmsam"))
