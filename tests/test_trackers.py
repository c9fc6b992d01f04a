"""Trackers without their packages: what every log promises, and what is refused.

The tests with the packages are in test_real_trackers.py.
"""

import importlib.util
import json
import logging
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_run import SMALL_RUN
from torch import nn

from fedwmsam import InputError, Result, fit, toml, trackers
from fedwmsam.comparison.grid import make_grid
from fedwmsam.engine.records import Record
from fedwmsam.engine.run import Progress
from fedwmsam.trackers import TensorBoard, Tracker, WeightsAndBiases, make_trackers, numeric_columns

Cli = Callable[..., Any]


class MemoryTracker(Tracker):
    """A tracker that logs in memory and can be made to fail at a round."""

    title = "Memory"
    package = "json"

    def __init__(self, project: str = "", fails_at: int = 0) -> None:
        super().__init__()
        self.project = project
        self.fails_at = fails_at
        self.logs: list[list[tuple[int, dict[str, float]]]] = []
        self.config: Record = {}
        self.ends: list[str] = []

    def open(self, progress: Progress) -> None:
        if self.fails_at < 0:
            raise OSError("No space left on device")
        self.logs.append([])
        self.config = progress.config

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            if record["round"] == self.fails_at:
                raise OSError("No space left on device")
            self.logs[-1].append((record["round"], numeric_columns(record)))

    def close(self, progress: Progress) -> None:
        self.ends.append(progress.summary["status"])

    def viewing_hint(self) -> str:
        return "Look into the memory."


def small_fit(callbacks: Sequence[Any], rounds: int = 6, **settings: Any) -> Result:
    generator = torch.Generator().manual_seed(1)
    clients = []
    for _ in range(4):
        x = torch.randn(20, 4, generator=generator)
        clients.append((x, torch.randint(3, (20,), generator=generator)))
    return fit(
        lambda: nn.Linear(4, 3),
        clients,
        test=clients[0],
        rounds=rounds,
        callbacks=callbacks,
        **settings,
    )


def expected_log(result: Result) -> list[tuple[int, dict[str, float]]]:
    return [(row["round"], numeric_columns(row)) for row in result.rows]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    missing = ("tensorboard", "wandb")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )


@pytest.fixture
def memory_trackers(monkeypatch: pytest.MonkeyPatch) -> list[MemoryTracker]:
    """Make `--track wandb` log in memory, and return all trackers that were made."""
    made: list[MemoryTracker] = []

    def make(*arguments: Any) -> MemoryTracker:
        made.append(MemoryTracker(*arguments))
        return made[-1]

    monkeypatch.setitem(trackers.TRACKER_CLASSES, "wandb", make)  # type: ignore[arg-type]
    return made


# The log is the history


def test_every_number_of_every_round_and_the_end() -> None:
    tracker = MemoryTracker()
    result = small_fit([tracker])
    assert tracker.logs == [expected_log(result)] and len(result.rows) == 6
    assert {"accuracy", "loss", "train_loss", "alpha", "bytes_up"} <= set(tracker.logs[0][-1][1])
    assert tracker.config == result.config and tracker.ends == ["completed"]


def test_a_resumed_run_is_logged_from_its_first_round_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small_fit([MemoryTracker()], rounds=4, run_folder=folder)
    tracker = MemoryTracker()
    result = small_fit([tracker], rounds=7, run_folder=folder, resume=True)
    assert tracker.logs == [expected_log(result)] and len(result.rows) == 7


def test_a_finished_run_can_still_be_logged(tmp_path: Path) -> None:
    small_fit([], run_folder=tmp_path / "run")
    tracker = MemoryTracker()
    result = small_fit([tracker], run_folder=tmp_path / "run", resume=True)
    assert tracker.logs == [expected_log(result)] and tracker.ends == ["completed"]


def test_one_tracker_serves_one_run_after_another() -> None:
    tracker = MemoryTracker()
    results = [small_fit([tracker], rounds=rounds) for rounds in (3, 2)]
    assert tracker.logs == [expected_log(result) for result in results]


def test_an_interrupted_run_has_its_last_round_in_the_log() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.record["round"] == 3:
            raise KeyboardInterrupt

    tracker = MemoryTracker()
    with pytest.raises(KeyboardInterrupt):
        small_fit([tracker, interrupt])
    assert [round for round, _ in tracker.logs[0]] == [1, 2, 3] and tracker.ends == ["interrupted"]


class BrokenOffTracker(MemoryTracker):
    """A tracker in which an interrupt breaks off a lock, once: its error hides the interrupt."""

    def __init__(self, during: str) -> None:
        super().__init__()
        self.during = during

    def open(self, progress: Progress) -> None:
        super().open(progress)
        if self.during == "open":
            self.break_off()

    def write(self, records: Sequence[Record]) -> None:
        if self.during == "write" and len(self.logs[-1]) == 3:
            self.during = ""
            self.break_off()
        super().write(records)

    def break_off(self) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()  # which nobody has acquired


@pytest.mark.parametrize("during", ["open", "write"])
def test_an_interrupt_that_an_error_of_the_package_hides_ends_the_run(during: str) -> None:
    tracker = BrokenOffTracker(during)
    with pytest.raises(KeyboardInterrupt):
        small_fit([tracker])
    rounds = [1, 2, 3, 4] if during == "write" else []
    assert [round for round, _ in tracker.logs[0]] == rounds


def test_only_finite_numbers_are_logged() -> None:
    record = {
        "round": 4,
        "loss": math.nan,
        "norm": math.inf,
        "rejected": [1, 2],
        "none": None,
        "odd": True,
        "lr": 0.1,
    }
    assert numeric_columns(record | {"cohort": 3}) == {"lr": 0.1, "cohort": 3}


# What goes wrong with a log does not end a run


def test_a_log_that_fails_is_given_up_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    untracked = small_fit([])
    failing = MemoryTracker(fails_at=4)
    other = MemoryTracker()
    with caplog.at_level(logging.WARNING, "fedwmsam"):
        result = small_fit([failing, other])
    assert result.rows == untracked.rows
    assert all(torch.equal(result.model[k], v) for k, v in untracked.model.items())
    assert [round for round, _ in failing.logs[0]] == [1, 2, 3]
    assert other.logs == [expected_log(untracked)]
    assert len(caplog.records) == 1
    assert "Memory: the log ends after round 3 (OSError: No space left on device)" in caplog.text
    assert len(failing.ends) == 1, "it is closed as well as it can be"


def test_a_log_that_cannot_be_begun_is_refused_before_anything_is_trained() -> None:
    rounds: list[Progress] = []
    message = "Memory cannot begin its log: OSError: No space left on device"
    with pytest.raises(InputError, match=message):
        small_fit([rounds.append, MemoryTracker(fails_at=-1)])
    assert rounds == []


def test_tensorboard_needs_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorBoard, "package", "json")
    with pytest.raises(InputError, match="TensorBoard needs a folder"):
        small_fit([TensorBoard()])


# A missing package, a wrong name


@pytest.mark.parametrize(
    ("kind", "extra"), [(TensorBoard, "tensorboard"), (WeightsAndBiases, "wandb")]
)
def test_a_missing_package_is_named_with_what_installs_it(
    nothing_installed: None, kind: type[Tracker], extra: str
) -> None:
    with pytest.raises(InputError, match=rf"pip install 'fedwmsam\[{extra}\]'"):
        kind()


def test_a_folder_of_logs_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_alike").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(WeightsAndBiases, "package", "named_alike")
    with pytest.raises(InputError, match="not installed"):
        WeightsAndBiases()


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_command_line_says_so_before_it_makes_a_folder(
    cli: Cli, tmp_path: Path, nothing_installed: None, command: str, name: str
) -> None:
    outcome = cli(command, "--track", name, "--rounds", "2", "--out", tmp_path / "out")
    assert outcome.code == 2 and f"pip install 'fedwmsam[{name}]'" in outcome.err
    assert not list(tmp_path.glob("out/*/"))


@pytest.mark.parametrize(
    "wrong", ["tensorbord", "tensorboard:logs", "wandb:", "tensorboard,mlflow", ","]
)
def test_unknown_trackers_are_refused(cli: Cli, tmp_path: Path, wrong: str) -> None:
    outcome = cli("run", "--track", wrong, "--out", tmp_path / "out")
    assert outcome.code == 2 and "tracker" in outcome.err and "tensorboard" in outcome.err
    assert not (tmp_path / "out").exists()


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WeightsAndBiases, "package", "json")
    with pytest.raises(InputError, match="'ofline'"):
        WeightsAndBiases(mode="ofline")


def test_a_project_follows_the_name(memory_trackers: list[MemoryTracker]) -> None:
    made = make_trackers("wandb, wandb:mine")
    assert made == memory_trackers
    assert [tracker.project for tracker in memory_trackers] == ["", "mine"]


# The command line


def test_a_tracked_run_is_remembered_and_resumed_with_its_tracker(
    cli: Cli, tmp_path: Path, memory_trackers: list[MemoryTracker]
) -> None:
    folder = tmp_path / "a"
    outcome = cli("run", *SMALL_RUN, "--track", "wandb:mine", "--out", tmp_path, "--name", "a")
    assert outcome.code == 0, outcome.err
    assert "Look into the memory." in outcome.out
    assert toml.load(folder / "config.toml")["track"] == "wandb:mine"
    assert cli("resume", folder, "--rounds", "5", "--quiet").code == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [tracker.project for tracker in memory_trackers] == ["mine", "mine"]
    expected = [(row["round"], numeric_columns(row)) for row in rows]
    assert memory_trackers[1].logs == [expected] and len(rows) == 5


def test_tracking_can_begin_and_end_with_a_resumption(
    cli: Cli, tmp_path: Path, memory_trackers: list[MemoryTracker]
) -> None:
    assert cli("run", *SMALL_RUN, "--out", tmp_path, "--name", "a").code == 0
    assert cli("resume", tmp_path / "a", "--rounds", "4", "--track", "wandb").code == 0
    assert [round for round, _ in memory_trackers[0].logs[0]] == [1, 2, 3, 4]
    assert cli("resume", tmp_path / "a", "--rounds", "5", "--track", "none").code == 0
    assert len(memory_trackers) == 1 and "track" not in toml.load(tmp_path / "a" / "config.toml")


def test_a_run_tracked_elsewhere_can_be_read_and_gone_on_with_here(
    cli: Cli, tmp_path: Path, memory_trackers: list[MemoryTracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("run", *SMALL_RUN, "--track", "wandb", "--out", tmp_path, "--name", "a").code == 0
    monkeypatch.setitem(trackers.TRACKER_CLASSES, "wandb", WeightsAndBiases)
    monkeypatch.setattr(WeightsAndBiases, "package", "no_such_package")
    assert cli("report", tmp_path).code == cli("evaluate", tmp_path / "a").code == 0
    before = (tmp_path / "a" / "metrics.jsonl").read_bytes()
    refused = cli("resume", tmp_path / "a", "--rounds", "4")
    assert refused.code == 2 and "pip install" in refused.err
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == before
    assert cli("resume", tmp_path / "a", "--rounds", "4", "--track", "none").code == 0


def test_the_command_line_overrides_the_tracker_of_a_file(
    cli: Cli, tmp_path: Path, memory_trackers: list[MemoryTracker]
) -> None:
    (tmp_path / "settings.toml").write_text('track = "wandb:file"\n')
    command = ["run", tmp_path / "settings.toml", *SMALL_RUN, "--out", tmp_path]
    for flags in ([], ["--track", "wandb:here"], ["--track", "none"]):
        assert cli(*command, *flags).code == 0
    assert [tracker.project for tracker in memory_trackers] == ["file", "here"]


def test_tracking_changes_neither_the_results_nor_the_name_of_a_run(
    cli: Cli, tmp_path: Path, memory_trackers: list[MemoryTracker]
) -> None:
    assert cli("run", *SMALL_RUN, "--out", tmp_path, "--name", "a").code == 0
    assert cli("run", *SMALL_RUN, "--out", tmp_path, "--name", "b", "--track", "wandb").code == 0
    for name in ("metrics.jsonl", "model.safetensors", "summary.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    plain = make_grid({}, {}).run_specs()[0]
    tracked = make_grid({}, {"track": "wandb"}).run_specs()[0]
    assert plain.folder_name == tracked.folder_name
