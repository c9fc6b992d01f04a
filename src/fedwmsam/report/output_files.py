"""Files at paths that a user named: complete, or what was there before stays."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedwmsam.errors import InputError
from fedwmsam.files import atomic_replace


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield the path to write to; what is written there becomes `path` when the block ends.

    Folders that are missing are made. A link leads to the file that is replaced, and what is no
    file, such as /dev/stdout, is written as it is. Raise InputError if that cannot be done.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()
        if target.exists() and not target.is_file():
            yield path
        else:
            with atomic_replace(target) as temporary:
                yield temporary
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"Cannot write {path}: {reason}; name another place.") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file over whatever is there; raise InputError if it cannot be written."""
    with output_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
