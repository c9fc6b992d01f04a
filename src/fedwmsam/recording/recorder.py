"""Recording a run's dynamics while it goes on: what is watched, when, and the line it becomes.

A recording looks and never touches: the run's numbers are the same with it and without. What has to be seen inside a
client's training (alignment, and the energy that steps carry along) is seen in this process, so on rounds that record
it the cohort is trained here also if there are workers.
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
"""On rounds of a run that goes on: every tenth round that is less than a tenth of the time (docs/dynamics.md)."""


class DynamicsRecorder:
    """What to record, and every how many rounds; `echo` compares each round with the ones before."""

    def __init__(
        self, kinds: Sequence[str], every: int, seed: int, care: RecordingConfig = QUICK
    ) -> None:
        self.kinds, self.every, self.seed, self.care = kinds, every, seed, care
        self.alignment: Alignment | None = None

    def watch(self, federation: Federation, state: State, trail: Vectors) -> RoundHook:
        clock, due = Clock(), state.round % self.every == 0
        kinds = [kind for kind in self.kinds if due or kind == "echo"]
        if not kinds:
            return RoundHook(federation)
        with clock:
            chosen = self.chosen(federation, state.round) if due else []
            return RoundRecording(
                federation, state, trail, kinds, chosen, self.aligning(federation, kinds), clock
            )

    def chosen(self, federation: Federation, round: int) -> list[int]:
        """The clients whose steps are looked at."""
        cohort = federation.schedule.cohort(round)
        count = len(cohort) if self.care.clients is None else min(self.care.clients, len(cohort))
        picked: list[int] = (
            rng.generator(self.seed, "watched", round).choice(cohort, count, replace=False).tolist()
        )
        return picked

    def aligning(self, federation: Federation, kinds: Sequence[str]) -> Alignment | None:
        """Its sample is drawn once."""
        if "alignment" not in kinds:
            return None
        if self.alignment is None:
            self.alignment = Alignment(federation, self.seed, self.care)
        self.alignment.start()
        return self.alignment


class RoundRecording(RoundHook):
    """One round that is looked at."""

    def __init__(
        self,
        federation: Federation,
        state: State,
        trail: Vectors,
        kinds: Sequence[str],
        chosen: Sequence[int],
        alignment: Alignment | None,
        clock: Clock,
    ) -> None:
        super().__init__(federation)
        self.before, self.trail, self.kinds, self.alignment = state, trail, kinds, alignment
        self.drift = Drift(federation, state) if "drift" in kinds else None
        self.carried: dict[int, dict[int, Record]] = {}
        self.clock = clock
        if chosen and (alignment or "echo" in kinds):
            self.federation = replace(federation, trainer=make_observing_trainer(self.see, chosen))

    def see(self, sight: StepObservation) -> None:
        with self.clock:
            if self.alignment:
                self.alignment.see(sight)
            if "echo" in self.kinds:
                self.carried.setdefault(sight.client, {})[sight.step] = {
                    "carried": gradient_free_share(sight)
                }

    def observe(self, job: Job, result: LocalResult) -> None:
        if self.drift:
            with self.clock:
                self.drift.observe(job, result)

    def finish(self, after: State) -> tuple[Record, Vectors]:
        with self.clock:
            line: Record = {"round": after.round}
            trail: Vectors = {}
            if self.alignment:
                line["alignment"] = self.alignment.record()
            if self.drift:
                line["drift"] = self.drift.record()
            if "echo" in self.kinds:
                update = after.server["w"] - self.before.server["w"]
                line["echo"] = echo(update, in_order(self.trail)) | self.energy()
                trail = push_update(self.trail, update)
        self.seconds = self.clock.seconds
        return line, trail

    def energy(self) -> Record:
        clients = {
            str(client): by_step_position(steps, "carried")
            for client, steps in self.carried.items()
        }
        return (
            {"carried": summary(list(clients.values())) | {"clients": clients}} if clients else {}
        )
