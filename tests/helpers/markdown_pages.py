"""The repository's Markdown pages as a code host reads them: links, anchors, and code blocks."""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
"""The folder of the repository."""
CODE = ("console", "bash", "python", "toml")
"""Languages of blocks that somebody might type; all others show something."""
FOLDERS = (".github", "benchmarks", "docs", "examples", "notebooks", "results", "src", "tests")
"""Folders with pages; generated ones, such as .venv, are not searched."""


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    language: str
    text: str
    mark: str
    """The comment before it: run, slow, not run: REASON, file NAME; empty without a comment."""
    setup: str
    """The COMMAND of `run after COMMAND`, which a test executes first; empty without one."""
    line: int


def find_pages() -> list[Path]:
    """Return every Markdown file of the repository."""
    pages = list(ROOT.glob("*.md"))
    for folder in FOLDERS:
        pages += (ROOT / folder).rglob("*.md")
    return sorted(page for page in pages if "/.environments/" not in str(page))


def parse_page(page: Path) -> list[Token]:
    """Return the page's top-level Markdown tokens."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8"))


def read_blocks(page: Path) -> list[Block]:
    """Return the page's code, fenced or indented, each block with the comment before it."""
    blocks = []
    mark = ""
    setup = ""
    for token in parse_page(page):
        if token.type in ("fence", "code_block"):
            line = token.map[0] + 1 if token.map else 1
            blocks.append(Block(detect_language(token), token.content, mark, setup, line))
        mark = read_comment(token)
        setup = ""
        if after := re.fullmatch("(run|slow) after (.+)", mark):
            mark, setup = after.groups()
    return blocks


def detect_language(token: Token) -> str:
    """Return a block's language; one without a language that begins like a command is console."""
    language = token.info.strip()
    if not language and token.content.startswith(("$ ", "fedwmsam ")):
        return "console"
    return language


def read_comment(token: Token) -> str:
    """Return the text of an HTML comment, empty if the token is something else."""
    if token.type != "html_block":
        return ""
    comment = re.fullmatch(r"<!-- (.*?) -->\s*", token.content)
    return comment[1] if comment else ""


def read_links(page: Path) -> list[str]:
    """Return the targets of the page's links and images."""
    attributes = {"link_open": "href", "image": "src"}
    targets = []
    for token in parse_page(page):
        for child in token.children or []:
            if child.type in attributes:
                targets.append(str(child.attrs[attributes[child.type]]))
    return targets


def read_anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, spelled and numbered as GitHub does."""
    anchors = set()
    occurrences: Counter[str] = Counter()
    for opening, inline in pairwise(parse_page(page)):
        if opening.type != "heading_open":
            continue
        words = [
            child.content
            for child in inline.children or []
            if child.type in ("text", "code_inline")
        ]
        name = re.sub(r"[^\w\- ]", "", "".join(words).strip().lower()).replace(" ", "-")
        number = occurrences[name]
        anchors.add(f"{name}-{number}" if number else name)
        occurrences[name] += 1
    return anchors
