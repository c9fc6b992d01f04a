"""A short campaign of faults, one of hostile inputs and a short endurance run.

`make faults`, `make hostile` and `make endurance` do the long ones.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.endurance import Sample, find_growth

TESTS = Path(__file__).parents[1]


def run_module(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a module in a new process: children can be forked only from one that trained nothing."""
    search_path = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, "-m", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": search_path}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_no_run_is_lost(tmp_path: Path) -> None:
    options = ["--trials", "22", "--seed", "7", "--json", tmp_path / "faults.json"]
    process = run_module("campaign", *options)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
def test_no_stranger_does_harm(tmp_path: Path) -> None:
    options = ["--inputs", "60", "--seed", "7", "--json", tmp_path / "hostile.json"]
    process = run_module("campaign.hostile", *options)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
def test_nothing_grows_without_end() -> None:
    process = run_module("campaign.endurance", "--rounds", "1500", "--every", "300")
    assert process.returncode == 0, process.stdout + process.stderr


STEADY = Sample(round=1000, memory=300 << 20, open_files=9, cpu_seconds=1.0, folder=9000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": 304 << 20}, ""),
        ({"memory": 350 << 20}, "memory grew by 10486 bytes a round"),
        ({"open_files": 10}, "open files grew from 9 to 10"),
        ({"folder": 18_001}, "checkpoints grew"),
    ],
)
def test_endurance_sees_growth(change: dict[str, int], message: str) -> None:
    growth = find_growth([STEADY, replace(STEADY, round=6000, **change)])
    assert message in growth
    assert bool(growth) == bool(message)
