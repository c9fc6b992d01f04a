"""Rounds of a run that is over, repeated exactly from what its folder kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError
from fedwmsam.engine.client_state import ClientMemory
from fedwmsam.engine.records import Record, read_lines
from fedwmsam.engine.rounds import Diverged, Federation, State, run_round
from fedwmsam.engine.run import RoundHook, RoundRecorder
from fedwmsam.engine.run_folder import (
    RunFolder,
    require_run_folder,
    unpack_replay_state,
    unpack_state,
)
from fedwmsam.errors import InputError
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.experiment.experiment import load_config, prepare
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.config import RunConfig


@dataclass
class ReplayedRun:
    """A run's folder, its federation made again, and the numbers it wrote. Nothing in it is changed."""

    folder: Path
    config: RunConfig
    federation: Federation
    rows: list[Record]
    strangers: list[int] = field(default_factory=list)
    """Rounds whose replay did not give the numbers the run wrote."""

    @classmethod
    def of(cls, folder: Path) -> "ReplayedRun":
        experiment = prepare(load_config(require_run_folder(folder)))
        config = experiment.config
        federation = make_federation(
            config, config.make_method(), experiment.task, experiment.clients
        )
        return cls(folder, config, federation, read_lines(folder / "metrics.jsonl"))

    def kept(self) -> list[int]:
        """The rounds before which the state was kept, the first one first."""
        return checkpoint.rounds_in(self.folder / "states")[::-1]

    def state(self, round: int) -> State:
        path = checkpoint.path_of(self.folder / "states", round)
        try:
            return unpack_replay_state(self.federation, checkpoint.read_checkpoint(path))
        except DamagedFileError as damage:
            raise InputError(f"{damage}; remove it, the other states are enough.") from damage

    def repeat(
        self, state: State, recorder: RoundRecorder | None = None, trail: Vectors | None = None
    ) -> "ReplayedRound":
        """The round after `state` once more, looked at by the recorder."""
        watch = (
            recorder.watch(self.federation, state, trail or {})
            if recorder
            else RoundHook(self.federation)
        )
        after, record = run_round(watch.federation, state, watch.observe)
        if state.round < len(self.rows) and any(
            self.rows[state.round].get(key) != record[key] for key in record
        ):
            self.strangers.append(after.round)
        return ReplayedRound(after, *watch.finish(after))

    def chain(
        self,
        state: State,
        rounds: int,
        recorder: RoundRecorder | None = None,
        trail: Vectors | None = None,
    ) -> Iterator["ReplayedRound"]:
        """Successive rounds, for as long as what they read is known."""
        for _ in range(rounds):
            if not self.all_known(state):
                return
            try:
                repeated = self.repeat(state, recorder, trail)
            except Diverged:
                return
            state, trail = repeated.after, repeated.trail
            yield repeated

    def all_known(self, state: State) -> bool:
        """Whether the memory holds a row for every client of the next cohort that has one."""
        if not self.federation.method.memory_init(state.server["w"]):
            return True
        schedule = self.federation.schedule
        missing = {client for client in schedule.cohort(state.round) if client not in state.memory}
        return not any(missing.intersection(schedule.cohort(round)) for round in range(state.round))

    def last_checkpoint(self) -> State | None:
        """The older of the checkpoints of a run that has ended: from there its last rounds can be repeated."""
        rounds = checkpoint.rounds_in(self.folder / "checkpoints")
        if not rounds or not (self.folder / "summary.json").exists():
            return None
        try:
            return self.complete_state(
                checkpoint.read_checkpoint(
                    checkpoint.path_of(self.folder / "checkpoints", rounds[-1])
                )
            )
        except DamagedFileError:
            return None

    def complete_state(self, found: Checkpoint) -> State:
        """With every client's row: read where it lies, while what the replay changes stays in RAM."""
        store, device = RunFolder(self.folder).store, self.federation.task.device
        store.check(found)
        memory = ClientMemory(store, inf, device).stored(store.adopt([found])[0])
        return unpack_state(self.federation, found, memory)


@dataclass(frozen=True)
class ReplayedRound:
    after: State
    line: Record
    trail: Vectors
