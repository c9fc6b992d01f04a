"""The accuracy of every client at the end of the runs, from the worst served to the best.

Which client is the worst differs from seed to seed. So each seed's clients are sorted first, and
means are taken over the seeds at equal shares of the clients. Only clients that have names are
followed one by one.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from fedwmsam.page.figures import (
    ChartAxis,
    FigureData,
    LineChart,
    make_chart_line,
    round_values,
    seed_values,
    to_strings,
)
from fedwmsam.report.plots import row_styles
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.summary import ResultRow, ResultTable
from fedwmsam.report.text_tables import TextTable, spread_cell
from fedwmsam.settings.config import is_natural
from fedwmsam.statistics import FloatArray, mean_spread

QUANTILES = {
    "worst": 0.0,
    "10%": 0.1,
    "lower quartile": 0.25,
    "median": 0.5,
    "upper quartile": 0.75,
    "best": 1.0,
}
"""Columns of the table of quantiles → share of the clients."""
SHARES = np.linspace(0, 1, 101)
"""The shares of the clients at which the lines have points, however many clients there are."""
NAMED_CLIENTS = 12
"""The number of clients up to which each has a column."""


def has_client_accuracies(table: ResultTable) -> bool:
    """Return whether runs of the table evaluated single clients; those of `fit` do not."""
    return any(
        score.run.client_accuracies or score.run.values_by_round("worst_client_accuracy")
        for score in table.scores
    )


def describe_client_accuracy(table: ResultTable) -> str:
    """Return what a client's accuracy is, and in which order the chart has the clients."""
    definition = "by class, weighted by the client's own mix of classes"
    if is_natural(table.shared_settings["partition"]):
        definition = "on the test samples of the client's own group"
    return (
        f"The last model's test accuracy {definition}. The picture has the clients from the worst "
        "served (0) to the best served (1), sorted for each seed."
    )


def runs_with_clients(row: ResultRow) -> list[LoadedRun]:
    """Return the runs of a row that kept the accuracies of their clients."""
    return [score.run for score in row.scores if score.run.client_accuracies]


def quantiles(runs: Sequence[LoadedRun], shares: Sequence[float] | FloatArray) -> FloatArray:
    """Return quantiles of the clients' accuracies: runs × shares.

    Clients without an accuracy do not count.
    """
    return np.array([np.nanquantile(run.client_accuracies, shares) for run in runs])


def client_chart(table: ResultTable, figure_data: FigureData) -> LineChart | None:
    """Return the chart of the accuracy over the sorted clients, None if no run kept it.

    Reading it begins with the worst served.
    """
    point_numbers = range(1, len(SHARES) + 1)
    x = {"share": round_values(SHARES)}
    lines = []
    styles = row_styles(table.rows)
    for index, row in enumerate(table.rows):
        runs = runs_with_clients(row)
        if runs:
            y = {"accuracy": seed_values(point_numbers, quantiles(runs, SHARES))}
            lines.append(make_chart_line(styles[index], row.label, x, y))
    if not lines:
        return None
    axis = ChartAxis("share", "share of clients", is_discrete=True, starts_at_first_point=True)
    return LineChart(
        description="accuracy over the clients, worst served first",
        data_index=figure_data.add_chart(lines),
        lines=dict(enumerate(lines)),
        columns={"accuracy": "accuracy of the last model"},
        axes=[axis],
    )


def client_tables(table: ResultTable) -> Iterator[TextTable]:
    """Yield the table of quantiles and, if the clients are few and have names, that of each."""
    yield quantile_table(table)
    names = client_names(table)
    if 0 < len(names) <= NAMED_CLIENTS:
        yield named_client_table(table, names)


# Quantiles


def quantile_table(table: ResultTable) -> TextTable:
    """Return the quantiles of the clients' accuracies for each row."""
    rows = tuple(
        (row.label, *quantile_cells(runs_with_clients(row))) for row in trained_rows(table)
    )
    notes = (
        "10%: a tenth of a seed's clients is served worse; the quartiles likewise. Between clients "
        "it is interpolated.",
        *no_test_data_notes(table),
        *twin_notes(table),
        *missing_file_notes(table),
    )
    return TextTable(
        "Accuracy over the clients, mean over the seeds", ("method", *QUANTILES), rows, notes
    )


def quantile_cells(runs: Sequence[LoadedRun]) -> list[str]:
    """Return the cells of a row's quantiles, mean and deviation over its runs."""
    if not runs:
        return [spread_cell(None) for _ in QUANTILES]
    values_by_quantile = quantiles(runs, list(QUANTILES.values())).T
    return [spread_cell(mean_spread(values)) for values in values_by_quantile]


def no_test_data_notes(table: ResultTable) -> Iterator[str]:
    """Yield a note if a client has no accuracy."""
    accuracies = chain.from_iterable(score.run.client_accuracies for score in table.scores)
    if any(map(math.isnan, accuracies)):
        yield "Clients for which there are no test samples have no accuracy and are left out."


def trained_rows(table: ResultTable) -> list[ResultRow]:
    """Return the rows with results, without those of averaged models."""
    return [row for row in table.rows if row.scores and not row.is_averaged_model]


def twin_notes(table: ResultTable) -> Iterator[str]:
    """Yield a note if the table has averaged models, whose clients no run evaluates."""
    if any(row.is_averaged_model for row in table.rows):
        yield "Recorded for the trained model only: an averaged twin has no row here."


def missing_file_notes(table: ResultTable) -> Iterator[str]:
    """Yield a note for each row on its runs that are not in the chart and tables of the clients."""
    for row in trained_rows(table):
        # Only to runs of the command line can it be added.
        runs = [score.run for score in row.scores if "dataset" in score.run.config]
        seeds = [run.seed for run in runs if not run.client_accuracies]
        if seeds:
            listed_seeds = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            yield (
                f"{row.label}, {listed_seeds}: left out here, for there is no clients.json; "
                "fedwmsam resume adds it to a completed run."
            )


# By name


def client_names(table: ResultTable) -> list[str]:
    """Return the names of all clients that have an accuracy in one of the runs."""
    names: dict[str, None] = {}
    for row in table.rows:
        for run in runs_with_clients(row):
            accuracies = accuracy_by_name(run)
            names |= dict.fromkeys(
                name for name, value in accuracies.items() if math.isfinite(value)
            )
    return list(names)


def accuracy_by_name(run: LoadedRun) -> dict[str, float]:
    """Return the clients' accuracies by name, which unlike a number is the same for every seed."""
    names = to_strings(run.data.get("group_names"))
    return dict(zip(names, run.client_accuracies, strict=False))


def named_client_table(table: ResultTable, names: Sequence[str]) -> TextTable:
    """Return the accuracy of each named client for each row."""
    rows = []
    for row in table.rows:
        runs = runs_with_clients(row)
        if runs:
            rows.append((row.label, *name_cells(runs, names)))
    header = ("method", *names)
    return TextTable("Accuracy of each client, mean over the seeds", header, tuple(rows))


def name_cells(runs: Sequence[LoadedRun], names: Sequence[str]) -> Iterator[str]:
    """Yield the cell of each client, mean and deviation over the runs that have it."""
    for name in names:
        accuracies = [accuracy_by_name(run).get(name, math.nan) for run in runs]
        known_accuracies = [value for value in accuracies if math.isfinite(value)]
        yield spread_cell(mean_spread(known_accuracies) if known_accuracies else None)
