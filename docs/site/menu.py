"""The menu of the site, made from docs/README.md.

Each section of that page is a group, and each page that a row of its tables begins with is an
entry. The pages of methods and of results are below theirs in the same way, as docs/methods/README
and docs/results/README list them.
"""

import posixpath
import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

ALL_PAGES = "docs/README"
INDEXES = {
    "README": f"{ALL_PAGES}.md",
    "docs/methods/README": "docs/methods/README.md",
    "docs/results/README": "docs/results/README.md",
}
"""Pages → the files whose tables list the pages below them."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect this extension to Sphinx."""
    app.connect("source-read", add_menu)
    app.connect("build-finished", make_start_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_menu(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the entries of the menu to the pages that have some."""
    if page in INDEXES:
        folder = posixpath.dirname(INDEXES[page])
        index = (app.srcdir / INDEXES[page]).read_text("utf-8")
        _, *sections = re.split(r"^##? ", index, flags=re.MULTILINE)
        source[0] += "".join(toctree(section, folder) for section in sections)
    if page == ALL_PAGES:
        source[0] = "---\norphan: true\n---\n\n" + source[0]  # the menu does not list itself


def toctree(section: str, folder: str) -> str:
    """Return the pages of a section as a hidden toctree with its heading, if it has any."""
    rows = re.findall(r"^\| \[(.+?)\]\((.+?)\.(?:md|rst)\)", section, flags=re.MULTILINE)
    if not rows:
        return ""
    heading = section.partition("\n")[0]
    lines = [":hidden:", f":caption: {heading}", ""]
    for text, page in rows:
        lines.append(f"{text} </{posixpath.normpath(posixpath.join(folder, page))}>")
    return "\n\n```{toctree}\n" + "\n".join(lines) + "\n```\n"


def make_start_page(app: Sphinx, exception: Exception | None) -> None:
    """Copy the page of the README to index.html."""
    if exception is None and app.builder.name == "html":
        folder = Path(app.outdir)
        shutil.copyfile(folder / f"{app.config.root_doc}.html", folder / "index.html")
