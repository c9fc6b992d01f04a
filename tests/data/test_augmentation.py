"""The paper's augmentation: what it does to each image, how often, and that a seed fixes it."""

import hashlib

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedwmsam.data.augmentation import AUGMENTATIONS, get_augmentation
from fedwmsam.errors import InputError

MIDDLE = 4


def paper(images: Tensor, seed: int) -> Tensor:
    change = get_augmentation("paper")
    assert change is not None
    return change(images, seed)


def distinct(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images of which no two pixels are equal and none is zero, so that what became of each can be told."""
    pixels = torch.arange(1, count * torch.Size(shape).numel() + 1, dtype=dtype)
    return pixels.view(count, *shape)


def way_of(image: Tensor, result: Tensor) -> tuple[bool, int, int]:
    """Mirrored or not, and the crop's place, by trying all: exactly one must give the result."""
    height, width = image.shape[1:]
    found = []
    for mirrored in (False, True):
        padded = functional.pad(image.flip(2) if mirrored else image, (4, 4, 4, 4))
        for top in range(9):
            for left in range(9):
                if torch.equal(padded[:, top : top + height, left : left + width], result):
                    found.append((mirrored, top, left))
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("shape", [(3, 6, 6), (1, 5, 9), (2, 11, 7)])
def test_each_result_is_its_image_mirrored_and_moved_with_zeros_outside(shape):
    images = distinct(60, *shape)
    ways = [way_of(image, result) for image, result in zip(images, paper(images, 3), strict=True)]
    assert len(set(ways)) > 15


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (64, 64), (33, 57), (224, 100)])
def test_pixels_are_copied_exactly_whatever_the_size(height, width):
    images = distinct(3, 1, height, width, dtype=torch.float64)
    for seed in range(2):
        for image, result in zip(images, paper(images, seed), strict=True):
            way_of(image, result)


def test_half_are_mirrored_and_half_cropped_independently_and_evenly():
    image = distinct(1, 1, 6, 6)
    results = paper(image.expand(20_000, 1, 6, 6), 5)
    kinds, numbers = torch.unique(results, dim=0, return_counts=True)
    share = {
        way_of(image[0], kind): number / 20_000
        for kind, number in zip(kinds, numbers.tolist(), strict=True)
    }
    assert len(share) == 2 * 81
    assert sum(v for (mirrored, _, _), v in share.items() if mirrored) == pytest.approx(
        0.5, abs=0.015
    )
    for mirrored in (False, True):  # a crop leaves the image where it was once in 81 times
        assert share[mirrored, MIDDLE, MIDDLE] == pytest.approx(0.25 + 0.25 / 81, abs=0.015)
    moved = [value for (_, *place), value in share.items() if place != [MIDDLE, MIDDLE]]
    assert (
        min(moved) > 0.0015 and max(moved) < 0.005
    )  # 1/324 = 0.0031, with a standard deviation of 0.0004


def test_a_seed_fixes_the_result_and_another_one_changes_it():
    images = distinct(50, 3, 8, 8)
    assert torch.equal(paper(images, 2**62 + 1), paper(images, 2**62 + 1))
    assert not torch.equal(paper(images, 1), paper(images, 2))


def test_published_seeds_give_what_they_gave():
    result = paper(distinct(50, 3, 8, 8), 11)
    assert hashlib.sha256(result.numpy().tobytes()).hexdigest()[:12] == "f45ecddf03a7"


def bits(images: Tensor) -> Tensor:
    return images.contiguous().view(torch.int32)


def test_what_no_arithmetic_would_keep_is_kept():
    odd = torch.tensor([-0.0, float("inf"), -float("inf"), float("nan"), 1e-45])
    images = odd[torch.arange(60 * 2 * 6 * 7) % 5].view(60, 2, 6, 7)
    for image, result in zip(bits(images), bits(paper(images, 3)), strict=True):
        for mirrored in (image, image.flip(2)):
            padded = functional.pad(mirrored, (4, 4, 4, 4))
            if any(
                torch.equal(padded[:, y : y + 6, x : x + 7], result)
                for y in range(9)
                for x in range(9)
            ):
                break
        else:
            raise AssertionError("not a copy of the image's bits")


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 2), (4, 5)])
def test_images_smaller_than_a_crop_can_leave_the_frame(height, width):
    images = distinct(300, 1, height, width)
    results = paper(images, 1)
    assert (results.flatten(1) == 0).all(dim=1).any() and (results != 0).any()
    for image, result in zip(images, results, strict=True):
        padded = functional.pad(image, (4, 4, 4, 4))
        mirrored = functional.pad(image.flip(2), (4, 4, 4, 4))
        places = [
            (slice(None), slice(y, y + height), slice(x, x + width))
            for y in range(9)
            for x in range(9)
        ]
        assert any(
            torch.equal(whole[place], result) for whole in (padded, mirrored) for place in places
        )


def test_the_layout_in_memory_does_not_matter():
    images = distinct(50, 3, 9, 9)
    for same in (
        images.contiguous(memory_format=torch.channels_last),
        images.transpose(2, 3).contiguous().transpose(2, 3),
        torch.stack([images, images], dim=1)[:, 1],
    ):
        result = paper(same, 4)
        assert torch.equal(result, paper(images, 4)) and result.is_contiguous()


def test_gradients_go_back_to_the_pixels_they_came_from():
    images = distinct(50, 3, 9, 9, dtype=torch.float64).requires_grad_()
    result = paper(images, 4)
    (0.5 * result.square()).sum().backward()
    assert torch.equal(result.detach(), paper(images.detach(), 4))
    kept = torch.isin(images.detach(), result.detach())
    assert torch.equal(images.grad, images.detach() * kept)


def test_torchs_own_random_numbers_are_neither_used_nor_advanced():
    images = distinct(50, 3, 8, 8)
    torch.manual_seed(0)
    first, state = paper(images, 1), torch.get_rng_state()
    assert torch.equal(state, torch.manual_seed(0).get_state())
    torch.manual_seed(9)
    assert torch.equal(paper(images, 1), first)


def test_the_input_stays_as_it_was():
    images = distinct(50, 3, 8, 8)
    before = images.clone()
    result = paper(images, 1)
    assert torch.equal(images, before) and result.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_type_of_the_images_is_kept(dtype):
    images = distinct(2, 1, 8, 8).to(dtype)
    result = paper(images, 1)
    assert result.dtype == dtype and torch.equal(result.float(), paper(images.float(), 1))


def test_an_empty_batch_stays_empty():
    assert paper(torch.zeros(0, 3, 8, 8), 1).shape == (0, 3, 8, 8)


def test_images_need_four_dimensions():
    with pytest.raises(InputError, match=r"not \(5, 8, 8\)"):
        paper(torch.zeros(5, 8, 8), 1)


def test_augmentations_are_named():
    assert get_augmentation("none") is None and set(AUGMENTATIONS) == {"none", "paper"}
    with pytest.raises(InputError, match=r"Unknown augmentation 'papre'\. Did you mean 'paper'"):
        get_augmentation("papre")
