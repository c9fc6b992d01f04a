"""What a data set is: compactly stored samples, and how a batch of them becomes what a model sees.

Samples stay in the form their files have them in (bytes for pixels, small integers for characters), often mapped from a
cache file instead of read, and only the batch at hand becomes floats. A data set is then as large in memory as on disk.
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
TrainTestArrays = tuple[Array, Array]  # of the training samples and of the test samples
BatchTransform = Callable[[Tensor], Tensor]
"""A gathered batch of stored inputs -> what the model sees: normalised float32, or int64 tokens."""

TEST_FRACTION = 0.2
MOST_CLASSES = 1 << 16


@dataclass(frozen=True, eq=False)  # eq would compare tensors, whose == is not a truth value
class Split:
    inputs: Tensor  # as stored: uint8 pixels (channels first), characters, or float features; may be mapped from a file
    labels: Tensor  # int64
    groups: Tensor | None = (
        None  # int64: the natural client of each sample (its domain, its speaker)
    )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples.

    Groups are numbered so that those with training samples are 0, 1, ... without gaps; a group that has only test
    samples (a domain left out of training) comes after them.
    """

    name: str
    train: Split
    test: Split
    classes: int
    source: str  # where it was read from
    prepare: BatchTransform
    class_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one prepared input."""
        return tuple(self.prepare(self.train.inputs[:1]).shape[1:])

    @property
    def hash(self) -> str:
        """Of every stored input and label, training and test: two data sets of one hash train alike."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (self.train.inputs, self.train.labels, self.test.inputs, self.test.labels):
            digest.update(np.ascontiguousarray(tensor.numpy()).data.cast("B"))
        return digest.hexdigest()

    def prepared(self, split: Split) -> tuple[Tensor, Tensor]:
        """A whole split as an (x, y) pair for `fit`; large data are better prepared batch by batch."""
        return self.prepare(split.inputs), split.labels


@dataclass(frozen=True)
class Normalise:
    """Bytes to floats of about mean 0 and deviation 1, by one mean and deviation for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    largest: float = 255.0  # divided by it, not multiplied by 1/255, which would round differently

    def __call__(self, inputs: Tensor) -> Tensor:
        mean, std = (
            channel_tensor(self.mean, inputs.device),
            channel_tensor(self.std, inputs.device),
        )
        return inputs.to(torch.float32, copy=True).div_(self.largest).sub_(mean).div_(std)


@functools.lru_cache
def channel_tensor(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One for each channel; kept, because making them takes as long as using them on a small batch."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


def unit_range_normaliser(channels: int) -> Normalise:
    """Pixels from -1 to 1, for pictures whose mean and deviation nobody has published."""
    return Normalise((0.5,) * channels, (0.5,) * channels)


def as_float(inputs: Tensor) -> Tensor:
    return inputs.to(torch.float32)


def as_tokens(inputs: Tensor) -> Tensor:
    return inputs.to(torch.int64)


def make_split(inputs: Array, labels: Array, groups: Array | None = None) -> Split:
    def numbers(array: Array) -> Tensor:
        return torch.from_numpy(array.astype(np.int64, copy=False))

    return Split(
        torch.from_numpy(inputs), numbers(labels), None if groups is None else numbers(groups)
    )


def make_dataset(
    name: str,
    source: str,
    inputs: TrainTestArrays,
    labels: TrainTestArrays,
    *,
    classes: int,
    prepare: BatchTransform,
    class_names: tuple[str, ...] = (),
    groups: TrainTestArrays | None = None,
) -> Dataset:
    """A data set of arrays; the labels are numbers already, the groups of any kind that can be sorted."""
    train_groups, test_groups, group_names = (
        encode_groups(*groups) if groups is not None else (None, None, ())
    )
    train, test = (
        make_split(inputs[0], labels[0], train_groups),
        make_split(inputs[1], labels[1], test_groups),
    )
    return Dataset(name, train, test, classes, source, prepare, class_names, group_names)


def test_mask(count: int, *indices: int) -> npt.NDArray[np.bool_]:
    """True for the fifth of `count` samples that is for testing, the same in every run: at least one, never all."""
    chosen = np.zeros(count, dtype=np.bool_)
    if count > 1:
        order = generator(0, "split", *indices).permutation(count)
        chosen[order[: max(1, round(TEST_FRACTION * count))]] = True
    return chosen


def encode_groups(train: Array, test: Array) -> tuple[Array, Array, tuple[str, ...]]:
    """Groups of any sortable kind as numbers, those of the training samples first, and their names."""
    trained, train_numbers = np.unique(train, return_inverse=True)
    names = np.concatenate([trained, np.setdiff1d(test, trained)])
    order = np.argsort(names, kind="stable")
    test_numbers = order[np.searchsorted(names, test, sorter=order)]
    return train_numbers, test_numbers, tuple(map(str, names.tolist()))


def check_int_option(option: str, value: object, least: int, most: int) -> int:
    """The value of a whole-number option, checked."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(
            f"{option} is {value!r}: expected a whole number from {least} to {most}, give one"
        )
    return value


def standardise(train: Array, test: Array, columns: Sequence[str], source: str) -> TrainTestArrays:
    """Each column by the mean and deviation of its training rows, in float64, then as float32."""
    mean, std = train.mean(axis=0), train.std(axis=0)
    std = np.where(std > 0, std, 1.0)  # a constant column becomes zeros
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = [((rows - mean) / std).astype(np.float32) for rows in (train, test)]
    bad = np.flatnonzero(~(np.isfinite(scaled[0]).all(axis=0) & np.isfinite(scaled[1]).all(axis=0)))
    if len(bad):
        raise InputError(
            f"{source}: the numbers of the column {columns[bad[0]]!r} are too far apart to be standardised, "
            "expected numbers of similar size, correct or drop the column"
        )
    return scaled[0], scaled[1]
