"""One round of federated training, top to bottom."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedwmsam.data.clients import Clients
from fedwmsam.engine.aggregation import clip_uploads, make_aggregator
from fedwmsam.engine.client_state import ClientMemory
from fedwmsam.engine.faults import Faults
from fedwmsam.engine.privacy import Privacy
from fedwmsam.engine.records import Record
from fedwmsam.engine.schedule import Schedule
from fedwmsam.errors import InputError
from fedwmsam.methods.average import update_average
from fedwmsam.methods.base import Info, Method
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.parsers import MEAN, AggregationRule
from fedwmsam.training.local import LocalResult, LocalRules, train_locally
from fedwmsam.training.task import Task

log = logging.getLogger("fedwmsam")


@dataclass(frozen=True)
class Federation:
    """Everything a round needs and does not change."""

    method: Method
    task: Task
    clients: Clients
    schedule: Schedule
    rules: LocalRules
    averaging: str = "uniform"
    total_samples: int | None = None
    """All clients' samples; only averaging by size needs it."""
    rule: AggregationRule = MEAN
    faults: Faults | None = None
    privacy: Privacy | None = None
    twin: float | None = None
    """γ of an average of the global models that is kept beside them; None: there is none."""
    trainer: "Trainer | None" = None
    """Trains a cohort elsewhere (on workers, on Flower) and hands the answers on in order; None: in this process."""


@dataclass(frozen=True)
class AveragedModel:
    """The averaged twin of the global model: nobody trains on it."""

    w: Tensor
    buffers: Vectors


@dataclass(frozen=True)
class State:
    """Everything a round changes; `round` counts the completed ones."""

    round: int
    server: Vectors
    buffers: Vectors
    memory: ClientMemory
    average: AveragedModel | None = None


@dataclass(frozen=True)
class Job:
    """What one client is asked to do."""

    client: int
    down: Vectors
    buffers: Vectors
    info: Info


@dataclass(frozen=True)
class ClientFailure:
    """Why there is no answer of a client that could be used."""

    reason: str
    rejected: bool
    """It answered, but wrongly; otherwise no answer came."""


Trainer = Callable[[Federation, Iterable[Job]], Iterator[tuple[Job, LocalResult | ClientFailure]]]


class Diverged(Exception):
    """The global model stopped being finite; the state before the round is the last good one."""


def first_state(federation: Federation, memory: ClientMemory | None = None) -> State:
    """Before the first round; an empty memory says where rows will be kept (by default in RAM)."""
    task, memory = federation.task, ClientMemory() if memory is None else memory
    return state_from(federation, task.initial_weights, task.initial_buffers, memory)


def state_from(federation: Federation, w: Tensor, buffers: Vectors, memory: ClientMemory) -> State:
    """Before the first round, with this model."""
    average = None if federation.twin is None else AveragedModel(w, buffers)
    return State(0, federation.method.server_init(w), buffers, memory, average)


def run_round(
    federation: Federation, state: State, observe: Callable[[Job, LocalResult], None] | None = None
) -> tuple[State, Record]:
    """cohort → downlink → local training → settle → mean → aggregate; `observe` sees every client's answer."""
    method, server = federation.method, state.server
    cohort, info = sample_cohort(federation, state.round)
    mean = make_aggregator(federation.rule, len(cohort))
    ledger, changes = RoundMetrics(federation.privacy is not None), state.memory.changing()
    receiver = federation.privacy or method

    sound = collect_updates(federation, state, cohort, info, ledger, observe)
    for job, result in clip_uploads(federation.rule, sound, len(cohort)):
        row, contribution = receiver.settle(
            server, memory_of(federation, state, job.client), result.up, job.info
        )
        changes.put(job.client, row)
        movement = {
            f"buffer {name}": difference(value, state.buffers[name])
            for name, value in result.buffers.items()
        }
        mean.add(contribution | movement, job.info.samples if federation.averaging == "size" else 1)
        ledger.add(job, result, contribution)

    record = {"round": state.round + 1, "lr": info.lr} | scalars(server) | ledger.record()
    if (
        not ledger.accepted and not federation.privacy
    ):  # with privacy nobody may see that nobody answered
        if set(ledger.rejected) - (federation.faults.hostile if federation.faults else set()):
            raise Diverged("no client of the cohort returned a finite update")
        return replace(state, round=state.round + 1), record
    share = ledger.accepted / info.clients
    if federation.privacy:
        share = federation.privacy.rate
    elif federation.averaging == "size" and federation.total_samples:
        share = ledger.samples / federation.total_samples
    info = replace(
        info, cohort=ledger.accepted, share=share, steps=ledger.steps, samples=ledger.samples
    )
    average = mean.value()
    next_server = receiver.aggregate(server, average, info)
    buffers = {
        name: add_difference(value, average[f"buffer {name}"])
        for name, value in state.buffers.items()
    }
    if not all_finite(next_server) or not all_finite(buffers):
        raise Diverged("the global model is no longer finite")
    twin = next_average(federation, state.average, next_server["w"], buffers, info)
    return State(state.round + 1, next_server, buffers, changes.done(), twin), record


def next_average(
    federation: Federation, average: AveragedModel | None, w: Tensor, buffers: Vectors, info: Info
) -> AveragedModel | None:
    """The averaged twin after a round that led to this model."""
    power = federation.twin
    if power is None or average is None:
        return None
    moving = {
        name: update_average(average.buffers[name], value, power, info)
        for name, value in buffers.items()
    }
    return AveragedModel(update_average(average.w, w, power, info), moving)


def sample_cohort(federation: Federation, round: int) -> tuple[list[int], Info]:
    """Who takes part in a round, and what all of them may know about it."""
    cohort = federation.schedule.cohort(round)
    return cohort, Info(
        round=round,
        lr=federation.schedule.lr(round),
        clients=len(federation.clients),
        cohort=len(cohort),
        share=len(cohort) / len(federation.clients),
        layout=federation.task.layout,
    )


def collect_updates(
    federation: Federation,
    state: State,
    cohort: list[int],
    info: Info,
    ledger: "RoundMetrics",
    observe: Callable[[Job, LocalResult], None] | None,
) -> Iterator[tuple[Job, LocalResult]]:
    """The cohort's finite answers, in order; who did not answer, or not with numbers, is noted."""
    asked, faults = make_jobs(federation, state, cohort, info), federation.faults
    if faults:
        asked = apply_faults(faults, asked, ledger)
    for job, result in (federation.trainer or train_cohort)(federation, asked):
        if isinstance(result, ClientFailure):
            ledger.lose(job, result)
            continue
        if faults:
            result = replace(result, up=faults.answer(info.round, job.client, result.up))
        if observe:
            observe(job, result)
        if all_finite(result.up) and all_finite(result.buffers):
            yield job, result
        else:
            log.warning(
                "Round %d: left out client %d, update not finite.", info.round + 1, job.client
            )
            ledger.reject(job, result)


def apply_faults(faults: Faults, asked: Iterable[Job], ledger: "RoundMetrics") -> Iterator[Job]:
    """The jobs that will be answered, with the steps that will be done."""
    for job in asked:
        steps = faults.steps(job.client, job.info.steps)
        if faults.drops(job.info.round, job.client):
            ledger.note("dropped", job)
            ledger.send(job)
            continue
        if steps < job.info.steps:
            ledger.note("late", job)
            if not steps or not faults.stragglers.partial:
                ledger.send(job)
                continue
        if job.client in faults.hostile:
            ledger.note("hostile", job)
        yield replace(job, info=replace(job.info, steps=steps))


def memory_of(federation: Federation, state: State, client: int) -> Vectors:
    """Read when a client is asked and again when it has answered: a cohort's memories may be too much for RAM."""
    return state.memory.get(client) or federation.method.memory_init(state.server["w"])


def make_jobs(federation: Federation, state: State, cohort: list[int], info: Info) -> Iterator[Job]:
    for client in cohort:
        samples = len(federation.clients[client])
        steps = federation.schedule.count(state.round, client, samples)
        own = replace(info, steps=steps, samples=samples)
        known = (
            first_state(federation)
            if federation.faults and federation.faults.is_stale(client)
            else state
        )
        down = federation.method.downlink(known.server, memory_of(federation, known, client), own)
        yield Job(client, down, state.buffers, own)


def train_cohort(federation: Federation, jobs: Iterable[Job]) -> Iterator[tuple[Job, LocalResult]]:
    """Run the jobs one after the other in this process; results come back in the jobs' order."""
    for job in jobs:
        yield job, train_client(federation, job)


def train_client(federation: Federation, job: Job) -> LocalResult:
    samples, schedule, info = federation.clients[job.client], federation.schedule, job.info
    if federation.faults:
        samples = federation.faults.samples(job.client, samples)
    steps = schedule.steps(info.round, job.client, len(samples))[: info.steps]
    try:
        return train_locally(
            federation.task,
            federation.method,
            job.down,
            job.buffers,
            samples,
            steps,
            info,
            federation.rules,
            epoch=schedule.epoch(len(samples)),
        )
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            f"Client {job.client} has a batch of one sample (it has {len(samples)}), on which BatchNorm cannot train; "
            "choose another batch_size, or a model with GroupNorm."
        ) from error


class RoundMetrics:
    """What a round did and cost, for its line in the metrics; nothing of what clients computed if that is private."""

    def __init__(self, private: bool) -> None:
        self.private = private
        self.accepted = self.samples = self.steps = self.backprops = self.bytes_down = (
            self.bytes_up
        ) = 0
        self.rejected: list[int] = []
        self.missing: list[int] = []
        self.noted: dict[str, list[int]] = {}
        """Clients by what happened to them."""
        self.losses: list[float] = []
        self.values: dict[str, list[float]] = {}

    def add(self, job: Job, result: LocalResult, contribution: Vectors) -> None:
        self.accepted += 1
        self.samples += job.info.samples
        self.steps += job.info.steps
        self.count(job, result)
        if self.private:
            return
        self.losses.append(result.loss)
        for name, value in scalars(contribution).items():
            self.values.setdefault(name, []).append(value)
        self.values.setdefault("update_norm", []).append(
            float(torch.linalg.vector_norm(result.up["delta"]))
        )

    def count(self, job: Job, result: LocalResult) -> None:
        self.send(job)
        self.backprops += result.backprops
        self.bytes_up += size_in_bytes(result.up) + size_in_bytes(result.buffers)

    def note(self, what: str, job: Job) -> None:
        self.noted.setdefault(what, []).append(job.client)

    def send(self, job: Job) -> None:
        """Counted whether or not an answer comes."""
        self.bytes_down += size_in_bytes(job.down) + size_in_bytes(job.buffers)

    def reject(self, job: Job, result: LocalResult) -> None:
        """The update is not finite: the client is left out, but what it cost is counted."""
        self.rejected.append(job.client)
        self.count(job, result)

    def lose(self, job: Job, fault: ClientFailure) -> None:
        (self.rejected if fault.rejected else self.missing).append(job.client)

    def record(self) -> Record:
        spread = {f"{name}_spread": deviation(values) for name, values in self.values.items()}
        return {
            "cohort": self.accepted,
            **({"train_loss": average(self.losses)} if self.losses else {}),
            **{name: average(values) for name, values in self.values.items()},
            **spread,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "backprops": self.backprops,
            **({"rejected": self.rejected} if self.rejected else {}),
            **({"missing": self.missing} if self.missing else {}),
            **self.noted,
        }


def scalars(vectors: Vectors) -> dict[str, float]:
    """The bundle's single numbers (α, a similarity): they are worth a column each.

    Sorted, because a checkpoint does not keep the order of names.
    """
    return {name: float(value) for name, value in sorted(vectors.items()) if value.ndim == 0}


def average(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float]) -> float:
    """Standard deviation over the clients of the round."""
    centre = average(values)
    return math.sqrt(average([(v - centre) ** 2 for v in values]))


def all_finite(vectors: Vectors) -> bool:
    """A finite sum, which is quick, has finite terms only; otherwise the terms decide, for a sum may overflow."""
    return all(math.isfinite(v.sum()) or bool(torch.isfinite(v).all()) for v in vectors.values())


def difference(value: Tensor, start: Tensor) -> Tensor:
    """How a buffer moved; averaging moves instead of values keeps a constant buffer exactly constant."""
    return value - start if value.is_floating_point() else value


def add_difference(start: Tensor, movement: Tensor) -> Tensor:
    return start + movement if start.is_floating_point() else movement


def size_in_bytes(vectors: Vectors) -> int:
    return sum(v.numel() * v.element_size() for v in vectors.values())
