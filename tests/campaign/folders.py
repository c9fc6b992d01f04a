"""Contents of run folders, so that two can be compared, and folders that cannot be written to."""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fedwmsam.engine import checkpoint
from fedwmsam.engine.client_state import Store, as_bytes, index_of

IGNORED = ("lock", "timings.jsonl", "config.toml", "provenance.json")
"""Files that may differ between equal runs: by seconds, times, and by the number of workers."""


def read_outcome(folder: Path) -> dict[str, bytes]:
    """Return all of a finished run that must not depend on what happened to it.

    Files that should not be there are in it, too, by their names.
    """
    contents = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        is_checkpoint = path.match("checkpoints/round-*") or path.name == "memory.rows"
        if path.is_file() and name not in IGNORED and not is_checkpoint:
            contents[name] = path.read_bytes()
    return contents | read_last_checkpoint(folder / "checkpoints")


def read_last_checkpoint(checkpoints: Path) -> dict[str, bytes]:
    """Return the content of the newest checkpoint, with each client's row in the store."""
    path = checkpoint.path_of(checkpoints, checkpoint.rounds_in(checkpoints)[0])
    saved = checkpoint.read_checkpoint(path)
    contents = {f"note {name}": repr(value).encode() for name, value in saved.notes.items()}
    for bundle, vectors in saved.bundles.items():
        if bundle != "memory":
            for name, value in vectors.items():
                contents[f"{bundle} {name}"] = bytes(as_bytes(value))
    store = Store(checkpoints / "memory.rows")
    store.check(saved)
    for client, slot, _ in index_of(saved):
        for name, value in store.read(slot).items():
            contents[f"client {client} {name}"] = bytes(as_bytes(value))
    store.close()
    return contents


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder, to the byte."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def is_held(folder: Path) -> bool:
    """Return whether a process is working in this run folder."""
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Make a folder unwritable while the block is executed.

    For root it is marked as immutable, because root ignores permissions.
    """
    if os.geteuid() == 0:
        subprocess.run(["chattr", "-R", "+i", folder], check=True, capture_output=True)
    else:
        change_modes(folder, 0o500, 0o400)
    try:
        yield
    finally:
        if os.geteuid() == 0:
            subprocess.run(["chattr", "-R", "-i", folder], check=True, capture_output=True)
        else:
            change_modes(folder, 0o700, 0o600)


def change_modes(folder: Path, folder_mode: int, file_mode: int) -> None:
    """Change the permissions of a folder and everything in it."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        path.chmod(folder_mode | 0o700 if path.is_dir() else file_mode)
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            path.chmod(folder_mode)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a file system of so many bytes; raise CalledProcessError if that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
        check=True,
        capture_output=True,
    )
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def enlarge(disk: Path) -> None:
    """Enlarge a small disk."""
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True, capture_output=True)


def can_be_unwritable(folder: Path) -> bool:
    """Return whether a folder in this one can be made unwritable."""
    probe = folder / "probe"
    probe.mkdir()
    try:
        with unwritable(probe):
            (probe / "file").touch()
        return False
    except PermissionError:
        return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        shutil.rmtree(probe)


def can_mount(folder: Path) -> bool:
    """Return whether a small disk can be mounted in this folder."""
    try:
        with small_disk(folder / "small disk", 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
