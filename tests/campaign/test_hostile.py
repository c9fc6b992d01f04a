"""The judge of hostile inputs sees each bad outcome, in a sandbox around a made-up command."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from campaign import sandbox
from campaign.sandbox import BAD, REFUSED, TAKEN, Attack, Observation, SandboxedProcess, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    (tmp_path / "references" / "fedwmsam").mkdir(parents=True)
    made = Stage(tmp_path / "stage", tmp_path / "references")
    made.set_up()
    return made


def outcome_of(stage: Stage, target: Callable[[], None], seconds: float = 30.0) -> tuple[str, str]:
    """Return the verdict on a command, which is called in a sandbox."""
    return sandbox.judge(SandboxedProcess(Attack("made up", target), stage, seconds).observe())


def print_error(text: str) -> None:
    """Refuse as the command line does."""
    print(text, file=sys.stderr)
    sys.exit(2)


def fill_memory(gigabytes: int) -> None:
    """Take memory and use it."""
    content = bytearray(gigabytes << 30)
    content[:: resource.getpagesize()] = b"x" * len(content[:: resource.getpagesize()])


def raise_error() -> None:
    raise KeyError("method")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def print_all_day() -> None:
    print("begun", flush=True)
    time.sleep(1000)


def test_honest_commands_are_taken_or_refused(stage: Stage) -> None:
    assert outcome_of(stage, lambda: print("done")) == (TAKEN, "")
    assert outcome_of(stage, lambda: print_error("Error: x is no number.")) == (REFUSED, "")
    assert outcome_of(stage, lambda: fill_memory(0)) == (TAKEN, "")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (raise_error, "a traceback: KeyError: 'method'"),
        (die, "ended by SIGKILL"),
        (print_all_day, "no end within the time limit"),
        (lambda: sys.exit(3), "exit code 3"),
        (lambda: print_error("Error: one\nError: two"), "a refusal that is not one line"),
        (lambda: print_error("Error: one\ntwo"), "a refusal that is not one line"),
        (lambda: print_error(""), "a refusal that is not one line"),
        (lambda: print_error("Error: " + "x" * 3000), "a refusal of 3007 characters"),
        (lambda: print("\x1b[31mred"), r"the control character '\x1b' in the output"),
        (lambda: print("name: a\nFORGED: fine"), "a line of output that the stranger wrote"),
        (lambda: fill_memory(2), "MB of memory"),
        (lambda: fill_memory(8), "a traceback: MemoryError"),
        (lambda: print("a.py:3: RuntimeWarning: overflow"), "a warning of Python"),
    ],
)
def test_what_a_command_must_not_do(stage: Stage, target: Callable[[], None], reason: str) -> None:
    verdict, found = outcome_of(stage, target, 30.0 if target is not print_all_day else 0.5)
    assert verdict == BAD
    assert reason in found


@pytest.mark.parametrize(
    ("touch", "reason"),
    [
        (lambda foreign: (foreign / "letter.txt").read_text(), "foreign/letter.txt opened"),
        (lambda foreign: (foreign / "letter.txt").write_text("x"), "foreign/letter.txt changed"),
        (lambda foreign: (foreign / "new").touch(), "foreign/new changed"),
        (lambda foreign: (foreign / "letter.txt").unlink(), "foreign/letter.txt changed"),
        (lambda foreign: os.truncate(foreign / "letter.txt", 3), "foreign/letter.txt changed"),
        (lambda foreign: (foreign / "run" / "x").mkdir(), "run/x changed"),
        (lambda foreign: (foreign.parent / "x").touch(), "/x is different"),
    ],
)
def test_foreign_files_are_guarded(
    stage: Stage, touch: Callable[[Path], object], reason: str
) -> None:
    verdict, found = outcome_of(stage, lambda: void(touch(stage.foreign)))
    assert verdict == BAD
    assert reason in found


def void(value: object) -> None:
    """Return nothing."""


def test_a_folder_that_is_listed_and_files_of_its_own_do_not_count(stage: Stage) -> None:
    def work() -> None:
        list(stage.foreign.iterdir())
        (stage.foreign / "letter.txt").stat()
        (stage.work / "result.txt").write_text("x")
        (stage.input / "result.txt").write_text("x")

    assert outcome_of(stage, work) == (TAKEN, "")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.tex", "% a\n\\input{x}\n", "live LaTeX in t.tex"),
        ("t.tex", "% \\input{x}\n", ""),
        ("t.csv", "a,=STRANGER(A1)\n", "a formula in t.csv"),
        ("t.csv", "a,'=STRANGER(A1)\n", ""),
        ("p.html", "<td><script>stranger()", "a script in p.html"),
        ("p.html", "<td>&lt;script>stranger()", ""),
    ],
)
def test_what_was_written_is_searched(stage: Stage, name: str, content: str, reason: str) -> None:
    (stage.work / name).write_text(content)
    assert sandbox.find_live_markup(stage.work).startswith(reason)
    assert bool(sandbox.find_live_markup(stage.work)) == bool(reason)


def test_a_bad_outcome_excuses_nothing() -> None:
    seen = Observation(0, False, 1.0, 1, 2, foreign=["foreign/letter.txt opened"])
    assert sandbox.judge(seen)[0] == BAD
