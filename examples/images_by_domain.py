"""Pictures of the same things in several styles, one client each: does one model serve all of them?

    python examples/images_by_domain.py                               # scikit-learn's digits in four styles
    python examples/images_by_domain.py --folder office_caltech_10    # your folder: domain/class/picture.png

The folder's domains are the clients (`natural`). Each trains on its own style only; the table says how well the common
model reads each style, and last how well a model trained without a style reads that one.
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

Picture = npt.NDArray[np.uint8]
STYLES: dict[str, Callable[[Picture], Picture]] = {
    "plain": lambda picture: picture,
    "inverted": lambda picture: 255 - picture,
    "faint": lambda picture: picture // 4 + 96,
    "tilted": lambda picture: np.asarray(Image.fromarray(picture).rotate(30)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="One client for each domain of an image folder.")
    parser.add_argument("--folder", help="pictures as domain/class/picture.png")
    folder = parser.parse_args().folder or draw_styles(Path(tempfile.mkdtemp()))
    data = load_dataset(str(folder), image_size=16)

    table = Table("method", *data.group_names, f"{data.group_names[-1]}, never seen")
    for method in ("fedavg", "fedwmsam"):
        without = load_dataset(str(folder), image_size=16, leave_out=data.group_names[-1])
        figures = [*by_domain(data, method), by_domain(without, method)[-1]]
        table.add_row(method, *(f"{figure:.3f}" for figure in figures))
    Console(width=110).print(table)


def draw_styles(folder: Path) -> Path:
    """Each style draws digits of its own: 120 pictures that no other style has."""
    digits = load_digits()
    for number, (name, style) in enumerate(STYLES.items()):
        for place in range(number, 480, len(STYLES)):
            target = folder / name / str(digits.target[place])
            target.mkdir(parents=True, exist_ok=True)
            picture = (digits.images[place] * 15.9).astype(np.uint8)
            Image.fromarray(style(picture)).save(target / f"{place}.png")
    return folder


def by_domain(data: Dataset, method: str) -> list[float]:
    """The accuracy on each domain's test pictures, after a training in which every domain that has some is a client."""
    assert data.train.groups is not None and data.test.groups is not None
    x, y = data.prepared(data.train)
    clients = [(x[rows], y[rows]) for rows in map(data.train.groups.eq, data.train.groups.unique())]
    network = model_factory("cnn", data.input_shape, data.classes)
    result = fedwmsam.fit(
        network, clients, method, rounds=8, local_epochs=2, batch_size=20, participation=1.0
    )
    test_x, test_y = data.prepared(data.test)
    rights = result.predict(test_x).argmax(dim=1) == test_y
    return [
        float(rights[data.test.groups == group].float().mean())
        for group in torch.unique(data.test.groups)
    ]


if __name__ == "__main__":
    main()
