"""Downloads that are checked, and appear under their name only when they are complete.

Archives are unpacked by taking the expected files out of them, never by letting them name where to
write.
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
"""Bytes that are read at once."""
MAX_DOWNLOAD_BYTES = 1 << 28
"""Bytes of one file: a server that never stops sending must not fill the disk."""


class DownloadError(Exception):
    """Raised with the reason, in a few words, why a file could not be downloaded or unpacked."""


def download(base_url: str, checksums: Mapping[str, str], folder: Path) -> None:
    """Put the files named in `checksums` (name → MD5) into `folder`.

    Files that are already there are left alone. Raise DownloadError if a file cannot be fetched or
    has another checksum.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # With the lock, two runs that are started together fetch the files once.
        with FileLock(folder / ".lock"), progress_bars() as progress:
            for name, checksum in checksums.items():
                if not (folder / name).exists():
                    url = f"{base_url.rstrip('/')}/{name}"
                    download_file(url, folder / name, checksum, progress)
    except (OSError, http.client.HTTPException) as error:
        # The reason alone is shorter than the error, which begins with "<urlopen error".
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise DownloadError(str(reason) or type(error).__name__) from error


def download_file(url: str, target: Path, checksum: str, progress: Progress) -> None:
    """Download one file to a temporary one, check it, and rename it to `target`.

    Raise DownloadError if its checksum is another.
    """
    with atomic_replace(target) as temporary:
        stream_to_file(url, temporary, target.name, progress)
        actual = file_md5(temporary)
        if actual != checksum:
            raise DownloadError(f"{url} has the MD5 {actual}, expected {checksum}")


def stream_to_file(url: str, target: Path, name: str, progress: Progress) -> None:
    """Write what the address sends to `target`, and show progress under `name`.

    Raise DownloadError if it is too much, or less than the server announced.
    """
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
        target.open("wb") as output,
    ):
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        task = progress.add_task(name, total=total)
        received = 0
        while chunk := response.read(CHUNK):
            received += len(chunk)
            if received > MAX_DOWNLOAD_BYTES:
                raise DownloadError(f"{name} is larger than {MAX_DOWNLOAD_BYTES} bytes")
            output.write(chunk)
            progress.update(task, completed=received)
    # http.client returns a short read, not an error, when the connection breaks; it must not count
    # as a wrong checksum.
    if total is not None and received < total:
        raise DownloadError(
            f"the connection ended after {received} of {total} bytes of {name}; try again"
        )


def file_md5(path: Path) -> str:
    """Return the MD5 checksum of a file in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def progress_bars() -> Progress:
    """Return progress bars on the standard error, shown only if that is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def extract_members(archive: Path, members: Collection[str], folder: Path, max_bytes: int) -> None:
    """Extract these members (name/in/archive) of a .tar.gz into `folder`: all of them or none.

    Only the file name of each member is used, without its folders; links, devices and all other
    members are passed over. Raise DownloadError if the archive is damaged or lacks a member, or if
    a member is larger than `max_bytes`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"), tempfile.TemporaryDirectory(dir=folder) as unpacked:
            copy_members(archive, members, Path(unpacked), max_bytes)
            for name in members:
                with atomic_replace(folder / Path(name).name) as temporary:
                    (Path(unpacked) / Path(name).name).replace(temporary)
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
        raise DownloadError(
            f"{archive} cannot be unpacked: {str(error) or type(error).__name__}"
        ) from error


def copy_members(archive: Path, members: Collection[str], folder: Path, max_bytes: int) -> None:
    """Copy these members of a .tar.gz into `folder` under their last names.

    Raise DownloadError if one is missing or is larger than `max_bytes`.
    """
    missing = set(members)
    with tarfile.open(archive, mode="r|gz") as tar:
        for member in tar:
            if member.name in missing and member.isreg() and (content := tar.extractfile(member)):
                name = Path(member.name).name
                if member.size > max_bytes:
                    raise DownloadError(f"{name} is larger than {max_bytes} bytes")
                with (folder / name).open("wb") as output:
                    shutil.copyfileobj(content, output)
                missing.remove(member.name)
            if not missing:
                return  # what follows would take time to decompress
    raise DownloadError(f"{archive} lacks {', '.join(sorted(missing))}")
