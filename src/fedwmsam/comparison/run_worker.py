"""A process of a comparison's crew: takes a run's configuration, carries it out, says how far it is."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedwmsam.engine.run import Progress
from fedwmsam.engine.run_folder import Busy, RunFolder, is_run
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import Experiment, prepare
from fedwmsam.settings.config import resolve
from fedwmsam.termination import heed_termination
from fedwmsam.trackers import make_trackers

CHANNEL = sys.stdout
"""Where the crew listens."""
PATIENCE = 60
"""Seconds."""


def main() -> None:
    heed_termination()
    sys.stdout = sys.stderr  # what a user's model prints must not get between the lines of news
    try:
        for order in orders():
            tell({"status": outcome(order)})
    except KeyboardInterrupt:
        sys.exit(130)


def orders() -> Iterator[dict[str, Any]]:
    """Lines of the input. When it ends in the middle of a run, the run ends as with Ctrl-C: saved."""
    waiting: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            waiting.put(line)
        waiting.put("")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    while line := waiting.get():
        yield json.loads(line)


def outcome(order: dict[str, Any]) -> str:
    """How the run ended."""
    path = Path(order["path"])
    try:
        experiment = prepare(resolve({k: v for k, v in order["config"].items() if v is not None}))
        trackers = make_trackers(experiment.config.track)
        folder = opened(experiment, path)
        tell({"status": "running"})
        return experiment.run(folder, [report, *trackers]).status
    except InputError as error:
        return f"failed: {error}"
    except OSError as error:
        return f"failed: {error.strerror or error} ({error.filename})"
    except Exception as error:  # a bug in a user's model, say: the other runs go on
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {error}"


def opened(experiment: Experiment, path: Path) -> RunFolder:
    """A process that outlived a killed comparison may still be saving its last round: wait for it."""
    for _ in range(PATIENCE):
        with contextlib.suppress(Busy):
            return experiment.reopen(path) if is_run(path) else experiment.create(path)
        time.sleep(1)
    return experiment.reopen(path)


def report(progress: Progress) -> None:
    record = progress.record
    tell({key: record[key] for key in ("round", "accuracy", "loss") if record.get(key) is not None})


def tell(news: dict[str, Any]) -> None:
    """A lost reader is noticed by the input's end."""
    try:
        CHANNEL.write(json.dumps(news) + "\n")
        CHANNEL.flush()
    except BrokenPipeError:
        raise KeyboardInterrupt from None


if __name__ == "__main__":
    main()
