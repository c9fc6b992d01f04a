"""A comparison as words: tables of text and the remarks that belong under them, for whoever prints them."""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError, format_privacy_guarantee
from fedwmsam.report.runs import CumulativeCost, LoadedRun, RunStatus, format_rounds, format_value
from fedwmsam.report.summary import (
    Comparison,
    MetricSpec,
    PairedDifference,
    ResultRow,
    ResultTable,
    RunScores,
)
from fedwmsam.statistics import Spread, smallest_p

MISSING, NOT_FINITE = "–", "not finite"
COSTS = {
    "MB down + up": ("bytes", 1e6),
    "backprops": ("backprops", 1.0),
    "training s": ("seconds", 1.0),
}
"""Column → field of `Cost`, and its unit."""
SIGNIFICANT = 0.05
MIN_BOOTSTRAP_SEEDS = 10
"""From here on a bootstrap interval covers about what it says."""


@dataclass(frozen=True)
class TextTable:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def make_text_tables(comparison: Comparison, paper_columns: bool = False) -> list[TextTable]:
    """Results, costs of the targets and differences, table by table; last, what could not be read."""
    result = []
    for table in comparison.tables:
        result.append(results_table(table, comparison.goal, paper_columns))
        if comparison.goal.targets:
            result.append(target_cost_table(table, comparison.goal))
        if table.baseline is not None:
            result.append(differences_table(table, comparison.goal))
    if comparison.unreadable:
        rows = tuple((str(run.path), run.remark) for run in comparison.unreadable)
        result.append(TextTable("Runs that cannot be read", ("run", "why"), rows))
    return result


def results_table(table: ResultTable, goal: MetricSpec, paper_columns: bool) -> TextTable:
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
            *(cost_cell(row.total(name), unit) for name, unit in COSTS.values()),
        )
        for row in table.rows
    )
    notes = [*reading_notes(table, paper_columns), *run_notes(table, goal)]
    return TextTable(
        f"{goal.metric}: {table.title}",
        ("method", "seeds", *quantities, *COSTS),
        rows,
        tuple(notes),
    )


def target_cost_table(table: ResultTable, goal: MetricSpec) -> TextTable:
    """What it took to reach each target."""
    rows = []
    for target in goal.targets:
        for row in table.rows:
            count = row.reached(target, "rounds").n
            spent = (
                cost_cell(row.reached(target, name), unit)
                for name, unit in ({"": ("rounds", 1.0)} | COSTS).values()
            )
            missed = "not reached" if row.scores else MISSING
            cells = spent if count else (missed, *(MISSING for _ in COSTS))
            rows.append(
                (row.label, format_value(target), f"{count} of {len(row.scores)} seeds", *cells)
            )
    notes = [
        f"A target is reached at the first evaluated round whose {goal.metric} is at least as good."
    ]
    if any(
        0 < row.reached(target, "rounds").n < len(row.scores)
        for row in table.rows
        for target in goal.targets
    ):
        notes.append(
            "Where only some seeds reached a target, the means are over those, and so too favourable."
        )
    header = ("method", "target", "reached by", "rounds", *COSTS)
    return TextTable(
        f"Cost of reaching a target {goal.metric}: {table.title}", header, tuple(rows), tuple(notes)
    )


def differences_table(table: ResultTable, goal: MetricSpec) -> TextTable:
    """Each row against the baseline, seed by seed."""
    header = ("method", "common seeds", "difference", "95% interval", "better on", "p", "p (Holm)")
    rows = tuple(difference_cells(found) for found in table.differences)
    title = f"Mean of last {table.evaluations} {goal.metric}, difference to {table.baseline}: {table.title}"
    return TextTable(title, header, rows, tuple(significance_notes(table)))


def difference_cells(found: PairedDifference) -> tuple[str, ...]:
    if not found.seeds:
        return found.label, "none", *(MISSING for _ in range(5))
    if math.isnan(found.mean):
        return found.label, str(len(found.seeds)), NOT_FINITE, *(MISSING for _ in range(4))
    low, high = found.interval
    return (
        found.label,
        str(len(found.seeds)),
        f"{found.mean:+{float_format(found.mean)}}",
        MISSING
        if math.isnan(low)
        else f"{low:+{float_format(found.mean)}} to {high:+{float_format(found.mean)}}",
        MISSING if found.better is None else f"{found.better} of {len(found.seeds)}",
        f"{found.p:.3g}",
        f"{found.corrected:.3g}",
    )


def seeds_cell(row: ResultRow) -> str:
    """How many seeds the numbers are over, and what became of the others."""
    counted, states = len(row.scores), Counter(run.state for run in row.left_out)
    if not states:
        return str(counted)
    others = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{counted} of {counted + len(row.left_out)} ({others})"


def spread_cell(spread: Spread | None) -> str:
    if spread is None:
        return MISSING
    known = spread.n > 1 and not math.isnan(spread.mean)
    return number_cell(spread.mean) + (
        f" ± {spread.deviation:{float_format(spread.mean)}}" if known else ""
    )


def number_cell(value: float) -> str:
    return NOT_FINITE if math.isnan(value) else f"{value:{float_format(value)}}"


def float_format(value: float) -> str:
    """Four decimals, as accuracies are printed; of larger numbers fewer, of very small and very large ones digits."""
    size = abs(value)
    return ".4f" if 0.001 <= size < 10 or size == 0 else ".2f" if 10 <= size < 1000 else ".4g"


def cost_cell(spread: Spread, unit: float) -> str:
    """A mean of costs; they often are the same for every seed, and then need no spread."""
    mean, deviation = spread.mean / unit, spread.deviation / unit
    if math.isnan(mean):
        return MISSING
    if not deviation > 0:
        return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"
    digits = 0 if mean >= 100 else 1 if mean >= 10 else 2
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def reading_notes(table: ResultTable, paper_columns: bool) -> Iterator[str]:
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
    if (
        len(
            {
                (score.run.config.get("workers"), score.run.config.get("device"))
                for score in table.scores
            }
        )
        > 1
    ):
        yield "Runs used different numbers of workers or devices: their seconds do not compare methods."
    if table.held_equal["dataset"] is None:
        yield "Runs of fit() do not record their data: that these had the same is for you to know."


def run_notes(table: ResultTable, goal: MetricSpec) -> Iterator[str]:
    """What became of single runs."""
    for row in table.rows:
        for run in row.left_out:
            reached = list(run.values(goal.metric).values())
            so_far = f"; last {goal.metric} {number_cell(reached[-1])}" if reached else ""
            yield f"{run_name(row, run)}: {run.describe()}{so_far}; not counted."
        kept = {score.run.seed: score.run for score in row.scores}
        for run in row.repeated:
            same = "the same" if have_same_values(run.rows, kept[run.seed].rows) else "other"
            yield f"{run_name(row, run)}: has the seed of {kept[run.seed].path} and {same} numbers; not counted."
        for run in kept.values():
            if run.state is RunStatus.STOPPED:
                yield f"{run_name(row, run)}: {run.describe()}."
            rejected = sum(bool(line.get("rejected")) for line in run.rows)
            if rejected:
                yield f"{run_name(row, run)}: clients left out in {format_rounds(rejected)}, their update was not finite."
            epsilon = run.rows[-1].get("epsilon") if run.rows else None
            if epsilon is not None:
                promise = format_privacy_guarantee(epsilon, run.config["dp_delta"])
                yield f"{run_name(row, run)}: differentially private for clients, {promise}."


def have_same_values(rows: Sequence[Record], others: Sequence[Record]) -> bool:
    """Whether two runs have the same numbers, as far as both have them: one may have an averaged twin."""
    return len(rows) == len(others) and all(
        row[name] == other[name]
        for row, other in zip(rows, others, strict=True)
        for name in row.keys() & other.keys()
    )


def run_name(row: ResultRow, run: LoadedRun) -> str:
    return f"{row.label}, seed {run.seed} ({run.path})"


def significance_notes(table: ResultTable) -> Iterator[str]:
    """What the differences can and cannot show."""
    yield (
        "Paired by seed: same clients, batches and first weights. Interval: percentile bootstrap over seeds. p: exact "
        "two-sided Wilcoxon signed-rank test; Holm's correction is over the rows of this table."
    )
    counts = [len(found.seeds) for found in table.differences if found.seeds]
    if not counts:
        return
    few, tests = min(counts), len(counts)
    if few < MIN_BOOTSTRAP_SEEDS:
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


# Files


CSV_QUANTITIES = ("last", "tail", "best", "best_on_test")
AVERAGED_QUANTITIES = ("averaged_last", "averaged_tail")
"""Columns that only runs with an averaged twin have."""
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "…": r"\ldots{}",
}


def write_text(path: Path, text: str) -> None:
    """Over what is there; folders on the way are made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; name another place.") from error


def write_files(
    comparison: Comparison,
    sheets: Sequence[TextTable],
    csv: Path | None,
    markdown: Path | None,
    latex: Path | None,
) -> list[Path]:
    """Those that have a name; the runs' numbers go beside those of the rows."""
    texts: dict[Path, str] = {}
    if csv is not None:
        texts |= {
            csv: csv_rows(comparison),
            csv.with_name(f"{csv.stem}-runs{csv.suffix}"): csv_runs(comparison),
        }
    if markdown is not None:
        texts[markdown] = markdown_text(sheets)
    if latex is not None:
        texts[latex] = latex_text(sheets)
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


# Markdown


def markdown_text(sheets: Iterable[TextTable]) -> str:
    return "\n".join(markdown_table(sheet) for sheet in sheets)


def markdown_table(sheet: TextTable) -> str:
    lines = [sheet.header, ["---", *("---:" for _ in sheet.header[1:])], *sheet.rows]
    table = "".join(f"| {' | '.join(map(escape_markdown, line))} |\n" for line in lines)
    notes = "".join(f"- {escape_markdown(note)}\n" for note in sheet.notes)
    return f"### {escape_markdown(sheet.title)}\n\n{table}" + (f"\n{notes}" if notes else "")


def escape_markdown(text: str) -> str:
    """What people named must not become markup or end a cell."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text


# LaTeX


def latex_text(sheets: Iterable[TextTable]) -> str:
    return "% Needs \\usepackage{booktabs} in the preamble.\n" + "\n".join(
        latex_table(sheet) for sheet in sheets
    )


def latex_table(sheet: TextTable) -> str:
    """A table environment, its notes in comments: a caption of a paper is its author's."""
    rows = [latex_row(row) for row in sheet.rows]
    notes = [f"% {note}" for note in sheet.notes]
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape_latex(sheet.title)}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(sheet.header) - 1)}}}",
        r"    \toprule",
        latex_row(sheet.header),
        r"    \midrule",
        *rows,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join([*notes, *lines]) + "\n"


def latex_row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(map(escape_latex, cells))} \\\\"


def escape_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


# CSV


def csv_rows(comparison: Comparison) -> str:
    """A line for each row of each table, in full precision."""
    return csv_text(
        [
            row_record(comparison.goal, table, row)
            for table in comparison.tables
            for row in table.rows
        ]
    )


def csv_runs(comparison: Comparison) -> str:
    """A line for each run, also for those that do not count."""
    records: list[Record] = []
    for table in comparison.tables:
        for row in table.rows:
            place = {"table": table.title, "row": row.label}
            records += [
                place | run_record(score.run, True) | score_record(score) for score in row.scores
            ]
            records += [place | run_record(run, False) for run in (*row.repeated, *row.left_out)]
    records += [run_record(run, False) for run in comparison.unreadable]
    return csv_text(records)


def row_record(goal: MetricSpec, table: ResultTable, row: ResultRow) -> Record:
    record: Record = {
        "table": table.title,
        "row": row.label,
        "method": row.method,
        "metric": goal.metric,
        "seeds": " ".join(map(str, row.seeds)),
        "counted": len(row.scores),
        "left_out": len(row.left_out),
    }
    for name in CSV_QUANTITIES:
        record |= spread_columns(name, row.spread(name))
    for name in AVERAGED_QUANTITIES:
        record |= spread_columns(name, spread) if (spread := row.spread(name)) else {}
    for name in CumulativeCost._fields:
        record |= spread_columns(name, row.total(name))
    for target in goal.targets:
        record |= {f"reached_{format_value(target)}": row.reached(target, "rounds").n}
        for name in CumulativeCost._fields:
            record |= spread_columns(f"{name}_to_{format_value(target)}", row.reached(target, name))
    for found in table.differences:
        if found.label == row.label:
            record |= difference_record(found) | {"baseline": table.baseline}
    return record


def spread_columns(name: str, spread: Spread | None) -> Record:
    return {
        f"{name}_mean": spread and spread.mean,
        f"{name}_deviation": spread and spread.deviation,
    }


def difference_record(found: PairedDifference) -> Record:
    low, high = found.interval
    return {
        "common_seeds": " ".join(map(str, found.seeds)),
        "difference": found.mean,
        "difference_low": low,
        "difference_high": high,
        "better_on": found.better,
        "p": found.p,
        "p_holm": found.corrected,
    }


def run_record(run: LoadedRun, counted: bool) -> Record:
    return {
        "run": run.path,
        "seed": run.config.get("seed"),
        "counted": counted,
        "state": run.state,
        "remark": run.remark,
    }


def score_record(score: RunScores) -> Record:
    record = {name: getattr(score, name) for name in CSV_QUANTITIES}
    record |= {
        name: value for name in AVERAGED_QUANTITIES if (value := getattr(score, name)) is not None
    }
    record |= score.total._asdict()
    for target, cost in score.reached.items():
        record |= {
            f"{name}_to_{format_value(target)}": cost and getattr(cost, name)
            for name in CumulativeCost._fields
        }
    return record


def csv_text(records: Sequence[Record]) -> str:
    """Every column that any record has; what is unknown or not a number is left empty."""
    names = list(dict.fromkeys(name for record in records for name in record))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "" if value != value else value for name, value in record.items()}
        for record in records
    )
    return file.getvalue()
