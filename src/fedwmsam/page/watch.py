"""A page that is written again and again while the runs on it go on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedwmsam.comparison.status import WorkerWatch
from fedwmsam.engine.run_folder import is_busy
from fedwmsam.errors import InputError
from fedwmsam.files import is_locked
from fedwmsam.page.page import write_page
from fedwmsam.report.summary import Comparison


def watch_page(
    path: Path,
    load: Callable[[], Comparison],
    roots: Sequence[Path],
    seconds: float,
    paper_columns: bool = False,
) -> int:
    """Write the page every so many seconds until nobody works on its runs any more.

    `load` returns the comparison as it is now, `roots` are the folders that hold the runs. The page
    that is written last does not load itself again. Return how often it was written.
    """
    written = 0
    workers = WorkerWatch(roots)
    while True:
        try:
            comparison = load()
        except InputError:
            if not is_compared(roots, workers):
                raise
            time.sleep(seconds)  # a comparison that has begun may have no run yet
            continue
        goes_on = is_compared(roots, workers) or is_trained(comparison)
        write_page(path, comparison, paper_columns, seconds if goes_on else 0)
        written += 1
        if not goes_on:
            return written
        time.sleep(seconds)


def is_compared(roots: Sequence[Path], workers: WorkerWatch) -> bool:
    """Return whether a comparison goes on in one of the folders, here or on other machines."""
    return any(is_locked(root / ".lock") for root in roots) or workers.anybody_works()


def is_trained(comparison: Comparison) -> bool:
    """Return whether a process works on one of the runs."""
    for row in comparison.rows:
        unfinished = [run.path for run in row.excluded_runs]
        finished = [score.run.path for score in row.scores]
        if any(map(is_busy, unfinished + finished)):
            return True
    return any(is_busy(run.path) for run in comparison.unreadable_runs)
