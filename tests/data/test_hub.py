"""Data sets of the Hugging Face `datasets` package, or of a stand-in where it is absent."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.data_files import catch_refusal
from PIL import Image

from fedwmsam.data import from_huggingface


class Names:
    """Has the names of classes, like datasets.ClassLabel."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)


class StandIn:
    """Has the members of datasets.Dataset that are used."""

    def __init__(
        self, columns: dict[str, list[Any]], features: dict[str, Any] | None = None
    ) -> None:
        self.columns = columns
        self.column_names = list(columns)
        self.features = features or {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]


def make_images(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (4, 4), (index, 0, 0)) for index in range(count)]


def png(index: int) -> dict[str, Any]:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (index, 0, 0)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


@pytest.mark.parametrize("kind", ["decoded", "encoded", "arrays"])
def test_pictures(kind: str) -> None:
    images = {
        "decoded": make_images(10),
        "encoded": [png(index) for index in range(10)],
        "arrays": [np.asarray(image).tolist() for image in make_images(10)],
    }
    data = StandIn(
        {"image": images[kind], "label": [0, 1] * 5}, {"label": Names("cat", "dog", "eel")}
    )
    dataset = from_huggingface(data, image_size=2)
    assert (len(dataset.train), len(dataset.test)) == (8, 2) and dataset.input_shape == (3, 2, 2)
    assert dataset.class_names == ("cat", "dog", "eel") and dataset.num_classes == 3
    for part in (dataset.train, dataset.test):
        assert (part.inputs[:, 0, 0, 0] % 2).tolist() == part.labels.tolist()


def test_splits_and_groups() -> None:
    train = StandIn(
        {"img": make_images(4), "label": ["a", "b", "a", "b"], "writer": ["w", "v", "w", "v"]}
    )
    test = StandIn({"img": make_images(2), "label": ["b", "a"], "writer": ["u", "w"]})
    dataset = from_huggingface(
        {"train": train, "test": test}, image="img", group="writer", image_size=4, name="mine"
    )
    assert (
        dataset.class_names == ("a", "b")
        and dataset.test.labels.tolist() == [1, 0]
        and dataset.name == "mine"
    )
    assert dataset.group_names == ("v", "w", "u")
    assert dataset.train.groups is not None and dataset.train.groups.tolist() == [1, 0, 1, 0]
    assert dataset.test.groups is not None and dataset.test.groups.tolist() == [2, 1]


def test_feature_columns_are_standardised() -> None:
    data = StandIn({"a": list(range(10)), "v": [[i, -i] for i in range(10)], "label": [0, 1] * 5})
    dataset = from_huggingface(data, features=["a", "v"])
    assert dataset.input_shape == (3,) and dataset.train.inputs.mean(dim=0).abs().max() < 1e-6
    assert torch.allclose(dataset.train.inputs[:, 0], -dataset.train.inputs[:, 2])


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ({}, {}, "empty dict"),
        ({"test": StandIn({})}, {}, "'train'"),
        ([1, 2], {}, "list"),
        (StandIn({"label": [0, 1]}), {}, "either"),
        (StandIn({"image": [], "label": []}), {}, "0 training"),
        (
            StandIn({"image": make_images(2), "label": [0, 1]}),
            {"features": ["a"], "image": "image"},
            "either",
        ),
        (StandIn({"image": make_images(2), "lable": [0, 1]}), {}, "Did you mean 'lable'"),
        (StandIn({"image": make_images(2), "label": [0, -1]}), {}, "-1"),
        (StandIn({"image": make_images(2), "label": [[0], [1]]}), {}, "lists"),
        (StandIn({"image": make_images(2), "label": [None, 1]}), {}, "object"),
        (StandIn({"image": [None, 3], "label": [0, 1]}), {}, "row 0"),
        (StandIn({"image": [{"bytes": b"x"}, 3], "label": [0, 1]}), {}, "row 0"),
        (StandIn({"image": ["a.png", "b.png"], "label": [0, 1]}), {}, "cast the column"),
        (StandIn({"image": make_images(2), "label": [0, 1]}), {"image_size": 0}, "image_size"),
        (StandIn({"image": make_images(2), "label": [0, 1]}), {"group": "g"}, "'g'"),
        (StandIn({"a": [1.0, float("nan")], "label": [0, 1]}), {"features": ["a"]}, "finite"),
        (StandIn({"a": ["x", "y"], "label": [0, 1]}), {"features": ["a"]}, "finite"),
        (StandIn({"a": [[1], [1, 2]] * 5, "label": [0, 1] * 5}), {"features": ["a"]}, "shapes"),
        (StandIn({"a": [[1], [1, 2]], "label": [0, 1]}), {"features": ["a"]}, "as many"),
        (StandIn({"a": [1, 2], "label": [0]}), {"features": ["a"]}, "0 values for 1 rows"),
    ],
)
def test_what_does_not_fit_is_refused(data: Any, options: dict[str, Any], words: str) -> None:
    assert words in catch_refusal(lambda: from_huggingface(data, **options))


def test_pictures_still_in_their_files(tmp_path: Path) -> None:
    for index, image in enumerate(make_images(4)):
        image.save(tmp_path / f"{index}.png")
    rows = [{"bytes": None, "path": str(tmp_path / f"{index}.png")} for index in range(4)]
    data = {"train": StandIn({"image": rows, "label": [0, 1] * 2})}
    dataset = from_huggingface(data | {"test": data["train"]}, image_size=4)
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    (tmp_path / "2.png").unlink()
    assert "row 2" in catch_refusal(
        lambda: from_huggingface(data | {"test": data["train"]}, image_size=4)
    )


@pytest.fixture(scope="module")
def package() -> Any:
    return pytest.importorskip(
        "datasets", reason="needs the package datasets; the stand-in above has its methods"
    )


@pytest.fixture(scope="module")
def real(package: Any) -> Any:
    """Twenty different images 7 wide and 5 high; red at the top left is the row's number."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 5, 7, 3), dtype=np.uint8)
    pixels[:, :3, :3, 0] = np.arange(20)[:, None, None]
    columns = {
        "image": [Image.fromarray(image) for image in pixels],
        "label": [0, 1] * 10,
        "row": list(range(20)),
        "pair": [[row, -row] for row in range(20)],
        "writer": [f"w{row % 3}" for row in range(20)],
    }
    features = package.Features(
        {
            "image": package.Image(),
            "label": package.ClassLabel(names=["cat", "dog"]),
            "row": package.Value("int32"),
            "pair": package.Sequence(package.Value("float32")),
            "writer": package.Value("string"),
        }
    )
    return package.Dataset.from_dict(columns, features=features)


def row_numbers(inputs: torch.Tensor) -> list[int]:
    return inputs[:, 0, 0, 0].tolist()


def test_real_splits_and_class_names(package: Any, real: Any) -> None:
    splits = package.DatasetDict(
        {"train": real.select(range(12)), "validation": real.select(range(12, 20))}
    )
    dataset = from_huggingface(splits, image_size=5, group="writer")
    assert dataset.class_names == ("cat", "dog") and dataset.group_names == ("w0", "w1", "w2")
    assert row_numbers(dataset.train.inputs) == list(range(12))
    assert row_numbers(dataset.test.inputs) == list(range(12, 20))
    assert dataset.test.labels.tolist() == [0, 1] * 4
    assert dataset.test.groups is not None
    assert dataset.test.groups.tolist() == [row % 3 for row in range(12, 20)]
    alone = from_huggingface(real, image_size=5)
    assert sorted(row_numbers(alone.train.inputs) + row_numbers(alone.test.inputs)) == list(
        range(20)
    )
    assert (
        len(alone.test) == 4
        and (torch.tensor(row_numbers(alone.test.inputs)) % 2 == alone.test.labels).all()
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.with_format("torch"),
        lambda data: data.with_format("numpy"),
        lambda data: data.with_format("arrow"),
        lambda data: data.with_format("torch", columns=["row"]),
        lambda data: data.with_transform(lambda batch: {"row": batch["row"]}),
    ],
    ids=["torch", "numpy", "arrow", "columns", "transform"],
)
def test_real_formats_change_nothing(real: Any, change: Any) -> None:
    for options in ({"image_size": 5}, {"features": ["row", "pair"], "group": "writer"}):
        plain = from_huggingface(real, **options)
        formatted = from_huggingface(change(real), **options)
        assert plain.hash == formatted.hash
        assert plain.class_names == formatted.class_names == ("cat", "dog")
        assert torch.equal(plain.train.inputs, formatted.train.inputs)


@pytest.mark.parametrize(
    "choose",
    [
        lambda data: data.shuffle(seed=3),
        lambda data: data.filter(lambda row: row % 3 > 0, input_columns="row"),
        lambda data: data.shard(3, 1),
        lambda data: data.sort("row", reverse=True).select(range(2, 12)),
        lambda data: (
            data.shuffle(seed=1)
            .filter(lambda row: row > 4, input_columns="row")
            .with_format("torch")
        ),
    ],
    ids=["shuffled", "filtered", "shard", "sorted", "all of it"],
)
def test_real_rows_that_were_chosen(real: Any, choose: Any) -> None:
    selected = choose(real)
    expected = selected.with_format(None)["row"][:]
    dataset = from_huggingface({"train": selected, "test": real}, image_size=5)
    assert row_numbers(dataset.train.inputs) == expected
    assert dataset.train.labels.tolist() == [row % 2 for row in expected]
    alone = from_huggingface(selected, image_size=5)
    assert sorted(row_numbers(alone.train.inputs) + row_numbers(alone.test.inputs)) == sorted(
        expected
    )
    assert (torch.tensor(row_numbers(alone.train.inputs)) % 2 == alone.train.labels).all()


def test_real_pictures_not_decoded(package: Any, real: Any, tmp_path: Path) -> None:
    plain = from_huggingface(real, image_size=5)
    encoded = real.cast_column("image", package.Image(decode=False))
    assert torch.equal(from_huggingface(encoded, image_size=5).train.inputs, plain.train.inputs)
    paths = []
    for row, image in enumerate(real["image"]):
        paths.append(str(tmp_path / f"{row}.png"))
        image.save(paths[-1])
    texts = real.remove_columns("image").add_column("image", paths)
    assert "cast the column" in catch_refusal(lambda: from_huggingface(texts, image_size=5))
    for kind in (package.Image(), package.Image(decode=False)):
        dataset = from_huggingface(texts.cast_column("image", kind), image_size=5)
        assert torch.equal(dataset.train.inputs, plain.train.inputs)


def test_real_streams_are_refused(package: Any, real: Any) -> None:
    stream = real.to_iterable_dataset()
    for data in (stream, package.IterableDatasetDict({"train": stream})):
        assert "without streaming" in catch_refusal(lambda data=data: from_huggingface(data))
