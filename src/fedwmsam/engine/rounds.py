"""One round of federated training, top to bottom.

`run_round` takes the state after r rounds and returns the state after r + 1; it changes neither
the state nor the federation. Below it is what it calls: who takes part, what each client is sent,
how a cohort is trained in this process, and what is counted for the round's line in the metrics.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedwmsam.data.clients import Clients, client_label
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
    """Everything that a round needs and does not change."""

    method: Method
    task: Task
    clients: Clients
    schedule: Schedule
    local_rules: LocalRules
    averaging: str = "uniform"
    total_samples: int | None = None
    """The number of samples of all clients together; only averaging by size needs it."""
    aggregation_rule: AggregationRule = MEAN
    faults: Faults | None = None
    privacy: Privacy | None = None
    twin: float | None = None
    """γ of the averaged model (the twin), which is evaluated beside the global model; None: there
    is no such model."""
    trainer: "Trainer | None" = None
    """Trains a cohort elsewhere (on workers, on Flower) and yields the results in the jobs' order;
    None: the cohort is trained in this process."""


@dataclass(frozen=True)
class AveragedModel:
    """The average of the global models so far (the twin); no client is ever sent it."""

    w: Tensor
    buffers: Vectors


@dataclass(frozen=True)
class State:
    """Everything that a round changes; `round` is the number of completed rounds."""

    round: int
    server: Vectors
    buffers: Vectors
    memory: ClientMemory
    average: AveragedModel | None = None


@dataclass(frozen=True)
class Job:
    """One client's work in a round: what it is sent, and what it may know about the round."""

    client: int
    down: Vectors
    buffers: Vectors
    info: Info


@dataclass(frozen=True)
class ClientFailure:
    """The reason why a client sent no update that could be used."""

    reason: str
    rejected: bool
    """Whether an update came that could not be used; otherwise none came."""


Trainer = Callable[[Federation, Iterable[Job]], Iterator[tuple[Job, LocalResult | ClientFailure]]]


class Diverged(Exception):
    """The global model stopped being finite; the state before the round is the last good one."""


def first_state(federation: Federation, memory: ClientMemory | None = None) -> State:
    """Return the state before the first round, with the model's initial weights.

    The clients' rows will be kept where the empty `memory` keeps them, by default in RAM.
    """
    task = federation.task
    memory = ClientMemory() if memory is None else memory
    return state_from(federation, task.initial_weights, task.initial_buffers, memory)


def state_from(federation: Federation, w: Tensor, buffers: Vectors, memory: ClientMemory) -> State:
    """Return the state before the first round, with these weights and buffers."""
    average = None if federation.twin is None else AveragedModel(w, buffers)
    return State(0, federation.method.server_init(w), buffers, memory, average)


def run_round(
    federation: Federation, state: State, observe: Callable[[Job, LocalResult], None] | None = None
) -> tuple[State, Record]:
    """Run the round after `state`; return the next state and the round's line in the metrics.

    The order is cohort → downlink → local training → settle → mean → aggregate. `observe` is called
    with every result that a client returns. Raise Diverged if the clients return no finite update,
    or if the new global model is not finite.
    """
    method = federation.method
    server = state.server
    cohort, info = sample_cohort(federation, state.round)
    aggregator = make_aggregator(federation.aggregation_rule, len(cohort))
    metrics = RoundMetrics(federation.privacy is not None)
    memory_builder = state.memory.start_update()
    receiver = federation.privacy or method  # privacy settles and aggregates in the method's place

    finite_updates = collect_updates(federation, state, cohort, info, metrics, observe)
    for job, result in clip_uploads(federation.aggregation_rule, finite_updates, len(cohort)):
        row, contribution = receiver.settle(
            server, memory_of(federation, state, job.client), result.up, job.info
        )
        memory_builder.put(job.client, row)
        movement = {
            f"buffer {name}": difference(value, state.buffers[name])
            for name, value in result.buffers.items()
        }
        weight = job.info.samples if federation.averaging == "size" else 1
        aggregator.add(contribution | movement, weight)
        metrics.add_update(job, result, contribution)

    record = {"round": state.round + 1, "lr": info.lr} | scalars(server) | metrics.to_record()
    # With privacy nobody may see that no update came.
    if not metrics.accepted and not federation.privacy:
        hostile = federation.faults.hostile if federation.faults else set()
        if set(metrics.rejected) - hostile:
            raise Diverged("no client of the cohort returned a finite update")
        return replace(state, round=state.round + 1), record
    info = info_after_training(federation, info, metrics)
    mean = aggregator.value()
    next_server = receiver.aggregate(server, mean, info)
    buffers = {
        name: add_difference(value, mean[f"buffer {name}"]) for name, value in state.buffers.items()
    }
    if not all_finite(next_server) or not all_finite(buffers):
        raise Diverged("the global model is no longer finite")
    twin = next_average(federation, state.average, next_server["w"], buffers, info)
    return State(state.round + 1, next_server, buffers, memory_builder.build(), twin), record


def info_after_training(federation: Federation, info: Info, metrics: "RoundMetrics") -> Info:
    """Return what `aggregate` may know: how many updates counted, their steps and their share."""
    share = metrics.accepted / info.clients
    if federation.privacy:
        share = federation.privacy.sampling_rate
    elif federation.averaging == "size" and federation.total_samples:
        share = metrics.samples / federation.total_samples
    return replace(
        info, cohort=metrics.accepted, share=share, steps=metrics.steps, samples=metrics.samples
    )


def next_average(
    federation: Federation, average: AveragedModel | None, w: Tensor, buffers: Vectors, info: Info
) -> AveragedModel | None:
    """Return the averaged model (the twin) with the new global model in it; None without a twin."""
    power = federation.twin
    if power is None or average is None:
        return None
    averaged_buffers = {
        name: update_average(average.buffers[name], value, power, info)
        for name, value in buffers.items()
    }
    return AveragedModel(update_average(average.w, w, power, info), averaged_buffers)


def sample_cohort(federation: Federation, round: int) -> tuple[list[int], Info]:
    """Return the clients that take part in a round, and what all of them may know about it."""
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
    metrics: "RoundMetrics",
    observe: Callable[[Job, LocalResult], None] | None,
) -> Iterator[tuple[Job, LocalResult]]:
    """Train the cohort and yield its finite updates in order; count all others in `metrics`."""
    faults = federation.faults
    jobs = make_jobs(federation, state, cohort, info)
    if faults:
        jobs = apply_faults(faults, jobs, metrics)
    for job, result in (federation.trainer or train_cohort)(federation, jobs):
        if isinstance(result, ClientFailure):
            metrics.add_failure(job, result)
            continue
        if faults:
            result = replace(result, up=faults.corrupt_upload(info.round, job.client, result.up))
        if observe:
            observe(job, result)
        if all_finite(result.up) and all_finite(result.buffers):
            yield job, result
        else:
            log.warning(
                "Round %d: left out client %s, update not finite.",
                info.round + 1,
                client_label(federation.clients, job.client),
            )
            metrics.add_rejected(job, result)


def apply_faults(faults: Faults, jobs: Iterable[Job], metrics: "RoundMetrics") -> Iterator[Job]:
    """Yield the jobs whose clients send an update in time, with the steps that they get done.

    Clients that drop out, are late or are hostile are noted in `metrics`.
    """
    for job in jobs:
        steps = faults.completed_steps(job.client, job.info.steps)
        if faults.drops_out(job.info.round, job.client):
            metrics.note_event("dropped", job)
            metrics.count_download(job)
            continue
        if steps < job.info.steps:
            metrics.note_event("late", job)
            if not steps or not faults.stragglers.partial:
                metrics.count_download(job)
                continue
        if job.client in faults.hostile:
            metrics.note_event("hostile", job)
        yield replace(job, info=replace(job.info, steps=steps))


def memory_of(federation: Federation, state: State, client: int) -> Vectors:
    """Return what the server remembers about a client, or a fresh row for one that is new.

    It is read for the downlink and again to settle the update, because the rows of a whole cohort
    may be too much for RAM.
    """
    return state.memory.get(client) or federation.method.memory_init(state.server["w"])


def make_jobs(federation: Federation, state: State, cohort: list[int], info: Info) -> Iterator[Job]:
    """Yield one job per client of the cohort, made when it is asked for."""
    faults = federation.faults
    for client in cohort:
        samples = len(federation.clients[client])
        steps = federation.schedule.step_count(state.round, client, samples)
        client_info = replace(info, steps=steps, samples=samples)
        is_stale = faults is not None and faults.is_stale(client)
        source = first_state(federation) if is_stale else state
        down = federation.method.downlink(
            source.server, memory_of(federation, source, client), client_info
        )
        yield Job(client, down, state.buffers, client_info)


def train_cohort(federation: Federation, jobs: Iterable[Job]) -> Iterator[tuple[Job, LocalResult]]:
    """Run the jobs one after the other in this process; yield the results in the jobs' order."""
    for job in jobs:
        yield job, train_client(federation, job)


def train_client(federation: Federation, job: Job) -> LocalResult:
    """Train one client and return its result.

    Raise InputError for data that the model cannot train on; a note of any other error names the
    client and the round.
    """
    try:
        samples = federation.clients[job.client]
        schedule = federation.schedule
        if federation.faults:
            samples = federation.faults.training_samples(job.client, samples)
        steps = schedule.steps(job.info.round, job.client, len(samples))[: job.info.steps]
        return train_locally(
            federation.task,
            federation.method,
            job.down,
            job.buffers,
            samples,
            steps,
            job.info,
            federation.local_rules,
            steps_per_epoch=schedule.steps_per_epoch(len(samples)),
        )
    except Exception as error:
        label = client_label(federation.clients, job.client)
        for fragment, what in UNTRAINABLE.items():
            if fragment in str(error):
                raise InputError(f"Client {label} has {what}.") from error
        if not isinstance(error, InputError):
            round = job.info.round + 1
            error.add_note(f"It happened while client {label} was trained in round {round}.")
        raise


UNTRAINABLE = {
    "more than 1 value per channel": "a batch of one sample, on which BatchNorm cannot train; "
    "choose another batch_size, or a model with GroupNorm",
    "index out of range in self": "a number for which the model's embedding has no row; "
    "was its text read with the model's own tokenizer?",
}
"""Words of PyTorch's errors → what a client has that the model cannot train on."""


class RoundMetrics:
    """Counts what a round did and cost, for its line in the metrics.

    If `private`, nothing that clients computed is counted.
    """

    def __init__(self, private: bool) -> None:
        self.private = private
        self.accepted = 0
        self.samples = 0
        self.steps = 0
        self.backprops = 0
        self.bytes_down = 0
        self.bytes_up = 0
        self.rejected: list[int] = []
        self.missing: list[int] = []
        self.events: dict[str, list[int]] = {}
        """The clients that each kind of event happened to."""
        self.losses: list[float] = []
        self.client_scalars: dict[str, list[float]] = {}

    def add_update(self, job: Job, result: LocalResult, contribution: Vectors) -> None:
        """Count an update that goes into the round's mean."""
        self.accepted += 1
        self.samples += job.info.samples
        self.steps += job.info.steps
        self.count_costs(job, result)
        if self.private:
            return
        self.losses.append(result.loss)
        for name, value in scalars(contribution).items():
            self.client_scalars.setdefault(name, []).append(value)
        update_norm = float(torch.linalg.vector_norm(result.up["delta"]))
        self.client_scalars.setdefault("update_norm", []).append(update_norm)

    def add_rejected(self, job: Job, result: LocalResult) -> None:
        """Count a client whose update is not finite; what it cost is counted, too."""
        self.rejected.append(job.client)
        self.count_costs(job, result)

    def add_failure(self, job: Job, failure: ClientFailure) -> None:
        """Count a client whose update was refused or never came."""
        if failure.rejected:
            self.rejected.append(job.client)
        else:
            self.missing.append(job.client)

    def note_event(self, event: str, job: Job) -> None:
        """Note that the event happened to the job's client."""
        self.events.setdefault(event, []).append(job.client)

    def count_costs(self, job: Job, result: LocalResult) -> None:
        """Count the traffic and the backpropagations of a client that returned a result."""
        self.count_download(job)
        self.backprops += result.backprops
        self.bytes_up += size_in_bytes(result.up) + size_in_bytes(result.buffers)

    def count_download(self, job: Job) -> None:
        """Count the bytes sent to a client, whether or not an update comes back."""
        self.bytes_down += size_in_bytes(job.down) + size_in_bytes(job.buffers)

    def to_record(self) -> Record:
        """Return the columns of the round's line in the metrics."""
        scalars = self.client_scalars
        record: Record = {"cohort": self.accepted}
        if self.losses:
            record["train_loss"] = average(self.losses)
        record |= {name: average(values) for name, values in scalars.items()}
        record |= {f"{name}_spread": deviation(values) for name, values in scalars.items()}
        record |= {"bytes_down": self.bytes_down, "bytes_up": self.bytes_up}
        record["backprops"] = self.backprops
        events = {"rejected": self.rejected, "missing": self.missing} | self.events
        for name, clients in events.items():
            if clients:
                # Who took part is what privacy protects: it tells how many, not which.
                record[name] = len(clients) if self.private else clients
        return record


def scalars(vectors: Vectors) -> dict[str, float]:
    """Return the bundle's scalars (α, a similarity), each of which is a column of the metrics.

    They are sorted by name, because a checkpoint does not keep the order of names.
    """
    return {name: float(value) for name, value in sorted(vectors.items()) if value.ndim == 0}


def average(values: list[float]) -> float:
    """Return the mean of the values, summed exactly."""
    return math.fsum(values) / len(values)


def deviation(values: list[float]) -> float:
    """Return the standard deviation over the clients of the round."""
    centre = average(values)
    return math.sqrt(average([(v - centre) ** 2 for v in values]))


def all_finite(vectors: Vectors) -> bool:
    """Return whether the bundle holds no NaN or infinity."""
    # A finite sum, which is quick, has finite terms only; but a sum of finite terms may overflow.
    return all(math.isfinite(v.sum()) or bool(torch.isfinite(v).all()) for v in vectors.values())


def difference(value: Tensor, start: Tensor) -> Tensor:
    """Return how far a buffer moved from `start`; of a counter, its value.

    Averaging movements instead of values keeps a constant buffer exactly constant.
    """
    return value - start if value.is_floating_point() else value


def add_difference(start: Tensor, movement: Tensor) -> Tensor:
    """Return a buffer moved by the mean of the clients' movements; of a counter, its new value."""
    return start + movement if start.is_floating_point() else movement


def size_in_bytes(vectors: Vectors) -> int:
    """Return how many bytes the tensors of the bundle take."""
    return sum(v.numel() * v.element_size() for v in vectors.values())
