"""Pages of the source files and folders that other pages link to.

A code host shows them, so the site does too.
"""

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
"""Number of characters of a file that are shown: a page of a megabyte helps nobody."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect this extension to Sphinx."""
    app.connect("doctree-read", show_sources, priority=400)  # before Sphinx collects downloads
    app.connect("html-collect-pages", make_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}


def linked_sources(env: BuildEnvironment) -> set[Path]:
    """Return the set of files and folders that pages link to and Sphinx has no page for.

    It is kept with the environment, for builds that read only changed pages.
    """
    if not hasattr(env, "linked_sources"):
        env.linked_sources = set()
    return env.linked_sources


def show_sources(app: Sphinx, tree: document) -> None:
    """Let links to source files and folders lead to their pages.

    Sphinx would offer linked files for download, and finds no linked folder.
    """
    page = app.env.current_document.docname
    for node in [*tree.findall(addnodes.download_reference), *tree.findall(addnodes.pending_xref)]:
        path = Path(app.env.relfn2path(node["reftarget"], page)[1])
        if path.is_dir():
            files = [file for file in list_files(path) if not app.env.path2doc(file)]
            linked_sources(app.env).update(files)
        elif not isinstance(node, addnodes.download_reference):
            continue
        node.replace_self(make_reference(app, page, path, node.children))


def make_reference(app: Sphinx, page: str, path: Path, children: list[Any]) -> nodes.reference:
    """Return a link from a page to the page of a source file or folder."""
    linked_sources(app.env).add(path)
    target = app.builder.get_relative_uri(page, page_name(app, path))
    return nodes.reference("", "", *children, internal=True, refuri=target)


def page_name(app: Sphinx, path: Path) -> str:
    """Return the name of the page of a source file or folder."""
    return f"source/{path.resolve().relative_to(app.srcdir)}"


def list_files(folder: Path) -> list[Path]:
    """Return the files in a folder that are not hidden."""
    return sorted(
        path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
    )


def make_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield name, content and template of the pages of all linked files and folders."""
    # An earlier build may have seen links to files that no longer exist.
    for path in sorted(path for path in linked_sources(app.env) if path.exists()):
        title = path.resolve().relative_to(app.srcdir)
        body = folder_markup(app, path) if path.is_dir() else file_markup(app, path)
        yield page_name(app, path), {"title": title, "body": f"<h1>{title}</h1>{body}"}, "page.html"


def folder_markup(app: Sphinx, folder: Path) -> str:
    """Return a list of links to the files in a folder."""
    folder_uri = app.builder.get_target_uri(page_name(app, folder))
    rows = []
    for file in list_files(folder):
        page = app.env.path2doc(file) or page_name(app, file)
        uri = relative_uri(folder_uri, app.builder.get_target_uri(page))
        rows.append(f'<li><a href="{uri}">{file.name}</a></li>')
    return f"<ul>{''.join(rows)}</ul>"


def file_markup(app: Sphinx, path: Path) -> str:
    """Return the content of a file, highlighted; a notebook is shown as such."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return "<p>Not a text.</p>"
    if path.suffix == ".ipynb":
        return notebook_markup(app, json.loads(text))
    return highlight(app, text[:LARGEST], LEXERS.get(path.suffix, "text"))


def highlight(app: Sphinx, text: str, language: str) -> str:
    return str(app.builder.highlighter.highlight_block(text, language))


def notebook_markup(app: Sphinx, content: dict[str, Any]) -> str:
    """Return the text, code and saved outputs of a notebook, one below the other."""
    parts = []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(markdown_markup(source))
        else:
            parts.append(highlight(app, source, "python"))
        parts += [output_markup(app, output) for output in cell.get("outputs", [])]
    return "".join(parts)


def markdown_markup(text: str) -> str:
    """Return Markdown as HTML, with links to other notebooks adapted to the site."""
    markup = MarkdownIt("commonmark").enable("table").render(text)
    return markup.replace('.ipynb"', '.ipynb.html"')


def output_markup(app: Sphinx, output: dict[str, Any]) -> str:
    """Return an output of a cell as HTML: an image, Markdown or plain text."""
    by_type = output.get("data", {"text/plain": output.get("text", "")})
    data = {kind: "".join(value) for kind, value in by_type.items()}
    if "image/png" in data:
        source = f"data:image/png;base64,{data['image/png'].strip()}"
        return f'<p><img alt="Picture made by the code above" src="{source}"></p>'
    if "text/markdown" in data:
        return markdown_markup(data["text/markdown"])
    return highlight(app, data["text/plain"], "text")
