"""Random streams: every random number of a run comes from one of them.

A stream is determined by (seed, purpose, round, client, step). Its seed is a hash of those, so
streams of different purposes, rounds or clients are independent, no stream depends on how many
numbers another one has produced, and the order in which clients are trained changes nothing.
"""

import hashlib
import struct

import numpy as np


def derive_seed(seed: int, purpose: str, *indices: int) -> int:
    """Return the seed of one stream: 63 bits, which the seeders of torch and numpy both accept.

    Only the first 16 bytes of the purpose count: streams whose purposes share them are the same.
    """
    packed = struct.pack(f"<{len(indices) + 1}q", seed, *indices)
    hashed = hashlib.blake2b(packed, digest_size=8, person=purpose.encode()[:16]).digest()
    return int.from_bytes(hashed, "little") >> 1


def digest(text: str) -> str:
    """Return a short fingerprint of a text: 64 bits of its hash, as 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return a new generator at the beginning of one stream."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, purpose, *indices)))
