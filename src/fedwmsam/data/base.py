"""Data sets: compactly stored samples, and the transform that turns a batch into model inputs.

Samples stay in the form their files have them in (bytes for pixels, small integers for characters),
often mapped from a cache file instead of read, and only the batch at hand becomes floats. A data
set is then as large in memory as on disk.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedwmsam.errors import InputError
from fedwmsam.rng import generator

Array = npt.NDArray[Any]
TrainTestArrays = tuple[Array, Array]
"""An array of the training samples and one of the test samples."""
BatchTransform = Callable[[Tensor], Tensor]
"""A gathered batch of stored inputs → what the model sees: normalised float32, or int64 tokens."""

TEST_FRACTION = 0.2
"""The share of the samples that is held out for testing where the files do not name a test set."""
MAX_CLASSES = 1 << 16
"""The limit that class numbers in files must stay below."""
MAX_GROUPS = 1 << 20
"""The most groups of a data set; each has a name, and is a client of the rule `natural`."""


@dataclass(frozen=True, eq=False)  # eq would compare tensors, whose == is not a truth value
class Split:
    """The training samples or the test samples of a data set."""

    inputs: Tensor
    """Inputs as stored: uint8 pixels (channels first), characters, or float features.

    They may be mapped from a file.
    """
    labels: Tensor
    """Class numbers, int64."""
    groups: Tensor | None = None
    """The natural client of each sample (its speaker, device or domain) as a number, int64."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples, with what is known about them.

    Groups are numbered so that those with training samples are 0, 1, ... without gaps; a group that
    has only test samples (a domain left out of training) comes after them.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    source: str
    """The file or folder that the samples were read from."""
    transform: BatchTransform
    class_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one transformed input."""
        return tuple(self.transform(self.train.inputs[:1]).shape[1:])

    @property
    def hash(self) -> str:
        """Return a hash of every stored input and label, training and test.

        Groups and the transform do not count.
        """
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (self.train.inputs, self.train.labels, self.test.inputs, self.test.labels):
            digest.update(np.ascontiguousarray(tensor.numpy()).data.cast("B"))
        return digest.hexdigest()

    def transform_split(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return all samples of a split as an (x, y) pair for `fit`.

        Large data are better transformed batch by batch.
        """
        return self.transform(split.inputs), split.labels


@dataclass(frozen=True)
class Normalise:
    """Turns bytes into floats of about mean 0 and deviation 1, channel by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_value: float = 255.0
    """The value that becomes 1 before the mean is subtracted.

    Pixels are divided by it, not multiplied by 1/255, which would round differently.
    """

    def __call__(self, inputs: Tensor) -> Tensor:
        mean = channel_tensor(self.mean, inputs.device)
        std = channel_tensor(self.std, inputs.device)
        return inputs.to(torch.float32, copy=True).div_(self.max_value).sub_(mean).div_(std)


@functools.lru_cache
def channel_tensor(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return one value per channel in the shape (channels, 1, 1).

    The tensors are kept, because making them takes as long as using them on a small batch.
    """
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


def unit_range_normaliser(channels: int) -> Normalise:
    """Return a transform of bytes to -1 ... 1, for images of no published mean and deviation."""
    return Normalise((0.5,) * channels, (0.5,) * channels)


def as_float(inputs: Tensor) -> Tensor:
    """Return inputs as float32, otherwise unchanged."""
    return inputs.to(torch.float32)


def as_tokens(inputs: Tensor) -> Tensor:
    """Return inputs as int64, the type that embeddings take."""
    return inputs.to(torch.int64)


def make_split(inputs: Array, labels: Array, groups: Array | None = None) -> Split:
    """Return a split of arrays; inputs keep their type, labels and groups become int64."""
    group_tensor = None if groups is None else _to_int64(groups)
    return Split(torch.from_numpy(inputs), _to_int64(labels), group_tensor)


def _to_int64(array: Array) -> Tensor:
    return torch.from_numpy(array.astype(np.int64, copy=False))


def make_dataset(
    name: str,
    source: str,
    inputs: TrainTestArrays,
    labels: TrainTestArrays,
    *,
    num_classes: int,
    transform: BatchTransform,
    class_names: tuple[str, ...] = (),
    groups: TrainTestArrays | None = None,
) -> Dataset:
    """Return a data set of arrays.

    The labels are numbers already; the groups may be of any kind that can be sorted.
    """
    train_groups = None
    test_groups = None
    group_names: tuple[str, ...] = ()
    if groups is not None:
        train_groups, test_groups, group_names = encode_groups(*groups)
    train = make_split(inputs[0], labels[0], train_groups)
    test = make_split(inputs[1], labels[1], test_groups)
    return Dataset(name, train, test, num_classes, source, transform, class_names, group_names)


def held_out_mask(count: int, *indices: int) -> npt.NDArray[np.bool_]:
    """Return a mask that is true for the fifth of `count` samples that is held out for testing.

    It is the same in every run, and selects at least one sample but never all; of one sample it
    selects none. `indices` make masks of equal length differ.
    """
    mask = np.zeros(count, dtype=np.bool_)
    if count > 1:
        order = generator(0, "split", *indices).permutation(count)
        mask[order[: max(1, round(TEST_FRACTION * count))]] = True
    return mask


def encode_groups(train: Array, test: Array) -> tuple[Array, Array, tuple[str, ...]]:
    """Return the groups of training and test samples as numbers, and the groups' names.

    Groups of the training samples are numbered first, in sorted order. Raise InputError if there
    are too many.
    """
    train_names, train_numbers = np.unique(train, return_inverse=True)
    names = np.concatenate([train_names, np.setdiff1d(test, train_names)])
    if len(names) > MAX_GROUPS:
        raise InputError(
            f"the data hold {len(names)} groups, expected at most {MAX_GROUPS}, each a client of "
            "many samples: join some, or leave the groups out"
        )
    order = np.argsort(names, kind="stable")
    test_numbers = order[np.searchsorted(names, test, sorter=order)]
    return train_numbers, test_numbers, tuple(map(str, names.tolist()))


def check_int_option(option: str, value: object, minimum: int, maximum: int) -> int:
    """Return the value of a whole-number option, or raise InputError if it is out of range."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InputError(
            f"{option} is {value!r}: expected a whole number from {minimum} to {maximum}, give one"
        )
    return value


def standardise(train: Array, test: Array, columns: Sequence[str], source: str) -> TrainTestArrays:
    """Return both arrays standardised by the mean and deviation of each training column.

    Compute in float64 and return float32. Raise InputError, which begins with `source`, if that
    overflows in one of the `columns`.
    """
    mean = train.mean(axis=0)
    std = train.std(axis=0)
    std = np.where(std > 0, std, 1.0)  # a constant column becomes zeros

    def scale(rows: Array) -> Array:
        difference: Array = rows - mean
        difference /= std  # in place: a table may fill much of the memory
        return difference.astype(np.float32)

    with np.errstate(over="ignore", invalid="ignore"):
        scaled_train = scale(train)
        scaled_test = scale(test)
    finite = np.isfinite(scaled_train).all(axis=0) & np.isfinite(scaled_test).all(axis=0)
    bad_columns = np.flatnonzero(~finite)
    if len(bad_columns):
        raise InputError(
            f"{source}: the numbers of the column {columns[bad_columns[0]][:60]!r} are too far "
            "apart to be standardised, expected numbers of similar size, correct or drop the column"
        )
    return scaled_train, scaled_test
