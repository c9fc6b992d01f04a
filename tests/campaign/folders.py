"""What a run folder holds, so that two can be compared, and places where nothing can be written."""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fedwmsam.engine import checkpoint
from fedwmsam.engine.client_state import Store, as_bytes, index_of

OWN = ("lock", "timings.jsonl", "config.toml")
"""What rightly differs: seconds, and the number of workers."""


def outcome(folder: Path) -> dict[str, bytes]:
    """All of a finished run that must not depend on what happened to it; what lies about is there by its name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if (
            path.is_file()
            and name not in OWN
            and not path.match("checkpoints/round-*")
            and path.name != "memory.rows"
        ):
            found[name] = path.read_bytes()
    return found | last_state(folder / "checkpoints")


def last_state(checkpoints: Path) -> dict[str, bytes]:
    """The newest checkpoint, each client's row included, wherever it lies in the store."""
    saved = checkpoint.read_checkpoint(
        checkpoint.path_of(checkpoints, checkpoint.rounds_in(checkpoints)[0])
    )
    found = {f"note {name}": repr(value).encode() for name, value in saved.notes.items()}
    for bundle, vectors in saved.bundles.items():
        if bundle != "memory":
            found |= {f"{bundle} {name}": bytes(as_bytes(value)) for name, value in vectors.items()}
    store = Store(checkpoints / "memory.rows")
    store.check(saved)
    for client, slot, _ in index_of(saved):
        found |= {
            f"client {client} {name}": bytes(as_bytes(value))
            for name, value in store.read(slot).items()
        }
    store.close()
    return found


def everything(folder: Path) -> dict[str, bytes]:
    """Every file, to the byte."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def is_held(folder: Path) -> bool:
    """Whether a process is working in this run's folder."""
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Root ignores permissions, but not the mark "immutable"."""
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


def change_modes(folder: Path, folders: int, files: int) -> None:
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        path.chmod(folders | 0o700 if path.is_dir() else files)
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            path.chmod(folders)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of its own with so many bytes; raises where mounting is not allowed."""
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
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True, capture_output=True)


def can_be_unwritable(place: Path) -> bool:
    probe = place / "probe"
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


def can_mount(place: Path) -> bool:
    try:
        with small_disk(place / "small disk", 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
