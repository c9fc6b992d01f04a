"""Folders of pictures: root/class/picture, or root/domain/class/picture, whichever is found.

If root has train/ and test/ (or val/) folders, those are the splits. Otherwise a fifth of each class of each domain is
for testing, or one whole domain (`leave_out`). Pictures are decoded once, to squares of `image_size` RGB pixels.
"""

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwmsam.data.base import (
    Array,
    Dataset,
    check_int_option,
    make_dataset,
    test_mask,
    unit_range_normaliser,
)
from fedwmsam.data.cache import Decoded, load_or_decode
from fedwmsam.data.paths import DATA_ENV_VAR, cache_folder, candidate_folders
from fedwmsam.errors import InputError, unknown_name_message

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
PILLOW_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # others stay shut, whatever a file claims to be
MOST_PIXELS = 50_000_000  # of one picture; a few bytes of a compressed one can claim any number
MOST_BYTES = (
    4 * MOST_PIXELS
)  # of one file: no sensible picture takes more than its uncompressed pixels
LARGEST_SIZE = 1024
DOMAIN_DATASETS = {
    "office-caltech10": (
        ("office_caltech10", "office-caltech10"),
        ("amazon", "caltech", "dslr", "webcam"),
    ),
    "office-home": (
        ("OfficeHomeDataset_10072016", "office-home"),
        ("Art", "Clipart", "Product", "Real World"),
    ),
    "pacs": (("pacs", "PACS"), ("art_painting", "cartoon", "photo", "sketch")),
}
"""Data sets published as such folders: the names their folder may have, and their domains."""


@dataclass(frozen=True, order=True)
class ImageFile:
    domain: str  # empty where there are no domains
    label: str
    path: Path


def load_domain_dataset(
    name: str, data_dir: Path | None, *, image_size: int = 64, leave_out: str | None = None
) -> Dataset:
    """A data set of pictures by domain."""
    return _load(
        name, find_domain_dataset(name, data_dir), DOMAIN_DATASETS[name][1], image_size, leave_out
    )


def find_domain_dataset(name: str, data_dir: Path | None) -> Path:
    """The first place that holds all its domains."""
    folders, domains = DOMAIN_DATASETS[name]
    for folder in candidate_folders(data_dir, folders):
        if all((folder / domain).is_dir() for domain in domains):
            return folder
    raise InputError(
        f"{name} was not found, and has no public address: put its folder {folders[0]}, with {', '.join(domains)} in "
        f"it, into {data_dir or cache_folder()} or the folder that ${DATA_ENV_VAR} names"
    )


def load_image_folder(root: Path, *, image_size: int = 64, leave_out: str | None = None) -> Dataset:
    return _load(root.name or str(root), root, None, image_size, leave_out)


def _load(
    name: str, root: Path, domains: Sequence[str] | None, image_size: int, leave_out: str | None
) -> Dataset:
    size = check_int_option("image_size", image_size, 1, LARGEST_SIZE)
    train, test = _splits(root, domains, leave_out)
    if not train or not test:
        raise InputError(
            f"{root} gives {len(train)} training and {len(test)} test pictures, expected at least one of each: "
            "add pictures"
        )
    decoded = load_or_decode(
        "pictures",
        [picture.path for picture in (*train, *test)],
        {"size": size, "train": len(train)},
        lambda: Decoded(
            {
                "train_inputs": _decode_images(train, size),
                "test_inputs": _decode_images(test, size),
            },
            {},
        ),
    )
    return _dataset(name, root, train, test, decoded)


def _dataset(
    name: str, root: Path, train: list[ImageFile], test: list[ImageFile], decoded: Decoded
) -> Dataset:
    classes = sorted({picture.label for picture in (*train, *test)})
    number = {label: index for index, label in enumerate(classes)}
    labels, domains = (
        tuple(np.array([value(picture) for picture in pictures]) for pictures in (train, test))
        for value in (lambda picture: number[picture.label], lambda picture: picture.domain)
    )
    return make_dataset(
        name,
        str(root),
        (decoded.arrays["train_inputs"], decoded.arrays["test_inputs"]),
        (labels[0], labels[1]),
        classes=len(classes),
        prepare=unit_range_normaliser(3),
        class_names=tuple(classes),
        groups=(domains[0], domains[1]) if train[0].domain or test[0].domain else None,
    )


def _splits(
    root: Path, domains: Sequence[str] | None, leave_out: str | None
) -> tuple[list[ImageFile], list[ImageFile]]:
    test_folder = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if domains is None and test_folder is not None and (root / "train").is_dir():
        if leave_out is not None:
            raise InputError(
                f"leave_out is {leave_out!r} but {root} has train and {test_folder.name} folders: leave the option out"
            )
        return _list_images(root / "train", root, None), _list_images(test_folder, root, None)
    pictures = _list_images(root, root, domains)
    if leave_out is None:
        return _split_stratified(pictures)
    known = sorted({picture.domain for picture in pictures} - {""})
    if leave_out not in known:
        raise InputError(
            unknown_name_message(f"domain to leave out of {root}", str(leave_out), known)
        )
    return (
        [p for p in pictures if p.domain != leave_out],
        [p for p in pictures if p.domain == leave_out],
    )


def _split_stratified(pictures: list[ImageFile]) -> tuple[list[ImageFile], list[ImageFile]]:
    """A fifth of each class of each domain for testing, by a shuffle that depends on nothing but their order."""
    domains, labels = (
        sorted({getattr(p, field) for p in pictures}) for field in ("domain", "label")
    )
    train: list[ImageFile] = []
    test: list[ImageFile] = []
    for i, domain in enumerate(domains):
        for j, label in enumerate(labels):
            members = [
                picture
                for picture in pictures
                if (picture.domain, picture.label) == (domain, label)
            ]
            for picture, held in zip(members, test_mask(len(members), i, j), strict=True):
                (test if held else train).append(picture)
    return train, test


def _list_images(folder: Path, root: Path, domains: Sequence[str] | None) -> list[ImageFile]:
    """All pictures below a folder, in the order of their domains, classes and names."""
    inside = _ConfinedFolder(root)
    try:
        above = inside.folders(folder)
        flat = (
            [ImageFile("", sub.name, path) for sub in above for path in inside.pictures(sub)]
            if not domains
            else []
        )
        deep = [
            ImageFile(sub.name, label.name, path)
            for sub in above
            if not domains or sub.name in domains
            for label in inside.folders(sub)
            for path in inside.pictures(label)
        ]
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error}): check the folder") from error
    if bool(flat) == bool(deep):
        found = (
            f"pictures at two depths, such as {flat[0].path} and {deep[0].path}"
            if flat
            else "no pictures"
        )
        raise InputError(
            f"{folder} holds {found}, expected class/picture or domain/class/picture throughout, "
            f"with names that end in {', '.join(IMAGE_SUFFIXES)}: rearrange the folder"
        )
    return sorted(flat or deep)


class _ConfinedFolder:
    """Lists folders, and refuses links that lead out of the root: they could show any file of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def folders(self, folder: Path) -> list[Path]:
        return [Path(entry) for entry in self.entries(folder) if entry.is_dir()]

    def pictures(self, folder: Path) -> list[Path]:
        return [
            Path(e)
            for e in self.entries(folder)
            if e.name.lower().endswith(IMAGE_SUFFIXES) and e.is_file()
        ]

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        with os.scandir(folder) as listing:
            entries = sorted(
                (entry for entry in listing if not entry.name.startswith(".")), key=lambda e: e.name
            )
        for entry in entries:
            if entry.is_symlink() and not Path(entry).resolve().is_relative_to(self.root):
                raise InputError(
                    f"{entry.path} is a link that leads out of {self.root}: put a copy in its place"
                )
        return entries


def _decode_images(pictures: Sequence[ImageFile], size: int) -> Array:
    images = np.empty((len(pictures), 3, size, size), np.uint8)
    for image, picture in zip(images, pictures, strict=True):
        image[...] = decode_image(read_limited(picture.path), str(picture.path), size)
    return images


def read_limited(path: Path) -> bytes:
    """A file's bytes. Read before they are decoded, as decoders ask an open file for as much as a header claims."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is larger than {MOST_BYTES} bytes: make the picture smaller")
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}): check the file"
        ) from error


def decode_image(content: bytes, name: str, size: int) -> Array:
    """An encoded picture as (3, size, size) bytes."""
    image_module = import_pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            with image_module.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
                width, height = image.size  # from the header: nothing has been decoded yet
                if width * height > MOST_PIXELS:
                    raise image_module.DecompressionBombError(f"{width} x {height} pixels")
                return resize_to_square(image, size)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise InputError(
            f"{name} is too large a picture ({error}), expected at most {MOST_PIXELS} pixels: make it smaller"
        ) from error
    except Exception as error:  # decoders of damaged pictures raise almost anything
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{name} is not a readable picture ({reason}): replace or remove it"
        ) from error


def resize_to_square(image: "Image", size: int) -> Array:
    from PIL.Image import Resampling

    square = image.convert("RGB").resize((size, size), Resampling.BILINEAR)
    return np.asarray(square).transpose(2, 0, 1)


def import_pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise InputError(
            "reading pictures needs the Pillow package: run `pip install 'fedwmsam[images]'`"
        ) from error
    return PIL.Image
