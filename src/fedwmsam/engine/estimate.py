"""What a run will take: found by training one client for a few steps, without starting the run."""

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

PATIENCE = 1.0
"""Seconds after which no further probe is begun."""
PROBED = 1000
"""Test samples that a probe evaluates."""
VERSIONS = 3
"""Of a client's row on disk at most: of the two checkpoints that are kept, and of the rounds since."""


@dataclass(frozen=True)
class RunEstimate:
    parameters: int
    bytes_each: int
    clients: int
    cohort: int
    steps: float
    """Local steps of an average client of the first cohort."""
    bytes_down: int
    bytes_up: int
    """Of one client in one round."""
    row: int
    """Bytes kept for a client that took part."""
    seen: float
    """Clients that are expected to take part at least once."""
    rows_in_ram: float
    """Bytes of rows."""
    disk: float
    """Bytes of the run folder at most, about."""
    process: int
    """Bytes of memory this process has held, data and probe included."""
    step_seconds: float
    round_seconds: float
    rounds: int
    workers: int


def estimate(run: Run, workers: int) -> RunEstimate:
    federation, settings = run.federation, run.settings
    state = first_state(federation)
    cohort, info = sample_cohort(federation, 0)
    cohort = cohort or [0]  # with privacy a round may be empty
    steps = sum(federation.schedule.count(0, k, len(federation.clients[k])) for k in cohort) / len(
        cohort
    )
    job = next(make_jobs(federation, state, cohort[:1], info))
    result, once, step_seconds = probe(federation, job)
    evaluating = evaluation_seconds(federation.task, state, run.test) + evaluation_seconds(
        federation.task, state, run.validation
    )
    row = size_in_bytes(federation.method.memory_init(state.server["w"]))
    seen = len(federation.clients) * (1 - (1 - info.share) ** settings.rounds)
    rows_in_ram = min(seen * row, settings.memory_budget * 1e6)
    versions = min(VERSIONS * seen, seen + 2 * len(cohort) * settings.checkpoint_every)
    return RunEstimate(
        parameters=federation.task.size,
        bytes_each=federation.task.dtype.itemsize,
        clients=info.clients,
        cohort=len(cohort),
        steps=steps,
        bytes_down=size_in_bytes(job.down) + size_in_bytes(job.buffers),
        bytes_up=size_in_bytes(result.up) + size_in_bytes(result.buffers),
        row=row,
        seen=seen,
        rows_in_ram=rows_in_ram,
        disk=versions * row + 3 * size_in_bytes(state.server),
        process=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        step_seconds=step_seconds,
        round_seconds=len(cohort) * (once + steps * step_seconds) / workers
        + evaluating / settings.evaluate_every,
        rounds=settings.rounds,
        workers=workers,
    )


def probe(federation: Federation, job: Job) -> tuple[LocalResult, float, float]:
    """A client's answer after one step, and the seconds its round takes once and for each step."""

    def seconds(count: int) -> tuple[LocalResult, float]:
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
            federation.rules,
            epoch=1,
        )
        return result, time.perf_counter() - start

    begun = time.perf_counter()
    result, _ = seconds(1)  # warms up
    one = three = math.inf
    while (
        three == math.inf or time.perf_counter() - begun < PATIENCE
    ):  # the quickest counts: others share the machine
        one, three = min(one, seconds(1)[1]), min(three, seconds(3)[1])
    step = max(three - one, 0.0) / 2
    return result, max(one - step, 0.0), step


def evaluation_seconds(task: Task, state: State, samples: Samples | None) -> float:
    if samples is None:
        return 0.0
    count = min(PROBED, len(samples))
    start = time.perf_counter()
    task.outputs_of(state.server["w"], state.buffers, SubsetSamples(samples, torch.arange(count)))
    return (time.perf_counter() - start) * len(samples) / count
