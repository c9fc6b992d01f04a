"""Source files and folders that the pages link to, as pages: a code host shows them, so the site does too."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.nodes import document
from markdown_it import MarkdownIt
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
    return sorted(
        path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
    )


def make_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    there = [
        path for path in linked(app.env) if path.exists()
    ]  # an earlier build may have seen links to others
    for path in sorted(there):
        title = path.resolve().relative_to(app.srcdir)
        body = listing(app, path) if path.is_dir() else shown(app, path)
        yield page_name(app, path), {"title": title, "body": f"<h1>{title}</h1>{body}"}, "page.html"


def listing(app: Sphinx, folder: Path) -> str:
    here = app.builder.get_target_uri(page_name(app, folder))
    rows = []
    for file in listed(folder):
        page = app.env.path2doc(file) or page_name(app, file)
        rows.append(
            f'<li><a href="{relative_uri(here, app.builder.get_target_uri(page))}">{file.name}</a></li>'
        )
    return f"<ul>{''.join(rows)}</ul>"


def shown(app: Sphinx, path: Path) -> str:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return "<p>Not a text.</p>"
    if path.suffix == ".ipynb":
        return notebook(app, json.loads(text))
    return highlighted(app, text[:LARGEST], LEXERS.get(path.suffix, "text"))


def highlighted(app: Sphinx, text: str, language: str) -> str:
    return str(app.builder.highlighter.highlight_block(text, language))


def notebook(app: Sphinx, content: dict[str, Any]) -> str:
    """Its text, code and kept outputs, one below the other."""
    parts = []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        parts.append(
            prose(source) if cell["cell_type"] == "markdown" else highlighted(app, source, "python")
        )
        parts += [output_markup(app, output) for output in cell.get("outputs", [])]
    return "".join(parts)


def prose(text: str) -> str:
    markup = MarkdownIt("commonmark").enable("table").render(text)
    return markup.replace('.ipynb"', '.ipynb.html"')  # where the site has the other notebooks


def output_markup(app: Sphinx, output: dict[str, Any]) -> str:
    data = {
        kind: "".join(value)
        for kind, value in output.get("data", {"text/plain": output.get("text", "")}).items()
    }
    if "image/png" in data:
        return f'<p><img alt="Picture made by the code above" src="data:image/png;base64,{data["image/png"].strip()}"></p>'
    if "text/markdown" in data:
        return prose(data["text/markdown"])
    return highlighted(app, data["text/plain"], "text")
