"""Exact replay of rounds of a finished run, from the states and checkpoints that its folder keeps.

A replayed round computes the same client updates as the run did, so that a recorder can observe
what was not recorded at the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from fedwmsam.engine import checkpoint
from fedwmsam.engine.checkpoint import Checkpoint, DamagedFileError
from fedwmsam.engine.client_state import ClientMemory
from fedwmsam.engine.records import Record, read_metrics
from fedwmsam.engine.rounds import Diverged, Federation, State, run_round
from fedwmsam.engine.run import RoundHook, RoundRecorder
from fedwmsam.engine.run_folder import (
    RunFolder,
    check_rows,
    read_state,
    require_run_folder,
    unpack_replay_state,
    unpack_state,
)
from fedwmsam.errors import InputError
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.experiment.experiment import load_config, prepare
from fedwmsam.experiment.trust import UNTRUSTED, Trust
from fedwmsam.files import own_folder
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.config import RunConfig


@dataclass
class ReplayedRun:
    """A run folder with its federation made again, to replay rounds; the folder is not changed."""

    folder: Path
    config: RunConfig
    federation: Federation
    round_records: list[Record]
    """The run's metrics, one record per round."""
    mismatched_rounds: list[int] = field(default_factory=list)
    """Rounds whose replay did not give the metrics that the run wrote."""

    @classmethod
    def from_folder(cls, folder: Path, trust: Trust = UNTRUSTED) -> "ReplayedRun":
        """Prepare the federation of the run in this folder and read its metrics.

        A model that the folder names as "package.module:function" is imported only if `trust`
        allows it.
        """
        experiment = prepare(load_config(require_run_folder(folder), trust))
        config = experiment.config
        federation = make_federation(
            config, config.make_method(), experiment.task, experiment.clients
        )
        return cls(folder, config, federation, read_metrics(folder / "metrics.jsonl"))

    def kept_rounds(self) -> list[int]:
        """Return the rounds whose state was kept, as completed rounds, in rising order."""
        return checkpoint.rounds_in(own_folder(self.folder / "states"))[::-1]

    def load_state(self, round: int) -> State:
        """Return the kept state after so many rounds; raise InputError if its file is damaged."""
        folder = own_folder(self.folder / "states")
        try:
            return unpack_replay_state(self.federation, read_state(folder, round))
        except DamagedFileError as damage:
            raise InputError(
                f"The state of round {round}: {damage}; remove it, the other states are enough."
            ) from damage

    def replay_round(
        self,
        state: State,
        recorder: RoundRecorder | None = None,
        past_updates: Vectors | None = None,
    ) -> "ReplayedRound":
        """Replay the round after `state`, observed by the recorder.

        The past updates are those that the replay of the round before has returned. If the metrics
        differ from those of the run, the round is added to `mismatched_rounds`.
        """
        if recorder:
            hook = recorder.make_hook(self.federation, state, past_updates or {})
        else:
            hook = RoundHook(self.federation)
        after, record = run_round(hook.federation, state, hook.observe_result)
        if state.round < len(self.round_records):
            original = self.round_records[state.round]
            if any(original.get(key) != record[key] for key in record):
                self.mismatched_rounds.append(after.round)
        return ReplayedRound(after, *hook.finish_round(after))

    def replay_rounds(
        self,
        state: State,
        rounds: int,
        recorder: RoundRecorder | None = None,
        past_updates: Vectors | None = None,
    ) -> Iterator["ReplayedRound"]:
        """Yield up to `rounds` successive replayed rounds after `state`.

        End early where a cohort's client memory was not kept, or where the run diverges.
        """
        for _ in range(rounds):
            if not self.has_cohort_memory(state):
                return
            try:
                replayed = self.replay_round(state, recorder, past_updates)
            except Diverged:
                return
            state = replayed.state
            past_updates = replayed.past_updates
            yield replayed

    def has_cohort_memory(self, state: State) -> bool:
        """Return whether the state has the memory of all clients of the next cohort.

        Clients that have not taken part before have none and need none; nor does any client of a
        method without client memory.
        """
        if not self.federation.method.memory_init(state.server["w"]):
            return True
        schedule = self.federation.schedule
        missing = {client for client in schedule.cohort(state.round) if client not in state.memory}
        return not any(missing.intersection(schedule.cohort(round)) for round in range(state.round))

    def load_older_checkpoint(self) -> State | None:
        """Return the state of the oldest checkpoint, from which the last rounds can be replayed.

        Return None if the run is not finished, or the checkpoint is missing or damaged.
        """
        folder = own_folder(self.folder / "checkpoints")
        rounds = checkpoint.rounds_in(folder)
        if not rounds or not (self.folder / "summary.json").exists():
            return None
        try:
            return self.complete_state(read_state(folder, rounds[-1]))
        except DamagedFileError:
            return None

    def complete_state(self, saved: Checkpoint) -> State:
        """Return a checkpoint's state with the memory of every client.

        The memory is read from the run's client store; what a replay changes stays in RAM.
        """
        check_rows(self.federation, saved)
        store = RunFolder(self.folder).store
        store.check(saved)
        memory = ClientMemory(store, inf, self.federation.task.device)
        return unpack_state(
            self.federation, saved, memory.with_slots(store.restore_slots([saved])[0])
        )


@dataclass(frozen=True)
class ReplayedRound:
    """A replayed round: the state after it and what the recorder observed."""

    state: State
    recording: Record
    """The line that the recorder would have written."""
    past_updates: Vectors
    """The newest updates of the global model, which the next round is compared with."""
