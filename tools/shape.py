"""The shape of the source: files, lines, and packages that use each other both ways.

python tools/shape.py
"""

import ast
import statistics
from itertools import combinations
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "fedwmsam"


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def used_by(path: Path) -> set[str]:
    """The packages that a file imports, anywhere in it."""
    nodes = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    inside = [node for node in nodes if str(node.module).split(".")[0] == "fedwmsam"]
    named = {str(node.module).split(".")[1] for node in inside if "." in str(node.module)}
    return named | {
        alias.name for node in inside if node.module == "fedwmsam" for alias in node.names
    }


def main() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    lengths = [len(path.read_text().splitlines()) for path in files]
    uses: dict[str, set[str]] = {}
    for path in files:
        uses.setdefault(package_of(path), set()).update(used_by(path))
    del uses["__init__"]  # the front door knows where everything is
    cycles = [
        f"{one} and {other}"
        for one, other in combinations(uses, 2)
        if other in uses[one] and one in uses[other]
    ]
    subjects = [
        length for path, length in zip(files, lengths, strict=True) if path.name != "__init__.py"
    ]
    print(f"package cycles: {len(cycles)}", *cycles)
    print(f"source files: {len(files)}, {len(subjects)} without __init__.py")
    print(
        f"lines: {sum(lengths)}; median of a file {statistics.median(subjects):.0f}, longest {max(lengths)}"
    )


if __name__ == "__main__":
    main()
