"""A short campaign and a short endurance run; `make faults` and `make endurance` do the long ones."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.endurance import Sample, verdict

TESTS = Path(__file__).parents[1]


def module(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: children can be forked only from one that has trained nothing."""
    search = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(
        command, env=os.environ | {"PYTHONPATH": search}, capture_output=True, text=True
    )


@pytest.mark.slow
def test_no_run_is_lost(tmp_path: Path) -> None:
    done = module("campaign", "--trials", "22", "--seed", "7", "--json", tmp_path / "faults.json")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_nothing_grows_without_end() -> None:
    done = module("campaign.endurance", "--rounds", "1500", "--every", "300")
    assert done.returncode == 0, done.stdout + done.stderr


STEADY = Sample(round=1000, memory=300 << 20, open_files=9, cpu_seconds=1.0, folder=9000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory": 304 << 20}, ""),
        ({"memory": 350 << 20}, "memory grew by 10486 bytes a round"),
        ({"open_files": 10}, "open files grew from 9 to 10"),
        ({"folder": 18_001}, "checkpoints grew"),
    ],
)
def test_endurance_sees_growth(change: dict[str, int], words: str) -> None:
    found = verdict([STEADY, replace(STEADY, round=6000, **change)])
    assert words in found and bool(found) == bool(words)
