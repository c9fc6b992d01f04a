"""The recorder of a run's dynamics: what is recorded in which rounds, and the line it becomes.

Recording changes nothing: the run's results are bitwise identical with it and without. What has to
be observed inside a client's training (alignment, and the gradient-free share of steps) is observed
in this process, so the cohort of a round that records it is trained here even if there are workers.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedwmsam import rng
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation, Job, State
from fedwmsam.engine.run import RoundHook
from fedwmsam.methods.vectors import Vectors
from fedwmsam.recording.alignment import Alignment, RecordingConfig, by_step_position, summary
from fedwmsam.recording.drift import Drift
from fedwmsam.recording.echo import echo, gradient_free_share, in_order, push_update
from fedwmsam.recording.instrumentation import Clock, StepObservation, make_observing_trainer
from fedwmsam.training.local import LocalResult

QUICK = RecordingConfig(sample=2000, ascents=1, clients=3)
"""The precision while a run goes on: recording every tenth round takes less than a tenth of the
time (docs/dynamics.md)."""


class DynamicsRecorder:
    """Records the given kinds every so many rounds, but echo, which compares rounds, in each."""

    def __init__(
        self, kinds: Sequence[str], every: int, seed: int, config: RecordingConfig = QUICK
    ) -> None:
        self.kinds = kinds
        self.every = every
        self.seed = seed
        self.config = config
        self.alignment: Alignment | None = None

    def make_hook(self, federation: Federation, state: State, past_updates: Vectors) -> RoundHook:
        """Return a hook that records the round after `state`, or one that observes nothing."""
        clock = Clock()
        is_due = state.round % self.every == 0
        kinds = [kind for kind in self.kinds if is_due or kind == "echo"]
        if not kinds:
            return RoundHook(federation)
        with clock:
            clients = self.sample_clients(federation, state.round) if is_due else []
            alignment = self.prepare_alignment(federation, kinds)
            return RoundRecording(federation, state, past_updates, kinds, clients, alignment, clock)

    def sample_clients(self, federation: Federation, round: int) -> list[int]:
        """Return the clients of a round's cohort whose steps are observed."""
        cohort = federation.schedule.cohort(round)
        most = self.config.clients
        count = len(cohort) if most is None else min(most, len(cohort))
        random = rng.generator(self.seed, "watched", round)
        clients: list[int] = random.choice(cohort, count, replace=False).tolist()
        return clients

    def prepare_alignment(self, federation: Federation, kinds: Sequence[str]) -> Alignment | None:
        """Return the alignment, ready for a new round, if it is to be recorded.

        It is made once, so that all rounds are measured on the same sample.
        """
        if "alignment" not in kinds:
            return None
        if self.alignment is None:
            self.alignment = Alignment(federation, self.seed, self.config)
        self.alignment.reset()
        return self.alignment


class RoundRecording(RoundHook):
    """Records one round: the steps of some clients, the results of all, and the model's update."""

    def __init__(
        self,
        federation: Federation,
        state: State,
        past_updates: Vectors,
        kinds: Sequence[str],
        clients: Sequence[int],
        alignment: Alignment | None,
        clock: Clock,
    ) -> None:
        super().__init__(federation)
        self.state_before = state
        self.past_updates = past_updates
        self.kinds = kinds
        self.alignment = alignment
        self.drift = Drift(federation, state) if "drift" in kinds else None
        self.gradient_free_shares: dict[int, dict[int, Record]] = {}
        """The gradient-free share of each observed step, by client and step."""
        self.clock = clock
        if clients and (alignment or "echo" in kinds):
            trainer = make_observing_trainer(self.observe_step, clients)
            self.federation = replace(federation, trainer=trainer)

    def observe_step(self, step: StepObservation) -> None:
        """Measure one step of an observed client."""
        with self.clock:
            if self.alignment:
                self.alignment.observe_step(step)
            if "echo" in self.kinds:
                share = {"carried": gradient_free_share(step)}
                self.gradient_free_shares.setdefault(step.client, {})[step.step] = share

    def observe_result(self, job: Job, result: LocalResult) -> None:
        """Note a client's result if drift is recorded."""
        if self.drift:
            with self.clock:
                self.drift.observe_result(job, result)

    def finish_round(self, state: State) -> tuple[Record, Vectors]:
        """Return the round's line in recordings.jsonl and the newest updates of the model."""
        with self.clock:
            line: Record = {"round": state.round}
            past_updates: Vectors = {}
            if self.alignment:
                line["alignment"] = self.alignment.to_record()
            if self.drift:
                line["drift"] = self.drift.to_record()
            if "echo" in self.kinds:
                update = state.server["w"] - self.state_before.server["w"]
                line["echo"] = echo(update, in_order(self.past_updates))
                line["echo"] |= self.gradient_free_record()
                past_updates = push_update(self.past_updates, update)
        self.seconds = self.clock.seconds
        return line, past_updates

    def gradient_free_record(self) -> Record:
        """Return the summary of the steps' gradient-free shares; empty if no step was observed."""
        clients = {
            str(client): by_step_position(steps, "carried")
            for client, steps in self.gradient_free_shares.items()
        }
        if not clients:
            return {}
        return {"carried": summary(list(clients.values())) | {"clients": clients}}
