"""Source files and folders that the pages link to, as pages: a code host shows them, so the site does too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.nodes import document
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.osutil import relative_uri

LEXERS = {".py": "python", ".toml": "toml", ".json": "json"}
LARGEST = 200_000
"""Characters of a file that are shown: a page of a megabyte helps nobody."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", show_sources, priority=400)  # before Sphinx collects downloads
    app.connect("html-collect-pages", make_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}


def linked(env: BuildEnvironment) -> set[Path]:
    """What pages link to and Sphinx has no page for; kept with the environment, for builds that read only changes."""
    if not hasattr(env, "linked_sources"):
        env.linked_sources = set()
    return env.linked_sources


def show_sources(app: Sphinx, tree: document) -> None:
    """Sphinx would offer linked files for download, and finds no linked folder."""
    page = app.env.current_document.docname
    for node in [*tree.findall(addnodes.download_reference), *tree.findall(addnodes.pending_xref)]:
        path = Path(app.env.relfn2path(node["reftarget"], page)[1])
        if path.is_dir():
            linked(app.env).update(file for file in listed(path) if not app.env.path2doc(file))
        elif not isinstance(node, addnodes.download_reference):
            continue
        node.replace_self(reference(app, page, path, node.children))


def reference(app: Sphinx, page: str, path: Path, children: list[Any]) -> nodes.reference:
    linked(app.env).add(path)
    target = app.builder.get_relative_uri(page, page_name(app, path))
    return nodes.reference("", "", *children, internal=True, refuri=target)


def page_name(app: Sphinx, path: Path) -> str:
    return f"source/{path.resolve().relative_to(app.srcdir)}"


def listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def make_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    for path in sorted(linked(app.env)):
        title = path.resolve().relative_to(app.srcdir)
        body = listing(app, path) if path.is_dir() else highlighted(app, path)
        yield page_name(app, path), {"title": title, "body": f"<h1>{title}</h1>{body}"}, "page.html"


def listing(app: Sphinx, folder: Path) -> str:
    here = app.builder.get_target_uri(page_name(app, folder))
    rows = []
    for file in listed(folder):
        page = app.env.path2doc(file) or page_name(app, file)
        rows.append(f'<li><a href="{relative_uri(here, app.builder.get_target_uri(page))}">{file.name}</a></li>')
    return f"<ul>{''.join(rows)}</ul>"


def highlighted(app: Sphinx, path: Path) -> str:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return "<p>Not a text.</p>"
    return str(app.builder.highlighter.highlight_block(text[:LARGEST], LEXERS.get(path.suffix, "text")))
