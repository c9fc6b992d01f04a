"""Whom each method serves: the accuracy of every client at the end of its runs, from the worst served to the best.

Which client is the worst differs from seed to seed. So each seed's clients are sorted first, and means are taken over
the seeds at equal shares of the clients; only clients that have names are followed one by one.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedwmsam.page.figures import (
    ChartAxis,
    FigureData,
    LineChart,
    column_record,
    line_record,
    round_values,
    to_strings,
)
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
SHARES = np.linspace(0, 1, 101)
"""Where the lines have points, however many clients there are."""
NAMED_CLIENTS = 12
"""Up to so many clients have a column each."""


def has_client_accuracies(table: ResultTable) -> bool:
    """Whether its runs looked at single clients; those of `fit` do not."""
    return any(
        score.run.clients or score.run.values("worst_client_accuracy") for score in table.scores
    )


def describe_client_accuracy(table: ResultTable) -> str:
    """What a client's accuracy is, and how the picture has the clients."""
    whose = (
        "on the test samples of the client's own group"
        if is_natural(table.held_equal["partition"])
        else "by class, weighted by the client's own mix of classes"
    )
    return (
        f"The last model's test accuracy {whose}. The picture has the clients from the worst served (0) to the best "
        "served (1), sorted for each seed."
    )


def runs_with_clients(row: ResultRow) -> list[LoadedRun]:
    return [score.run for score in row.scores if score.run.clients]


def quantiles(runs: Sequence[LoadedRun], shares: Sequence[float] | FloatArray) -> FloatArray:
    """A line for each run; clients without an accuracy do not count."""
    return np.array([np.nanquantile(run.clients, shares) for run in runs])


def client_chart(table: ResultTable, drawn: FigureData) -> LineChart | None:
    """Accuracy over the clients, sorted; reading begins with the worst served."""
    places = range(1, len(SHARES) + 1)
    lines = [
        line_record(number, row.label)
        | {
            "x": {"share": round_values(SHARES)},
            "y": {"accuracy": column_record(places, quantiles(runs, SHARES))},
        }
        for number, row in enumerate(table.rows)
        if (runs := runs_with_clients(row))
    ]
    if not lines:
        return None
    return LineChart(
        what="accuracy over the clients, worst served first",
        place=drawn.add_chart(lines),
        lines=dict(enumerate(lines)),
        columns={"accuracy": "accuracy of the last model"},
        axes=[ChartAxis("share", "share of clients", exact=True, from_start=True)],
    )


def client_tables(table: ResultTable) -> Iterator[TextTable]:
    yield quantile_table(table)
    names = client_names(table)
    if 0 < len(names) <= NAMED_CLIENTS:
        yield named_client_table(table, names)


def quantile_table(table: ResultTable) -> TextTable:
    rows = tuple(
        (row.label, *quantile_cells(runs_with_clients(row))) for row in table.rows if row.scores
    )
    notes = (
        "10%: a tenth of a seed's clients is served worse; the quartiles likewise. Between clients it is interpolated.",
        *no_test_data_notes(table),
        *missing_file_notes(table),
    )
    return TextTable(
        "Accuracy over the clients, mean over the seeds", ("method", *QUANTILES), rows, notes
    )


def quantile_cells(runs: Sequence[LoadedRun]) -> list[str]:
    if not runs:
        return [spread_cell(None) for _ in QUANTILES]
    return [
        spread_cell(mean_spread(values)) for values in quantiles(runs, list(QUANTILES.values())).T
    ]


def no_test_data_notes(table: ResultTable) -> Iterator[str]:
    if any(math.isnan(accuracy) for score in table.scores for accuracy in score.run.clients):
        yield "Clients for which there are no test samples have no accuracy and are left out."


def missing_file_notes(table: ResultTable) -> Iterator[str]:
    """Which runs are not in the pictures and tables of this section."""
    for row in table.rows:
        seeds = [score.run.seed for score in row.scores if not score.run.clients]
        if seeds:
            which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            yield (
                f"{row.label}, {which}: left out here, for there is no clients.json; fedwmsam resume adds it to a "
                "completed run."
            )


# By name


def client_names(table: ResultTable) -> list[str]:
    """Of all clients that have an accuracy in some run."""
    runs = [run for row in table.rows for run in runs_with_clients(row)]
    return list(
        dict.fromkeys(
            name
            for run in runs
            for name, value in accuracy_by_name(run).items()
            if math.isfinite(value)
        )
    )


def accuracy_by_name(run: LoadedRun) -> dict[str, float]:
    """Clients may be numbered differently with another seed; their names stay."""
    return dict(zip(to_strings(run.data.get("group_names")), run.clients, strict=False))


def named_client_table(table: ResultTable, names: Sequence[str]) -> TextTable:
    rows = tuple(
        (row.label, *name_cells(runs_with_clients(row), names))
        for row in table.rows
        if runs_with_clients(row)
    )
    return TextTable("Accuracy of each client, mean over the seeds", ("method", *names), rows)


def name_cells(runs: Sequence[LoadedRun], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        values = [
            value
            for run in runs
            if math.isfinite(value := accuracy_by_name(run).get(name, math.nan))
        ]
        yield spread_cell(mean_spread(values) if values else None)
