"""Settings of all tests, and a fixture that calls the command line in this process."""

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
# A shell lets a command that ends in "&" ignore Ctrl-C, and its children inherit that. Tests that
# send the signal need it to arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)
# On a busy machine, threads that wait for each other take many times longer than one.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of one command."""

    code: int
    out: str
    err: str


def call_command_line(*arguments: str | Path) -> Outcome:
    """Run `fedwmsam ARGUMENTS` in this process, which saves the import of PyTorch in a new one."""
    from fedwmsam.cli import main

    out = io.StringIO()
    err = io.StringIO()
    code = 0
    argv = sys.argv
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {name: signal.getsignal(getattr(signal, name)) for name in names}
    sys.argv = ["fedwmsam", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = argv
        for name, handler in handlers.items():
            signal.signal(getattr(signal, name), handler)
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def cli() -> Callable[..., Outcome]:
    """Return the function that runs a command and returns its outcome."""
    return call_command_line
