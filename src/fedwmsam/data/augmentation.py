"""Random changes of training images, for a whole batch at a time and from one seed."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedwmsam.errors import InputError
from fedwmsam.wording import unknown

Augmentation = Callable[[Tensor, int], Tensor]
"""(normalised images (n, channels, height, width), seed) → new images of the same shape."""

REACH = 4  # pixels of padding on each side, so how far a crop can move an image
STEPS = 2 * REACH + 1
SHIFTS = STEPS**2


def flip_and_crop(images: Tensor, seed: int) -> Tensor:
    """The paper's recipe: half of the images are mirrored; half, drawn independently, are padded by 4 and cropped back
    at random. The padding is zero, which is the mean colour of normalised images."""
    if images.dim() != 4:
        raise InputError(
            f"Images to augment must have shape (n, channels, height, width), not {tuple(images.shape)}: reshape them."
        )
    height, width = images.shape[2:]
    precision = torch.promote_types(images.dtype, torch.float32)  # fewer bits cannot tell neighbouring pixels apart
    origins = _origins(height, width, precision, images.device)
    chosen = origins.index_select(0, _draw(len(images), seed).to(images.device))
    # One pass does it all: "nearest" copies the pixel each coordinate points at, exactly, and zero from outside.
    moved = functional.grid_sample(images.to(precision), chosen, "nearest", "zeros", align_corners=False)
    return moved.to(images.dtype)


def _draw(count: int, seed: int) -> Tensor:
    """Which of the 2 × 81 ways each image is changed: one number per image holds its three independent draws."""
    generator = torch.Generator().manual_seed(seed)
    return _ways().index_select(0, torch.randint(4 * SHIFTS, (count,), generator=generator))


@functools.cache
def _ways() -> Tensor:
    drawn = torch.arange(4 * SHIFTS)
    mirrored, cropped, shift = drawn // (2 * SHIFTS), drawn // SHIFTS % 2, drawn % SHIFTS
    return mirrored * SHIFTS + torch.where(cropped == 1, shift, SHIFTS // 2)  # the middle shift is none


@functools.lru_cache(maxsize=4)
def _origins(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """For each way, where each pixel comes from: (x, y) with -1 and 1 at the image's edges, as grid_sample wants it.

    Kept, because computing it takes longer than the augmentation: 1.3 MB for 32 × 32.
    """
    way = torch.arange(2 * SHIFTS)[:, None]
    mirrored, down, right = way >= SHIFTS, way % SHIFTS // STEPS - REACH, way % STEPS - REACH
    rows = torch.arange(height) + down
    columns = torch.arange(width) + right
    columns = torch.where(mirrored, width - 1 - columns, columns)  # the crop is taken from the mirrored image
    x = (2 * columns + 1).to(dtype) / width - 1
    y = (2 * rows + 1).to(dtype) / height - 1
    size = (len(way), height, width)
    return torch.stack([x[:, None, :].expand(size), y[:, :, None].expand(size)], dim=-1).to(device)


AUGMENTATIONS: dict[str, Augmentation | None] = {"none": None, "paper": flip_and_crop}


def augment(name: str) -> Augmentation | None:
    """The augmentation of that name; none at all for "none"."""
    if name not in AUGMENTATIONS:
        raise InputError(unknown("augmentation", name, AUGMENTATIONS))
    return AUGMENTATIONS[name]
