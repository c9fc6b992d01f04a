"""The published results: kept runs give the same tables as the runs, and RESULTS.md is what they give."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import run_queue
import store
from safetensors.torch import load_file

from fedwmsam.analysis import dynamics, flatness
from fedwmsam.analysis.flatness import FlatnessConfig
from fedwmsam.comparison.grid import config_fingerprint
from fedwmsam.report.runs import LoadedRun, find_runs, read_run
from fedwmsam.report.summary import make_goal, summarise
from fedwmsam.report.text_tables import TextTable, make_text_tables
from fedwmsam.settings.config import resolve

ROOT = Path(__file__).parents[1]
Cli = Callable[..., Any]


@pytest.fixture
def runs(cli: Cli, tmp_path: Path) -> Path:
    """Two methods over two seeds, and a run that is not over."""
    out = tmp_path / "made"
    assert (
        cli(
            "compare",
            "--methods",
            "fedavg,fedwmsam",
            "--seeds",
            "2",
            "--rounds",
            "3",
            "--out",
            out,
            "-q",
        ).code
        == 0
    )
    unfinished = next(out.glob("fedavg-seed0-*"))
    shutil.copytree(unfinished, out / "unfinished-seed0-00000000")
    (out / "unfinished-seed0-00000000" / "summary.json").unlink()
    return out


def test_kept_runs_give_the_tables_of_the_runs(runs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    found, _ = find_runs([runs])
    assert len(store.add(found, packed)) == 4, "the one that is not over is left out"
    assert store.add(found, packed) == [], "nothing is kept twice"
    kept = kept_in(packed, tmp_path)
    goal = make_goal("accuracy", [0.1])
    finished = [run for run in found if run.counts]
    tables = [make_text_tables(summarise(runs, goal, "fedavg"), True) for runs in (kept, finished)]
    for ours, theirs in zip(*tables, strict=True):
        assert [row[:-1] for row in ours.rows] == [
            row[:-1] for row in theirs.rows
        ]  # the last are rounded seconds, or p
    for run, same in zip(sorted(finished, key=lambda run: run.path.name), kept, strict=True):
        for column in ("loss", "train_loss", "alpha"):
            assert list(same.values(column).values()) == pytest.approx(
                list(run.values(column).values()), rel=1e-4
            )
        squares = sum(
            float((weights**2).sum())
            for weights in load_file(run.path / "model.safetensors").values()
        )
        assert store.entries(packed)[run.path.name]["norm"] == pytest.approx(squares**0.5, rel=1e-4)


def kept_in(packed: Path, tmp_path: Path) -> list[LoadedRun]:
    (again := tmp_path / f"unpacked {packed.name}").mkdir()
    return find_runs([store.unpacked(again, packed)])[0]


def test_analyses_are_kept_with_their_runs(cli: Cli, runs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    little = (
        "--eigenvalues",
        "1",
        "--probes",
        "1",
        "--samples",
        "50",
        "--clients",
        "1",
        "--rho",
        "0.05",
        "-q",
    )
    assert cli("analyse", "flatness", *runs.glob("fed*"), *little, "--adaptive-rho", "").code == 0
    assert cli("analyse", "dynamics", *runs.glob("fed*"), "--sample", "100", "-q").code == 0
    found, _ = find_runs([runs])
    assert store.add_analyses(found, packed) == [], "a run that is not kept has no place for them"
    store.add(found, packed)
    assert len(store.add_analyses(found, packed)) == 8 and store.add_analyses(found, packed) == []
    finished = [run for run in found if run.counts]
    of_runs, kept = sheets_of(finished), sheets_of(kept_in(packed, tmp_path))
    assert of_runs == kept and len(kept) == 4


def sheets_of(runs: Sequence[LoadedRun]) -> list[TextTable | None]:
    (table,) = summarise(runs).tables
    return [flatness.seeds_sheet(table), *dynamics.dynamics_tables(dynamics.groups_of(runs))]


QUICK = (
    'dataset = "digits"\nclients = 4\nlocal_epochs = 1\nmodel = "linear"\nrounds = 3\ntwin = 8\n'
)
TUNING = (
    QUICK
    + 'validation = 0.2\nseeds = [1, 2]\nmethods = ["fedavg", "fedsam"]\n[grid]\nlr = [1e-9, 0.1]\n'
)
AFTER = QUICK + 'seeds = [3]\nmethods = ["fedsam", "fedavg", "fedprox"]\n'


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run_queue.Queue:
    """Two steps for two methods, and the runs that take the better one."""
    (tmp_path / "tuning.toml").write_text(TUNING)
    (tmp_path / "after.toml").write_text(AFTER)
    little = FlatnessConfig(eigenvalues=1, probes=1, rho=(), adaptive_rho=())
    after, tuning = (
        run_queue.Part("after.toml", little, chosen_by="tuning.toml"),
        run_queue.Part("tuning.toml", little),
    )
    monkeypatch.setattr(run_queue, "PLANS", tmp_path)
    monkeypatch.setattr(run_queue, "PARTS", (after, tuning))
    monkeypatch.setattr(run_queue, "PAUSE", 0.1)
    (tmp_path / "queue").mkdir()
    return run_queue.Queue(tmp_path / "queue", data_dir=None)


def test_the_queue_makes_chooses_measures_and_packs(queue: run_queue.Queue, tmp_path: Path) -> None:
    assert len(queue.open_members()) == 8, "what needs a choice comes later"
    queue.work()
    assert queue.open_members() == []
    assert run_queue.best_steps("tuning.toml", queue.packed) == {"fedavg": 0.1, "fedsam": 0.1}
    kept = kept_in(queue.packed, tmp_path)
    later = [run.config for run in kept if run.seed == 3]
    assert [(one["method"], one["lr"]) for one in later] == [("fedavg", 0.1), ("fedsam", 0.1)], (
        "fedprox: no choice"
    )
    assert len(kept) == 10 and not list((queue.folder / "runs").glob("*/checkpoints"))
    for run in kept:
        made = read_run(queue.folder / "runs" / run.path.name)
        for column in ("accuracy", "averaged_accuracy"):
            assert run.values(column) == pytest.approx(made.values(column), rel=1e-11)
        assert [line["cpu_seconds"] for line in run.timings] == pytest.approx(
            [line["cpu_seconds"] for line in made.timings], rel=1e-4
        )
        (own,), (averaged,) = (
            flatness.read_last_flatness(run, averaged=twin) for twin in (False, True)
        )
        assert own[1].round == averaged[1].round == 3 and own[1].all != averaged[1].all


def test_a_step_is_chosen_when_all_of_its_methods_runs_are_over_and_a_diverged_one_counts_for_nothing(
    queue: run_queue.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part, member in queue.open_members()[:-1]:  # the last is one of fedsam's
        queue.carry_out(part, member)
    assert run_queue.best_steps("tuning.toml", queue.packed) == {"fedavg": 0.1}
    known = store.entries(queue.packed)
    for name in known:
        if "lr0.1" in name and "seed2" in name:
            known[name]["status"] = "diverged at round 3: x"
    store.write_index(known, queue.packed)
    assert run_queue.best_steps("tuning.toml", queue.packed) == {"fedavg": 1e-9}


def test_no_two_processes_of_the_queue_make_the_same_run(queue: run_queue.Queue) -> None:
    with queue.claimed("a") as mine, queue.claimed("a") as theirs, queue.claimed("b") as another:
        assert (mine, theirs, another) == (True, False, True)
    with queue.claimed("a") as mine:
        assert mine


def test_what_is_kept_elsewhere_is_merged_once_and_not_made_again(
    queue: run_queue.Queue, tmp_path: Path
) -> None:
    part, member = queue.open_members()[0]
    queue.carry_out(part, member)
    other = run_queue.Queue(tmp_path / "elsewhere", data_dir=None)
    name = member.place(queue.folder / "runs").name
    assert store.merge(queue.packed, other.packed) == [
        name,
        f"{name}: flatness-averaged.json",
        f"{name}: flatness.json",
    ]
    assert store.merge(queue.packed, other.packed) == []
    assert store.entries(other.packed) == store.entries(queue.packed)
    assert len(other.open_members()) == 7


def test_the_queue_says_how_far_it_is(tmp_path: Path) -> None:
    command = [
        sys.executable,
        ROOT / "results" / "run_queue.py",
        tmp_path / "queue",
        "--list",
        "--kept",
        tmp_path,
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(listed) == len(run_queue.PARTS) and "tuning-step-size.toml: 0 of 60 runs" in listed


def test_kept_runs_have_the_names_that_their_settings_give() -> None:
    """A setting that comes later and is at its default must not change the name of any run there is."""
    wrong = [
        name
        for name, entry in store.entries().items()
        if not name.endswith(config_fingerprint(resolve(entry["config"])))
    ]
    assert wrong == [] and len(store.entries()) > 100


def test_runs_packed_by_the_first_version_are_read(tmp_path: Path) -> None:
    (run,) = kept_in(Path(__file__).parent / "data" / "packed_runs", tmp_path)
    assert (
        run.counts and len(run.rows) == 150 and (run.seed, run.config["method"]) == (0, "fedwmsam")
    )
    goal = make_goal("accuracy", [0.8])
    score = summarise([run], goal).tables[0].scores[0]
    assert (score.last, score.tail, score.averaged_tail) == (0.8596, pytest.approx(0.85291), None)
    assert (score.total.bytes, score.total.backprops) == (150 * (15936840 + 7968400), 150 * 600)


def test_the_page_is_what_the_kept_runs_give() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "results" / "rebuild.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
