"""The site's menu is docs/README.md: each of its sections a group, each page that a row begins with an entry.

The pages of methods stand below theirs in the same way, as docs/methods/README.md lists them.
"""

import posixpath
import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

ALL_PAGES = "docs/README"
INDEXES = {"README": f"{ALL_PAGES}.md", "docs/methods/README": "docs/methods/README.md"}
"""Page → the file whose tables say what stands below it."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_menu)
    app.connect("build-finished", make_start_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_menu(app: Sphinx, page: str, source: list[str]) -> None:
    if page in INDEXES:
        folder, index = (
            posixpath.dirname(INDEXES[page]),
            (app.srcdir / INDEXES[page]).read_text("utf-8"),
        )
        _, *sections = re.split(r"^##? ", index, flags=re.MULTILINE)
        source[0] += "".join(toctree(section, folder) for section in sections)
    if page == ALL_PAGES:
        source[0] = "---\norphan: true\n---\n\n" + source[0]  # the menu does not list itself


def toctree(section: str, folder: str) -> str:
    """A section's pages as a hidden toctree under the section's heading; nothing if it lists none."""
    rows = re.findall(r"^\| \[(.+?)\]\((.+?)\.(?:md|rst)\)", section, flags=re.MULTILINE)
    entries = [
        f"{text} </{posixpath.normpath(posixpath.join(folder, page))}>" for text, page in rows
    ]
    lines = [":hidden:", f":caption: {section.partition(chr(10))[0]}", "", *entries]
    return "\n\n```{toctree}\n" + "\n".join(lines) + "\n```\n" if entries else ""


def make_start_page(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html":
        folder = Path(app.outdir)
        shutil.copyfile(folder / f"{app.config.root_doc}.html", folder / "index.html")
