"""Where the files of a data set are looked for, and where downloaded and decoded ones are kept."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

SYSTEM_DATA = Path("/usr/share/datasets")
DATA_ENV_VAR = "FEDWMSAM_DATA"


def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says that a relative path, the empty one included, is to be ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "fedwmsam"


def user_data_folders(data_dir: Path | None) -> list[Path]:
    """The folders a person named: the one given, then that of $FEDWMSAM_DATA."""
    variable = os.environ.get(DATA_ENV_VAR)
    return [
        p for p in (data_dir, Path(variable).expanduser() if variable else None) if p is not None
    ]


def candidate_folders(data_dir: Path | None, names: Sequence[str]) -> Iterator[Path]:
    """Folders that may hold a data set whose folder has one of these names, the best first.

    A folder of the right name comes before loose files beside it, because several data sets use the same file names.
    """
    for folder in user_data_folders(data_dir):
        yield from (folder / name for name in names)
        yield folder
    for folder in (SYSTEM_DATA, cache_folder()):
        yield from (folder / name for name in names)
