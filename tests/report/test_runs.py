"""Which folders are runs, and which status each has."""

import json
import math
from pathlib import Path

import pytest
from helpers.run_folders import write_run

from fedwmsam.errors import InputError
from fedwmsam.report.runs import RunStatus, find_runs, read_run


def names(*folders: Path) -> list[str]:
    return [run.path.name for run in find_runs(folders)[0]]


def test_runs_are_found_up_to_two_folders_below_and_each_once(tmp_path: Path) -> None:
    write_run(tmp_path / "b", [0.1])
    write_run(tmp_path / "a" / "one", [0.1])
    write_run(tmp_path / "a" / "deep" / "two", [0.1])
    (tmp_path / "notes.txt").write_text("")
    assert names(tmp_path) == ["one", "b"]  # "two" is three levels below
    assert names(tmp_path / "a") == ["two", "one"]
    assert names(tmp_path / "b", tmp_path) == ["b", "one"]


def test_what_holds_no_run_is_named_and_only_refused_if_nothing_is_left(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert find_runs([run, empty])[1] == [str(empty)]
    with pytest.raises(InputError, match=r"No runs in .*empty.*config\.toml"):
        find_runs([empty])
    with pytest.raises(InputError, match=r"no run folder .*absent"):
        find_runs([run, tmp_path / "absent"])


@pytest.mark.parametrize(
    ("summary", "rounds", "status", "words"),
    [
        ("completed", 3, RunStatus.COMPLETED, "completed"),
        (
            "reached accuracy 0.9",
            5,
            RunStatus.STOPPED,
            "stopped early after 3 of 5 rounds: reached accuracy 0.9",
        ),
        (
            "diverged at round 4: not finite",
            5,
            RunStatus.DIVERGED,
            "diverged at round 4: not finite",
        ),
        (None, 5, RunStatus.UNFINISHED, "not finished after 3 of 5 rounds"),
        # It was killed at the start of an extension: the new number of rounds was written, and the
        # old summary not yet removed.
        ("completed", 5, RunStatus.UNFINISHED, "not finished after 3 of 5 rounds"),
    ],
)
def test_the_status_of_a_run_that_went_on_for_three_rounds(
    tmp_path: Path, summary: str | None, rounds: int, status: RunStatus, words: str
) -> None:
    run = read_run(write_run(tmp_path / "run", [0.1, 0.2, 0.3], status=summary, rounds=rounds))
    assert run.status == status
    assert run.is_usable == (status in (RunStatus.COMPLETED, RunStatus.STOPPED))
    assert run.describe() == words


def test_a_run_that_has_only_begun_is_empty(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [], status=None, rounds=3))
    assert run.status == RunStatus.EMPTY and not run.is_usable


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("config.toml", "rounds = = 3", "config.toml"),
        ("config.toml", "rounds = 3\nseed = 1", "lacks method"),
        ("config.toml", b"\xff\xfe", "config.toml"),
        ("data.json", "[]", "data.json"),
        ("metrics.jsonl", '{"round": 1\n', "metrics.jsonl"),
        ("metrics.jsonl", '{"round": 2}\n', "line 1"),
        ("metrics.jsonl", "3\n", "line 1"),
        (
            "metrics.jsonl",
            '{"round": 1, "accuracy": 0.5}\n',
            "speaks of 2 rounds, metrics.jsonl has 1",
        ),
        ("summary.json", "{", "summary.json"),
        ("clients.json", "{", "clients.json"),
        (
            "clients.json",
            '{"round": 1, "accuracy": [0.5]}',
            "is of round 1, metrics.jsonl ends with 2",
        ),
        ("clients.json", '{"round": 2, "accuracy": [null]}', "holds no accuracies"),
        ("clients.json", '{"round": 2, "accuracy": 0.5}', "accuracy must be a list, not 0.5"),
        ("summary.json", '{"status": "completed", "rounds": 2, "best_round": 9}', "best round 9"),
    ],
)
def test_a_damaged_run_says_what_is_wrong(
    tmp_path: Path, file: str, text: str | bytes, reason: str
) -> None:
    path = write_run(tmp_path / "run", [0.1, 0.2])
    (path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    run = read_run(path)
    assert run.status == RunStatus.DAMAGED and not run.is_usable
    assert reason in run.status_message


def test_client_accuracies_of_an_end_that_was_overtaken_do_not_count(tmp_path: Path) -> None:
    ended = read_run(write_run(tmp_path / "ended", [0.1], client_accuracy=[0.5, None]))
    assert ended.client_accuracies[0] == 0.5
    path = write_run(tmp_path / "goes on", [0.1], status=None, client_accuracy=[0.5])
    assert read_run(path).client_accuracies == ()


def test_a_line_cut_short_by_a_crash_is_no_damage(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [0.1, 0.2], status=None, rounds=3)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "acc')
    assert read_run(path).status == RunStatus.UNFINISHED


def test_costs_add_up_round_by_round_and_unknown_ones_are_nan(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [0.1, 0.2, 0.3])
    assert read_run(path).cost_at(2) == (2, 4.0, 300, 14)
    (path / "timings.jsonl").unlink()
    rounds, seconds, traffic, _ = read_run(path).cost_at(3)
    assert math.isnan(seconds) and (rounds, traffic) == (3, 450)


def test_values_are_those_of_evaluated_rounds_and_null_is_not_a_number(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [..., 0.2, ..., None]))
    values = run.values_by_round("accuracy")
    assert list(values) == [2, 4] and values[2] == 0.2 and math.isnan(values[4])


def test_settings_newer_than_the_run_have_their_defaults(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [0.1], method="fedwmsam")
    lines = (path / "config.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("augmentation", "correction"))]
    (path / "config.toml").write_text("\n".join(kept))
    assert len(kept) == len(lines) - 2
    config = read_run(path).config
    assert (config["augmentation"], config["correction"]) == ("none", "scaffold")


@pytest.mark.parametrize("workers", [2, "ray:4,num_cpus=2"])
def test_workers_may_be_a_number_or_words(tmp_path: Path, workers: int | str) -> None:
    run = read_run(write_run(tmp_path / "run", [0.1], workers=workers))
    assert run.config["workers"] == workers


def test_a_run_of_fit_without_a_limit_is_not_given_the_default_one(tmp_path: Path) -> None:
    """`fit` writes no line for clip_norm=None."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text('method = "fedavg"\nseed = 0\nrounds = 1\n')
    (path / "metrics.jsonl").write_text(json.dumps({"round": 1, "loss": 2.0}) + "\n")
    assert "clip_norm" not in read_run(path).config
