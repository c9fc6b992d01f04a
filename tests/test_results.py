"""Published results: packed runs give the tables of the runs, and docs/results has these tables."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import parts
import pytest
import run_queue
import store
from eight_seeds import EIGHT_SEEDS
from fresh_seeds import complete_rows
from paired import Estimate, Ratio, difference, mean_of_last
from safetensors.torch import load_file
from sections import PageSection
from verdict import Claim

from fedwmsam.analysis import dynamics, flatness
from fedwmsam.analysis.flatness import FlatnessConfig
from fedwmsam.comparison.grid import config_fingerprint
from fedwmsam.report.runs import LoadedRun, find_runs, read_run
from fedwmsam.report.summary import make_goal, summarise
from fedwmsam.report.text_tables import TextTable, make_text_tables
from fedwmsam.settings.config import resolve_config
from fedwmsam.settings.method_table import allow_import

ROOT = Path(__file__).parents[1]
Cli = Callable[..., Any]


@pytest.fixture
def runs(cli: Cli, tmp_path: Path) -> Path:
    """Return a folder with two methods over two seeds, and a run that is not finished."""
    out = tmp_path / "runs"
    methods = ("--methods", "fedavg,fedwmsam", "--seeds", "2")
    states = ("--set", "keep_states=1")
    assert cli("compare", *methods, *states, "--rounds", "3", "--out", out, "-q").code == 0
    unfinished = next(out.glob("fedavg-seed0-*"))
    shutil.copytree(unfinished, out / "unfinished-seed0-00000000")
    (out / "unfinished-seed0-00000000" / "summary.json").unlink()
    return out


def load_packed(packed: Path, tmp_path: Path) -> list[LoadedRun]:
    """Unpack the runs into a new folder and read them."""
    folder = tmp_path / f"unpacked {packed.name}"
    folder.mkdir()
    return find_runs([store.unpack_runs(folder, packed)])[0]


def weights_norm(run: LoadedRun) -> float:
    """Return the norm of the run's final model."""
    tensors = load_file(run.path / "model.safetensors").values()
    return sum(float((weights**2).sum()) for weights in tensors) ** 0.5


def test_packed_runs_give_the_tables_of_the_runs(runs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    loaded, _ = find_runs([runs])
    assert len(store.pack_runs(loaded, packed)) == 4, "the one that is not finished is left out"
    assert store.pack_runs(loaded, packed) == [], "nothing is packed twice"
    finished = sorted((run for run in loaded if run.is_usable), key=lambda run: run.path.name)
    unpacked = load_packed(packed, tmp_path)
    goal = make_goal("accuracy", [0.1])
    expected = make_text_tables(summarise(finished, goal, "fedavg"), True)
    tables = make_text_tables(summarise(unpacked, goal, "fedavg"), True)
    for table, expected_table in zip(tables, expected, strict=True):
        # The last column holds seconds, which are packed with fewer digits, or p.
        rows = [row[:-1] for row in table.rows]
        assert rows == [row[:-1] for row in expected_table.rows]
    for run, same in zip(finished, unpacked, strict=True):
        for column in ("loss", "train_loss", "alpha"):
            values = list(same.values_by_round(column).values())
            expected_values = list(run.values_by_round(column).values())
            assert values == pytest.approx(expected_values, rel=1e-4)
        norm = store.read_index(packed)[run.path.name]["norm"]
        assert norm == pytest.approx(weights_norm(run), rel=1e-4)


def test_analyses_are_packed_with_their_runs(cli: Cli, runs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    finished = list(runs.glob("fed*"))
    data = ("--samples", "50", "--clients", "1")
    measures = ("--eigenvalues", "1", "--probes", "1", "--rho", "0.05", "--adaptive-rho", "")
    assert cli("analyse", "flatness", *finished, *data, *measures, "-q").code == 0
    assert cli("analyse", "dynamics", *finished, "--sample", "100", "-q").code == 0
    loaded, _ = find_runs([runs])
    assert store.pack_analyses(loaded, packed) == [], "analyses without their run are left out"
    store.pack_runs(loaded, packed)
    assert len(store.pack_analyses(loaded, packed)) == 8
    assert store.pack_analyses(loaded, packed) == []
    expected = analysis_tables([run for run in loaded if run.is_usable])
    tables = analysis_tables(load_packed(packed, tmp_path))
    assert [table.title for table in tables] == [table.title for table in expected]
    assert numbers_in(tables) == pytest.approx(numbers_in(expected), rel=1e-3, abs=2e-4)
    assert len(tables) == 4


def numbers_in(tables: Sequence[TextTable]) -> list[float]:
    """Return the numbers of all cells; packed analyses have six digits of them."""
    rows = [table.rows for table in tables]
    return [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?", str(rows))]


def analysis_tables(runs: Sequence[LoadedRun]) -> list[TextTable]:
    """Return the tables of flatness over seeds and of training dynamics."""
    (table,) = summarise(runs).tables
    flatness_table = flatness.seeds_table(table)
    assert flatness_table is not None
    return [flatness_table, *dynamics.dynamics_tables(dynamics.load_groups(runs))]


QUICK = """
dataset = "digits"
clients = 4
local_epochs = 1
model = "linear"
rounds = 3
twin = 8
"""
TUNING = f"""{QUICK}
validation = 0.2
seeds = [1, 2]
methods = ["fedavg", "fedsam"]
[grid]
lr = [1e-9, 0.1]
"""
TUNED = f"""{QUICK}
seeds = [3]
methods = ["fedsam", "fedavg", "fedprox"]
"""
"""A plan whose runs take the step sizes that TUNING chooses; it has none for fedprox."""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run_queue.Queue:
    """Return a queue of two step sizes for two methods, and the runs that take the better one."""
    (tmp_path / "tuning.toml").write_text(TUNING)
    (tmp_path / "tuned.toml").write_text(TUNED)
    analysis = FlatnessConfig(eigenvalues=1, probes=1, rho=(), adaptive_rho=())
    parts = (
        run_queue.QueuedPlan("tuned.toml", analysis, chosen_by="tuning.toml"),
        run_queue.QueuedPlan("tuning.toml", analysis),
    )
    monkeypatch.setattr(run_queue, "PLANS", tmp_path)
    monkeypatch.setattr(run_queue, "QUEUED_PLANS", parts)
    monkeypatch.setattr(run_queue, "PAUSE", 0.1)
    (tmp_path / "queue").mkdir()
    return run_queue.Queue(tmp_path / "queue", data_dir=None)


def test_the_queue_makes_chooses_measures_and_packs(queue: run_queue.Queue, tmp_path: Path) -> None:
    assert len(queue.open_runs()) == 8, "what needs a choice comes later"
    queue.work()
    assert queue.open_runs() == []
    assert run_queue.best_steps("tuning.toml", queue.packed) == {"fedavg": 0.1, "fedsam": 0.1}
    packed = load_packed(queue.packed, tmp_path)
    tuned = [run.config for run in packed if run.seed == 3]
    steps = {config["method"]: config["lr"] for config in tuned}
    assert steps == {"fedavg": 0.1, "fedsam": 0.1}, "no step size was chosen for fedprox"
    assert len(tuned) == 2 and len(packed) == 10
    assert not list((queue.folder / "runs").glob("*/checkpoints"))
    for run in packed:
        original = read_run(queue.folder / "runs" / run.path.name)
        for column in ("accuracy", "averaged_accuracy"):
            expected = original.values_by_round(column)
            assert run.values_by_round(column) == pytest.approx(expected, rel=1e-11)
        seconds = [timing["cpu_seconds"] for timing in run.timings]
        expected_seconds = [timing["cpu_seconds"] for timing in original.timings]
        assert seconds == pytest.approx(expected_seconds, rel=1e-4)
        ((_, of_last),) = flatness.read_last_flatness(run, averaged=False)
        ((_, of_averaged),) = flatness.read_last_flatness(run, averaged=True)
        assert of_last.round == of_averaged.round == 3
        assert of_last.pooled != of_averaged.pooled


def test_a_step_is_chosen_when_all_its_runs_are_finished_and_diverged_runs_score_nothing(
    queue: run_queue.Queue,
) -> None:
    for part, member in queue.open_runs()[:-1]:  # the last is one of fedsam's
        queue.run_and_pack(part, member)
    assert run_queue.best_steps("tuning.toml", queue.packed) == {"fedavg": 0.1}
    entries = store.read_index(queue.packed)
    for name in entries:
        if "lr0.1" in name and "seed2" in name:
            entries[name]["status"] = "diverged at round 3: x"
    store.write_index(entries, queue.packed)
    assert run_queue.best_steps("tuning.toml", queue.packed) == {"fedavg": 1e-9}


def test_no_two_processes_of_the_queue_make_the_same_run(queue: run_queue.Queue) -> None:
    with queue.claim("a") as is_first, queue.claim("a") as is_second:
        assert is_first and not is_second
        with queue.claim("b") as is_other:
            assert is_other
    with queue.claim("a") as is_first:
        assert is_first


def test_runs_packed_elsewhere_are_merged_once_and_not_made_again(
    queue: run_queue.Queue, tmp_path: Path
) -> None:
    part, member = queue.open_runs()[0]
    queue.run_and_pack(part, member)
    other = run_queue.Queue(tmp_path / "elsewhere", data_dir=None)
    name = member.find_folder(queue.folder / "runs").name
    assert store.merge(queue.packed, other.packed) == [
        name,
        f"{name}: flatness-averaged.json",
        f"{name}: flatness.json",
    ]
    assert store.merge(queue.packed, other.packed) == []
    assert store.read_index(other.packed) == store.read_index(queue.packed)
    assert len(other.open_runs()) == 7


def test_the_queue_says_how_far_it_is(tmp_path: Path) -> None:
    script = ROOT / "results" / "run_queue.py"
    command = [sys.executable, script, tmp_path / "queue", "--list", "--kept", tmp_path]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = process.stdout.splitlines()
    assert len(lines) == len(run_queue.QUEUED_PLANS)
    assert "tuning-step-size.toml: 0 of 60 runs" in lines


def test_packed_runs_have_the_names_that_their_settings_give() -> None:
    """A setting added later must not change any run's name as long as it is at its default."""
    for entry in store.read_index().values():
        allow_import(entry["config"]["method"])  # some are classes of results/candidates.py
    wrong = [
        name
        for name, entry in store.read_index().items()
        if not name.endswith(config_fingerprint(resolve_config(entry["config"])))
    ]
    assert wrong == [] and len(store.read_index()) > 100


def test_runs_packed_by_the_first_version_are_read(tmp_path: Path) -> None:
    (run,) = load_packed(Path(__file__).parent / "data" / "packed_runs", tmp_path)
    assert run.is_usable and len(run.round_records) == 150
    assert run.seed == 0 and run.config["method"] == "fedwmsam"
    goal = make_goal("accuracy", [0.8])
    score = summarise([run], goal).tables[0].scores[0]
    assert score.last == 0.8596
    assert score.tail == pytest.approx(0.85291)
    assert score.total.bytes == 150 * (15936840 + 7968400)
    assert score.total.backprops == 150 * 600


@pytest.mark.parametrize(
    ("estimates", "verdict"),
    [
        ([Estimate(0.02, 0.01, 0.03, 3), Estimate(0.01, 0.001, 0.02, 3)], "holds"),
        ([Estimate(0.02, 0.01, 0.03, 3), Estimate(0.01, -0.001, 0.02, 3)], "open"),
        ([Estimate(0.02, 0.01, 0.03, 3), Estimate(-0.02, -0.03, -0.01, 3)], "open"),
        ([Ratio(0.5, 0.4, 0.6, 3)], "fails"),
        ([Ratio(0.9, 0.8, 1.1, 3)], "open"),
    ],
)
def test_a_claim_holds_or_fails_only_if_all_its_intervals_say_so(
    estimates: Sequence[Estimate], verdict: str
) -> None:
    claim = Claim("x is larger", "x", estimates, "0, 1, 2")
    assert claim.verdict == verdict
    opposite = {"holds": "fails", "fails": "holds", "open": "open"}
    assert replace(claim, is_larger_better=False).verdict == opposite[verdict]
    interim = "open" if verdict == "open" else f"{verdict} so far"
    assert replace(claim, is_interim=True).verdict == interim


def test_only_seeds_that_every_method_has_are_compared(tmp_path: Path) -> None:
    rows = complete_rows(EIGHT_SEEDS, store.unpack_runs(tmp_path))
    seeds = [row.seeds for row in rows.values()]
    assert len(rows) == 14 and {10, 11, 12} <= set(seeds[0])
    assert all(others == seeds[0] for others in seeds)
    quantity = mean_of_last(10)
    values = [quantity(score.run) for score in rows["fedwmsam"].scores]
    assert values[:3] == pytest.approx([0.8721, 0.8773, 0.8722], abs=5e-5)
    difference_of_twins = difference(rows["fedwmsam"], rows["fedwmsam averaged twin=8"], quantity)
    assert difference_of_twins.is_below and difference_of_twins.seeds == len(values)


def test_a_note_is_printed_once_on_a_page_and_not_if_it_is_said_elsewhere() -> None:
    table = TextTable("accuracy", ("a", "b"), (("1", "2"),), ("once", "elsewhere"))
    section = PageSection(lambda runs: (table, table))
    text = section.text("name", section.make_tables(Path()), Path(), {"elsewhere"})
    assert text.count("- once\n") == 1 and "elsewhere" not in text
    assert text.count("### Accuracy") == 2


def test_the_pages_are_what_the_packed_runs_give() -> None:
    command = [sys.executable, ROOT / "results" / "rebuild.py", "--check"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_what_a_part_adds_is_the_run_with_it_minus_the_run_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Personalized momentum adds .01 (.02 beside SAM), SAM .003, the adaptive weight nothing."""

    def accuracy(config: Mapping[str, Any]) -> float:
        has_momentum = config["correction"] == "scaffold"
        has_sam = config["perturbation"] == "trajectory"
        return 0.8 + 0.01 * has_momentum * (1 + has_sam) + 0.003 * has_sam + config["seed"] / 100

    def make_run(config: Mapping[str, Any]) -> SimpleNamespace:
        rounds = dict.fromkeys(range(1, 201), accuracy(config))
        return SimpleNamespace(
            config=config, seed=config["seed"], values_by_round=lambda column: rounds
        )

    runs = [make_run(spec.config.to_flat_dict()) for spec in parts.SPECS]
    monkeypatch.setattr(parts, "load_runs", lambda specs, folder: runs)
    monkeypatch.setattr(parts, "top_eigenvalue", lambda run: 20.0)
    accuracies, gains = parts.make_tables(tmp_path)
    assert accuracies.rows[0][:2] == ("✓✓✓", "0.8230, 0.8330")
    assert accuracies.rows[-1][:2] == ("×××", "0.8000, 0.8100")
    added = {row[:2]: row[2] for row in gains.rows}
    assert added["personalized momentum", "SAM and adaptive weight"] == "+0.0200, +0.0200"
    assert added["personalized momentum", "–"] == "+0.0100, +0.0100"
    assert added["SAM", "personalized momentum"] == "+0.0130, +0.0130"
    assert added["SAM", "–"] == "+0.0030, +0.0030"
    nothing = {gain for (part, _), gain in added.items() if part == "adaptive weight"}
    assert nothing == {"+0.0000, +0.0000"}
    monkeypatch.setattr(parts, "load_runs", lambda specs, folder: runs[1:])
    assert parts.make_tables(tmp_path) == []
