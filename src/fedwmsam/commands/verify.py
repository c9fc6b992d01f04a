"""`fedwmsam verify`: replay reference vectors."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedwmsam.commands.output import say


def verify(
    files: Annotated[list[Path], typer.Argument(help="Reference-vector files (JSON).")],
    tolerance: Annotated[float, typer.Option(help="Largest absolute error allowed.")] = 1e-9,
) -> None:
    """Replay reference vectors through the real round loop and print the largest error of each file.

    Exits with 1 if any error is above the tolerance. Example: `fedwmsam verify tests/data/reference_vectors/*.json`
    """
    from fedwmsam.experiment.verify import verify_file

    failed = 0
    for path in files:
        verdict = verify_file(path)
        ok = verdict.worst <= tolerance
        failed += not ok
        parts = "  ".join(f"{name} {value:.1e}" for name, value in verdict.errors.items())
        say(f"{'ok  ' if ok else 'FAIL'}  {path.name}  {parts}")
    say(f"{len(files) - failed} of {len(files)} files within {tolerance:g}")
    if failed:
        sys.exit(1)
