"""Experiment trackers: callbacks that also log each round to TensorBoard or Weights & Biases.

The run folder stays the authoritative record. A tracker's log is a copy of it, written from the
first round on whenever a run starts or is resumed, so that the log of a run that was killed and
resumed has each of its rounds once. A log that cannot be opened is an error before anything is
trained; one that fails later is closed with a warning, and the run continues.
"""

import contextlib
import importlib.util
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fedwmsam.engine.records import Record, replace_nonfinite
from fedwmsam.engine.run import Progress
from fedwmsam.errors import InputError, describe_error, install_command
from fedwmsam.files import own_folder
from fedwmsam.settings.parsers import parse_trackers
from fedwmsam.termination import hides_interrupt

log = logging.getLogger("fedwmsam")


class Tracker(ABC):
    """An `Observer` of a run that keeps a log equal to the run's history."""

    title: ClassVar[str]
    """The tracker's name in messages."""
    package: ClassVar[str]
    """The package that must be installed; also the name of the extra that installs it."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec(self.package)
        # A spec without an origin is a mere folder: wandb makes one called wandb where it logs.
        if spec is None or spec.origin is None:
            raise InputError(
                f"{self.title} needs the package {self.package}, which is not installed: "
                f"{install_command(self.package)}"
            )
        self.logged_rounds = 0
        self.is_logging = False

    @abstractmethod
    def open(self, progress: Progress) -> None:
        """Begin a log that will hold the run from its first round, and log the configuration."""

    @abstractmethod
    def write(self, records: Sequence[Record]) -> None:
        """Log the numbers of each record at its round."""

    @abstractmethod
    def close(self, progress: Progress) -> None:
        """Log how the run ended, and close the log."""

    @abstractmethod
    def viewing_hint(self) -> str:
        """Return a line that tells the user how to look at the log."""

    def start(self, progress: Progress) -> None:
        """Open the log and write the rounds that the run already has.

        Raise InputError if that fails, since nothing has been trained yet.
        """
        self.logged_rounds = 0
        self.is_logging = True
        try:
            self.open(progress)
            self.write_new_records(progress)
        except InputError:
            raise
        except Exception as error:
            if hides_interrupt(error):
                raise KeyboardInterrupt from error
            raise InputError(
                f"{self.title} cannot begin its log: {describe_error(error)}; "
                "mend that, or run without it."
            ) from error

    def __call__(self, progress: Progress) -> None:
        self.try_to(self.write_new_records, progress)

    def finish(self, progress: Progress) -> None:
        """Write the rounds that are missing and close the log; called however the run ends."""
        self(progress)  # an interrupt may have come after the end of a round and before its log
        self.try_to(self.close, progress)

    def try_to(self, action: Callable[[Progress], None], progress: Progress) -> None:
        """Call the action if there is a log; if it raises, stop logging but let the run go on."""
        if self.is_logging:
            try:
                action(progress)
            except Exception as error:
                if hides_interrupt(error):
                    raise KeyboardInterrupt from error
                self.stop_logging(progress, error)

    def write_new_records(self, progress: Progress) -> None:
        """Write those rounds of the history that are not in the log yet."""
        new_records = progress.history[self.logged_rounds :]
        self.write(new_records)
        self.logged_rounds += len(new_records)

    def stop_logging(self, progress: Progress, error: Exception) -> None:
        """Warn that the log ends here because of the error, and close it as far as possible."""
        self.is_logging = False
        log.warning(
            "%s: the log ends after round %d (%s). "
            "The run goes on; resuming it, even when it is done, logs it anew.",
            self.title,
            self.logged_rounds,
            describe_error(error),
        )
        with contextlib.suppress(Exception):
            self.close(progress)


class TensorBoard(Tracker):
    """A tracker that writes a run's numbers as scalars, for `tensorboard --logdir FOLDER`.

    folder: one for each run, since TensorBoard shows a folder as one run; None: the run's folder.
    """

    title = "TensorBoard"
    package = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__()
        self.folder = folder

    def open(self, progress: Progress) -> None:
        folder = self.folder or progress.folder
        if folder is None:
            raise InputError(
                "TensorBoard needs a folder: TensorBoard('logs/mine'), or a run_folder for the run."
            )
        self.log_folder = Path(folder)
        self.last_round = 0
        self.begin_file(0)
        rows = [
            f"| {key} | {value} |\n" for key, value in progress.config.items() if value is not None
        ]
        table = f"| setting | value |\n|---|---|\n{''.join(rows)}"
        self.writer.add_text("configuration", table, len(progress.history))

    def begin_file(self, step: int) -> None:
        """Begin a new file in the folder; readers ignore earlier files from this step on."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.log_folder), purge_step=step)

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            if record["round"] == self.last_round:  # an interrupt came when it was half written
                self.writer.close()
                self.begin_file(self.last_round)
            self.last_round = record["round"]
            for name, value in numeric_columns(record).items():
                self.writer.add_scalar(name, value, self.last_round)
        self.writer.flush()

    def close(self, progress: Progress) -> None:
        self.writer.add_text("status", progress.summary["status"], self.logged_rounds)
        self.writer.close()

    def viewing_hint(self) -> str:
        return f"TensorBoard: tensorboard --logdir {self.log_folder.parent}"


class WeightsAndBiases(Tracker):
    """A tracker that writes a run's numbers as a run of Weights & Biases.

    By default it is written to disk only, for `wandb sync` to upload later.

    mode: "offline", "online" or "disabled", as in `wandb.init`; environment variables do not count.
    arguments: of `wandb.init`, such as entity, group or tags. By default `dir` is the run's folder.
    """

    title = "Weights & Biases"
    package = "wandb"

    def __init__(self, project: str = "fedwmsam", mode: str = "offline", **arguments: Any) -> None:
        super().__init__()
        if mode not in ("offline", "online", "disabled"):
            raise InputError(f"mode must be offline, online or disabled, not {mode!r}.")
        self.project = project
        self.mode = mode
        self.arguments = arguments

    def open(self, progress: Progress) -> None:
        # Even offline, the package would send reports about its own errors.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        folder = progress.folder
        if folder:
            own_folder(folder / "wandb")  # where it writes; a link would lead out of the run
        defaults = {
            "dir": str(folder or "."),
            "name": folder.name if folder else None,
            "id": earlier_id(folder) if folder else None,
            "config": progress.config,
            "reinit": "create_new",  # other runs that this process logs are left alone
            "settings": wandb.Settings(console="off", silent=True),
        }
        self.run = wandb.init(project=self.project, mode=self.mode, **defaults | self.arguments)

    def write(self, records: Sequence[Record]) -> None:
        for record in records:  # wandb ignores a step that it already has
            self.run.log(numeric_columns(record), step=record["round"], commit=True)

    def close(self, progress: Progress) -> None:
        self.run.summary.update(progress.summary)
        status = progress.summary["status"]
        self.run.finish(exit_code=int(status == "interrupted" or status.startswith("diverged")))

    def viewing_hint(self) -> str:
        if self.mode == "online":
            return f"Weights & Biases: {self.run.url}"
        return f"Weights & Biases: wandb sync {self.run.settings.sync_dir}"


def numeric_columns(record: Record) -> dict[str, float]:
    """Return the columns of a round that are finite numbers, without the number of the round."""
    return {
        name: value
        for name, value in replace_nonfinite(record).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "round"
    }


def earlier_id(folder: Path) -> str | None:
    """Return the id under which Weights & Biases logged this run before, if it did.

    A log that is written again under the same id takes the place of the earlier one.
    """
    logs = sorted(folder.glob("wandb/*run-*/run-*.wandb"))
    return logs[-1].stem.removeprefix("run-") if logs else None


TRACKER_CLASSES: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def make_trackers(names: str | None) -> list[Tracker]:
    """Return the trackers that the setting `track` names.

    Raise InputError if a package is missing; make them, therefore, before anything else.
    """
    return [TRACKER_CLASSES[name](*arguments) for name, arguments in parse_trackers(names)]
