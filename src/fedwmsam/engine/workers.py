"""Train a round's clients on several processes, with the same numbers as on one.

Workers are started once and keep the data, the model and the method. For each client a short message and the vectors
of its downlink, in shared memory, go to a free worker; its answer comes back the same way. Answers are handed on in
the order the clients were asked, whoever is ready first. A worker that dies is replaced and its client asked again:
training a client is a pure function, so nothing else changes.
"""

import contextlib
import io
import pickle
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from fedwmsam.engine import nursery
from fedwmsam.engine.rounds import Federation, Job, train_client
from fedwmsam.engine.shared import Block, Place, aligned
from fedwmsam.errors import InputError
from fedwmsam.training.local import LocalResult

LARGE = 4096
"""Tensors of more bytes than this are shared between the workers instead of sent to each."""
PATIENCE = 3
"""A client that kills so many workers one after the other is not asked again."""


class Pool:
    """`with Pool(federation, 2) as pool:` then give pool.train to the federation as its trainer."""

    def __init__(self, federation: Federation, count: int) -> None:
        self.data = Block()
        self.recipe = pickled(replace(federation, trainer=None), self.data)
        self.workers = [Worker(self.data, self.recipe) for _ in range(count)]
        self.cpu_seconds = 0.0

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.connection.close()  # all first: they end at the same time
        for worker in self.workers:
            worker.close()
        self.data.close()

    def train(self, federation: Federation, jobs: Iterable[Job]) -> Iterator[tuple[Job, LocalResult]]:
        """Answers in the jobs' order; at most two jobs a worker are under way or waiting for their turn."""
        numbered = enumerate(jobs)
        ready: dict[int, tuple[Job, LocalResult]] = {}
        busy: dict[int, Worker] = {}
        turn, exhausted = 0, False
        try:
            while True:
                while (
                    not exhausted and len(busy) < len(self.workers) and len(busy) + len(ready) < 2 * len(self.workers)
                ):
                    number, job = next(numbered, (-1, None))
                    if job is None:
                        exhausted = True
                        break
                    worker = next(worker for worker in self.workers if worker.job is None)
                    worker.ask(job)
                    busy[number] = worker
                if turn in ready:
                    yield ready.pop(turn)
                    turn += 1
                elif busy:
                    self.collect(busy, ready)
                else:
                    return
        finally:
            for worker in busy.values():  # given up half-way (an error, Ctrl-C): their answers must not be taken later
                self.replace(worker)

    def collect(self, busy: dict[int, "Worker"], ready: dict[int, tuple[Job, LocalResult]]) -> None:
        """Wait for an answer; a worker that died instead is replaced and asked again."""
        answered = wait([worker.connection for worker in busy.values()])
        for number, worker in [(n, w) for n, w in busy.items() if w.connection in answered]:
            job = worker.job
            assert job is not None
            try:
                result, seconds = worker.answer()
            except (EOFError, OSError):
                deaths = worker.deaths + 1
                if deaths >= PATIENCE:
                    raise InputError(worker.obituary(job)) from None
                busy[number] = self.replace(worker)
                busy[number].deaths = deaths
                busy[number].ask(job)
                continue
            self.cpu_seconds += seconds
            ready[number] = (job, result)
            del busy[number]

    def replace(self, worker: "Worker") -> "Worker":
        fresh = Worker(self.data, self.recipe)
        self.workers[self.workers.index(worker)] = fresh
        worker.close(kill=True)
        return fresh


class Worker:
    """One process and the two blocks that vectors travel through."""

    def __init__(self, data: Block, recipe: bytes) -> None:
        self.inbox, self.outbox = Block(), Block()
        self.job: Job | None = None
        self.deaths = 0
        self.process, channel = nursery.take()
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(channel, [b"blocks"], [data.descriptor, self.inbox.descriptor, self.outbox.descriptor])
        self.connection = Connection(channel.detach())
        with contextlib.suppress(BrokenPipeError):  # it has died already: noticed when it should answer
            self.connection.send_bytes(recipe)

    def ask(self, job: Job) -> None:
        self.job = job
        places = self.inbox.write({**prefixed("down", job.down), **prefixed("buffers", job.buffers)})
        with contextlib.suppress(BrokenPipeError):
            self.connection.send((job.client, places, job.info))

    def answer(self) -> tuple[LocalResult, float]:
        places, loss, backprops, seconds, error = self.connection.recv()
        self.job, self.deaths = None, 0
        if error is not None:
            raise error
        tensors = self.outbox.read(places)
        return LocalResult(part("up", tensors), part("buffers", tensors), loss, backprops), seconds

    def close(self, kill: bool = False) -> None:
        """Without its connection a worker ends; it is not waited for longer than a moment."""
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

    def obituary(self, job: Job) -> str:
        return (
            f"The worker processes die on client {job.client} (exit code {self.process.poll()}); their messages above "
            "say why. Workers need a model, a loss and data whose code is in an importable module; or use workers=1."
        )


def work(connection: int) -> None:
    """A worker's life: take the recipe, then train one client after the other until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with socket.socket(fileno=connection) as raw:
        _, descriptors, _, _ = socket.recv_fds(raw, len(b"blocks"), 3)
        raw.detach()
    if len(descriptors) < 3:  # nobody needed this worker
        return
    data, into, out = (Block(descriptor) for descriptor in descriptors)
    channel = Connection(connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        federation = Unpickler(io.BytesIO(channel.recv_bytes()), data).load()
        while True:
            client, places, info = channel.recv()
            tensors = into.read(places)
            job = Job(client, part("down", tensors), part("buffers", tensors), info)
            start = time.process_time()
            try:
                result = train_client(federation, job)
            except Exception as error:
                channel.send((None, 0.0, 0, 0.0, sendable(error)))
                continue
            answer = out.write({**prefixed("up", result.up), **prefixed("buffers", result.buffers)})
            channel.send((answer, result.loss, result.backprops, time.process_time() - start, None))


def sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__} in a worker: {error}")


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix} {name}": value for name, value in tensors.items()}


def part(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(f"{prefix} "): v for k, v in tensors.items() if k.startswith(f"{prefix} ")}


def pickled(federation: Federation, data: Block) -> bytes:
    """The federation for a worker; its large tensors go to the block that all workers map."""
    stream = io.BytesIO()
    pickler = Pickler(stream)
    try:
        pickler.dump(federation)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"Workers need a model, a loss and data that can be sent to another process ({error}); "
            "define their functions and classes in an importable module, or use workers=1."
        ) from error
    for tensor, place in pickler.tensors.values():
        data.view(place, pickler.end).copy_(tensor)
    return stream.getvalue()


class Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: dict[Any, tuple[Tensor, Place]] = {}
        self.end = 0

    def persistent_id(self, value: Any) -> Place | None:
        if type(value) is not Tensor or value.device.type != "cpu" or value.numel() * value.element_size() <= LARGE:
            return None
        identity = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if identity not in self.tensors:
            self.tensors[identity] = (value, Place(self.end, value.dtype, tuple(value.shape)))
            self.end = aligned(self.end + value.numel() * value.element_size())
        return self.tensors[identity][1]


class Unpickler(pickle.Unpickler):
    """Reads what this program's own main process sent through a private socket, never a file."""

    def __init__(self, stream: io.BytesIO, data: Block) -> None:
        super().__init__(stream)
        self.data = data

    def persistent_load(self, place: Place) -> Tensor:
        return self.data.view(place)
