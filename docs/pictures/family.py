"""Draw which method becomes which other one, and by what, as family.svg.

    PYTHONPATH=tests python docs/pictures/family.py

The lines are the reductions that tests/methods/test_invariants.py tries. A method hangs below the
one that its first reduction leads to; its other reductions lead there on the right.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from helpers.reductions import REDUCTIONS, Reduction

from fedwmsam.settings.method_table import METHOD_TABLE, method_title

PICTURE = Path(__file__).with_name("family.svg")
WIDTH = 570
LINE = 15
"""Height of a line of text."""
BOX = 22
"""Height of a method's box."""
GAP = 9
"""Between one method and the next below it."""
INDENT = 12
"""From the left side of a box to the line down to the methods below it."""
LANE = 10
"""Between the lines on the right."""
IDEAS = list(dict.fromkeys(entry.idea for entry in METHOD_TABLE.values()))
COLOURS = {
    "light": ("#ffe3b0", "#e4e4e4", "#cfe8f7", "#cdebd0", "#e9dcf5", "#fbd5d5"),
    "dark": ("#7a5200", "#4a4a4a", "#0b4a6f", "#1c5a2a", "#553278", "#7a2a2a"),
}
"""The fill of each idea's boxes."""
STYLE = """
text{font:12px sans-serif;fill:#333}.index{font-size:9px}
.name{font-weight:bold;font-size:13px;text-anchor:middle;fill:#111}
.page{fill:#fff}.box{stroke:#555}.edge{fill:none;stroke:#0072b2;stroke-width:1.3}
.arrow{fill:#0072b2}.there{stroke-dasharray:4 3}
"""
DARK_STYLE = """
text{fill:#ddd}.name{fill:#fff}.page{fill:#161b22}.box{stroke:#999}
.edge{stroke:#6cb8ee}.arrow{fill:#6cb8ee}
"""


def label_width(label: str) -> float:
    """Return about how wide a label's longest line is drawn."""
    return 6.5 * max(map(len, label.splitlines()))


def title_width(title: str) -> float:
    """Return about how wide a method's name is drawn, in bold letters."""
    widths = [9.8 if letter.isupper() else 8.0 for letter in title]
    return sum(widths) + 3 * sum(title.count(letter) for letter in "MWm")


def reductions_of(name: str) -> list[Reduction]:
    return [reduction for reduction in REDUCTIONS if reduction.method.name == name]


def children_of(name: str) -> list[str]:
    """Return the methods that hang below one, those that nothing hangs below first."""
    children = []
    for child in METHOD_TABLE:
        reductions = reductions_of(child)
        if reductions and reductions[0].becomes.name == name:
            children.append(child)
    return sorted(children, key=lambda child: bool(children_of(child)))


class Family:
    """The picture while it is drawn, from the top down."""

    def __init__(self) -> None:
        self.y = 8.0
        self.left: dict[str, float] = {}
        self.right: dict[str, float] = {}
        self.middle: dict[str, float] = {}
        self.boxes: list[str] = []
        self.edges: list[str] = []

    def add_method(self, name: str, left: float) -> None:
        """Draw a method with its left side there, its labels, and all that hangs below it."""
        reductions = reductions_of(name)
        lines = [reduction.label.count("\n") + 1 for reduction in reductions]
        height = max(BOX, LINE * max(sum(lines[:1]), sum(lines[1:])))
        self.left[name] = left
        self.right[name] = left + title_width(method_title(name)) + 12
        self.middle[name] = self.y + height / 2
        self.add_box(name)
        self.y += height + GAP
        for child in children_of(name):
            label = reductions_of(child)[0].label
            self.add_method(child, left + INDENT + 16 + label_width(label))

    def add_box(self, name: str) -> None:
        """Draw the box of a method whose place is known."""
        x = self.left[name]
        y = self.middle[name]
        self.boxes.append(
            f'<rect class="box idea{IDEAS.index(METHOD_TABLE[name].idea)}" x="{x:.0f}" '
            f'y="{y - BOX / 2:.0f}" width="{self.right[name] - x:.0f}" height="{BOX}" rx="5"/>'
            f'<text class="name" x="{(x + self.right[name]) / 2:.0f}" y="{y + 4.5:.0f}">'
            f"{method_title(name)}</text>"
        )

    def add_edge(self, reduction: Reduction, path: str, arrow: str) -> None:
        """Draw the line of a reduction, with an arrow at the method that it leads to."""
        kind = "edge there" if reduction.circumstantial else "edge"
        ends = f"{reduction.method.name} {reduction.becomes.name}"
        self.edges.append(
            f'<path class="{kind}" data-ends="{ends}" d="{path}"/><path class="arrow" d="{arrow}"/>'
        )

    def add_label(self, label: str, x: float, middle: float) -> None:
        """Draw the lines of a label, which begin at x, around a height."""
        lines = label.splitlines()
        for number, line in enumerate(lines):
            y = middle + 4 + LINE * (number - (len(lines) - 1) / 2)
            # What follows an underscore is lowered, and the rest of the line raised again.
            shown = re.sub(
                r"_(\w+)(.*)",
                r'<tspan class="index" dy="3">\1</tspan><tspan dy="-3">\2</tspan>',
                escape(line),
            )
            self.edges.append(f'<text x="{x:.0f}" y="{y:.0f}">{shown}</text>')

    def hang(self, reduction: Reduction) -> None:
        """Draw the line from a method to the one it hangs below."""
        x = self.left[reduction.becomes.name] + INDENT
        top = self.middle[reduction.becomes.name] + BOX / 2
        y = self.middle[reduction.method.name]
        end = self.left[reduction.method.name]
        label = x + 8
        self.add_edge(
            reduction,
            f"M{end:.0f} {y:.0f}H{end - 5:.0f}M{label - 3:.0f} {y:.0f}H{x:.0f}V{top + 5:.0f}",
            f"M{x:.0f} {top:.0f}l-4 7h8z",
        )
        self.add_label(reduction.label, label, y)

    def lead(self, reduction: Reduction, number: int, count: int, lane: float) -> None:
        """Draw one of a method's other lines, which goes to the right and then up or down."""
        start = self.right[reduction.method.name] + 6
        y = self.middle[reduction.method.name] + LINE * (number - (count - 1) / 2)
        end = self.right[reduction.becomes.name]
        target = self.middle[reduction.becomes.name]
        label = label_width(reduction.label)
        self.add_label(reduction.label, start, y)
        self.add_edge(
            reduction,
            f"M{start + label + 3:.0f} {y:.0f}H{lane:.0f}V{target:.0f}H{end + 6:.0f}",
            f"M{end:.0f} {target:.0f}l7 -4v8z",
        )

    def add_legend(self) -> None:
        """Draw what the colours and the lines mean."""
        for number, idea in enumerate(IDEAS):
            x = (8, 218, 420)[number % 3]
            y = self.y + 8 + 22 * (number // 3)
            self.boxes.append(
                f'<rect class="box idea{number}" x="{x}" y="{y:.0f}" width="14" height="14" '
                'rx="3"/>'
                f'<text x="{x + 20}" y="{y + 11:.0f}">{idea}</text>'
            )
        self.y += 56
        for x, kind, meaning in (
            (8, "", "by its options alone"),
            (218, " there", "in such a setting"),
        ):
            self.boxes.append(
                f'<path class="edge{kind}" d="M{x} {self.y + 5:.0f}h28"/>'
                f'<text x="{x + 34}" y="{self.y + 9:.0f}">{meaning}</text>'
            )
        self.y += 22


def other_reductions() -> Iterator[tuple[Reduction, int, int]]:
    """Yield each reduction that is not its method's first, its number, and how many there are."""
    for name in METHOD_TABLE:
        others = reductions_of(name)[1:]
        for number, reduction in enumerate(others):
            yield reduction, number, len(others)


def fills(scheme: str) -> str:
    """Return the rules for the colours of the ideas, in light or dark."""
    return "".join(f".idea{n}{{fill:{colour}}}" for n, colour in enumerate(COLOURS[scheme]))


def draw_family() -> str:
    """Return the picture as SVG."""
    family = Family()
    for name in METHOD_TABLE:
        if not reductions_of(name):
            family.add_method(name, 8)
    for name in family.left:
        for reduction in reductions_of(name)[:1]:
            family.hang(reduction)
    led_to = {reduction.becomes.name for reduction, _, _ in other_reductions()}
    targets = [name for name in family.left if name in led_to]
    for reduction, number, count in other_reductions():
        lane = WIDTH - 8 - LANE * targets.index(reduction.becomes.name)
        family.lead(reduction, number, count, lane)
    family.add_legend()
    style = (
        f"{STYLE}{fills('light')}@media(prefers-color-scheme:dark){{{DARK_STYLE}{fills('dark')}}}"
    )
    parts = "\n".join(family.edges + family.boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {family.y:.0f}" '
        'role="img">\n'
        "<title>Which method becomes which other one, and by what</title>\n"
        f"<style>{style}</style>\n"
        f'<rect class="page" width="{WIDTH}" height="{family.y:.0f}"/>\n'
        f"{parts}\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(draw_family())
