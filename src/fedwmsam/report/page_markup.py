"""HTML in which nothing that people named can become markup: text is escaped unless it was made here."""

import html
import json
from collections.abc import Iterable
from typing import Any

VOID = ("img", "input", "link", "meta")


class Html(str):
    """Text that is markup already."""


def text(value: object) -> Html:
    """What is not markup, escaped; a path may hold bytes that are no characters."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(str(value).encode("utf-8", "replace").decode()))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """`class_="a"` is class="a" and `aria_label` aria-label; True is an attribute without a value, False is none."""
    given = "".join(attribute(key, value) for key, value in attributes.items() if value is not False)
    return Html(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{joined(children)}</{name}>")


def attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


def joined(parts: Iterable[object]) -> Html:
    return Html("".join(map(text, parts)))


def data_block(name: str, values: Any) -> Html:
    """Numbers for the page's script. Without "<" nothing in them can end the block or begin a comment."""
    content = json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{text(name)}">{content}</script>')
