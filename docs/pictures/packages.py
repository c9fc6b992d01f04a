"""Draw the packages in the order in which they use each other, as packages.svg.

    python docs/pictures/packages.py

The order is the one that tests/test_layers.py holds the source to.
"""

import ast
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTIONS = {
    "errors": "one exception, and words that messages share",
    "files": "the one door to run folders: regular files, complete or absent",
    "user_code": "the user's modules, by path",
    "machine": "its memory",
    "rng": "keyed random streams",
    "statistics": "means, intervals, tests",
    "termination": "SIGTERM as Ctrl-C",
    "version": "",
    "toml": "flat TOML files",
    "settings": "what a run can be told; no PyTorch",
    "methods": "the equations, and the vectors they are written in",
    "training": "a model as one vector, a client's local steps",
    "models": "networks by name",
    "data": "data sets, formats, partitions, readers",
    "engine": "rounds, runs, checkpoints, workers, faults, privacy",
    "recording": "what is measured while a run goes on",
    "trackers": "TensorBoard, Weights & Biases",
    "experiment": "from settings to a run and its result; fit",
    "comparison": "many runs side by side",
    "flower": "the same rounds across machines",
    "testing": "checks for methods",
    "report": "tables, pictures, the terminal",
    "analysis": "flatness, landscapes, dynamics, theory",
    "page": "a report as one HTML page",
    "paper": "the paper's tables and figures",
    "commands": "a file for each",
    "cli": "the command line",
    "__main__": "",
}
LEFT_OUT = ("__main__", "version", "termination")
WIDTH = 760
HEIGHT = 46
GAP = 10


def read_order() -> list[list[str]]:
    """Return the rows of packages of tests/test_layers.py, the topmost first."""
    tree = ast.parse((ROOT / "tests" / "test_layers.py").read_text())
    value = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "ORDER"
    )
    rows = []
    for names in reversed(ast.literal_eval(value)):
        shown = [name for name in names if name not in LEFT_OUT]
        if shown:
            rows.append(shown)
    return rows


def draw_row(names: list[str], y: int) -> list[str]:
    """Return the boxes of a row of packages as SVG; up to two in a row have a description."""
    width = (WIDTH - GAP * (len(names) - 1)) / len(names)
    boxes = []
    for index, name in enumerate(names):
        x = index * (width + GAP) + 1
        middle = x + width / 2
        description = "" if len(names) > 2 else escape(DESCRIPTIONS[name])
        name_y = y + (19 if description else 28)
        boxes.append(
            f'<rect x="{x:.0f}" y="{y}" width="{width - 2:.0f}" height="{HEIGHT}" rx="6"/>'
            f'<text class="name" x="{middle:.0f}" y="{name_y}">{name}</text>'
            f'<text x="{middle:.0f}" y="{y + 36}">{description}</text>'
        )
    return boxes


def main() -> None:
    rows = read_order()
    boxes = []
    for number, names in enumerate(rows):
        boxes += draw_row(names, number * (HEIGHT + GAP) + 1)
    height = len(rows) * (HEIGHT + GAP)
    style = (
        "rect{fill:#f3f1ec;stroke:#0072b2}text{font:12px sans-serif;text-anchor:middle;fill:#333}"
        ".name{font-weight:bold;font-size:14px;fill:#111}"
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        "<title>The packages: each uses only those below it</title>"
        f"<style>{style}</style>{''.join(boxes)}</svg>\n"
    )
    (ROOT / "docs" / "pictures" / "packages.svg").write_text(svg)


if __name__ == "__main__":
    main()
