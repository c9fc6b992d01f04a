"""Random changes of training images, for a whole batch at a time and from one seed."""

import functools
from collections.abc import Callable
from types import EllipsisType

import torch
from torch import Tensor
from torch.nn import functional

from fedwmsam.errors import InputError, unknown_name_message

Augmentation = Callable[[Tensor, int], Tensor]
"""(normalised images (n, channels, height, width), seed) → new images of the same shape."""

CROP_PADDING = 4  # pixels of padding on each side, so how far a crop can move an image
OFFSETS_PER_AXIS = 2 * CROP_PADDING + 1
CROP_OFFSETS = OFFSETS_PER_AXIS**2

ImageRegion = tuple[EllipsisType, slice, slice]
"""Rows and columns of an image, all channels."""


def flip_and_crop(images: Tensor, seed: int) -> Tensor:
    """The paper's recipe: half of the images are mirrored; half, drawn independently, are padded by 4 and cropped back
    at random. The padding is zero, which is the mean colour of normalised images."""
    if images.dim() != 4:
        raise InputError(
            f"Images to augment must have shape (n, channels, height, width), not {tuple(images.shape)}: reshape them."
        )
    # One number holds an image's three independent draws.
    drawn = torch.randint(
        4 * CROP_OFFSETS, (len(images),), generator=torch.Generator().manual_seed(seed)
    )
    if images.device.type != "cpu" or images.dtype == torch.bfloat16 or images.requires_grad:
        return _augment_by_gather(images, drawn)  # NumPy has none of these
    moved = torch.zeros_like(images, memory_format=torch.contiguous_format)
    copies = _copy_regions(*images.shape[2:])
    # NumPy makes such a copy in a ninth of PyTorch's time. Operations on the whole batch (grid_sample, padding and
    # windows, shifts and masks) take longer, as each moves all pixels once more or looks each one up.
    for target, source, number in zip(moved.numpy(), images.numpy(), drawn.tolist(), strict=True):
        there, here = copies[number]
        target[there] = source[here]
    return moved


@functools.cache
def _decode_draws() -> Tensor:
    """For each number that can be drawn: mirrored or not, and by how much the crop moves down and right."""
    drawn = torch.arange(4 * CROP_OFFSETS)
    mirrored, cropped, shift = (
        drawn // (2 * CROP_OFFSETS),
        drawn // CROP_OFFSETS % 2,
        drawn % CROP_OFFSETS,
    )
    return torch.stack(
        [
            mirrored,
            cropped * (shift // OFFSETS_PER_AXIS - CROP_PADDING),
            cropped * (shift % OFFSETS_PER_AXIS - CROP_PADDING),
        ],
        dim=1,
    )


@functools.lru_cache(maxsize=4)
def _copy_regions(height: int, width: int) -> list[tuple[ImageRegion, ImageRegion]]:
    """For each number that can be drawn: which part of the result is filled from which part of the image."""
    copies: list[tuple[ImageRegion, ImageRegion]] = []
    for mirrored, down, right in _decode_draws().tolist():
        (rows, from_rows), (columns, from_columns) = _overlap(height, down), _overlap(width, right)
        if mirrored:  # the crop is taken from the mirrored image
            from_columns = range(width - 1 - from_columns.start, width - 1 - from_columns.stop, -1)
        copies.append(
            ((..., _slice(rows), _slice(columns)), (..., _slice(from_rows), _slice(from_columns)))
        )
    return copies


def _overlap(size: int, shift: int) -> tuple[range, range]:
    """The places of the result that come from inside the image, and where they come from."""
    return range(max(0, -shift), size - max(0, shift)), range(max(0, shift), size - max(0, -shift))


def _slice(places: range) -> slice:
    if not places:
        return slice(0)
    return slice(places.start, places.stop if places.stop >= 0 else None, places.step)


def _augment_by_gather(images: Tensor, drawn: Tensor) -> Tensor:
    """The same by looking up each pixel, wherever the images are."""
    count, channels, height, width = images.shape
    mirrored, down, right = _decode_draws()[drawn].to(images.device)[:, :, None].unbind(1)
    rows = torch.arange(height, device=images.device) + down
    columns = torch.arange(width, device=images.device) + right
    columns = torch.where(mirrored == 1, width - 1 - columns, columns)
    padded = functional.pad(images, (CROP_PADDING,) * 4)
    image = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[
        image,
        channel,
        CROP_PADDING + rows[:, None, :, None],
        CROP_PADDING + columns[:, None, None, :],
    ]


AUGMENTATIONS: dict[str, Augmentation | None] = {"none": None, "paper": flip_and_crop}


def get_augmentation(name: str) -> Augmentation | None:
    """The augmentation of that name; none at all for "none"."""
    if name not in AUGMENTATIONS:
        raise InputError(unknown_name_message("augmentation", name, AUGMENTATIONS))
    return AUGMENTATIONS[name]
