"""The paper's augmentation: what it does to each image, how often, and that a seed fixes it."""

import hashlib
import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedwmsam.data.augmentation import AUGMENTATIONS, get_augmentation
from fedwmsam.errors import InputError

MIDDLE = 4


def paper(images: Tensor, seed: int) -> Tensor:
    augment = get_augmentation("paper")
    assert augment is not None
    return augment(images, seed)


def distinct(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images without a zero or two equal pixels, so that each pixel can be recognised."""
    pixels = torch.arange(1, count * torch.Size(shape).numel() + 1, dtype=dtype)
    return pixels.view(count, *shape)


def find_change(image: Tensor, result: Tensor) -> tuple[bool, int, int]:
    """Return whether an image was mirrored, and its crop's top and left.

    All are tried, and exactly one must give the result.
    """
    height, width = image.shape[1:]
    matches = []
    for mirrored in (False, True):
        padded = functional.pad(image.flip(2) if mirrored else image, (4, 4, 4, 4))
        for top in range(9):
            for left in range(9):
                if torch.equal(padded[:, top : top + height, left : left + width], result):
                    matches.append((mirrored, top, left))
    assert len(matches) == 1, matches
    return matches[0]


@pytest.mark.parametrize("shape", [(3, 6, 6), (1, 5, 9), (2, 11, 7)])
def test_each_result_is_its_image_mirrored_and_moved_with_zeros_outside(shape):
    images = distinct(60, *shape)
    pairs = zip(images, paper(images, 3), strict=True)
    changes = [find_change(image, result) for image, result in pairs]
    assert len(set(changes)) > 15


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (64, 64), (33, 57), (224, 100)])
def test_pixels_are_copied_exactly_whatever_the_size(height, width):
    images = distinct(3, 1, height, width, dtype=torch.float64)
    for seed in range(2):
        for image, result in zip(images, paper(images, seed), strict=True):
            find_change(image, result)


def test_half_are_mirrored_and_half_cropped_independently_and_evenly():
    image = distinct(1, 1, 6, 6)
    results = paper(image.expand(20_000, 1, 6, 6), 5)
    kinds, counts = torch.unique(results, dim=0, return_counts=True)
    shares = {
        find_change(image[0], kind): count / 20_000
        for kind, count in zip(kinds, counts.tolist(), strict=True)
    }
    assert len(shares) == 2 * 81
    mirrored_share = sum(share for (mirrored, _, _), share in shares.items() if mirrored)
    assert mirrored_share == pytest.approx(0.5, abs=0.015)
    for mirrored in (False, True):  # a crop leaves the image where it was once in 81 times
        assert shares[mirrored, MIDDLE, MIDDLE] == pytest.approx(0.25 + 0.25 / 81, abs=0.015)
    moved = [share for (_, *offset), share in shares.items() if offset != [MIDDLE, MIDDLE]]
    # 1/324 = 0.0031, with a standard deviation of 0.0004
    assert min(moved) > 0.0015 and max(moved) < 0.005


def test_a_seed_fixes_the_result_and_another_one_changes_it():
    images = distinct(50, 3, 8, 8)
    assert torch.equal(paper(images, 2**62 + 1), paper(images, 2**62 + 1))
    assert not torch.equal(paper(images, 1), paper(images, 2))


def test_published_seeds_give_what_they_gave():
    result = paper(distinct(50, 3, 8, 8), 11)
    assert hashlib.sha256(result.numpy().tobytes()).hexdigest()[:12] == "f45ecddf03a7"


def bits(images: Tensor) -> Tensor:
    return images.contiguous().view(torch.int32)


def is_crop(image: Tensor, result: Tensor) -> bool:
    """Return whether `result` is a crop of the padded image or of its mirror image."""
    height, width = image.shape[1:]
    for whole in (image, image.flip(2)):
        padded = functional.pad(whole, (4, 4, 4, 4))
        for top, left in itertools.product(range(9), repeat=2):
            if torch.equal(padded[:, top : top + height, left : left + width], result):
                return True
    return False


def test_what_no_arithmetic_would_keep_is_kept():
    odd = torch.tensor([-0.0, float("inf"), -float("inf"), float("nan"), 1e-45])
    images = odd[torch.arange(60 * 2 * 6 * 7) % 5].view(60, 2, 6, 7)
    for image, result in zip(bits(images), bits(paper(images, 3)), strict=True):
        assert is_crop(image, result), "not a copy of the image's bits"


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 2), (4, 5)])
def test_images_smaller_than_a_crop_can_leave_the_frame(height, width):
    images = distinct(300, 1, height, width)
    results = paper(images, 1)
    assert (results.flatten(1) == 0).all(dim=1).any() and (results != 0).any()
    for image, result in zip(images, results, strict=True):
        assert is_crop(image, result)


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
    first = paper(images, 1)
    state = torch.get_rng_state()
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
