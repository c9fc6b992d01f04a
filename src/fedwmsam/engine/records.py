"""Records, which a run writes as JSON, a line per round or one per file, and reads back."""

import json
import math
from pathlib import Path
from typing import Any

from fedwmsam.errors import InputError

Record = dict[str, Any]


def read_lines(path: Path) -> list[Record]:
    """Return the records of a .jsonl file; raise InputError if it is damaged.

    A last line that a crash cut short is left out.
    """
    try:
        records = [json.loads(line) for line in complete_lines(path)]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}.") from error
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise InputError(f"{path} is damaged: line {number} is not a JSON object.")
    return records


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that end with a line break; none if there is no such file."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return [line + b"\n" for line in lines[:-1]]


def read_json(path: Path) -> Record:
    """Return the JSON object in a file; raise InputError if there is none."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if not isinstance(record, dict):
        raise InputError(f"{path} does not hold a JSON object.")
    return record


def json_line(record: Record) -> str:
    """Return the record as one line of JSON, line break included."""
    return json.dumps(replace_nonfinite(record)) + "\n"


def replace_nonfinite(record: Record) -> Record:
    """Return the record with NaN and infinity, which JSON does not have, replaced by None."""
    return {key: nonfinite_to_none(value) for key, value in record.items()}


def nonfinite_to_none(value: Any) -> Any:
    """Return the value with NaN and infinity, however deep inside it, replaced by None."""
    if isinstance(value, dict):
        return replace_nonfinite(value)
    if isinstance(value, list | tuple):
        return [nonfinite_to_none(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
