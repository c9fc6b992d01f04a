"""Headers of .npy files, read by a strict pattern: nothing in them is evaluated, and no pickled object is let in."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedwmsam.data.base import Array
from fedwmsam.errors import InputError

LONGEST_HEADER = 10_000
HEADER_PATTERN = re.compile(
    r"\s*\{\s*'descr':\s*'([<>|=]?[a-zA-Z]\d{1,6})',\s*'fortran_order':\s*(True|False),"
    r"\s*'shape':\s*\(([\d,\s]{0,200})\),?\s*\}\s*"
)
DTYPE_KINDS = "biufU"  # truth values, integers, floats, and text for labels


@dataclass(frozen=True)
class NpyHeader:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str  # "C" or "F"
    start: int  # bytes before the data

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, content: bytearray) -> Array:
        return to_native_byte_order(
            np.frombuffer(content, self.dtype).reshape(
                self.shape, order="F" if self.order == "F" else "C"
            )
        )


def read_header(stream: IO[bytes], name: str) -> NpyHeader:
    """The header, with which the stream must begin; it leaves the stream at the data."""
    opening = stream.read(8)
    if len(opening) < 8 or opening[:6] != b"\x93NUMPY" or opening[6] not in (1, 2, 3):
        raise InputError(
            f"{name} starts with 0x{opening.hex()}, expected a numpy array: save it again with numpy.save"
        )
    width = 2 if opening[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    text = stream.read(length) if length <= LONGEST_HEADER else b""
    found = HEADER_PATTERN.fullmatch(text.decode("latin-1"))
    if len(text) < length or found is None:
        raise InputError(
            f"{name} has a header that is damaged or describes pickled objects, expected a plain array of numbers: "
            "save it again with numpy.save"
        )
    return NpyHeader(*_parse_header(found, name), start=8 + width + length)


def _parse_header(found: re.Match[str], name: str) -> tuple[np.dtype[Any], tuple[int, ...], str]:
    code, fortran, sizes = found.groups()
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
            f"{name} has the shape {shape}, expected 1 to 8 dimensions and one item or more: save it again"
        )
    return dtype, shape, "F" if fortran == "True" else "C"


def check_size(header: NpyHeader, size: int, name: str) -> None:
    if header.start + header.size != size:
        raise InputError(
            f"{name} claims the shape {header.shape} of {header.dtype}, expected {header.start + header.size} bytes "
            f"but found {size}: save it again"
        )


def memmap_npy(path: Path) -> Array:
    """The array of a .npy file, mapped: pages are read when they are used. Writing to it never reaches the file."""
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise InputError(
                f"{path} is not a file, expected one written by numpy.save: check the path"
            )
        with path.open("rb") as stream:
            header = read_header(stream, str(path))
            check_size(header, path.stat().st_size, str(path))
            order = header.order
            mapped = np.memmap(
                stream, header.dtype, "c", header.start, header.shape, "F" if order == "F" else "C"
            )
    except (OSError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read ({error}): check the file") from error
    return to_native_byte_order(mapped)


def to_native_byte_order(array: Array) -> Array:
    """The same numbers in this machine's byte order, the only one torch knows."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)
