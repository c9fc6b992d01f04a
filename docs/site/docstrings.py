"""Docstrings as this project writes them, for Sphinx: `name: meaning` lines become lists, methods' options tables."""

import re
from dataclasses import fields
from typing import Any

from sphinx.application import Sphinx

from fedwmsam.methods import METHODS, Method
from fedwmsam.settings.options import describe_range

PLACE = ".. every method"
"""In the reference: here go the registered methods, so that a new one needs no line there."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_methods)
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_methods(app: Sphinx, page: str, source: list[str]) -> None:
    classes = "\n".join(
        f".. autoclass:: fedwmsam.methods.{method.__name__}" for method in METHODS.values()
    )
    source[0] = source[0].replace(PLACE, classes)


def process(app: Sphinx, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line for before in lines for line in explained(before)]
    if kind == "class" and "".join(lines).startswith(f"{thing.__name__}("):
        lines.clear()  # a dataclass without a docstring gets its signature for one
    if kind == "class" and issubclass(thing, Method) and hasattr(thing, "name"):
        lines += ["", f"{thing.paper}; `{thing.name}` on the command line.", "", *table(thing)]


def explained(line: str) -> list[str]:
    """A line of docstring as one or more of reStructuredText."""
    found = re.match(r"(\w+(?:, \w+)*): (.*)", line)
    if found:
        return ["", f"* **{found[1]}**: {found[2]}"]
    return [line[2:]] if line.startswith("    ") else [line]  # indented: it belongs to such an item


def table(method: type[Method]) -> list[str]:
    """The method's options with default, meaning and range."""
    rows = [["option", "default", "meaning", "range"]]
    for f in fields(method):
        allowed = ", ".join(f.metadata["choices"]) or describe_range(f.metadata)
        rows.append([f"`{f.name}`", str(f.default), f.metadata["help"], allowed])
    cells = [f"   {'* ' if k == 0 else '  '}- {text}" for row in rows for k, text in enumerate(row)]
    return [".. list-table::", "   :header-rows: 1", "", *cells] if len(rows) > 1 else []
