"""Folders of pictures: depths, splits, sizes, damage, bombs, links, the real Office-Caltech10."""

import itertools
import os
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_files import REAL_DATA, catch_refusal, needs_dataset
from PIL import Image

from fedwmsam.data import image_folder, load_dataset


def write_image(
    path: Path, colour: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (6, 4)
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def write_classes(root: Path, names: str = "bc", count: int = 10) -> Path:
    for label in names:
        for index in range(count):
            write_image(root / label / f"{index:02d}.png", (ord(label), index, 0))
    return root


def write_domains(root: Path, names: str = "xyz", count: int = 5) -> Path:
    for domain in names:
        write_classes(root / domain, "bc", count)
    return root


def test_classes_are_sorted_and_shared_out_the_same_way_every_time(tmp_path: Path) -> None:
    data = load_dataset(str(write_classes(tmp_path / "root", "cab")), image_size=5)
    assert data.class_names == ("a", "b", "c") and data.num_classes == 3 and data.group_names == ()
    assert data.train.groups is None and data.name == "root"
    assert (
        data.train.labels.bincount().tolist() == [8] * 3
        and data.test.labels.bincount().tolist() == [2] * 3
    )
    assert data.train.inputs.dtype == torch.uint8 and data.input_shape == (3, 5, 5)
    together = torch.cat([data.train.inputs, data.test.inputs])
    colours = sorted(map(tuple, together[:, :2, 0, 0].tolist()))
    assert colours == list(itertools.product(map(ord, "abc"), range(10))), "each image once"
    again = load_dataset(str(tmp_path / "root"), image_size=5)
    assert torch.equal(again.train.inputs, data.train.inputs)
    assert torch.equal(again.test.labels, data.test.labels)


def test_labels_belong_to_their_pictures(tmp_path: Path) -> None:
    data = load_dataset(str(write_domains(tmp_path)), image_size=2)
    for part in (data.train, data.test):
        assert [data.class_names[label] for label in part.labels] == [
            chr(image[0, 0, 0]) for image in part.inputs
        ]


def test_a_picture_is_scaled_to_floats_from_minus_one_to_one(tmp_path: Path) -> None:
    for index in range(2):
        write_image(tmp_path / "a" / f"{index}.bmp", (255, 0, 127))
    data = load_dataset(str(tmp_path))
    pixels = data.transform(data.train.inputs)
    assert pixels.shape == (1, 3, 64, 64) and pixels.dtype == torch.float32
    assert torch.allclose(pixels[0, :, 3, 3], torch.tensor([1.0, -1.0, 127 / 127.5 - 1]))


def test_domains_are_groups(tmp_path: Path) -> None:
    data = load_dataset(str(write_domains(tmp_path)), image_size=2)
    assert data.group_names == ("x", "y", "z") and data.class_names == ("b", "c")
    assert data.train.groups is not None and data.train.groups.bincount().tolist() == [8] * 3
    assert data.test.groups is not None and data.test.groups.bincount().tolist() == [2] * 3


def test_one_domain_can_be_left_out(tmp_path: Path) -> None:
    data = load_dataset(str(write_domains(tmp_path)), image_size=2, leave_out="x")
    assert data.group_names == ("y", "z", "x"), "groups with training samples come first"
    assert data.train.groups is not None and data.train.groups.bincount().tolist() == [10, 10]
    assert data.test.groups is not None and data.test.groups.tolist() == [2] * 10
    assert "Did you mean 'z'" in catch_refusal(lambda: load_dataset(str(tmp_path), leave_out="Z"))
    write_classes(tmp_path / "flat")
    assert "Unknown domain" in catch_refusal(
        lambda: load_dataset(str(tmp_path / "flat"), leave_out="x")
    )


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_train_and_test_folders_are_the_splits(tmp_path: Path, test_name: str) -> None:
    write_classes(tmp_path / "train", "bcd", 3)
    write_classes(tmp_path / test_name, "ac", 2)
    data = load_dataset(str(tmp_path), image_size=2)
    assert data.class_names == ("a", "b", "c", "d")
    assert data.train.labels.tolist() == [1] * 3 + [2] * 3 + [3] * 3
    assert data.test.labels.tolist() == [0, 0, 2, 2]
    assert "leave the option out" in catch_refusal(
        lambda: load_dataset(str(tmp_path), leave_out="b")
    )


def test_other_files_hidden_ones_and_empty_folders_are_passed_over(tmp_path: Path) -> None:
    write_classes(tmp_path)
    (tmp_path / "readme.txt").touch()
    (tmp_path / "b" / "notes.txt").touch()
    (tmp_path / "b" / ".hidden.png").touch()
    (tmp_path / "empty").mkdir()
    write_image(tmp_path / ".cache" / "1.png")
    assert load_dataset(str(tmp_path), image_size=2).class_names == ("b", "c")


@pytest.mark.parametrize("ending", ["png", "jpg", "jpeg", "bmp", "webp", "PNG"])
def test_all_kinds_and_modes(tmp_path: Path, ending: str) -> None:
    for mode in ("RGB", "L", "1"):
        path = tmp_path / "a" / f"{mode}.{ending}"
        path.parent.mkdir(exist_ok=True)
        Image.new(mode, (9, 3), 1).save(path)
    assert load_dataset(str(tmp_path), image_size=4).train.inputs.shape == (2, 3, 4, 4)


def test_resizing_is_bilinear(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 11, 3), np.uint8)
    (tmp_path / "a").mkdir()
    for index in range(2):
        Image.fromarray(pixels).save(tmp_path / "a" / f"{index}.png")
    resized = Image.fromarray(pixels).resize((5, 5), Image.Resampling.BILINEAR)
    expected = np.asarray(resized).transpose(2, 0, 1)
    assert load_dataset(str(tmp_path), image_size=5).train.inputs[0].tolist() == expected.tolist()


@pytest.mark.parametrize("size", [0, -1, 2.5, "64", 5000, True, None])
def test_impossible_sizes_are_refused(tmp_path: Path, size: object) -> None:
    assert "image_size" in catch_refusal(
        lambda: load_dataset(str(write_classes(tmp_path)), image_size=size)
    )


def test_mixed_depths_are_refused(tmp_path: Path) -> None:
    write_classes(tmp_path)
    write_image(tmp_path / "x" / "y" / "1.png")
    assert "two depths" in catch_refusal(lambda: load_dataset(str(tmp_path)))


def test_a_single_picture_cannot_be_split(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png")
    assert "1 training and 0 test" in catch_refusal(lambda: load_dataset(str(tmp_path)))


def damaged_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a readable picture"),
        (b"hello", "not a readable picture"),
        (damaged_png(6, 4)[:40], "not a readable picture"),
        (damaged_png(60, 60), "not a readable picture"),
        (b"GIF89a" + bytes(20), "not a readable picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a readable picture"),
        (damaged_png(8000, 8000), "too large"),
        (damaged_png(10_000, 10_000), "too large"),
        (damaged_png(2**30, 2**30), "too large"),
    ],
)
def test_damaged_pictures_and_bombs_are_refused_by_name(
    tmp_path: Path, content: bytes, words: str
) -> None:
    write_classes(tmp_path)
    (tmp_path / "b" / "03.png").write_bytes(content)
    message = catch_refusal(lambda: load_dataset(str(tmp_path)))
    assert words in message and str(tmp_path / "b" / "03.png") in message


def test_links_that_leave_the_root_are_refused(tmp_path: Path) -> None:
    outside = write_image(tmp_path / "outside" / "secret.png")
    root = write_classes(tmp_path / "root")
    (root / "b" / "inside.png").symlink_to(root / "b" / "00.png")
    assert len(load_dataset(str(root), image_size=2).train) == 17
    (root / "b" / "link.png").symlink_to(outside)
    assert "leads out of" in catch_refusal(lambda: load_dataset(str(root)))
    (root / "b" / "link.png").unlink()
    (root / "d").symlink_to(outside.parent)
    assert str(root / "d") in catch_refusal(lambda: load_dataset(str(root)))
    (root / "d").unlink()
    (tmp_path / "elsewhere").symlink_to(root)
    assert len(load_dataset(str(tmp_path / "elsewhere"), image_size=2).train) == 17, (
        "the root itself may be a link"
    )


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    write_classes(tmp_path)
    os.mkfifo(tmp_path / "b" / "pipe.png")
    assert len(load_dataset(str(tmp_path), image_size=2).train) == 16


def test_decoding_happens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path / "root")
    first = load_dataset(str(tmp_path / "root"), image_size=3)
    monkeypatch.setattr(image_folder, "decode_images", None)
    assert torch.equal(
        load_dataset(str(tmp_path / "root"), image_size=3).train.inputs, first.train.inputs
    )


@pytest.mark.parametrize("name", image_folder.DOMAIN_DATASETS)
def test_collections_are_found_below_the_data_folder(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, expected = image_folder.DOMAIN_DATASETS[name]
    message = catch_refusal(lambda: load_dataset(name, tmp_path))
    assert folders[0] in message and str(tmp_path) in message and "$FEDWMSAM_DATA" in message
    for domain in expected:
        write_classes(tmp_path / folders[1] / domain, "bc", 5)
    write_classes(tmp_path / folders[1] / "splits")
    data = load_dataset(name, tmp_path, image_size=2)
    assert (
        data.name == name
        and data.group_names == expected
        and data.source == str(tmp_path / folders[1])
    )
    assert load_dataset(name, tmp_path / folders[1], image_size=2).group_names == expected
    monkeypatch.setenv("FEDWMSAM_DATA", str(tmp_path))
    assert load_dataset(name, image_size=2, leave_out=expected[0]).group_names[-1] == expected[0]


@needs_dataset("office_caltech10")
def test_the_real_office_caltech10() -> None:
    data = load_dataset("office-caltech10", REAL_DATA)
    assert len(data.train) + len(data.test) == 2533 and data.num_classes == 10
    assert data.train.groups is not None and data.test.groups is not None
    together = torch.cat([data.train.groups, data.test.groups]).bincount()
    assert dict(zip(data.group_names, together.tolist(), strict=True)) == {
        "amazon": 958,
        "caltech": 1123,
        "dslr": 157,
        "webcam": 295,
    }
    assert (data.test.groups.bincount() / together - 0.2).abs().max() < 0.02


def test_pictures_that_memory_cannot_hold_are_refused_with_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "machine_memory", lambda: 24 * 10**6)
    root = str(write_classes(tmp_path / "root"))
    assert "lower image_size" in catch_refusal(lambda: load_dataset(root, image_size=1000))
    assert len(load_dataset(root, image_size=10).train) == 16


def test_many_classes_take_no_longer_than_their_pictures(tmp_path: Path) -> None:
    files = [
        image_folder.ImageFile("", f"{label:06}", Path(f"{label:06}/{index}.png"))
        for label, index in itertools.product(range(15_000), range(2))
    ]
    begin = time.monotonic()
    train, test = image_folder.split_stratified(files)
    assert (len(train), len(test)) == (15_000, 15_000)
    assert time.monotonic() - begin < 30  # half a billion comparisons were not made
