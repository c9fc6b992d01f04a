"""Checkpoints that say whether they are whole.

A checkpoint is one file: a line of magic, a digest, then safetensors (tensors and JSON; loading runs nothing).
"""

import hashlib
import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from fedwmsam.errors import InputError
from fedwmsam.files import atomic_replace
from fedwmsam.methods.vectors import Vectors

MAGIC = b"fedwmsam checkpoint 1\n"
DIGEST = 32
KEEP = 2
"""The newest may turn out damaged: the one before stays."""


@dataclass(frozen=True)
class Checkpoint:
    """Bundles of tensors by name, and the numbers and words beside them."""

    bundles: dict[str, Vectors]
    notes: dict[str, Any]


class DamagedFileError(Exception):
    """The file is not a whole checkpoint."""


def write_tensors(path: Path, tensors: Vectors) -> None:
    content = safetensors.torch.save({k: v.contiguous().cpu() for k, v in tensors.items()})
    with atomic_replace(path) as beside:
        beside.write_bytes(content)  # its own writer hides what the system says of a full disk


def read_tensors(path: Path) -> Vectors:
    try:
        return {
            name: to_aligned_memory(value)
            for name, value in safetensors.torch.load(path.read_bytes()).items()
        }
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    flat = {
        f"{bundle}|{name}": value
        for bundle, vectors in checkpoint.bundles.items()
        for name, value in vectors.items()
    }
    notes = json.dumps(checkpoint.notes | {"bundles": list(checkpoint.bundles)})
    payload = safetensors.torch.save(own_memory(flat), metadata={"notes": notes})
    with atomic_replace(path) as beside, beside.open("wb") as file:
        file.write(MAGIC + hashlib.blake2b(payload, digest_size=DIGEST).digest())
        file.write(payload)


def own_memory(tensors: Vectors) -> Vectors:
    """Safetensors refuses tensors that share memory (a zero Δ and a zero c may be one tensor)."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        result[name] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return result


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises Damaged unless every byte is as it was written."""
    content = path.read_bytes()
    head = len(MAGIC) + DIGEST
    payload = memoryview(content)[head:]
    if (
        content[: len(MAGIC)] != MAGIC
        or hashlib.blake2b(payload, digest_size=DIGEST).digest() != content[len(MAGIC) : head]
    ):
        raise DamagedFileError(f"{path} is damaged")
    try:
        return unpacked(payload)
    except (
        safetensors.SafetensorError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise DamagedFileError(f"{path} is whole but no checkpoint of this program") from error


def unpacked(payload: memoryview) -> Checkpoint:
    flat = safetensors.torch.load(bytes(payload))
    notes = json.loads(_metadata(payload)["notes"])
    bundles: dict[str, Vectors] = {bundle: {} for bundle in notes.pop("bundles")}
    for key, value in flat.items():
        bundle, name = key.split("|", 1)
        bundles[bundle][name] = to_aligned_memory(value)
    return Checkpoint(bundles, notes)


def to_aligned_memory(value: torch.Tensor) -> torch.Tensor:
    """A copy in torch's own aligned memory: vector instructions may round differently on unaligned data."""
    return value.clone()


def to_device(vectors: Vectors, device: torch.device) -> Vectors:
    return {name: value.to(device) for name, value in vectors.items()}


def _metadata(payload: memoryview) -> dict[str, str]:
    length = int.from_bytes(payload[:8], "little")
    metadata: dict[str, str] = json.loads(bytes(payload[8 : 8 + length]))["__metadata__"]
    return metadata


def path_of(folder: Path, round: int) -> Path:
    return folder / f"round-{round:07d}.checkpoint"


def rounds_in(folder: Path) -> list[int]:
    """The rounds that have a checkpoint file, newest first."""
    return sorted(
        (int(p.stem.removeprefix("round-")) for p in folder.glob("round-*.checkpoint")),
        reverse=True,
    )


def prune(folder: Path, keep: Container[int]) -> None:
    for round in rounds_in(folder):
        if round not in keep:
            path_of(folder, round).unlink(missing_ok=True)
