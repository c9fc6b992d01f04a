"""The shape of the code: files, lines, cycles between packages, and offences against the style.

python tools/shape.py
"""

import ast
import statistics
from collections.abc import Iterator
from itertools import combinations

import style

PACKAGE = style.ROOT / "src" / "fedwmsam"
PUBLIC = "__init__"
"""The public interface, which imports from every package and is left out of the cycles."""


def imported_packages(module: ast.Module) -> Iterator[str]:
    """Yield the packages of the library that a module imports anywhere."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module == "fedwmsam":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedwmsam."):
            yield str(node.module).split(".")[1]


def find_cycles(files: list[style.SourceFile]) -> list[str]:
    """Return the pairs of packages that import each other."""
    imports: dict[str, set[str]] = {}
    for file in files:
        package = (style.ROOT / file.path).relative_to(PACKAGE).parts[0].removesuffix(".py")
        imports.setdefault(package, set()).update(imported_packages(file.tree))
    del imports[PUBLIC]
    cycles = []
    for first, second in combinations(imports, 2):
        if second in imports[first] and first in imports[second]:
            cycles.append(f"{first} and {second}")
    return cycles


def main() -> None:
    """Print the counts, a line for each subject."""
    files = style.read_files(style.SOURCE)
    lengths = {file.path: len(file.text.splitlines()) for file in files}
    subjects = [length for path, length in lengths.items() if path.name != "__init__.py"]
    cycles = find_cycles(files)
    total = sum(lengths.values())
    longest = max(lengths.values())
    print(f"package cycles: {len(cycles)}", *cycles)
    print(f"source files: {len(files)}, {len(subjects)} without __init__.py")
    print(f"lines: {total}; median of a file {statistics.median(subjects):.0f}, longest {longest}")
    for name, rule in style.RULES.items():
        print(f"offences against “{name}”: {len(rule.find_offences())}")


if __name__ == "__main__":
    main()
