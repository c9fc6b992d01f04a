"""The published results: kept runs give the same tables as the runs, and RESULTS.md is what they give."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import store
from safetensors.torch import load_file

from fedwmsam.report import dynamics, flatness
from fedwmsam.report.runs import Run, find_runs
from fedwmsam.report.sheets import Sheet, sheets
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
        squares = sum(float((weights**2).sum()) for weights in load_file(run.path / "model.safetensors").values())
        assert store.entries()[run.path.name]["norm"] == pytest.approx(squares**0.5, rel=1e-4)


def test_analyses_are_kept_with_their_runs(
    cli: Cli, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in (("INDEX", "runs.jsonl"), ("COLUMNS", "columns"), ("ANALYSES", "analysis")):
        monkeypatch.setattr(store, name, tmp_path / place)
    little = ("--eigenvalues", "1", "--probes", "1", "--samples", "50", "--clients", "1", "--rho", "0.05", "-q")
    assert cli("analyse", "flatness", *runs.glob("fed*"), *little, "--adaptive-rho", "").code == 0
    assert cli("analyse", "dynamics", *runs.glob("fed*"), "--sample", "100", "-q").code == 0
    found, _ = find_runs([runs])
    assert store.add_analyses(found) == [], "a run that is not kept has no place for them"
    store.add(found)
    assert len(store.add_analyses(found)) == 8 and store.add_analyses(found) == []
    (again := tmp_path / "again").mkdir()
    finished = [run for run in found if run.counts]
    of_runs, kept = sheets_of(finished), sheets_of(find_runs([store.unpacked(again)])[0])
    assert of_runs == kept and len(kept) == 4


def sheets_of(runs: Sequence[Run]) -> list[Sheet | None]:
    (table,) = summarise(runs).tables
    return [flatness.seeds_sheet(table), *dynamics.sheets(dynamics.groups_of(runs))]


def test_the_page_is_what_the_kept_runs_give() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "results" / "rebuild.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
