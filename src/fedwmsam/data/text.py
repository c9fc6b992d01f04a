"""Loader of text by speaker, in JSON lines; the task is to predict the next character.

A line is {"speaker": ..., "text": ...}, and the lines of a speaker are joined in their order. The
first four fifths are for training, the rest for testing, so no test window shares a character with
a training window. A window is `context` characters and begins every `stride` characters; its label
is the character that follows. Speakers are the groups; those without a window of each kind are left
out. Lines whose speaker is null belong to nobody (in the Shakespeare file they are stray headings)
and are passed over. Characters are numbered in their sorted order from 1; 0 stands for any that
does not occur in the training text.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedwmsam.data.base import Array, Dataset, as_tokens, check_int_option
from fedwmsam.data.cache import Decoded
from fedwmsam.data.paths import DATA_ENV_VAR, cache_folder, candidate_folders
from fedwmsam.errors import InputError

SHAKESPEARE = "tinyshakespeare_by_speaker.jsonl"
UNKNOWN = "<unknown>"
"""The name of the class 0."""
MAX_CONTEXT = 100_000
"""The limit of the options `context` and `stride`."""
MAX_CHARACTERS = 8_000_000_000
"""Characters in all windows together, which are stored one after the other."""
CodePoints = npt.NDArray[np.uint32]


def load_shakespeare(data_dir: Path | None, *, context: int = 40, stride: int = 5) -> Dataset:
    """Return Tiny Shakespeare by speaker, in windows of `context` characters.

    Raise InputError if its file is not found, or as `load_jsonl` does.
    """
    for folder in candidate_folders(data_dir, ("shakespeare",)):
        if (folder / SHAKESPEARE).is_file():
            return _load("shakespeare", folder / SHAKESPEARE, context, stride)
    raise InputError(
        f"shakespeare was not found, and has no public address: put {SHAKESPEARE} into "
        f"{data_dir or cache_folder()} or the folder that ${DATA_ENV_VAR} names"
    )


def load_jsonl(path: Path, *, context: int = 40, stride: int = 5) -> Dataset:
    """Return a file of JSON lines by speaker, in windows of `context` characters.

    Raise InputError if an option is out of range, if a line is damaged, or if the windows are none
    or too many.
    """
    return _load(path.stem, path, context, stride)


def _load(name: str, path: Path, context: int, stride: int) -> Dataset:
    context = check_int_option("context", context, 1, MAX_CONTEXT)
    stride = check_int_option("stride", stride, 1, MAX_CONTEXT)
    decoded = _decode(path, context, stride)
    metadata = decoded.metadata
    source = str(path)
    if metadata["dropped"]:
        source += f" ({metadata['dropped']} speakers with too little text left out)"
    return Dataset(
        name=name,
        train=decoded.split("train"),
        test=decoded.split("test"),
        num_classes=len(metadata["characters"]),
        source=source,
        transform=as_tokens,
        class_names=tuple(metadata["characters"]),
        group_names=tuple(metadata["speakers"]),
    )


def _decode(path: Path, context: int, stride: int) -> Decoded:
    texts = _read_speakers(path)
    parts = {speaker: _split_train_test(text) for speaker, text in sorted(texts.items())}
    parts = {speaker: pair for speaker, pair in parts.items() if min(map(len, pair)) > context}
    _check_window_count(path, parts, context, stride)
    characters: CodePoints = np.unique(np.concatenate([train for train, _ in parts.values()]))
    arrays: dict[str, Array] = {}
    for index, part in enumerate(("train", "test")):
        windows = [
            _sliding_windows(_encode(pair[index], characters), context, stride)
            for pair in parts.values()
        ]
        window_counts = [len(speaker_windows) for speaker_windows in windows]
        joined = np.concatenate(windows)
        arrays[f"{part}_inputs"] = np.ascontiguousarray(joined[:, :-1])
        arrays[f"{part}_labels"] = joined[:, -1].astype(np.int64)
        arrays[f"{part}_groups"] = np.repeat(np.arange(len(windows)), window_counts)
    metadata = {
        "characters": [UNKNOWN, *map(chr, characters.tolist())],
        "speakers": list(parts),
        "dropped": len(texts) - len(parts),
    }
    return Decoded(arrays, metadata)


def _check_window_count(
    path: Path, parts: Mapping[str, tuple[CodePoints, CodePoints]], context: int, stride: int
) -> None:
    if not parts:
        raise InputError(
            f"{path} has no speaker with enough text for windows of {context} characters to train "
            f"and to test, expected at least {5 * (context + 1)} characters from one: "
            "shorten the context"
        )
    text_length = sum(len(train) + len(test) for train, test in parts.values())
    if text_length // stride * context > MAX_CHARACTERS:
        raise InputError(
            f"{path} gives windows of more than {MAX_CHARACTERS} characters at context {context} "
            f"and stride {stride}: raise the stride or shorten the context"
        )


def _read_speakers(path: Path) -> dict[str, str]:
    """Return the joined text of each speaker, or raise InputError for a line that is damaged."""
    lines: dict[str, list[str]] = {}
    for number, line in _numbered_lines(path):
        try:
            entry = json.loads(line)
            speaker = entry["speaker"]
            text = entry["text"]
            for value in (speaker if speaker is not None else "", text):
                # Raises for what is no text, and for half characters, which JSON can express.
                value.encode("utf-8")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f'{path}, line {number}: expected {{"speaker": "...", "text": "..."}} but found '
                f"{line[:60].decode('utf-8', 'replace').strip()!r}: correct the line"
            ) from error
        if speaker is not None:
            lines.setdefault(speaker, []).append(text)
    return {speaker: "\n".join(texts) for speaker, texts in lines.items()}


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers."""
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
    """Return characters as their class numbers, in the smallest type that holds them all."""
    positions = np.minimum(np.searchsorted(characters, codes), len(characters) - 1)
    numbers = np.where(characters[positions] == codes, positions + 1, 0)
    if len(characters) < 1 << 8:
        return numbers.astype(np.uint8)
    if len(characters) < 1 << 15:
        return numbers.astype(np.int16)
    return numbers.astype(np.int32)


def _sliding_windows(numbers: Array, context: int, stride: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(numbers, context + 1)[::stride]
