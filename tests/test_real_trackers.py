"""TensorBoard and Weights & Biases themselves, in an environment of their own: what they logged, read back by them."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedwmsam.engine.records import read_lines
from fedwmsam.trackers import numeric_columns

Cli = Callable[..., Any]
pytestmark = pytest.mark.slow
ENVIRONMENT = Path(__file__).parents[1] / ".venv-trackers"
SMALL = ["--model", "linear", "--clients", "5", "--participation", "0.4", "--local-epochs", "1"]
LONG = 600
"""Seconds after which something hangs, also on a machine that is busy with other things."""
BOTH = ["--track", "tensorboard", "--track", "wandb:mine"]


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter that has the packages."""
    if not (ENVIRONMENT / "installed").exists():
        pytest.skip(
            "there is no .venv-trackers with tensorboard and wandb; `make test-slow` installs it if it can reach a "
            "package index"
        )
    return ENVIRONMENT / "bin" / "python"


@pytest.fixture(autouse=True)
def nobody_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever wants to call home, directly or through a proxy, calls here; nobody does."""
    with socket.create_server(("127.0.0.1", 0)) as home:
        address = f"http://127.0.0.1:{home.getsockname()[1]}"
        for name in ("WANDB_BASE_URL", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, address)
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
        monkeypatch.setenv(
            "WANDB_API_KEY", "0" * 40
        )  # so that the lack of one is not what keeps it from calling
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
        yield
        home.setblocking(False)
        with pytest.raises(BlockingIOError):
            home.accept()


def fedwmsam(python: Path, *arguments: Any) -> str:
    done = subprocess.run(
        [python, "-m", "fedwmsam", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def started(python: Path, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """A command at work; killed if it is still there at the end."""
    line = [python, "-m", "fedwmsam", *map(str, arguments)]
    with subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def logs(python: Path, folder: Path) -> Any:
    script = [python, Path(__file__).parent / "helpers" / "tracker_logs.py", folder]
    return json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)


def check_logs(python: Path, folder: Path) -> Any:
    """Both logs hold what metrics.jsonl holds: each number of each round, once."""
    found, rows = logs(python, folder), read_lines(folder / "metrics.jsonl")
    columns = {name for row in rows for name in numeric_columns(row)}
    assert {"accuracy", "loss", "alpha", "bytes_down"} <= columns
    assert found["tensorboard"]["scalars"] == {
        name: [[row["round"], single(row[name])] for row in rows if name in numeric_columns(row)]
        for name in columns
    }
    newest = found["wandb"][-1]
    own = ("_step", "_runtime", "_timestamp")
    assert [row["_step"] for row in newest["rows"]] == [row["round"] for row in rows]
    assert [{k: v for k, v in row.items() if k not in own} for row in newest["rows"]] == [
        numeric_columns(row) for row in rows
    ]
    return found


def single(value: float) -> float:
    """What a 32-bit float makes of a number, which is what TensorBoard keeps."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def wait_for(rounds: int, folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONG
    while len(read_lines(folder / "metrics.jsonl")) < rounds and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def test_the_logs_hold_the_metrics_and_the_numbers_stay_the_same(
    python: Path, cli: Cli, tmp_path: Path
) -> None:
    command, place = (
        ["run", *SMALL, "--rounds", "8", "--set", "evaluate_every=3", "--out", tmp_path],
        tmp_path / "a",
    )
    said = fedwmsam(python, *command, *BOTH, "--name", "a")
    assert (
        f"tensorboard --logdir {tmp_path}" in said
        and f"wandb sync {place}/wandb/offline-run-" in said
    )
    assert cli(*command, "--name", "plain").code == 0
    for name in ("metrics.jsonl", "model.safetensors", "summary.json"):
        assert (place / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    found = check_logs(python, place)
    assert [step for step, _ in found["tensorboard"]["scalars"]["accuracy"]] == [3, 6, 8]
    assert "| rho | 0.01 |" in found["tensorboard"]["texts"]["configuration"]
    assert found["tensorboard"]["texts"]["status"] == "completed"
    (run,) = found["wandb"]
    assert (run["name"], run["project"], run["exit_code"]) == ("a", "mine", 0)
    assert run["config"]["rho"] == 0.01 and run["config"]["partition"] == "dirichlet:0.1"
    assert (
        run["summary"] | {"status": "completed", "rounds": 8, "best_round": None} == run["summary"]
    )


def test_killed_and_stopped_and_resumed_a_run_has_each_round_once(
    python: Path, tmp_path: Path
) -> None:
    place, endless = tmp_path / "a", ["--rounds", "100000"]
    with started(
        python,
        "run",
        *SMALL,
        *BOTH,
        *endless,
        "--checkpoint-every",
        "7",
        "--out",
        tmp_path,
        "--name",
        "a",
    ) as it:
        wait_for(10, place, it)  # and then it is killed
    before = logs(python, place)["tensorboard"]["scalars"]["accuracy"]
    assert len(before) >= 9, "each round is on disk as soon as it is done"
    with started(python, "resume", place, *endless) as process:
        wait_for(len(before) + 5, place, process)
        process.terminate()
        assert process.wait(timeout=LONG) == 130
    stopped = check_logs(python, place)
    assert (
        stopped["tensorboard"]["texts"]["status"]
        == stopped["wandb"][1]["summary"]["status"]
        == "interrupted"
    )
    assert stopped["wandb"][1]["exit_code"] == 1
    fedwmsam(python, "resume", place, "--rounds", len(read_lines(place / "metrics.jsonl")) + 2)
    found = check_logs(python, place)
    assert (
        found["tensorboard"]["texts"]["status"]
        == found["wandb"][2]["summary"]["status"]
        == "completed"
    )
    assert len({run["id"] for run in found["wandb"]}) == 1 and found["wandb"][2]["exit_code"] == 0


INTERRUPTED = """
import sys, torch, fedwmsam
from fedwmsam.trackers import TensorBoard, WeightsAndBiases

def interrupt(progress):
    if progress.record["round"] == 3:  # the trackers come next
        write = board.writer.add_scalar
        def once(*arguments):
            board.writer.add_scalar = write
            write(*arguments)
            raise KeyboardInterrupt
        board.writer.add_scalar = once

board, clients = TensorBoard(), [(torch.eye(4), torch.arange(4) % 2)] * 4
fedwmsam.fit(torch.nn.Linear(4, 2), clients, test=clients[0], rounds=9, run_folder=sys.argv[1],
             callbacks=[interrupt, WeightsAndBiases(), board])
"""


def test_an_interrupt_in_the_middle_of_a_write_leaves_each_round_once(
    python: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [python, "-c", INTERRUPTED, tmp_path / "a"], capture_output=True, text=True
    )
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert len(read_lines(tmp_path / "a" / "metrics.jsonl")) == 3
    check_logs(python, tmp_path / "a")


def test_a_run_outlives_its_logs_and_can_be_logged_again(python: Path, tmp_path: Path) -> None:
    """The process that writes for Weights & Biases is killed, and TensorBoard's file is taken away."""
    place = tmp_path / "a"
    with started(
        python, "run", *SMALL, *BOTH, "--rounds", "400", "--out", tmp_path, "--name", "a"
    ) as process:
        wait_for(5, place, process)
        for helper in children(process.pid):
            os.kill(helper, signal.SIGKILL)
        (log,) = place.glob("events.*")
        log.unlink()
        log.mkdir()
        errors = process.communicate(timeout=LONG)[1]
        assert process.returncode == 0, errors
    assert (
        "TensorBoard: the log ends after round" in errors
        and "Weights & Biases: the log ends after" in errors
    )
    assert len(read_lines(place / "metrics.jsonl")) == 400
    log.rmdir()
    fedwmsam(python, "resume", place)
    check_logs(python, place)


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def test_every_run_of_a_comparison_has_its_logs(python: Path, tmp_path: Path) -> None:
    shared = [
        "--clients",
        "5",
        "--set",
        "local_epochs=1",
        "--model",
        "linear",
        "--rounds",
        "3",
        "--jobs",
        "1",
    ]
    fedwmsam(
        python, "compare", "--methods", "fedwmsam,fedavg", *shared, *BOTH, "--out", tmp_path / "c"
    )
    folders = sorted(path.parent for path in tmp_path.glob("c/*/config.toml"))
    assert len(folders) == 2
    for folder in folders:
        found = logs(python, folder)
        accuracy = [row["accuracy"] for row in read_lines(folder / "metrics.jsonl")]
        assert [value for _, value in found["tensorboard"]["scalars"]["accuracy"]] == [
            *map(single, accuracy)
        ]
        assert [row["accuracy"] for row in found["wandb"][0]["rows"]] == accuracy
        assert found["wandb"][0]["name"] == folder.name
