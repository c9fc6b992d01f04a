"""Those who look on while a run goes on: callbacks, observers such as trackers, and recorders of its dynamics."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fedwmsam.engine.folder import Record
from fedwmsam.engine.rounds import Federation, Job, State
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import LocalResult

if TYPE_CHECKING:
    from fedwmsam.engine.run import Run


class Progress:
    """What a callback sees after each round."""

    def __init__(self, run: "Run", record: Record) -> None:
        self._run, self.record = run, record

    @property
    def history(self) -> list[Record]:
        return self._run.history

    @property
    def config(self) -> Record:
        """The settings, as config.toml holds them."""
        return self._run.config

    @property
    def folder(self) -> Path | None:
        return self._run.folder.path if self._run.folder else None

    @property
    def summary(self) -> Record:
        """Status, rounds and best round as they are now."""
        return self._run.summary()

    def state_dict(self) -> Vectors:
        """A copy of the global model as it is now."""
        return self._run.model()

    def stop(self, reason: str = "stopped by a callback") -> None:
        """End the run after this round."""
        self._run.status = reason


Callback = Callable[[Progress], object]


@runtime_checkable
class Observer(Protocol):
    """A callback that is also told when a run begins, before anything is trained, and when it ends, however it ends.

    It is called once the round is recorded, after all other callbacks: its record is the line of metrics.jsonl.
    """

    def start(self, progress: Progress) -> object: ...

    def __call__(self, progress: Progress) -> object: ...

    def finish(self, progress: Progress) -> object: ...


class Watch:
    """One round as it is looked at: this one sees nothing."""

    seconds = 0.0
    """What looking took; it is no part of the training."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        """What the round is run with; a watch may train the cohort in its own way, with the same numbers."""

    def observe(self, job: Job, result: LocalResult) -> None:
        """A client has answered."""

    def finish(self, after: State) -> tuple[Record, Vectors]:
        """The round's line in recordings.jsonl, if any, and what the next rounds need to know of this one."""
        return {}, {}


class Recorder(Protocol):
    def watch(self, federation: Federation, state: State, trail: Vectors) -> Watch:
        """For the round after `state`; the trail is what the watches of the rounds before have left."""
        ...
