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
from fedwmsam.termination import install_sigterm_handler
from fedwmsam.trackers import make_trackers

PROTOCOL_OUTPUT = sys.stdout
"""Where the crew listens."""
LOCK_TIMEOUT = 60
"""Seconds."""


def main() -> None:
    install_sigterm_handler()
    sys.stdout = sys.stderr  # what a user's model prints must not get between the lines of news
    try:
        for order in read_requests():
            send_message({"status": execute_request(order)})
    except KeyboardInterrupt:
        sys.exit(130)


def read_requests() -> Iterator[dict[str, Any]]:
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


def execute_request(order: dict[str, Any]) -> str:
    """How the run ended."""
    path = Path(order["path"])
    try:
        experiment = prepare(resolve({k: v for k, v in order["config"].items() if v is not None}))
        trackers = make_trackers(experiment.config.track)
        folder = open_run_folder(experiment, path)
        send_message({"status": "running"})
        return experiment.run(folder, [send_progress, *trackers]).status
    except InputError as error:
        return f"failed: {error}"
    except OSError as error:
        return f"failed: {error.strerror or error} ({error.filename})"
    except Exception as error:  # a bug in a user's model, say: the other runs go on
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {error}"


def open_run_folder(experiment: Experiment, path: Path) -> RunFolder:
    """A process that outlived a killed comparison may still be saving its last round: wait for it."""
    for _ in range(LOCK_TIMEOUT):
        with contextlib.suppress(Busy):
            return experiment.reopen(path) if is_run(path) else experiment.create(path)
        time.sleep(1)
    return experiment.reopen(path)


def send_progress(progress: Progress) -> None:
    record = progress.record
    send_message(
        {key: record[key] for key in ("round", "accuracy", "loss") if record.get(key) is not None}
    )


def send_message(news: dict[str, Any]) -> None:
    """A lost reader is noticed by the input's end."""
    try:
        PROTOCOL_OUTPUT.write(json.dumps(news) + "\n")
        PROTOCOL_OUTPUT.flush()
    except BrokenPipeError:
        raise KeyboardInterrupt from None


if __name__ == "__main__":
    main()
