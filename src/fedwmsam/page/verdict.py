"""What a table says, in a sentence and in a picture: who leads, by how much, and how surely."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedwmsam.report.summary import (
    Goal,
    PairedDifference,
    ResultRow,
    ResultTable,
    compute_difference,
)
from fedwmsam.report.text_tables import COSTS, TextTable, can_be_significant, seeds_needed

ROW_HEIGHT = 46
"""Pixels of a row of the picture: a line of text, the interval, and on phones another line."""
MARGIN = 2.0
"""Percent of the picture's width on either side, where the ends of the intervals have space."""


def verdict(table: ResultTable, goal: Goal) -> str:
    """Return in a sentence who is ahead in a table, by how much, and how surely.

    It is empty if there is nobody to compare, or if nobody knows which way the metric is better.
    """
    compared = choose_rows(table, goal)
    if compared is None:
        return ""
    leader, second = compared
    difference = compute_difference(leader, second, goal)
    count = len(difference.seeds)
    if count == 0:
        return f"{leader.label} is ahead of {second.label}, but they have no seed in common."
    lead = f"{abs(difference.mean):.4f}"
    cost = describe_cost(leader, second)
    if count == 1:
        return (
            f"{leader.label} is ahead of {second.label} by {lead} on the one seed that both have, "
            f"for {cost}; whether another seed would turn that round is not known."
        )
    tests = count_comparisons(table)
    if not can_be_significant(count, tests):
        return (
            f"{leader.label} is ahead of {second.label} by {lead} on {count} seeds, too few to "
            f"settle it (that takes {seeds_needed(tests)}), for {cost}."
        )
    low, high = sorted(map(abs, difference.interval))
    if is_told_apart(difference):
        return (
            f"{leader.label} leads {second.label} by {lead} on {count} seeds "
            f"(95% interval {low:.4f} to {high:.4f}), for {cost}."
        )
    return (
        f"{leader.label} and {second.label} cannot be told apart on {count} seeds: {lead} is "
        f"between them, and the 95% interval holds 0; {leader.label} takes {cost}."
    )


def choose_rows(table: ResultTable, goal: Goal) -> tuple[ResultRow, ResultRow] | None:
    """Return the two rows that the verdict compares, the better one first, None if there are none.

    They are the baseline, if one was named, and the best other row; else the row that leads and the
    best one of another method, if there is another. A row and the average of its own models are not
    compared, and averages with averages where that is possible.
    """
    ranked = rank_rows(table, goal)
    named = [row for row in ranked if row.label == table.baseline]
    references = named or ranked[:1]
    if not references:
        return None
    reference = references[0]
    others = [row for row in ranked if row.trained_config != reference.trained_config]
    if not named:
        others = [row for row in others if row.method != reference.method] or others
    rivals = select_alike(others, reference)
    if not rivals:
        return None
    first, second = sorted((reference, rivals[0]), key=ranked.index)
    return first, second


def select_alike(rows: Sequence[ResultRow], reference: ResultRow) -> Sequence[ResultRow]:
    """Return the averages of rows to compare with an average, else those that are no twins.

    If there are none, all rows are returned.
    """
    if is_average(reference):
        alike = [row for row in rows if is_average(row)]
    else:
        alike = [row for row in rows if not row.is_averaged_model]
    return alike or rows


def is_average(row: ResultRow) -> bool:
    """Return whether a row's models are averages: a twin, or what FedWMSAM-plus hands over."""
    return row.is_averaged_model or "average_power" in row.config


def count_comparisons(table: ResultTable) -> int:
    """Return how many differences the reader of a table is shown, of which one may be chance."""
    if table.baseline is not None:
        return sum(bool(difference.seeds) for difference in table.differences)
    return sum(bool(row.scores) for row in table.rows) - 1


def rank_rows(table: ResultTable, goal: Goal) -> list[ResultRow]:
    """Return the rows with a result, the best mean of the last evaluations first."""
    if goal.higher_is_better is None:
        return []
    means = []
    for row in table.rows:
        spread = row.spread("tail")
        if spread is not None and math.isfinite(spread.mean):
            means.append((spread.mean, row))
    means.sort(key=lambda pair: pair[0], reverse=goal.higher_is_better)
    return [row for _, row in means]


def is_told_apart(difference: PairedDifference) -> bool:
    """Return whether the interval of a difference does not hold 0."""
    low, high = difference.interval
    return low > 0 or high < 0


def describe_cost(row: ResultRow, other: ResultRow) -> str:
    """Return in words how many backprops and bytes a row takes of those of another one."""
    parts = []
    for cost, words in (("backprops", "backprops"), ("bytes", "bytes sent")):
        mine = row.total(cost).mean
        theirs = other.total(cost).mean
        if math.isfinite(mine) and theirs > 0:
            ratio = f"{mine / theirs:.3g}"
            parts.append(f"as many {words}" if ratio == "1" else f"{ratio} times the {words}")
    return " and ".join(parts) or "an unknown cost"


def best_cells(results: TextTable, goal: Goal) -> frozenset[tuple[int, int]]:
    """Return the row and column of the best value of each column of results; ties are all best.

    Costs have no mark: cheap is not good by itself.
    """
    marked: set[tuple[int, int]] = set()
    if goal.higher_is_better is None or len(results.rows) < 2:
        return frozenset()
    choose = max if goal.higher_is_better else min
    for column, name in enumerate(results.header):
        if name in ("method", "seeds", *COSTS):
            continue
        values = {}
        for number, row in enumerate(results.rows):
            value = leading_number(row[column])
            if value is not None:
                values[number] = value
        best = choose(values.values(), default=None)
        marked |= {(number, column) for number, value in values.items() if value == best}
    return frozenset(marked)


def leading_number(cell: str) -> float | None:
    """Return the number that a cell begins with, such as 0.81 in "0.81 ± 0.02"."""
    try:
        return float(cell.partition(" ")[0].replace("−", "-"))
    except ValueError:
        return None


@dataclass(frozen=True)
class ForestRow:
    """A paired difference as it is drawn."""

    label: str
    text: str
    top: int
    """The upper edge of the row in pixels."""
    x: float
    """The position of the difference, as others in percent of the picture's width."""
    low: float | None
    """The interval's ends; None for both if there is no interval."""
    high: float | None


@dataclass(frozen=True)
class ForestPlot:
    """Paired differences to one row, with their intervals, one above the other."""

    reference: str
    rows: Sequence[ForestRow]
    zero: float
    """The position of no difference."""
    height: int

    @property
    def zero_anchor(self) -> str:
        """Return which end of the words at zero stands there, so that none is cut off."""
        if self.zero < 30:
            return "start"
        return "end" if self.zero > 70 else "middle"


def forest_plot(table: ResultTable, goal: Goal) -> ForestPlot | None:
    """Return the differences of a table's rows to its baseline, or to the row that leads.

    None if there are none.
    """
    differences = list(table.differences)
    reference = table.baseline
    if reference is None:
        ranked = rank_rows(table, goal)
        reference = ranked[0].label if ranked else ""
        differences = [compute_difference(row, ranked[0], goal) for row in ranked[1:]]
    shown = [d for d in differences if d.seeds and math.isfinite(d.mean)]
    if not shown:
        return None
    ends = [0.0]
    for difference in shown:
        ends += filter(math.isfinite, (difference.mean, *difference.interval))
    lowest = min(ends)
    span = max(ends) - lowest or 1.0

    def place(value: float) -> float:
        return round(MARGIN + (value - lowest) / span * (100 - 2 * MARGIN), 2)

    rows = []
    for number, difference in enumerate(shown):
        has_interval = all(map(math.isfinite, difference.interval))
        low, high = map(place, difference.interval) if has_interval else (None, None)
        rows.append(
            ForestRow(
                difference.label,
                describe_difference(difference),
                ROW_HEIGHT * number,
                place(difference.mean),
                low,
                high,
            )
        )
    return ForestPlot(reference, rows, place(0.0), ROW_HEIGHT * len(rows) + 24)


def describe_difference(difference: PairedDifference) -> str:
    """Return a difference with its interval, if it has one, as text."""
    text = f"{difference.mean:+.4f}"
    low, high = difference.interval
    if math.isfinite(low) and math.isfinite(high):
        text += f" ({low:+.4f} to {high:+.4f})"
    return text.replace("-", "−")
