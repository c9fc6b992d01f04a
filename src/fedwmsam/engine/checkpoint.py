"""Checkpoint files, which tell whether they are intact.

A checkpoint is one file: a magic line, a digest, then safetensors data (tensors and JSON; loading
it runs no code).
"""

import hashlib
import json
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from fedwmsam import files
from fedwmsam.engine.records import parse_record
from fedwmsam.errors import InputError, printable
from fedwmsam.machine import machine_memory
from fedwmsam.methods.vectors import Vectors

MAGIC = b"fedwmsam checkpoint 1\n"
DIGEST_BYTES = 32
"""Bytes of the digest after the magic line."""
FILE_NAME = re.compile(r"round-([0-9]+)\.checkpoint")
KEPT_CHECKPOINTS = 2
"""Checkpoints that a run keeps: should the newest turn out damaged, the one before is used."""


@dataclass(frozen=True)
class Checkpoint:
    """Bundles of tensors by name, and notes: all that is no tensor, as JSON."""

    bundles: dict[str, Vectors]
    notes: dict[str, Any]


class DamagedFileError(Exception):
    """The file is not an intact checkpoint."""


def write_tensors(path: Path, tensors: Vectors) -> None:
    """Write the tensors as a safetensors file, in place of one that exists."""
    content = safetensors.torch.save({k: v.contiguous().cpu() for k, v in tensors.items()})
    # The writer of safetensors hides what the system says about a full disk.
    files.write_bytes(path, content)


def read_tensors(path: Path) -> Vectors:
    """Return the tensors of a safetensors file; raise InputError if it cannot be read."""
    try:
        return parse_tensors(files.read_bytes(path, size_limit()))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except DamagedFileError as damage:
        raise InputError(f"{path} cannot be read: {damage}.") from damage


def parse_tensors(content: bytes) -> Vectors:
    """Return the tensors in safetensors data; raise DamagedFileError if it is none."""
    try:
        tensors = safetensors.torch.load(content)
    # A type that safetensors knows and PyTorch does not is a KeyError; empty tensors of
    # impossible shapes end in an assertion or in PyTorch's own errors.
    except (safetensors.SafetensorError, KeyError, AssertionError, RuntimeError) as error:
        raise DamagedFileError(printable(error, 200)) from error
    return {name: to_aligned_memory(value) for name, value in tensors.items()}


def size_limit() -> int:
    """Return how many bytes a file of tensors may have: it is in memory three times while read."""
    return machine_memory() // 4


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint to a file, which is complete or not there at all."""
    flat: Vectors = {}
    for bundle, vectors in checkpoint.bundles.items():
        flat |= {f"{bundle}|{name}": value for name, value in vectors.items()}
    notes = json.dumps(checkpoint.notes | {"bundles": list(checkpoint.bundles)})
    payload = safetensors.torch.save(separate_memory(flat), metadata={"notes": notes})
    digest = hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()
    files.write_bytes(path, MAGIC, digest, payload)


def separate_memory(tensors: Vectors) -> Vectors:
    """Return the tensors on the CPU, copied where several share memory.

    Safetensors refuses tensors that share memory (a zero Δ and a zero c may be one tensor).
    """
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        result[name] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return result


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint; raise DamagedFileError unless every byte is as it was written."""
    content = files.read_bytes(path, size_limit())
    head = len(MAGIC) + DIGEST_BYTES
    payload = memoryview(content)[head:]
    digest = hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()
    if content[: len(MAGIC)] != MAGIC or content[len(MAGIC) : head] != digest:
        raise DamagedFileError(f"{path} is damaged")
    try:
        return parse_payload(bytes(payload))
    except (DamagedFileError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} is whole but no checkpoint of this program") from error


def read_round(folder: Path, round: int) -> Checkpoint:
    """Return the checkpoint of a round; raise DamagedFileError if it is damaged or of another."""
    path = path_of(folder, round)
    saved = read_checkpoint(path)
    if saved.notes.get("round") != round:
        raise DamagedFileError(
            f"{path} is a checkpoint of round {printable(saved.notes.get('round'), 80)}"
        )
    return saved


def parse_payload(payload: bytes) -> Checkpoint:
    """Return the checkpoint in safetensors data; raise some error if there is none in it."""
    flat = parse_tensors(payload)
    header = parse_record(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
    notes = parse_record(header["__metadata__"]["notes"].encode())
    bundles: dict[str, Vectors] = {bundle: {} for bundle in notes.pop("bundles")}
    for key, value in flat.items():
        bundle, name = key.split("|", 1)
        bundles[bundle][name] = value
    return Checkpoint(bundles, notes)


def to_aligned_memory(value: torch.Tensor) -> torch.Tensor:
    """Return a copy in memory that torch has aligned.

    Vector instructions may round differently on unaligned data.
    """
    return value.clone()


def to_device(vectors: Vectors, device: torch.device) -> Vectors:
    """Return the bundle with all its tensors on the device."""
    return {name: value.to(device) for name, value in vectors.items()}


def path_of(folder: Path, round: int) -> Path:
    """Return the path of the checkpoint of a round in a folder."""
    return folder / f"round-{round:07d}.checkpoint"


def rounds_in(folder: Path) -> list[int]:
    """Return the rounds that have a checkpoint file in the folder, newest first."""
    names = {path.name for path in folder.glob("round-*.checkpoint")}
    numbers = {int(found[1]) for name in names if (found := FILE_NAME.fullmatch(name))}
    return sorted((n for n in numbers if path_of(folder, n).name in names), reverse=True)


def prune(folder: Path, keep: Container[int]) -> None:
    """Remove the checkpoints of all rounds but those to keep."""
    for round in rounds_in(folder):
        if round not in keep:
            path_of(folder, round).unlink(missing_ok=True)
