"""Results of a plan: the tables that set our numbers beside the paper's, and the plots.

`Results` reads a plan's runs cell by cell. A `PaperTable` is one table of a recipe; `Curves`,
`Lines` and `figures.Embeddings` are the kinds of plots that a recipe can have.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import numpy as np

from fedwmsam.engine.run_folder import is_run
from fedwmsam.paper.recipe import Column, Contender, Plan, Quantity
from fedwmsam.report.plots import (
    PlotSpec,
    draw_curves,
    draw_sweep,
    labels_with_column,
    legend_height,
    slug,
)
from fedwmsam.report.runs import LoadedRun, read_run, to_float
from fedwmsam.report.series import Sweep, SweepLine
from fedwmsam.report.summary import ACCURACY as ACCURACY_GOAL
from fedwmsam.report.summary import TAIL_EVALUATIONS, ResultRow, ResultTable, make_row
from fedwmsam.report.text_tables import MISSING, TextTable, run_notes, seeds_cell
from fedwmsam.statistics import Spread

NOT_REACHED = "-"
"""The paper's sign for an accuracy that was never reached."""


class Results:
    """A plan with the runs that a folder holds of it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.recipe = plan.recipe
        self.folder = folder
        self.runs: dict[Path, LoadedRun] = {}
        """The runs that have been read, by path."""
        self.rows: dict[tuple[str, str], ResultRow] = {}
        """The rows that have been made, by contender and column."""

    def row(self, contender: Contender, column: Column) -> ResultRow:
        """Return the result of a cell over its seeds, labelled with the contender's name."""
        key = contender.name, column.name
        if key not in self.rows:
            make = self.best_row if contender.best_of else self.own_row
            self.rows[key] = make(contender, column)
        return self.rows[key]

    def best_row(self, contender: Contender, column: Column) -> ResultRow:
        """Return the best row in this column among those that the contender is the best of."""
        rows = [self.row(self.recipe.contender(name), column) for name in contender.best_of]
        best = max(rows, key=lambda row: np.nan_to_num(column.quantity.value(row), nan=-math.inf))
        return replace(best, label=f"{contender.name}: {best.label}")

    def own_row(self, contender: Contender, column: Column) -> ResultRow:
        """Return the row of a contender's own runs in this column."""
        specs = [self.plan.run_spec(contender, column, seed) for seed in self.plan.seeds]
        paths = [spec.find_folder(self.folder) for spec in specs]
        runs = [run for run in map(self.run, filter(is_run, paths)) if run.config]
        config = specs[0].config.to_flat_dict()
        return make_row(contender.name, config, runs, column.quantity.goal)

    def run(self, path: Path) -> LoadedRun:
        """Return the run in this folder, read once."""
        if path not in self.runs:
            self.runs[path] = add_complement(read_run(path))
        return self.runs[path]

    def column_table(self, column: Column, names: Sequence[str] = ()) -> ResultTable:
        """Return a column as a table with a row for each contender, or for those of these names."""
        contenders = [
            contender
            for contender in self.recipe.contenders
            if not names or contender.name in names
        ]
        rows = tuple(self.row(contender, column) for contender in contenders)
        return ResultTable(column.name, {}, rows)

    def tables(self) -> list[TextTable]:
        """Return our numbers beside the paper's, then the tables of the recipe's analyses.

        There is a table for each view and kind of quantity.
        """
        kinds = list(dict.fromkeys(column.quantity.title for column in self.plan.columns))
        every_name = tuple(contender.name for contender in self.recipe.contenders)
        tables = []
        for view in self.recipe.views or (every_name,):
            tables += [PaperTable(self, view, kind).text_table() for kind in kinds]
        return tables + [analysis(self) for analysis in self.recipe.analyses]


class PaperTable:
    """A table of a recipe: a view's contenders in the columns that have one kind of quantity."""

    def __init__(self, results: Results, view: Sequence[str], kind: str) -> None:
        self.results = results
        self.recipe = results.recipe
        self.view = view
        self.columns = [column for column in results.plan.columns if column.quantity.title == kind]

    def text_table(self) -> TextTable:
        """Return the table as text, with the paper's numbers if it prints any."""
        recipe = self.recipe
        quantity = self.columns[0].quantity
        ours_against_reference = f"ours vs {recipe.reference}"
        if self.has_paper_numbers:
            header = (
                "row",
                "column",
                "seeds",
                "paper",
                *quantity.header,
                "ours − paper",
                f"paper vs {recipe.reference}",
                ours_against_reference,
            )
        else:
            header = ("row", "column", "seeds", *quantity.header, ours_against_reference)
        rows = []
        for column in self.columns:
            rows += [self.cells(name, column) for name in self.view]
        # Several views give several tables of the same quantity.
        view = f" ({len(self.view)} rows)" if recipe.views else ""
        scale = self.results.plan.scale
        title = f"{recipe.name} at scale {scale}, {recipe.title}: {quantity.title}{view}"
        return TextTable(title, header, tuple(rows), tuple(self.notes(quantity)))

    @cached_property
    def has_paper_numbers(self) -> bool:
        """Return whether the paper prints a number for any cell of the table."""
        for name in self.view:
            if any((name, column.name) in self.recipe.paper_numbers for column in self.columns):
                return True
        return False

    def cells(self, name: str, column: Column) -> tuple[str, ...]:
        """Return the row of a contender in a column."""
        quantity = column.quantity
        reference_name = self.recipe.reference
        row = self.results.row(self.recipe.contender(name), column)
        reference = self.results.row(self.recipe.contender(reference_name), column)
        ours = quantity.cells(row)
        gain = quantity.gain(row, reference)
        if not self.has_paper_numbers:
            return row.label, column.name, seeds_cell(row), *ours, gain
        paper_numbers = self.recipe.paper_numbers
        printed = paper_numbers.get((name, column.name), MISSING)
        paper_value = parse_paper_number(paper_numbers.get((name, column.name)))
        paper_reference = parse_paper_number(paper_numbers.get((reference_name, column.name)))
        return (
            row.label,
            column.name,
            seeds_cell(row),
            "not reached" if printed == NOT_REACHED else printed,
            *ours,
            quantity.difference(quantity.value(row), paper_value),
            quantity.comparison(paper_value, paper_reference),
            gain,
        )

    def notes(self, quantity: Quantity) -> Iterator[str]:
        """Yield what a reader of the table must know: differences, remarks, seeds, single runs."""
        differences = self.results.plan.differences_to_paper_scale()
        if differences:
            is_printed = bool(self.recipe.labels)
            setting = "the paper's setting" if is_printed else "the setting of --scale paper"
            yield f"Not {setting}: {', '.join(differences)}."
        if differences and self.has_paper_numbers:
            yield (
                "So ours − paper says little; "
                f"what compares is the gain on {self.recipe.reference}."
            )
        yield from filter(None, (quantity.remark, *self.recipe.remarks))
        if len(self.results.plan.seeds) == 1:
            yield "One seed has no spread: whether another would turn the order round is not known."
        tables = [self.results.column_table(column, self.view) for column in self.columns]
        if any(map(has_short_runs, tables)):
            yield (
                f"Some runs have fewer than {TAIL_EVALUATIONS} evaluations; "
                "their mean is over those."
            )
        notes_on_runs = [run_notes(table, quantity.goal) for table in tables]
        yield from dict.fromkeys(chain.from_iterable(notes_on_runs))
        for run in self.results.runs.values():
            if not run.config:
                yield f"{run.path}: {run.status_message}; not counted."


def has_short_runs(table: ResultTable) -> bool:
    """Return whether some run has fewer evaluations than the mean of the last ones is over."""
    return any(score.evaluations < TAIL_EVALUATIONS for score in table.scores)


def parse_paper_number(text: str | None) -> float:
    """Return a printed number as a float, NaN if there is none or it was not reached."""
    return math.nan if text in (None, NOT_REACHED) else float(text)


def add_complement(run: LoadedRun) -> LoadedRun:
    """Return the run with the metric "one minus similarity", which the paper plots."""
    records = []
    for record in run.round_records:
        if "similarity" in record:
            record = record | {"one_minus_similarity": 1 - to_float(record["similarity"])}
        records.append(record)
    return replace(run, round_records=records)


@dataclass(frozen=True)
class Curves:
    """Plots of a column of the metrics over the rounds, one for each setting."""

    column: str = "accuracy"

    @property
    def name(self) -> str:
        """Return the name of the plots' files, without the setting."""
        return f"{slug(self.column)}-over-rounds"

    def plots(self, results: Results) -> Iterator[PlotSpec]:
        """Yield a plot for each setting with runs that have the column."""
        settings = {str(setting.values): setting for setting in results.plan.columns}.values()
        for setting in settings:
            table = drop_empty_rows(results.column_table(setting))
            labels = labels_with_column(table, self.column)
            if labels:
                suffix = f"-{slug(setting.name)}" if len(settings) > 1 else ""
                draw = partial(draw_curves, table, self.column, "rounds")
                yield self.name + suffix, 2.0 + legend_height(labels), draw


@dataclass(frozen=True)
class Lines:
    """A plot of each contender's accuracy over the columns."""

    axis: str
    """Label of the x axis."""
    name: str
    """Name of the plot's file."""

    def plots(self, results: Results) -> Iterator[PlotSpec]:
        """Yield the plot, if there are runs."""
        tables = []
        rows: list[ResultRow] = []
        for column in results.plan.columns:
            table = drop_empty_rows(results.column_table(column))
            tables.append((column.x, table))
            rows += table.rows
        lines = []
        for contender in results.recipe.contenders:
            spreads = spreads_by_x(tables, contender.name)
            if spreads:
                lines.append(SweepLine(contender.name, tuple(spreads), tuple(spreads.values())))
        if lines:
            all_rows = ResultTable("", {}, tuple(rows))
            height = 2.0 + legend_height([line.label for line in lines])
            draw = partial(draw_sweep, all_rows, ACCURACY_GOAL, Sweep(self.axis, tuple(lines)))
            yield self.name, height, draw


def spreads_by_x(
    tables: Sequence[tuple[float | None, ResultTable]], label: str
) -> dict[float, Spread]:
    """Return the accuracy of the row with this label at each position on the x axis."""
    spreads = {}
    for x, table in tables:
        for row in table.rows:
            if row.label == label and x is not None:
                spread = row.spread("tail")
                if spread is not None:
                    spreads[x] = spread
    return spreads


def drop_empty_rows(table: ResultTable) -> ResultTable:
    """Return the table without rows that have no runs."""
    return replace(table, rows=tuple(row for row in table.rows if row.scores))
