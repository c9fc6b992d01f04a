"""The one door to the files of a run folder, through which all of them are read and written.

A run folder may be a stranger's. What looks like a file in it may be a link to a file of somebody
else, a pipe that nobody writes to, or larger than the memory. So only regular files are opened,
links are not followed, and nothing is read that is larger than it may be. A file that is written is
complete or absent, whenever the process is killed.

Lines end with a line feed alone on every system, so that digests of files hold everywhere.
"""

import contextlib
import errno
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar

from filelock import FileLock, Timeout

from fedwmsam.errors import InputError

KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What is no regular file, by the type that the system gives it."""
OPEN_FLAGS = sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
"""Flags with which links are not followed, pipes not waited for, and bytes left as they are; a
system lacks those it does not need, and Windows the first as well."""
SHARING_SECONDS = 2.0
"""Seconds for which a file that others have open is tried again."""

Returned = TypeVar("Returned")


# Reading


def open_to_read(path: Path) -> BinaryIO:
    """Open a regular file for reading; raise InputError if it is a link, a pipe or a device."""
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; raise InputError if it is larger than `limit` bytes."""
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise InputError(
                f"{path} has {size:,} bytes, more than the {limit:,} that it may have; "
                "it is not read."
            )
        return file.read(size)


def read_part(path: Path, start: int, limit: int) -> bytes:
    """Return at most `limit` bytes of a regular file from a position; b"" if it is shorter."""
    with open_to_read(path) as file:
        file.seek(start)
        return file.read(limit)


def change_time(path: Path) -> int:
    """Return when a regular file was last changed, in nanoseconds of the disk's own clock.

    The file is opened for it: a network file system then asks the server.
    """
    with open_to_read(path) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def read_named(path: Path, limit: int) -> bytes:
    """Return the content of a file that the user has named; raise InputError above `limit` bytes.

    Unlike a file that only a run folder names it may be a link, or below /dev a pipe of the shell.
    """
    if not path.is_relative_to("/dev"):
        return read_bytes(path.resolve(), limit)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path} has more than the {limit:,} bytes that it may have.")
    return content


# Writing


@contextlib.contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that takes the place of `path` when the block ends.

    It is a new file in the same folder, with a name that nobody could foresee. It is flushed to the
    disk before it is renamed and the folder after that, so that at any instant `path` is the old
    file or the complete new one. If the block raises, the old one stays. A link at `path` is
    replaced, not followed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    os.close(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield temporary
        descriptor = open_regular(temporary, os.O_RDWR)  # Windows flushes what may be written
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        insist(lambda: temporary.replace(path))
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, *parts: bytes) -> None:
    """Write a file of these parts, which is complete or, if that fails, as it was before."""
    with atomic_replace(path) as temporary, temporary.open("wb") as file:
        file.writelines(parts)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, as `write_bytes` does; line breaks stay as they are."""
    write_bytes(path, text.encode())


def create_text(path: Path, text: str) -> bool:
    """Create a file with this text, complete at once, and return whether this process made it.

    Of any number of processes one does, on a network file system as well: the complete file is
    linked to its name, and the count of its links tells whether that was done, since a server's
    answer can be lost and the request repeated.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        write_new(temporary, text)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                return write_new(path, text)  # no links here, as on a memory card
            if error.errno != errno.EEXIST and temporary.lstat().st_nlink < 2:
                raise
        is_made = temporary.lstat().st_nlink == 2
    finally:
        temporary.unlink(missing_ok=True)
    if is_made:
        sync_folder(path.parent)
    return is_made


def write_new(path: Path, text: str) -> bool:
    """Write a file that must not exist; return False if it does."""
    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    return True


def touch(path: Path) -> None:
    """Set a file's time of change to now, by the clock of the disk's own machine."""
    os.utime(path, follow_symlinks=os.utime not in os.supports_follow_symlinks)


def open_to_append(path: Path) -> TextIO:
    """Open a regular file, which is made if it does not exist, to append text to it."""
    descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return os.fdopen(descriptor, "a", encoding="utf-8", newline="\n")


def open_to_update(path: Path) -> FileIO:
    """Open a regular file, which is made if it does not exist, to read and change parts of it."""
    is_new = not path.exists()
    file = FileIO(open_regular(path, os.O_RDWR | os.O_CREAT), "r+")
    if is_new:
        sync_folder(path.parent)
    return file


def open_unnamed() -> FileIO:
    """Return a new file that no folder lists; it disappears with the process."""
    with tempfile.TemporaryFile(dir=large_file_folder()) as file:
        return FileIO(os.dup(file.fileno()), "r+")


def make_shared_file(folder: str) -> "tempfile._TemporaryFileWrapper[bytes]":
    """Return a new file that other processes may open by its name, until it is closed."""
    return tempfile.NamedTemporaryFile(dir=folder)


def open_shared_file(name: str) -> int:
    """Return the descriptor of a file that another process of this program has made and shares."""
    # Windows removes the file when nobody has it open any more, if all have opened it with this.
    return os.open(name, os.O_RDWR | OPEN_FLAGS | getattr(os, "O_TEMPORARY", 0))


def large_file_folder() -> str:
    """Return a folder on a disk, for large temporary files; /tmp is in RAM on many systems."""
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK):
        return "/var/tmp"
    return tempfile.gettempdir()


def lock_for(path: Path) -> FileLock:
    """Return a lock on this file, not acquired; raise InputError unless it is regular or absent."""
    require_kind(path, stat.S_IFREG, "a regular file")
    return FileLock(path)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on this file; without the file nobody does."""
    if not path.exists():
        return False
    try:
        with lock_for(path).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # nobody can work in a folder that cannot be written
        return False


# Folders


def own_folder(path: Path) -> Path:
    """Return the path of a folder inside a run folder, which need not exist.

    Raise InputError if it is a link: what is written to it would land somewhere else.
    """
    require_kind(path, stat.S_IFDIR, "a folder")
    return path


def remove_temporary_files(folder: Path) -> None:
    """Remove what `atomic_replace` of a process that was killed has left in a folder."""
    for leftover in folder.glob(".*.new"):
        if not leftover.is_dir() or leftover.is_symlink():
            leftover.unlink()


def sync_folder(folder: Path) -> None:
    """Flush the folder's list of files to the disk, so that a renamed file keeps its new name.

    Windows opens no folders, and this does nothing there.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The check behind all of them


def is_regular(path: Path) -> bool:
    """Return whether there is a regular file at this path; a link to one is none."""
    return path.is_file() and not path.is_symlink()


def open_regular(path: Path, flags: int) -> int:
    """Open a file and return its descriptor; raise InputError if it is not a regular file.

    Opening does not wait: a pipe would wait for somebody who writes to it.
    """
    if not hasattr(os, "O_NOFOLLOW"):
        require_kind(path, stat.S_IFREG, "a regular file")
    try:
        descriptor = insist(lambda: os.open(path, flags | OPEN_FLAGS, 0o666))
    except OSError as error:
        # A link, and pipes and sockets that nobody serves, are refused by the system already.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            require_kind(path, stat.S_IFREG, "a regular file")
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise wrong_kind_error(path, kind, "a regular file")
    return descriptor


def insist(action: Callable[[], Returned]) -> Returned:
    """Return what an action on a file returns; on Windows try it again for SHARING_SECONDS.

    Windows refuses to open or replace a file at the moment at which another process uses it.
    """
    deadline = time.monotonic() + SHARING_SECONDS
    while True:
        try:
            return action()
        except PermissionError as error:
            if not hasattr(error, "winerror") or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def require_kind(path: Path, expected: int, description: str) -> None:
    """Raise InputError if there is something at `path` that is not of the expected kind."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    if kind != expected:
        raise wrong_kind_error(path, kind, description)


def wrong_kind_error(path: Path, kind: int, expected: str) -> InputError:
    """Return the error for a path at which something else is than a run folder has there."""
    return InputError(
        f"{path} is {KINDS.get(kind, 'a regular file')}, not {expected}; "
        "a run folder holds its files itself: remove it or put them there."
    )
