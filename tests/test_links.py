"""Links between the repository's own files lead somewhere."""

from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.markdown_pages import ROOT, find_pages, read_anchors, read_links


def is_dead(page: Path, target: str) -> bool:
    """Return whether a link on the page leads to no file, or to no anchor of its file."""
    path, _, anchor = unquote(target).partition("#")
    file = page.parent / path if path else page
    return not file.exists() or (bool(anchor) and anchor not in read_anchors(file))


@pytest.mark.parametrize("page", find_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page: Path):
    elsewhere = ("http://", "https://", "mailto:")
    targets = [target for target in read_links(page) if not target.startswith(elsewhere)]
    assert [target for target in targets if is_dead(page, target)] == []


def test_a_dead_link_or_anchor_would_be_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Eine Überschrift: `code`, und mehr\n## Twice\n## Twice\n"
        "[a](#eine-überschrift-code-und-mehr) [b](#twice-1)\n"
        "[c](page.md#twice-2) [d](other.md)\n\n```\n[e](inside-code.md)\n```\n"
    )
    dead = [target for target in read_links(page) if is_dead(page, target)]
    assert dead == ["page.md#twice-2", "other.md"]


def test_the_pages_of_every_folder_are_found():
    names = {str(page.relative_to(ROOT)) for page in find_pages()}
    assert {"README.md", "docs/README.md", "docs/methods/fedwmsam.md", "CONTRIBUTING.md"} <= names
