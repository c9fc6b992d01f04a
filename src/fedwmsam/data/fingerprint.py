"""The fingerprint of the clients' data, by which a run that goes on notices that they are others.

Of data in memory it is a digest of inputs and targets; of much data only of rows that are evenly
spread, so that the time it takes is bounded. Of datasets it is the number of samples, and of
clients that are loaded lazily what the user says about them.
"""

import hashlib
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedwmsam.data.clients import Clients, LazyClients, TensorSamples, client_label, names_of
from fedwmsam.errors import printable
from fedwmsam.training.inputs import named_parts
from fedwmsam.training.task import Samples

DIGEST_BYTES = 8
HASHED_BYTES = 2**28
"""Bytes of all clients' data that are read at most, which takes less than a second."""


def fingerprint(clients: Clients, sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the names, numbers of samples and digests of the clients, as far as they are known.

    `sizes` are the numbers of samples of lazily loaded clients, where the user has given them.
    """
    names = list(names_of(clients))
    if isinstance(clients, LazyClients):
        return {"names": names, "samples": list(map(int, sizes or ())), "digests": []}
    everyone = [clients[client] for client in range(len(clients))]
    limit = HASHED_BYTES // len(everyone)
    return {
        "names": names,
        "samples": [len(samples) for samples in everyone],
        "digests": [digest(samples, limit) for samples in everyone],
    }


def digest(samples: Samples, limit: int) -> str | None:
    """Return the digest of a client's data, of about `limit` bytes at most; None for a dataset."""
    if not isinstance(samples, TensorSamples):
        return None
    parts = [*sorted(named_parts(samples.inputs), key=itemgetter(0)), ("targets", samples.targets)]
    if samples.indices is not None:
        parts.append(("indices", samples.indices))
    size = sum(part.nbytes for _, part in parts)
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, part in parts:
        hashed.update(f"{name} {part.dtype} {tuple(part.shape)}\n".encode())
        hashed.update(bytes_of(spread_rows(part, limit / max(size, 1))))
    return hashed.hexdigest()


def spread_rows(part: Tensor, share: float) -> Tensor:
    """Return a share of the rows that are evenly spread, with the first and the last one."""
    if share >= 1:
        return part
    count = max(2, int(share * len(part)))
    return part[torch.linspace(0, len(part) - 1, count, dtype=torch.float64).long()]


def bytes_of(part: Tensor) -> memoryview:
    """Return the bytes of a tensor of any type."""
    flat = part.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().data


def describe_change(saved: dict[str, Any], current: dict[str, Any], clients: Clients) -> str | None:
    """Return what the first client that differs has become, None if all are as they were.

    What only one of the two fingerprints knows is not compared.
    """
    for key, what in (("names", "is called"), ("samples", "has samples"), ("digests", "")):
        old = saved.get(key)
        pairs = zip(old if isinstance(old, list) else (), current[key], strict=False)
        for client, (before, now) in enumerate(pairs):
            if before is None or now is None or before == now:
                continue
            change = f"{what} {printable(now, 80)}, not {printable(before, 80)}" if what else ""
            return f"client {client_label(clients, client)} {change or 'has other data'}"
    return None
