"""The command line: what it writes, what it prints, what it refuses."""

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from helpers.run_folders import write_run
from helpers.small_run import SMALL_RUN
from rich.console import Console

import fedwmsam
from fedwmsam import METHODS, Result, toml
from fedwmsam.commands.app import app
from fedwmsam.commands.run import make_folder_name
from fedwmsam.data import load_dataset
from fedwmsam.settings.config import resolve_config
from fedwmsam.settings.method_table import METHOD_TABLE

Cli = Callable[..., Any]
Arguments = list[str | Path]
VECTORS = Path(__file__).parent / "data" / "reference_vectors"


def walk_commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the command of everything below a group, groups themselves included."""
    for word, subcommand in getattr(command, "commands", {}).items():
        full_name = f"{name} {word}".strip()
        yield full_name, subcommand
        yield from walk_commands(subcommand, full_name)


COMMANDS = dict(walk_commands(typer.main.get_command(app)))
GROUPS = [name for name, command in COMMANDS.items() if hasattr(command, "commands")]


def command() -> list[str]:
    """Return how to start the program: as a module where there is one, else as installed."""
    if (Path(__file__).parents[1] / "src" / "fedwmsam" / "__main__.py").exists():
        return [sys.executable, "-m", "fedwmsam"]
    return [str(Path(sys.executable).parent / "fedwmsam")]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def words_of(text: str) -> str:
    """Return the text without frames and line breaks."""
    return " ".join(re.sub(r"[─-╿]", " ", text).split())


@pytest.fixture(autouse=True)
def work_in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put runs into a folder of the test's own, and print tables on a wide page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "fedwmsam.commands.output.console", Console(width=250, markup=False, highlight=False)
    )


@pytest.fixture(scope="module")
def run_folder(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("cli")
    outcome = cli("run", *SMALL_RUN, "--validation", "0.1", "--out", out, "--name", "small")
    assert outcome.code == 0, outcome.err
    (out / "printed").write_text(outcome.out)
    return out / "small"


@pytest.fixture
def copy(run_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run_folder, tmp_path / "copy")


# What a run leaves


def test_a_run_leaves_a_folder_that_tells_everything(run_folder: Path) -> None:
    files = {str(p.relative_to(run_folder)) for p in run_folder.rglob("*") if p.is_file()} - {
        "lock"
    }
    checkpoints = {name for name in files if name.startswith("checkpoints/")}
    assert files - checkpoints == {
        "config.toml",
        "metrics.jsonl",
        "timings.jsonl",
        "model.safetensors",
        "best.safetensors",
        "summary.json",
        "data.json",
        "clients.json",
        "provenance.json",
    }
    assert checkpoints == {"checkpoints/round-0000003.checkpoint", "checkpoints/memory.rows"}
    lines = rows(run_folder)
    assert [row["round"] for row in lines] == [1, 2, 3]
    for row in lines:
        for name in (
            "accuracy",
            "loss",
            "validation_accuracy",
            "train_loss",
            "alpha",
            "similarity",
            "similarity_spread",
            "update_norm",
            "bytes_up",
            "bytes_down",
            "backprops",
        ):
            assert isinstance(row[name], int | float), name
        assert not any("seconds" in name for name in row)
    timings = [json.loads(line) for line in (run_folder / "timings.jsonl").read_text().splitlines()]
    assert [t["round"] for t in timings] == [1, 2, 3] and timings[0]["train_seconds"] > 0
    summary = json.loads((run_folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("completed", 3)
    assert summary["last_accuracy"] == lines[-1]["accuracy"] and summary["best_round"] in (1, 2, 3)
    data = json.loads((run_folder / "data.json").read_text())
    assert (data["dataset"], data["classes"], data["input_shape"]) == ("digits", 10, [1, 8, 8])
    assert (
        sum(map(sum, data["class_counts"])) + data["validation_samples"] + data["test_samples"]
        == 1797
    )


def test_the_traffic_is_counted_to_the_byte(run_folder: Path) -> None:
    parameters = 64 * 10 + 10
    for row in rows(run_folder):
        assert row["bytes_up"] == 2 * 4 * parameters
        assert row["bytes_down"] == 2 * 4 * (2 * parameters + 1)  # the model, a momentum and α
    samples = [
        sum(counts) for counts in json.loads((run_folder / "data.json").read_text())["class_counts"]
    ]
    steps = {-(-count // 50) for count in samples}
    assert len(steps) == 1 and rows(run_folder)[0]["backprops"] == 2 * steps.pop()


def test_the_saved_model_has_the_saved_accuracy(run_folder: Path) -> None:
    digits = load_dataset("digits")
    result = Result.load(run_folder)
    accuracy = (
        (result.predict(digits.transform_split(digits.test)[0]).argmax(1) == digits.test.labels)
        .double()
        .mean()
    )
    assert float(accuracy) == pytest.approx(rows(run_folder)[-1]["accuracy"])
    best = result.evaluate(digits.transform_split(digits.test), best=True)
    assert result.best_round is not None
    assert best["accuracy"] == pytest.approx(rows(run_folder)[result.best_round - 1]["accuracy"])


def test_the_terminal_says_what_runs_where_and_how_it_ended(run_folder: Path) -> None:
    printed = (run_folder.parent / "printed").read_text()
    accuracy = rows(run_folder)[-1]["accuracy"]
    for expected in (
        "fedwmsam on digits",
        str(run_folder),
        "round 3/3",
        "Completed after 3 rounds",
        f"{accuracy:.4f}",
    ):
        assert expected in printed
    assert json.loads((run_folder / "data.json").read_text())["partition_hash"] in printed


def test_a_run_without_validation_has_no_best_model(cli: Cli) -> None:
    assert cli("run", *SMALL_RUN, "--name", "x", "-q").code == 0
    assert not Path("runs/x/best.safetensors").exists()
    assert not any(name.startswith("validation") for name in rows(Path("runs/x"))[0])


def test_a_second_run_never_overwrites_the_first(cli: Cli) -> None:
    for seed in ("0", "0", "1", "0"):
        assert cli("run", *SMALL_RUN, "--rounds", "1", "--seed", seed, "-q").code == 0
    folders = sorted(Path("runs").iterdir(), key=lambda path: (len(path.name), path.name))
    first, other, second, third = folders
    assert (second.name, third.name) == (f"{first.name}-2", f"{first.name}-3")
    assert other.name == first.name.replace("seed0", "seed1")
    results = [(path / "metrics.jsonl").read_bytes() for path in (first, second, other)]
    assert results[0] == results[1] != results[2]


def test_a_folders_name_says_which_settings_are_not_at_their_defaults(cli: Cli) -> None:
    arguments = ("--rounds", "1", "--method", "fedsam", "--quiet", "--workers", "1")
    assert cli("run", *arguments).code == 0
    assert cli("run", *arguments, "--lr", "0.2", "--set", "rho=0.05").code == 0
    name = "fedsam-digits-dirichlet0.1-seed0"
    assert {path.name for path in Path("runs").iterdir()} == {name, f"{name}-lr0.2-rho0.05"}


def test_a_folders_name_is_safe_and_has_an_end() -> None:
    plain = make_folder_name(resolve_config({}))
    assert plain == "fedwmsam-digits-dirichlet0.1-seed0"
    stopping = {"rounds": 3, "patience": 2, "target_accuracy": 0.9, "keep_states": 5}
    assert make_folder_name(resolve_config(stopping)) == plain
    preset = resolve_config({"preset": "paper", "lr": 0.5})
    assert make_folder_name(preset) == f"{plain}-paper-lr0.5"
    many = {"corrupt": "sign_flip:0.2", "dataset": "x" * 50, "model": "m" * 80, "lr": 0.5}
    name = make_folder_name(resolve_config(many))
    assert len(name) <= 120 and ":" not in name and name.endswith("-corruptsign_flip-0.2")


def test_methods_without_commas_between_are_understood(cli: Cli, tmp_path: Path) -> None:
    arguments = ("--rounds", "1", "--quiet", "--out", tmp_path / "c")
    outcome = cli("compare", "--methods", "fedavg,", "fedcm", "fedsam,fedprox", *arguments)
    assert outcome.code == 0, outcome.err
    names = {path.parent.name.split("-")[0] for path in (tmp_path / "c").glob("*/config.toml")}
    assert names == {"fedavg", "fedcm", "fedsam", "fedprox"}


@pytest.mark.parametrize("words", [("comapre",), ("analyse", "flatnes"), ("flower", "chek")])
def test_a_command_is_suggested_once(cli: Cli, words: tuple[str, ...]) -> None:
    outcome = cli(*words)
    assert outcome.code == 2 and outcome.err.count("Did you mean") == 1


def test_an_option_is_suggested_by_its_meaning(cli: Cli) -> None:
    outcome = cli("run", "--learning-rate", "0.1")
    assert outcome.code == 2 and "Did you mean '--lr'" in outcome.err
    option = cli("run", "--adapt-rate", "0.1")
    assert option.code == 2 and "Did you mean '--set adapt_rate=…'" in option.err
    assert "Did you mean" not in cli("evaluate", "run", "--adapt-rate", "0.1").err


def test_a_named_run_is_not_overwritten_either(cli: Cli) -> None:
    assert cli("run", *SMALL_RUN, "--name", "mine", "--out", "deep/er", "-q").code == 0
    before = Path("deep/er/mine/metrics.jsonl").read_bytes()
    again = cli("run", *SMALL_RUN, "--name", "mine", "--out", "deep/er", "--seed", "1", "-q")
    assert again.code == 2 and "already holds a run" in again.err
    assert Path("deep/er/mine/metrics.jsonl").read_bytes() == before


def test_quiet_prints_nothing(cli: Cli) -> None:
    outcome = cli("run", *SMALL_RUN, "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    outcome = cli("resume", *Path("runs").iterdir(), "--rounds", "4", "-q")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def test_a_run_that_diverges_says_so_and_exits_with_1(
    cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    wild = ["--weight-decay-mode", "sgd", "--set", "weight_decay=1e30"]
    outcome = cli("run", *SMALL_RUN, *wild, "--name", "wild")
    assert outcome.code == 1
    assert "iverged at round" in outcome.out and "Traceback" not in outcome.err
    assert json.loads(Path("runs/wild/summary.json").read_text())["status"].startswith("diverged")


@pytest.mark.parametrize(
    "setting", ["lr=1e39", "weight_decay=1e39", "rho=1e39", "global_lr=1e39", "clip_norm=1e39"]
)
def test_a_number_beyond_the_models_precision_is_no_crash(cli: Cli, setting: str) -> None:
    """A float32 ends at 3.4e38."""
    outcome = cli("run", *SMALL_RUN, "--set", setting, "-q")
    assert outcome.code in (0, 1, 2) and "Traceback" not in outcome.err


# Settings


def test_the_command_line_goes_over_the_file_and_the_file_over_the_preset(cli: Cli) -> None:
    Path("my.toml").write_text(
        'preset = "paper"\nclients = 7\nrounds = 2\nmodel = "linear"\nrho = 0.2\nlr = 0.5\n'
    )
    outcome = cli(
        "run",
        "my.toml",
        "--rounds",
        "1",
        "--local-epochs",
        "1",
        "--set",
        "rho=0.05",
        "--set",
        "batch-size=40",
        "--name",
        "x",
        "-q",
    )
    assert outcome.code == 0, outcome.err
    config = toml.load(Path("runs/x/config.toml"))
    assert (config["rounds"], config["local_epochs"], config["rho"], config["batch_size"]) == (
        1,
        1,
        0.05,
        40,
    )
    assert (config["clients"], config["lr"], config["model"]) == (7, 0.5, "linear")
    assert (config["participation"], config["weight_decay_mode"]) == (0.1, "sgd")


def test_a_methods_options_are_set_and_recorded(cli: Cli) -> None:
    assert (
        cli("run", *SMALL_RUN, "--method", "fedcm", "--set", "alpha=0.3", "--name", "a", "-q").code
        == 0
    )
    assert cli("run", *SMALL_RUN, "--method", "fedcm", "--name", "b", "-q").code == 0
    assert toml.load(Path("runs/a/config.toml"))["alpha"] == 0.3
    assert Path("runs/a/metrics.jsonl").read_bytes() != Path("runs/b/metrics.jsonl").read_bytes()


def test_none_is_a_value(cli: Cli) -> None:
    """`clip_norm` may be none; the folder must say so and a run from it must repeat it."""
    wild: Arguments = [*SMALL_RUN, "--method", "fedavg", "--lr", "0.1", "--set", "rounds=2"]
    for name, limit in (("none", "none"), ("huge", "1e9"), ("tight", "0.01")):
        assert cli("run", *wild, "--set", f"clip_norm={limit}", "--name", name, "-q").code == 0
    assert cli("run", "runs/none/config.toml", "--name", "again", "-q").code == 0
    numbers = {
        name: Path(f"runs/{name}/metrics.jsonl").read_bytes()
        for name in ("none", "huge", "tight", "again")
    }
    assert numbers["none"] == numbers["huge"] == numbers["again"] != numbers["tight"]
    assert toml.load(Path("runs/none/config.toml")).get("clip_norm") != 10.0


def test_the_saved_configuration_repeats_the_run(cli: Cli, run_folder: Path) -> None:
    assert cli("run", run_folder / "config.toml", "--name", "again", "-q").code == 0
    again = Path("runs/again")
    for name in (
        "metrics.jsonl",
        "model.safetensors",
        "best.safetensors",
        "config.toml",
        "data.json",
    ):
        assert (again / name).read_bytes() == (run_folder / name).read_bytes(), name


def test_an_unknown_key_names_the_nearest(cli: Cli) -> None:
    for arguments in (
        ["--set", "lrr=1"],
        ["--set", "local_epoch=1"],
        ["--method", "fedwmsan"],
        ["--dataset", "digit"],
    ):
        outcome = cli("run", *arguments)
        nearest = {
            "lrr=1": "lr",
            "local_epoch=1": "local_epochs",
            "fedwmsan": "fedwmsam",
            "digit": "digits",
        }
        assert outcome.code == 2 and f"id you mean '{nearest[arguments[1]]}'?" in outcome.err, (
            outcome.err
        )


def test_brackets_are_printed_as_they_are(cli: Cli) -> None:
    outcome = cli("run", *SMALL_RUN, "--out", "a[b]c", "--name", "[red]x")
    assert outcome.code == 0, outcome.err
    assert "a[b]c/[red]x" in outcome.out
    assert "Written: a[b]c/[red]x.csv" in cli("report", "a[b]c", "--csv", "a[b]c/[red]x.csv").out
    assert "[b]" in cli("report", "no[b]thing").err


# Going on


def test_going_on_gives_what_one_run_would_have(cli: Cli, copy: Path) -> None:
    assert cli("resume", copy, "--rounds", "5", "-q").code == 0
    settings: Arguments = [
        *SMALL_RUN,
        "--rounds",
        "5",
        "--validation",
        "0.1",
        "--name",
        "whole",
        "-q",
    ]
    assert cli("run", *settings).code == 0
    for name in ("metrics.jsonl", "model.safetensors", "best.safetensors"):
        assert (copy / name).read_bytes() == (Path("runs/whole") / name).read_bytes(), name


def test_the_folder_says_how_far_it_went_on(cli: Cli, copy: Path) -> None:
    """config.toml must describe the extended run: run or resumed again, it has five rounds."""
    assert cli("resume", copy, "--rounds", "5", "-q").code == 0
    assert toml.load(copy / "config.toml")["rounds"] == 5
    assert "5 rounds" in cli("report", copy).out


def test_going_on_with_a_finished_run_changes_nothing(
    cli: Cli, copy: Path, run_folder: Path
) -> None:
    outcome = cli("resume", copy)
    assert outcome.code == 0 and "Completed after 3 rounds" in outcome.out
    assert (copy / "metrics.jsonl").read_bytes() == (run_folder / "metrics.jsonl").read_bytes()
    assert (copy / "model.safetensors").read_bytes() == (
        run_folder / "model.safetensors"
    ).read_bytes()


def test_going_on_is_refused_where_the_data_changed(cli: Cli, copy: Path) -> None:
    data = json.loads((copy / "data.json").read_text()) | {"partition_hash": "0" * 12}
    (copy / "data.json").write_text(json.dumps(data))
    outcome = cli("resume", copy, "--rounds", "5")
    assert outcome.code == 2 and "data have changed" in outcome.err
    assert len(rows(copy)) == 3


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGHUP"])
def test_a_stopped_run_is_saved_and_goes_on_exactly(cli: Cli, signal_name: str) -> None:
    """SIGTERM, as a cluster sends it, or SIGHUP, as a closed terminal, to a real process."""
    settings: Arguments = [
        "--model",
        "linear",
        "--clients",
        "5",
        "--local-epochs",
        "1",
        "--checkpoint-every",
        "1000",
    ]
    arguments = ["run", *settings, "--rounds", "100000", "--name", "stopped"]
    number = getattr(signal, signal_name)
    handler = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    process = subprocess.Popen(
        [*command(), *map(str, arguments)], stderr=subprocess.PIPE, text=True
    )
    signal.signal(number, handler)
    metrics = Path("runs/stopped/metrics.jsonl")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        metrics.exists() and metrics.read_bytes().count(b"\n") > 3
    ):
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, 143)
    assert "fedwmsam resume runs/stopped" in err and "Traceback" not in err
    rounds = metrics.read_bytes().count(b"\n")
    checkpoints = {p.name for p in Path("runs/stopped/checkpoints").iterdir()}
    assert checkpoints == {f"round-{rounds:07d}.checkpoint", "memory.rows"}
    assert "not finished" in cli("report", "runs/stopped").out
    assert cli("resume", "runs/stopped", "--rounds", str(rounds + 2), "-q").code == 0
    assert cli("run", *settings, "--rounds", str(rounds + 2), "--name", "whole", "-q").code == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (Path("runs/stopped") / name).read_bytes() == (
            Path("runs/whole") / name
        ).read_bytes(), name


# Reports and lists


def test_report_shows_what_was_reached(cli: Cli, run_folder: Path, copy: Path) -> None:
    outcome = cli("report", run_folder, copy)
    assert outcome.code == 0
    lines = rows(run_folder)
    mean = sum(row["accuracy"] for row in lines) / 3
    best = lines[json.loads((run_folder / "summary.json").read_text())["best_round"] - 1][
        "accuracy"
    ]
    cells = (
        next(line for line in outcome.out.splitlines() if line.startswith("│ fedwmsam "))
        .replace("│", " ")
        .split()
    )
    assert cells[1:5] == ["1", f"{lines[-1]['accuracy']:.4f}", f"{mean:.4f}", f"{best:.4f}"]
    assert (
        f"({copy}): has the seed of {run_folder} and the same numbers; not counted" in outcome.out
    )


def test_report_copes_with_a_run_that_has_only_begun(cli: Cli, copy: Path) -> None:
    for name in ("summary.json", "metrics.jsonl", "timings.jsonl", "model.safetensors"):
        (copy / name).unlink()
    outcome = cli("report", copy)
    assert outcome.code == 0 and "0 of 1 (1 no round done)" in outcome.out


def test_methods_lists_every_method_by_idea(cli: Cli) -> None:
    outcome = cli("methods")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    for name, method in METHODS.items():
        entry = METHOD_TABLE[name]
        number = next(n for n, line in enumerate(lines) if line.startswith(f"  {name} "))
        assert re.search(rf" {method.cost.backprops} .* {method.paper}$", lines[number])
        assert lines[number + 1].strip() == entry.use
        headings = [line for line in lines[:number] if line and not line.startswith(" ")]
        assert headings[-1] == entry.idea
    ideas = [entry.idea for entry in METHOD_TABLE.values()]
    assert [lines.count(idea) for idea in set(ideas)] == [1] * len(set(ideas))


@pytest.mark.parametrize("name", METHODS)
def test_methods_name_shows_defaults_and_ranges(cli: Cli, name: str) -> None:
    outcome = cli("methods", name)
    assert outcome.code == 0 and name in outcome.out
    entry = METHOD_TABLE[name]
    assert f"Idea: {entry.idea}. Use it {entry.use}." in outcome.out
    for field in fields(METHODS[name]):
        line = next(
            line for line in outcome.out.splitlines() if line.startswith(f"│ {field.name} ")
        )
        assert str(field.default) in line


def test_narrow_pages_lose_no_names(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, run_folder: Path
) -> None:
    """Written to a file or a pipe a table is 80 columns wide; names people copy must stay whole."""
    monkeypatch.setattr(
        "fedwmsam.commands.output.console", Console(width=80, markup=False, highlight=False)
    )
    listed = cli("methods").out
    assert [name for name in METHODS if f"\n  {name} " not in listed] == []
    assert "…" not in listed and max(map(len, listed.splitlines())) <= 80
    long = shutil.copytree(run_folder, Path("fedwmsam-digits-dirichlet0.1-seed0-2"))
    report = cli("report", run_folder, long).out
    assert re.search(r"│ fedwmsam *│", report) and long.name in report and "…" not in report


# verify


def write_changed_vectors(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], None]
) -> Path:
    file = json.loads((VECTORS / name).read_text())
    change(file)
    path = tmp_path / name
    path.write_text(json.dumps(file))
    return path


def test_verify_accepts_good_files(cli: Cli) -> None:
    outcome = cli(
        "verify", VECTORS / "fedavg-1.json", VECTORS / "fedwmsam-trajectory-personalized-1.json"
    )
    assert outcome.code == 0 and "FAIL" not in outcome.out
    assert outcome.out.count("ok ") == 2 and "2 of 2 files" in outcome.out
    assert "model" in outcome.out and "similarity" in outcome.out


def shift(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(file: dict[str, Any]) -> None:
        parent: Any = file
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] += 1e-6

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fedavg-1.json", shift("global", 3, 7)),
        ("fedavg-1.json", shift("global", -1, -1)),
        ("fedavg-1.json", shift("x", 1, 2, 3)),
        ("fedavg-1.json", shift("config", "local_lr")),
        ("fedwmsam-trajectory-personalized-1.json", shift("alpha", 0)),
        ("fedwmsam-trajectory-personalized-1.json", shift("alpha", 4)),
        ("fedwmsam-trajectory-personalized-1.json", shift("similarity", 2)),
        (
            "fedwmsam-trajectory-personalized-1.json",
            lambda file: file["similarity"].__setitem__(2, float("nan")),
        ),
        (
            "fedavg-1.json",
            lambda file: file["local_update"][2][min(file["local_update"][2])].__setitem__(0, 9.0),
        ),
    ],
    ids=[
        "model",
        "last number",
        "data",
        "lr",
        "first alpha",
        "alpha",
        "similarity",
        "similarity NaN",
        "local update",
    ],
)
def test_verify_sees_any_number_that_is_off(
    cli: Cli, tmp_path: Path, name: str, change: Callable[[dict[str, Any]], None]
) -> None:
    outcome = cli("verify", write_changed_vectors(tmp_path, name, change))
    assert outcome.code == 1 and outcome.err == ""
    assert outcome.out.count("FAIL") == 1 and "0 of 1 files" in outcome.out


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("local_epochs", 10**400),
        ("hidden", 10**9),
        ("dim", -1),
        ("classes", None),
        ("local_lr", 10**400),
        ("lr_decay", "\x1b[31m"),
        ("activation", []),
        ("method", {}),
        ("clip_norm", "x"),
    ],
)
def test_verify_refuses_forged_values_in_one_sentence(
    cli: Cli, tmp_path: Path, key: str, value: object
) -> None:
    file = json.loads((VECTORS / "fedavg-1.json").read_text())
    file["config"][key] = value
    (tmp_path / "v.json").write_text(json.dumps(file))
    outcome = cli("verify", tmp_path / "v.json")
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and "\x1b" not in outcome.err


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '["config", "x"]', '"config x y selected global"', '{"config": 3}']
)
def test_verify_refuses_what_is_no_object(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "v.json").write_text(text)
    outcome = cli("verify", tmp_path / "v.json")
    assert outcome.code == 2 and "is not a reference-vector file" in outcome.err


@pytest.mark.parametrize(
    "name", ["../../x", "..", ".", "", "/tmp/x", "a/b", "a\0b", "a\nb", "a\\b"]
)
def test_a_run_cannot_be_named_out_of_its_folder(cli: Cli, tmp_path: Path, name: str) -> None:
    outcome = cli("run", *SMALL_RUN, "--out", tmp_path / "deep" / "out", f"--name={name}")
    assert outcome.code == 2 and "--name must" in outcome.err and outcome.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_verify_goes_on_after_a_file_that_fails(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(
        "verify",
        write_changed_vectors(tmp_path, "fedavg-1.json", shift("global", 3, 7)),
        VECTORS / "fedavg-2.json",
    )
    assert outcome.code == 1 and "1 of 2 files" in outcome.out
    assert outcome.out.index("FAIL") < outcome.out.index("ok ")


def test_verify_takes_a_tolerance(cli: Cli, tmp_path: Path) -> None:
    path = write_changed_vectors(tmp_path, "fedavg-1.json", shift("global", 3, 7))
    assert cli("verify", path, "--tolerance", "1e-3").code == 0
    assert cli("verify", path, "--tolerance", "1e-7").code == 1


# Help


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in GROUPS])
def test_every_commands_help_shows_an_example(cli: Cli, name: str) -> None:
    outcome = cli(*name.split(), "--help")
    assert outcome.code == 0
    _, usage, below_usage = words_of(outcome.out).partition("[OPTIONS]")
    assert usage and re.search(rf"Examples?: .*fedwmsam {name}\b", below_usage), outcome.out


@pytest.mark.parametrize("name", GROUPS)
def test_every_groups_help_names_its_commands(cli: Cli, name: str) -> None:
    outcome = cli(*name.split(), "--help")
    assert outcome.code == 0
    for word in COMMANDS[name].commands:
        assert re.search(rf"│ {word} ", outcome.out), outcome.out


def test_commands_in_groups_are_found() -> None:
    """The two tests above take their commands from the program itself."""
    assert {"run", "verify", "analyse", "analyse flatness", "flower check"} <= set(COMMANDS)
    assert set(GROUPS) == {"analyse", "flower"}


@pytest.mark.parametrize(
    ("words", "position", "completions"),
    [("re", 1, {"resume", "report"}), ("run --dro", 2, {"--dropout"})],
)
def test_the_shell_can_complete_what_is_typed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: str, position: int, completions: set[str]
) -> None:
    # Under `python -m pytest` click would take pytest's name for the program's.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")
    monkeypatch.setenv("_FEDWMSAM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fedwmsam {words}")
    monkeypatch.setenv("COMP_CWORD", str(position))
    assert completions <= set(cli().out.split())


def test_help_and_version(cli: Cli) -> None:
    listed = cli("--help").out
    assert [name for name in COMMANDS if " " not in name and name not in listed] == []
    outcome = cli("--version")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        f"fedwmsam {fedwmsam.__version__}",
        f"Python {platform.python_version()}, {platform.system()}",
        f"PyTorch {version('torch')}",
        f"Flower {version('flwr')}",
    ]
    assert "fedwmsam run" in words_of(cli().out)


def test_help_says_what_an_argument_is(cli: Cli) -> None:
    assert "The run's folder." in words_of(cli("resume", "--help").out)


def test_help_does_not_wait_for_pytorch() -> None:
    code = (
        "import sys; sys.argv = ['fedwmsam', '--help']\n"
        "from fedwmsam.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert process.returncode == 0, process.stderr


# Refusals


def write_truncated_fashion(folder: Path) -> Path:
    folder.mkdir()
    for part, images in (("train", 60000), ("t10k", 10000)):
        header = b"\0\0\x08\x03" + images.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + b"\0" * 1000)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            b"\0\0\x08\x01" + images.to_bytes(4, "big") + b"\0" * 5
        )
    return folder


def write_file(path: str, text: str | bytes) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return Path(path)


def settings_file(text: str | bytes) -> Callable[[], Arguments]:
    return lambda: ["run", write_file("my.toml", text)]


def report_of_a_run(*arguments: str) -> Callable[[], Arguments]:
    return lambda: ["report", write_run(Path("reported"), [0.5]), *arguments]


def vectors_without(*path: str) -> Callable[[], Arguments]:
    def arguments() -> Arguments:
        file = json.loads((VECTORS / "fedavg-1.json").read_text())
        parent = file
        for key in path[:-1]:
            parent = parent[key]
        del parent[path[-1]]
        return ["verify", write_file("part.json", json.dumps(file))]

    return arguments


REFUSED: dict[str, tuple[Arguments | Callable[[], Arguments], list[str]]] = {
    "method": (["run", "--method", "fedsgdx"], ["fedsgdx", "fedavg"]),
    "dataset": (["run", "--dataset", "mnistt"], ["mnistt", "digits"]),
    "model": (["run", "--model", "resnet1000"], ["resnet1000", "mlp"]),
    "partition": (["run", "--partition", "skewed"], ["skewed", "dirichlet"]),
    "preset": (["run", "--preset", "papers"], ["papers", "paper"]),
    "unknown --set key": (["run", "--set", "rhoo=1"], ["rhoo", "rho"]),
    "--set of other methods": (
        ["run", "--method", "fedavg", "--set", "rho=1"],
        ["fedavg has no option 'rho'", "fedsam", "have it"],
    ),
    "--set by another name": (["run", "--set", "learning-rate=1"], ["Did you mean 'lr'"]),
    "--set of other methods by another name": (
        ["run", "--method", "fedprox", "--set", "mu=1"],
        ["Did you mean 'lam'"],
    ),
    "words without commas": (
        ["compare", "--methods", "fedavg", "--seeds", "0", "1"],
        ["'1'", "commas"],
    ),
    "a file that does not exist": (["compare", "no.toml"], ["There is no file no.toml"]),
    "malformed --set": (["run", "--set", "rho"], ["key=value", "rho"]),
    "--set of a wrong type": (["run", "--set", "rounds=many"], ["rounds", "many"]),
    "--set out of range": (["run", "--set", "rho=-1"], ["rho", "-1"]),
    "--set without a value": (["run", "--set", "rho="], ["rho"]),
    "enormous --set": (["run", "--set", "rounds=1" + "0" * 400], ["rounds"]),
    "negative lr": (["run", "--lr", "-0.1"], ["lr", "-0.1"]),
    "lr nan": (["run", "--lr", "nan"], ["lr", "nan"]),
    "zero rounds": (["run", "--rounds", "0"], ["rounds", "0"]),
    "zero clients": (["run", "--clients", "0"], ["clients", "0"]),
    "too many per round": (
        ["run", "--clients", "5", "--clients-per-round", "6"],
        ["clients_per_round", "6", "5"],
    ),
    "participation above 1": (["run", "--participation", "1.5"], ["participation", "1.5"]),
    "participation 0": (["run", "--participation", "0"], ["participation", "0"]),
    "validation 1": (["run", "--validation", "1"], ["validation", "1"]),
    "dirichlet:-1": (["run", "--partition", "dirichlet:-1"], ["dirichlet:-1"]),
    "dirichlet:x": (["run", "--partition", "dirichlet:x"], ["dirichlet:x"]),
    "dirichlet": (["run", "--partition", "dirichlet"], ["dirichlet:0.1"]),
    "pathological:11": (["run", "--partition", "pathological:11"], ["pathological:11", "10"]),
    "pathological:0": (["run", "--partition", "pathological:0"], ["pathological:0"]),
    "more clients than samples": (["run", "--clients", "5000"], ["5000", "samples"]),
    "patience without validation": (["run", "--set", "patience=3"], ["patience", "validation"]),
    "device": (["run", "--set", "device=tpuu"], ["device", "tpuu"]),
    "brackets": (["run", "--dataset", "[/x]"], ["[/x]"]),
    "more brackets": (["run", "--dataset", "[bold]"], ["[bold]"]),
    "bad TOML": (settings_file("rounds = = 3"), ["my.toml", "TOML", "line 1"]),
    "TOML that is not text": (settings_file(b"\xff\xfe\x00"), ["my.toml"]),
    "missing TOML": (["run", "absent.toml"], ["absent.toml"]),
    "a folder for TOML": (["run", "."], ["."]),
    "unknown TOML key": (settings_file("roundz = 3"), ["roundz", "rounds"]),
    "TOML section": (settings_file("[training]\nrounds = 3"), ["training"]),
    "TOML word for a number": (settings_file('rounds = "many"'), ["rounds", "many"]),
    "TOML number for a word": (settings_file("dataset = 3"), ["dataset", "3"]),
    "TOML list": (settings_file("lr = [0.1, 0.2]"), ["lr", "[0.1, 0.2]"]),
    "TOML date": (settings_file("lr = 2020-01-01"), ["lr"]),
    "TOML number for the method": (settings_file("method = 3"), ["method", "3"]),
    "TOML list for the method": (settings_file('method = ["fedavg"]'), ["method", "fedavg"]),
    "TOML number for the preset": (settings_file("preset = 3"), ["preset", "3"]),
    "TOML number without end": (settings_file("rounds = 1" + "0" * 5000), ["my.toml"]),
    "a negative number of jobs": (
        ["compare", "--methods", "fedavg", "--jobs", "-1"],
        ["--jobs", "-1"],
    ),
    "a place that does not exist": (
        ["compare", "--on", "slrum"],
        ["'slrum'", "Did you mean 'slurm'?"],
    ),
    "options of Slurm for this machine": (
        ["compare", "--slurm", "partition=gpu"],
        ["--slurm partition=gpu", "--on slurm"],
    ),
    "what is no option of sbatch": (
        ["compare", "--on", "slurm", "--slurm", "partition="],
        ["--slurm", "sbatch", "'partition='"],
    ),
    "work on what is no comparison": (["work", "."], [". is no comparison", "queue/plan.json"]),
    "work in a folder that is not there": (["work", "absent"], ["absent"]),
    "the status of no comparison": (
        ["compare", "--out", ".", "--status"],
        ["no comparison", "queue/plan.json"],
    ),
    "calling no comparison off": (["compare", "--out", "absent", "--cancel"], ["absent"]),
    "a word for a number of jobs": (
        ["reproduce", "table-5", "--data-dir", ".", "--jobs", "many"],
        ["--jobs", "many"],
    ),
    "no run to resume": (["resume", "runs/absent"], ["runs/absent"]),
    "no run to report": (["report", "runs/absent"], ["runs/absent"]),
    "resume what is no run": (["resume", "."], ["config.toml"]),
    "report what is no run": (["report", "."], ["config.toml"]),
    "report an unknown metric": (report_of_a_run("--metric", "acc"), ["acc", "accuracy", "loss"]),
    "report an unknown baseline": (report_of_a_run("--baseline", "fedsgd"), ["fedsgd", "fedavg"]),
    "report a target that is none": (report_of_a_run("--targets", "0.7,high"), ["high"]),
    "report a target of an unclear metric": (
        report_of_a_run("--metric", "backprops", "--targets", "3"),
        ["--better"],
    ),
    "report into a place that cannot be": (
        lambda: [write_file("file", "")] and [*report_of_a_run("--csv", "file/x.csv")()],
        ["file/x.csv"],
    ),
    "report pictures into a place that cannot be": (
        lambda: [write_file("file", "")] and [*report_of_a_run("--plots", "file")()],
        ["file"],
    ),
    "resume a run of fit()": (
        lambda: [write_file("r/config.toml", 'rounds = 3\nmethod = "fedavg"')] and ["resume", "r"],
        ["fit"],
    ),
    "--out below a file": (
        lambda: [write_file("file", "")] and ["run", "--out", "file/below"],
        ["file/below"],
    ),
    "--name of a file": (
        lambda: [write_file("runs/file", "")] and ["run", "--name", "file"],
        ["runs/file"],
    ),
    "missing --data-dir": (["run", "--data-dir", "absent"], ["absent"]),
    "missing --data-dir for files": (
        ["run", "--dataset", "fashion-mnist", "--data-dir", "absent"],
        ["absent"],
    ),
    "truncated files": (
        lambda: [
            "run",
            "--dataset",
            "fashion-mnist",
            "--data-dir",
            write_truncated_fashion(Path("files")),
        ],
        ["files/t", "ubyte"],
    ),
    "method to list": (["methods", "fedsgdx"], ["fedsgdx", "fedavg"]),
    "verify what is no JSON": (
        lambda: ["verify", write_file("bad.json", "{not json")],
        ["bad.json"],
    ),
    "verify other JSON": (lambda: ["verify", write_file("bad.json", '{"a": 1}')], ["bad.json"]),
    "verify a list": (lambda: ["verify", write_file("bad.json", "[1, 2]")], ["bad.json"]),
    "verify no file": (["verify", "absent.json"], ["absent.json"]),
    "verify a folder": (["verify", "."], ["."]),
    "verify without a size": (vectors_without("config", "dim"), ["part.json", "dim"]),
    "verify without a model": (vectors_without("global"), ["part.json", "global"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence_and_exit_code_2(cli: Cli, name: str) -> None:
    arguments, expected = REFUSED[name]
    if callable(arguments):
        arguments = arguments()
    rounds: Arguments = (
        ["--rounds", "1"] if arguments[0] == "run" and "--rounds" not in arguments else []
    )
    if arguments[0] == "run" and str(arguments[-1]).endswith(".toml"):
        rounds = []
    outcome = cli(*arguments, *rounds)
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert re.fullmatch(r"Error: \S+( \S+){3,}", lines[0]), lines[0]
    for word in expected:
        assert word in lines[0], lines[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--rounds", "many"],
        ["run", "--nonsense"],
        ["nonsense"],
        ["resume"],
        ["verify"],
        ["report"],
    ],
)
def test_bad_usage_is_exit_code_2(cli: Cli, arguments: Arguments) -> None:
    outcome = cli(*arguments)
    assert outcome.code == 2 and outcome.err and "Traceback" not in outcome.err
    assert not Path("runs").exists()


def test_a_mistake_leaves_no_folder_behind(cli: Cli) -> None:
    for arguments in (
        ["--lr", "-1"],
        ["--model", "x"],
        ["--set", "patience=3"],
        ["--partition", "pathological:11"],
    ):
        assert cli("run", "--name", "mine", *arguments, "-q").code == 2
    assert not Path("runs/mine").exists()
    assert cli("run", *SMALL_RUN, "--name", "mine", "-q").code == 0


def test_the_installed_command_refuses_like_this_too() -> None:
    process = subprocess.run(
        [*command(), "run", "--method", "fedwmsan"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert process.returncode == 2 and process.stdout == ""
    assert (
        process.stderr.startswith("Error: ")
        and "'fedwmsam'" in process.stderr
        and process.stderr.count("\n") == 1
    )


def test_commands_leave_no_trace_in_this_process(cli: Cli) -> None:
    """The fixture `cli` runs commands in this process; other tests rely on this."""
    handler = signal.getsignal(signal.SIGTERM)
    threads = torch.get_num_threads()
    assert cli("run", *SMALL_RUN, "-q").code == 0
    assert signal.getsignal(signal.SIGTERM) == handler and torch.get_num_threads() == threads


def test_help_leaves_greek_symbols_in_lower_case(cli: Cli) -> None:
    shown = words_of(cli("run", "--help").out)
    for phrase in ("γ of an averaged twin", "σ of differential privacy", "ε that all", "δ of"):
        assert phrase in shown
    assert not set("ΓΣΕΔ") & set(shown)
