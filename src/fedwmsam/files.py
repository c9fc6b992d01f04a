"""Files that are either whole or absent, whenever a process is killed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Write beside, flush, rename, flush the folder: at any instant `path` is the old file or the whole new one."""
    beside = path.with_name(f".{path.name}.new")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
