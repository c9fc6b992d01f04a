"""What an analysis leaves beside its run: RUN/analysis/NAME.json, whole or absent."""

import json
from pathlib import Path

from fedwmsam.engine import checkpoint
from fedwmsam.engine.records import Record, finite_only, read_json
from fedwmsam.errors import InputError


def save_analysis(run: Path, name: str, record: Record) -> Path:
    path = run / "analysis" / name
    write_json(path, record, "make the run's folder writable")
    return path


def load_analysis(run: Path, name: str) -> Record | None:
    path = run / "analysis" / name
    return read_json(path) if path.exists() else None


def write_json(path: Path, record: Record, advice: str = "name another place with --out") -> None:
    """Whole or not at all; the advice is for who cannot write there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with checkpoint.replacing(path) as beside:
            beside.write_text(json.dumps(finite_only(record)) + "\n")
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; {advice}.") from error
