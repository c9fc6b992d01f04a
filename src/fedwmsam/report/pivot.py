"""Method × setting tables as papers print them: a row a method, a column a value of a setting.

`pivot_tables` arranges the rows of a comparison, `pivot_text_tables` makes text of them. A setting
may be one that runs of one table share, such as the partition, one in which rows of a table
differ, such as the step size, or an option of methods.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.report.runs import (
    format_value,
    make_labels,
    make_titles,
    omitted_values,
    varying_keys,
)
from fedwmsam.report.summary import Comparison, Goal, ResultRow, compute_difference
from fedwmsam.report.text_tables import (
    MISSING,
    NOT_FINITE,
    TextTable,
    digits_of,
    float_format,
    seeds_cell,
)
from fedwmsam.report.varied_settings import PlacedRow, place_rows, varied_settings
from fedwmsam.settings.method_table import method_title

UNDECIDED = "†"
"""The mark of a value that cannot be told from the best of its column."""


@dataclass(frozen=True)
class PivotRow:
    """A method, with whatever else tells it from the other rows, over the columns of a pivot."""

    label: str
    cells: tuple[ResultRow | None, ...]
    """The results at the value of each column, None where there is no run."""
    missing_option: str | None = None
    """The option of the columns that the method does not have: its results are in all of them."""

    @property
    def results(self) -> list[ResultRow]:
        """Return the results of the columns that have some."""
        return [cell for cell in self.cells if cell is not None]

    def mean(self, column: int) -> float:
        """Return the mean over the seeds in a column, NaN where there is none."""
        cell = self.cells[column]
        spread = cell and cell.spread("tail")
        return spread.mean if spread else math.nan


@dataclass(frozen=True)
class PivotTable:
    """Methods by the values of one setting or several, with equal values of everything else."""

    title: str
    keys: tuple[str, ...]
    """The settings whose values are the columns."""
    columns: tuple[str, ...]
    rows: tuple[PivotRow, ...]
    evaluations: int
    """The largest number of evaluations of which a value is the mean."""
    omitted_values: tuple[str, ...]
    """Values that the labels leave out because most rows have them."""
    column_remarks: tuple[str, ...]
    """What else differs between the columns."""

    def means(self, column: int) -> list[float]:
        """Return the means of all rows in a column, NaN where there is none."""
        return [row.mean(column) for row in self.rows]


def pivot_text_tables(comparison: Comparison, keys: str | None = None) -> list[TextTable]:
    """Return the text of the pivot tables by these settings, separated by commas.

    If they are None and exactly one setting varies over several methods, that one is taken. Raise
    InputError if a setting does not vary.
    """
    if keys is not None:
        tables = pivot_tables(comparison, parse_keys(comparison, keys))
    else:
        tables = default_pivot_tables(comparison)
    return [pivot_text_table(table, comparison.goal) for table in tables]


# Arranging


def parse_keys(comparison: Comparison, text: str) -> tuple[str, ...]:
    """Return the settings named in a text such as "dataset,partition".

    Raise InputError if one of them does not vary over the runs.
    """
    keys = [part.strip().replace("-", "_") for part in text.split(",") if part.strip()]
    varied = varied_settings(place_rows(comparison))
    if not varied:
        raise InputError("--pivot needs a setting that varies, and these runs differ in none.")
    if not keys:
        raise InputError(f"--pivot needs a setting that varies: {', '.join(varied)}.")
    for key in keys:
        if key not in varied:
            raise InputError(
                unknown_name_message("setting to pivot by", key, varied)
                + " These are what the runs differ in."
            )
    return tuple(dict.fromkeys(keys))


def default_pivot_tables(comparison: Comparison) -> list[PivotTable]:
    """Return the pivot tables by the only setting that varies.

    There are none if several do, or if not at least two rows have several values of their own.
    """
    varied = varied_settings(place_rows(comparison))
    if len(varied) != 1:
        return []
    return [table for table in pivot_tables(comparison, tuple(varied)) if compares_rows(table)]


def compares_rows(table: PivotTable) -> bool:
    """Return whether two rows or more have results of their own in several columns."""
    own_rows = [row for row in table.rows if row.missing_option is None]
    return sum(len(row.results) > 1 for row in own_rows) > 1


def pivot_tables(comparison: Comparison, keys: tuple[str, ...]) -> list[PivotTable]:
    """Return a table by these settings for each group of runs that are otherwise comparable."""
    placed_rows = place_rows(comparison)
    ignored_keys = {*keys, *following_keys(placed_rows, keys)}
    groups: dict[str, list[PlacedRow]] = {}
    shared_settings: dict[str, Record] = {}
    for placed in placed_rows:
        shared = placed.table.shared_settings
        kept = {key: None if key in ignored_keys else shared[key] for key in shared}
        name = json.dumps(kept, sort_keys=True, default=str)
        groups.setdefault(name, []).append(placed)
        shared_settings[name] = kept
    titles = make_titles(list(shared_settings.values()))
    return [
        make_pivot_table(title, group, keys)
        for title, group in zip(titles, groups.values(), strict=True)
    ]


def following_keys(placed_rows: Sequence[PlacedRow], keys: Sequence[str]) -> list[str]:
    """Return what must be equal in a table of a report but differs from column to column only.

    With the data set, its hash and perhaps the model do.
    """
    tables = [placed.table.shared_settings for placed in placed_rows]
    following = []
    for key in varying_keys(tables):
        values: dict[str, set[str]] = {}
        for placed in placed_rows:
            column = str(placed.values(keys))
            values.setdefault(column, set()).add(str(placed.table.shared_settings[key]))
        if key not in keys and all(len(found) == 1 for found in values.values()):
            following.append(key)
    return following


def make_pivot_table(
    title: str, placed_rows: Sequence[PlacedRow], keys: tuple[str, ...]
) -> PivotTable:
    """Return the table of rows that differ in these settings, and in what tells them apart."""
    values_of_columns = find_columns(placed_rows, keys)
    groups: dict[str, list[PlacedRow]] = {}
    configs: dict[str, Record] = {}
    titles = unique_titles([placed.row.method for placed in placed_rows])
    for placed in placed_rows:
        config = {key: value for key, value in placed.row.config.items() if key not in keys}
        config["method"] = titles[placed.row.method]
        name = json.dumps(config, sort_keys=True, default=str)
        groups.setdefault(name, []).append(placed)
        configs[name] = config
    rows = [
        make_pivot_row(label, group, keys, values_of_columns)
        for label, group in zip(make_labels(list(configs.values())), groups.values(), strict=True)
    ]
    return PivotTable(
        title,
        keys,
        tuple(column_name(keys, values) for values in values_of_columns),
        tuple(rows),
        max(placed.table.evaluations for placed in placed_rows),
        tuple(omitted_values(list(configs.values()))),
        tuple(column_remarks(placed_rows, keys, values_of_columns)),
    )


def find_columns(placed_rows: Sequence[PlacedRow], keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of the columns, sorted; rows without one of the options have none."""
    found = set()
    for placed in placed_rows:
        if not any(map(placed.has_no, keys)):
            found.add(placed.values(keys))
    return sorted(found, key=lambda values: list(map(sort_key, values)))


def sort_key(value: Any) -> tuple[int, float, str]:
    """Return a key that sorts numbers by size, before texts by name."""
    is_number = isinstance(value, int | float)
    return (0, float(value), "") if is_number else (1, 0.0, format_value(value))


def unique_titles(methods: Iterable[str]) -> dict[str, str]:
    """Return the title of each method, or its name where two methods have the same title."""
    titles = {method: method_title(method) for method in methods}
    counts = list(titles.values())
    return {
        method: title if counts.count(title) == 1 else method for method, title in titles.items()
    }


def make_pivot_row(
    label: str,
    placed_rows: Sequence[PlacedRow],
    keys: Sequence[str],
    values_of_columns: Sequence[tuple[Any, ...]],
) -> PivotRow:
    """Return the row of results that differ only in the settings of the columns."""
    cells = []
    for values in values_of_columns:
        found = [placed.row for placed in placed_rows if placed.is_at(keys, values)]
        cells.append(found[0] if found else None)
    missing_options = [key for key in keys if placed_rows[0].has_no(key)]
    return PivotRow(label, tuple(cells), missing_options[0] if missing_options else None)


def column_name(keys: Sequence[str], values: Sequence[Any]) -> str:
    """Return the header of a column: texts as they are, other values with their settings."""
    parts = []
    for key, value in zip(keys, values, strict=True):
        parts.append(value if isinstance(value, str) else f"{key}={format_value(value)}")
    return ", ".join(parts)


def column_remarks(
    placed_rows: Sequence[PlacedRow],
    keys: Sequence[str],
    values_of_columns: Sequence[tuple[Any, ...]],
) -> Iterator[str]:
    """Yield for each column what its runs have that those of other columns have not.

    That another data set has another hash goes without saying.
    """
    shared_settings = [placed.table.shared_settings for placed in placed_rows]
    differing = [key for key in varying_keys(shared_settings) if key not in keys]
    if "dataset" in keys:
        differing = [key for key in differing if key != "data_hash"]
    for values in values_of_columns if differing else ():
        shared = next(
            placed.table.shared_settings for placed in placed_rows if placed.values(keys) == values
        )
        listed = ", ".join(f"{key}={format_value(shared[key])}" for key in differing)
        yield f"{column_name(keys, values)}: {listed}"


# Judging


def best_mean(table: PivotTable, column: int, goal: Goal) -> int | None:
    """Return the index of the row with the best mean in a column, None if there is none."""
    means = {index: mean for index, mean in enumerate(table.means(column)) if math.isfinite(mean)}
    if goal.higher_is_better is None or not means:
        return None
    sign = 1 if goal.higher_is_better else -1
    return max(means, key=lambda index: sign * means[index])


def is_undecided(row: ResultRow, best: ResultRow, goal: Goal) -> bool:
    """Return whether a row cannot be told from the best one.

    That is so if the interval of their paired difference includes zero, or if they have too few
    common seeds for one.
    """
    low, high = compute_difference(row, best, goal).interval
    return not (low > 0 or high < 0)


def ranked_columns(table: PivotTable) -> list[int]:
    """Return the columns in which every row has a value; only these rank the rows."""
    columns = range(len(table.columns))
    return [column for column in columns if all(map(math.isfinite, table.means(column)))]


def mean_rank(table: PivotTable, row: PivotRow, goal: Goal) -> float:
    """Return the mean of a row's ranks in the ranked columns, NaN if there are none.

    Rows with the same mean share the ranks that they take together.
    """
    ranks = []
    sign = 1 if goal.higher_is_better else -1
    for column in ranked_columns(table):
        means = [sign * mean for mean in table.means(column)]
        own_mean = sign * row.mean(column)
        better = sum(mean > own_mean for mean in means)
        ranks.append(better + (means.count(own_mean) + 1) / 2)
    return sum(ranks) / len(ranks) if ranks else math.nan


# Text


def pivot_text_table(table: PivotTable, goal: Goal) -> TextTable:
    """Return the text of a pivot table: the best value of a column bold, with the mean ranks."""
    means = chain.from_iterable(table.means(column) for column in range(len(table.columns)))
    largest = max(map(abs, filter(math.isfinite, means)), default=0.0)
    digits = digits_of(goal) or float_format(largest)
    best_rows = [best_mean(table, column, goal) for column in range(len(table.columns))]
    best_cells = [
        None if best is None else table.rows[best].cells[column]
        for column, best in enumerate(best_rows)
    ]
    rows = []
    for row in table.rows:
        cells = [
            pivot_cell(cell, digits) + undecided_mark(cell, best, goal)
            for cell, best in zip(row.cells, best_cells, strict=True)
        ]
        rank = math.nan if goal.higher_is_better is None else mean_rank(table, row, goal)
        rows.append((row.label, *cells, MISSING if math.isnan(rank) else f"{rank:.2f}"))
    bold_cells = {(row, column + 1) for column, row in enumerate(best_rows) if row is not None}
    return TextTable(
        f"{goal.metric} by {', '.join(table.keys)}: {table.title}",
        ("method", *table.columns, "mean rank"),
        tuple(rows),
        tuple(pivot_notes(table, goal, rows)),
        kind="pivot",
        bold_cells=frozenset(bold_cells),
    )


def pivot_cell(cell: ResultRow | None, digits: str) -> str:
    """Return mean ± deviation over the seeds, all cells of a table with the same digits."""
    spread = cell and cell.spread("tail")
    if not spread:
        return MISSING
    if math.isnan(spread.mean):
        return NOT_FINITE
    mean = f"{spread.mean:{digits}}"
    return mean if spread.n < 2 else f"{mean} ± {spread.deviation:{digits}}"


def undecided_mark(cell: ResultRow | None, best: ResultRow | None, goal: Goal) -> str:
    """Return the mark of a value that is not the best, but cannot be told from it."""
    if cell is None or best is None or cell is best or not cell.scores:
        return ""
    return f" {UNDECIDED}" if is_undecided(cell, best, goal) else ""


def pivot_notes(table: PivotTable, goal: Goal, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield notes on how to read a pivot table, and on what is missing in it."""
    yield reading_note(table)
    if goal.higher_is_better is None:
        yield f"Whether a higher or a lower {goal.metric} is better is not known: say --better."
    else:
        yield from judging_notes(table, rows)
    if table.omitted_values:
        yield f"Where a row does not say otherwise: {'; '.join(table.omitted_values)}."
    if table.column_remarks:
        yield f"The columns also differ in other settings: {'; '.join(table.column_remarks)}."
    for row in table.rows:
        if row.missing_option is not None:
            yield f"{row.label} has no {row.missing_option}: the same runs are in each column."
    uncounted = []
    for row in table.rows:
        for name, cell in zip(table.columns, row.cells, strict=True):
            if cell is not None and cell.excluded_runs and row.missing_option is None:
                uncounted.append(f"{row.label}, {name}: {seeds_cell(cell)}")
    if uncounted:
        yield f"Not all seeds count: {'; '.join(uncounted)}."


def reading_note(table: PivotTable) -> str:
    """Return what the values are and over how many seeds."""
    results = chain.from_iterable(row.results for row in table.rows)
    cells = [cell for cell in results if cell.scores]
    counts = sorted({len(cell.scores) for cell in cells})
    evaluations = f"the last {table.evaluations} evaluations"
    value = f"Mean of {evaluations}" if table.evaluations > 1 else "The last evaluation"
    if not counts or counts == [1]:
        return f"{value}, one seed."
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    text = f"{value}; mean ± standard deviation (n − 1) over {seeds} seeds"
    if len({tuple(cell.seeds) for cell in cells}) > 1:
        return f"{text}, which are not the same everywhere."
    return f"{text}."


def judging_notes(table: PivotTable, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield notes on the best values, the marks and the ranks."""
    yield "Bold: the best mean of a column."
    if any(cell.endswith(UNDECIDED) for cell in chain.from_iterable(rows)):
        yield (
            f"{UNDECIDED} cannot be told from the best: the 95% interval of the paired difference "
            "over common seeds includes 0, or there are fewer than two such seeds. Each "
            "comparison stands alone, without correction for their number."
        )
    ranked = len(ranked_columns(table))
    columns = len(table.columns)
    if 0 < ranked < columns:
        yield f"Mean rank (1 is best): over the {ranked} of {columns} columns without a gap."
    elif ranked:
        yield "Mean rank: of the means, over the columns; 1 is best."
