"""Loader of folders of images: root/class/image, or root/domain/class/image, whichever it is.

If root has train/ and test/ (or val/) folders, those are the splits. Otherwise a fifth of each
class of each domain is for testing, or all of one domain (`leave_out`). Images are decoded once, to
squares of `image_size` RGB pixels.
"""

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwmsam.data.base import (
    Array,
    Dataset,
    check_int_option,
    held_out_mask,
    make_dataset,
    unit_range_normaliser,
)
from fedwmsam.data.cache import Decoded, load_or_decode
from fedwmsam.data.paths import DATA_ENV_VAR, cache_folder, candidate_folders
from fedwmsam.errors import InputError, install_command, printable, unknown_name_message
from fedwmsam.machine import machine_memory

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
PILLOW_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
"""The decoders that Pillow may use; the others are never tried, whatever a file claims to be."""
MAX_PIXELS = 50_000_000
"""Pixels of one image; a few bytes of a compressed one can claim any number."""
MAX_BYTES = 4 * MAX_PIXELS
"""Bytes of one file: no sensible image takes more than its uncompressed pixels."""
MAX_IMAGE_SIZE = 1024
"""The limit of the option `image_size`."""
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
    """An image that has not been read yet."""

    domain: str
    """The name of the domain's folder, or nothing where there are no domains."""
    label: str
    """The name of the class's folder."""
    path: Path


def load_domain_dataset(
    name: str, data_dir: Path | None, *, image_size: int = 64, leave_out: str | None = None
) -> Dataset:
    """Return one of the `DOMAIN_DATASETS`.

    `image_size` is the side of an image in pixels; `leave_out` names the domain to test on. Raise
    InputError if the files are not found, or as `load_image_folder` does.
    """
    root = find_domain_dataset(name, data_dir)
    return _load(name, root, DOMAIN_DATASETS[name][1], image_size, leave_out)


def find_domain_dataset(name: str, data_dir: Path | None) -> Path:
    """Return the first folder that holds all domains of a data set, or raise InputError."""
    folders, domains = DOMAIN_DATASETS[name]
    for folder in candidate_folders(data_dir, folders):
        if all((folder / domain).is_dir() for domain in domains):
            return folder
    raise InputError(
        f"{name} was not found, and has no public address: put its folder {folders[0]}, "
        f"with {', '.join(domains)} in it, into {data_dir or cache_folder()} "
        f"or the folder that ${DATA_ENV_VAR} names"
    )


def load_image_folder(root: Path, *, image_size: int = 64, leave_out: str | None = None) -> Dataset:
    """Return the data set of a folder of images.

    `image_size` is the side of an image in pixels; `leave_out` names the domain to test on. Raise
    InputError if an option or the arrangement of the folder is wrong, or an image is damaged.
    """
    return _load(root.name or str(root), root, None, image_size, leave_out)


def _load(
    name: str, root: Path, domains: Sequence[str] | None, image_size: int, leave_out: str | None
) -> Dataset:
    size = check_int_option("image_size", image_size, 1, MAX_IMAGE_SIZE)
    train, test = _split_files(root, domains, leave_out)
    if not train or not test:
        raise InputError(
            f"{root} gives {len(train)} training and {len(test)} test pictures, "
            "expected at least one of each: add pictures"
        )
    _check_memory(root, len(train) + len(test), size)

    def decode() -> Decoded:
        arrays = {
            "train_inputs": decode_images(train, size),
            "test_inputs": decode_images(test, size),
        }
        return Decoded(arrays, {})

    paths = [file.path for file in (*train, *test)]
    options = {"size": size, "train": len(train)}
    decoded = load_or_decode("pictures", paths, options, decode)
    return _build_dataset(name, root, train, test, decoded)


def _check_memory(root: Path, count: int, size: int) -> None:
    """Raise InputError if the decoded images would take more than half of the machine's memory."""
    needed = count * 3 * size * size
    if needed > machine_memory() // 2:
        raise InputError(
            f"{root} holds {count} pictures, which would need {needed / 1e9:.0f} GB at "
            f"{size} x {size} pixels, this machine has {machine_memory() / 1e9:.0f} GB: "
            "lower image_size"
        )


def _build_dataset(
    name: str, root: Path, train: list[ImageFile], test: list[ImageFile], decoded: Decoded
) -> Dataset:
    class_numbers = _number_names({file.label for file in (*train, *test)})
    train_labels = np.array([class_numbers[file.label] for file in train])
    test_labels = np.array([class_numbers[file.label] for file in test])
    groups = None
    if train[0].domain or test[0].domain:
        train_domains = np.array([file.domain for file in train])
        test_domains = np.array([file.domain for file in test])
        groups = (train_domains, test_domains)
    return make_dataset(
        name,
        str(root),
        (decoded.arrays["train_inputs"], decoded.arrays["test_inputs"]),
        (train_labels, test_labels),
        num_classes=len(class_numbers),
        transform=unit_range_normaliser(3),
        class_names=tuple(class_numbers),
        groups=groups,
    )


def _number_names(names: set[str]) -> dict[str, int]:
    """Return the names in sorted order, each with its place."""
    return {name: number for number, name in enumerate(sorted(names))}


def _split_files(
    root: Path, domains: Sequence[str] | None, leave_out: str | None
) -> tuple[list[ImageFile], list[ImageFile]]:
    """Return the training images and the test images."""
    test_folder = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if domains is None and test_folder is not None and (root / "train").is_dir():
        if leave_out is not None:
            raise InputError(
                f"leave_out is {leave_out!r} but {root} has train and {test_folder.name} folders: "
                "leave the option out"
            )
        return _list_images(root / "train", root, None), _list_images(test_folder, root, None)
    files = _list_images(root, root, domains)
    if leave_out is None:
        return split_stratified(files)
    existing_domains = sorted({file.domain for file in files} - {""})
    if leave_out not in existing_domains:
        raise InputError(
            unknown_name_message(f"domain to leave out of {root}", str(leave_out), existing_domains)
        )
    train = [file for file in files if file.domain != leave_out]
    test = [file for file in files if file.domain == leave_out]
    return train, test


def split_stratified(files: list[ImageFile]) -> tuple[list[ImageFile], list[ImageFile]]:
    """Return the files with a fifth of each class of each domain for testing.

    The shuffle depends on nothing but the order of the files.
    """
    domain_numbers = _number_names({file.domain for file in files})
    label_numbers = _number_names({file.label for file in files})
    train: list[ImageFile] = []
    test: list[ImageFile] = []
    for (domain, label), group in groupby(sorted(files), attrgetter("domain", "label")):
        members = list(group)
        mask = held_out_mask(len(members), domain_numbers[domain], label_numbers[label])
        for file, is_test in zip(members, mask, strict=True):
            (test if is_test else train).append(file)
    return train, test


def _list_images(folder: Path, root: Path, domains: Sequence[str] | None) -> list[ImageFile]:
    """Return all images below a folder, in the order of their domains, classes and names.

    Raise InputError if there are none, or if they lie at two depths.
    """
    confined = _ConfinedFolder(root)
    deep: list[ImageFile] = []
    try:
        folders = confined.list_folders(folder)
        flat = [] if domains else _list_classes(confined, "", folders)
        for sub in folders:
            if not domains or sub.name in domains:
                deep += _list_classes(confined, sub.name, confined.list_folders(sub))
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error}): check the folder") from error
    if bool(flat) == bool(deep):
        content = "no pictures"
        if flat:
            content = f"pictures at two depths, such as {flat[0].path} and {deep[0].path}"
        raise InputError(
            f"{folder} holds {content}, expected class/picture or domain/class/picture throughout, "
            f"with names that end in {', '.join(IMAGE_SUFFIXES)}: rearrange the folder"
        )
    return sorted(flat or deep)


def _list_classes(
    confined: "_ConfinedFolder", domain: str, class_folders: list[Path]
) -> list[ImageFile]:
    files: list[ImageFile] = []
    for folder in class_folders:
        files += [ImageFile(domain, folder.name, path) for path in confined.list_images(folder)]
    return files


class _ConfinedFolder:
    """Lists folders, and refuses links that lead out of the root.

    Such links could show any file of this machine.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def list_folders(self, folder: Path) -> list[Path]:
        """Return the folders in a folder, sorted by name."""
        return [Path(entry) for entry in self.list_entries(folder) if entry.is_dir()]

    def list_images(self, folder: Path) -> list[Path]:
        """Return the files in a folder that end like images, sorted by name."""
        return [
            Path(entry)
            for entry in self.list_entries(folder)
            if entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file()
        ]

    def is_inside(self, link: Path) -> bool:
        """Return whether a link leads to a place in the folder; one to itself leads nowhere."""
        try:
            return link.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False

    def list_entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """Return what is in a folder and not hidden, or raise InputError for a link that leaves."""
        with os.scandir(folder) as listing:
            visible = [entry for entry in listing if not entry.name.startswith(".")]
        entries = sorted(visible, key=lambda entry: entry.name)
        for entry in entries:
            if entry.is_symlink() and not self.is_inside(Path(entry)):
                raise InputError(
                    f"{entry.path} is a link that leads out of {self.root} or to itself: "
                    "put a copy in its place"
                )
        return entries


def decode_images(files: Sequence[ImageFile], size: int) -> Array:
    """Return the images of these files as bytes of the shape (n, 3, size, size)."""
    images = np.empty((len(files), 3, size, size), np.uint8)
    for image, file in zip(images, files, strict=True):
        image[...] = decode_image(read_limited(file.path, str(file.path)), str(file.path), size)
    return images


def read_limited(path: Path, name: str) -> bytes:
    """Return a file's bytes, or raise InputError, which begins with `name`, if it is too large.

    They are read before they are decoded, as decoders ask an open file for as much as a header
    claims.
    """
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise InputError(f"{name} is not a file: replace or remove it")
        with path.open("rb") as stream:
            content = stream.read(min(path.stat().st_size, MAX_BYTES) + 1)
    except OSError as error:
        raise InputError(
            f"{name} cannot be read ({error.strerror or error}): check the file"
        ) from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{name} is larger than {MAX_BYTES} bytes: make the picture smaller")
    return content


def decode_image(content: bytes, name: str, size: int) -> Array:
    """Return an encoded image as bytes of the shape (3, size, size).

    Raise InputError, which begins with `name`, if it is damaged, too large or of another format.
    """
    image_module = import_pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            with image_module.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
                width, height = image.size  # from the header: nothing has been decoded yet
                if width * height > MAX_PIXELS:
                    raise image_module.DecompressionBombError(f"{width} x {height} pixels")
                return resize_to_square(image, size)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise InputError(
            f"{name} is too large a picture ({error}), expected at most {MAX_PIXELS} pixels: "
            "make it smaller"
        ) from error
    except Exception as error:  # decoders of damaged images raise almost anything
        reason = printable(error, 200) or type(error).__name__
        raise InputError(
            f"{name} is not a readable picture ({reason}): replace or remove it"
        ) from error


def resize_to_square(image: "Image", size: int) -> Array:
    """Return a Pillow image as RGB bytes of the shape (3, size, size)."""
    from PIL.Image import Resampling

    square = image.convert("RGB").resize((size, size), Resampling.BILINEAR)
    return np.asarray(square).transpose(2, 0, 1)


def import_pillow() -> Any:
    """Return the module PIL.Image, or raise InputError if Pillow is not installed."""
    try:
        import PIL.Image
    except ImportError as error:
        raise InputError(
            f"reading pictures needs the Pillow package: {install_command('images')}"
        ) from error
    return PIL.Image
