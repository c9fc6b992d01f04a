"""Memory that two processes see, without names or files that could be left behind.

A block is an unlinked temporary file, in RAM where the system has such a place, whose descriptor a child process
inherits. It disappears with the last process that holds it, however those end.
"""

import mmap
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedwmsam.methods.vectors import Vectors

ALIGNMENT = 64
"""Vector instructions may round differently on unaligned data."""


class Place(NamedTuple):
    """Where a tensor lies in a block."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Block:
    """A piece of shared memory that grows when more is written to it than fits."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with tempfile.TemporaryFile(dir=place_of_blocks()) as file:
                descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        self.map: mmap.mmap | None = None

    def close(self) -> None:
        self.map = None  # unmapped when the last tensor on it is gone
        os.close(self.descriptor)

    def reach(self, size: int) -> mmap.mmap:
        """The block as bytes, at least so many."""
        if self.map is None or len(self.map) < size:
            if os.fstat(self.descriptor).st_size < size:
                enlarge(self.descriptor, size)
            self.map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return self.map

    def write(self, tensors: Vectors) -> dict[str, Place]:
        """Copy the tensors in; what is returned tells the other side where they are."""
        places, end = {}, 0
        for name, value in tensors.items():
            places[name] = Place(end, value.dtype, tuple(value.shape))
            end = aligned(end + value.numel() * value.element_size())
        for name, place in places.items():
            self.view(place, end).copy_(tensors[name])
        return places

    def read(self, places: dict[str, Place]) -> Vectors:
        """Copies of the tensors, so that the block is free for what comes next."""
        return {name: self.view(place).clone() for name, place in places.items()}

    def view(self, place: Place, size: int = 0) -> Tensor:
        count = 1
        for length in place.shape:
            count *= length
        if count == 0:
            return torch.empty(place.shape, dtype=place.dtype)
        needed = place.offset + count * torch.empty(0, dtype=place.dtype).element_size()
        memory = self.reach(max(size, needed))
        return torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.offset).view(place.shape)


def enlarge(descriptor: int, size: int) -> None:
    """With room that is really there: where memory is full this is an error, not a signal at the first write."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        error.filename = place_of_blocks()
        raise


def place_of_blocks() -> str:
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
