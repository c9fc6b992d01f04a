"""Downloads that are checked, and appear under their name only when they are complete.

Archives are unpacked by taking the expected files out of them, never by letting them name where to write.
"""

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedwmsam.files import atomic_replace

TIMEOUT_SECONDS = 30
CHUNK = 1 << 16
MAX_DOWNLOAD_BYTES = 1 << 28
"""Bytes: a server that never stops sending must not fill the disk."""


class DownloadError(Exception):
    """Why a file could not be downloaded or unpacked, in a few words."""


def download(base_url: str, checksums: Mapping[str, str], folder: Path) -> None:
    """Put the files named in `checksums` (name → MD5) into `folder`; those already there are left alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(folder / ".lock"),
            progress_bars() as progress,
        ):  # two runs started together fetch once
            for name, checksum in checksums.items():
                if not (folder / name).exists():
                    download_file(
                        f"{base_url.rstrip('/')}/{name}", folder / name, checksum, progress
                    )
    except (OSError, http.client.HTTPException) as error:
        reason = (
            error.reason if type(error) is urllib.error.URLError else error
        )  # without its "<urlopen error ...>"
        raise DownloadError(str(reason) or type(error).__name__) from error


def download_file(url: str, target: Path, checksum: str, progress: Progress) -> None:
    """One file, beside its place until all of it is there and is what it should be."""
    with atomic_replace(target) as beside:
        stream_to_file(url, beside, target.name, progress)
        found = file_md5(beside)
        if found != checksum:
            raise DownloadError(f"{url} has the MD5 {found}, expected {checksum}")


def stream_to_file(url: str, place: Path, name: str, progress: Progress) -> None:
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
        place.open("wb") as output,
    ):
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        task = progress.add_task(name, total=total)
        have = 0
        while chunk := response.read(CHUNK):
            have += len(chunk)
            if have > MAX_DOWNLOAD_BYTES:
                raise DownloadError(f"{name} is larger than {MAX_DOWNLOAD_BYTES} bytes")
            output.write(chunk)
            progress.update(task, completed=have)
    # http.client returns a short read, not an error, when the connection breaks; it must not count as a wrong checksum
    if total is not None and have < total:
        raise DownloadError(
            f"the connection ended after {have} of {total} bytes of {name}; try again"
        )


def file_md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def progress_bars() -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def extract_members(archive: Path, members: Collection[str], folder: Path, largest: int) -> None:
    """Take these members (name/in/archive, at most `largest` bytes each) out of a .tar.gz into `folder`, or none.

    Only their last names are used, and only in `folder`; links, devices and all other members are passed over.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"), tempfile.TemporaryDirectory(dir=folder) as place:
            copy_members(archive, members, Path(place), largest)
            for name in members:
                with atomic_replace(folder / Path(name).name) as beside:
                    (Path(place) / Path(name).name).replace(beside)
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
        raise DownloadError(
            f"{archive} cannot be unpacked: {str(error) or type(error).__name__}"
        ) from error


def copy_members(archive: Path, members: Collection[str], place: Path, largest: int) -> None:
    wanted = set(members)
    with tarfile.open(archive, mode="r|gz") as tar:
        for member in tar:
            if member.name in wanted and member.isreg() and (content := tar.extractfile(member)):
                if member.size > largest:
                    raise DownloadError(f"{Path(member.name).name} is larger than {largest} bytes")
                with (place / Path(member.name).name).open("wb") as output:
                    shutil.copyfileobj(content, output)
                wanted.remove(member.name)
            if not wanted:
                return  # what follows is not asked for, and would take time to decompress
    raise DownloadError(f"{archive} lacks {', '.join(sorted(wanted))}")
