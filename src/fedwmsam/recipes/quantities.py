"""What the cells of a table hold: how a number is taken from a cell's runs, written, and set against another."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fedwmsam.experiment.experiment import load_config, prepare
from fedwmsam.experiment.result import Result
from fedwmsam.report.summary import ACCURACY as ACCURACY_GOAL
from fedwmsam.report.summary import Goal, Row
from fedwmsam.report.text_tables import NOTHING, amount, spread_cell
from fedwmsam.statistics import Spread, mean_spread


@dataclass(frozen=True)
class Quantity:
    title: str
    header: tuple[str, ...]
    cells: Callable[[Row], tuple[str, ...]]
    """Our numbers as text, one for each column of the header."""
    value: Callable[[Row], float]
    """The one that is compared with the paper's; NaN if there is none."""
    goal: Goal = ACCURACY_GOAL
    digits: int = 4
    is_cost: bool = False
    """Costs are set against the reference by division, all else by subtraction."""
    remark: str = ""

    def apart(self, value: float, other: float) -> str:
        return NOTHING if math.isnan(value - other) else f"{value - other:+.{self.digits}f}"

    def relation(self, value: float, reference: float) -> str:
        if not self.is_cost:
            return self.apart(value, reference)
        return NOTHING if math.isnan(value / reference) else f"× {value / reference:.2f}"

    def gain(self, row: Row, reference: Row) -> str:
        """Of our runs, over the seeds that both have on the same partition."""
        common = {score.run.pair for score in row.scores} & {score.run.pair for score in reference.scores}
        ours, theirs = (
            replace(one, scores=tuple(score for score in one.scores if score.run.pair in common))
            for one in (row, reference)
        )
        return self.relation(self.value(ours), self.value(theirs))


def tail(row: Row) -> float:
    spread = row.spread("tail")
    return spread.mean if spread else math.nan


ACCURACY = Quantity(
    title="Accuracy",
    header=("last", "mean of last 10", "best on test (selected on test)"),
    cells=lambda row: tuple(spread_cell(row.spread(name)) for name in ("last", "tail", "best_on_test")),
    value=tail,
    remark=(
        "“Ours” in differences is the mean of the last 10 evaluations; the paper does not say which of the three its "
        "accuracies are. Best on test is the best round picked on the test data: too good, only for comparison."
    ),
)
SIMILARITY = Quantity(
    title="Similarity recorded",
    header=("last", "mean of last 10"),
    cells=lambda row: tuple(spread_cell(row.spread(name)) for name in ("last", "tail")),
    value=tail,
    goal=Goal("similarity", higher_is_better=None),
)


def rounds_to(target: float) -> Quantity:
    def cells(row: Row) -> tuple[str, ...]:
        spread = row.reached(target, "rounds")
        missed = "not reached" if row.scores else NOTHING
        return amount(spread, 1.0) if spread.n else missed, f"{spread.n} of {len(row.scores)} seeds"

    return Quantity(
        title="Rounds to the first evaluation of at least this accuracy",
        header=("ours", "reached by"),
        cells=cells,
        value=lambda row: row.reached(target, "rounds").mean,
        goal=Goal("accuracy", higher_is_better=True, targets=(target,)),
        digits=0,
        is_cost=True,
        remark="Where only some seeds reached an accuracy, the mean is over those, and so too favourable.",
    )


def seconds_a_round(row: Row) -> Spread:
    return mean_spread([score.total.seconds / score.total.rounds for score in row.scores])


SECONDS = Quantity(
    title="Seconds of training a round, all its clients together",
    header=("ours",),
    cells=lambda row: (amount(seconds_a_round(row), 1.0),),
    value=lambda row: seconds_a_round(row).mean,
    digits=2,
    is_cost=True,
    remark="Seconds are the machine's: only the ratios compare, and only if nothing ran beside the runs (--jobs 1).",
)


def domain_accuracy(domain: str) -> Quantity:
    def spread(row: Row) -> Spread:
        return mean_spread([accuracy_by_client(score.run.path)[domain] for score in row.scores])

    return Quantity(
        title="Accuracy by domain",
        header=("last",),
        cells=lambda row: (spread_cell(spread(row)) if row.scores else NOTHING,),
        value=lambda row: spread(row).mean,
        remark="The metrics have no accuracy by domain: it is that of the saved models, so of the last round.",
    )


@cache
def accuracy_by_client(run: Path) -> dict[str, float]:
    found: dict[str, float] = prepare(load_config(run)).examine(Result.load(run).weights())["by_client"]
    return found
