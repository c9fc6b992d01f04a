"""Links between the repository's own files lead somewhere."""

from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.markdown_pages import ROOT, anchors, links, pages


def missing(page: Path, target: str) -> bool:
    path, _, anchor = unquote(target).partition("#")
    file = page.parent / path if path else page
    return not file.exists() or (bool(anchor) and anchor not in anchors(file))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page: Path):
    own = [
        target
        for target in links(page)
        if not target.startswith(("http://", "https://", "mailto:"))
    ]
    assert [target for target in own if missing(page, target)] == []


def test_a_dead_link_or_anchor_would_be_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Eine Überschrift: `code`, und mehr\n## Twice\n## Twice\n[a](#eine-überschrift-code-und-mehr) [b](#twice-1)\n"
        "[c](page.md#twice-2) [d](other.md)\n\n```\n[e](inside-code.md)\n```\n"
    )
    assert [target for target in links(page) if missing(page, target)] == [
        "page.md#twice-2",
        "other.md",
    ]


def test_pages_are_found():
    names = {str(page.relative_to(ROOT)) for page in pages()}
    assert {"README.md", "docs/README.md", "docs/methods/fedwmsam.md", "CONTRIBUTING.md"} <= names
