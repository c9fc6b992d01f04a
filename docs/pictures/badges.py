"""Draw the README's badges from what the project's files say: `python docs/pictures/badges.py`."""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LETTER = 6.6
"""Width of a letter at this size, about."""
BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}: {value}">
<rect width="{width}" height="20" rx="3" fill="#0072b2"/><rect width="{left}" height="20" rx="3" fill="#444"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{middle}" y="14">{name}</text><text x="{other}" y="14">{value}</text></g></svg>
"""


def badges() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch
    return {
        "python": badge("Python", project["requires-python"].replace(">=", "≥ ")),
        "pytorch": badge("tested with PyTorch", torch[1]),
        "licence": badge("licence", project["license"]),
    }


def badge(name: str, value: str) -> str:
    left, right = (round(LETTER * len(text)) + 12 for text in (name, value))
    middle, other = left / 2, left + right / 2
    return BADGE.format(
        name=name, value=value, width=left + right, left=left, middle=middle, other=other
    )


if __name__ == "__main__":
    for name, text in badges().items():
        (HERE / f"badge-{name}.svg").write_text(text)
