"""TensorBoard and Weights & Biases themselves, in an environment of their own.

Their logs are read back with their own packages and compared with the run's metrics.
"""

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
TIMEOUT = 600
"""Seconds after which something must hang, even on a machine that is busy with other things."""
BOTH = ["--track", "tensorboard", "--track", "wandb:mine"]


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the interpreter that has the packages, or skip the tests."""
    if not (ENVIRONMENT / "installed").exists():
        pytest.skip(
            "there is no .venv-trackers with tensorboard and wandb; "
            "`make test-slow` installs it if it can reach a package index"
        )
    return ENVIRONMENT / "bin" / "python"


@pytest.fixture(autouse=True)
def no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point the packages' server and all proxies at a local port, and check that none connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name in ("WANDB_BASE_URL", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, address)
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
        # With a key, its lack cannot be what keeps the package from connecting.
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
        yield
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def run_fedwmsam(python: Path, *arguments: Any) -> str:
    """Run a command that must succeed, and return what it printed."""
    done = subprocess.run(
        [python, "-m", "fedwmsam", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def start_fedwmsam(python: Path, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """Yield the process of a command, which is killed if it still runs at the end of the block."""
    command = [python, "-m", "fedwmsam", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_logs(python: Path, folder: Path) -> Any:
    script = [python, Path(__file__).parent / "helpers" / "tracker_logs.py", folder]
    return json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)


def check_logs(python: Path, folder: Path) -> Any:
    """Check that both logs hold each number of each round of metrics.jsonl once; return them."""
    logs = read_logs(python, folder)
    rows = read_lines(folder / "metrics.jsonl")
    scalars: dict[str, list[list[float]]] = {}
    for row in rows:
        for name, value in numeric_columns(row).items():
            scalars.setdefault(name, []).append([row["round"], round_to_float32(value)])
    assert {"accuracy", "loss", "alpha", "bytes_down"} <= set(scalars)
    assert logs["tensorboard"]["scalars"] == scalars
    newest_rows = logs["wandb"][-1]["rows"]
    assert [row["_step"] for row in newest_rows] == [row["round"] for row in rows]
    for logged, row in zip(newest_rows, rows, strict=True):
        for name in ("_step", "_runtime", "_timestamp"):
            logged.pop(name, None)
        assert logged == numeric_columns(row)
    return logs


def round_to_float32(value: float) -> float:
    """Return a number as TensorBoard keeps it, as a 32-bit float."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def wait_for(rounds: int, folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while len(read_lines(folder / "metrics.jsonl")) < rounds and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def test_the_logs_hold_the_metrics_and_the_results_stay_the_same(
    python: Path, cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    command = ["run", *SMALL, "--rounds", "8", "--set", "evaluate_every=3", "--out", tmp_path]
    printed = run_fedwmsam(python, *command, *BOTH, "--name", "a")
    assert f"tensorboard --logdir {tmp_path}" in printed
    assert f"wandb sync {folder}/wandb/offline-run-" in printed
    assert cli(*command, "--name", "plain").code == 0
    for name in ("metrics.jsonl", "model.safetensors", "summary.json"):
        assert (folder / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    logs = check_logs(python, folder)
    assert [step for step, _ in logs["tensorboard"]["scalars"]["accuracy"]] == [3, 6, 8]
    assert "| rho | 0.01 |" in logs["tensorboard"]["texts"]["configuration"]
    assert logs["tensorboard"]["texts"]["status"] == "completed"
    (run,) = logs["wandb"]
    assert (run["name"], run["project"], run["exit_code"]) == ("a", "mine", 0)
    assert run["config"]["rho"] == 0.01 and run["config"]["partition"] == "dirichlet:0.1"
    expected = {"status": "completed", "rounds": 8, "best_round": None}
    assert run["summary"] | expected == run["summary"]


def check_status(logs: Any, number: int, status: str) -> None:
    """Check that TensorBoard's log and the numbered one of Weights & Biases end with a status."""
    assert logs["tensorboard"]["texts"]["status"] == status
    assert logs["wandb"][number]["summary"]["status"] == status


def test_killed_and_stopped_and_resumed_a_run_has_each_round_once(
    python: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    endless = ["--rounds", "100000"]
    command = ["run", *SMALL, *BOTH, *endless, "--checkpoint-every", "7"]
    with start_fedwmsam(python, *command, "--out", tmp_path, "--name", "a") as process:
        wait_for(10, folder, process)  # and then it is killed
    before = read_logs(python, folder)["tensorboard"]["scalars"]["accuracy"]
    assert len(before) >= 9, "each round is on disk as soon as it is done"
    with start_fedwmsam(python, "resume", folder, *endless) as process:
        wait_for(len(before) + 5, folder, process)
        process.terminate()
        assert process.wait(timeout=TIMEOUT) == 130
    stopped = check_logs(python, folder)
    check_status(stopped, 1, "interrupted")
    assert stopped["wandb"][1]["exit_code"] == 1
    rounds = len(read_lines(folder / "metrics.jsonl"))
    run_fedwmsam(python, "resume", folder, "--rounds", rounds + 2)
    resumed = check_logs(python, folder)
    check_status(resumed, 2, "completed")
    assert resumed["wandb"][2]["exit_code"] == 0
    assert len({run["id"] for run in resumed["wandb"]}) == 1


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

board = TensorBoard()
clients = [(torch.eye(4), torch.arange(4) % 2)] * 4
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
    """The process that writes for Weights & Biases is killed, and TensorBoard's file is removed."""
    folder = tmp_path / "a"
    command = ["run", *SMALL, *BOTH, "--rounds", "400", "--out", tmp_path, "--name", "a"]
    with start_fedwmsam(python, *command) as process:
        wait_for(5, folder, process)
        for child in child_processes(process.pid):
            os.kill(child, signal.SIGKILL)
        (log,) = folder.glob("events.*")
        log.unlink()
        log.mkdir()
        errors = process.communicate(timeout=TIMEOUT)[1]
        assert process.returncode == 0, errors
    assert "TensorBoard: the log ends after round" in errors
    assert "Weights & Biases: the log ends after" in errors
    assert len(read_lines(folder / "metrics.jsonl")) == 400
    log.rmdir()
    run_fedwmsam(python, "resume", folder)
    check_logs(python, folder)


def child_processes(pid: int) -> list[int]:
    command = ["ps", "-o", "pid=", "--ppid", str(pid)]
    listed = subprocess.run(command, capture_output=True, text=True)
    return [int(word) for word in listed.stdout.split()]


def test_every_run_of_a_comparison_has_its_logs(python: Path, tmp_path: Path) -> None:
    settings = ["--clients", "5", "--set", "local_epochs=1", "--model", "linear", "--rounds", "3"]
    command = ["compare", "--methods", "fedwmsam,fedavg", *settings, *BOTH, "--jobs", "1"]
    run_fedwmsam(python, *command, "--out", tmp_path / "c")
    folders = sorted(path.parent for path in tmp_path.glob("c/*/config.toml"))
    assert len(folders) == 2
    for folder in folders:
        logs = read_logs(python, folder)
        accuracies = [row["accuracy"] for row in read_lines(folder / "metrics.jsonl")]
        rounded = [round_to_float32(accuracy) for accuracy in accuracies]
        scalars = logs["tensorboard"]["scalars"]["accuracy"]
        assert [value for _, value in scalars] == rounded
        assert [row["accuracy"] for row in logs["wandb"][0]["rows"]] == accuracies
        assert logs["wandb"][0]["name"] == folder.name
