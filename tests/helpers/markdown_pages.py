"""The repository's Markdown pages, taken apart as a code host would: links, anchors, and marked blocks of code."""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
CODE = ("console", "bash", "python", "toml")
"""Languages of blocks that somebody might type; all others show something."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    mark: str
    """What the comment before it says: run, slow, not run: REASON, file NAME; empty without one."""
    before: str
    """What `run after COMMAND` wants done first: the page speaks of something larger than a test should make."""
    line: int


def pages() -> list[Path]:
    """Every Markdown file of the repository; folders that are made, such as .venv, are not looked into."""
    folders = (".github", "benchmarks", "docs", "examples", "notebooks", "results", "src", "tests")
    below = [path for folder in folders for path in (ROOT / folder).rglob("*.md")]
    return sorted(
        [*ROOT.glob("*.md"), *(path for path in below if "/.environments/" not in str(path))]
    )


def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8"))


def blocks(page: Path) -> list[Block]:
    """The page's code, fenced or indented, each with the comment that stands before it."""
    found, mark, before = [], "", ""
    for token in tokens(page):
        if token.type in ("fence", "code_block"):
            language = token.info.strip() or (
                "console" if token.content.startswith(("$ ", "fedwmsam ")) else ""
            )
            found.append(Block(language, token.content, mark, before, (token.map or [0])[0] + 1))
        comment = (
            re.fullmatch(r"<!-- (.*?) -->\s*", token.content)
            if token.type == "html_block"
            else None
        )
        mark, before = comment[1] if comment else "", ""
        if after := re.fullmatch("(run|slow) after (.+)", mark):
            mark, before = after.groups()
    return found


def links(page: Path) -> list[str]:
    """Targets of links and pictures."""
    inside = [child for token in tokens(page) for child in token.children or []]
    attributes = {"link_open": "href", "image": "src"}
    return [
        str(child.attrs[attributes[child.type]]) for child in inside if child.type in attributes
    ]


def anchors(page: Path) -> set[str]:
    """What `#…` may follow the page's name: its headings as GitHub spells them."""
    found: dict[str, int] = {}
    stream = tokens(page)
    for opening, inline in pairwise(stream):
        if opening.type == "heading_open":
            text = "".join(
                child.content
                for child in inline.children or []
                if child.type in ("text", "code_inline")
            )
            name = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            found[name] = found.get(name, -1) + 1
    return {
        name + (f"-{k}" if k else "") for name, count in found.items() for k in range(count + 1)
    }
