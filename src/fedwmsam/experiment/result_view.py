"""A result as a notebook shows it: a small curve and a table, in HTML that needs nothing else."""

from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[int, float]]
"""(round, value) of the rounds that have a value."""

WIDTH = 320
HEIGHT = 110
LEFT = 52
"""Pixels for the labels on the left."""
MARGIN = 16
MAX_POINTS = 200
"""Points of a curve at most: a notebook keeps the picture, and a screen shows no more."""


def render_result(title: str, facts: Mapping[str, str], metric: str, points: Points) -> str:
    """Return HTML with a table of the facts, and beside it the curve of the metric."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    picture = render_curve(metric, points) if points else ""
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:center">'
        f"<table><caption><b>{escape(title)}</b></caption>{rows}</table>{picture}</div>"
    )


def render_curve(metric: str, points: Points) -> str:
    """Return an SVG picture of the metric by round; its text has the colour of the page's."""
    points = thin_out(points)
    first = points[0][0]
    last = points[-1][0]
    low = min(value for _, value in points)
    high = max(value for _, value in points)
    across = (WIDTH - LEFT - MARGIN) / max(last - first, 1)
    upwards = (HEIGHT - 2 * MARGIN) / (high - low or 1)
    places = [
        f"{LEFT + across * (round - first):.1f},{HEIGHT - MARGIN - upwards * (value - low):.1f}"
        for round, value in points
    ]
    x, y = places[-1].split(",")
    texts = (
        render_text(LEFT - 6, MARGIN + 4, "end", f"{high:.4g}" if high > low else "")
        + render_text(LEFT - 6, HEIGHT - MARGIN, "end", f"{low:.4g}")
        + render_text(LEFT, HEIGHT - 2, "start", f"round {first}")
        + render_text(WIDTH - MARGIN, HEIGHT - 2, "end", str(last) if last > first else "")
        + render_text((LEFT + WIDTH) // 2, 10, "middle", metric)
    )
    return (
        f'<svg role="img" aria-label="{escape(metric)} by round" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-size="10" fill="currentColor">{texts}'
        f'<polyline points="{" ".join(places)}" fill="none" stroke="#2f7ed8" stroke-width="1.5"/>'
        f'<circle cx="{x}" cy="{y}" r="2.5" fill="#2f7ed8"/></svg>'
    )


def render_text(x: int, y: int, anchor: str, text: str) -> str:
    """Return a label of the picture."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def thin_out(points: Points) -> Points:
    """Return at most MAX_POINTS of the points, evenly spread, with the first and the last."""
    if len(points) <= MAX_POINTS:
        return points
    step = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(number * step)] for number in range(MAX_POINTS)]
