"""Reader of .npy files, whose headers are matched by a strict pattern.

Nothing in a header is evaluated, and arrays of pickled objects are refused.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedwmsam.data.base import Array
from fedwmsam.errors import InputError

MAX_HEADER_BYTES = 10_000
HEADER_PATTERN = re.compile(
    r"\s*\{\s*'descr':\s*'([<>|=]?[a-zA-Z]\d{1,6})',\s*'fortran_order':\s*(True|False),"
    r"\s*'shape':\s*\(([\d,\s]{0,200})\),?\s*\}\s*"
)
DTYPE_KINDS = "biufU"
"""The kinds of types that are read: truth values, integers, floats, and text for labels."""


@dataclass(frozen=True)
class NpyHeader:
    """The header of a .npy file, checked."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str
    """The order of the elements: "C" or "F"."""
    data_offset: int
    """Bytes before the data."""

    @property
    def size(self) -> int:
        """Return how many bytes of data the header claims."""
        return math.prod(self.shape) * self.dtype.itemsize

    def to_array(self, content: bytearray) -> Array:
        """Return the array that these bytes hold; there must be `size` of them."""
        return to_native_byte_order(
            np.frombuffer(content, self.dtype).reshape(
                self.shape, order="F" if self.order == "F" else "C"
            )
        )


def read_header(stream: IO[bytes], name: str) -> NpyHeader:
    """Return the header with which the stream begins, and leave the stream at the data.

    Raise InputError, which begins with `name`, if the header is damaged or describes anything but a
    plain array of numbers or text.
    """
    opening = stream.read(8)
    if len(opening) < 8 or opening[:6] != b"\x93NUMPY" or opening[6] not in (1, 2, 3):
        raise InputError(
            f"{name} starts with 0x{opening.hex()}, expected a numpy array: "
            "save it again with numpy.save"
        )
    width = 2 if opening[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    text = stream.read(length) if length <= MAX_HEADER_BYTES else b""
    match = HEADER_PATTERN.fullmatch(text.decode("latin-1"))
    if len(text) < length or match is None:
        raise InputError(
            f"{name} has a header that is damaged or describes pickled objects, "
            "expected a plain array of numbers: save it again with numpy.save"
        )
    return NpyHeader(*_parse_header(match, name), data_offset=8 + width + length)


def _parse_header(match: re.Match[str], name: str) -> tuple[np.dtype[Any], tuple[int, ...], str]:
    code, fortran, sizes = match.groups()
    try:
        dtype = np.dtype(code)
        shape = tuple(int(part) for part in sizes.split(",") if part.strip())
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} has a damaged header ({error}): save it again with numpy.save"
        ) from error
    if dtype.kind not in DTYPE_KINDS or dtype.itemsize == 0:
        raise InputError(
            f"{name} holds items of {code}, expected numbers or text: convert it and save it again"
        )
    if not shape or len(shape) > 8 or 0 in shape:
        raise InputError(
            f"{name} has the shape {shape}, expected 1 to 8 dimensions and one item or more: "
            "save it again"
        )
    return dtype, shape, "F" if fortran == "True" else "C"


def check_size(header: NpyHeader, size: int, name: str) -> None:
    """Raise InputError, which begins with `name`, if a file of `size` bytes does not suit it."""
    if header.data_offset + header.size != size:
        raise InputError(
            f"{name} claims the shape {header.shape} of {header.dtype}, "
            f"expected {header.data_offset + header.size} bytes but found {size}: save it again"
        )


def memmap_npy(path: Path) -> Array:
    """Return the array of a .npy file, mapped into memory: pages are read when they are used.

    Writing to the array never reaches the file. Raise InputError if the file cannot be read or is
    damaged.
    """
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise InputError(
                f"{path} is not a file, expected one written by numpy.save: check the path"
            )
        with path.open("rb") as stream:
            header = read_header(stream, str(path))
            check_size(header, path.stat().st_size, str(path))
            mapped = np.memmap(
                stream,
                header.dtype,
                "c",
                header.data_offset,
                header.shape,
                "F" if header.order == "F" else "C",
            )
    except (OSError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read ({error}): check the file") from error
    return to_native_byte_order(mapped)


def to_native_byte_order(array: Array) -> Array:
    """Return the same numbers in this machine's byte order, the only one that torch knows."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)
