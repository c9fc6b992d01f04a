"""The command line with the newest Typer that pyproject.toml allows; Flower takes an older one."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.systems


@pytest.mark.parametrize(
    ("words", "meant"),
    [("rnu", "'run'"), ("analyse flatnes", "'flatness'"), ("run --learning-rate 1", "'--lr'")],
)
def test_what_is_mistyped_is_a_sentence_and_no_traceback(words: str, meant: str) -> None:
    if find_spec("flwr"):
        pytest.skip("Flower is installed, and with it an older Typer")
    command = [sys.executable, "-m", "fedwmsam", *words.split()]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 2
    assert "Did you mean" in outcome.stderr and meant in outcome.stderr
    assert "Traceback" not in outcome.stderr
