"""Tables in LaTeX, as they go into a paper."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run

from fedwmsam.report.latex import latex_cell, latex_text, paper_tables
from fedwmsam.report.pivot import pivot_text_tables
from fedwmsam.report.runs import find_runs
from fedwmsam.report.summary import Comparison, make_goal, summarise
from fedwmsam.report.text_tables import TextTable

ARTICLE = r"\documentclass{article}"
TWO_COLUMNS = r"\documentclass[twocolumn]{article}"


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Three methods over two partitions and three seeds; one run diverges."""
    for method, value in {"fedavg": 0.7, "fedlesam-s": 0.8, "scaffold": 0.81}.items():
        for partition in ("iid", "dirichlet:0.1"):
            for seed in range(3):
                noise = (-1) ** seed / 20 if method == "scaffold" else seed / 100
                has_diverged = (method, partition, seed) == ("scaffold", "iid", 2)
                write_run(
                    tmp_path / f"{method}_{partition.replace(':', '')}_{seed}",
                    [0.5, value + noise],
                    status="diverged at round 3: 100%" if has_diverged else "completed",
                    method=method,
                    partition=partition,
                    seed=seed,
                )
    return summarise(find_runs([tmp_path])[0], make_goal("accuracy", [0.75]), "fedavg")


def report(comparison: Comparison, width: Any = "column") -> str:
    tables = paper_tables(comparison, paper_columns=True)
    return latex_text([*tables, *pivot_text_tables(comparison, None)], width)


def test_a_table_is_for_booktabs_with_everything_escaped() -> None:
    rows = (("a_b#1 $", "0.5 ± 0.1"), (r"c\d{e}", "–"))
    text = latex_text([TextTable("50% & more", ("method", "x"), rows, ("see --this",))])
    lines = [line.strip() for line in text.splitlines()]
    assert {r"\caption{50\% \& more}", r"\begin{tabular}{lr}", r"see -{}-this\par"} <= set(lines)
    assert [line for line in lines if line.endswith(r"\\")] == [
        r"method & x \\",
        r"a\_b\#1 \$ & 0.5 $\pm$ 0.1 \\",
        r"c\textbackslash{}d\{e\} & -- \\",
    ]
    assert [line for line in lines if line.startswith(r"\t") or "rule" in line] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]
    assert text.isascii()


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("-0.0500", "$-$0.0500"),
        ("+0.0250 to -0.0750", "$+$0.0250 to $-$0.0750"),
        ("1.235e-05", r"1.235$\times10^{-5}$"),
        ("-1.2e+07", r"$-$1.2$\times10^{7}$"),
        ("81.31 ± 3.12 †", r"81.31 $\pm$ 3.12\rlap{$^{\dagger}$}"),
        ("cifar-10", "cifar-10"),
        ("lr=-1", "lr=$-$1"),
    ],
)
def test_numbers_have_real_signs(text: str, latex: str) -> None:
    assert latex_cell(text) == latex


def test_every_table_has_a_label_of_its_own_and_its_notes_below(comparison: Comparison) -> None:
    text = report(comparison)
    labels = re.findall(r"\\label\{tab:(.+)\}", text)
    assert labels == [
        *("results", "target-costs", "differences"),
        *("results-2", "target-costs-2", "differences-2"),
        "pivot",
    ]
    pivot = text[text.index("tab:pivot") :]
    assert pivot.index(r"\end{tabular}") < pivot.index("SCAFFOLD, iid: 2 of 3 (1 diverged)")
    assert text.count("%\n") == 2 * len(labels) and len(re.findall("^%", text, re.MULTILINE)) == 1


def test_names_are_those_that_papers_print(comparison: Comparison, tmp_path: Path) -> None:
    text = report(comparison)
    assert "FedAvg & 3 &" in text and "FedLESAM-S & 3 &" in text
    assert "difference to FedAvg" in text and "fedavg" not in text
    assert str(tmp_path) not in text
    assert r"SCAFFOLD, seed 2 (scaffold\_iid\_2): diverged at round 3: 100\%" in text


def test_the_page_is_spanned_on_request(comparison: Comparison) -> None:
    text = report(comparison, "page")
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == 7
    assert r"\begin{table}" not in text


def test_a_report_is_ascii_and_every_row_has_all_columns(comparison: Comparison) -> None:
    text = report(comparison)
    assert text.isascii() and text.count(r"\begin{table}") == text.count(r"\end{table}") == 7
    tables = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) == 7
    for spec, body in tables:
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert rows
        for row in rows:
            assert len(re.findall(r"(?<!\\)&", row)) == len(spec) - 1


def has_latex() -> bool:
    """Return whether pdflatex is here, with the packages that the tables need."""
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return False
    styles = ["kpsewhich", "booktabs.sty", "graphicx.sty"]
    found = subprocess.run(styles, capture_output=True, text=True, check=False).stdout
    return len(found.split()) == 2


@pytest.mark.skipif(not has_latex(), reason="needs pdflatex with booktabs and graphicx")
@pytest.mark.parametrize("document_class", [ARTICLE, TWO_COLUMNS])
@pytest.mark.parametrize("width", ["column", "page"])
def test_a_report_is_typeset_without_a_complaint(
    comparison: Comparison, tmp_path: Path, document_class: str, width: str
) -> None:
    (tmp_path / "tables.tex").write_text(report(comparison, width))
    (tmp_path / "paper.tex").write_text(
        document_class
        + r"\usepackage{booktabs}\usepackage{graphicx}\begin{document}"
        + r"Table~\ref{tab:pivot}\input{tables}\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    for _ in range(2):
        process = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False
        )
        assert process.returncode == 0, process.stdout[-2000:]
    assert not re.search("Overfull|undefined|multiply", process.stdout)
    assert (tmp_path / "paper.pdf").exists()
