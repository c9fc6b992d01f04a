"""Reader of the IDX format of MNIST and its relatives: a small header, then one big-endian array.

The header says how large the array is and may lie, so memory is taken only for bytes that were
really there. A packed file can hold a thousand times its size: it is unpacked no further than its
header and the expected shape allow.
"""

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedwmsam.errors import InputError

ELEMENT_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""The types of the elements by the third byte of a file."""
MAX_DIMENSIONS = 4
MAX_UNPACKED_BYTES = 400 << 20
"""Bytes that a packed file may hold, half a million images of MNIST's size."""
CHUNK = 1 << 20
"""Bytes that are read at once."""


def read_idx(path: Path, item_shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
    """Return the array of an IDX file; a name that ends in .gz is decompressed on the way.

    With `item_shape` it must hold bytes, in items of this shape. Raise InputError if the file
    cannot be read, is not what is expected, or is not exactly what its header says.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            dtype, shape = _read_header(stream, path)
            if item_shape is not None:
                _check_items(dtype, shape, item_shape, path)
            content = _read_exactly(stream, math.prod(shape) * dtype.itemsize, shape, path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a complete gzip file ({error}): get it again") from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}): check the file"
        ) from error
    return np.frombuffer(content, dtype).astype(dtype.newbyteorder("="), copy=False).reshape(shape)


def _read_header(stream: io.BufferedIOBase, path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in ELEMENT_TYPES:
        start = f"0x{magic.hex()}" if magic else "nothing"
        raise InputError(
            f"{path} starts with {start}, expected an IDX magic number such as 0x00000803: "
            "get it again"
        )
    dimensions = magic[3]
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise InputError(
            f"{path} claims {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}: get it again"
        )
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise InputError(
            f"{path} ends inside its header, expected {4 + 4 * dimensions} bytes of it: "
            "get it again"
        )
    shape = struct.unpack(f">{dimensions}I", sizes)
    if 0 in shape:
        raise InputError(
            f"{path} claims the shape {shape}, expected at least one item: get it again"
        )
    return np.dtype(ELEMENT_TYPES[magic[2]]), shape


def _check_items(
    dtype: np.dtype[Any], shape: tuple[int, ...], item_shape: tuple[int, ...], path: Path
) -> None:
    if dtype != np.uint8 or shape[1:] != item_shape:
        expected = " x ".join(map(str, ("n", *item_shape)))
        actual = " x ".join(map(str, shape))
        raise InputError(
            f"{path} holds {actual} items of {dtype.newbyteorder('=')}, "
            f"expected {expected} of uint8: get it again"
        )


def _read_exactly(
    stream: io.BufferedIOBase, size: int, shape: tuple[int, ...], path: Path
) -> bytearray:
    """Return the rest of the stream, or raise InputError if it is not `size` bytes long.

    Asking for one byte more than that finds a file that is too long.
    """
    is_packed = isinstance(stream, gzip.GzipFile)
    content = bytearray()
    while len(content) <= size and (chunk := stream.read(min(CHUNK, size + 1 - len(content)))):
        content += chunk
        if is_packed and len(content) > MAX_UNPACKED_BYTES:
            raise InputError(
                f"{path} claims the shape {shape} and goes on after {MAX_UNPACKED_BYTES} bytes, "
                "expected no more in a packed file: unpack it with gunzip if it is meant so"
            )
    if len(content) != size:
        actual = f"only {len(content)}" if len(content) < size else "more"
        raise InputError(
            f"{path} claims the shape {shape}, expected {size} bytes of data but found {actual}: "
            "get it again"
        )
    return content
