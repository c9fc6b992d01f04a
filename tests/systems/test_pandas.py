"""The program of docs/compare.md that reads the files of a report with the real pandas."""

from pathlib import Path
from typing import Any

import pytest
from helpers.markdown_pages import ROOT, read_blocks
from helpers.run_folders import write_run

pytestmark = pytest.mark.systems


def test_the_program_in_the_documentation_reads_the_files_of_a_report(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    for partition in ("iid", "dirichlet:0.1"):
        for number, method in enumerate(("fedavg", "scaffold")):
            for seed in range(2):
                folder = tmp_path / "runs" / f"{method}{partition[:3]}{seed}"
                write_run(
                    folder, [0.5, 0.7 + number / 10], method=method, partition=partition, seed=seed
                )
    unfinished = tmp_path / "runs" / "unfinished"
    write_run(unfinished, [0.1], rounds=2, status=None, seed=2, partition="iid")
    monkeypatch.chdir(tmp_path)
    assert cli("report", "runs", "--csv", "rows.csv", "--curves", "curves.csv").code == 0
    (program,) = [
        block.text
        for block in read_blocks(ROOT / "docs" / "compare.md")
        if "tests/systems" in block.mark
    ]
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["table"].loc["fedavg", "iid"] == pytest.approx(0.6)
    assert names["gains"]["scaffold"].tolist() == pytest.approx([0.05] * 4)
    assert names["means"]["iid", "scaffold", 2] == pytest.approx(0.8)
