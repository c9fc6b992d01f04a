"""Records, which a run writes as JSON, a line per round or one per file, and reads back."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedwmsam import files
from fedwmsam.errors import InputError, printable

Record = dict[str, Any]
JSON_LIMIT = 2**26
"""Bytes of a .json file at most; 100,000 clients with 100 classes need half of them."""
LINES_LIMIT = 2**28
"""Bytes of a .jsonl file at most; 100,000 rounds need a quarter of them."""
LARGEST_NUMBER = 2.0**1023
"""Numbers of a round are smaller in size, so that sums and means of them are numbers, too."""
MAX_PARSED_BYTES = 2**30
"""Bytes that the values of one file may need in memory."""
BYTES_OF_VALUES = {b"{": 240, b"[": 64, b",": 64}
"""Bytes that a value needs in memory at most, by the character that each of its kind takes."""


def read_lines(path: Path) -> list[Record]:
    """Return the records of a .jsonl file; raise InputError if it is damaged.

    A last line that a crash cut short is left out.
    """
    records: list[Record] = []
    parsed_bytes = 0
    for number, line in enumerate(complete_lines(path), start=1):
        parsed_bytes += memory_of_json(line)
        try:
            records.append(parse_record(line, parsed_bytes))
        except ValueError as error:
            raise InputError(f"{path} is damaged: line {number}: {error}.") from error
    return records


def read_metrics(path: Path) -> list[Record]:
    """Return the records of metrics.jsonl.

    Raise InputError unless line r is that of round r and its values are numbers, lists or null.
    """
    records = read_lines(path)
    for round, record in enumerate(records, start=1):
        for key, value in record.items():
            is_number = isinstance(value, int | float) and abs(value) < LARGEST_NUMBER
            if not is_number and value is not None and not isinstance(value, list):
                raise InputError(f"{path} is damaged: {printable(key)} of round {round}.")
        if record.get("round") != round:
            raise InputError(f"{path} is damaged: line {round} is not that of round {round}.")
    return records


def complete_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that end with a line break; none if there is no such file."""
    try:
        content = files.read_bytes(path, LINES_LIMIT)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    start = 0
    while end := content.find(b"\n", start) + 1:
        yield content[start:end]
        start = end


def round_of(record: Record, path: Path) -> int:
    """Return the round of a record; raise InputError, naming its file, if it has none."""
    round = record.get("round")
    if not isinstance(round, int):
        raise InputError(f"{path} is damaged: a line has no round.")
    return round


def read_json(path: Path) -> Record:
    """Return the JSON object in a file; raise InputError if there is none."""
    try:
        content = files.read_bytes(path, JSON_LIMIT)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return parse_record(content)
    except ValueError as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def parse_record(text: bytes, parsed_bytes: int | None = None) -> Record:
    """Return the JSON object in a text; raise ValueError, with the reason, if there is none.

    `parsed_bytes` is what its values and those before it from the same file need in memory.
    """
    if (memory_of_json(text) if parsed_bytes is None else parsed_bytes) > MAX_PARSED_BYTES:
        raise ValueError("it holds more values than a run writes")
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    return record


def memory_of_json(text: bytes) -> int:
    """Return a bound on the memory that the values in a JSON text need besides their characters.

    A text of empty lists needs twenty times its length.
    """
    return sum(text.count(mark) * size for mark, size in BYTES_OF_VALUES.items())


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
