"""The pictures of a page: controls, legends and places that `page.js` draws into, each also as a table."""

from collections.abc import Sequence

from fedwmsam.engine.records import Record
from fedwmsam.report.page_data import Dealt, largest_share, map_clients
from fedwmsam.report.page_markup import Html, element
from fedwmsam.report.page_tables import frame
from fedwmsam.report.plots import AXES, words

WINDOWS = (1, 5, 10, 25, 50)
SPREADS = {"band": "± deviation", "seeds": "each seed", "none": "none"}
LEVELS = 8
"""Shades of a map."""


def curve_figure(place: int, rows: Sequence[Record], columns: Sequence[str], window: int) -> Html:
    """Columns over the rounds or over costs; `place` is where the rows are among the page's numbers."""
    axes = AXES | {"backprops": "backprops"}
    known = [axis for axis in axes if axis == "rounds" or any(axis in row["x"] for row in rows)]
    controls = [
        select("column", "Show", [element("option", words(name), value=name) for name in columns]),
        select("axis", "Against", [axis_option(axis, axes[axis]) for axis in known]),
        select("window", "Smoothing", [window_option(size, size == window) for size in WINDOWS]),
        spread_select(),
        element(
            "label", element("input", type="checkbox", data_control="zoom", checked=window > 1), "Zoom past the start"
        ),
    ]
    own = [number for number, row in enumerate(rows) if any(name in row["y"] for name in columns)]
    return chart_figure(place, rows, own, controls, f"{words(columns[0])} over rounds")


def sweep_figure(place: int, rows: Sequence[Record], option: str, column: str) -> Html:
    """What the rows reach at each value of an option."""
    values = [x for row in rows for x in row["x"][option]]
    logarithmic = min(values) > 0 and max(values) / min(values) >= 10
    controls = [
        select("column", "Show", [element("option", column, value="tail")]),
        select("axis", "Against", [element("option", option, value=option, data_exact=True, data_log=logarithmic)]),
    ]
    return chart_figure(place, rows, range(len(rows)), controls, f"{column} over {option}")


def client_figure(place: int, rows: Sequence[Record]) -> Html:
    """Accuracy over the clients, sorted; reading begins with the worst served."""
    axis = element("option", "share of clients", value="share", data_exact=True, data_first=True)
    controls = [
        select("column", "Show", [element("option", "accuracy of the last model", value="accuracy")]),
        select("axis", "Against", [axis]),
        spread_select(),
    ]
    return chart_figure(place, rows, range(len(rows)), controls, "accuracy over the clients, worst served first")


def chart_figure(place: int, rows: Sequence[Record], own: Sequence[int], controls: Sequence[Html], what: str) -> Html:
    """Controls, the picture, a legend that switches lines and shows their values, and the numbers as a table."""
    plot = element(
        "div", class_="plot", tabindex="0", role="slider", aria_label=f"{what}: position of the read-out",
        aria_valuemin="0", aria_valuemax="0", aria_valuenow="0",
    )  # fmt: skip
    canvas = element("div", element("p", class_="axis-title"), plot)
    buttons = [element("button", name, type="button", data_switch=on) for name, on in (("All", "on"), ("None", "off"))]
    legend = element(
        "fieldset",
        element("legend", "Methods"),
        element("p", class_="position"),
        element("ul", *(legend_entry(number, rows[number]) for number in own)),
        element("div", *buttons, class_="buttons"),
    )
    return element(
        "figure",
        element("div", *controls, class_="controls"),
        element("div", canvas, legend, class_="drawing"),
        element("p", class_="unseen", aria_live="polite"),
        element("noscript", element("p", "The picture needs JavaScript; the tables do not.")),
        element("figcaption", "Point at the picture, or use the arrow keys on it, to read values off."),
        as_table(what),
        class_="chart",
        data_rows=place,
    )


def as_table(what: str) -> Html:
    """Filled when it is opened."""
    return element("details", element("summary", "As a table"), frame(Html(), f"{what}, as a table"))


def select(control: str, label: str, options: Sequence[Html]) -> Html:
    """A choice; without one it is not shown."""
    menu = element("select", *options, data_control=control)
    return element("label", element("span", label), menu, hidden=len(options) == 1)


def spread_select() -> Html:
    return select("spread", "Spread", [element("option", label, value=key) for key, label in SPREADS.items()])


def axis_option(axis: str, label: str) -> Html:
    return element("option", label, value=axis, data_exact=axis == "rounds", data_log=axis == "bytes")


def window_option(size: int, chosen: bool) -> Html:
    return element("option", "none" if size == 1 else f"mean of last {size}", value=size, selected=chosen)


def legend_entry(place: int, row: Record) -> Html:
    line = element(
        "line", x1=1, y1=5, x2=33, y2=5, stroke=f"var(--colour-{row['colour']})", stroke_width=2,
        stroke_dasharray=row["dash"] or "none",
    )  # fmt: skip
    swatch = element("svg", line, width=34, height=10, aria_hidden="true")
    box = element("input", type="checkbox", checked=True, value=place)
    name = element("span", row["label"], class_="name")
    return element("li", element("label", box, swatch, name), element("span", class_="value"))


def map_figure(place: int, dealt: Sequence[Dealt]) -> Html:
    """Client by class; `place` is where the counts are among the page's numbers."""
    clients, classes = dealt[0].counts.shape
    drawn, largest = map_clients(dealt[0]), largest_share(dealt)
    part = f"The first {drawn} of {clients:,} clients. " if drawn < clients else ""
    what = f"Samples of {drawn} clients by {classes} classes"
    shades = [element("i", class_=f"level-{level}") for level in range(1, LEVELS + 1)]
    choice = select("partition", "Seed", [element("option", one.whose, value=n) for n, one in enumerate(dealt)])
    plot = element("div", class_="map", tabindex="0", role="application", aria_label=f"{what}; arrow keys move")
    return element(
        "figure",
        element("div", choice, class_="controls"),
        frame(plot, what),
        element("p", class_="readout", aria_live="polite"),
        element(
            "figcaption",
            f"{part}A column is a client, with its number of samples above; shades are shares of its samples: ",
            element("span", "0 ", element("span", *shades, aria_hidden="true"), f" {largest:.0%}", class_="shades"),
        ),
        as_table(what),
        class_="partition",
        data_maps=place,
        data_largest=largest,
    )
