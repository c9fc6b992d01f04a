"""Ctrl-C and SIGTERM on the real command: a clean end that says how to go on."""

import signal
import subprocess
import sys
import time

import pytest

from fedwmsam.engine.records import read_lines
from fedwmsam.engine.run import Run
from fedwmsam.experiment.experiment import prepare
from fedwmsam.settings.config import resolve_config


@pytest.mark.parametrize("kind", ["Ctrl-C", "SIGTERM", "SIGTERM in the background"])
def test_a_signal_saves_the_last_round_and_says_how_to_go_on(tmp_path, kind):
    sent = signal.SIGINT if kind == "Ctrl-C" else signal.SIGTERM
    command = [sys.executable, "-m", "fedwmsam"]
    arguments = [
        "run",
        "--out",
        tmp_path,
        "--name",
        "a",
        "--rounds",
        "2000",
        "--checkpoint-every",
        "5000",
    ]
    before = signal.getsignal(signal.SIGINT)
    # A shell starts what ends in "&" like this; a child inherits which signals are ignored.
    if kind == "SIGTERM in the background":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 60
        while len(read_lines(tmp_path / "a" / "metrics.jsonl")) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(sent)
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"fedwmsam resume {tmp_path / 'a'}" in errors
    assert "Traceback" not in errors
    done = len(read_lines(tmp_path / "a" / "metrics.jsonl"))
    assert done >= 3
    rounds = str(done + 2)
    again = subprocess.run(
        [*command, "resume", tmp_path / "a", "--rounds", rounds], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    whole = subprocess.run(
        [*command, "run", "--out", tmp_path, "--name", "b", "--rounds", rounds], capture_output=True
    )
    assert whole.returncode == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def end_twice(process, first, second, pause):
    """Send two signals so many seconds apart, and return what the process wrote about it."""
    process.send_signal(first)
    time.sleep(pause)
    process.send_signal(second)
    try:
        return process.communicate(timeout=60)[1]
    finally:
        process.kill()


@pytest.mark.parametrize("pause", [0, 0.002, 0.01, 0.05])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_two_signals_in_a_hurry_end_a_run_as_one_does(tmp_path, command, pause):
    settings = ["--out", tmp_path, "--rounds", "5000", "--model", "linear"]
    names = {"run": ["--name", "a"], "compare": ["--methods", "fedavg", "--jobs", "1"]}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedwmsam", command, *settings, *names[command]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    errors = end_twice(process, signal.SIGINT, signal.SIGTERM if pause else signal.SIGINT, pause)
    assert process.returncode == 130
    assert errors.startswith("Stopped; ") and errors.count("\n") == 1
    for log in tmp_path.glob("messages.log"):
        assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("delay", [0, 0.01, 0.03, 0.1, 0.2, 0.4, 0.8])
def test_two_signals_while_the_program_is_imported_leave_no_traceback(tmp_path, delay):
    program = (
        "import sys; from fedwmsam.cli import main; from fedwmsam.termination import *\n"
        "install_handlers(); print('ready', flush=True); main()"
    )
    arguments = ["run", "--out", tmp_path, "--rounds", "5000"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)
    errors = end_twice(process, signal.SIGINT, signal.SIGINT, 0.003)
    assert process.returncode == 130
    assert errors == "" or errors.startswith("Stopped; ")


def test_an_interrupt_between_a_round_and_its_line_loses_neither(tmp_path, monkeypatch):
    config = resolve_config({"rounds": 4, "local_epochs": 1, "model": "linear"})

    def interrupt(self, record, timing):
        if record["round"] == 2:
            raise KeyboardInterrupt
        write_metrics(self, record, timing)

    write_metrics = Run.write_metrics
    monkeypatch.setattr(Run, "write_metrics", interrupt)
    experiment = prepare(config)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(experiment.create(tmp_path / "stopped"))
    monkeypatch.undo()
    assert [row["round"] for row in read_lines(tmp_path / "stopped" / "metrics.jsonl")] == [1, 2]
    experiment.run(experiment.reopen(tmp_path / "stopped"))
    experiment.run(experiment.create(tmp_path / "whole"))
    for name in ("metrics.jsonl", "model.safetensors"):
        stopped = (tmp_path / "stopped" / name).read_bytes()
        assert stopped == (tmp_path / "whole" / name).read_bytes()


def interrupt_then(lines):
    """Return the process of a program whose command is interrupted and then does these lines."""
    program = (
        "import os, signal, sys; from fedwmsam.commands import app\n"
        "def run_app():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "    except KeyboardInterrupt:\n"
        f"        {lines}\n"
        "app.run_app = run_app\n"
        "from fedwmsam.cli import main; main()"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_an_error_after_an_interrupt_that_it_did_not_cause_is_seen():
    """As a bug while the last round is saved."""
    process = interrupt_then("pass\n    raise ValueError('while the last round is saved')")
    assert process.returncode == 1
    assert process.stderr.endswith("ValueError: while the last round is saved\n")


def test_an_error_that_an_interrupt_causes_is_no_traceback():
    """numpy, interrupted while it was imported, ended in a RecursionError."""
    process = interrupt_then("raise RecursionError('a library gives up') from None")
    assert (process.returncode, process.stderr) == (130, "")
