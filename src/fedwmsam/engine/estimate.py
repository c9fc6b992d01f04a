"""An estimate of what a run will take, made without starting it.

Short rounds are run as the run itself would run them, on as many workers: few clients, few local
steps. The time of a whole round follows from how theirs grows with clients and with steps; that of
the evaluation from one batch for each worker, that of a checkpoint from one in a temporary folder.
What is left out of the estimate is the start of the program.

It is assumed that the machine stays as busy or as idle as it is during the probe, that the clients
of later rounds have about as many samples as those of the first, and that the temporary folder is
as fast as the run's.
"""

import heapq
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from fedwmsam.data.clients import SubsetSamples
from fedwmsam.engine.rounds import (
    Diverged,
    Federation,
    State,
    first_state,
    make_jobs,
    run_round,
    sample_cohort,
    size_in_bytes,
    train_client,
)
from fedwmsam.engine.run import Run
from fedwmsam.engine.run_folder import RunFolder
from fedwmsam.engine.schedule import Schedule
from fedwmsam.machine import peak_memory
from fedwmsam.methods.base import Method
from fedwmsam.training.local import Step
from fedwmsam.training.objectives import compute_metrics
from fedwmsam.training.task import EVALUATION_BATCH, Samples

PROBE_SECONDS = 2.0
"""Seconds after which no further short round is begun, unless fewer are asked for."""
MIN_STEPS = 4
"""Local steps of the longer short rounds, at least."""
VERSIONS = 3
"""Versions of a client's row that are on disk at most: those of the two checkpoints that are kept,
and that of the rounds since."""


@dataclass(frozen=True)
class RunEstimate:
    """What a run is expected to take: computing time, traffic, memory and disk space."""

    parameters: int
    dtype: torch.dtype
    """Of a parameter."""
    clients: int
    cohort: int
    steps: float
    """Local steps of an average client of the first cohort."""
    bytes_down: int
    """Bytes that one client downloads per round."""
    bytes_up: int
    """Bytes that one client uploads per round."""
    row_bytes: int
    """Bytes that the server keeps for a client that took part."""
    participants: float
    """Clients that are expected to take part at least once."""
    row_bytes_in_ram: float
    """Bytes of all rows that are in RAM at the end."""
    rows_on_disk: float
    """Clients' rows that are on disk at most, in all their versions."""
    disk_bytes: float
    """Bytes of the run folder at most, approximately."""
    process_bytes: int | None
    """Bytes of memory that this process has held, data and probe included; None: not known."""
    step_seconds: float
    train_seconds: float
    """Seconds in which a round trains and aggregates."""
    evaluate_seconds: float
    """Seconds of one evaluation of all models on all data."""
    save_seconds: float
    """Seconds of one checkpoint."""
    round_seconds: float
    """Seconds of a round, with its share of an evaluation and of a checkpoint."""
    rounds: int
    workers: int


def shorten_data(run: Run, workers: int) -> dict[str, int]:
    """Leave the run one batch of its test and validation data for each worker.

    Return how many samples each of them had.
    """
    count = workers * EVALUATION_BATCH
    lengths = {}
    for name in ("test", "validation"):
        samples = getattr(run, name)
        if samples is not None:
            lengths[name] = len(samples)
            kept = torch.arange(min(count, len(samples)))
            setattr(run, name, SubsetSamples(samples, kept))
    return lengths


def estimate(
    run: Run, lengths: dict[str, int], workers: int, seconds: float = PROBE_SECONDS
) -> RunEstimate:
    """Probe a run on so many workers, and return what it will take with data of these lengths.

    `shorten_data` has shortened its data. No further round is probed after so many seconds.
    """
    federation = run.federation
    settings = run.settings
    cohort, info = sample_cohort(federation, 0)
    cohort = cohort or [0]  # with privacy a round may be empty
    schedule = federation.schedule
    steps = [schedule.step_count(0, k, len(federation.clients[k])) for k in cohort]
    state = first_state(federation)
    job = next(make_jobs(federation, state, cohort[:1], info))
    short = replace(federation, schedule=ShortSchedule(schedule, cohort[:1], 1))
    result = train_client(short, replace(job, info=replace(job.info, steps=1)))
    row_bytes = row_size(federation.method, state.server["w"])
    cost, state = probe_rounds(federation, cohort, max(steps), workers, seconds)
    train_seconds = cost.round_seconds(steps, workers)
    evaluate_seconds = evaluation_seconds(run, lengths, state, workers)
    save_seconds = checkpoint_seconds(
        run, state, row_bytes * len(cohort) * settings.checkpoint_every
    )
    participants = len(federation.clients) * (1 - (1 - info.share) ** settings.rounds)
    changed_rows = 2 * len(cohort) * settings.checkpoint_every
    rows_on_disk = min(VERSIONS * participants, participants + changed_rows)
    return RunEstimate(
        parameters=federation.task.parameter_count,
        dtype=federation.task.dtype,
        clients=info.clients,
        cohort=len(cohort),
        steps=sum(steps) / len(steps),
        bytes_down=size_in_bytes(job.down) + size_in_bytes(job.buffers),
        bytes_up=size_in_bytes(result.up) + size_in_bytes(result.buffers),
        row_bytes=row_bytes,
        participants=participants,
        row_bytes_in_ram=min(participants * row_bytes, settings.memory_budget * 1e6),
        rows_on_disk=rows_on_disk,
        disk_bytes=folder_size(rows_on_disk, row_bytes, size_in_bytes(state.server)),
        process_bytes=peak_memory(),
        step_seconds=cost.step,
        train_seconds=train_seconds,
        evaluate_seconds=evaluate_seconds,
        save_seconds=save_seconds,
        round_seconds=train_seconds
        + evaluate_seconds / settings.evaluate_every
        + save_seconds / settings.checkpoint_every,
        rounds=settings.rounds,
        workers=workers,
    )


def estimate_other_method(probed: RunEstimate, old: Method, new: Method) -> RunEstimate:
    """Return the time and the disk space of a run with a new method, given those with an old one.

    The time follows from the backprops; evaluation is the same for all.
    """
    ratio = new.cost.backprops / old.cost.backprops
    w = torch.zeros(probed.parameters, dtype=probed.dtype)
    server_bytes = size_in_bytes(new.server_init(w))
    return replace(
        probed,
        round_seconds=probed.round_seconds + (ratio - 1) * probed.train_seconds,
        disk_bytes=folder_size(probed.rows_on_disk, row_size(new, w), server_bytes),
    )


def row_size(method: Method, w: torch.Tensor) -> int:
    """Return the bytes of what the server keeps for a client that took part."""
    return size_in_bytes(method.memory_init(w))


def folder_size(rows: float, row_bytes: int, server_bytes: int) -> float:
    """Return the bytes of a run folder: rows, two checkpoints and the model."""
    return rows * row_bytes + 3 * server_bytes


# Rounds


@dataclass(frozen=True)
class ShortSchedule:
    """A schedule of which only some clients and some of each client's steps are left."""

    whole: Schedule
    clients: Sequence[int]
    count: int

    def cohort(self, round: int) -> list[int]:
        return list(self.clients)

    def lr(self, round: int) -> float:
        return self.whole.lr(round)

    def steps(self, round: int, client: int, samples: int) -> list[Step]:
        steps = self.whole.steps(round, client, samples)
        repeats = -(-self.count // len(steps))
        return (steps * repeats)[: self.count]

    def step_count(self, round: int, client: int, samples: int) -> int:
        return self.count

    def steps_per_epoch(self, samples: int) -> int:
        return self.whole.steps_per_epoch(samples)


@dataclass(frozen=True)
class RoundCost:
    """What a round's time is made of, in seconds."""

    round: float
    """Whatever the clients and their steps."""
    client: float
    """For each client, besides its steps."""
    step: float

    def round_seconds(self, steps: Sequence[int], workers: int) -> float:
        """Return the time of a round whose clients take so many steps.

        Each client goes to the worker that is free first.
        """
        free = [0.0] * workers
        for count in steps:
            heapq.heappush(free, heapq.heappop(free) + self.client + count * self.step)
        return self.round + max(free)


def probe_rounds(
    federation: Federation, cohort: Sequence[int], steps: int, workers: int, seconds: float
) -> tuple[RoundCost, State]:
    """Run three kinds of short rounds in turn until so many seconds are over.

    The smallest has a client for each worker and one step, one has more steps, one twice as many
    clients. Return what their times say about a round, and the state after the first of them.
    """
    begin = time.perf_counter()
    few = cohort[:workers]
    many = cohort[: 2 * workers]
    smallest = replace(federation, schedule=ShortSchedule(federation.schedule, few, 1))
    state = first_state(federation)
    for _ in range(2):  # the second knows a method's memory, and everything is warm after it
        with suppress(Diverged):
            state = replace(run_round(smallest, state)[0], round=0)
    one_step = time_call(partial(try_round, smallest, state))
    affordable = int(seconds / 4 / one_step)
    count = min(max(affordable, MIN_STEPS), max(steps, 2))
    longer = replace(federation, schedule=ShortSchedule(federation.schedule, few, count))
    wider = replace(federation, schedule=ShortSchedule(federation.schedule, many, 1))
    times: list[tuple[float, ...]] = []
    while not times or time.perf_counter() - begin < seconds:
        kinds = (smallest, longer, wider)
        times.append(tuple(time_call(partial(try_round, kind, state)) for kind in kinds))
    small, long, wide = (median(column) for column in zip(*times, strict=True))
    step = max(long - small, 0.0) / (count - 1)
    further = wide - small if len(many) > len(few) else small
    client = max(further - step, 0.0)
    return RoundCost(max(small - client - step, 0.0), client, step), state


def try_round(federation: Federation, state: State) -> None:
    """Run a round whose outcome does not matter."""
    with suppress(Diverged):
        run_round(federation, state)


def time_call(function: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# Evaluation and checkpoints


def evaluation_seconds(run: Run, lengths: dict[str, int], state: State, workers: int) -> float:
    """Return the seconds of one evaluation: of the model, and of its averaged twin if it has one.

    It is judged by one batch for each worker, which all evaluate at the same time.
    """
    total = 0.0
    for name, count in lengths.items():
        samples = getattr(run, name)
        seconds = time_evaluation(run, state, samples)
        total += seconds * batch_rounds(count, len(samples), workers)
    return total * (2 if state.average else 1)


def time_evaluation(run: Run, state: State, samples: Samples) -> float:
    """Return the seconds that the state's model takes on all samples, in the quicker of two."""

    def evaluate() -> None:
        predictions = run.predict(state.server["w"], state.buffers, samples)
        compute_metrics(run.federation.task.objective, predictions)

    return min(time_call(evaluate) for _ in range(2))  # the first warms up


def batch_rounds(count: int, probed: int, workers: int) -> float:
    """Return how often the workers take a batch each, where the probed samples were one time."""
    if workers == 1:
        return count / probed
    return math.ceil(count / EVALUATION_BATCH / workers)


def checkpoint_seconds(run: Run, state: State, row_bytes: int) -> float:
    """Return the seconds of a checkpoint for which so many bytes of clients' rows are written.

    The probed state is saved twice in a temporary folder: only the first time its rows are new.
    """
    probed_bytes = sum(map(size_in_bytes, state.memory.values()))
    with TemporaryDirectory() as path:
        run.folder = RunFolder.create(Path(path) / "probe", {})
        run.state = replace(state, memory=replace(state.memory, store=run.folder.store))
        with_rows = time_call(run.save)
        without_rows = time_call(run.save)
        run.folder.close()
    rows = max(with_rows - without_rows, 0.0)
    return without_rows + (rows * row_bytes / probed_bytes if probed_bytes else 0.0)
