"""Data sets of the Hugging Face `datasets` package, or of a stand-in with the same few methods where it is absent."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_support import refusal
from PIL import Image

from fedwmsam.data import from_hub


class Names:
    """Like datasets.ClassLabel."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)


class StandIn:
    """Like datasets.Dataset, as far as it is used."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any] | None = None) -> None:
        self.columns, self.column_names, self.features = columns, list(columns), features or {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]


def pictures(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (4, 4), (index, 0, 0)) for index in range(count)]


def png(index: int) -> dict[str, Any]:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (index, 0, 0)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


@pytest.mark.parametrize("kind", ["decoded", "encoded", "arrays"])
def test_pictures(kind: str) -> None:
    made = {
        "decoded": pictures(10),
        "encoded": [png(index) for index in range(10)],
        "arrays": [np.asarray(picture).tolist() for picture in pictures(10)],
    }
    data = StandIn({"image": made[kind], "label": [0, 1] * 5}, {"label": Names("cat", "dog", "eel")})
    found = from_hub(data, image_size=2)
    assert (len(found.train), len(found.test)) == (8, 2) and found.input_shape == (3, 2, 2)
    assert found.class_names == ("cat", "dog", "eel") and found.classes == 3
    for part in (found.train, found.test):
        assert (part.inputs[:, 0, 0, 0] % 2).tolist() == part.labels.tolist()


def test_splits_and_groups() -> None:
    train = StandIn({"img": pictures(4), "label": ["a", "b", "a", "b"], "writer": ["w", "v", "w", "v"]})
    test = StandIn({"img": pictures(2), "label": ["b", "a"], "writer": ["u", "w"]})
    found = from_hub({"train": train, "test": test}, image="img", group="writer", image_size=4, name="mine")
    assert found.class_names == ("a", "b") and found.test.labels.tolist() == [1, 0] and found.name == "mine"
    assert found.group_names == ("v", "w", "u")
    assert found.train.groups is not None and found.train.groups.tolist() == [1, 0, 1, 0]
    assert found.test.groups is not None and found.test.groups.tolist() == [2, 1]


def test_feature_columns_are_standardised() -> None:
    data = StandIn({"a": list(range(10)), "v": [[i, -i] for i in range(10)], "label": [0, 1] * 5})
    found = from_hub(data, features=["a", "v"])
    assert found.input_shape == (3,) and found.train.inputs.mean(dim=0).abs().max() < 1e-6
    assert torch.allclose(found.train.inputs[:, 0], -found.train.inputs[:, 2])


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ({}, {}, "empty dict"),
        ({"test": StandIn({})}, {}, "'train'"),
        ([1, 2], {}, "list"),
        (StandIn({"label": [0, 1]}), {}, "either"),
        (StandIn({"image": [], "label": []}), {}, "0 training"),
        (StandIn({"image": pictures(2), "label": [0, 1]}), {"features": ["a"], "image": "image"}, "either"),
        (StandIn({"image": pictures(2), "lable": [0, 1]}), {}, "Did you mean 'lable'"),
        (StandIn({"image": pictures(2), "label": [0, -1]}), {}, "-1"),
        (StandIn({"image": pictures(2), "label": [[0], [1]]}), {}, "lists"),
        (StandIn({"image": pictures(2), "label": [None, 1]}), {}, "object"),
        (StandIn({"image": [None, 3], "label": [0, 1]}), {}, "row 0"),
        (StandIn({"image": [{"bytes": b"x"}, 3], "label": [0, 1]}), {}, "row 0"),
        (StandIn({"image": pictures(2), "label": [0, 1]}), {"image_size": 0}, "image_size"),
        (StandIn({"image": pictures(2), "label": [0, 1]}), {"group": "g"}, "'g'"),
        (StandIn({"a": [1.0, float("nan")], "label": [0, 1]}), {"features": ["a"]}, "finite"),
        (StandIn({"a": ["x", "y"], "label": [0, 1]}), {"features": ["a"]}, "finite"),
        (StandIn({"a": [[1], [1, 2]] * 5, "label": [0, 1] * 5}), {"features": ["a"]}, "shapes"),
        (StandIn({"a": [[1], [1, 2]], "label": [0, 1]}), {"features": ["a"]}, "as many"),
        (StandIn({"a": [1, 2], "label": [0]}), {"features": ["a"]}, "0 values for 1 rows"),
    ],
)
def test_what_does_not_fit_is_refused(data: Any, options: dict[str, Any], words: str) -> None:
    assert words in refusal(lambda: from_hub(data, **options))


def test_the_real_package(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets; the stand-in above has its methods")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    data = datasets.Dataset.from_dict({"image": pictures(10), "label": [0, 1] * 5}, features=features)
    found = from_hub(datasets.DatasetDict({"train": data, "test": data}), image_size=4)
    assert found.class_names == ("cat", "dog") and found.test.inputs[:, 0, 0, 0].tolist() == list(range(10))
    table = datasets.Dataset.from_dict({"a": list(range(10)), "label": [0, 1] * 5})
    assert from_hub(table, features=["a"]).input_shape == (1,)
