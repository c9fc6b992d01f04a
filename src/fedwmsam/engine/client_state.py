"""What the server remembers about clients, in RAM up to a budget and otherwise on disk.

A *row* is what the server keeps for one client: a bundle of vectors with the same names, types and
shapes for every client. Only clients that took part have one. The *store* is a file of equal
*slots*, each large enough for one row. A ClientMemory maps clients to rows; a row is in RAM, in a
slot of the store, or both.

A crash at any instant leaves the store usable: a row is never changed in place. Its next version
goes to a free slot, and a slot is free only when nothing refers to it any more, neither a memory
nor a checkpoint that is kept. Rows are read and written by plain calls instead of through a memory
map, so that a full disk or a bad sector is an error and not the end of the process. A memory is a
value: a round makes a new one, so that a round given up half-way leaves no trace.
"""

import errno
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import RawIOBase
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError, to_device
from fedwmsam.errors import InputError
from fedwmsam.files import large_file_folder, open_to_update, open_unnamed
from fedwmsam.methods.vectors import Vectors

PAGE = 4096
"""Bytes of a disk page. Slots begin on pages of their own: writing one can never tear another."""
MAX_VERSIONS = 16
"""Slots per row at most: two checkpoints and two memories hold a version of a row each."""
DIGEST_BYTES = 16
"""Bytes of the digest of a row."""


@dataclass(frozen=True)
class RowLayout:
    """The names, types and shapes of the vectors in every row, in the order they have in a slot."""

    parts: dict[str, tuple[torch.dtype, tuple[int, ...]]]

    @classmethod
    def from_row(cls, row: Vectors) -> "RowLayout":
        """Return the layout that this row has."""
        return cls({name: (value.dtype, tuple(value.shape)) for name, value in row.items()})

    @property
    def size(self) -> int:
        """Return the bytes of a row."""
        return sum(dtype.itemsize * prod(shape) for dtype, shape in self.parts.values())

    @property
    def stride(self) -> int:
        """Return the bytes from the start of one slot to that of the next."""
        return -(-self.size // PAGE) * PAGE

    def allocate_row(self) -> Vectors:
        """Return a row of undefined content to read into.

        It is in memory that torch has aligned; vector instructions may round differently on other.
        """
        return {
            name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in self.parts.items()
        }

    def to_notes(self) -> dict[str, Any]:
        """Return the layout as a checkpoint's notes hold it."""
        return {
            name: [str(dtype).removeprefix("torch."), shape]
            for name, (dtype, shape) in self.parts.items()
        }

    @classmethod
    def from_notes(cls, notes: Any) -> "RowLayout":
        """Return the layout that `to_notes` wrote; raise DamagedFileError if it is none."""
        try:
            parts = {
                name: (getattr(torch, dtype), tuple(shape))
                for name, (dtype, shape) in notes.items()
            }
            is_valid = all(
                isinstance(dtype, torch.dtype) and is_shape(shape)
                for dtype, shape in parts.values()
            )
        except (AttributeError, TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise DamagedFileError("A checkpoint describes no rows that could be")
        return cls(parts)


def is_shape(sizes: tuple[Any, ...]) -> bool:
    """Return whether these are sizes of a tensor: whole numbers that are not negative."""
    return all(type(size) is int and size >= 0 for size in sizes)


class FileSlot:
    """A slot that holds one version of a row; it is free again when its last reference is gone."""

    __slots__ = ("_free_slots", "digest", "number")

    def __init__(self, number: int, digest: bytes, free_slots: list[int]) -> None:
        self.number = number
        self.digest = digest
        self._free_slots = free_slots

    def __del__(self) -> None:
        self._free_slots.append(self.number)


class Store:
    """The file of slots, in a run's folder or without a name.

    A file without a name disappears with the process, however that ends.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.layout = RowLayout({})
        self.slot_count = 0
        """Slots in use or free; what the file holds beyond them is ignored."""
        self.free_slots: list[int] = []
        self._file: RawIOBase | None = None

    def check_layout(self, row: Vectors) -> None:
        """Raise InputError unless the row has the layout of the first row, which defines it."""
        layout = RowLayout.from_row(row)
        self.layout = self.layout if self.layout.parts else layout
        if layout != self.layout:
            raise InputError(
                f"A client's memory was {describe_layout(self.layout)} and is now "
                f"{describe_layout(layout)}; a method must keep "
                "its names, types and shapes for the whole run."
            )

    def write(self, row: Vectors) -> FileSlot:
        """Write a row to a free slot and return the slot; it is durable after the next `sync`."""
        if not self.free_slots:
            self.free_slots.append(self.slot_count)
            self.slot_count += 1
        # Should writing fail, the slot object is dropped, and its number is free again.
        slot = FileSlot(self.free_slots.pop(), b"", self.free_slots)
        parts = [as_bytes(row[name]) for name in self.layout.parts]
        slot.digest = digest_of(parts) if self.path else b""  # only a checkpoint needs it
        with self.file() as file:
            file.seek(slot.number * self.layout.stride)
            for part in parts:
                write_all(file, part)
        return slot

    def contains_slot(self, number: int) -> bool:
        """Return whether the file is large enough to hold this slot."""
        last_start = os.fstat(self.open_file().fileno()).st_size - self.layout.size
        return 0 <= number * self.layout.stride <= last_start

    def read(self, number: int) -> Vectors:
        """Return the row in a slot; raise OSError if the file does not hold it."""
        # Checked before memory is allocated for a size that a damaged checkpoint may merely claim.
        if not self.contains_slot(number):
            raise truncated_file_error(self.path)
        row = self.layout.allocate_row()
        with self.file() as file:
            file.seek(number * self.layout.stride)
            for value in row.values():
                read_all(file, as_bytes(value))
        return row

    def sync(self) -> None:
        """Make every row written so far durable."""
        if self._file is not None:
            with self.file() as file:
                os.fsync(file.fileno())

    def describe(self, slots: Mapping[int, FileSlot]) -> Checkpoint:
        """Return what a checkpoint has to hold so that the rows in these slots are found again."""
        digests = np.array([slot.digest for slot in slots.values()], dtype=f"V{DIGEST_BYTES}")
        index = {
            "clients": torch.tensor(list(slots), dtype=torch.int64),
            "slots": torch.tensor([slot.number for slot in slots.values()], dtype=torch.int64),
            "digests": torch.from_numpy(digests.view(np.uint8)),
        }
        return Checkpoint({"memory": index}, {"memory": self.layout.to_notes()})

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise DamagedFileError unless every row of the checkpoint is as it was written.

        The checkpoint's layout becomes that of the store.
        """
        self.layout = RowLayout.from_notes(checkpoint.notes.get("memory"))
        for client, number, digest in index_of(checkpoint):
            self.open_file()  # raises where the file may not be read, which is no damage
            try:
                row = self.read(number)
                is_intact = digest_of(as_bytes(value) for value in row.values()) == digest
            except OSError:  # the file is truncated, or the disk has a bad sector
                is_intact = False
            if not is_intact:
                raise DamagedFileError(
                    f"{self.path} is damaged where the memory of client {client} lies"
                )

    def restore_slots(self, checkpoints: Iterable[Checkpoint]) -> list[dict[int, FileSlot]]:
        """Return the slots of each checkpoint by client; all other slots become free.

        Where two checkpoints disagree about the digest of a slot the last one is right.
        """
        indexes = [index_of(checkpoint) for checkpoint in checkpoints]
        digests: dict[int, bytes] = {}
        for index in indexes:
            digests |= {number: digest for _, number, digest in index}
        self.slot_count = max(digests, default=-1) + 1
        self.free_slots = [number for number in range(self.slot_count) if number not in digests]
        slots = {
            number: FileSlot(number, digest, self.free_slots) for number, digest in digests.items()
        }
        slots_by_client = []
        for index in indexes:
            slots_by_client.append({client: slots[number] for client, number, _ in index})
        return slots_by_client

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextmanager
    def file(self) -> Iterator[RawIOBase]:
        """Yield the open file; an OSError inside names the file, as one of `open` does."""
        try:
            yield self.open_file()
        except OSError as error:
            error.filename = error.filename or str(self.path or large_file_folder())
            raise

    def open_file(self) -> RawIOBase:
        """Return the open file, which is made if it does not exist."""
        if self._file is None:
            self._file = open_to_update(self.path) if self.path else open_unnamed()
        return self._file


def write_all(file: RawIOBase, part: memoryview) -> None:
    """Write all bytes, in as many calls as it takes."""
    while len(part):  # one call writes at most 2 GB
        part = part[file.write(part) :]


def read_all(file: RawIOBase, part: memoryview) -> None:
    """Fill `part` from the file, in as many calls as it takes; raise OSError at the file's end."""
    while len(part):
        count = file.readinto(part)
        if not count:
            raise truncated_file_error()
        part = part[count:]


def truncated_file_error(path: Path | None = None) -> OSError:
    """Return the error for a file that ends before a row does."""
    return OSError(errno.EIO, "The file is cut short", str(path) if path else None)


def index_of(checkpoint: Checkpoint) -> list[tuple[int, int, bytes]]:
    """Return client, slot number and digest of each row that a checkpoint names.

    Raise DamagedFileError if it names none in the way it should.
    """
    try:
        index = checkpoint.bundles["memory"]
        digests = index["digests"].numpy().view(f"V{DIGEST_BYTES}").tolist()
        clients = whole_numbers(index["clients"])
        slots = whole_numbers(index["slots"])
        if len(set(clients)) < len(clients) or max(slots, default=0) > MAX_VERSIONS * len(slots):
            raise ValueError("no run has such slots")
        return list(zip(clients, slots, digests, strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError("A checkpoint does not say where its clients' rows lie") from error


def whole_numbers(values: torch.Tensor) -> list[int]:
    """Return the numbers of a vector; raise ValueError unless they are whole and not negative."""
    if values.dtype != torch.int64 or values.ndim != 1 or (values < 0).any():
        raise ValueError("it is no list of whole numbers")
    return [int(value) for value in values]


def as_bytes(value: torch.Tensor) -> memoryview:
    """Return the memory of a tensor as bytes; of a contiguous one on the CPU without a copy."""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def digest_of(parts: Iterable[memoryview]) -> bytes:
    """Return the digest of the parts, one after the other."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def describe_layout(layout: RowLayout) -> str:
    """Return the names, types and shapes of a layout as text."""
    return ", ".join(
        f"{name} {dtype}{list(shape)}" for name, (dtype, shape) in layout.parts.items()
    )


CPU = torch.device("cpu")


# Rows by client


@dataclass(slots=True)
class ClientRow:
    """One version of a client's row: in RAM, in the store, or both once it was saved."""

    vectors: Vectors | None = None
    slot: FileSlot | None = None


@dataclass(frozen=True, eq=False)
class ClientMemory(Mapping[int, Vectors]):
    """The rows of all clients that took part; a mapping from client to row that never changes."""

    store: Store = field(default_factory=Store)
    budget: float = math.inf
    """Bytes of rows in RAM at most, including those that a round is about to replace."""
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
    def rows_in_ram(self) -> int:
        """Return the number of rows that are in RAM."""
        return sum(row.vectors is not None for row in self.rows.values())

    def start_update(self) -> "MemoryBuilder":
        """Return a builder of the next memory, which begins with the rows of this one."""
        return MemoryBuilder(self)

    def with_slots(self, slots: Mapping[int, FileSlot]) -> "ClientMemory":
        """Return the memory whose rows are those in these slots, all of them on disk."""
        return replace(self, rows={client: ClientRow(slot=slot) for client, slot in slots.items()})

    def save(self) -> dict[int, FileSlot]:
        """Make every row durable, writing those that are not on disk yet; return their slots."""
        slots = {}
        for client, row in self.rows.items():
            if row.slot is None:
                assert row.vectors
                row.slot = self.store.write(row.vectors)
            slots[client] = row.slot
        self.store.sync()
        return slots


class MemoryBuilder:
    """Builds the next memory row by row, so that none of its rows has to stay in RAM."""

    def __init__(self, memory: ClientMemory) -> None:
        self.memory = memory
        self.rows: dict[int, ClientRow] = {}
        self.rows_in_ram = memory.rows_in_ram

    def put(self, client: int, vectors: Vectors) -> None:
        """Replace a client's row; a client for which there is nothing to keep gets none."""
        if not vectors:
            return
        store = self.memory.store
        store.check_layout(vectors)
        if (self.rows_in_ram + 1) * store.layout.size <= self.memory.budget:
            self.rows[client] = ClientRow(vectors)
            self.rows_in_ram += 1
        else:
            self.rows[client] = ClientRow(slot=store.write(vectors))

    def build(self) -> ClientMemory:
        """Return the memory with the rows put so far in place of the older ones."""
        return replace(self.memory, rows={**self.memory.rows, **self.rows})
