"""Text by speaker: a file of JSON lines {"speaker": ..., "text": ...}; the task is to predict the next character.

A speaker's lines are joined in their order. The first four fifths are for training, the rest for testing, so no test
window shares a character with a training window. A window is `context` characters and begins every `stride` characters;
its label is the character that follows. Speakers are the groups; those without a window of each kind are left out.
Lines whose speaker is null belong to nobody (in the Shakespeare file they are stray headings) and are passed over.
Characters are numbered in their sorted order from 1; 0 stands for any that does not occur in the training text.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedwmsam.data.base import Array, Dataset, as_tokens, check_int_option
from fedwmsam.data.cache import Decoded
from fedwmsam.data.paths import DATA_ENV_VAR, cache_folder, candidate_folders
from fedwmsam.errors import InputError

SHAKESPEARE = "tinyshakespeare_by_speaker.jsonl"
UNKNOWN = "<unknown>"
LONGEST_CONTEXT = 100_000
MOST_CHARACTERS = 8_000_000_000  # in all windows together, which are kept one after the other
CodePoints = npt.NDArray[np.uint32]


def load_shakespeare(data_dir: Path | None, *, context: int = 40, stride: int = 5) -> Dataset:
    for folder in candidate_folders(data_dir, ("shakespeare",)):
        if (folder / SHAKESPEARE).is_file():
            return _load("shakespeare", folder / SHAKESPEARE, context, stride)
    raise InputError(
        f"shakespeare was not found, and has no public address: put {SHAKESPEARE} into {data_dir or cache_folder()} "
        f"or the folder that ${DATA_ENV_VAR} names"
    )


def load_jsonl(path: Path, *, context: int = 40, stride: int = 5) -> Dataset:
    return _load(path.stem, path, context, stride)


def _load(name: str, path: Path, context: int, stride: int) -> Dataset:
    context, stride = (
        check_int_option("context", context, 1, LONGEST_CONTEXT),
        check_int_option("stride", stride, 1, LONGEST_CONTEXT),
    )
    decoded = _decode(path, context, stride)
    notes = decoded.notes
    dropped = (
        f" ({notes['dropped']} speakers with too little text left out)" if notes["dropped"] else ""
    )
    return Dataset(
        name=name,
        train=decoded.split("train"),
        test=decoded.split("test"),
        classes=len(notes["characters"]),
        source=str(path) + dropped,
        prepare=as_tokens,
        class_names=tuple(notes["characters"]),
        group_names=tuple(notes["speakers"]),
    )


def _decode(path: Path, context: int, stride: int) -> Decoded:
    texts = _read_speakers(path)
    parts = {speaker: _split_train_test(text) for speaker, text in sorted(texts.items())}
    parts = {speaker: pair for speaker, pair in parts.items() if min(map(len, pair)) > context}
    if not parts:
        raise InputError(
            f"{path} has no speaker with enough text for windows of {context} characters to train and to test, "
            f"expected at least {5 * (context + 1)} characters from one: shorten the context"
        )
    if (
        sum(len(part) for pair in parts.values() for part in pair) // stride * context
        > MOST_CHARACTERS
    ):
        raise InputError(
            f"{path} gives windows of more than {MOST_CHARACTERS} characters at context {context} and stride {stride}: "
            "raise the stride or shorten the context"
        )
    characters: CodePoints = np.unique(np.concatenate([train for train, _ in parts.values()]))
    arrays: dict[str, Array] = {}
    for index, part in enumerate(("train", "test")):
        windows = [
            _sliding_windows(_encode(pair[index], characters), context, stride)
            for pair in parts.values()
        ]
        joined = np.concatenate(windows)
        arrays[f"{part}_inputs"] = np.ascontiguousarray(joined[:, :-1])
        arrays[f"{part}_labels"] = joined[:, -1].astype(np.int64)
        arrays[f"{part}_groups"] = np.repeat(np.arange(len(windows)), [len(own) for own in windows])
    notes = {
        "characters": [UNKNOWN, *map(chr, characters.tolist())],
        "speakers": list(parts),
        "dropped": len(texts) - len(parts),
    }
    return Decoded(arrays, notes)


def _read_speakers(path: Path) -> dict[str, str]:
    """The whole text of each speaker."""
    lines: dict[str, list[str]] = {}
    for number, line in _lines(path):
        try:
            entry = json.loads(line)
            speaker, text = entry["speaker"], entry["text"]
            for value in (speaker if speaker is not None else "", text):
                value.encode(
                    "utf-8"
                )  # refuses what is no text, and half characters, which JSON can express
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f'{path}, line {number}: expected {{"speaker": "...", "text": "..."}} but found '
                f"{line[:60].decode('utf-8', 'replace').strip()!r}: correct the line"
            ) from error
        if speaker is not None:
            lines.setdefault(speaker, []).append(text)
    return {speaker: "\n".join(own) for speaker, own in lines.items()}


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}): check the file"
        ) from error


def _split_train_test(text: str) -> tuple[CodePoints, CodePoints]:
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    end = len(codes) * 4 // 5
    return codes[:end], codes[end:]


def _encode(codes: CodePoints, characters: CodePoints) -> Array:
    """Characters as their numbers, in the smallest type that holds them all."""
    places = np.minimum(np.searchsorted(characters, codes), len(characters) - 1)
    numbers = np.where(characters[places] == codes, places + 1, 0)
    count = len(characters)
    return numbers.astype(np.uint8 if count < 1 << 8 else np.int16 if count < 1 << 15 else np.int32)


def _sliding_windows(numbers: Array, context: int, stride: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(numbers, context + 1)[::stride]
