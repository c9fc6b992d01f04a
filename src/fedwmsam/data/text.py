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
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
MAX_VOCABULARY = (1 << 15) - 1
"""Different characters of the training text, so that two bytes hold the number of each."""
MAX_LINE_BYTES = 1 << 24
"""Bytes of one line: what JSON expresses takes thirty times as much memory as its text."""
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
    speakers = [name for name in sorted(texts) if _has_windows(texts[name], context)]
    dropped = len(texts) - len(speakers)
    texts = {name: texts[name] for name in speakers}
    _check_window_count(path, texts, context, stride)
    characters = _training_characters(texts)
    if len(characters) > MAX_VOCABULARY:
        raise InputError(
            f"{path} has {len(characters)} different characters, expected at most "
            f"{MAX_VOCABULARY} in a text: leave the rare ones out"
        )
    numbers = _number_texts(texts, characters)
    arrays: dict[str, Array] = {}
    for part in ("train", "test"):
        pieces = [_select_part(speaker_numbers, part) for speaker_numbers in numbers]
        counts = [_window_count(len(piece), context, stride) for piece in pieces]
        arrays[f"{part}_inputs"] = _gather_windows(pieces, counts, context, stride)
        labels = [piece[context::stride] for piece in pieces]
        arrays[f"{part}_labels"] = np.concatenate(labels).astype(np.int64)
        arrays[f"{part}_groups"] = np.repeat(np.arange(len(pieces)), counts)
    metadata = {
        "characters": [UNKNOWN, *map(chr, characters.tolist())],
        "speakers": speakers,
        "dropped": dropped,
    }
    return Decoded(arrays, metadata)


def _check_window_count(path: Path, texts: Mapping[str, str], context: int, stride: int) -> None:
    if not texts:
        raise InputError(
            f"{path} has no speaker with enough text for windows of {context} characters to train "
            f"and to test, expected at least {5 * (context + 1)} characters from one: "
            "shorten the context"
        )
    text_length = sum(map(len, texts.values()))
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
    """Yield the lines that are not empty, with their numbers.

    Raise InputError if one is so long that what it may hold would fill memory.
    """
    try:
        with path.open("rb") as stream:
            lines = iter(partial(stream.readline, MAX_LINE_BYTES), b"")
            for number, line in enumerate(lines, start=1):
                if len(line) == MAX_LINE_BYTES:
                    raise InputError(
                        f"{path}, line {number}: {MAX_LINE_BYTES} bytes or more, expected fewer: "
                        "divide the text, a speaker's lines are joined"
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}): check the file"
        ) from error


def _train_length(length: int) -> int:
    """Return how many of that many characters of a speaker are for training."""
    return length * 4 // 5


def _has_windows(text: str, context: int) -> bool:
    """Return whether a speaker's text gives a window to train and one to test."""
    train = _train_length(len(text))
    return min(train, len(text) - train) > context


def _select_part(numbers: Array, part: str) -> Array:
    end = _train_length(len(numbers))
    return numbers[:end] if part == "train" else numbers[end:]


def _code_points(text: str) -> CodePoints:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _training_characters(texts: Mapping[str, str]) -> CodePoints:
    """Return the code points of the training text, each once and in their order."""
    occurs = np.zeros(sys.maxunicode + 1, np.bool_)
    for text in texts.values():
        occurs[_code_points(text[: _train_length(len(text))])] = True
    return np.flatnonzero(occurs).astype(np.uint32)


def _number_texts(texts: dict[str, str], characters: CodePoints) -> list[Array]:
    """Return the texts as class numbers, in the smallest type that holds them all.

    Each text is let go when it has been numbered, as the windows need the memory.
    """
    number_type = np.uint8 if len(characters) < 1 << 8 else np.int16
    class_numbers = np.zeros(sys.maxunicode + 1, number_type)
    class_numbers[characters] = np.arange(1, len(characters) + 1)
    return [class_numbers[_code_points(texts.pop(name))] for name in list(texts)]


def _window_count(length: int, context: int, stride: int) -> int:
    """Return how many windows with a character after them a text of that length gives."""
    return -(-(length - context) // stride)


def _gather_windows(
    pieces: Sequence[Array], counts: Sequence[int], context: int, stride: int
) -> Array:
    """Return the windows of all pieces, one after the other."""
    gathered = np.empty((sum(counts), context), pieces[0].dtype)
    end = 0
    for piece, count in zip(pieces, counts, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(piece, context)[::stride]
        gathered[end : end + count] = windows[:count]
        end += count
    return gathered
