"""What an analysis leaves beside its run: RUN/analysis/NAME.json, whole or absent."""

from pathlib import Path

from fedwmsam.engine.folder import Record, RunFolder, read_json
from fedwmsam.errors import InputError


def save_analysis(run: Path, name: str, record: Record) -> Path:
    path = run / "analysis" / name
    try:
        path.parent.mkdir(exist_ok=True)
        RunFolder(run).write_json(f"analysis/{name}", record)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; make the run's folder writable.") from error
    return path


def load_analysis(run: Path, name: str) -> Record | None:
    path = run / "analysis" / name
    return read_json(path) if path.exists() else None
