"""An estimate of what a run will take, made without starting it.

One client is trained for a few steps and a part of the test data is evaluated; the run's time,
memory and traffic follow from what that took and from the settings.
"""

import math
import resource
import time
from dataclasses import dataclass, replace

import torch

from fedwmsam.data.clients import SubsetSamples
from fedwmsam.engine.rounds import (
    Federation,
    Job,
    State,
    first_state,
    make_jobs,
    sample_cohort,
    size_in_bytes,
)
from fedwmsam.engine.run import Run
from fedwmsam.training.local import LocalResult, train_locally
from fedwmsam.training.task import Samples, Task

PROBE_SECONDS = 1.0
"""Seconds after which no further probe is begun, unless fewer are asked for."""
PROBED = 1000
"""Test samples that a probe evaluates at most."""
VERSIONS = 3
"""Versions of a client's row that are on disk at most: those of the two checkpoints that are kept,
and that of the rounds since."""


@dataclass(frozen=True)
class RunEstimate:
    """What a run is expected to take: computing time, traffic, memory and disk space."""

    parameters: int
    bytes_per_parameter: int
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
    disk_bytes: float
    """Bytes of the run folder at most, approximately."""
    process_bytes: int
    """Bytes of memory that this process has held, data and probe included."""
    step_seconds: float
    round_seconds: float
    rounds: int
    workers: int


def estimate(run: Run, workers: int, seconds: float = PROBE_SECONDS) -> RunEstimate:
    """Probe one client and the evaluation, and return what the run will take on so many workers.

    No further steps are probed after so many seconds.
    """
    federation = run.federation
    settings = run.settings
    state = first_state(federation)
    cohort, info = sample_cohort(federation, 0)
    cohort = cohort or [0]  # with privacy a round may be empty
    steps = mean_steps(federation, cohort)
    job = next(make_jobs(federation, state, cohort[:1], info))
    result, start_seconds, step_seconds = probe(federation, job, seconds)
    client_seconds = start_seconds + steps * step_seconds
    test_seconds = evaluation_seconds(federation.task, state, run.test)
    validation_seconds = evaluation_seconds(federation.task, state, run.validation)
    evaluate_seconds = test_seconds + validation_seconds
    row_bytes = size_in_bytes(federation.method.memory_init(state.server["w"]))
    participants = len(federation.clients) * (1 - (1 - info.share) ** settings.rounds)
    changed_rows = 2 * len(cohort) * settings.checkpoint_every
    rows_on_disk = min(VERSIONS * participants, participants + changed_rows)
    return RunEstimate(
        parameters=federation.task.parameter_count,
        bytes_per_parameter=federation.task.dtype.itemsize,
        clients=info.clients,
        cohort=len(cohort),
        steps=steps,
        bytes_down=size_in_bytes(job.down) + size_in_bytes(job.buffers),
        bytes_up=size_in_bytes(result.up) + size_in_bytes(result.buffers),
        row_bytes=row_bytes,
        participants=participants,
        row_bytes_in_ram=min(participants * row_bytes, settings.memory_budget * 1e6),
        disk_bytes=rows_on_disk * row_bytes + 3 * size_in_bytes(state.server),
        process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        step_seconds=step_seconds,
        round_seconds=len(cohort) * client_seconds / workers
        + evaluate_seconds / settings.evaluate_every,
        rounds=settings.rounds,
        workers=workers,
    )


def mean_steps(federation: Federation, cohort: list[int]) -> float:
    """Return the number of local steps of an average client of the first cohort."""
    schedule = federation.schedule
    counts = [schedule.step_count(0, k, len(federation.clients[k])) for k in cohort]
    return sum(counts) / len(cohort)


def probe(federation: Federation, job: Job, seconds: float) -> tuple[LocalResult, float, float]:
    """Train the job's client for a few steps, several times until so many seconds are over.

    Return its result after one step, the seconds a client takes besides its steps, and the seconds
    per step.
    """
    begin = time.perf_counter()
    result, _ = time_steps(federation, job, 1)  # warms up
    one = math.inf
    three = math.inf
    # The quickest probe counts: other processes share the machine.
    while three == math.inf or time.perf_counter() - begin < seconds:
        one = min(one, time_steps(federation, job, 1)[1])
        three = min(three, time_steps(federation, job, 3)[1])
    step_seconds = max(three - one, 0.0) / 2
    return result, max(one - step_seconds, 0.0), step_seconds


def time_steps(federation: Federation, job: Job, count: int) -> tuple[LocalResult, float]:
    """Train the job's client for `count` steps; return its result and the seconds this took."""
    samples = federation.clients[job.client]
    steps = federation.schedule.steps(0, job.client, len(samples))
    start = time.perf_counter()
    result = train_locally(
        federation.task,
        federation.method,
        job.down,
        job.buffers,
        samples,
        (steps * count)[:count],
        replace(job.info, steps=count),
        federation.local_rules,
        steps_per_epoch=1,
    )
    return result, time.perf_counter() - start


def evaluation_seconds(task: Task, state: State, samples: Samples | None) -> float:
    """Return the seconds that evaluating all samples will take, judged by some of them."""
    if samples is None:
        return 0.0
    count = min(PROBED, len(samples))
    subset = SubsetSamples(samples, torch.arange(count))
    start = time.perf_counter()
    task.compute_outputs(state.server["w"], state.buffers, subset)
    return (time.perf_counter() - start) * len(samples) / count
