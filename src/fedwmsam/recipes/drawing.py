"""What figures show: curves over the rounds in each setting, or lines over the settings."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from fedwmsam.recipes.results import Results
from fedwmsam.report.plots import Picture, draw_curves, draw_sweep, legend_height, rows_with, slug
from fedwmsam.report.series import Line, Sweep
from fedwmsam.report.summary import ACCURACY, Table


@dataclass(frozen=True)
class Curves:
    """A column of the metrics over the rounds, a picture for each setting."""

    column: str = "accuracy"

    @property
    def name(self) -> str:
        return f"{slug(self.column)}-over-rounds"

    def pictures(self, results: Results) -> Iterator[Picture]:
        settings = {str(setting.values): setting for setting in results.plan.columns}.values()
        for setting in settings:
            table = with_runs(results.table(setting))
            shown = rows_with(table, self.column)
            if shown:
                place = f"-{slug(setting.name)}" if len(settings) > 1 else ""
                drawing = partial(draw_curves, table, self.column, "rounds")
                yield self.name + place, 2.0 + legend_height(shown), drawing


@dataclass(frozen=True)
class Lines:
    """Each contender's accuracy over the settings, in one picture."""

    axis: str
    name: str

    def pictures(self, results: Results) -> Iterator[Picture]:
        tables = [(column.x, with_runs(results.table(column))) for column in results.plan.columns]
        found = []
        for contender in results.recipe.contenders:
            points = [
                (x, row.spread("tail")) for x, table in tables for row in table.rows if row.label == contender.name
            ]
            spreads = {x: spread for x, spread in points if x is not None and spread is not None}
            if spreads:
                found.append(Line(contender.name, tuple(spreads), tuple(spreads.values())))
        if found:
            together = Table("", {}, tuple(row for _, table in tables for row in table.rows))
            height = 2.0 + legend_height([line.label for line in found])
            yield self.name, height, partial(draw_sweep, together, ACCURACY, Sweep(self.axis, tuple(found)))


def with_runs(table: Table) -> Table:
    return replace(table, rows=tuple(row for row in table.rows if row.scores))
