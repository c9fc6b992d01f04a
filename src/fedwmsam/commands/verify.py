"""`fedwmsam verify`: the replay of reference-vector files."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedwmsam.commands.output import say


def verify(
    files: Annotated[list[Path], typer.Argument(help="Reference-vector files (JSON).")],
    tolerance: Annotated[float, typer.Option(help="Largest absolute error allowed.")] = 1e-9,
) -> None:
    """Replay reference vectors through the real round loop and print the largest error of each
    file.

    Exits with 1 if any error is above the tolerance. Example: `fedwmsam verify
    tests/data/reference_vectors/*.json`
    """
    from fedwmsam.experiment.verify import verify_file

    failures = 0
    for path in files:
        result = verify_file(path)
        passed = result.worst <= tolerance
        failures += not passed
        errors = "  ".join(f"{name} {value:.1e}" for name, value in result.errors.items())
        say(f"{'ok  ' if passed else 'FAIL'}  {path.name}  {errors}")
    say(f"{len(files) - failures} of {len(files)} files within {tolerance:g}")
    if failures:
        sys.exit(1)
