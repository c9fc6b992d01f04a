"""A comparison as words: tables of text and the remarks that belong under them, for whoever prints them."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedwmsam.analysis.statistics import Spread, smallest_p
from fedwmsam.engine.records import Record
from fedwmsam.errors import guarantee
from fedwmsam.report.grouping import rounds, shown
from fedwmsam.report.runs import Run, State
from fedwmsam.report.tables import Comparison, Difference, Goal, Row, Table

NOTHING, NOT_FINITE = "–", "not finite"
COSTS = {"MB down + up": ("bytes", 1e6), "backprops": ("backprops", 1.0), "training s": ("seconds", 1.0)}
"""Column → field of `Cost`, and its unit."""
SIGNIFICANT = 0.05
ENOUGH_SEEDS = 10
"""From here on a bootstrap interval covers about what it says."""


@dataclass(frozen=True)
class Sheet:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def sheets(comparison: Comparison, paper_columns: bool = False) -> list[Sheet]:
    """Results, costs of the targets and differences, table by table; last, what could not be read."""
    result = []
    for table in comparison.tables:
        result.append(results(table, comparison.goal, paper_columns))
        if comparison.goal.targets:
            result.append(costs(table, comparison.goal))
        if table.baseline is not None:
            result.append(differences(table, comparison.goal))
    if comparison.unreadable:
        rows = tuple((str(run.path), run.remark) for run in comparison.unreadable)
        result.append(Sheet("Runs that cannot be read", ("run", "why"), rows))
    return result


def results(table: Table, goal: Goal, paper_columns: bool) -> Sheet:
    quantities = {"last": "last", f"mean of last {table.evaluations}": "tail"}
    if table.held_equal["validation"]:
        quantities["best by validation"] = "best"
    if paper_columns:
        quantities["best on test (selected on test)"] = "best_on_test"
    if any(score.averaged_tail is not None for score in table.scores):
        quantities |= {
            "averaged: last": "averaged_last",
            f"averaged: mean of last {table.evaluations}": "averaged_tail",
        }
    rows = tuple(
        (
            row.label,
            seeds_cell(row),
            *(spread_cell(row.spread(name)) for name in quantities.values()),
            *(amount(row.total(name), unit) for name, unit in COSTS.values()),
        )
        for row in table.rows
    )
    notes = [*reading(table, paper_columns), *remarks(table, goal)]
    return Sheet(f"{goal.metric}: {table.title}", ("method", "seeds", *quantities, *COSTS), rows, tuple(notes))


def costs(table: Table, goal: Goal) -> Sheet:
    """What it took to reach each target."""
    rows = []
    for target in goal.targets:
        for row in table.rows:
            count = row.reached(target, "rounds").n
            spent = (amount(row.reached(target, name), unit) for name, unit in ({"": ("rounds", 1.0)} | COSTS).values())
            missed = "not reached" if row.scores else NOTHING
            cells = spent if count else (missed, *(NOTHING for _ in COSTS))
            rows.append((row.label, shown(target), f"{count} of {len(row.scores)} seeds", *cells))
    notes = [f"A target is reached at the first evaluated round whose {goal.metric} is at least as good."]
    if any(0 < row.reached(target, "rounds").n < len(row.scores) for row in table.rows for target in goal.targets):
        notes.append("Where only some seeds reached a target, the means are over those, and so too favourable.")
    header = ("method", "target", "reached by", "rounds", *COSTS)
    return Sheet(f"Cost of reaching a target {goal.metric}: {table.title}", header, tuple(rows), tuple(notes))


def differences(table: Table, goal: Goal) -> Sheet:
    """Each row against the baseline, seed by seed."""
    header = ("method", "common seeds", "difference", "95% interval", "better on", "p", "p (Holm)")
    rows = tuple(difference_cells(found) for found in table.differences)
    title = f"Mean of last {table.evaluations} {goal.metric}, difference to {table.baseline}: {table.title}"
    return Sheet(title, header, rows, tuple(cautions(table)))


def difference_cells(found: Difference) -> tuple[str, ...]:
    if not found.seeds:
        return found.label, "none", *(NOTHING for _ in range(5))
    if math.isnan(found.mean):
        return found.label, str(len(found.seeds)), NOT_FINITE, *(NOTHING for _ in range(4))
    low, high = found.interval
    return (
        found.label,
        str(len(found.seeds)),
        f"{found.mean:+{precision(found.mean)}}",
        NOTHING if math.isnan(low) else f"{low:+{precision(found.mean)}} to {high:+{precision(found.mean)}}",
        NOTHING if found.better is None else f"{found.better} of {len(found.seeds)}",
        f"{found.p:.3g}",
        f"{found.corrected:.3g}",
    )


def seeds_cell(row: Row) -> str:
    """How many seeds the numbers are over, and what became of the others."""
    counted, states = len(row.scores), Counter(run.state for run in row.left_out)
    if not states:
        return str(counted)
    others = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{counted} of {counted + len(row.left_out)} ({others})"


def spread_cell(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    known = spread.n > 1 and not math.isnan(spread.mean)
    return number_cell(spread.mean) + (f" ± {spread.deviation:{precision(spread.mean)}}" if known else "")


def number_cell(value: float) -> str:
    return NOT_FINITE if math.isnan(value) else f"{value:{precision(value)}}"


def precision(value: float) -> str:
    """Four decimals, as accuracies are printed; of larger numbers fewer, of very small and very large ones digits."""
    size = abs(value)
    return ".4f" if 0.001 <= size < 10 or size == 0 else ".2f" if 10 <= size < 1000 else ".4g"


def amount(spread: Spread, unit: float) -> str:
    """A mean of costs; they often are the same for every seed, and then need no spread."""
    mean, deviation = spread.mean / unit, spread.deviation / unit
    if math.isnan(mean):
        return NOTHING
    if not deviation > 0:
        return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"
    digits = 0 if mean >= 100 else 1 if mean >= 10 else 2
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def reading(table: Table, paper_columns: bool) -> Iterator[str]:
    """How to read the labels and the numbers."""
    if table.unsaid:
        yield f"Where a row does not say otherwise: {'; '.join(table.unsaid)}."
    counts = {len(row.scores) for row in table.rows if row.scores}
    if max(counts, default=0) > 1:
        yield "Mean ± standard deviation (n − 1) over the seeds."
    if 1 in counts:
        yield "A row with one seed has no spread: whether another seed would turn the order round is not known."
    seeds = {tuple(row.seeds) for row in table.rows if row.scores}
    if len(seeds) > 1:
        yield "The rows are not over the same seeds; only paired differences (--baseline) compare like with like."
    if len({score.evaluations for score in table.scores}) > 1:
        yield f"Some runs ended before {table.evaluations} evaluations; their mean is over fewer."
    if any(score.averaged_tail is not None for score in table.scores):
        yield (
            "Averaged: of an average of the row's global models, which nobody trains on. Compare averages with "
            "averages, or say which is which; --twins gives them rows of their own."
        )
    if any(score.run.is_twin for score in table.scores):
        yield "twin=…: an average of the global models of the row's runs, which nobody trains on."
    if paper_columns:
        yield (
            "Best on test is the best round picked on the test data. It is higher than what one would get on new data, "
            "and here only for comparison with papers that print it."
        )
    if len({(score.run.config.get("workers"), score.run.config.get("device")) for score in table.scores}) > 1:
        yield "Runs used different numbers of workers or devices: their seconds do not compare methods."
    if table.held_equal["dataset"] is None:
        yield "Runs of fit() do not record their data: that these had the same is for you to know."


def remarks(table: Table, goal: Goal) -> Iterator[str]:
    """What became of single runs."""
    for row in table.rows:
        for run in row.left_out:
            reached = list(run.values(goal.metric).values())
            so_far = f"; last {goal.metric} {number_cell(reached[-1])}" if reached else ""
            yield f"{whose(row, run)}: {run.describe()}{so_far}; not counted."
        kept = {score.run.seed: score.run for score in row.scores}
        for run in row.repeated:
            same = "the same" if agree(run.rows, kept[run.seed].rows) else "other"
            yield f"{whose(row, run)}: has the seed of {kept[run.seed].path} and {same} numbers; not counted."
        for run in kept.values():
            if run.state is State.STOPPED:
                yield f"{whose(row, run)}: {run.describe()}."
            rejected = sum(bool(line.get("rejected")) for line in run.rows)
            if rejected:
                yield f"{whose(row, run)}: clients left out in {rounds(rejected)}, their update was not finite."
            epsilon = run.rows[-1].get("epsilon") if run.rows else None
            if epsilon is not None:
                promise = guarantee(epsilon, run.config["dp_delta"])
                yield f"{whose(row, run)}: differentially private for clients, {promise}."


def agree(rows: Sequence[Record], others: Sequence[Record]) -> bool:
    """Whether two runs have the same numbers, as far as both have them: one may have an averaged twin."""
    return len(rows) == len(others) and all(
        row[name] == other[name] for row, other in zip(rows, others, strict=True) for name in row.keys() & other.keys()
    )


def whose(row: Row, run: Run) -> str:
    return f"{row.label}, seed {run.seed} ({run.path})"


def cautions(table: Table) -> Iterator[str]:
    """What the differences can and cannot show."""
    yield (
        "Paired by seed: same clients, batches and first weights. Interval: percentile bootstrap over seeds. p: exact "
        "two-sided Wilcoxon signed-rank test; Holm's correction is over the rows of this table."
    )
    counts = [len(found.seeds) for found in table.differences if found.seeds]
    if not counts:
        return
    few, tests = min(counts), len(counts)
    if few < ENOUGH_SEEDS:
        yield f"With {few} common seeds the interval is too narrow: it covers the truth less often than 95%."
    if smallest_p(max(counts)) * tests >= SIGNIFICANT:
        comparisons = f"{tests} comparisons" if tests > 1 else "one comparison"
        yield (
            f"With {max(counts)} seeds p cannot fall below {smallest_p(max(counts)):.3g}, whatever the difference: "
            f"nothing here can be significant. For {comparisons} that takes at least {seeds_needed(tests)} seeds."
        )


def seeds_needed(tests: int) -> int:
    """So many that a difference of one sign on every seed is significant for one of the tests, corrected for all."""
    count = 1
    while smallest_p(count) * tests >= SIGNIFICANT:
        count += 1
    return count
