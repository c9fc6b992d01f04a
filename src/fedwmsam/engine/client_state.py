"""What the server remembers about clients: kept only for those that took part, in RAM up to a budget, else on disk.

On disk it is a file of equal slots that a crash at any instant leaves usable. A row is never changed where it lies: its
next version goes to a free slot, and a slot is free only when nothing refers to it any more, neither a memory nor a
checkpoint that is kept. Rows are read and written by plain calls instead of through a mapping, so that a full disk or a
bad sector is an error and not the end of the process. A memory is a value: a round makes a new one, so that a round
given up half-way leaves no trace.
"""

import errno
import hashlib
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError, to_device
from fedwmsam.errors import InputError
from fedwmsam.files import sync_folder
from fedwmsam.methods.vectors import Vectors

PAGE = 4096
"""Slots begin on pages of their own: writing one can never tear another."""
DIGEST = 16


@dataclass(frozen=True)
class RowLayout:
    """What every row of a run holds: names, types and shapes, in the order they lie in a slot."""

    parts: dict[str, tuple[torch.dtype, tuple[int, ...]]]

    @classmethod
    def of(cls, row: Vectors) -> "RowLayout":
        return cls({name: (value.dtype, tuple(value.shape)) for name, value in row.items()})

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return sum(dtype.itemsize * prod(shape) for dtype, shape in self.parts.values())

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return -(-self.size // PAGE) * PAGE

    def empty(self) -> Vectors:
        """A row to read into, in torch's own aligned memory: vector instructions may round differently on other."""
        return {
            name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in self.parts.items()
        }

    def notes(self) -> dict[str, Any]:
        return {
            name: [str(dtype).removeprefix("torch."), shape]
            for name, (dtype, shape) in self.parts.items()
        }

    @classmethod
    def noted(cls, notes: dict[str, Any]) -> "RowLayout":
        """Raises Damaged where the notes describe no row."""
        try:
            parts = {
                name: (getattr(torch, dtype), tuple(shape))
                for name, (dtype, shape) in notes.items()
            }
            whole = all(
                isinstance(dtype, torch.dtype) and min(shape, default=0) >= 0
                for dtype, shape in parts.values()
            )
        except (AttributeError, TypeError, ValueError):
            whole = False
        if not whole:
            raise DamagedFileError("A checkpoint describes no rows that could be")
        return cls(parts)


class FileSlot:
    """One version of a row in the file; the slot is free again when the last reference to it is gone."""

    __slots__ = ("_free", "digest", "number")

    def __init__(self, number: int, digest: bytes, free: list[int]) -> None:
        self.number, self.digest, self._free = number, digest, free

    def __del__(self) -> None:
        self._free.append(self.number)


class Store:
    """The file: in a run's folder, or without a name, so that it disappears with the process however that ends."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.layout = RowLayout({})
        self.count = 0
        """Slots in use or free; what the file holds beyond them is forgotten."""
        self.free: list[int] = []
        self._file: FileIO | None = None

    def admit(self, row: Vectors) -> None:
        """The first row says what all rows hold."""
        layout = RowLayout.of(row)
        self.layout = self.layout if self.layout.parts else layout
        if layout != self.layout:
            raise InputError(
                f"A client's memory was {describe_layout(self.layout)} and is now {describe_layout(layout)}; a method must keep "
                "its names, types and shapes for the whole run."
            )

    def write(self, row: Vectors) -> FileSlot:
        """Put a row into a free slot; it is durable after the next `sync`."""
        if not self.free:
            self.free.append(self.count)
            self.count += 1
        slot = FileSlot(self.free.pop(), b"", self.free)  # free again should writing fail
        parts = [as_bytes(row[name]) for name in self.layout.parts]
        slot.digest = digest_of(parts) if self.path else b""  # only a checkpoint needs it
        with self.file() as file:
            file.seek(slot.number * self.layout.stride)
            for part in parts:
                write_whole(file, part)
        return slot

    def reaches(self, number: int) -> bool:
        """Whether the file is large enough to hold this slot."""
        return (
            0
            <= number * self.layout.stride
            <= os.fstat(self.opened().fileno()).st_size - self.layout.size
        )

    def read(self, number: int) -> Vectors:
        if not self.reaches(number):  # before memory is taken for a size that may be a mere claim
            raise cut_short(self.path)
        row = self.layout.empty()
        with self.file() as file:
            file.seek(number * self.layout.stride)
            for value in row.values():
                read_whole(file, as_bytes(value))
        return row

    def sync(self) -> None:
        if self._file is not None:
            with self.file() as file:
                os.fsync(file.fileno())

    def describe(self, slots: Mapping[int, FileSlot]) -> Checkpoint:
        """What a checkpoint has to hold so that these rows are found again."""
        digests = np.array([slot.digest for slot in slots.values()], dtype=f"V{DIGEST}")
        index = {
            "clients": torch.tensor(list(slots), dtype=torch.int64),
            "slots": torch.tensor([slot.number for slot in slots.values()], dtype=torch.int64),
            "digests": torch.from_numpy(digests.view(np.uint8)),
        }
        return Checkpoint({"memory": index}, {"memory": self.layout.notes()})

    def check(self, found: Checkpoint) -> None:
        """Raises Damaged unless every row that the checkpoint names is as it was written."""
        self.layout = RowLayout.noted(found.notes["memory"])
        for client, number, digest in index_of(found):
            self.opened()  # a file that may not be read is no damaged one
            try:
                whole = digest_of(as_bytes(value) for value in self.read(number).values()) == digest
            except OSError:  # cut short, or a bad sector
                whole = False
            if not whole:
                raise DamagedFileError(
                    f"{self.path} is damaged where the memory of client {client} lies"
                )

    def adopt(self, kept: Iterable[Checkpoint]) -> list[dict[int, FileSlot]]:
        """Each checkpoint's slots by client, all others are free; where two disagree about a row the last is right."""
        indexes = [index_of(found) for found in kept]
        digests = {number: digest for index in indexes for _, number, digest in index}
        self.count = max(digests, default=-1) + 1
        self.free = [number for number in range(self.count) if number not in digests]
        slots = {number: FileSlot(number, digest, self.free) for number, digest in digests.items()}
        return [{client: slots[number] for client, number, _ in index} for index in indexes]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextmanager
    def file(self) -> Iterator[FileIO]:
        """The open file; errors name it, as those of `open` do."""
        try:
            yield self.opened()
        except OSError as error:
            error.filename = error.filename or str(self.path or temporary_folder())
            raise

    def opened(self) -> FileIO:
        if self._file is None:
            self._file = named_file(self.path) if self.path else unnamed_file()
        return self._file


def named_file(path: Path) -> FileIO:
    if path.exists():
        return FileIO(path, "r+")
    file = FileIO(path, "x+")
    sync_folder(path.parent)
    return file


def unnamed_file() -> FileIO:
    with tempfile.TemporaryFile(dir=temporary_folder()) as file:
        return FileIO(os.dup(file.fileno()), "r+")


def write_whole(file: FileIO, part: memoryview) -> None:
    while len(part):  # one call writes at most 2 GB
        part = part[file.write(part) :]


def read_whole(file: FileIO, part: memoryview) -> None:
    while len(part):
        count = file.readinto(part)
        if not count:
            raise cut_short()
        part = part[count:]


def cut_short(path: Path | None = None) -> OSError:
    return OSError(errno.EIO, "The file is cut short", str(path) if path else None)


def index_of(found: Checkpoint) -> list[tuple[int, int, bytes]]:
    """Client, slot and digest of each row that a checkpoint names; raises Damaged if it does not."""
    try:
        index = found.bundles["memory"]
        digests = index["digests"].numpy().view(f"V{DIGEST}").tolist()
        return list(zip(index["clients"].tolist(), index["slots"].tolist(), digests, strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError("A checkpoint does not say where its clients' rows lie") from error


def as_bytes(value: torch.Tensor) -> memoryview:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def digest_of(parts: Iterable[memoryview]) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        digest.update(part)
    return digest.digest()


def describe_layout(layout: RowLayout) -> str:
    return ", ".join(
        f"{name} {dtype}{list(shape)}" for name, (dtype, shape) in layout.parts.items()
    )


def temporary_folder() -> str:
    """Where large files lie on a disk: /tmp is in RAM on many systems."""
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK):
        return "/var/tmp"
    return tempfile.gettempdir()


CPU = torch.device("cpu")


# Rows in memory


@dataclass(slots=True)
class ClientRow:
    """One version of a client's row: in RAM, in the store, or both once it was saved."""

    vectors: Vectors | None = None
    slot: FileSlot | None = None


@dataclass(frozen=True, eq=False)
class ClientMemory(Mapping[int, Vectors]):
    store: Store = field(default_factory=Store)
    budget: float = math.inf
    """Bytes of rows in RAM, those included that a round is about to replace."""
    device: torch.device = CPU
    rows: Mapping[int, ClientRow] = field(default_factory=dict)

    def __getitem__(self, client: int) -> Vectors:
        row = self.rows[client]
        if row.vectors is not None:
            return row.vectors
        assert row.slot
        return to_device(self.store.read(row.slot.number), self.device)

    def __contains__(self, client: object) -> bool:
        return client in self.rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def in_ram(self) -> int:
        return sum(row.vectors is not None for row in self.rows.values())

    def changing(self) -> "MemoryBuilder":
        return MemoryBuilder(self)

    def stored(self, slots: Mapping[int, FileSlot]) -> "ClientMemory":
        """The memory of which all rows are on disk, in these slots."""
        return replace(self, rows={client: ClientRow(slot=slot) for client, slot in slots.items()})

    def save(self) -> dict[int, FileSlot]:
        """Make every row durable, writing only those that are not on disk yet; where they are."""
        slots = {}
        for client, row in self.rows.items():
            if row.slot is None:
                assert row.vectors
                row.slot = self.store.write(row.vectors)
            slots[client] = row.slot
        self.store.sync()
        return slots


class MemoryBuilder:
    """A memory in the making: rows come one by one, and none has to stay in RAM."""

    def __init__(self, memory: ClientMemory) -> None:
        self.memory = memory
        self.rows: dict[int, ClientRow] = {}
        self.in_ram = memory.in_ram

    def put(self, client: int, vectors: Vectors) -> None:
        """Replace a client's row; one of whom nothing is kept gets none."""
        if not vectors:
            return
        store = self.memory.store
        store.admit(vectors)
        if (self.in_ram + 1) * store.layout.size <= self.memory.budget:
            self.rows[client] = ClientRow(vectors)
            self.in_ram += 1
        else:
            self.rows[client] = ClientRow(slot=store.write(vectors))

    def done(self) -> ClientMemory:
        return replace(self.memory, rows={**self.memory.rows, **self.rows})
