"""Hostile values and edits: what a stranger may write into a text file, and how bytes get damaged.

Values are texts of JSON, so that they can be what no program would write by itself.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaign.sandbox import FORGED

VALUES = {
    "400 digits": "1" + "0" * 400,
    "-400 digits": "-1" + "0" * 400,
    "5000 digits": "9" * 5000,
    "2^63": str(1 << 63),
    "2^31": str(1 << 31),
    "50 million": "50000000",
    "-1": "-1",
    "0": "0",
    "1e308": "1e308",
    "-1e308": "-1e308",
    "1e-320": "1e-320",
    "1e400": "1e400",
    "1.5": "1.5",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "null": "null",
    "true": "true",
    "a list": "[1, 2, 3]",
    "an empty list": "[]",
    "deep nesting": "[" * 30_000 + "]" * 30_000,
    "an empty text": '""',
    "text": '"x"',
    "a number as text": '"1"',
    "a long text": '"' + "x" * 1_000_000 + '"',
    "ESC": r'"\u001b[31mred\u001b]0;owned\u0007"',
    "line breaks": rf'"a\n{FORGED}: all is well\r\n{FORGED}"',
    "LaTeX": r'"a\n\\input{/etc/passwd}%\n\\input{/etc/passwd}"',
    "HTML": '"</td><script>stranger()</script><img src=x onerror=stranger()>"',
    "a formula": '"=STRANGER(A1)"',
    "a path": '"../../x"',
    "an absolute path": '"/etc/passwd"',
    "placeholders": '"%s%n{0}{x.__class__}"',
    "NUL": r'"a\u0000b"',
    "turned text": r'"\u202egnp.exe"',
    "a C1 control": r'"\u009b31mred"',
}
"""Names of hostile values → the value as a text of JSON."""
ONLY_JSON = {
    "an object": '{"a": 1}',
    "half a character": r'"\ud800"',
    "a key again": '1, "round": -1, "seed": -1, "x": 1',
}
"""Values that only JSON has."""
TOML_SPELLINGS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf", "null": "1979-05-27"}
"""Texts of JSON → what stands in TOML instead."""
PLACE = "the hostile value"
"""A text that is written first, and then replaced by the value."""


def choose_value(rng: random.Random) -> tuple[str, str]:
    """Return the name of a hostile value and its text in JSON."""
    return rng.choice(list((VALUES | ONLY_JSON).items()))


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip bits, cut off, repeat, leave out or overwrite a part."""
    result = bytearray(content or b"\0")
    start = rng.randrange(len(result))
    end = min(len(result), start + rng.randint(1, 64))
    choice = rng.randrange(6)
    if choice == 0:
        for _ in range(rng.randint(1, 5)):
            result[rng.randrange(len(result))] ^= 1 << rng.randrange(8)
    elif choice == 1:
        del result[start:]
    elif choice == 2:
        del result[start:end]
    elif choice == 3:
        result[start:start] = result[start:end] * rng.choice([1, 3, 10_000])
    elif choice == 4:
        result[start:end] = rng.randbytes(end - start)
    else:
        result[start:end] = rng.choice([b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"\x1b[2J"])
    return bytes(result)


def places_in(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container of a JSON document with each of its keys."""
    keys: list[Any] = []
    if isinstance(document, dict):
        keys = list(document)
    elif isinstance(document, list):
        keys = list(range(min(len(document), 3)))
    for key in keys:
        yield document, key
        yield from places_in(document[key])


def replace_in_json(text: str, rng: random.Random) -> tuple[str, str]:
    """Return the text with one value replaced by a hostile one, and which."""
    document = json.loads(text)
    container, key = rng.choice(list(places_in(document)))
    name, value = choose_value(rng)
    container[key] = PLACE
    return json.dumps(document).replace(json.dumps(PLACE), value), f"{key} = {name}"


def rename_in_json(text: str, rng: random.Random) -> tuple[str, str]:
    """Return the text with one key removed or called otherwise, and which."""
    document = json.loads(text)
    container, key = rng.choice(list(places_in(document)))
    value = container.pop(key)
    if rng.random() < 0.5 or isinstance(container, list):
        return json.dumps(document), f"{key} removed"
    name = json.loads(rng.choice([VALUES[n] for n in ("ESC", "line breaks", "HTML", "LaTeX")]))
    container[name] = value
    return json.dumps(document), f"{key} renamed"


def to_toml(value: str) -> str:
    """Return a value as TOML writes it."""
    return TOML_SPELLINGS.get(value, value)


def replace_in_toml(text: str, rng: random.Random) -> tuple[str, str]:
    """Return the text with the value of one line replaced by a hostile one, and which."""
    lines = text.splitlines()
    number = rng.choice([n for n, line in enumerate(lines) if " = " in line])
    key = lines[number].split(" = ")[0]
    name, value = rng.choice(list(VALUES.items()))
    lines[number] = f"{key} = {to_toml(value)}"
    return "\n".join(lines) + "\n", f"{key} = {name}"


def rename_in_toml(text: str, rng: random.Random) -> tuple[str, str]:
    """Return the text with one key removed, called otherwise or made a table, and which."""
    lines = text.splitlines()
    number = rng.choice([n for n, line in enumerate(lines) if " = " in line])
    key, value = lines[number].split(" = ", 1)
    name = rng.choice(["ESC", "line breaks", "a path", "a long text", "NUL"])
    changed = {
        "removed": "",
        "renamed": f"{VALUES[name]} = {value}",
        "a table": f"{key}.a.b = {value}",
        "twice": f"{lines[number]}\n{lines[number]}",
    }
    how = rng.choice(list(changed))
    lines[number] = changed[how]
    return "\n".join(lines) + "\n", f"{key} {how}"


def edit_text(path: Path, rng: random.Random, rename: bool) -> str:
    """Replace a value in a JSON, JSON-lines or TOML file, or rename a key; return which."""
    text = path.read_text()
    if path.suffix == ".toml":
        text, what = rename_in_toml(text, rng) if rename else replace_in_toml(text, rng)
    elif path.suffix == ".jsonl":
        lines = text.splitlines()
        number = rng.randrange(len(lines))
        edit = rename_in_json if rename else replace_in_json
        lines[number], what = edit(lines[number], rng)
        text = "\n".join(lines) + "\n"
    else:
        text, what = rename_in_json(text, rng) if rename else replace_in_json(text, rng)
    path.write_text(text)
    return f"{path.name}: {re.sub(r'[^ -~]', '?', what)[:80]}"
