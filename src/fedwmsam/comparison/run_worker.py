"""A worker process of a comparison: carries out one run at a time and reports its progress.

`comparison/queue.py` starts it as `python -m fedwmsam.comparison.run_worker`. Both sides exchange
lines of JSON, one object per line, over the worker's standard input and output.

Request (one line on the input for each run, sent when the run before it is finished):

    {"path": FOLDER, "config": {SETTING: VALUE, ...}, "command": [WORD, ...]}

`path` is the run's folder, `config` its flat configuration as in config.toml; settings that are
null are left at their defaults. `command` is what the person typed who asked for the runs, for
provenance.json; it may be left out. If the folder already holds a run, the run is resumed from its
last checkpoint.

Messages (on the output, in this order for each request):

    {"status": "running"}                                  the folder is open, training begins
    {"round": 1, "accuracy": 0.31, "loss": 2.1}            after every round; accuracy and loss
                                                           are left out of rounds not evaluated
    {"status": STATUS}                                     the run is finished

The last STATUS is the one that summary.json holds, "completed", "diverged at round N: …" or the
reason why the run stopped early, or else "failed: REASON", if the run could not be carried out. The
worker then waits for the next request. "waiting" is a status of the queue only: it is never sent.

When the input ends, the worker exits; if it is training, it first saves the last completed round,
as on Ctrl-C or SIGTERM. The same happens when a message cannot be written because the reader is
gone. Everything else that is printed, such as warnings or what a user's model prints, goes to
standard error.
"""

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

from fedwmsam.engine.run import Callback, Progress
from fedwmsam.engine.run_folder import FolderBusy, RunFolder, is_run
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import Experiment, prepare
from fedwmsam.settings.config import resolve_config
from fedwmsam.settings.method_table import allow_import
from fedwmsam.termination import INTERRUPTED, finish, install_handlers
from fedwmsam.trackers import make_trackers

PROTOCOL_OUTPUT = sys.stdout
"""The stream that messages are written to."""
LOCK_TIMEOUT = 60
"""Seconds to wait for another process that still holds a run's folder."""


def main() -> None:
    """Carry out the requests of the standard input until it ends."""
    install_handlers(can_be_interrupted=True)
    sys.stdout = sys.stderr  # what a user's model prints must not get between the messages
    code = 0
    try:
        for request in read_requests():
            send_message({"status": execute_request(request)})
    except KeyboardInterrupt:
        code = INTERRUPTED
    finish(code)


def read_requests() -> Iterator[dict[str, Any]]:
    """Yield the requests of the standard input.

    When the input ends in the middle of a run, the process sends itself SIGTERM, which ends the run
    as Ctrl-C does: with its last completed round saved.
    """
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put("")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    while line := lines.get():
        yield json.loads(line)


def execute_request(request: dict[str, Any]) -> str:
    """Carry out a run, sending its progress, and return its final status."""
    path = Path(request["path"])
    values = {key: value for key, value in request["config"].items() if value is not None}
    try:
        allow_import(values["method"])  # the comparison that sent the request was allowed to
        experiment = prepare(resolve_config(values))
        trackers = make_trackers(experiment.config.track)
        folder = open_run_folder(experiment, path)
        send_message({"status": "running"})
        callbacks: list[Callback] = [send_progress, *trackers]
        return experiment.run(folder, callbacks, request.get("command")).status
    except InputError as error:
        return f"failed: {error}"
    except OSError as error:
        return f"failed: {error.strerror or error} ({error.filename})"
    except Exception as error:  # a bug in a user's model, say: the other runs go on
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {error}"


def open_run_folder(experiment: Experiment, path: Path) -> RunFolder:
    """Open the run in `path`, or create it; wait while another process holds the folder.

    A worker that outlived a killed comparison may still be saving its last round there. Raise
    FolderBusy if it has not finished after LOCK_TIMEOUT seconds.
    """
    for _ in range(LOCK_TIMEOUT):
        with contextlib.suppress(FolderBusy):
            return experiment.reopen(path) if is_run(path) else experiment.create(path)
        time.sleep(1)
    return experiment.reopen(path)


def send_progress(progress: Progress) -> None:
    """Send the round's number, accuracy and loss, as far as the round has them."""
    record = progress.record
    keys = ("round", "accuracy", "loss")
    send_message({key: record[key] for key in keys if record.get(key) is not None})


def send_message(message: dict[str, Any]) -> None:
    """Write a message as one line; raise KeyboardInterrupt if nobody reads the output any more."""
    try:
        PROTOCOL_OUTPUT.write(json.dumps(message) + "\n")
        PROTOCOL_OUTPUT.flush()
    except BrokenPipeError:
        raise KeyboardInterrupt from None


if __name__ == "__main__":
    main()
