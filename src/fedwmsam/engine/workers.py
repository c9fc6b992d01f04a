"""Train a round's clients on several processes, with results bitwise identical to those of one.

Workers are started once and keep the data, the model and the method. For each client a short
message and the vectors of its downlink, in shared memory, go to a free worker; its result comes
back the same way. Results are handed on in the order of the jobs, whichever is ready first. A
worker that dies is replaced and its client is trained again: training a client is a pure function,
so nothing else changes.

Shared memory has no names or files that could be left behind: a block is an unlinked temporary
file, in RAM where the system has such a folder, whose descriptor a worker process receives. It
disappears with the last process that holds it, however that process ends.
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

import cloudpickle
import torch
from torch import Tensor

from fedwmsam.data.clients import client_label
from fedwmsam.engine import worker_process
from fedwmsam.engine.rounds import Federation, Job, train_client
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import LocalResult

ALIGNMENT = 64
"""The alignment of tensors in bytes: vector instructions may round differently without it."""


# Shared memory


class TensorLocation(NamedTuple):
    """The position, type and shape of a tensor in a block."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedMemoryBlock:
    """A block of shared memory that grows when more is written to it than fits."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with tempfile.TemporaryFile(dir=shared_memory_folder()) as file:
                descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        self.map: mmap.mmap | None = None

    def close(self) -> None:
        """Give up the block; the memory is freed when no process and no tensor uses it any more."""
        self.map = None  # unmapped when the last tensor on it is gone
        os.close(self.descriptor)

    def map_bytes(self, size: int) -> mmap.mmap:
        """Return the block as mapped memory of at least `size` bytes, enlarged if necessary."""
        if self.map is None or len(self.map) < size:
            if os.fstat(self.descriptor).st_size < size:
                enlarge(self.descriptor, size)
            self.map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return self.map

    def write(self, tensors: Vectors) -> dict[str, TensorLocation]:
        """Copy the tensors into the block and return their locations."""
        locations = {}
        end = 0
        for name, value in tensors.items():
            locations[name] = TensorLocation(end, value.dtype, tuple(value.shape))
            end = align_up(end + value.numel() * value.element_size())
        for name, location in locations.items():
            self.view(location, end).copy_(tensors[name])
        return locations

    def read(self, locations: dict[str, TensorLocation]) -> Vectors:
        """Return copies of the tensors, so that the block can be written again."""
        return {name: self.view(location).clone() for name, location in locations.items()}

    def view(self, location: TensorLocation, size: int = 0) -> Tensor:
        """Return the tensor at this location, not a copy; the block gets at least `size` bytes."""
        count = 1
        for length in location.shape:
            count *= length
        if count == 0:
            return torch.empty(location.shape, dtype=location.dtype)
        end = location.offset + count * torch.empty(0, dtype=location.dtype).element_size()
        memory = self.map_bytes(max(size, end))
        flat = torch.frombuffer(memory, dtype=location.dtype, count=count, offset=location.offset)
        return flat.view(location.shape)


def enlarge(descriptor: int, size: int) -> None:
    """Allocate `size` bytes for a file; raise OSError where memory is full.

    Without the allocation a full memory would be a signal at the first write instead of an error.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        error.filename = shared_memory_folder()
        raise


def shared_memory_folder() -> str:
    """Return the folder in RAM that the system has for shared memory, or else one on disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


def align_up(size: int) -> int:
    """Return the next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


# Workers, as the main process sees them


MIN_SHARED_BYTES = 4096
"""Tensors of more bytes than this are shared between the workers instead of sent to each."""
MAX_CRASHES = 3
"""A client on which so many workers crash one after the other is not trained again."""


class Pool:
    """Worker processes that train clients: `with Pool(federation, 2) as pool:`.

    Inside, pool.train is the trainer to give to the federation.
    """

    def __init__(self, federation: Federation, count: int) -> None:
        self.clients = federation.clients
        self.data = SharedMemoryBlock()
        self.pickled_federation = pickle_federation(replace(federation, trainer=None), self.data)
        self.workers = [Worker(self.data, self.pickled_federation) for _ in range(count)]
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
        """Train the jobs' clients and yield the results in the jobs' order.

        At most two jobs per worker are being trained or wait for the results before them.
        """
        numbered_jobs = enumerate(jobs)
        ready: dict[int, tuple[Job, LocalResult]] = {}
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
                    number, job = next(numbered_jobs, (-1, None))
                    if job is None:
                        exhausted = True
                        break
                    worker = next(worker for worker in self.workers if worker.job is None)
                    worker.send_job(job)
                    busy[number] = worker
                if next_number in ready:
                    yield ready.pop(next_number)
                    next_number += 1
                elif busy:
                    self.receive_results(busy, ready)
                else:
                    return
        finally:
            # If the round was given up half-way (an error, Ctrl-C), nobody may later take the
            # results of its jobs for those of others.
            for worker in busy.values():
                self.replace_worker(worker)

    def receive_results(
        self, busy: dict[int, "Worker"], ready: dict[int, tuple[Job, LocalResult]]
    ) -> None:
        """Wait for at least one result and move it to `ready`.

        A worker that died instead is replaced and its job sent again. Raise InputError if that was
        in vain too often.
        """
        readable = wait([worker.connection for worker in busy.values()])
        finished = [(n, worker) for n, worker in busy.items() if worker.connection in readable]
        for number, worker in finished:
            job = worker.job
            assert job is not None
            try:
                result, seconds = worker.receive_result()
            except (EOFError, OSError):
                crashes = worker.crashes + 1
                if crashes >= MAX_CRASHES:
                    label = client_label(self.clients, job.client)
                    raise InputError(worker.crash_message(label)) from None
                busy[number] = self.replace_worker(worker)
                busy[number].crashes = crashes
                busy[number].send_job(job)
                continue
            self.cpu_seconds += seconds
            ready[number] = (job, result)
            del busy[number]

    def replace_worker(self, worker: "Worker") -> "Worker":
        """Kill a worker and return a new one in its place."""
        new_worker = Worker(self.data, self.pickled_federation)
        self.workers[self.workers.index(worker)] = new_worker
        worker.close(kill=True)
        return new_worker


class Worker:
    """A worker process, the connection to it and the two blocks through which vectors travel."""

    def __init__(self, data: SharedMemoryBlock, pickled_federation: bytes) -> None:
        self.inbox = SharedMemoryBlock()
        self.outbox = SharedMemoryBlock()
        self.job: Job | None = None
        self.crashes = 0
        """Workers before this one that crashed on the job it was started for."""
        self.process, channel = worker_process.take_process()
        descriptors = [data.descriptor, self.inbox.descriptor, self.outbox.descriptor]
        # A process that has died already is noticed when its result should come.
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(channel, [b"blocks"], descriptors)
        self.connection = Connection(channel.detach())
        with contextlib.suppress(BrokenPipeError):
            self.connection.send_bytes(pickled_federation)

    def send_job(self, job: Job) -> None:
        """Let the worker train the job's client."""
        self.job = job
        locations = self.inbox.write(
            {**add_prefix("down", job.down), **add_prefix("buffers", job.buffers)}
        )
        with contextlib.suppress(BrokenPipeError):
            self.connection.send((job.client, locations, job.info))

    def receive_result(self) -> tuple[LocalResult, float]:
        """Return the result of the job and the CPU seconds it took, or raise the worker's error."""
        locations, loss, backprops, seconds, error = self.connection.recv()
        self.job = None
        self.crashes = 0
        if error is not None:
            raise error
        tensors = self.outbox.read(locations)
        up = select_prefix("up", tensors)
        buffers = select_prefix("buffers", tensors)
        return LocalResult(up, buffers, loss, backprops), seconds

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

    def crash_message(self, client: str) -> str:
        """Return what a user is told about workers that crash on a client."""
        return (
            f"The worker processes die on client {client} (exit code {self.process.poll()}); "
            "their messages above say why. Workers need a model, a loss and data whose modules "
            "they can import; or use workers=1."
        )


# What runs in a worker


def worker_main(connection: int) -> None:
    """Receive the federation, then train one client after the other until the connection ends.

    This is all that a worker process does; `connection` is the descriptor of its socket.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with socket.socket(fileno=connection) as raw:
        _, descriptors, _, _ = socket.recv_fds(raw, len(b"blocks"), 3)
        raw.detach()
    if len(descriptors) < 3:  # nobody needed this worker
        return
    data, inbox, outbox = (SharedMemoryBlock(descriptor) for descriptor in descriptors)
    channel = Connection(connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        federation = Unpickler(io.BytesIO(channel.recv_bytes()), data).load()
        while True:
            client, locations, info = channel.recv()
            tensors = inbox.read(locations)
            down = select_prefix("down", tensors)
            job = Job(client, down, select_prefix("buffers", tensors), info)
            start = time.process_time()
            try:
                result = train_client(federation, job)
            except Exception as error:
                channel.send((None, 0.0, 0, 0.0, make_picklable(error)))
                continue
            locations = outbox.write(
                {**add_prefix("up", result.up), **add_prefix("buffers", result.buffers)}
            )
            seconds = time.process_time() - start
            channel.send((locations, result.loss, result.backprops, seconds, None))


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


# The federation as bytes


def pickle_federation(federation: Federation, data: SharedMemoryBlock) -> bytes:
    """Return the federation for a worker; its large tensors go to the block that all workers map.

    Raise InputError if it cannot be sent to another process.
    """
    stream = io.BytesIO()
    pickler = Pickler(stream)
    try:
        pickler.dump(federation)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise InputError(
            f"Workers need a model, a loss and data that can be sent to another process ({error}); "
            "open files, locks and connections where they are used, or use workers=1."
        ) from error
    for tensor, location in pickler.tensors.values():
        data.view(location, pickler.end).copy_(tensor)
    return stream.getvalue()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """A pickler that notes large tensors, with a location for each, instead of writing them.

    It sends functions and classes that no other process can import, those of a script or notebook,
    as they are.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: dict[Any, tuple[Tensor, TensorLocation]] = {}
        self.end = 0

    def persistent_id(self, value: Any) -> TensorLocation | None:
        """Return the location of a large tensor, None for anything else."""
        if type(value) is not Tensor or value.device.type != "cpu":
            return None
        size = value.numel() * value.element_size()
        if size <= MIN_SHARED_BYTES:
            return None
        identity = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if identity not in self.tensors:
            location = TensorLocation(self.end, value.dtype, tuple(value.shape))
            self.tensors[identity] = (value, location)
            self.end = align_up(self.end + size)
        return self.tensors[identity][1]


class Unpickler(pickle.Unpickler):
    """Reads what this program's own main process sent through a private socket, never a file."""

    def __init__(self, stream: io.BytesIO, data: SharedMemoryBlock) -> None:
        super().__init__(stream)
        self.data = data

    def persistent_load(self, location: TensorLocation) -> Tensor:
        """Return the large tensor at this location of the block that all workers map."""
        return self.data.view(location)
