"""What a stranger wrote in a run folder, as the commands print and write it."""

import csv
import errno
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedwmsam import files
from fedwmsam.report import output_files
from fedwmsam.report.latex import latex_text
from fedwmsam.report.text_tables import TextTable

LATEX_COMMANDS = {
    *("usepackage", "begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule"),
    *("label", "sbox", "ifdim", "wd", "linewidth", "resizebox", "usebox", "else", "fi", "par"),
    *("smallskip", "parbox", "footnotesize", "raggedright", "textbf", "rlap"),
    *("textbackslash", "textasciitilde", "textasciicircum", "pm", "ldots", "dagger", "times"),
    *("le", "ge"),
}
"""The commands that the program itself writes."""
ESCAPE = "\x1b]0;owned\x07"


def assert_only_own_commands(latex: str) -> None:
    assert set(re.findall(r"\\([A-Za-z@]+)", latex)) <= LATEX_COMMANDS
    for line in latex.splitlines():
        assert not line or line.startswith(("%", " ", "\\begin{table}", "\\end{table}"))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(st.sampled_from("\\{}%&$#_^~[]*\n\r\t\x0b\x1b\u2028ainput|<>=") | st.characters()))
@example("stopped\n\\input{/etc/passwd}")
@example("^^5cinput{x}^^M")
def test_no_status_or_name_becomes_latex_or_markdown(
    cli: Any, tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    run = write_run(folder / "a", [0.1, 0.2], status="stopped")
    (run / "summary.json").write_text(json.dumps({"status": text, "rounds": 2}))
    config = (run / "config.toml").read_text()
    forged = json.dumps(text, ensure_ascii=True)
    if not any("\ud800" <= letter <= "\udfff" for letter in text) and text.isascii():
        config = re.sub("^method = .*$", lambda _: f"method = {forged}", config, flags=re.M)
        (run / "config.toml").write_text(config.replace("\x7f", ""))
    outcome = cli("report", run, "--latex", folder / "t.tex", "--markdown", folder / "t.md")
    assert outcome.code == 0, outcome.err
    assert_only_own_commands((folder / "t.tex").read_text())
    rows = [line for line in (folder / "t.md").read_text().split("\n") if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) == 1
    assert not re.search(r"(?<!\\)(?:\\\\)*<", "".join(rows))


def test_a_bracket_or_star_at_the_start_of_a_cell_is_no_argument() -> None:
    table = TextTable("[t]", ("[a]", "b"), (("*", "[x]"),))
    latex = latex_text([table])
    assert "{[}a]" in latex and "{*} & {[}x]" in latex


def test_escape_sequences_do_not_reach_the_terminal(cli: Any, tmp_path: Path) -> None:
    write_run(tmp_path / f"a{ESCAPE}", [0.1, 0.2], status=f"stopped {ESCAPE}")
    write_run(tmp_path / "b", [0.1], status=None, model=f"mlp{ESCAPE}")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.toml").write_text(f'"{ESCAPE.encode("unicode_escape").decode()}" =')
    report = cli("report", tmp_path)
    missing = cli("report", tmp_path / f"none{ESCAPE}\nError: forged")
    assert (report.code, missing.code) == (0, 2)
    assert "\x1b" not in report.out + report.err + missing.out + missing.err
    assert r"\x1b]0;owned\x07" in report.out and missing.err.count("\n") == 1


def test_texts_in_csv_are_no_formulas_and_numbers_stay_numbers(cli: Any, tmp_path: Path) -> None:
    for index, start in enumerate("=+-@"):
        write_run(tmp_path / "runs" / str(index), [-0.5, -0.6], status=f"{start}1+1", seed=index)
    assert cli("report", tmp_path / "runs", "--csv", tmp_path / "t.csv").code == 0
    with (tmp_path / "t-runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["remark"] for row in rows] == ["'=1+1", "'+1+1", "'-1+1", "'@1+1"]
    assert {row["last"] for row in rows} == {"-0.6"}


@pytest.mark.parametrize("option", ["--html", "--csv", "--latex", "--markdown"])
def test_on_a_full_disk_the_old_file_stays(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    @contextmanager
    def full_disk(path: Path) -> Iterator[Path]:
        with files.atomic_replace(path) as temporary:
            yield temporary
            temporary.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    run = write_run(tmp_path / "run", [0.1, 0.2])
    old = tmp_path / "old.txt"
    old.write_text("old")
    monkeypatch.setattr(output_files, "atomic_replace", full_disk)
    outcome = cli("report", run, option, old)
    assert outcome.code == 2 and "No space left on device" in outcome.err
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.txt", "run"]


def test_a_link_is_written_through_and_a_device_is_not_replaced(cli: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")
    assert cli("report", run, "--markdown", tmp_path / "link.md").code == 0
    assert (tmp_path / "link.md").is_symlink() and "fedavg" in (tmp_path / "real.md").read_text()
    assert cli("report", run, "--latex", "/dev/null").code == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 0), ("2>&-", 0), ("<&- >&- 2>&-", 0), (">/dev/full", 2)]
)
def test_a_closed_or_full_output_is_no_traceback(
    tmp_path: Path, redirection: str, code: int
) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    page = tmp_path / "page.html"
    command = f"{sys.executable} -m fedwmsam report {run} --html {page} {redirection}"
    process = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert process.returncode == code
    assert "Traceback" not in process.stderr and "Exception" not in process.stderr
    assert process.stdout == "" or redirection == "2>&-"
    assert page.exists() or code
