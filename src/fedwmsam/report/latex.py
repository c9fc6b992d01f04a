"""Tables of a report in LaTeX, to be read into a paper with `\\input` as they are.

Each table has a caption, a label and its notes below it, and is as wide as a column or the page at
most. No text, whoever wrote it, becomes a command. `paper_tables` makes the tables of a comparison
with the names that papers print.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.summary import Comparison, ResultRow, ResultTable
from fedwmsam.report.text_tables import TextTable, make_text_tables, one_line
from fedwmsam.settings.method_table import method_title

Width = Literal["column", "page"]
"""The width that a table may have at most; they differ where a page has two columns."""
ENVIRONMENTS: dict[Width, str] = {"column": "table", "page": "table*"}
"""The environment of a table of each width."""
DAGGER = r"$^{\dagger}$"
CHARACTERS = {
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
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "†": DAGGER,
    "−": "$-$",
    "…": r"\ldots{}",
}
"""Characters that LaTeX takes for markup or does not know, and how they are written."""


def latex_text(text_tables: Iterable[TextTable], width: Width = "column") -> str:
    """Return the tables as the text of a LaTeX file."""
    tables = []
    kinds: Counter[str] = Counter()
    for text_table in text_tables:
        name = text_table.kind.replace(" ", "-")
        kinds[name] += 1
        label = name if kinds[name] == 1 else f"{name}-{kinds[name]}"
        tables.append(latex_table(text_table, label, width))
    packages = r"\usepackage{booktabs} and \usepackage{graphicx}"
    return "\n".join([f"% Needs {packages} in the preamble.", *tables])


def latex_table(text_table: TextTable, label: str, width: Width) -> str:
    """Return a table environment.

    The table is typeset into a box first, which is made smaller if it is too wide.
    """
    environment = ENVIRONMENTS[width]
    title = text_table.title[:1].upper() + text_table.title[1:]
    cells = text_table.format_rows(latex_cell, lambda cell: rf"\textbf{{{latex_cell(cell)}}}")
    rows = list(map(latex_row, cells))
    lines = [
        rf"\begin{{{environment}}}",
        r"  \centering",
        rf"  \caption{{{escape_latex(title)}}}",
        rf"  \label{{tab:{label}}}",
        r"  \par\smallskip",  # most classes leave room above a caption, and none below it
        r"  \sbox0{%",
        rf"  \begin{{tabular}}{{l{'r' * (len(text_table.header) - 1)}}}",
        r"    \toprule",
        latex_row(map(latex_cell, text_table.header)),
        r"    \midrule",
        *rows,
        r"    \bottomrule",
        r"  \end{tabular}}%",
        r"  \ifdim\wd0>\linewidth \resizebox{\linewidth}{!}{\usebox0}\else \usebox0\fi",
        *latex_notes(text_table.notes),
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def latex_notes(notes: Sequence[str]) -> list[str]:
    """Return the lines that print the notes below a table, each as a paragraph."""
    if not notes:
        return []
    paragraphs = [rf"    {escape_latex(note)}\par" for note in notes]
    first_line = r"  \parbox{\linewidth}{\footnotesize\raggedright"
    return [r"  \par\smallskip", first_line, *paragraphs, "  }"]


def latex_row(cells: Iterable[str]) -> str:
    """Return a line of a LaTeX table, given cells that are escaped."""
    return rf"    {' & '.join(cells)} \\"


def latex_cell(text: str) -> str:
    """Return a cell in which numbers have real signs and powers of ten.

    A mark at its end hangs over, so that the numbers of a column stay aligned.
    """
    escaped = escape_latex(text)
    if escaped.endswith(DAGGER):
        escaped = rf"{escaped.removesuffix(DAGGER).rstrip()}\rlap{{{DAGGER}}}"
    escaped = re.sub(
        r"(?<=\d)e([+-]\d+)\b", lambda found: rf"$\times10^{{{int(found[1])}}}$", escaped
    )
    return re.sub(r"(?<![\w.{+-])([+-])(?=\d)", r"$\1$", escaped)


def escape_latex(text: str) -> str:
    """Return the text in one line, so that LaTeX prints it as it is.

    A bracket or star at its beginning would be an argument of the command before it, and two
    hyphens would become a dash.
    """
    escaped = "".join(CHARACTERS.get(character, character) for character in one_line(text))
    escaped = escaped.replace("--", "-{}-").replace("–", "--")
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped.startswith(("[", "*")) else escaped


# Names as papers print them


def paper_tables(comparison: Comparison, paper_columns: bool = False) -> list[TextTable]:
    """Return the text tables of a comparison with the names that papers print."""
    methods = list(dict.fromkeys(row.method for row in comparison.rows))
    text_tables = make_text_tables(with_paper_names(comparison), paper_columns)
    return [rename_tuned(t, methods) if t.kind == "tuning" else t for t in text_tables]


def rename_tuned(text_table: TextTable, methods: Sequence[str]) -> TextTable:
    """Return the table of what was tried, whose labels come from the tuning's file, renamed."""
    rows = tuple((rename_label(label, methods), *cells) for label, *cells in text_table.rows)
    return replace(text_table, rows=rows)


def with_paper_names(comparison: Comparison) -> Comparison:
    """Return the comparison with "FedAvg" for "fedavg", and the names of run folders for paths."""
    tables = tuple(rename_table(table) for table in comparison.tables)
    unreadable_runs = tuple(map(without_path, comparison.unreadable_runs))
    return replace(comparison, tables=tables, unreadable_runs=unreadable_runs)


def rename_table(table: ResultTable) -> ResultTable:
    """Return a table whose rows have the names that papers print."""
    methods = list(dict.fromkeys(row.method for row in table.rows))
    differences = tuple(
        replace(difference, label=rename_label(difference.label, methods))
        for difference in table.differences
    )
    return replace(
        table,
        rows=tuple(rename_row(row) for row in table.rows),
        omitted_values=tuple(rename_label(text, methods) for text in table.omitted_values),
        baseline=table.baseline and rename_label(table.baseline, methods),
        differences=differences,
    )


def rename_row(row: ResultRow) -> ResultRow:
    """Return a row with the names that papers print.

    Runs that count keep their paths, which no table prints: beside them lies how values were tuned.
    """
    return replace(
        row,
        label=rename_label(row.label, [row.method]),
        excluded_runs=tuple(map(without_path, row.excluded_runs)),
        duplicate_runs=tuple(map(without_path, row.duplicate_runs)),
    )


def rename_label(label: str, methods: Iterable[str]) -> str:
    """Return a label that begins with one of the methods with that method's title."""
    for method in methods:
        if label == method or label.startswith(f"{method} "):
            return method_title(method) + label.removeprefix(method)
    return label


def without_path(run: LoadedRun) -> LoadedRun:
    """Return a run under the name of its folder: where that lies is nothing for a paper."""
    return replace(run, path=Path(run.path.name))
