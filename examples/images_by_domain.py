"""Images of the same things in several styles, one client each: does one model serve all of them?

    python examples/images_by_domain.py                     # scikit-learn's digits in four styles
    python examples/images_by_domain.py --folder FOLDER     # your images: domain/class/picture.png

The folder's domains are the clients (`natural`). Each trains on its own style only. The table shows
the accuracy of the common model on each style, and last the accuracy on a style of a model that was
trained without it.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import fedwmsam
from fedwmsam.data import Dataset, load_dataset
from fedwmsam.models import model_factory

GreyImage = npt.NDArray[np.uint8]
STYLES: dict[str, Callable[[GreyImage], GreyImage]] = {
    "plain": lambda image: image,
    "inverted": lambda image: 255 - image,
    "faint": lambda image: image // 4 + 96,
    "tilted": lambda image: np.asarray(Image.fromarray(image).rotate(30)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="One client for each domain of an image folder.")
    parser.add_argument("--folder", help="pictures as domain/class/picture.png")
    folder = parser.parse_args().folder or write_images(Path(tempfile.mkdtemp()))
    data = load_dataset(str(folder), image_size=16)

    table = Table("method", *data.group_names, f"{data.group_names[-1]}, never seen")
    for method in ("fedavg", "fedwmsam"):
        left_out = load_dataset(str(folder), image_size=16, leave_out=data.group_names[-1])
        unseen_accuracy = train_and_test(left_out, method)[-1]
        accuracies = [*train_and_test(data, method), unseen_accuracy]
        table.add_row(method, *(f"{accuracy:.3f}" for accuracy in accuracies))
    Console(width=110).print(table)


def write_images(folder: Path) -> Path:
    """Write 120 digits in each style, none of them in two styles, and return the folder."""
    digits = load_digits()
    for number, (name, style) in enumerate(STYLES.items()):
        for index in range(number, 480, len(STYLES)):
            target = folder / name / str(digits.target[index])
            target.mkdir(parents=True, exist_ok=True)
            image = (digits.images[index] * 15.9).astype(np.uint8)
            Image.fromarray(style(image)).save(target / f"{index}.png")
    return folder


def train_and_test(data: Dataset, method: str) -> list[float]:
    """Train with the domains that have training images as clients.

    Return the accuracy on the test images of each domain.
    """
    assert data.train.groups is not None and data.test.groups is not None
    x, y = data.transform_split(data.train)
    clients = [(x[rows], y[rows]) for rows in map(data.train.groups.eq, data.train.groups.unique())]
    network = model_factory("cnn", data.input_shape, data.num_classes)
    result = fedwmsam.fit(
        network, clients, method, rounds=8, local_epochs=2, batch_size=20, participation=1.0
    )
    test_x, test_y = data.transform_split(data.test)
    is_correct = result.predict(test_x).argmax(dim=1) == test_y
    return [
        float(is_correct[data.test.groups == group].float().mean())
        for group in torch.unique(data.test.groups)
    ]


if __name__ == "__main__":
    main()
