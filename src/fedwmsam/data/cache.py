"""Decoded pictures, written once and mapped into memory by every later run: to decode them again takes minutes.

An entry is a folder of .npy files and a manifest, below the user's cache. Its name is a hash of the source files'
paths, sizes and times of change and of the options, so other files or options never meet an old entry. It is written
beside its place and renamed into it: another process sees a whole entry or none. Nothing needs the cache: it may be
deleted at any time, and where it cannot be written everything works without it, only more slowly.
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

VERSION = 1  # of what the readers decode: raise it when they decode the same files differently
MANIFEST = "manifest.json"
MAX_CHECKSUM_BYTES = (
    8 << 20
)  # bytes; larger arrays are trusted by their size, as checking would read them whole
STALE_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Decoded:
    arrays: Mapping[str, Array]
    notes: Mapping[str, Any]  # what JSON can hold: names of classes and groups, counts

    def split(self, part: str) -> Split:
        arrays = self.arrays
        return make_split(
            arrays[f"{part}_inputs"], arrays[f"{part}_labels"], arrays.get(f"{part}_groups")
        )


def load_or_decode(
    kind: str, files: Iterable[Path], options: Mapping[str, object], decode: Callable[[], Decoded]
) -> Decoded:
    """What `decode` makes of the files, from the cache if it has been made before."""
    folder = cache_folder() / "decoded" / _cache_key(kind, files, options)
    found = _read_entry(folder)
    if found is None:
        fresh = decode()
        _write_entry(folder, fresh)
        found = (
            _read_entry(folder) or fresh
        )  # mapped if it could be written, which frees the memory of the fresh one
    return found


def _cache_key(kind: str, files: Iterable[Path], options: Mapping[str, object]) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, kind, dict(options)], sort_keys=True).encode())
    for path in files:
        facts = path.stat()
        digest.update(
            os.fsencode(path.absolute()) + f"\0{facts.st_size} {facts.st_mtime_ns}\0".encode()
        )
    return f"{kind}-{digest.hexdigest()[:32]}"


def _read_entry(folder: Path) -> Decoded | None:
    """The entry, or None if there is none or it is damaged."""
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
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    except OSError:
        return
    try:
        _write_files(part, decoded)
        if folder.exists():  # it was found damaged; away from its place first, as a rename only replaces empty folders
            folder.replace(part.with_name(part.name + "-damaged"))
        part.replace(folder)
    except OSError:
        pass  # a full disk, or another process was faster: whatever is in place now is checked when it is read
    finally:
        for leftover in (part, part.with_name(part.name + "-damaged")):
            shutil.rmtree(leftover, ignore_errors=True)


def _write_files(part: Path, decoded: Decoded) -> None:
    for name, array in decoded.arrays.items():
        with (part / f"{name}.npy").open("wb") as stream:
            np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
            stream.flush()
            os.fsync(
                stream.fileno()
            )  # otherwise a power failure could leave a renamed entry of empty files
    content = {
        "arrays": {name: _array_signature(array) for name, array in decoded.arrays.items()},
        "notes": dict(decoded.notes),
    }
    text = json.dumps(content)
    (part / MANIFEST).write_text(
        f"[{text}, {json.dumps(_checksum(text.encode()))}]", encoding="utf-8"
    )


def _array_signature(array: Array) -> list[Any]:
    checked = (
        zlib.crc32(np.ascontiguousarray(array).data) if array.nbytes <= MAX_CHECKSUM_BYTES else 0
    )
    return [array.dtype.str, list(array.shape), checked]


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _remove_stale(folder: Path) -> None:
    """Remove what a killed process left behind; a younger one may still be being written."""
    for leftover in folder.glob(".part-*"):
        if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
