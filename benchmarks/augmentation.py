"""Time of the paper's augmentation for whole batches against the same recipe image by image.

    python benchmarks/augmentation.py [--repeats 5] [--images 50000] [--batches 50 200 1000]

Both are executed in turn, on random 3 × 32 × 32 images and one thread. "alone" is the augmentation
itself, for batches already in memory; "loading" is what training waits for: a DataLoader over a
data set that augments each image, against gathering rows of the whole tensor and augmenting them.
Times are CPU time per batch; the ratio is of medians; the first repeat warms up.
"""

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from fedwmsam.data.augmentation import CROP_PADDING, flip_and_crop


def augment_image(image: Tensor) -> Tensor:
    """Return a randomly flipped and cropped image (channels, height, width)."""
    if torch.rand(()) < 0.5:
        image = image.flip(2)
    if torch.rand(()) < 0.5:
        height, width = image.shape[1:]
        top, left = torch.randint(2 * CROP_PADDING + 1, (2,)).tolist()
        padded = functional.pad(image, (CROP_PADDING,) * 4)
        image = padded[:, top : top + height, left : left + width]
    return image


class AugmentedDataset(Dataset[tuple[Tensor, Tensor]]):
    """A data set that augments each image when it is read."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return augment_image(self.images[index]), self.labels[index]


def alone_one_by_one(images: Tensor, _labels: Tensor, batch: int) -> None:
    for part in images.split(batch):
        torch.stack([augment_image(image) for image in part])


def alone_batched(images: Tensor, _labels: Tensor, batch: int) -> None:
    for seed, part in enumerate(images.split(batch)):
        flip_and_crop(part, seed)


def loading_one_by_one(images: Tensor, labels: Tensor, batch: int) -> None:
    for _ in DataLoader(AugmentedDataset(images, labels), batch, shuffle=True):
        pass


def loading_batched(images: Tensor, labels: Tensor, batch: int) -> None:
    for seed, index in enumerate(torch.randperm(len(labels)).split(batch)):
        flip_and_crop(images.index_select(0, index), seed), labels.index_select(0, index)


Work = Callable[[Tensor, Tensor, int], None]
PAIRS: dict[str, tuple[Work, Work]] = {
    "alone": (alone_one_by_one, alone_batched),
    "loading": (loading_one_by_one, loading_batched),
}


def cpu_seconds(work: Work, images: Tensor, labels: Tensor, batch: int) -> float:
    start = time.process_time()
    work(images, labels, batch)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[50, 200, 1000])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randn(arguments.images, 3, 32, 32)
    labels = torch.randint(10, (arguments.images,))
    works = list(itertools.chain(*PAIRS.values()))
    cases = [(work, batch) for batch, work in itertools.product(arguments.batches, works)]
    seconds: dict[tuple[Work, int], list[float]] = {case: [] for case in cases}
    for _ in range(arguments.repeats + 1):
        for work, batch in cases:
            seconds[work, batch].append(cpu_seconds(work, images, labels, batch))
    print(
        f"{platform.processor() or platform.machine()}, "
        f"torch {torch.__version__}, n = {arguments.repeats}"
    )
    for batch in arguments.batches:
        for name, pair in PAIRS.items():
            medians = [statistics.median(seconds[work, batch][1:]) for work in pair]
            slow, fast = (1000 * median * batch / arguments.images for median in medians)
            print(
                f"batch {batch:4} {name:8}{slow:6.2f} ms one by one, {fast:5.2f} ms batched: "
                f"{slow / fast:.1f} ×"
            )


if __name__ == "__main__":
    main()
