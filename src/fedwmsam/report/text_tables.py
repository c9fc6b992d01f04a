"""A comparison as tables of text with notes under them, for the terminal, files and the page.

`make_text_tables` turns a `Comparison` into `TextTable`s. The terminal (`report/terminal.py`) and
the page print these; here are also the writers of Markdown and CSV, that of LaTeX is in
`report/latex.py`. To add a table, write a function that returns a `TextTable` of a new kind
(`TableKind`) and call it in `make_text_tables`.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

from fedwmsam.comparison.tuning import SCORED_EVALUATIONS, TriedValues, TuningResult, words_of
from fedwmsam.engine.records import Record
from fedwmsam.errors import format_privacy_guarantee, printable
from fedwmsam.report.environments import environment_notes
from fedwmsam.report.runs import (
    CumulativeCost,
    LoadedRun,
    RunStatus,
    format_rounds,
    format_value,
    to_float,
)
from fedwmsam.report.summary import (
    TAIL_EVALUATIONS,
    Comparison,
    Goal,
    PairedDifference,
    ResultRow,
    ResultTable,
    RunScores,
    WindowShares,
)
from fedwmsam.report.tuning import find_tuning
from fedwmsam.report.varied_settings import PlacedRow, place_rows, varied_settings
from fedwmsam.settings.config import setting_names
from fedwmsam.statistics import MIN_BOOTSTRAP_VALUES, Spread, mean_spread, smallest_p

MISSING = "–"
"""The cell of a value that a row does not have."""
NOT_FINITE = "not finite"
"""The cell of a value that is infinite or not a number."""
COSTS = {
    "MB down + up": ("bytes", 1e6),
    "backprops": ("backprops", 1.0),
    "training s": ("seconds", 1.0),
}
"""Column of a table → field of `CumulativeCost`, and the number by which that is divided."""
SIGNIFICANT = 0.05
"""The level below which a p-value is called significant."""

EDITED = (
    "config.toml was edited after the run wrote it; whether it ran with these settings is not known"
)
"""What is said of a run whose configuration is not as it was."""
MAX_LETTERS = 10_000
"""Letters of a cell or a note before it is cut off."""

Cell = TypeVar("Cell")
"""A cell of a table as something formats it."""

TableKind = Literal[
    "results", "tuning", "target costs", "differences", "pivot", "unreadable runs", "other"
]
"""Which table of a report a `TextTable` is; tables of analyses and of the paper are other ones."""


@dataclass(frozen=True)
class TextTable:
    """A table of text cells with a title, a header and notes on how to read it.

    Each text is one line without control characters, whoever named what it speaks of.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    kind: TableKind = "other"
    """Which table of a report this is; the page selects its tables by it."""
    bold_cells: frozenset[tuple[int, int]] = frozenset()
    """The cells that are printed in bold, each as the index of its row and of its column."""

    def __post_init__(self) -> None:
        texts = {
            "title": one_line(self.title),
            "header": tuple(map(one_line, self.header)),
            "rows": tuple(tuple(map(one_line, row)) for row in self.rows),
            "notes": tuple(map(one_line, self.notes)),
        }
        for name, value in texts.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen for everybody else

    def format_rows(
        self, plain: Callable[[str], Cell], bold: Callable[[str], Cell]
    ) -> list[list[Cell]]:
        """Return the rows with every cell formatted, those in bold by the second function."""
        rows = []
        for index, row in enumerate(self.rows):
            cells = []
            for column, cell in enumerate(row):
                format_cell = bold if (index, column) in self.bold_cells else plain
                cells.append(format_cell(cell))
            rows.append(cells)
        return rows


def one_line(text: str) -> str:
    """Return a text as one line without control characters."""
    return printable(text, MAX_LETTERS)


def make_text_tables(comparison: Comparison, paper_columns: bool = False) -> list[TextTable]:
    """Return the text tables of a comparison.

    Each result table gives its results, how tuned values were chosen, the costs of its targets and
    its differences to the baseline. At the end come the runs that cannot be read.
    """
    text_tables = []
    for table in comparison.tables:
        text_tables.append(results_table(table, comparison.goal, paper_columns))
        if find_tuning(table).results:
            text_tables.append(tuning_table(table, comparison.goal))
        if comparison.goal.targets:
            text_tables.append(target_cost_table(table, comparison.goal))
        if table.baseline is not None:
            text_tables.append(differences_table(table, comparison.goal))
    if comparison.unreadable_runs:
        text_tables.append(unreadable_runs_table(comparison.unreadable_runs))
    return text_tables


def results_table(table: ResultTable, goal: Goal, paper_columns: bool) -> TextTable:
    """Return the results of the rows over their seeds, with the costs of the entire runs.

    `paper_columns` adds the best value on the test data, which some papers print.
    """
    quantities = {"last": "last", f"mean of last {table.evaluations}": "tail"}
    if table.shared_settings["validation"]:
        quantities["best by validation"] = "best"
    if paper_columns:
        quantities["best on test (selected on test)"] = "best_on_test"
    digits = digits_of(goal)
    rows = []
    for row in table.rows:
        spreads = [spread_cell(row.spread(name), digits) for name in quantities.values()]
        costs = [cost_cell(row.total(name), unit) for name, unit in COSTS.values()]
        rows.append((row.label, seeds_cell(row), *spreads, *costs))
    return TextTable(
        f"{goal.metric}: {table.title}",
        ("method", "seeds", *quantities, *COSTS),
        tuple(rows),
        (*reading_notes(table, paper_columns), *tuning_notes(table), *run_notes(table, goal)),
        kind="results",
    )


def tuning_table(table: ResultTable, goal: Goal) -> TextTable:
    """Return what was tried for the rows whose values were tuned, with the scores.

    These are in percent if the metric is.
    """
    unit = 100 if goal.is_percent else 1
    results = find_tuning(table).results
    rows = []
    for result in results:
        for candidate in result.candidates:
            seeds = str(len(result.seeds))
            scores = [unit * score for score in candidate.scores]
            score = spread_cell(mean_spread(scores), digits_of(goal))
            tried = words_of(candidate.values)
            rows.append((result.row, tried, seeds, score, choice_cell(result, candidate)))
    return TextTable(
        f"How the values were chosen: {table.title}",
        ("method", "tried", "seeds", f"validation accuracy{' (%)' * goal.is_percent}", "choice"),
        tuple(rows),
        tuple(choice_notes(results)),
        kind="tuning",
    )


def target_cost_table(table: ResultTable, goal: Goal) -> TextTable:
    """Return the cost of reaching each target, for each row."""
    rows = []
    is_partly_reached = False
    for target in goal.targets:
        for row in table.rows:
            reached_by = row.reached(target, "rounds").n
            is_partly_reached |= 0 < reached_by < len(row.scores)
            seeds = f"{reached_by} of {len(row.scores)} seeds"
            rows.append((row.label, format_value(target), seeds, *target_cost_cells(row, target)))
    notes = [target_note(goal)]
    if is_partly_reached:
        notes.append(
            "Where only some seeds reached a target, the means are over those, and so too "
            "favourable."
        )
    return TextTable(
        f"Cost of reaching a target {goal.metric}: {table.title}",
        ("method", "target", "reached by", "rounds", *COSTS),
        tuple(rows),
        tuple(notes),
        kind="target costs",
    )


def target_cost_cells(row: ResultRow, target: float) -> list[str]:
    """Return the cells of the rounds and the costs that it took the row to reach the target."""
    if row.reached(target, "rounds").n == 0:
        return ["not reached" if row.scores else MISSING, *(MISSING for _ in COSTS)]
    columns = [("rounds", 1.0), *COSTS.values()]
    return [cost_cell(row.reached(target, name), unit) for name, unit in columns]


def differences_table(table: ResultTable, goal: Goal) -> TextTable:
    """Return the paired differences of the rows to the baseline."""
    mean = f"Mean of last {table.evaluations} {goal.metric}"
    return TextTable(
        f"{mean}, difference to {table.baseline}: {table.title}",
        (
            "method",
            "common seeds",
            "difference",
            "95% interval",
            "better on",
            "windows better / worse",
            "p",
            "p (Holm)",
        ),
        tuple(difference_cells(difference, digits_of(goal)) for difference in table.differences),
        tuple(significance_notes(table)),
        kind="differences",
    )


def unreadable_runs_table(runs: Sequence[LoadedRun]) -> TextTable:
    """Return the paths of the runs that cannot be read, and the reasons."""
    rows = tuple((str(run.path), run.status_message) for run in runs)
    return TextTable("Runs that cannot be read", ("run", "why"), rows, kind="unreadable runs")


# Cells


def difference_cells(difference: PairedDifference, digits: str | None) -> tuple[str, ...]:
    """Return the row of a paired difference, with its own digits if none are given."""
    seeds = len(difference.seeds)
    mean = difference.mean
    if not seeds:
        return difference.label, "none", *(MISSING for _ in range(6))
    if math.isnan(mean):
        return difference.label, str(seeds), NOT_FINITE, *(MISSING for _ in range(5))
    low, high = difference.interval
    digits = digits or float_format(mean)
    interval = MISSING if math.isnan(low) else f"{low:+{digits}} to {high:+{digits}}"
    return (
        difference.label,
        str(seeds),
        f"{mean:+{digits}}",
        interval,
        MISSING if difference.wins is None else f"{difference.wins} of {seeds}",
        window_cell(difference.window_shares),
        f"{difference.p:.3g}",
        f"{difference.p_holm:.3g}",
    )


def window_cell(shares: WindowShares | None) -> str:
    """Return the shares of the late windows in which a row is better and worse."""
    return MISSING if shares is None else f"{shares.better:.0%} / {shares.worse:.0%}"


def choice_cell(result: TuningResult, candidate: TriedValues) -> str:
    """Return what became of values that were tried."""
    if candidate is result.best:
        edges = result.edges()
        return f"chosen, {' and '.join(edges)} at the edge" if edges else "chosen"
    if candidate.score == -math.inf:
        return "diverged or failed"
    if candidate in result.ties():
        return "within noise" if len(result.seeds) > 1 else "equal"
    return ""


def seeds_cell(row: ResultRow) -> str:
    """Return the number of seeds with results, and what is to be said of the runs.

    These are the status of those without, and whether a configuration was edited.
    """
    seeds = len(row.scores)
    edited = sum(score.run.has_edited_config for score in row.scores)
    if not row.excluded_runs:
        return f"{seeds} ({edited} edited)" if edited else str(seeds)
    statuses = Counter(run.status for run in row.excluded_runs)
    remarks = [f"{count} {status}" for status, count in statuses.items()]
    remarks += [f"{edited} edited"] if edited else []
    return f"{seeds} of {seeds + len(row.excluded_runs)} ({', '.join(remarks)})"


def spread_cell(spread: Spread | None, digits: str | None = None) -> str:
    """Return mean ± deviation, without the deviation where it is not known."""
    if spread is None:
        return MISSING
    mean = number_cell(spread.mean, digits)
    if spread.n < 2 or math.isnan(spread.mean):
        return mean
    return f"{mean} ± {spread.deviation:{digits or float_format(spread.mean)}}"


def number_cell(value: float, digits: str | None = None) -> str:
    """Return a number, with about four digits if none are given, or the words for a NaN."""
    return NOT_FINITE if math.isnan(value) else f"{value:{digits or float_format(value)}}"


def digits_of(goal: Goal) -> str | None:
    """Return the format of all values of a metric: percentages have two decimals.

    It is None where each value has its own, by `float_format`.
    """
    return ".2f" if goal.is_percent else None


def float_format(value: float) -> str:
    """Return the format of a number and of its deviation.

    It has four decimals, as accuracies are printed, fewer for larger numbers, and significant
    digits for very small and very large ones.
    """
    size = abs(value)
    if size == 0 or 0.001 <= size < 10:
        return ".4f"
    return ".2f" if 10 <= size < 1000 else ".4g"


def cost_cell(spread: Spread, unit: float) -> str:
    """Return the mean of a cost in units, with its deviation unless all seeds cost the same."""
    mean = spread.mean / unit
    deviation = spread.deviation / unit
    if math.isnan(mean):
        return MISSING
    if not deviation > 0:
        return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"
    decimals = 2
    if mean >= 100:
        decimals = 0
    elif mean >= 10:
        decimals = 1
    return f"{mean:,.{decimals}f} ± {deviation:,.{decimals}f}"


# Notes


def reading_notes(table: ResultTable, paper_columns: bool) -> Iterator[str]:
    """Yield notes on how to read the labels and the results of a table."""
    if table.omitted_values:
        yield f"Where a row does not say otherwise: {'; '.join(table.omitted_values)}."
    yield from seed_notes(table)
    if len({score.evaluations for score in table.scores}) > 1:
        yield f"Some runs ended before {table.evaluations} evaluations; their mean is over fewer."
    if any(row.is_averaged_model for row in table.rows):
        yield (
            "averaged twin=…: an average of the global models of the same runs, which nobody "
            "trains on. Compare averages with averages."
        )
    if paper_columns:
        yield (
            "Best on test is the best round picked on the test data. It is higher than what one "
            "would get on new data, and here only for comparison with papers that print it."
        )
    configs = [score.run.config for score in table.scores]
    if len({(config.get("workers"), config.get("device")) for config in configs}) > 1:
        yield (
            "Runs used different numbers of workers or devices: their seconds do not compare "
            "methods."
        )
    yield from environment_notes([score.run for score in table.scores])
    if table.shared_settings["dataset"] is None:
        yield "Data given to fit() are not compared: that runs had the same is for you to know."


def seed_notes(table: ResultTable) -> Iterator[str]:
    """Yield notes on the seeds over which the rows of a table are."""
    rows = [row for row in table.rows if row.scores]
    counts = {len(row.scores) for row in rows}
    if max(counts, default=0) > 1:
        yield "Mean ± standard deviation (n − 1) over the seeds."
    if counts == {1} and len(rows) == 1:
        yield "With one seed there is no spread: how far another would be from it is not known."
    elif 1 in counts:
        yield (
            "A row with one seed has no spread: whether another seed would turn the order round is "
            "not known."
        )
    if len({tuple(row.seeds) for row in rows}) > 1:
        yield (
            "The rows are not over the same seeds; only paired differences (--baseline) compare "
            "like with like."
        )


def tuning_notes(table: ResultTable) -> Iterator[str]:
    """Yield notes on which rows of a table have tuned values, and which have none."""
    tuning = find_tuning(table)
    for problem in tuning.problems:
        yield f"How values were chosen cannot be read: {problem}."
    labels_by_choice: dict[str, list[str]] = {}
    # An average is that of the runs of another row, for which the values were chosen.
    labels = [row.label for row in table.rows if not row.is_averaged_model]
    for label in labels:
        for result in tuning.by_row.get(label, ()):
            tried = f"{words_of(result.best.values)} of {len(result.candidates)} tried"
            remarks = "".join(f", {remark}" for remark in result.remarks())
            labels_by_choice.setdefault(tried + remarks, []).append(label)
    if labels_by_choice:
        choices = [f"{', '.join(rows)}: {choice}" for choice, rows in labels_by_choice.items()]
        others = [label for label in labels if label not in tuning.by_row]
        untuned = f" Not tuned: {', '.join(others)}." if others else ""
        yield f"Tuned on validation data: {'; '.join(choices)}.{untuned}"
    earlier = [f"{result.row} {words_of(result.best.values)}" for result in tuning.earlier]
    if earlier:
        yield f"Chosen by an earlier tuning, no longer counted: {', '.join(earlier)}."


def choice_notes(results: Sequence[TuningResult]) -> Iterator[str]:
    """Yield notes on how to read the scores by which values were chosen."""
    counts = {result.rounds for result in results}
    rounds = " or ".join(format_rounds(count) for count in sorted(counts))
    held_out = {result.validation for result in results}
    shares = " or ".join(f"{share:.3g}" for share in sorted(held_out))
    yield (
        f"Validation accuracy: mean of at most the last {SCORED_EVALUATIONS} evaluations of tuning "
        f"runs of {rounds}, on a share of {shares} of the training data that no client trained on. "
        "Test data had no part in the choice."
    )
    if any(result.edges() for result in results):
        yield (
            "At the edge: no smaller, or no larger, value was tried; a better one may lie beyond."
        )
    if any(len(result.seeds) == 1 for result in results):
        yield (
            "With one tuning seed the noise is not known: another seed might choose other values "
            "(--tune-seeds)."
        )
    if any(len(result.seeds) > 1 for result in results):
        yield (
            "Within noise: the difference to the chosen values, paired by seed, is at most one "
            "standard error."
        )


def run_notes(table: ResultTable, goal: Goal) -> Iterator[str]:
    """Yield notes on single runs: why one is not counted, and what happened in those that are."""
    for row in table.rows:
        if row.is_averaged_model:
            continue  # All is said of the row whose runs these are.
        for run in row.excluded_runs:
            values = list(run.values_by_round(goal.metric).values())
            last_value = ""
            if values:
                last_value = f"; last {goal.metric} {number_cell(values[-1], digits_of(goal))}"
            yield f"{run_name(row, run)}: {run.describe()}{last_value}; not counted."
        counted_runs = {score.run.seed: score.run for score in row.scores}
        for run in row.duplicate_runs:
            counted_run = counted_runs[run.seed]
            is_same = have_same_values(run.round_records, counted_run.round_records)
            numbers = "the same" if is_same else "other"
            seed = f"has the seed of {counted_run.path}"
            yield f"{run_name(row, run)}: {seed} and {numbers} numbers; not counted."
        for run in counted_runs.values():
            yield from counted_run_notes(run_name(row, run), run)


def counted_run_notes(name: str, run: LoadedRun) -> Iterator[str]:
    """Yield notes on a run whose results are counted: stopping, left-out clients, privacy."""
    if run.status is RunStatus.STOPPED:
        yield f"{name}: {run.describe()}."
    if run.has_edited_config:
        yield f"{name}: {EDITED}."
    rejecting_rounds = sum(bool(record.get("rejected")) for record in run.round_records)
    if rejecting_rounds:
        rounds = format_rounds(rejecting_rounds)
        yield f"{name}: clients left out in {rounds}, their update was not finite."
    epsilon = to_float(run.round_records[-1].get("epsilon")) if run.round_records else math.nan
    delta = to_float(run.config.get("dp_delta"))
    if math.isfinite(epsilon) and math.isfinite(delta):
        guarantee = format_privacy_guarantee(epsilon, delta)
        yield f"{name}: differentially private for clients, {guarantee}."


def have_same_values(records: Sequence[Record], others: Sequence[Record]) -> bool:
    """Return whether two runs have the same metrics in all columns that both recorded.

    One of them may have the columns of an averaged model.
    """
    if len(records) != len(others):
        return False
    for record, other in zip(records, others, strict=True):
        if any(record[name] != other[name] for name in record.keys() & other.keys()):
            return False
    return True


def run_name(row: ResultRow, run: LoadedRun) -> str:
    """Return the name of a run in the notes: its row, its seed and its folder."""
    return f"{row.label}, seed {run.seed} ({run.path})"


def target_note(goal: Goal) -> str:
    """Return the note on what it means to reach a target."""
    if goal.target_window == 1:
        return (
            f"First crossing: a target is reached at the first evaluation whose {goal.metric} is "
            "at least as good, so that a noisy curve is early."
        )
    return (
        f"A target is reached at the first evaluation at which the mean of the last "
        f"{goal.target_window} is at least as good. Single evaluations (--first-crossing) would "
        "reward noise."
    )


def significance_notes(table: ResultTable) -> Iterator[str]:
    """Yield notes on what the paired differences of a table can and cannot show."""
    seed_counts = [len(difference.seeds) for difference in table.differences if difference.seeds]
    yield (
        f"Paired by seed: same clients, batches and first weights. {describe_interval(seed_counts)}"
        "p: exact two-sided Wilcoxon signed-rank test; Holm's correction is over the rows of this "
        "table."
    )
    shares = [difference.window_shares for difference in table.differences]
    windows = max((share.windows for share in shares if share), default=0)
    if windows:
        yield (
            f"Windows: the {windows} windows of {TAIL_EVALUATIONS} consecutive evaluations in the "
            "last quarter of the runs; the shares in which the row's mean is better or worse on "
            "every common seed. In the rest the seeds do not agree: who is ahead then depends on "
            "where one stops."
        )
    if not seed_counts:
        return
    if max(seed_counts) == 1:
        yield (
            "With one common seed a difference has no interval, and no test can tell it from "
            "chance: run more seeds."
        )
        return
    tests = len(seed_counts)
    most = max(seed_counts)
    if not can_be_significant(most, tests):
        comparisons = f"{tests} comparisons" if tests > 1 else "one comparison"
        yield (
            f"With {format_seeds(most)} p cannot fall below {smallest_p(most):.3g}, whatever the "
            f"difference: nothing here can be significant. For {comparisons} that takes at least "
            f"{seeds_needed(tests)} seeds."
        )


def describe_interval(seed_counts: Sequence[int]) -> str:
    """Return how the intervals over so many seeds are made, and what they take for granted."""
    kinds = []
    if any(1 < count < MIN_BOOTSTRAP_VALUES for count in seed_counts):
        kinds.append("Student's t, which takes the differences to be about normal")
    if any(count >= MIN_BOOTSTRAP_VALUES for count in seed_counts):
        kinds.append(f"percentile bootstrap (from {MIN_BOOTSTRAP_VALUES} seeds on)")
    return f"Interval: {'; '.join(kinds)}; each for its row alone. " if kinds else ""


def format_seeds(count: int) -> str:
    """Return "1 seed" or, for example, "3 seeds"."""
    return "1 seed" if count == 1 else f"{count} seeds"


def can_be_significant(seeds: int, tests: int) -> bool:
    """Return whether one of so many tests can be significant with that many seeds.

    If so, a difference of the same sign at every seed is significant after correction.
    """
    return smallest_p(seeds) * tests < SIGNIFICANT


def seeds_needed(tests: int) -> int:
    """Return the fewest seeds with which one of so many tests can be significant."""
    seeds = 1
    while not can_be_significant(seeds, tests):
        seeds += 1
    return seeds


# Files


CSV_QUANTITIES = ("last", "tail", "best", "best_on_test")
"""Fields of `RunScores` that are columns of the CSV files."""

# Markdown


def markdown_text(text_tables: Iterable[TextTable]) -> str:
    """Return the tables as the text of a Markdown file."""
    return "\n".join(markdown_table(text_table) for text_table in text_tables)


def markdown_table(text_table: TextTable) -> str:
    """Return a table in Markdown, its title as a heading and its notes as a list."""
    columns = list(zip(*text_table.rows, strict=True))
    alignment = ["---", *("---" if are_words(cells) else "---:" for cells in columns[1:])]
    alignment += ["---:"] * (len(text_table.header) - len(alignment))  # without rows
    lines = [markdown_row(map(escape_markdown, text_table.header)), markdown_row(alignment)]
    rows = text_table.format_rows(escape_markdown, lambda cell: f"**{escape_markdown(cell)}**")
    lines += map(markdown_row, rows)
    text = f"### {escape_markdown(text_table.title)}\n\n{''.join(lines)}"
    notes = "".join(f"- {escape_markdown(note)}\n" for note in text_table.notes)
    return f"{text}\n{notes}" if notes else text


def are_words(cells: Sequence[str]) -> bool:
    """Return whether the cells of a column are words, and none a number."""
    filled = [cell for cell in cells if cell and cell != MISSING]
    return bool(filled) and all(cell[0].isalpha() for cell in filled)


def markdown_row(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table, given cells that are escaped."""
    return f"| {' | '.join(cells)} |\n"


def escape_markdown(text: str) -> str:
    """Return the text in one line, so that no name in it becomes markup or ends a cell."""
    text = one_line(text)
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text


# CSV


def csv_texts(comparison: Comparison, path: Path) -> dict[Path, str]:
    """Return the CSV texts of the rows, for that path, and of the runs, for "NAME-runs".

    If values were tuned, "NAME-tuning" has what was tried.
    """
    texts = {
        path: csv_rows(comparison),
        path.with_name(f"{path.stem}-runs{path.suffix}"): csv_runs(comparison),
    }
    tuning_text = csv_tuning(comparison)
    if tuning_text:
        texts[path.with_name(f"{path.stem}-tuning{path.suffix}")] = tuning_text
    return texts


def csv_rows(comparison: Comparison) -> str:
    """Return the CSV text with a line for each row of each table, in full precision."""
    placed_rows = place_rows(comparison)
    varied = varied_settings(placed_rows)
    records = []
    for placed in placed_rows:
        results = find_tuning(placed.table).by_row.get(placed.row.label, ())
        names = name_columns(placed, varied)
        scores = row_record(comparison.goal, placed.table, placed.row)
        records.append(names | scores | tuning_columns(results))
    return csv_text(records)


def tuning_columns(results: Sequence[TuningResult]) -> Record:
    """Return the columns of a row with tuned values in the CSV file of the rows."""
    if not results:
        return {}
    remarks = chain.from_iterable(result.remarks() for result in results)
    return {
        "tuned": "; ".join(words_of(result.best.values) for result in results),
        "tuning_remarks": "; ".join(remarks),
    }


def csv_tuning(comparison: Comparison) -> str:
    """Return the CSV text with a line for each set of values that was tried; empty if none was."""
    records: list[Record] = []
    for table in comparison.tables:
        for result in find_tuning(table).results:
            names = {"table": table.title, "row": result.row, "method": result.method}
            runs = {
                "seeds": " ".join(map(str, result.seeds)),
                "rounds": result.rounds,
                "validation": result.validation,
            }
            for candidate in result.candidates:
                values = {f"tried_{key}": value for key, value in candidate.values.items()}
                scores = spread_columns("validation_accuracy", mean_spread(candidate.scores))
                choice = {"choice": choice_cell(result, candidate)}
                records.append(names | values | runs | scores | choice)
    return csv_text(records) if records else ""


def csv_runs(comparison: Comparison) -> str:
    """Return the CSV text with a line for each run, also for those that are not counted."""
    records = []
    for run, names, score in iter_runs(comparison):
        results = {} if score is None else score_record(score)
        records.append(names | run_record(run, score is not None) | results)
    return csv_text(records)


def csv_curves(comparison: Comparison) -> str:
    """Return the CSV text with a line for each round of each run that can be read.

    It has all numbers that the run recorded in the round and the seconds it took. A column with the
    name of a setting, such as the step size of the round, has "round_" before it.
    """
    reserved = set(setting_names())
    records = []
    for run, names, score in iter_runs(comparison):
        columns = names | run_record(run, score is not None)
        timings = run.timings if len(run.timings) == len(run.round_records) else ()
        for index, record in enumerate(run.round_records):
            line: Record = {"round": record["round"]}
            for name, value in (record | (timings[index] if timings else {})).items():
                if isinstance(value, int | float) and name != "round":
                    line[f"round_{name}" if name in reserved else name] = value
            records.append(columns | line | columns)  # a run's own columns come first and stay
    return csv_text(records)


def iter_runs(comparison: Comparison) -> Iterator[tuple[LoadedRun, Record, RunScores | None]]:
    """Yield every run with the columns that name its row, and its results if it is counted."""
    placed_rows = place_rows(comparison)
    varied = varied_settings(placed_rows)
    for placed in placed_rows:
        names = name_columns(placed, varied)
        for score in placed.row.scores:
            yield score.run, names, score
        for run in (*placed.row.duplicate_runs, *placed.row.excluded_runs):
            yield run, names, None
    for run in comparison.unreadable_runs:
        yield run, {}, None


def name_columns(placed: PlacedRow, varied: Sequence[str]) -> Record:
    """Return the columns that name a row: table, label, method and each setting that varies.

    The number of rounds that were planned is not that of the rounds done, which is among the costs.
    """
    row = placed.row
    names: Record = {"table": placed.table.title, "row": row.label, "method": row.method}
    for key in varied:
        names["planned_rounds" if key == "rounds" else key] = placed.settings.get(key)
    return names


def row_record(goal: Goal, table: ResultTable, row: ResultRow) -> Record:
    """Return the columns of a row in the CSV file of the rows."""
    record: Record = {
        "metric": goal.metric,
        "seeds": " ".join(map(str, row.seeds)),
        "counted": len(row.scores),
        "left_out": len(row.excluded_runs),
    }
    for quantity in CSV_QUANTITIES:
        record |= spread_columns(quantity, row.spread(quantity))
    for cost in CumulativeCost._fields:
        record |= spread_columns(cost, row.total(cost))
    for target in goal.targets:
        record[f"reached_{format_value(target)}"] = row.reached(target, "rounds").n
        for cost in CumulativeCost._fields:
            record |= spread_columns(f"{cost}_to_{format_value(target)}", row.reached(target, cost))
    for difference in table.differences:
        if difference.label == row.label:
            record |= difference_record(difference) | {"baseline": table.baseline}
    return record


def spread_columns(name: str, spread: Spread | None) -> Record:
    """Return the two columns of a spread, with None where there is none."""
    return {
        f"{name}_mean": spread and spread.mean,
        f"{name}_deviation": spread and spread.deviation,
    }


def difference_record(difference: PairedDifference) -> Record:
    """Return the columns of a paired difference in the CSV file of the rows."""
    low, high = difference.interval
    shares = difference.window_shares
    return {
        "common_seeds": " ".join(map(str, difference.seeds)),
        "difference": difference.mean,
        "difference_low": low,
        "difference_high": high,
        "better_on": difference.wins,
        "windows": shares and shares.windows,
        "windows_better": shares and shares.better,
        "windows_worse": shares and shares.worse,
        "p": difference.p,
        "p_holm": difference.p_holm,
    }


def run_record(run: LoadedRun, is_counted: bool) -> Record:
    """Return the columns of any run in the CSV file of the runs."""
    return {
        "run": run.path,
        "seed": run.config.get("seed"),
        "counted": is_counted,
        "state": run.status,
        "remark": "; ".join(filter(None, [run.status_message, EDITED * run.has_edited_config])),
    }


def score_record(score: RunScores) -> Record:
    """Return the further columns of a run that is counted."""
    record = {quantity: getattr(score, quantity) for quantity in CSV_QUANTITIES}
    record |= score.total._asdict()
    for target, cost in score.reached.items():
        for name in CumulativeCost._fields:
            record[f"{name}_to_{format_value(target)}"] = cost and getattr(cost, name)
    return record


def csv_text(records: Sequence[Record]) -> str:
    """Return the CSV text of the records, with every column that one of them has."""
    names = list(dict.fromkeys(chain.from_iterable(records)))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: csv_cell(value) for name, value in record.items()})
    return file.getvalue()


FORMULA_STARTS = ("=", "+", "-", "@", "\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}")
"""Beginnings of texts that spreadsheets take for a formula."""


def csv_cell(value: object) -> object:
    """Return a value as a cell: a number as it is, nothing for one that is missing or NaN.

    A text is one line. If a spreadsheet would take it for a formula, an apostrophe goes before it,
    as OWASP recommends.
    """
    if value is None or isinstance(value, int | float):
        return "" if value != value else value  # Only NaN is not equal to itself.
    text = one_line(str(value))
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
