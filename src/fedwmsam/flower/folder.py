"""The run's folder under Flower, which moves apps and may start one while its predecessor still ends."""

import logging
import time
from pathlib import Path

from fedwmsam.engine.records import Record
from fedwmsam.engine.run_folder import Busy, RunFolder
from fedwmsam.errors import InputError
from fedwmsam.experiment.assembly import open_folder

log = logging.getLogger("flwr.fedwmsam")


def absolute(folder: str | Path | None) -> Path | None:
    if not folder:
        return None
    path = Path(folder).expanduser()
    if not path.is_absolute():
        raise InputError(
            f"run_folder {str(folder)!r} must be an absolute path: Flower moves apps to a place of its own."
        )
    return path


def patiently_opened(path: Path, config: Record) -> RunFolder:
    """The process of a run that was cut off may take a minute to notice."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return open_folder(path, config, resume=True)
        except Busy:
            if time.monotonic() > deadline:
                raise
            log.info("Another process still holds %s; waiting.", path)
            time.sleep(5)
