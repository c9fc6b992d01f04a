"""Time of the paper's augmentation for whole batches against the same recipe image by image, interleaved in one run.

    python benchmarks/augmentation.py [--repeats 5] [--images 50000]

Batches of 50 random 3 × 32 × 32 images on one thread. "alone" is the change itself, for batches already in memory;
"loading" is what training waits for: a DataLoader over a data set that changes each image it hands out, against
indexing the whole tensor and changing the batch. CPU time; the ratio is of medians; the first repeat warms up.
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

from fedwmsam.data.augmentation import REACH, flip_and_crop

BATCH = 50


def change(image: Tensor) -> Tensor:
    """The recipe for one image (channels, height, width), as a data set's transform has it."""
    if torch.rand(()) < 0.5:
        image = image.flip(2)
    if torch.rand(()) < 0.5:
        height, width = image.shape[1:]
        top, left = torch.randint(2 * REACH + 1, (2,)).tolist()
        image = functional.pad(image, (REACH,) * 4)[:, top : top + height, left : left + width]
    return image


class Changed(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return change(self.images[index]), self.labels[index]


def alone_one_by_one(images: Tensor, _labels: Tensor) -> None:
    for batch in images.split(BATCH):
        torch.stack([change(image) for image in batch])


def alone_batched(images: Tensor, _labels: Tensor) -> None:
    for seed, batch in enumerate(images.split(BATCH)):
        flip_and_crop(batch, seed)


def loading_one_by_one(images: Tensor, labels: Tensor) -> None:
    for _ in DataLoader(Changed(images, labels), BATCH, shuffle=True):
        pass


def loading_batched(images: Tensor, labels: Tensor) -> None:
    for seed, index in enumerate(torch.randperm(len(labels)).split(BATCH)):
        flip_and_crop(images[index], seed), labels[index]


PAIRS = {"alone": (alone_one_by_one, alone_batched), "loading": (loading_one_by_one, loading_batched)}


def cpu_seconds(function: Callable[[Tensor, Tensor], None], images: Tensor, labels: Tensor) -> float:
    start = time.process_time()
    function(images, labels)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=50_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.randn(arguments.images, 3, 32, 32), torch.randint(10, (arguments.images,))
    seconds: dict[Callable[[Tensor, Tensor], None], list[float]] = {f: [] for pair in PAIRS.values() for f in pair}
    for _ in range(arguments.repeats + 1):
        for function, values in seconds.items():
            values.append(cpu_seconds(function, images, labels))
    middle = {function: statistics.median(values[1:]) for function, values in seconds.items()}
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, n = {arguments.repeats}")
    for name, (slow, fast) in PAIRS.items():
        per_batch = [1000 * middle[function] * BATCH / arguments.images for function in (slow, fast)]
        print(f"{name:8} {per_batch[0]:.2f} ms a batch one by one, {per_batch[1]:.2f} ms batched: ", end="")
        print(f"{per_batch[0] / per_batch[1]:.1f} ×")


if __name__ == "__main__":
    main()
