"""The folders in which the files of a data set are looked for, and the user's cache."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

SYSTEM_DATA = Path("/usr/share/datasets")
DATA_ENV_VAR = "FEDWMSAM_DATA"


def cache_folder() -> Path:
    """Return the folder in which downloaded and decoded files are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says that a relative path, the empty one included, is to be ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "fedwmsam"


def user_data_folders(data_dir: Path | None) -> list[Path]:
    """Return the folders that the user named: `data_dir`, then that of $FEDWMSAM_DATA."""
    folders = [] if data_dir is None else [data_dir]
    variable = os.environ.get(DATA_ENV_VAR)
    if variable:
        folders.append(Path(variable).expanduser())
    return folders


def candidate_folders(data_dir: Path | None, names: Sequence[str]) -> Iterator[Path]:
    """Yield folders that may hold a data set whose folder has one of these names, the best first.

    A folder of the right name comes before files that lie next to it, because several data sets use
    the same file names.
    """
    for folder in user_data_folders(data_dir):
        yield from (folder / name for name in names)
        yield folder
    for folder in (SYSTEM_DATA, cache_folder()):
        yield from (folder / name for name in names)
