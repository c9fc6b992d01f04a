"""Train a round's clients on several processes, with the same numbers as on one.

Workers are started once and keep the data, the model and the method. For each client a short message and the vectors
of its downlink, in shared memory, go to a free worker; its answer comes back the same way. Answers are handed on in
the order the clients were asked, whoever is ready first. A worker that dies is replaced and its client asked again:
training a client is a pure function, so nothing else changes.

Shared memory has no names or files that could be left behind: a block is an unlinked temporary file, in RAM where the
system has such a place, whose descriptor a child process inherits. It disappears with the last process that holds it,
however those end.
"""

import contextlib
import io
import mmap
import os
import pickle
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedwmsam.engine import worker_process
from fedwmsam.engine.rounds import Federation, Job, train_client
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import LocalResult

ALIGNMENT = 64
"""Vector instructions may round differently on unaligned data."""


# Shared memory


class TensorLocation(NamedTuple):
    """Where a tensor lies in a block."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedMemoryBlock:
    """A piece of shared memory that grows when more is written to it than fits."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with tempfile.TemporaryFile(dir=place_of_blocks()) as file:
                descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        self.map: mmap.mmap | None = None

    def close(self) -> None:
        self.map = None  # unmapped when the last tensor on it is gone
        os.close(self.descriptor)

    def reach(self, size: int) -> mmap.mmap:
        """The block as bytes, at least so many."""
        if self.map is None or len(self.map) < size:
            if os.fstat(self.descriptor).st_size < size:
                enlarge(self.descriptor, size)
            self.map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return self.map

    def write(self, tensors: Vectors) -> dict[str, TensorLocation]:
        """Copy the tensors in; what is returned tells the other side where they are."""
        places, end = {}, 0
        for name, value in tensors.items():
            places[name] = TensorLocation(end, value.dtype, tuple(value.shape))
            end = align_up(end + value.numel() * value.element_size())
        for name, place in places.items():
            self.view(place, end).copy_(tensors[name])
        return places

    def read(self, places: dict[str, TensorLocation]) -> Vectors:
        """Copies of the tensors, so that the block is free for what comes next."""
        return {name: self.view(place).clone() for name, place in places.items()}

    def view(self, place: TensorLocation, size: int = 0) -> Tensor:
        count = 1
        for length in place.shape:
            count *= length
        if count == 0:
            return torch.empty(place.shape, dtype=place.dtype)
        needed = place.offset + count * torch.empty(0, dtype=place.dtype).element_size()
        memory = self.reach(max(size, needed))
        return torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.offset).view(
            place.shape
        )


def enlarge(descriptor: int, size: int) -> None:
    """With room that is really there: where memory is full this is an error, not a signal at the first write."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        error.filename = place_of_blocks()
        raise


def place_of_blocks() -> str:
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


def align_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


LARGE = 4096
"""Tensors of more bytes than this are shared between the workers instead of sent to each."""
PATIENCE = 3
"""A client that kills so many workers one after the other is not asked again."""


class Pool:
    """`with Pool(federation, 2) as pool:` then give pool.train to the federation as its trainer."""

    def __init__(self, federation: Federation, count: int) -> None:
        self.data = SharedMemoryBlock()
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

    def train(
        self, federation: Federation, jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, LocalResult]]:
        """Answers in the jobs' order; at most two jobs a worker are under way or waiting for their turn."""
        numbered = enumerate(jobs)
        ready: dict[int, tuple[Job, LocalResult]] = {}
        busy: dict[int, Worker] = {}
        turn, exhausted = 0, False
        try:
            while True:
                while (
                    not exhausted
                    and len(busy) < len(self.workers)
                    and len(busy) + len(ready) < 2 * len(self.workers)
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
            for worker in (
                busy.values()
            ):  # given up half-way (an error, Ctrl-C): their answers must not be taken later
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

    def __init__(self, data: SharedMemoryBlock, recipe: bytes) -> None:
        self.inbox, self.outbox = SharedMemoryBlock(), SharedMemoryBlock()
        self.job: Job | None = None
        self.deaths = 0
        self.process, channel = worker_process.take_process()
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(
                channel,
                [b"blocks"],
                [data.descriptor, self.inbox.descriptor, self.outbox.descriptor],
            )
        self.connection = Connection(channel.detach())
        with contextlib.suppress(
            BrokenPipeError
        ):  # it has died already: noticed when it should answer
            self.connection.send_bytes(recipe)

    def ask(self, job: Job) -> None:
        self.job = job
        places = self.inbox.write(
            {**prefixed("down", job.down), **prefixed("buffers", job.buffers)}
        )
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


def worker_main(connection: int) -> None:
    """A worker's life: take the recipe, then train one client after the other until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with socket.socket(fileno=connection) as raw:
        _, descriptors, _, _ = socket.recv_fds(raw, len(b"blocks"), 3)
        raw.detach()
    if len(descriptors) < 3:  # nobody needed this worker
        return
    data, into, out = (SharedMemoryBlock(descriptor) for descriptor in descriptors)
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
    return {
        k.removeprefix(f"{prefix} "): v for k, v in tensors.items() if k.startswith(f"{prefix} ")
    }


def pickled(federation: Federation, data: SharedMemoryBlock) -> bytes:
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
        self.tensors: dict[Any, tuple[Tensor, TensorLocation]] = {}
        self.end = 0

    def persistent_id(self, value: Any) -> TensorLocation | None:
        if (
            type(value) is not Tensor
            or value.device.type != "cpu"
            or value.numel() * value.element_size() <= LARGE
        ):
            return None
        identity = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if identity not in self.tensors:
            self.tensors[identity] = (
                value,
                TensorLocation(self.end, value.dtype, tuple(value.shape)),
            )
            self.end = align_up(self.end + value.numel() * value.element_size())
        return self.tensors[identity][1]


class Unpickler(pickle.Unpickler):
    """Reads what this program's own main process sent through a private socket, never a file."""

    def __init__(self, stream: io.BytesIO, data: SharedMemoryBlock) -> None:
        super().__init__(stream)
        self.data = data

    def persistent_load(self, place: TensorLocation) -> Tensor:
        return self.data.view(place)
