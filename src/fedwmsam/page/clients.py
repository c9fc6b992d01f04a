"""Whom each method serves: the accuracy of every client at the end of its runs, from the worst served to the best.

Which client is the worst differs from seed to seed. So each seed's clients are sorted first, and means are taken over
the seeds at equal shares of the clients; only clients that have names are followed one by one.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedwmsam.page.figures import Axis, Chart, Drawn, column, look, short, strings
from fedwmsam.report.runs import Run
from fedwmsam.report.summary import Row, Table
from fedwmsam.report.text_tables import Sheet, spread_cell
from fedwmsam.settings.config import is_natural
from fedwmsam.statistics import Numbers, mean_spread

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


def is_known(table: Table) -> bool:
    """Whether its runs looked at single clients; those of `fit` do not."""
    return any(
        score.run.clients or score.run.values("worst_client_accuracy") for score in table.scores
    )


def meaning(table: Table) -> str:
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


def measured(row: Row) -> list[Run]:
    return [score.run for score in row.scores if score.run.clients]


def quantiles(runs: Sequence[Run], shares: Sequence[float] | Numbers) -> Numbers:
    """A line for each run; clients without an accuracy do not count."""
    return np.array([np.nanquantile(run.clients, shares) for run in runs])


def client_chart(table: Table, drawn: Drawn) -> Chart | None:
    """Accuracy over the clients, sorted; reading begins with the worst served."""
    places = range(1, len(SHARES) + 1)
    lines = [
        look(number, row.label)
        | {
            "x": {"share": short(SHARES)},
            "y": {"accuracy": column(places, quantiles(runs, SHARES))},
        }
        for number, row in enumerate(table.rows)
        if (runs := measured(row))
    ]
    if not lines:
        return None
    return Chart(
        what="accuracy over the clients, worst served first",
        place=drawn.add_chart(lines),
        lines=dict(enumerate(lines)),
        columns={"accuracy": "accuracy of the last model"},
        axes=[Axis("share", "share of clients", exact=True, from_start=True)],
    )


def client_sheets(table: Table) -> Iterator[Sheet]:
    yield quantile_sheet(table)
    names = client_names(table)
    if 0 < len(names) <= NAMED_CLIENTS:
        yield name_sheet(table, names)


def quantile_sheet(table: Table) -> Sheet:
    rows = tuple((row.label, *quantile_cells(measured(row))) for row in table.rows if row.scores)
    notes = (
        "10%: a tenth of a seed's clients is served worse; the quartiles likewise. Between clients it is interpolated.",
        *without_accuracy(table),
        *not_kept(table),
    )
    return Sheet(
        "Accuracy over the clients, mean over the seeds", ("method", *QUANTILES), rows, notes
    )


def quantile_cells(runs: Sequence[Run]) -> list[str]:
    if not runs:
        return [spread_cell(None) for _ in QUANTILES]
    return [
        spread_cell(mean_spread(values)) for values in quantiles(runs, list(QUANTILES.values())).T
    ]


def without_accuracy(table: Table) -> Iterator[str]:
    if any(math.isnan(accuracy) for score in table.scores for accuracy in score.run.clients):
        yield "Clients for which there are no test samples have no accuracy and are left out."


def not_kept(table: Table) -> Iterator[str]:
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


def client_names(table: Table) -> list[str]:
    """Of all clients that have an accuracy in some run."""
    runs = [run for row in table.rows for run in measured(row)]
    return list(
        dict.fromkeys(
            name for run in runs for name, value in by_name(run).items() if math.isfinite(value)
        )
    )


def by_name(run: Run) -> dict[str, float]:
    """Clients may be numbered differently with another seed; their names stay."""
    return dict(zip(strings(run.data.get("group_names")), run.clients, strict=False))


def name_sheet(table: Table, names: Sequence[str]) -> Sheet:
    rows = tuple(
        (row.label, *name_cells(measured(row), names)) for row in table.rows if measured(row)
    )
    return Sheet("Accuracy of each client, mean over the seeds", ("method", *names), rows)


def name_cells(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        values = [value for run in runs if math.isfinite(value := by_name(run).get(name, math.nan))]
        yield spread_cell(mean_spread(values) if values else None)
