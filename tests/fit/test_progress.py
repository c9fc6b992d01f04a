"""What `fit` shows while it trains: a bar in a terminal, lines of a log elsewhere, or nothing."""

import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fit_problems import CLIENTS, QUICK, TEST, linear_model

from fedwmsam import InputError, fit

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from helpers.fit_problems import CLIENTS, QUICK, TEST, linear_model
from fedwmsam import fit
fit(linear_model, CLIENTS, test=TEST, callbacks=[lambda p: print("mine", p.record["round"])],
    **QUICK, progress={progress})
"""


def run_in_terminal(progress: bool | None) -> tuple[str, str]:
    """Return what a program that calls `fit` prints, and what appears on its terminal."""
    ours, theirs = pty.openpty()
    program = PROGRAM.format(tests=str(Path(__file__).parents[1]), progress=progress)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
        text=True,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # the program has closed its end
            break
    os.close(ours)
    printed, _ = process.communicate()
    assert process.returncode == 0, seen.decode()
    return printed, seen.decode()


def test_a_terminal_shows_a_bar_and_the_output_stays_the_programs_own() -> None:
    printed, seen = run_in_terminal(progress=None)
    assert printed == "mine 1\nmine 2\nmine 3\n"
    assert "round 3/3" in seen and "━" in seen
    assert re.search(r"accuracy \d\.\d{4}  loss \d\.\d{4}", seen)


def test_a_terminal_can_stay_empty() -> None:
    assert run_in_terminal(progress=False) == ("mine 1\nmine 2\nmine 3\n", "")


def test_elsewhere_evaluated_rounds_are_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, logger="fedwmsam")
    settings = QUICK | {"rounds": 5, "evaluate_every": 2}
    result = fit(linear_model, CLIENTS, test=TEST, **settings)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split("  ")[0] for line in lines] == ["round 2/5", "round 4/5", "round 5/5"]
    assert f"accuracy {result.last('accuracy'):.4f}" in lines[-1]
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert capfd.readouterr() == ("", "")


def test_without_anything_to_evaluate_the_training_loss_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="fedwmsam")
    result = fit(linear_model, CLIENTS, **QUICK)
    assert caplog.messages[-1] == f"round 3/3  train_loss {result.last('train_loss'):.4f}"


def test_silence_is_silent(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, logger="fedwmsam")
    fit(linear_model, CLIENTS, test=TEST, progress=False, **QUICK)
    assert caplog.records == [] and capfd.readouterr() == ("", "")


def test_a_bar_that_is_asked_for_is_shown_without_a_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    fit(linear_model, CLIENTS, test=TEST, progress=True, **QUICK)
    out, err = capfd.readouterr()
    assert out == "" and "round 3/3" in err


def test_progress_is_true_false_or_none() -> None:
    with pytest.raises(InputError, match="progress must be True, False or None, not 'bar'"):
        fit(linear_model, CLIENTS, progress="bar", **QUICK)
