"""The published results: kept runs give the same tables as the runs, and RESULTS.md is what they give."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import store

from fedwmsam.report.runs import find_runs
from fedwmsam.report.sheets import sheets
from fedwmsam.report.tables import make_goal, summarise

ROOT = Path(__file__).parents[1]
Cli = Callable[..., Any]


@pytest.fixture
def runs(cli: Cli, tmp_path: Path) -> Path:
    """Two methods over two seeds, and a run that is not over."""
    out = tmp_path / "made"
    assert cli("compare", "--methods", "fedavg,fedwmsam", "--seeds", "2", "--rounds", "3", "--out", out, "-q").code == 0
    unfinished = next(out.glob("fedavg-seed0-*"))
    shutil.copytree(unfinished, out / "unfinished-seed0-00000000")
    (out / "unfinished-seed0-00000000" / "summary.json").unlink()
    return out


def test_kept_runs_give_the_tables_of_the_runs(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "INDEX", tmp_path / "runs.jsonl")
    monkeypatch.setattr(store, "COLUMNS", tmp_path / "columns")
    found, _ = find_runs([runs])
    assert len(store.add(found)) == 4, "the one that is not over is left out"
    assert store.add(found) == [], "nothing is kept twice"
    (again := tmp_path / "again").mkdir()
    kept, _ = find_runs([store.unpacked(again)])
    goal = make_goal("accuracy", [0.1])
    finished = [run for run in found if run.counts]
    tables = [sheets(summarise(runs, goal, "fedavg"), True) for runs in (kept, finished)]
    for ours, theirs in zip(*tables, strict=True):
        assert [row[:-1] for row in ours.rows] == [
            row[:-1] for row in theirs.rows
        ]  # the last are rounded seconds, or p
    for run, same in zip(sorted(finished, key=lambda run: run.path.name), kept, strict=True):
        for column in ("loss", "train_loss", "alpha"):
            assert list(same.values(column).values()) == pytest.approx(list(run.values(column).values()), rel=1e-4)


def test_the_page_is_what_the_kept_runs_give() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "results" / "rebuild.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
