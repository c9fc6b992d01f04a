"""The samples of clients, read as batches by index.

A client holds rows of tensors, a map-style dataset, or some or several of these. The clients
themselves are a list, or are loaded by a function when they are sampled.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedwmsam import rng
from fedwmsam.data.augmentation import Augmentation
from fedwmsam.data.base import BatchTransform
from fedwmsam.errors import InputError, describe_error
from fedwmsam.training.inputs import LABELS, concat, describe, map_tensors, named_parts, parts_of
from fedwmsam.training.task import Batch, Samples

Collate = Callable[[list[Any]], Any]
"""Joins a list of samples to one batch, as the `collate_fn` of PyTorch's DataLoader does."""

CPU = torch.device("cpu")
MAX_LOADED_CLIENTS = 32
"""Clients that `LazyClients` keeps in memory."""


class Clients(Protocol):
    """All clients by number, in a list or loaded when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, client: int) -> Samples: ...


class TensorSamples:
    """Rows of resident or memory-mapped tensors; the inputs may be a tuple or a mapping of them.

    `indices` selects some of the rows without copying the data. `transform` turns a batch as stored
    (bytes, say) into what the model sees; `augment` changes it while training.
    """

    def __init__(
        self,
        inputs: Any,
        targets: Tensor,
        indices: Tensor | None = None,
        transform: BatchTransform | None = None,
        augment: Augmentation | None = None,
    ) -> None:
        self.inputs = inputs
        self.targets = targets
        self.indices = None if indices is None else indices.to(targets.device)
        self.transform = transform
        self.augment = augment

    def __len__(self) -> int:
        return len(self.targets) if self.indices is None else len(self.indices)

    @property
    def index_device(self) -> torch.device:
        return self.targets.device

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        """Return these samples; a seed means training, where they may be augmented."""
        # index_select copies whole rows where inputs[rows] would copy element by element.
        rows = index.to(self.targets.device)
        if self.indices is not None:
            rows = self.indices.index_select(0, rows)
        inputs = map_tensors(self.inputs, lambda tensor: tensor.index_select(0, rows))
        if self.transform is not None:
            inputs = self.transform(inputs)
        if self.augment is not None and seed is not None:
            inputs = self.augment(inputs, seed)
        return inputs, self.targets.index_select(0, rows)


class DatasetSamples:
    """The samples of a map-style dataset, read and collated batch by batch.

    `to_batch` turns collated inputs and targets into tensors of the model's type and device, and
    raises InputError for those that the model cannot take; `name` says in messages whose data they
    are.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate | None,
        to_batch: Callable[[Any, Any, str], Batch],
        name: str,
    ):
        self.dataset = dataset
        self.collate = collate or default_collate
        self.to_batch = to_batch
        self.name = name

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def index_device(self) -> torch.device:
        return CPU

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        """Return these samples; a seed means training, and seeds PyTorch's generator.

        Random transforms of the dataset that draw from that generator are then repeatable like
        everything else. Raise InputError if the collated batch is not (inputs, targets).
        """
        return self.join(self.read(index, seed))

    def read(self, index: Tensor, seed: int | None = None) -> list[Any]:
        """Return these samples as the dataset has them; a seed is as for `batch`."""
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        return [self.dataset[i] for i in index.tolist()]

    def join(self, samples: list[Any]) -> Batch:
        """Return samples as one batch; raise InputError if they cannot be collated to one."""
        if self.collate is default_collate:
            inputs, targets = collate_by_default(samples, self.name)
        else:
            inputs, targets = split_targets(self.collate(samples), self.name)
        return self.to_batch(inputs, targets, self.name)


def collate_by_default(samples: list[Any], name: str) -> tuple[Any, Any]:
    """Return the inputs and the targets of samples as PyTorch's default collate joins them.

    Raise InputError if it fails, or where it makes columns of rows, as it does of lists.
    """
    try:
        collated = default_collate(samples)
    except (RuntimeError, TypeError, KeyError) as error:
        raise InputError(
            f"{name}: PyTorch's default collate cannot join the samples to a batch: "
            f"{describe_error(error)}; give them all the same fields, shapes and types, or pass "
            "collate=."
        ) from error
    inputs, targets = split_targets(collated, name)
    named = [(f"field {part_name[1:]!r}", part) for part_name, part in named_parts(inputs)]
    fields = named if isinstance(inputs, Mapping) else []
    for field, part in [*fields, ("target", targets)]:
        if isinstance(part, list) and any(isinstance(value, Tensor) for value in part):
            raise InputError(
                f"{name}: the {field} of a sample is a list, whose positions PyTorch's default "
                "collate would take for samples; make it a tensor, of Hugging Face datasets with "
                '.with_format("torch"), or pass collate=.'
            )
    return inputs, targets


class SubsetSamples:
    """Some of a client's samples, selected by their indices."""

    def __init__(self, samples: Samples, indices: Tensor) -> None:
        self.samples = samples
        self.indices = indices.to(samples.index_device)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def index_device(self) -> torch.device:
        return self.samples.index_device

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        """Return these samples of the subset; a seed means training."""
        return self.samples.batch(self.indices[index.to(self.index_device)], seed)


class ConcatSamples:
    """Several sets of samples one after the other."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def index_device(self) -> torch.device:
        return CPU

    def batch(self, index: Tensor, seed: int | None = None) -> Batch:
        """Return these samples in the order of `index`, read part by part.

        Where batches of the parts differ in shape, since a collate function pads each of them to
        its longest sample, it joins the samples of all parts. Raise InputError if there is none.
        """
        indices = index.numpy()
        part_indices = np.searchsorted(self.ends, indices, side="right")
        pieces: list[tuple[Samples, Tensor]] = []
        for part_index in np.unique(part_indices):
            part = self.parts[int(part_index)]
            start = self.ends[part_index] - len(part)
            local = indices[part_indices == part_index] - start
            pieces.append((part, torch.from_numpy(local)))
        by_part = np.argsort(part_indices, kind="stable")
        order = torch.from_numpy(np.argsort(by_part, kind="stable"))
        batches = [part.batch(local, seed) for part, local in pieces]
        if len(set(map(row_shapes, batches))) == 1:
            inputs = concat([batch[0] for batch in batches])
            targets = torch.cat([batch[1] for batch in batches])
        else:
            inputs, targets = join_unequal(pieces, batches, seed)
        order = order.to(targets.device)
        return map_tensors(inputs, lambda tensor: tensor[order]), targets[order]


def row_shapes(batch: Batch) -> tuple[torch.Size, ...]:
    """Return the shapes of one sample's inputs and target in a batch."""
    return tuple(part.shape[1:] for part in parts_of(batch))


def join_unequal(
    pieces: list[tuple[Samples, Tensor]], batches: list[Batch], seed: int | None
) -> Batch:
    """Return samples of several datasets, one after the other, as their collate joins them.

    Raise InputError if they are not of datasets with one collate function. `batches` are those of
    the single datasets.
    """
    rows: list[Any] = []
    owners: list[DatasetSamples] = []
    for samples, index in pieces:
        while isinstance(samples, SubsetSamples):
            index = samples.indices[index]
            samples = samples.samples
        if isinstance(samples, DatasetSamples):
            owners.append(samples)
            rows += samples.read(index, seed)
    if len(owners) < len(pieces) or any(other.collate != owners[0].collate for other in owners):
        shapes = sorted({describe(inputs) for inputs, _ in batches})
        raise InputError(
            f"Samples of all clients cannot be joined, since their inputs differ in shape: "
            f"{', '.join(shapes[:2])}; give datasets with one collate= that pads them, or "
            "validation data instead of a share."
        )
    return owners[0].join(rows)


def split_targets(data: Any, name: str) -> tuple[Any, Any]:
    """Return the inputs and the targets of an (x, y) pair, or of a mapping that holds `labels`.

    Such a mapping is the inputs as a whole: the model computes its loss itself. Raise InputError,
    which begins with `name`, for anything else.
    """
    if isinstance(data, Mapping) and LABELS in data:
        return dict(data), data[LABELS]
    if isinstance(data, Mapping):
        raise InputError(
            f"{name}: the data have the names {', '.join(map(str, data))}, but no {LABELS!r}; "
            "rename the targets, or pass (inputs, targets), with collate= for a dataset."
        )
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InputError(
            f"{name}: a batch must be (inputs, targets) or a mapping with {LABELS!r}, "
            f"not {type(data).__name__}; use collate=."
        )
    return data[0], data[1]


class LazyClients:
    """Clients loaded by `load(client)` when they are sampled; the last few stay in memory."""

    def __init__(self, load: Callable[[int], Samples], count: int) -> None:
        self.load = load
        self.count = count
        self.load_client = lru_cache(maxsize=MAX_LOADED_CLIENTS)(load)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the clients in memory out when a worker process is sent the function."""
        return LazyClients, (self.load, self.count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Samples:
        return self.load_client(client)


class NamedClients(list[Samples]):
    """Clients in a list that have names, too."""

    def __init__(self, samples: Iterable[Samples], names: Iterable[str]) -> None:
        super().__init__(samples)
        self.names = tuple(names)


def names_of(clients: Clients) -> tuple[str, ...]:
    """Return the names of the clients; none if they have only numbers."""
    return clients.names if isinstance(clients, NamedClients) else ()


def client_key(clients: Clients, client: int) -> str:
    """Return a client's name, or its number if it has none: a key of what is kept by client."""
    return clients.names[client] if isinstance(clients, NamedClients) else str(client)


def client_label(clients: Clients, client: int) -> str:
    """Return how messages call a client: by its name in quotation marks, or by its number."""
    return repr(clients.names[client]) if isinstance(clients, NamedClients) else str(client)


def hold_out_per_client(clients: Clients, share: float, seed: int) -> tuple[list[Samples], Samples]:
    """Return the clients without a share of their samples, and these shares joined.

    A client of one sample keeps it. Raise InputError if the clients are loaded lazily, or if they
    are so small that the share is no sample at all.
    """
    if isinstance(clients, LazyClients):
        raise InputError(
            "A validation share cannot be cut from clients that are loaded lazily; "
            "pass validation=(x, y)."
        )
    training: list[Samples] = []
    validation: list[Samples] = []
    for client, samples in enumerate(_iter_clients(clients)):
        permutation = rng.generator(seed, "validation", client).permutation(len(samples))
        order = torch.from_numpy(permutation)
        held_out = min(round(share * len(samples)), len(samples) - 1)
        training.append(SubsetSamples(samples, order[held_out:].sort().values))
        if held_out:
            validation.append(SubsetSamples(samples, order[:held_out].sort().values))
    if not validation:
        raise InputError(
            f"A validation share of {share:g} of such small clients is no sample at all; raise it."
        )
    if isinstance(clients, NamedClients):
        training = NamedClients(training, clients.names)
    return training, ConcatSamples(validation)


def _iter_clients(clients: Clients) -> Iterator[Samples]:
    return (clients[k] for k in range(len(clients)))
