"""Small multiples of a pivot: the curves of all methods, a picture for each value of a setting."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedwmsam.report.pivot import PivotTable
from fedwmsam.report.plots import COLOURS
from fedwmsam.report.series import Curve, compute_curve
from fedwmsam.report.summary import Goal

WIDTH = 230
HEIGHT = 150
MARGIN = 34
"""Pixels on the left and below, for the numbers at the axes."""


@dataclass(frozen=True)
class SmallLine:
    """The curve of a method in one picture, with its points as SVG writes them."""

    label: str
    colour: int
    points: str


@dataclass(frozen=True)
class SmallPicture:
    """The curves at one value of the setting."""

    title: str
    lines: Sequence[SmallLine]


@dataclass(frozen=True)
class SmallMultiples:
    """Pictures side by side on the same axes."""

    metric: str
    pictures: Sequence[SmallPicture]
    labels: Sequence[tuple[str, int]]
    """The methods, each with the index of its colour."""
    lowest: str
    highest: str
    rounds: int
    width: int = WIDTH
    height: int = HEIGHT
    margin: int = MARGIN


def small_multiples(table: PivotTable, goal: Goal) -> SmallMultiples | None:
    """Return the curves of a pivot's cells, or None if no cell has one."""
    curves: dict[tuple[int, int], Curve] = {}
    for number, row in enumerate(table.rows):
        for column, cell in enumerate(row.cells):
            curve = compute_curve(cell, goal.metric) if cell is not None else None
            if curve is not None and np.isfinite(curve.mean).any():
                curves[number, column] = curve
    if not curves:
        return None
    lowest = min(float(np.nanmin(curve.mean)) for curve in curves.values())
    highest = max(float(np.nanmax(curve.mean)) for curve in curves.values())
    rounds = max(float(curve.x[-1]) for curve in curves.values())
    pictures = []
    for column, title in enumerate(table.columns):
        lines = []
        for number, row in enumerate(table.rows):
            if (number, column) in curves:
                points = draw_points(curves[number, column], lowest, highest, rounds)
                lines.append(SmallLine(row.label, number % len(COLOURS), points))
        pictures.append(SmallPicture(title, lines))
    labels = [(row.label, number % len(COLOURS)) for number, row in enumerate(table.rows)]
    return SmallMultiples(
        goal.metric, pictures, labels, f"{lowest:.2f}", f"{highest:.2f}", int(rounds)
    )


def draw_points(curve: Curve, lowest: float, highest: float, rounds: float) -> str:
    """Return the points of a curve within a picture; values that are not finite are left out."""
    span = highest - lowest or 1.0
    points = []
    for x, y in zip(curve.x, curve.mean, strict=True):
        if np.isfinite(y):
            across = MARGIN + (WIDTH - MARGIN - 6) * x / (rounds or 1.0)
            up = 6 + (HEIGHT - MARGIN - 6) * (1 - (y - lowest) / span)
            points.append(f"{across:.1f},{up:.1f}")
    return " ".join(points)
