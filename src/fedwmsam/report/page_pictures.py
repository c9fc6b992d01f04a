"""Pictures that `fedwmsam analyse` drew into the runs' folders, on the page: landscapes, embeddings, flatness."""

import base64
from collections.abc import Iterable
from pathlib import Path

from fedwmsam.report.page_markup import Html, element, joined

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
"""What a page can show; a PDF it cannot."""
TOGETHER = 3_000_000
"""Bytes of pictures on one page: it must still open at once."""


def picture_block(runs: Iterable[tuple[str, Path]]) -> Html | None:
    """Of runs by name and place; None if there is nothing to show. What finds no room is named."""
    figures, room, left_out = [], TOGETHER, []
    for name, run in runs:
        for path in sorted((run / "analysis").glob("*")):
            if path.suffix in KINDS and path.stat().st_size <= room:
                room -= path.stat().st_size
                figures.append(figure(f"{name}: {path.stem.replace('-', ' ')}", path))
            elif path.suffix in (*KINDS, ".pdf"):
                left_out.append(element("li", f"Not shown: {path}"))
    if not figures and not left_out:
        return None
    notes = element("ul", *left_out, class_="notes") if left_out else ""
    return joined([element("div", *figures, class_="pictures"), notes])


def figure(caption: str, path: Path) -> Html:
    source = f"data:{KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return element("figure", element("img", src=source, alt=caption), element("figcaption", caption))
