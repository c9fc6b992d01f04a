"""The library without what only POSIX systems have, as far as that can be seen on Linux.

`helpers/without_posix` says what is taken away. docs/project/versions.md says what stays untried.
"""

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.markdown_pages import ROOT

from fedwmsam import InputError, files, machine
from fedwmsam.comparison import owners
from fedwmsam.comparison.claims import ClaimFolder, Owner
from fedwmsam.comparison.owners import Fate, OwnerObserver
from fedwmsam.termination import interrupt_main_thread

WITHOUT_POSIX = ROOT / "tests" / "helpers" / "without_posix"
SMALL = ("--rounds", "2", "--clients", "6", "--participation", "0.5")
SCRIPT = """
import multiprocessing

import torch

import fedwmsam


class Network(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    random = torch.Generator().manual_seed(0)
    clients = []
    for size in (10, 14, 6):
        labels = torch.randint(3, (size,), generator=random)
        clients.append((torch.randn(size, 4, generator=random), labels))
    for workers in (1, 2):
        result = fedwmsam.fit(
            Network, clients, method="scaffold", rounds=2, participation=1.0, batch_size=4,
            workers=workers, run_folder=f"workers-{workers}", progress=False,
        )
        assert len(result.rows) == 2
"""
"""A user's program: its model can be imported from nowhere."""


def call_python(folder: Path, *words: str, posix: bool = True) -> str:
    """Run Python in a folder, by choice without POSIX, and return what it has printed."""
    search_path = [str(ROOT / "src")]
    encoding = "utf-8"
    if not posix:
        search_path.insert(0, str(WITHOUT_POSIX))
        encoding = "cp1252"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(search_path),
        "PYTHONIOENCODING": encoding,
    }
    process = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, timeout=300
    )
    messages = process.stderr.decode(errors="replace")
    assert process.returncode == 0, messages
    assert "Traceback" not in messages
    return process.stdout.decode(encoding)


def contents(folder: Path, *names: str) -> dict[str, bytes]:
    """Return the files of these names below a folder by their relative paths."""
    found = {}
    for name in names:
        for path in sorted(folder.rglob(name)):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def test_every_module_is_imported_where_posix_is_missing(tmp_path):
    program = """
import importlib, os, pkgutil, sys
import fedwmsam
assert not hasattr(os, "fork") and sys.modules["fcntl"] is None
names = [module.name for module in pkgutil.walk_packages(fedwmsam.__path__, "fedwmsam.")]
for name in names:
    if name != "fedwmsam.__main__":
        importlib.import_module(name)
print(len(names))
"""
    assert int(call_python(tmp_path, "-c", program, posix=False)) > 200


def test_a_run_with_workers_has_the_same_bytes_where_posix_is_missing(tmp_path, cli):
    words = ("run", *SMALL, "--set", "method=scaffold", "--name", "run", "--out")
    printed = call_python(tmp_path, "-m", "fedwmsam", *words, "here", "--workers", "2", posix=False)
    assert "accuracy" in printed
    assert cli(*words, tmp_path / "there").code == 0
    names = ("metrics.jsonl", "model.safetensors", "config.toml")
    here = contents(tmp_path / "here", *names)
    there = contents(tmp_path / "there", *names)
    for name in ("run/metrics.jsonl", "run/model.safetensors"):
        assert here[name] == there[name]
    assert b"\r" not in here["run/config.toml"]
    assert [path.name for path in (tmp_path / "here" / "run").glob(".*")] == []


@pytest.mark.slow
def test_a_comparison_and_its_report_are_the_same_where_posix_is_missing(tmp_path, cli):
    """Its workers end cleanly, and Greek letters do not fail in a pipe that has none."""
    here = tmp_path / "here"
    there = tmp_path / "there"
    words = ("compare", "--methods", "fedavg,fedwmsam", *SMALL, "--jobs", "2", "--out")
    call_python(tmp_path, "-m", "fedwmsam", *words, "here", posix=False)
    assert cli(*words, there).code == 0
    metrics = contents(here, "metrics.jsonl", "model.safetensors")
    assert len(metrics) == 4
    assert metrics == contents(there, "metrics.jsonl", "model.safetensors")
    assert "Traceback" not in (here / "messages.log").read_text("utf-8", "replace")
    claims = [json.loads(path.read_bytes()) for path in (here / "queue" / "claims").iterdir()]
    assert [claim["state"] for claim in claims] == ["done", "done"]
    report = ("report", "here", "--csv", "table.csv", "--html", "page.html")
    assert "fedwmsam" in call_python(tmp_path, "-m", "fedwmsam", *report, posix=False)
    page = (tmp_path / "page.html").read_bytes()
    assert "α".encode() in page and b"\r\n" not in page
    assert cli("report", here, "--csv", tmp_path / "again.csv").code == 0
    assert (tmp_path / "table.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()


@pytest.mark.parametrize("posix", [True, False], ids=["posix", "no-posix"])
def test_a_program_of_ones_own_has_workers_that_are_spawned(tmp_path, posix):
    """They begin with nothing of the program, neither by a fork nor by importing it."""
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    call_python(tmp_path, "script.py", posix=posix)
    names = ("metrics.jsonl", "model.safetensors")
    one, two = (contents(tmp_path / f"workers-{count}", *names) for count in (1, 2))
    assert len(one) == 2 and one == two


def test_slurm_is_refused_in_one_sentence_where_there_is_none(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = cli("compare", "--methods", "fedavg,fedcm", "--on", "slurm", "--out", tmp_path / "a")
    assert outcome.code == 2 and "which this machine does not have" in outcome.err


# Single functions, which a run does not reach on every system


def test_a_link_is_refused_where_the_system_cannot_be_told_not_to_follow_it(tmp_path, monkeypatch):
    (tmp_path / "secret").write_bytes(b"theirs")
    (tmp_path / "config.toml").symlink_to(tmp_path / "secret")
    monkeypatch.delattr(os, "O_NOFOLLOW")
    monkeypatch.setattr(files, "OPEN_FLAGS", 0)
    with pytest.raises(InputError, match="is a link, not a regular file"):
        files.read_bytes(tmp_path / "config.toml", 100)


def test_a_file_that_windows_refuses_for_a_moment_is_tried_again():
    def fail(error: OSError, times: int):
        attempts = []

        def action() -> int:
            attempts.append(time.monotonic())
            if len(attempts) <= times:
                raise error
            return len(attempts)

        return action

    in_use = PermissionError(errno.EACCES, "It is used")
    with pytest.raises(PermissionError):
        files.insist(fail(in_use, 1))  # of another system, where waiting would not help
    in_use.winerror = 32
    assert files.insist(fail(in_use, 3)) == 4
    with pytest.raises(FileNotFoundError):
        files.insist(fail(FileNotFoundError(), 1))


def test_no_other_process_is_judged_dead_where_none_can_be_seen(tmp_path, monkeypatch):
    """Signs of life decide; `os.kill`, with which POSIX is asked, would end it on Windows."""
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("os.kill was called"))
    for module in (machine, owners):
        monkeypatch.setattr(module, "LISTS_PROCESSES", False)
    owner = Owner("token", machine.process_space(), 2**30, "a start that no process has")
    claim = ClaimFolder(tmp_path).create("run", 1, owner, 0)
    assert OwnerObserver().judge([claim]) == [Fate.UNKNOWN]
    assert OwnerObserver(lease=0).judge([claim]) == [Fate.CRASHED]
    assert machine.start_elsewhere(os.getpid()) == ""


def test_a_thread_interrupts_the_program_where_a_signal_would_kill_it(monkeypatch):
    handled = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: handled.set())
    monkeypatch.delattr(signal, "pthread_kill")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("os.kill was called"))
    try:
        thread = threading.Thread(target=interrupt_main_thread)
        thread.start()
        thread.join()
        assert handled.wait(timeout=5)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_memory_is_asked_of_windows_where_posix_does_not_say_it(monkeypatch):
    def fill(status) -> None:
        assert status[0] == ctypes.sizeof(status) == 64
        status[1] = 24 * 10**9

    kernel = SimpleNamespace(GlobalMemoryStatusEx=fill)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.delattr(os, "sysconf")
    assert machine.machine_memory.__wrapped__() == 24 * 10**9


def test_the_memory_of_this_process_is_not_asked_where_nothing_says_it(monkeypatch):
    here = machine.peak_memory()
    assert here > 10**6
    monkeypatch.setattr(sys, "platform", "darwin")  # which says it in bytes
    assert here <= 1024 * machine.peak_memory() < 2 * here
    monkeypatch.setitem(sys.modules, "resource", None)
    assert machine.peak_memory() is None


def test_a_sign_of_life_is_given_where_links_cannot_be_told_apart(tmp_path, monkeypatch):
    """A worker gives the first one after half a minute, later than the comparison here takes."""
    path = tmp_path / "run.1"
    path.write_bytes(b"")
    before = path.stat().st_mtime_ns
    utime = os.utime

    def windows_utime(path: Path, *, follow_symlinks: bool = True) -> None:
        if not follow_symlinks:
            raise NotImplementedError("follow_symlinks unavailable on this platform")
        utime(path)

    monkeypatch.setattr(os, "utime", windows_utime)
    time.sleep(0.02)
    files.touch(path)
    assert path.stat().st_mtime_ns > before
