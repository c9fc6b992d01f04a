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
from fedwmsam.data.base import Prepare
from fedwmsam.errors import InputError
from fedwmsam.training.task import Batch, Samples

Collate = Callable[[list[Any]], Any]
Check = Callable[[str, Any, Tensor | None], None]
"""(whose data, inputs, targets) → raises InputError where a model could not train on them."""


class Clients(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, client: int) -> Samples: ...


class TensorSamples:
    """Rows of resident or memory-mapped tensors; `rows` selects some of them without copying the data.

    `prepare` turns a batch as stored (bytes, say) into what the model sees; `augment` changes it while training.
    """

    def __init__(
        self, inputs: Tensor, targets: Tensor, rows: Tensor | None = None, prepare: Prepare | None = None,
        augment: Augmentation | None = None,
    ) -> None:  # fmt: skip
        self.inputs, self.targets, self.rows = inputs, targets, rows
        self.prepare, self.augment = prepare, augment

    def __len__(self) -> int:
        return len(self.targets) if self.rows is None else len(self.rows)

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        # index_select copies whole rows where inputs[rows] would copy element by element.
        rows = (index if self.rows is None else self.rows.index_select(0, index)).to(self.inputs.device)
        inputs = self.inputs.index_select(0, rows)
        if self.prepare is not None:
            inputs = self.prepare(inputs)
        if self.augment is not None and seed is not None:
            inputs = self.augment(inputs, seed)
        return inputs, self.targets.index_select(0, rows)


class DatasetSamples:
    """A map-style dataset, collated on each call."""

    def __init__(
        self, dataset: Any, collate: Collate | None, convert: Callable[[Any, Any], Batch], check: Check, name: str
    ):
        self.dataset, self.collate, self.convert = dataset, collate or default_collate, convert
        self.check, self.name = check, name

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        if seed is not None:  # transforms that draw from PyTorch's generator are then keyed like everything else
            torch.default_generator.manual_seed(seed)
        rows = self.collate([self.dataset[i] for i in index.tolist()])
        if not isinstance(rows, tuple | list) or len(rows) != 2:
            raise InputError(
                f"{self.name}: a batch must be (inputs, targets), not {type(rows).__name__}; use collate=."
            )
        inputs, targets = self.convert(*rows)
        self.check(self.name, inputs, targets)
        return inputs, targets


class Rows:
    """Some of another client's samples."""

    def __init__(self, samples: Samples, rows: Tensor) -> None:
        self.samples, self.rows = samples, rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        return self.samples.batch(self.rows[index], seed)


class Joined:
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
        inputs, targets = default_join([b[0] for b in batches]), torch.cat([b[1] for b in batches])
        return take(inputs, order), targets[order]


def default_join(pieces: list[Any]) -> Any:
    """Concatenate batches of tensors, or of tuples, lists and dicts of them."""
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat(pieces)
    if isinstance(first, dict):
        return {k: default_join([piece[k] for piece in pieces]) for k in first}
    return type(first)(default_join(list(group)) for group in zip(*pieces, strict=True))


def take(inputs: Any, order: Tensor) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[order]
    if isinstance(inputs, dict):
        return {k: take(v, order) for k, v in inputs.items()}
    return type(inputs)(take(v, order) for v in inputs)


class LazyClients:
    """Clients read by `load(client)` when they are sampled; the last few stay in memory."""

    def __init__(self, load: Callable[[int], Samples], count: int) -> None:
        self.count = count
        self.read = lru_cache(maxsize=32)(load)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Samples:
        return self.read(client)


class Reader:
    """Turns what a person passes as data into samples on one device, checked once."""

    def __init__(
        self, dtype: torch.dtype, device: torch.device, check: Check, collate: Collate | None, labels: bool
    ) -> None:
        self.dtype, self.device, self.check, self.collate, self.labels = dtype, device, check, collate, labels

    def samples(self, data: Any, name: str) -> Samples:
        """`data` as samples: an (x, y) pair, a map-style dataset, or samples already."""
        if isinstance(data, TensorSamples | DatasetSamples | Rows | Joined):
            return data
        if is_pair(data):
            inputs, targets = self.convert(*data)
            if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
                raise InputError(
                    f"{name}: {_length(inputs)} inputs but {_length(targets)} targets; "
                    "x and y must have one row per sample."
                )
            if len(targets) == 0:
                raise InputError(f"{name} has no data; leave it out or give it at least one sample.")
            self.check(name, inputs, targets)
            return TensorSamples(inputs, targets)
        if isinstance(data, tuple):
            raise InputError(f"{name}: expected an (x, y) pair, not a tuple of {len(data)}.")
        if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
            if len(data) == 0:
                raise InputError(f"{name} has no data; leave it out or give it at least one sample.")
            return DatasetSamples(data, self.collate, self.convert, self.check, name)
        hint = "; pass loader.dataset" if isinstance(data, torch.utils.data.DataLoader) else ""
        raise InputError(
            f"{name}: expected an (x, y) pair or a dataset with __len__ and __getitem__, "
            f"not {type(data).__name__}{hint}."
        )

    def inputs(self, inputs: Any) -> Tensor:
        tensor: Tensor = self._tensors(inputs)
        self.check("The data", tensor, None)
        return tensor

    def convert(self, inputs: Any, targets: Any) -> Batch:
        return self._tensors(inputs), self._targets(targets)

    def _tensors(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: self._tensors(v) for k, v in value.items()}
        if isinstance(value, tuple):
            return tuple(self._tensors(v) for v in value)
        tensor = _as_tensor(value).to(self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _targets(self, value: Any) -> Tensor:
        tensor = _as_tensor(value).to(self.device)
        if self.labels and not tensor.is_floating_point():
            return tensor.long()
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def clients(self, clients: Any, count: int | None) -> Clients:
        if callable(clients) and not hasattr(clients, "__len__"):
            if count is None or count < 1:
                raise InputError("clients is a function: also give their number, for example client_count=1000.")
            return LazyClients(lambda k: self.samples(clients(k), f"Client {k}"), count)
        if isinstance(clients, tuple | list) and len(clients) == 0:
            raise InputError("There are no clients; give at least one.")
        if is_pair(clients) and isinstance(clients[0], Tensor | np.ndarray):
            raise InputError("clients is one (x, y) pair; give a list with a pair for each client.")
        if not isinstance(clients, Sequence):
            raise InputError(f"clients must be a list of data sets or a function, not {type(clients).__name__}.")
        if count is not None and count != len(clients):
            raise InputError(
                f"client_count is {count} but the list holds {len(clients)} clients; leave client_count out."
            )
        return [self.samples(data, f"Client {k}") for k, data in enumerate(clients)]


def is_pair(data: Any) -> bool:
    """(x, y): any tuple of two, or a list of two arrays (a list of two tuples is a small dataset)."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return isinstance(data, tuple) or all(isinstance(part, Tensor | np.ndarray) for part in data)


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        return torch.as_tensor(np.ascontiguousarray(value))
    except (TypeError, ValueError) as error:
        raise InputError(f"Data must be numbers in arrays or tensors: {error}.") from error


def _length(value: Any) -> str:
    return str(len(value)) if getattr(value, "ndim", 0) else "a single number of"


def split_validation(clients: Clients, share: float, seed: int) -> tuple[list[Samples], Samples]:
    """Cut a share from each client (none from a client of one sample) and join the cuts to a validation set."""
    if isinstance(clients, LazyClients):
        raise InputError(
            "A validation share cannot be cut from clients that are loaded lazily; pass validation=(x, y)."
        )
    kept, cut = [], []
    for client, samples in enumerate(_each(clients)):
        order = torch.from_numpy(rng.generator(seed, "validation", client).permutation(len(samples)))
        held = min(round(share * len(samples)), len(samples) - 1)
        kept.append(Rows(samples, order[held:].sort().values))
        if held:
            cut.append(Rows(samples, order[:held].sort().values))
    if not cut:
        raise InputError(f"A validation share of {share:g} of such small clients is no sample at all; raise it.")
    return list(kept), Joined(cut)


def _each(clients: Clients) -> Iterator[Samples]:
    return (clients[k] for k in range(len(clients)))
