"""Files that are complete or absent, whenever a process is killed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that takes the place of `path` when the block ends.

    The file is flushed to the disk before it is renamed and the folder after that, so that at any
    instant `path` is the old file or the complete new one. If the block raises, the old one stays.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the folder's list of files to the disk, so that a renamed file keeps its new name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
