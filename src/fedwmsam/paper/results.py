"""What a plan's runs say: numbers taken from a cell's runs, all cells beside the paper's, and pictures."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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

NOT_REACHED = "-"


class Results:
    """A plan and its runs below a folder."""

    def __init__(self, plan: Plan, runs: Path) -> None:
        self.plan, self.recipe, self.place = plan, plan.recipe, runs
        self.runs: dict[Path, LoadedRun] = {}
        self.rows: dict[tuple[str, str], ResultRow] = {}

    def row(self, contender: Contender, column: Column) -> ResultRow:
        """A cell over its seeds, under the contender's name."""
        key = contender.name, column.name
        if key not in self.rows:
            self.rows[key] = (
                self.best(contender, column) if contender.best_of else self.own(contender, column)
            )
        return self.rows[key]

    def best(self, contender: Contender, column: Column) -> ResultRow:
        rows = [self.row(self.recipe.contender(name), column) for name in contender.best_of]
        best = max(rows, key=lambda row: np.nan_to_num(column.quantity.value(row), nan=-math.inf))
        return replace(best, label=f"{contender.name}: {best.label}")

    def own(self, contender: Contender, column: Column) -> ResultRow:
        members = [self.plan.member(contender, column, seed) for seed in self.plan.seeds]
        paths = [member.place(self.place) for member in members]
        found = [run for run in map(self.run, filter(is_run, paths)) if run.config]
        return make_row(contender.name, members[0].config.flat(), found, column.quantity.goal)

    def run(self, path: Path) -> LoadedRun:
        if path not in self.runs:
            self.runs[path] = with_complement(read_run(path))
        return self.runs[path]

    def table(self, column: Column, names: Sequence[str] = ()) -> ResultTable:
        """A column as a table of a report."""
        wanted = [
            contender
            for contender in self.recipe.contenders
            if not names or contender.name in names
        ]
        return ResultTable(
            column.name, {}, tuple(self.row(contender, column) for contender in wanted)
        )

    def sheets(self) -> list[TextTable]:
        """The paper's numbers beside ours, one sheet for each view and kind of quantity; then further analyses."""
        kinds = list(dict.fromkeys(column.quantity.title for column in self.plan.columns))
        views = self.recipe.views or (
            tuple(contender.name for contender in self.recipe.contenders),
        )
        return [PaperTable(self, view, kind).sheet() for view in views for kind in kinds] + [
            analysis(self) for analysis in self.recipe.analyses
        ]


class PaperTable:
    """One sheet: a view's contenders in the columns that hold one kind of quantity."""

    def __init__(self, results: Results, view: Sequence[str], kind: str) -> None:
        self.results, self.recipe, self.view = results, results.recipe, view
        self.columns = [column for column in results.plan.columns if column.quantity.title == kind]

    def sheet(self) -> TextTable:
        quantity, recipe, plan = self.columns[0].quantity, self.recipe, self.results.plan
        header = ["row", "column", "seeds", *quantity.header, f"ours vs {recipe.reference}"]
        if self.has_paper:
            header[3:3] = ["paper"]
            header[-1:] = [
                "ours − paper",
                f"paper vs {recipe.reference}",
                f"ours vs {recipe.reference}",
            ]
        rows = tuple(self.line(name, column) for column in self.columns for name in self.view)
        which = (
            f" ({len(self.view)} rows)" if recipe.views else ""
        )  # several sheets of the same quantity
        title = f"{recipe.name} at scale {plan.scale}, {recipe.title}: {quantity.title}{which}"
        return TextTable(title, tuple(header), rows, tuple(self.notes(quantity)))

    @cached_property
    def has_paper(self) -> bool:
        return any(
            (name, column.name) in self.recipe.printed
            for name in self.view
            for column in self.columns
        )

    def line(self, name: str, column: Column) -> tuple[str, ...]:
        quantity, printed = column.quantity, self.recipe.printed
        row, reference = (
            self.results.row(self.recipe.contender(who), column)
            for who in (name, self.recipe.reference)
        )
        ours, gain = (*quantity.cells(row),), quantity.gain(row, reference)
        if not self.has_paper:
            return row.label, column.name, seeds_cell(row), *ours, gain
        text = printed.get((name, column.name), MISSING)
        paper, paper_reference = (
            as_number(printed.get((who, column.name))) for who in (name, self.recipe.reference)
        )
        return (
            row.label,
            column.name,
            seeds_cell(row),
            "not reached" if text == NOT_REACHED else text,
            *ours,
            quantity.apart(quantity.value(row), paper),
            quantity.relation(paper, paper_reference),
            gain,
        )

    def notes(self, quantity: Quantity) -> Iterator[str]:
        departures = self.results.plan.departures()
        if departures:
            whose = "the paper's setting" if self.recipe.labels else "the setting of --scale paper"
            yield f"Not {whose}: {', '.join(departures)}."
        if departures and self.has_paper:
            yield f"So ours − paper says little; what compares is the gain on {self.recipe.reference}."
        yield from filter(None, (quantity.remark, *self.recipe.remarks))
        if len(self.results.plan.seeds) == 1:
            yield "One seed has no spread: whether another would turn the order round is not known."
        tables = [self.results.table(column, self.view) for column in self.columns]
        if any(score.evaluations < TAIL_EVALUATIONS for table in tables for score in table.scores):
            yield f"Some runs have fewer than {TAIL_EVALUATIONS} evaluations; their mean is over those."
        yield from dict.fromkeys(
            line for table in tables for line in run_notes(table, quantity.goal)
        )
        yield from (
            f"{run.path}: {run.remark}; not counted."
            for run in self.results.runs.values()
            if not run.config
        )


def as_number(text: str | None) -> float:
    return math.nan if text in (None, NOT_REACHED) else float(text)


def with_complement(run: LoadedRun) -> LoadedRun:
    """With one minus the similarity, which the paper draws."""
    rows = [
        row | {"one_minus_similarity": 1 - to_float(row["similarity"])}
        if "similarity" in row
        else row
        for row in run.rows
    ]
    return replace(run, rows=rows)


@dataclass(frozen=True)
class Curves:
    """A column of the metrics over the rounds, a picture for each setting."""

    column: str = "accuracy"

    @property
    def name(self) -> str:
        return f"{slug(self.column)}-over-rounds"

    def pictures(self, results: Results) -> Iterator[PlotSpec]:
        settings = {str(setting.values): setting for setting in results.plan.columns}.values()
        for setting in settings:
            table = with_runs(results.table(setting))
            shown = labels_with_column(table, self.column)
            if shown:
                place = f"-{slug(setting.name)}" if len(settings) > 1 else ""
                drawing = partial(draw_curves, table, self.column, "rounds")
                yield self.name + place, 2.0 + legend_height(shown), drawing


@dataclass(frozen=True)
class Lines:
    """Each contender's accuracy over the settings, in one picture."""

    axis: str
    name: str

    def pictures(self, results: Results) -> Iterator[PlotSpec]:
        tables = [(column.x, with_runs(results.table(column))) for column in results.plan.columns]
        found = []
        for contender in results.recipe.contenders:
            points = [
                (x, row.spread("tail"))
                for x, table in tables
                for row in table.rows
                if row.label == contender.name
            ]
            spreads = {x: spread for x, spread in points if x is not None and spread is not None}
            if spreads:
                found.append(SweepLine(contender.name, tuple(spreads), tuple(spreads.values())))
        if found:
            together = ResultTable("", {}, tuple(row for _, table in tables for row in table.rows))
            height = 2.0 + legend_height([line.label for line in found])
            yield (
                self.name,
                height,
                partial(draw_sweep, together, ACCURACY_GOAL, Sweep(self.axis, tuple(found))),
            )


def with_runs(table: ResultTable) -> ResultTable:
    return replace(table, rows=tuple(row for row in table.rows if row.scores))
