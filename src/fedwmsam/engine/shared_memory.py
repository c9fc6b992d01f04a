"""Tensors in blocks of memory that are shared with other processes, or sent to them.

Shared memory has no names or files that could be left behind: a block is an unlinked temporary
file, in RAM where the system has such a folder, whose descriptor a worker process receives. It
disappears with the last process that holds it, however that process ends. Windows sends no
descriptors to other processes; a file there has a name, which the system removes in the same way.
"""

import io
import mmap
import os
import pickle
import tempfile
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwmsam import files
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors

ALIGNMENT = 64
"""The alignment of tensors in bytes: vector instructions may round differently without it."""
MIN_SHARED_BYTES = 4096
"""Tensors of more bytes than this are shared between the workers instead of sent to each."""


class TensorLocation(NamedTuple):
    """The position, type and shape of a tensor in a block."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Block(ABC):
    """Memory that tensors are written to in one process and read from in another."""

    @abstractmethod
    def map_bytes(self, size: int) -> Any:
        """Return the memory as a buffer of at least `size` bytes, enlarged if necessary."""

    def write(self, tensors: Vectors) -> dict[str, TensorLocation]:
        """Copy the tensors into the block and return their locations."""
        locations = {}
        end = 0
        for name, value in tensors.items():
            locations[name] = TensorLocation(end, value.dtype, tuple(value.shape))
            end = align_up(end + value.numel() * value.element_size())
        for name, location in locations.items():
            self.view(location, end).copy_(tensors[name])
        return locations

    def read(self, locations: dict[str, TensorLocation]) -> Vectors:
        """Return copies of the tensors, so that the block can be written again."""
        return {name: self.view(location).clone() for name, location in locations.items()}

    def view(self, location: TensorLocation, size: int = 0) -> Tensor:
        """Return the tensor at this location, not a copy; the block gets at least `size` bytes."""
        count = 1
        for length in location.shape:
            count *= length
        if count == 0:
            return torch.empty(location.shape, dtype=location.dtype)
        end = location.offset + count * torch.empty(0, dtype=location.dtype).element_size()
        memory = self.map_bytes(max(size, end))
        flat = torch.frombuffer(memory, dtype=location.dtype, count=count, offset=location.offset)
        return flat.view(location.shape)


class SharedMemoryBlock(Block):
    """A block of shared memory that grows when more is written to it than fits."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with tempfile.TemporaryFile(dir=shared_memory_folder()) as file:
                descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        self.map: mmap.mmap | None = None

    def close(self) -> None:
        """Give up the block; the memory is freed when no process and no tensor uses it any more."""
        self.map = None  # unmapped when the last tensor on it is gone
        os.close(self.descriptor)

    def map_bytes(self, size: int) -> mmap.mmap:
        """Return the block as mapped memory of at least `size` bytes, enlarged if necessary."""
        if self.map is None or len(self.map) < size:
            if os.fstat(self.descriptor).st_size < size:
                enlarge(self.descriptor, size)
            self.map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return self.map


class NamedBlock(SharedMemoryBlock):
    """A block in a file with a name, by which another process opens it."""

    def __init__(self) -> None:
        self.file = files.make_shared_file(shared_memory_folder())
        super().__init__(os.dup(self.file.fileno()))

    def close(self) -> None:
        super().close()
        self.file.close()


class ArrayBlock(Block):
    """A block that is an array of bytes, which others send from process to process.

    One that was received may be read-only; its tensors must not be written to then.
    """

    def __init__(self, content: NDArray[np.uint8] | None = None) -> None:
        self.content = np.empty(0, np.uint8) if content is None else content

    def map_bytes(self, size: int) -> NDArray[np.uint8]:
        """Return the array; one that is too small is replaced, so all is written in one go."""
        if len(self.content) < size:
            self.content = np.empty(size, np.uint8)
        return self.content

    def view(self, location: TensorLocation, size: int = 0) -> Tensor:
        """Return the tensor at this location, not a copy."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return super().view(location, size)


def enlarge(descriptor: int, size: int) -> None:
    """Allocate `size` bytes for a file; raise OSError where memory is full.

    Without the allocation a full memory would be a signal at the first write instead of an error.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        error.filename = shared_memory_folder()
        raise


def shared_memory_folder() -> str:
    """Return the folder in RAM that the system has for shared memory, or else one on disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


def align_up(size: int) -> int:
    """Return the next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


# Objects whose large tensors are shared


def pickle_for_workers(value: Any, data: Block) -> bytes:
    """Return the value as bytes for workers; its large tensors go to the block that all share.

    Raise InputError if it cannot be sent to another process.
    """
    stream = io.BytesIO()
    pickler = Pickler(stream)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise InputError(
            f"Workers need a model, a loss and data that can be sent to another process ({error}); "
            "open files, locks and connections where they are used, or use workers=1."
        ) from error
    for tensor, location in pickler.tensors.values():
        data.view(location, pickler.end).copy_(tensor)
    return stream.getvalue()


def unpickle_in_worker(content: bytes, data: Block) -> Any:
    """Return the value that `pickle_for_workers` has made bytes of; its large tensors are views."""
    return Unpickler(io.BytesIO(content), data).load()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """A pickler that notes large tensors, with a location for each, instead of writing them.

    It sends functions and classes that no other process can import, those of a script or notebook,
    as they are.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: dict[Any, tuple[Tensor, TensorLocation]] = {}
        self.end = 0

    def persistent_id(self, value: Any) -> tuple[TensorLocation, str] | None:
        """Return the location of a large tensor and its kind of device, None for anything else.

        What lies on an accelerator counts as large.
        """
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            return None
        size = value.numel() * value.element_size()
        device = value.device.type
        if device == "cpu" and (type(value) is not Tensor or size <= MIN_SHARED_BYTES):
            return None
        identity = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if identity not in self.tensors:
            location = TensorLocation(self.end, value.dtype, tuple(value.shape))
            self.tensors[identity] = (value, location)
            self.end = align_up(self.end + size)
        return self.tensors[identity][1], device


class Unpickler(pickle.Unpickler):
    """Reads what this program's own main process sent, never a file."""

    def __init__(self, stream: io.BytesIO, data: Block) -> None:
        super().__init__(stream)
        self.data = data

    def persistent_load(self, identity: tuple[TensorLocation, str]) -> Tensor:
        """Return the large tensor at this location of the block that all workers share.

        One for an accelerator is copied to that of this process.
        """
        location, device = identity
        return self.data.view(location).to(device)
