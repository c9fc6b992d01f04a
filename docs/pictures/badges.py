"""Make the README's badges from pyproject.toml and constraints.txt.

python docs/pictures/badges.py
"""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LETTER = 6.6
"""Approximate width of a letter at this size."""
BADGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" \
aria-label="{name}: {value}">
<rect width="{width}" height="20" rx="3" fill="#0072b2"/>\
<rect width="{left}" height="20" rx="3" fill="#444"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{middle}" y="14">{name}</text><text x="{other}" y="14">{value}</text></g></svg>
"""


def make_badges() -> dict[str, str]:
    """Return the badges as SVG, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch
    return {
        "python": make_badge("Python", project["requires-python"].replace(">=", "≥ ")),
        "pytorch": make_badge("tested with PyTorch", torch[1]),
        "licence": make_badge("licence", project["license"]),
    }


def make_badge(name: str, value: str) -> str:
    """Return a badge as SVG, with the name on the left and the value on the right."""
    left = text_width(name)
    right = text_width(value)
    return BADGE.format(
        name=name,
        value=value,
        width=left + right,
        left=left,
        middle=left / 2,
        other=left + right / 2,
    )


def text_width(text: str) -> int:
    return round(LETTER * len(text)) + 12


if __name__ == "__main__":
    for name, text in make_badges().items():
        (HERE / f"badge-{name}.svg").write_text(text)
