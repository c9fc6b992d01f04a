"""Experiment trackers: callbacks that log each round's numbers to TensorBoard or to Weights & Biases as well.

The run folder stays the record. A tracker's log is a copy of it, written from the first round on whenever a run begins
or goes on, so that the log of a run that was killed and resumed has each of its rounds once. A log that cannot be begun
is an error before anything is trained; one that fails later is given up with a warning, and the run goes on.
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
from fedwmsam.errors import InputError
from fedwmsam.settings.parsers import parse_trackers

log = logging.getLogger("fedwmsam")


class Tracker(ABC):
    """Keeps a log equal to a run's history; an `Observer` of the run."""

    title: ClassVar[str]
    package: ClassVar[str]
    """What must be installed; also the name of the extra that installs it."""

    def __init__(self) -> None:
        found = importlib.util.find_spec(self.package)
        if (
            found is None or found.origin is None
        ):  # a mere folder called wandb lies wherever it has logged
            raise InputError(
                f"{self.title} needs the package {self.package}, which is not installed: "
                f"pip install 'fedwmsam[{self.package}]'."
            )
        self.rounds = 0
        """In the log."""
        self.works = False

    @abstractmethod
    def open(self, progress: Progress) -> None:
        """Begin a log that is to hold the run from its first round, and the configuration."""

    @abstractmethod
    def write(self, records: Sequence[Record]) -> None:
        """Log each record's numbers at its round."""

    @abstractmethod
    def close(self, progress: Progress) -> None:
        """Log how the run ended, and end the log."""

    @abstractmethod
    def advice(self) -> str:
        """How to look at the log."""

    def start(self, progress: Progress) -> None:
        self.rounds, self.works = 0, True
        try:
            self.open(progress)
            self.catch_up(progress)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.title} cannot begin its log: {reason(error)}; mend that, or run without it."
            ) from error

    def __call__(self, progress: Progress) -> None:
        self.attempt(self.catch_up, progress)

    def finish(self, progress: Progress) -> None:
        self(progress)  # an interrupt may have come between a round's end and its log
        self.attempt(self.close, progress)

    def attempt(self, action: Callable[[Progress], None], progress: Progress) -> None:
        """Whatever goes wrong with a log, the run goes on."""
        if self.works:
            try:
                action(progress)
            except Exception as error:
                self.give_up(progress, error)

    def catch_up(self, progress: Progress) -> None:
        new = progress.history[self.rounds :]
        self.write(new)
        self.rounds += len(new)

    def give_up(self, progress: Progress, error: Exception) -> None:
        self.works = False
        log.warning(
            "%s: the log ends after round %d (%s). The run goes on; resuming it, even when it is done, logs it anew.",
            self.title,
            self.rounds,
            reason(error),
        )
        with contextlib.suppress(Exception):
            self.close(progress)


class TensorBoard(Tracker):
    """A run's numbers as scalars, for `tensorboard --logdir FOLDER`.

    folder: one for each run, since TensorBoard shows a folder as one run; None: the run's own folder.
    """

    title, package = "TensorBoard", "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__()
        self.folder = folder

    def open(self, progress: Progress) -> None:
        place = self.folder or progress.folder
        if place is None:
            raise InputError(
                "TensorBoard needs a folder: TensorBoard('logs/mine'), or a run_folder for the run."
            )
        self.place, self.begun = Path(place), 0
        self.begin_file(0)
        rows = "".join(
            f"| {key} | {value} |\n" for key, value in progress.config.items() if value is not None
        )
        self.writer.add_text(
            "configuration", f"| setting | value |\n|---|---|\n{rows}", len(progress.history)
        )

    def begin_file(self, step: int) -> None:
        """From this step on, whoever reads the folder drops what the files before it hold."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.place), purge_step=step)

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            if record["round"] == self.begun:  # an interrupt came when it was half written
                self.writer.close()
                self.begin_file(self.begun)
            self.begun = record["round"]
            for name, value in numeric_columns(record).items():
                self.writer.add_scalar(name, value, self.begun)
        self.writer.flush()

    def close(self, progress: Progress) -> None:
        self.writer.add_text("status", progress.summary["status"], self.rounds)
        self.writer.close()

    def advice(self) -> str:
        return f"TensorBoard: tensorboard --logdir {self.place.parent}"


class WeightsAndBiases(Tracker):
    """A run's numbers as a run of Weights & Biases: by default on disk only, for `wandb sync` to upload later.

    mode: "offline", "online" or "disabled", as in `wandb.init`; what the environment says does not count.
    arguments: of `wandb.init`, such as entity, group or tags. By default the log is in the run's folder (`dir`).
    """

    title, package = "Weights & Biases", "wandb"

    def __init__(self, project: str = "fedwmsam", mode: str = "offline", **arguments: Any) -> None:
        super().__init__()
        if mode not in ("offline", "online", "disabled"):
            raise InputError(f"mode must be offline, online or disabled, not {mode!r}.")
        self.project, self.mode, self.arguments = project, mode, arguments

    def open(self, progress: Progress) -> None:
        os.environ.setdefault(
            "WANDB_ERROR_REPORTING", "false"
        )  # even offline it would report on itself
        import wandb

        place = progress.folder
        usual = {
            "dir": str(place or "."),
            "name": place.name if place else None,
            "id": earlier_id(place) if place else None,
            "config": progress.config,
            "reinit": "create_new",  # whatever else this process logs is left alone
            "settings": wandb.Settings(console="off", silent=True),
        }
        self.run = wandb.init(project=self.project, mode=self.mode, **usual | self.arguments)

    def write(self, records: Sequence[Record]) -> None:
        for record in records:  # a step that is there already is ignored
            self.run.log(numeric_columns(record), step=record["round"], commit=True)

    def close(self, progress: Progress) -> None:
        self.run.summary.update(progress.summary)
        status = progress.summary["status"]
        self.run.finish(exit_code=int(status == "interrupted" or status.startswith("diverged")))

    def advice(self) -> str:
        where = (
            self.run.url if self.mode == "online" else f"wandb sync {self.run.settings.sync_dir}"
        )
        return f"Weights & Biases: {where}"


def numeric_columns(record: Record) -> dict[str, float]:
    """The columns that can be drawn; the round is where, not what."""
    return {
        name: value
        for name, value in replace_nonfinite(record).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "round"
    }


def reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def earlier_id(place: Path) -> str | None:
    """What the run was called when it began: a log written anew takes the place of the one before."""
    logs = sorted(place.glob("wandb/*run-*/run-*.wandb"))
    return logs[-1].stem.removeprefix("run-") if logs else None


TRACKER_CLASSES: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def make_trackers(names: str | None) -> list[Tracker]:
    """An InputError if a package is missing, so make them before anything else."""
    return [TRACKER_CLASSES[name](*arguments) for name, arguments in parse_trackers(names)]
