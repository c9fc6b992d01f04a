"""Docstrings of this project, converted for Sphinx.

Lines `name: meaning` become lists, and the options of methods become tables.
"""

import re
from dataclasses import fields
from typing import Any

from sphinx.application import Sphinx

from fedwmsam.methods import METHODS, Method
from fedwmsam.settings.options import describe_range

PLACEHOLDER = ".. every method"
"""Line of the reference that is replaced by all registered methods."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect this extension to Sphinx."""
    app.connect("source-read", add_methods)
    app.connect("autodoc-process-docstring", convert_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_methods(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the placeholder in a page."""
    classes = "\n".join(
        f".. autoclass:: fedwmsam.methods.{method.__name__}" for method in METHODS.values()
    )
    source[0] = source[0].replace(PLACEHOLDER, classes)


def convert_docstring(
    app: Sphinx, kind: str, name: str, documented: Any, options: Any, lines: list[str]
) -> None:
    """Convert the lines of a docstring in place; methods get a table of their options."""
    docstring = lines.copy()
    lines.clear()
    for line in docstring:
        lines += convert_line(line)
    if kind == "class" and "".join(lines).startswith(f"{documented.__name__}("):
        lines.clear()  # a dataclass without a docstring has its signature as docstring
    if kind == "class" and issubclass(documented, Method) and hasattr(documented, "name"):
        lines += ["", f"{documented.paper}; `{documented.name}` on the command line.", ""]
        lines += options_table(documented)


def convert_line(line: str) -> list[str]:
    """Return a line of a docstring as one or more lines of reStructuredText."""
    item = re.match(r"(\w+(?:, \w+)*): (.*)", line)
    if item:
        return ["", f"* **{item[1]}**: {item[2]}"]
    return [line[2:]] if line.startswith("    ") else [line]  # indented: it belongs to such an item


def options_table(method: type[Method]) -> list[str]:
    """Return a table of the method's options with default, meaning and range."""
    rows = [["option", "default", "meaning", "range"]]
    for f in fields(method):
        allowed = ", ".join(f.metadata["choices"]) or describe_range(f.metadata)
        rows.append([f"`{f.name}`", str(f.default), f.metadata["help"], allowed])
    if len(rows) == 1:
        return []
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for first, *others in rows:
        lines.append(f"   * - {first}")
        lines += [f"     - {text}" for text in others]
    return lines
