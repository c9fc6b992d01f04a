"""Downloads that are checked, resumed after an interruption, and appear under their name only when complete.

Archives are unpacked by taking the expected files out of them, never by letting them name where to write.
"""

import gzip
import hashlib
import http.client
import os
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

TIMEOUT_SECONDS = 30
CHUNK = 1 << 16
LARGEST = 1 << 28  # bytes; a server that never stops sending must not fill the disk


class DownloadError(Exception):
    """Why a file could not be downloaded or unpacked, in a few words."""


def download(base_url: str, checksums: Mapping[str, str], folder: Path) -> None:
    """Put the files named in `checksums` (name -> MD5) into `folder`; those already there are left alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder), _progress() as progress:
            for name, checksum in checksums.items():
                if not (folder / name).exists():
                    _fetch(base_url.rstrip("/") + "/" + name, folder / name, checksum, progress)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error  # without its "<urlopen error ...>"
        raise DownloadError(str(reason) or type(error).__name__) from error


def _fetch(url: str, target: Path, checksum: str, progress: Progress) -> None:
    part = _part(target)
    resumed = part.exists()
    _receive(url, part, progress)
    if resumed and file_md5(part) != checksum:
        # The leftover may be what is wrong (another version, a crash in the middle of a write): begin afresh, once.
        part.unlink()
        _receive(url, part, progress)
    found = file_md5(part)
    if found != checksum:
        part.unlink()
        raise DownloadError(f"{url} has the MD5 {found}, expected {checksum}")
    part.replace(target)


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Append to `part` what it still lacks; what has arrived stays there if the connection breaks."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is lacking: the checksum decides whether what is there is good
        raise
    with response:
        if not _continues(response, have):
            have = 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        _write(response, part, have, total, progress)


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the server sends the rest; one that ignores the Range header answers 200 and sends everything."""
    return response.status == http.client.PARTIAL_CONTENT and response.headers.get("Content-Range", "").startswith(
        f"bytes {have}-"
    )


def _write(response: http.client.HTTPResponse, part: Path, have: int, total: int | None, progress: Progress) -> None:
    task = progress.add_task(part.stem, total=total, completed=have)
    with part.open("ab" if have else "wb") as output:
        while chunk := response.read(CHUNK):
            have += len(chunk)
            if have > LARGEST:
                part.unlink()
                raise DownloadError(f"{part.stem} is larger than {LARGEST} bytes")
            output.write(chunk)
            progress.update(task, completed=have)
        output.flush()
        os.fsync(output.fileno())
    # http.client returns a short read, not an error, when the connection breaks; it must not count as a wrong checksum
    if total is not None and have < total:
        raise DownloadError(f"the connection ended after {have} of {total} bytes of {part.stem}, run again to resume")


def file_md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: two runs started together would otherwise write into the same .part file."""
    with (folder / ".lock").open("w") as handle:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def unpack(archive: Path, members: Collection[str], folder: Path, largest: int) -> None:
    """Take these members (name/in/archive, at most `largest` bytes each) out of a .tar.gz into `folder`, or none.

    Only their last names are used, and only in `folder`; links, devices and all other members are passed over.
    """
    wanted = set(members)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder), gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                if member.name in wanted and member.isreg() and (content := tar.extractfile(member)):
                    wanted.remove(member.name)
                    _copy(content, folder / Path(member.name).name, largest)
                if not wanted:
                    break  # what follows is not asked for, and would take time to decompress
            if wanted:
                raise DownloadError(f"{archive} lacks {', '.join(sorted(wanted))}")
            for name in members:
                _part(folder / Path(name).name).replace(folder / Path(name).name)
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
        raise DownloadError(f"{archive} cannot be unpacked: {str(error) or type(error).__name__}") from error
    finally:
        for name in members:
            _part(folder / Path(name).name).unlink(missing_ok=True)


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _copy(content: IO[bytes], target: Path, largest: int) -> None:
    size = 0
    with _part(target).open("wb") as output:
        while chunk := content.read(CHUNK):
            size += len(chunk)
            if size > largest:
                raise DownloadError(f"{target.name} is larger than {largest} bytes")
            output.write(chunk)
        output.flush()
        os.fsync(output.fileno())
