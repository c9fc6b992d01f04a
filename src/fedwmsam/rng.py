"""Every random number of a run comes from a stream keyed by (seed, purpose, round, client, step).

A key is a hash of those, so streams of different purposes, rounds or clients are independent, no stream depends on
how many numbers another one has drawn, and the order in which clients are trained changes nothing.
"""

import hashlib
import struct

import numpy as np


def derive_seed(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit seed for one stream (63, because torch's and numpy's seeders both take it)."""
    packed = struct.pack(f"<{len(indices) + 1}q", seed, *indices)
    digest = hashlib.blake2b(packed, digest_size=8, person=purpose.encode()[:16]).digest()
    return int.from_bytes(digest, "little") >> 1


def digest(text: str) -> str:
    """A short fingerprint."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive_seed(seed, purpose, *indices)))
