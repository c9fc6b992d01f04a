"""What several test files share: small federations, and the command line called in this process."""

import contextlib
import io
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import torch

# No deadline: these machines also run long experiments, and a slow example is not a wrong one.
hypothesis.settings.register_profile("here", deadline=None, database=None)
hypothesis.settings.load_profile("here")
# A shell lets what ends in "&" ignore Ctrl-C, and children inherit that; tests that send it need it to arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(
    1
)  # on a busy machine threads that wait for each other take many times longer than one


@dataclass(frozen=True)
class Outcome:
    """What a person sees of one command."""

    code: int
    out: str
    err: str


def call(*arguments: str | Path) -> Outcome:
    """`fedwmsam ARGUMENTS` without the seconds a new process takes to import PyTorch."""
    from fedwmsam.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    argv, handler = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = ["fedwmsam", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = argv
        signal.signal(signal.SIGTERM, handler)
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def cli() -> Callable[..., Outcome]:
    return call
