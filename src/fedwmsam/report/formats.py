"""A comparison in files: Markdown and LaTeX to paste, CSV to compute with."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedwmsam.analysis.statistics import Spread
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.report.grouping import shown
from fedwmsam.report.runs import Cost, Run
from fedwmsam.report.sheets import Sheet
from fedwmsam.report.tables import Comparison, Difference, Goal, Row, Scores, Table

QUANTITIES = ("last", "tail", "best", "best_on_test")
OF_TWINS = ("averaged_last", "averaged_tail")
"""Columns that only runs with an averaged twin have."""
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$", "±": r"$\pm$",
    "–": "--", "−": "$-$", "…": r"\ldots{}",
}  # fmt: skip


def write(path: Path, text: str) -> None:
    """Over what is there; folders on the way are made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; name another place.") from error


def write_files(
    comparison: Comparison, sheets: Sequence[Sheet], csv: Path | None, markdown: Path | None, latex: Path | None
) -> list[Path]:
    """Those that have a name; the runs' numbers go beside those of the rows."""
    texts: dict[Path, str] = {}
    if csv is not None:
        texts |= {csv: csv_rows(comparison), csv.with_name(f"{csv.stem}-runs{csv.suffix}"): csv_runs(comparison)}
    if markdown is not None:
        texts[markdown] = markdown_text(sheets)
    if latex is not None:
        texts[latex] = latex_text(sheets)
    for path, text in texts.items():
        write(path, text)
    return list(texts)


# Markdown


def markdown_text(sheets: Iterable[Sheet]) -> str:
    return "\n".join(markdown_sheet(sheet) for sheet in sheets)


def markdown_sheet(sheet: Sheet) -> str:
    lines = [sheet.header, ["---", *("---:" for _ in sheet.header[1:])], *sheet.rows]
    table = "".join(f"| {' | '.join(map(plain_markdown, line))} |\n" for line in lines)
    notes = "".join(f"- {plain_markdown(note)}\n" for note in sheet.notes)
    return f"### {plain_markdown(sheet.title)}\n\n{table}" + (f"\n{notes}" if notes else "")


def plain_markdown(text: str) -> str:
    """What people named must not become markup or end a cell."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text


# LaTeX


def latex_text(sheets: Iterable[Sheet]) -> str:
    return "% Needs \\usepackage{booktabs} in the preamble.\n" + "\n".join(latex_sheet(sheet) for sheet in sheets)


def latex_sheet(sheet: Sheet) -> str:
    """A table environment, its notes in comments: a caption of a paper is its author's."""
    rows = [latex_row(row) for row in sheet.rows]
    notes = [f"% {note}" for note in sheet.notes]
    lines = [
        r"\begin{table}", r"  \centering", rf"  \caption{{{plain_latex(sheet.title)}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(sheet.header) - 1)}}}", r"    \toprule", latex_row(sheet.header),
        r"    \midrule", *rows, r"    \bottomrule", r"  \end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join([*notes, *lines]) + "\n"


def latex_row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(map(plain_latex, cells))} \\\\"


def plain_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


# CSV


def csv_rows(comparison: Comparison) -> str:
    """A line for each row of each table, in full precision."""
    return csv_text([row_record(comparison.goal, table, row) for table in comparison.tables for row in table.rows])


def csv_runs(comparison: Comparison) -> str:
    """A line for each run, also for those that do not count."""
    records: list[Record] = []
    for table in comparison.tables:
        for row in table.rows:
            place = {"table": table.title, "row": row.label}
            records += [place | run_record(score.run, True) | score_record(score) for score in row.scores]
            records += [place | run_record(run, False) for run in (*row.repeated, *row.left_out)]
    records += [run_record(run, False) for run in comparison.unreadable]
    return csv_text(records)


def row_record(goal: Goal, table: Table, row: Row) -> Record:
    record: Record = {
        "table": table.title, "row": row.label, "method": row.method, "metric": goal.metric,
        "seeds": " ".join(map(str, row.seeds)), "counted": len(row.scores), "left_out": len(row.left_out),
    }  # fmt: skip
    for name in QUANTITIES:
        record |= spread_columns(name, row.spread(name))
    for name in OF_TWINS:
        record |= spread_columns(name, spread) if (spread := row.spread(name)) else {}
    for name in Cost._fields:
        record |= spread_columns(name, row.total(name))
    for target in goal.targets:
        record |= {f"reached_{shown(target)}": row.reached(target, "rounds").n}
        for name in Cost._fields:
            record |= spread_columns(f"{name}_to_{shown(target)}", row.reached(target, name))
    for found in table.differences:
        if found.label == row.label:
            record |= difference_record(found) | {"baseline": table.baseline}
    return record


def spread_columns(name: str, spread: Spread | None) -> Record:
    return {f"{name}_mean": spread and spread.mean, f"{name}_deviation": spread and spread.deviation}


def difference_record(found: Difference) -> Record:
    low, high = found.interval
    return {
        "common_seeds": " ".join(map(str, found.seeds)), "difference": found.mean, "difference_low": low,
        "difference_high": high, "better_on": found.better, "p": found.p, "p_holm": found.corrected,
    }  # fmt: skip


def run_record(run: Run, counted: bool) -> Record:
    return {
        "run": run.path, "seed": run.config.get("seed"), "counted": counted, "state": run.state, "remark": run.remark,
    }  # fmt: skip


def score_record(score: Scores) -> Record:
    record = {name: getattr(score, name) for name in QUANTITIES}
    record |= {name: value for name in OF_TWINS if (value := getattr(score, name)) is not None}
    record |= score.total._asdict()
    for target, cost in score.reached.items():
        record |= {f"{name}_to_{shown(target)}": cost and getattr(cost, name) for name in Cost._fields}
    return record


def csv_text(records: Sequence[Record]) -> str:
    """Every column that any record has; what is unknown or not a number is left empty."""
    names = list(dict.fromkeys(name for record in records for name in record))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value != value else value for name, value in record.items()} for record in records)
    return file.getvalue()
