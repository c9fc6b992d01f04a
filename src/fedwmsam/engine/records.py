"""Records: what a run writes as JSON, a line a round or a file, and reads back."""

import json
import math
from pathlib import Path
from typing import Any

from fedwmsam.errors import InputError

Record = dict[str, Any]


def read_lines(path: Path) -> list[Record]:
    """Whole lines of a .jsonl file; a last line cut short by a crash is left out."""
    try:
        records = [json.loads(line) for line in whole_lines(path)]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}.") from error
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise InputError(f"{path} is damaged: line {number} is not a JSON object.")
    return records


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file that end with a line break; none if there is no such file."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return [line + b"\n" for line in lines[:-1]]


def read_json(path: Path) -> Record:
    """An object, as all JSON files of a run are."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if not isinstance(record, dict):
        raise InputError(f"{path} does not hold a JSON object.")
    return record


def json_line(record: Record) -> str:
    return json.dumps(replace_nonfinite(record)) + "\n"


def replace_nonfinite(record: Record) -> Record:
    """JSON has no NaN or infinity: they become null."""
    return {key: finite(value) for key, value in record.items()}


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return replace_nonfinite(value)
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
