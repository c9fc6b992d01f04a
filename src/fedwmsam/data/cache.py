"""The cache of decoded images, written once and mapped into memory by every later run.

To decode them again would take minutes. An entry is a folder of .npy files and a manifest, below
the user's cache. Its name is a hash of the source files' paths, sizes and times of change and of
the options, so other files or options never meet an old entry. It is written to a temporary folder
that is then renamed: another process sees a complete entry or none. Nothing needs the cache: it may
be deleted at any time, and where it cannot be written everything works without it, only more
slowly.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedwmsam.data.base import Array, Split, make_split
from fedwmsam.data.npy import memmap_npy
from fedwmsam.data.paths import cache_folder
from fedwmsam.errors import InputError

VERSION = 1
"""The version of what the loaders decode: raise it when they decode the same files differently."""
MANIFEST = "manifest.json"
MAX_CHECKSUM_BYTES = 8 << 20
"""Bytes of an array up to which its content is checked.

Larger ones are trusted by their size, as checking would read all of them.
"""
STALE_SECONDS = 24 * 3600
"""Seconds after which a temporary folder counts as left behind by a killed process."""


@dataclass(frozen=True)
class Decoded:
    """The decoded arrays of a data set, as they are cached."""

    arrays: Mapping[str, Array]
    metadata: Mapping[str, Any]
    """Values that JSON can hold: names of classes and groups, counts."""

    def split(self, part: str) -> Split:
        """Return the split "train" or "test"."""
        arrays = self.arrays
        return make_split(
            arrays[f"{part}_inputs"], arrays[f"{part}_labels"], arrays.get(f"{part}_groups")
        )


def load_or_decode(
    kind: str, files: Iterable[Path], options: Mapping[str, object], decode: Callable[[], Decoded]
) -> Decoded:
    """Return what `decode` makes of the files, from the cache if it has been made before."""
    folder = cache_folder() / "decoded" / _cache_key(kind, files, options)
    cached = _read_entry(folder)
    if cached is not None:
        return cached
    decoded = decode()
    _write_entry(folder, decoded)
    # The mapped arrays, if they could be written, free the memory of the decoded ones.
    return _read_entry(folder) or decoded


def _cache_key(kind: str, files: Iterable[Path], options: Mapping[str, object]) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, kind, dict(options)], sort_keys=True).encode())
    for path in files:
        status = path.stat()
        digest.update(
            os.fsencode(path.absolute()) + f"\0{status.st_size} {status.st_mtime_ns}\0".encode()
        )
    return f"{kind}-{digest.hexdigest()[:32]}"


def _read_entry(folder: Path) -> Decoded | None:
    """Return the entry, or None if there is none or it is damaged."""
    try:
        content, checksum = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if _checksum(json.dumps(content).encode()) != checksum:
            return None
        arrays = {name: memmap_npy(folder / f"{name}.npy") for name in content["arrays"]}
        if any(
            _array_signature(array) != content["arrays"][name] for name, array in arrays.items()
        ):
            return None
        return Decoded(arrays, content["notes"])
    except (OSError, InputError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _write_entry(folder: Path, decoded: Decoded) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    except OSError:
        return
    damaged = temporary.with_name(temporary.name + "-damaged")
    try:
        _write_files(temporary, decoded)
        if folder.exists():
            # The entry was found damaged. It is moved away first, as a rename only replaces
            # empty folders.
            folder.replace(damaged)
        temporary.replace(folder)
    except OSError:
        # The disk is full, or another process was faster: what is there now is checked when it is
        # read.
        pass
    finally:
        for leftover in (temporary, damaged):
            shutil.rmtree(leftover, ignore_errors=True)


def _write_files(folder: Path, decoded: Decoded) -> None:
    for name, array in decoded.arrays.items():
        with (folder / f"{name}.npy").open("wb") as stream:
            np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
            stream.flush()
            # Otherwise a power failure could leave a renamed entry of empty files.
            os.fsync(stream.fileno())
    content = {
        "arrays": {name: _array_signature(array) for name, array in decoded.arrays.items()},
        "notes": dict(decoded.metadata),
    }
    text = json.dumps(content)
    (folder / MANIFEST).write_text(
        f"[{text}, {json.dumps(_checksum(text.encode()))}]", encoding="utf-8"
    )


def _array_signature(array: Array) -> list[Any]:
    checksum = 0
    if array.nbytes <= MAX_CHECKSUM_BYTES:
        checksum = zlib.crc32(np.ascontiguousarray(array).data)
    return [array.dtype.str, list(array.shape), checksum]


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _remove_stale(folder: Path) -> None:
    """Remove what a killed process left behind; younger folders may still be being written."""
    for leftover in folder.glob(".part-*"):
        if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
