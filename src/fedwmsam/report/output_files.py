"""Files at paths that a user named: complete, or what was there before stays."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedwmsam.errors import InputError
from fedwmsam.files import atomic_replace


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield the path to write to; what is written there becomes `path` when the block ends.

    The user has named the path: a link leads to the file that is replaced, and what is no file,
    such as /dev/stdout, is written as it is. Raise InputError if that cannot be done.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with writing_errors(path):
            yield path
    else:
        with own_file(target) as temporary:
            yield temporary


@contextlib.contextmanager
def own_file(path: Path) -> Iterator[Path]:
    """Yield the path to write to, as `output_file` does, where the program has chosen the name.

    Folders that are missing are made. A link of that name is replaced, not followed: it may have
    been planted in a run folder. Raise InputError if the file cannot be written.
    """
    with writing_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replace(path) as temporary:
            yield temporary


@contextlib.contextmanager
def writing_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into InputError, which says what cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"Cannot write {path}: {reason}; name another place.") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file over whatever is there; raise InputError if it cannot be written."""
    with output_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Write text files over whatever is there, and return their paths."""
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)
