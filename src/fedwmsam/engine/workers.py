"""Train clients and evaluate models on several processes, with the results of one, bit for bit.

Workers are started once and keep the clients, the model, the method and the data that models are
evaluated on. A piece of work, a client to train or a batch to evaluate, goes to a free worker as a
short message and tensors in shared memory; its result comes back the same way. Results are handed
on in the order of the work, whichever is ready first. A worker that dies is replaced and its work
is done again: each piece is a pure function, so nothing else changes.
"""

import contextlib
import pickle
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import tee
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedwmsam.data.clients import client_label
from fedwmsam.engine import worker_process
from fedwmsam.engine.rounds import Federation, Job, train_client
from fedwmsam.engine.shared_memory import (
    SharedMemoryBlock,
    TensorLocation,
    pickle_for_workers,
    unpickle_in_worker,
)
from fedwmsam.errors import InputError
from fedwmsam.methods.base import Info
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import LocalResult
from fedwmsam.training.objectives import Predictions
from fedwmsam.training.task import Samples, evaluation_batches

MAX_CRASHES = 3
"""A piece of work on which so many workers crash one after the other is given up."""


# Work, and how a worker does it


class Workplace(NamedTuple):
    """What a worker has at hand for all of its work."""

    federation: Federation
    data: dict[str, Samples]
    """The data that models are evaluated on, by name."""
    model: SharedMemoryBlock
    """The weights and buffers of the model that is being evaluated, the same for all workers."""


WorkResult = tuple[Vectors, Any]
"""What comes of a piece of work: tensors, and whatever else there is, which is small."""


@dataclass(frozen=True)
class Work:
    """A piece of work: a function of this module, and what a worker calls it with."""

    name: str
    """What messages call it."""
    function: Callable[..., WorkResult]
    """Called with the workplace, the tensors and the arguments."""
    arguments: tuple[Any, ...]
    tensors: Vectors


def train_job(workplace: Workplace, tensors: Vectors, client: int, info: Info) -> WorkResult:
    """Train the client, and return what it uploads with its loss and its backpropagations."""
    down = select_prefix("down", tensors)
    job = Job(client, down, select_prefix("buffers", tensors), info)
    result = train_client(workplace.federation, job)
    uploaded = add_prefix("up", result.up) | add_prefix("buffers", result.buffers)
    return uploaded, (result.loss, result.backprops)


def evaluate_batch(
    workplace: Workplace,
    _: Vectors,
    name: str,
    batch: int,
    model: dict[str, TensorLocation],
) -> WorkResult:
    """Compute the outputs of the shared model for one batch of the data of that name."""
    task = workplace.federation.task
    samples = workplace.data[name]
    tensors = workplace.model.views(model)
    task.start_evaluation(tensors["w"], select_prefix("buffers", tensors))
    outputs, targets, loss = task.predict_batch(samples, evaluation_batches(samples)[batch])
    return {"outputs": outputs, "targets": targets}, loss


# Workers, as the main process sees them


class Pool:
    """Worker processes that train clients and evaluate models: `with Pool(federation, 2) as pool:`.

    Inside, pool.train is the trainer to give to the federation, and pool.compute_outputs takes the
    place of that of the task. `data` are the data sets that models are evaluated on, by what
    messages call them; those of a single batch stay with the main process, because there is nothing
    to share out.
    """

    def __init__(
        self, federation: Federation, count: int, data: Mapping[str, Samples] | None = None
    ) -> None:
        self.federation = replace(federation, trainer=None)
        self.data = {
            name: samples
            for name, samples in (data or {}).items()
            if len(evaluation_batches(samples)) > 1
        }
        self.blocks = (SharedMemoryBlock(), SharedMemoryBlock())
        self.memory, self.model = self.blocks
        pickle_for_workers((self.federation, self.data), self.memory)  # refused before they start
        self.workers = [Worker(self.blocks) for _ in range(count)]
        self.cpu_seconds = 0.0

    @cached_property
    def message(self) -> bytes:
        """Return what workers keep, as it is when the first work comes.

        By then a run that is resumed has got back its weights that are not trained.
        """
        return pickle_for_workers((self.federation, self.data), self.memory)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.connection.close()  # all first: they end at the same time
        for worker in self.workers:
            worker.close()
        for block in self.blocks:
            block.close()

    def train(
        self, federation: Federation, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, LocalResult]]:
        """Train the jobs' clients and yield the results in the jobs' order."""
        jobs, same_jobs = tee(jobs)
        replies = self.perform(map(self.training_work, jobs))
        for (tensors, (loss, backprops)), job in zip(replies, same_jobs, strict=False):
            up = select_prefix("up", tensors)
            yield job, LocalResult(up, select_prefix("buffers", tensors), loss, backprops)

    def training_work(self, job: Job) -> Work:
        """Return the work that a job is."""
        name = f"client {client_label(self.federation.clients, job.client)}"
        tensors = add_prefix("down", job.down) | add_prefix("buffers", job.buffers)
        return Work(name, train_job, (job.client, job.info), tensors)

    def compute_outputs(self, w: Tensor, buffers: Vectors, samples: Samples) -> Predictions:
        """Return the outputs and targets of all samples, as `Task.compute_outputs` does.

        The batches are the same, so the bits are. Data that the workers do not have are evaluated
        in this process.
        """
        task = self.federation.task
        name = next((name for name, known in self.data.items() if known is samples), None)
        if name is None:
            return task.compute_outputs(w, buffers, samples)
        model = self.model.write({"w": w} | add_prefix("buffers", buffers))
        works = [
            Work(
                f"samples {index[0]} to {index[-1]} of {name}", evaluate_batch, (name, i, model), {}
            )
            for i, index in enumerate(evaluation_batches(samples))
        ]
        return task.join_predictions(
            Predictions(tensors["outputs"], tensors["targets"], loss)
            for tensors, loss in self.perform(works)
        )

    def perform(self, works: Iterable[Work]) -> Iterator[WorkResult]:
        """Let the workers do all the work, and yield the replies in its order.

        At most two pieces per worker are being done or wait for the replies before them.
        """
        numbered_works = enumerate(works)
        ready: dict[int, WorkResult] = {}
        busy: dict[int, Worker] = {}
        next_number = 0
        exhausted = False
        try:
            while True:
                while (
                    not exhausted
                    and len(busy) < len(self.workers)
                    and len(busy) + len(ready) < 2 * len(self.workers)
                ):
                    number, work = next(numbered_works, (-1, None))
                    if work is None:
                        exhausted = True
                        break
                    worker = next(worker for worker in self.workers if worker.work is None)
                    worker.send_work(work, self.message)
                    busy[number] = worker
                if next_number in ready:
                    yield ready.pop(next_number)
                    next_number += 1
                elif busy:
                    self.receive_replies(busy, ready)
                else:
                    return
        finally:
            # If the work was given up half-way (an error, Ctrl-C), nobody may later take its
            # replies for those of other work, nor overwrite a model that is still being read.
            for worker in busy.values():
                self.replace_worker(worker)

    def receive_replies(self, busy: dict[int, "Worker"], ready: dict[int, WorkResult]) -> None:
        """Wait for at least one reply and move it to `ready`.

        A worker that died instead is replaced and its work sent again. Raise InputError if that was
        in vain too often.
        """
        readable = wait([worker.connection for worker in busy.values()])
        finished = [(n, worker) for n, worker in busy.items() if worker.connection in readable]
        for number, worker in finished:
            work = worker.work
            assert work is not None
            try:
                reply, seconds = worker.receive_reply()
            except (EOFError, OSError):
                crashes = worker.crashes + 1
                if crashes >= MAX_CRASHES:
                    raise InputError(worker.crash_message(work)) from None
                busy[number] = self.replace_worker(worker)
                busy[number].crashes = crashes
                busy[number].send_work(work, self.message)
                continue
            self.cpu_seconds += seconds
            ready[number] = reply
            del busy[number]

    def replace_worker(self, worker: "Worker") -> "Worker":
        """Kill a worker and return a new one in its place."""
        new_worker = Worker(self.blocks)
        self.workers[self.workers.index(worker)] = new_worker
        worker.close(kill=True)
        return new_worker


class Worker:
    """A worker process, the connection to it and the two blocks through which tensors travel.

    The `shared` blocks are those of the pool, which all workers map.
    """

    def __init__(self, shared: Iterable[SharedMemoryBlock]) -> None:
        self.inbox = SharedMemoryBlock()
        self.outbox = SharedMemoryBlock()
        self.work: Work | None = None
        self.has_message = False
        """Whether it was sent what it keeps."""
        self.crashes = 0
        """Workers before this one that crashed on the work it was started for."""
        self.process, channel = worker_process.take_process()
        descriptors = [block.descriptor for block in (*shared, self.inbox, self.outbox)]
        # A process that has died already is noticed when its reply should come.
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(channel, [b"blocks"], descriptors)
        self.connection = Connection(channel.detach())

    def send_work(self, work: Work, message: bytes) -> None:
        """Let the worker do a piece of work; before the first it is sent what it keeps."""
        self.work = work
        locations = self.inbox.write(work.tensors)
        with contextlib.suppress(BrokenPipeError):
            if not self.has_message:
                self.connection.send_bytes(message)
                self.has_message = True
            self.connection.send((work.function, work.arguments, locations))

    def receive_reply(self) -> tuple[WorkResult, float]:
        """Return what came of the work and the CPU seconds it took, or raise the worker's error."""
        locations, rest, seconds, error = self.connection.recv()
        self.work = None
        self.crashes = 0
        if error is not None:
            raise error
        return (self.outbox.read(locations), rest), seconds

    def close(self, kill: bool = False) -> None:
        """End the worker, which ends itself without its connection; kill it after two seconds."""
        self.connection.close()
        if kill:
            self.process.kill()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.inbox.close()
        self.outbox.close()

    def crash_message(self, work: Work) -> str:
        """Return what a user is told about workers that crash on a piece of work."""
        return (
            f"The worker processes die on {work.name} (exit code {self.process.poll()}); "
            "their messages above say why. Workers need a model, a loss and data whose modules "
            "they can import; or use workers=1."
        )


# What runs in a worker


BLOCKS = 4
"""Blocks that a worker maps: those of the pool, then its own inbox and outbox."""


def worker_main(connection: int) -> None:
    """Receive what is kept, then do one piece of work after the other until the connection ends.

    This is all that a worker process does; `connection` is the descriptor of its socket.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with socket.socket(fileno=connection) as raw:
        _, descriptors, _, _ = socket.recv_fds(raw, len(b"blocks"), BLOCKS)
        raw.detach()
    if len(descriptors) < BLOCKS:  # nobody needed this worker
        return
    memory, model, inbox, outbox = (SharedMemoryBlock(descriptor) for descriptor in descriptors)
    channel = Connection(connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        federation, data = unpickle_in_worker(channel.recv_bytes(), memory)
        workplace = Workplace(federation, data, model)
        while True:
            function, arguments, locations = channel.recv()
            sent = inbox.read(locations)
            start = time.process_time()
            try:
                tensors, rest = function(workplace, sent, *arguments)
            except Exception as error:
                channel.send((None, None, 0.0, make_picklable(error)))
                continue
            locations = outbox.write(tensors)
            channel.send((locations, rest, time.process_time() - start, None))


def make_picklable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with its message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__} in a worker: {error}")


def add_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under names that begin with the prefix."""
    return {f"{prefix} {name}": value for name, value in tensors.items()}


def select_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with the prefix, under their names without it."""
    return {
        k.removeprefix(f"{prefix} "): v for k, v in tensors.items() if k.startswith(f"{prefix} ")
    }
