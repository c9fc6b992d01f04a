"""Random changes of training images, batch by batch and from one seed."""

import functools
from collections.abc import Callable
from types import EllipsisType

import torch
from torch import Tensor
from torch.nn import functional

from fedwmsam.errors import InputError, unknown_name_message

Augmentation = Callable[[Tensor, int], Tensor]
"""(normalised images (n, channels, height, width), seed) → new images of the same shape."""

CROP_PADDING = 4
"""Pixels of padding on each side, which is how far a crop can move an image."""
OFFSETS_PER_AXIS = 2 * CROP_PADDING + 1
CROP_OFFSETS = OFFSETS_PER_AXIS**2
"""Different ways to crop the padded image."""

ImageRegion = tuple[EllipsisType, slice, slice]
"""An index of some rows and columns of an image, in all channels."""


def flip_and_crop(images: Tensor, seed: int) -> Tensor:
    """Return the images augmented by the paper's recipe.

    Half of the images are mirrored; half, drawn independently, are padded by 4 and cropped back at
    random. The padding is zero, which is the mean colour of normalised images. Raise InputError if
    `images` is not a batch of images.
    """
    if images.dim() != 4:
        raise InputError(
            "Images to augment must have shape (n, channels, height, width), "
            f"not {tuple(images.shape)}: reshape them."
        )
    # One number holds an image's three independent draws.
    draws = torch.randint(
        4 * CROP_OFFSETS, (len(images),), generator=torch.Generator().manual_seed(seed)
    )
    if images.device.type != "cpu" or images.dtype == torch.bfloat16 or images.requires_grad:
        return _augment_by_gather(images, draws)  # NumPy has none of these
    augmented = torch.zeros_like(images, memory_format=torch.contiguous_format)
    regions = _copy_regions(*images.shape[2:])
    # NumPy makes such a copy in a ninth of PyTorch's time. Operations on all images at once
    # (grid_sample, padding and windows, shifts and masks) take longer, as each moves all pixels
    # once more or looks each one up.
    for target, source, draw in zip(augmented.numpy(), images.numpy(), draws.tolist(), strict=True):
        target_region, source_region = regions[draw]
        target[target_region] = source[source_region]
    return augmented


@functools.cache
def _decode_draws() -> Tensor:
    """Return for each possible draw whether it mirrors, and its crop's shifts down and right."""
    draws = torch.arange(4 * CROP_OFFSETS)
    mirrored = draws // (2 * CROP_OFFSETS)
    cropped = draws // CROP_OFFSETS % 2
    shift = draws % CROP_OFFSETS
    down = cropped * (shift // OFFSETS_PER_AXIS - CROP_PADDING)
    right = cropped * (shift % OFFSETS_PER_AXIS - CROP_PADDING)
    return torch.stack([mirrored, down, right], dim=1)


@functools.lru_cache(maxsize=4)
def _copy_regions(height: int, width: int) -> list[tuple[ImageRegion, ImageRegion]]:
    """Return for each possible draw the region to fill and the region to copy from."""
    regions: list[tuple[ImageRegion, ImageRegion]] = []
    for mirrored, down, right in _decode_draws().tolist():
        rows, source_rows = _overlap(height, down)
        columns, source_columns = _overlap(width, right)
        if mirrored:  # the crop is taken from the mirrored image
            source_columns = range(
                width - 1 - source_columns.start, width - 1 - source_columns.stop, -1
            )
        target_region = (..., _slice(rows), _slice(columns))
        source_region = (..., _slice(source_rows), _slice(source_columns))
        regions.append((target_region, source_region))
    return regions


def _overlap(size: int, shift: int) -> tuple[range, range]:
    """Return the positions of the result that come from inside the image, and their sources."""
    positions = range(max(0, -shift), size - max(0, shift))
    sources = range(max(0, shift), size - max(0, -shift))
    return positions, sources


def _slice(positions: range) -> slice:
    if not positions:
        return slice(0)
    return slice(positions.start, positions.stop if positions.stop >= 0 else None, positions.step)


def _augment_by_gather(images: Tensor, draws: Tensor) -> Tensor:
    """Return what `flip_and_crop` returns, by looking up each pixel, on any device."""
    count, channels, height, width = images.shape
    mirrored, down, right = _decode_draws()[draws].to(images.device)[:, :, None].unbind(1)
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
    """Return the augmentation of that name, or None for "none".

    Raise InputError if there is no such name.
    """
    if name not in AUGMENTATIONS:
        raise InputError(unknown_name_message("augmentation", name, AUGMENTATIONS))
    return AUGMENTATIONS[name]
