"""Clients' data in any of the forms people have it in, read as batches by index.

A list of `(x, y)` tensors or arrays, a list of map-style datasets, or a function `load(client) -> either` with a count.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedwmsam import rng
from fedwmsam.data.augmentation import Augmentation
from fedwmsam.data.base import BatchTransform
from fedwmsam.errors import InputError
from fedwmsam.training.task import Batch, Samples

Collate = Callable[[list[Any]], Any]
BatchCheck = Callable[[str, Any, Tensor | None], None]
"""(whose data, inputs, targets) → raises InputError where a model could not train on them."""


class Clients(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, client: int) -> Samples: ...


class TensorSamples:
    """Rows of resident or memory-mapped tensors; `rows` selects some of them without copying the data.

    `prepare` turns a batch as stored (bytes, say) into what the model sees; `augment` changes it while training.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        rows: Tensor | None = None,
        prepare: BatchTransform | None = None,
        augment: Augmentation | None = None,
    ) -> None:
        self.inputs, self.targets, self.rows = inputs, targets, rows
        self.prepare, self.augment = prepare, augment

    def __len__(self) -> int:
        return len(self.targets) if self.rows is None else len(self.rows)

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        # index_select copies whole rows where inputs[rows] would copy element by element.
        rows = (index if self.rows is None else self.rows.index_select(0, index)).to(
            self.inputs.device
        )
        inputs = self.inputs.index_select(0, rows)
        if self.prepare is not None:
            inputs = self.prepare(inputs)
        if self.augment is not None and seed is not None:
            inputs = self.augment(inputs, seed)
        return inputs, self.targets.index_select(0, rows)


class DatasetSamples:
    """A map-style dataset, collated on each call."""

    def __init__(
        self,
        dataset: Any,
        collate: Collate | None,
        convert: Callable[[Any, Any], Batch],
        check: BatchCheck,
        name: str,
    ):
        self.dataset, self.collate, self.convert = dataset, collate or default_collate, convert
        self.check, self.name = check, name

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        if (
            seed is not None
        ):  # transforms that draw from PyTorch's generator are then keyed like everything else
            torch.default_generator.manual_seed(seed)
        rows = self.collate([self.dataset[i] for i in index.tolist()])
        if not isinstance(rows, tuple | list) or len(rows) != 2:
            raise InputError(
                f"{self.name}: a batch must be (inputs, targets), not {type(rows).__name__}; use collate=."
            )
        inputs, targets = self.convert(*rows)
        self.check(self.name, inputs, targets)
        return inputs, targets


class SubsetSamples:
    """Some of another client's samples."""

    def __init__(self, samples: Samples, rows: Tensor) -> None:
        self.samples, self.rows = samples, rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        return self.samples.batch(self.rows[index], seed)


class ConcatSamples:
    """Several sets of samples one after the other."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        rows = index.numpy()
        owners = np.searchsorted(self.ends, rows, side="right")
        batches = []
        for owner in np.unique(owners):
            part = self.parts[int(owner)]
            local = rows[owners == owner] - (self.ends[owner] - len(part))
            batches.append(part.batch(torch.from_numpy(local), seed))
        order = torch.from_numpy(np.argsort(np.argsort(owners, kind="stable"), kind="stable"))
        inputs, targets = (
            concat_batches([b[0] for b in batches]),
            torch.cat([b[1] for b in batches]),
        )
        return reorder_batch(inputs, order), targets[order]


def concat_batches(pieces: list[Any]) -> Any:
    """Concatenate batches of tensors, or of tuples, lists and dicts of them."""
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat(pieces)
    if isinstance(first, dict):
        return {k: concat_batches([piece[k] for piece in pieces]) for k in first}
    return type(first)(concat_batches(list(group)) for group in zip(*pieces, strict=True))


def reorder_batch(inputs: Any, order: Tensor) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[order]
    if isinstance(inputs, dict):
        return {k: reorder_batch(v, order) for k, v in inputs.items()}
    return type(inputs)(reorder_batch(v, order) for v in inputs)


class LazyClients:
    """Clients read by `load(client)` when they are sampled; the last few stay in memory."""

    def __init__(self, load: Callable[[int], Samples], count: int) -> None:
        self.count = count
        self.read = lru_cache(maxsize=32)(load)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Samples:
        return self.read(client)


def split_validation(clients: Clients, share: float, seed: int) -> tuple[list[Samples], Samples]:
    """Cut a share from each client (none from a client of one sample) and join the cuts to a validation set."""
    if isinstance(clients, LazyClients):
        raise InputError(
            "A validation share cannot be cut from clients that are loaded lazily; pass validation=(x, y)."
        )
    kept, cut = [], []
    for client, samples in enumerate(_iter_clients(clients)):
        order = torch.from_numpy(
            rng.generator(seed, "validation", client).permutation(len(samples))
        )
        held = min(round(share * len(samples)), len(samples) - 1)
        kept.append(SubsetSamples(samples, order[held:].sort().values))
        if held:
            cut.append(SubsetSamples(samples, order[:held].sort().values))
    if not cut:
        raise InputError(
            f"A validation share of {share:g} of such small clients is no sample at all; raise it."
        )
    return list(kept), ConcatSamples(cut)


def _iter_clients(clients: Clients) -> Iterator[Samples]:
    return (clients[k] for k in range(len(clients)))
