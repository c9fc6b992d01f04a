"""Worker processes of this machine, with the results of one process, bit for bit.

They are started once and keep what `work.py` says. A piece of work is a short message through a
socket and tensors in shared memory; its result comes back the same way. What all pieces have in
common is written once, to a block that all workers map.
"""

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from multiprocessing.connection import Connection, wait

import torch

from fedwmsam.engine import worker_process
from fedwmsam.engine.rounds import Federation
from fedwmsam.engine.shared_memory import (
    NamedBlock,
    SharedMemoryBlock,
    TensorLocation,
    pickle_for_workers,
    unpickle_in_worker,
)
from fedwmsam.engine.work import (
    Crew,
    CrewMember,
    Work,
    WorkAnswer,
    WorkerLost,
    Workplace,
    do_work,
    split_shared,
)
from fedwmsam.files import open_shared_file
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.task import Samples


class Pool(Crew["Worker"]):
    """A crew of worker processes: `with Pool(federation, 2) as pool:`."""

    def __init__(
        self, federation: Federation, count: int, data: Mapping[str, Samples] | None = None
    ) -> None:
        super().__init__(federation, data)
        self.blocks = (make_block(), make_block())
        self.memory, self.common = self.blocks
        self.locations: dict[str, TensorLocation] = {}
        """Where the shared tensors lie in the block for them."""
        pickle_for_workers((self.federation, self.data), self.memory)  # refused before they start
        self.workers = [Worker(self) for _ in range(count)]

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

    def share(self, tensors: Vectors) -> None:
        """Write the tensors to the block for them."""
        self.locations = self.common.write(tensors)

    def free_worker(self) -> "Worker | None":
        """Return a worker that does nothing, if there is one."""
        return next((worker for worker in self.workers if worker.errand is None), None)

    def wait_for_workers(self) -> Sequence["Worker"]:
        """Wait for at least one reply, or for the end of a worker."""
        busy = self.busy_workers()
        readable = wait([worker.connection for worker in busy])
        return [worker for worker in busy if worker.connection in readable]

    def replace_worker(self, worker: "Worker") -> None:
        """Kill a worker and put a new one in its place."""
        self.workers[self.workers.index(worker)] = Worker(self)
        worker.close(kill=True)


class Worker(CrewMember):
    """A worker process, the connection to it and the two blocks through which tensors travel."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.inbox = make_block()
        self.outbox = make_block()
        self.has_message = False
        """Whether it was sent what it keeps."""
        self.process, channel = worker_process.take_process()
        self.connection = send_blocks(channel, (*pool.blocks, self.inbox, self.outbox))

    def send_work(self, work: Work, shared: Vectors) -> None:
        """Let the worker do a piece of work; before the first it is sent what it keeps."""
        same, own = split_shared(work.tensors, shared)
        message = (
            work.function,
            work.arguments,
            tuple(work.tensors),
            {name: self.pool.locations[name] for name in same},
            self.inbox.write(own),
        )
        with contextlib.suppress(ConnectionError):
            if not self.has_message:
                self.connection.send_bytes(self.pool.message)
                self.has_message = True
            self.connection.send(message)

    def receive_reply(self) -> WorkAnswer:
        """Return the worker's answer, or raise WorkerLost."""
        try:
            locations, rest, seconds, error = self.connection.recv()
        except (EOFError, OSError) as reason:
            raise WorkerLost from reason
        return WorkAnswer(self.outbox.read(locations), rest, seconds, error)

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


def make_block() -> SharedMemoryBlock:
    """Return a new block, in the form in which this system can send it to a worker."""
    return SharedMemoryBlock() if worker_process.SENDS_DESCRIPTORS else NamedBlock()


def send_blocks(channel: socket.socket, blocks: Iterable[SharedMemoryBlock]) -> Connection:
    """Send a worker the blocks that it maps, and return the connection to it."""
    connection = Connection(channel.fileno())
    # A process that has died already is noticed when its reply should come.
    with contextlib.suppress(ConnectionError):
        if hasattr(socket, "send_fds"):
            socket.send_fds(channel, [b"blocks"], [block.descriptor for block in blocks])
        else:
            connection.send([block.file.name for block in blocks if isinstance(block, NamedBlock)])
    channel.detach()
    return connection


# What runs in a worker


BLOCKS = 4
"""Blocks that a worker maps: those of the pool, then its own inbox and outbox."""


def worker_main(connection: int) -> None:
    """Receive what is kept, then do one piece of work after the other until the connection ends.

    This is all that a worker process does; `connection` is the descriptor of its socket.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    channel = Connection(connection)
    descriptors = receive_blocks(channel)
    if len(descriptors) < BLOCKS:  # nobody needed this worker
        return
    memory, common, inbox, outbox = (SharedMemoryBlock(descriptor) for descriptor in descriptors)
    with contextlib.suppress(EOFError, ConnectionError):
        workplace = Workplace(*unpickle_in_worker(channel.recv_bytes(), memory))
        while True:
            function, arguments, names, shared, own = channel.recv()
            sent = common.read(shared) | inbox.read(own)
            reply = do_work(workplace, function, arguments, {name: sent[name] for name in names})
            channel.send((outbox.write(reply.tensors), reply.rest, reply.seconds, reply.error))


def receive_blocks(channel: Connection) -> list[int]:
    """Return the descriptors of the blocks that a worker maps; none if nobody sends them."""
    if hasattr(socket, "recv_fds"):
        with socket.socket(fileno=channel.fileno()) as raw:
            _, descriptors, _, _ = socket.recv_fds(raw, len(b"blocks"), BLOCKS)
            raw.detach()
        return list(descriptors)
    try:
        return [open_shared_file(name) for name in channel.recv()]
    except (EOFError, ConnectionError):
        return []
