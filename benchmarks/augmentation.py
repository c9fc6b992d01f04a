"""Time of the paper's augmentation for whole batches against the same recipe image by image, interleaved in one run.

    python benchmarks/augmentation.py [--repeats 5] [--images 50000] [--batches 50 200 1000]

Random 3 × 32 × 32 images on one thread. "alone" is the change itself, for batches already in memory; "loading" is what
training waits for: a DataLoader over a data set that changes each image it hands out, against picking rows of the whole
tensor and changing them. CPU time a batch; the ratio is of medians; the first repeat warms up.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from fedwmsam.data.augmentation import CROP_PADDING, flip_and_crop


def change(image: Tensor) -> Tensor:
    """The recipe for one image (channels, height, width), as a data set's transform has it."""
    if torch.rand(()) < 0.5:
        image = image.flip(2)
    if torch.rand(()) < 0.5:
        height, width = image.shape[1:]
        top, left = torch.randint(2 * CROP_PADDING + 1, (2,)).tolist()
        image = functional.pad(image, (CROP_PADDING,) * 4)[
            :, top : top + height, left : left + width
        ]
    return image


class Changed(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return change(self.images[index]), self.labels[index]


def alone_one_by_one(images: Tensor, _labels: Tensor, batch: int) -> None:
    for part in images.split(batch):
        torch.stack([change(image) for image in part])


def alone_batched(images: Tensor, _labels: Tensor, batch: int) -> None:
    for seed, part in enumerate(images.split(batch)):
        flip_and_crop(part, seed)


def loading_one_by_one(images: Tensor, labels: Tensor, batch: int) -> None:
    for _ in DataLoader(Changed(images, labels), batch, shuffle=True):
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
    images, labels = (
        torch.randn(arguments.images, 3, 32, 32),
        torch.randint(10, (arguments.images,)),
    )
    cases = [
        (work, batch) for batch in arguments.batches for pair in PAIRS.values() for work in pair
    ]
    seconds: dict[tuple[Work, int], list[float]] = {case: [] for case in cases}
    for _ in range(arguments.repeats + 1):
        for work, batch in cases:
            seconds[work, batch].append(cpu_seconds(work, images, labels, batch))
    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, n = {arguments.repeats}"
    )
    for batch in arguments.batches:
        for name, pair in PAIRS.items():
            middle = [statistics.median(seconds[work, batch][1:]) for work in pair]
            slow, fast = (1000 * value * batch / arguments.images for value in middle)
            print(
                f"batch {batch:4} {name:8}{slow:6.2f} ms one by one, {fast:5.2f} ms batched: {slow / fast:.1f} ×"
            )


if __name__ == "__main__":
    main()
