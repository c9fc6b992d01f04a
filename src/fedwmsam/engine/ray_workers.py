"""Actors of a Ray cluster that train clients and evaluate models, as `work.py` says.

Each actor keeps the model, the method and the readers of the data. What a round's clients have in
common is one object of Ray's store, which every node fetches once; a client's own part travels
beside it. Actors that are lost, with their node or alone, are asked for again, and their work goes
to those that are left: the run goes on as long as one has room. No actor outlives the crew.
"""

import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation
from fedwmsam.engine.shared_memory import (
    ArrayBlock,
    TensorLocation,
    pickle_for_workers,
    unpickle_in_worker,
)
from fedwmsam.engine.work import (
    MAX_CRASHES,
    Crew,
    CrewMember,
    Work,
    WorkAnswer,
    WorkerLost,
    Workplace,
    do_work,
    make_picklable,
    split_shared,
)
from fedwmsam.engine.worker_process import cores
from fedwmsam.errors import InputError, install_command
from fedwmsam.methods.vectors import Vectors
from fedwmsam.settings.parsers import RayWorkers
from fedwmsam.training.task import Samples
from fedwmsam.version import __version__

log = logging.getLogger("fedwmsam")
PATIENCE = 10.0
"""Seconds without any answer after which it is looked whether the cluster still has room."""


class Parcel(NamedTuple):
    """Tensors on their way: where each lies in an array of bytes, which travels beside."""

    names: dict[str, TensorLocation]
    content: NDArray[np.uint8]


def pack(tensors: Vectors) -> Parcel:
    """Return the tensors as one array of bytes."""
    block = ArrayBlock()
    return Parcel(block.write(tensors), block.content)


def unpack(parcel: Parcel) -> Vectors:
    """Return copies of the tensors: what Ray delivers is read-only."""
    return ArrayBlock(parcel.content).read(parcel.names)


# Ray itself


def import_ray() -> Any:
    """Return the module ray; raise InputError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise InputError(f"workers=ray needs Ray: {install_command('ray')}") from error
    return ray


@contextlib.contextmanager
def connected(ray: Any, request: RayWorkers) -> Iterator[None]:
    """Be in a Ray cluster while the context lasts: the program's own, a running one or a new one.

    A new one has this machine's cores, or as many as are asked for; it ends with the context. Raise
    InputError if the cluster that RAY_ADDRESS names does not answer.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray speaks of it
    with kept_sigterm_handler():
        join_or_start(ray, request)
    try:
        yield
    finally:
        ray.shutdown()


def join_or_start(ray: Any, request: RayWorkers) -> None:
    """Join the cluster that RAY_ADDRESS names or that runs here, or else start one."""
    address = os.environ.get("RAY_ADDRESS", "auto")
    if address != "local":
        try:
            check_port(address)
            ray.init(address=address, logging_level=logging.WARNING)
            return
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            if address != "auto":
                raise InputError(
                    f"No Ray cluster answers at RAY_ADDRESS={address} ({error}); start it, or "
                    "remove the variable to have one started on this machine."
                ) from error
    ray.init(
        address="local",
        num_cpus=math.ceil((request.count or cores()) * request.num_cpus),
        include_dashboard=False,
        logging_level=logging.WARNING,
    )


def check_port(address: str) -> None:
    """Raise OSError if an address is HOST:PORT and nobody listens there: Ray tries for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


@contextlib.contextmanager
def kept_sigterm_handler() -> Iterator[None]:
    """Undo what is done to the handler of SIGTERM in this context: Ray exits without a word."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def count_room(ray: Any, request: RayWorkers) -> int:
    """Return how many such actors the nodes of the cluster hold when nobody else uses them."""
    needed = {"CPU": request.num_cpus, "GPU": request.num_gpus}
    needed = {name: amount for name, amount in needed.items() if amount}
    room = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            room += min(int(has.get(name, 0) / amount + 1e-6) for name, amount in needed.items())
    return room


# The actors, as the main process sees them


class RayCrew(Crew["Actor"]):
    """A crew of Ray actors: `with RayCrew(federation, RayWorkers(4)) as crew:`."""

    def __init__(
        self,
        federation: Federation,
        request: RayWorkers,
        data: Mapping[str, Samples] | None = None,
    ) -> None:
        super().__init__(federation, data)
        self.request = request
        self.ray = import_ray()
        self.device = federation.task.device
        self.shared: Any = None
        """The object in Ray's store that holds what the work has in common, and `locations` where
        each tensor lies in it."""
        self.locations: dict[str, TensorLocation] = {}
        self.failed_starts = 0
        """Actors that were lost one after the other before they could do anything."""
        self.resources = ExitStack()
        pickle_for_workers((self.federation, self.data), ArrayBlock())  # refused before they start

    def __enter__(self) -> "RayCrew":
        with ExitStack() as stack:
            stack.enter_context(connected(self.ray, self.request))
            stack.callback(self.end_actors)
            self.workers = [Actor(self) for _ in range(self.count_actors())]
            self.resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()

    def end_actors(self) -> None:
        """End all actors and free what they were sent."""
        for actor in self.workers:
            actor.end()
        self.workers = []
        self.shared = None
        self.__dict__.pop("kept", None)

    def describe(self) -> Record:
        """Return how many actors there are, and on how many nodes they may be."""
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        return super().describe() | {"nodes": nodes}

    @property
    def packages(self) -> dict[str, str]:
        """Return the version of Ray."""
        return {"Ray": str(self.ray.__version__)}

    def count_actors(self) -> int:
        """Return how many actors to ask for; raise InputError if there is no room for a single one.

        Those for which there is no room begin when a node joins.
        """
        room = count_room(self.ray, self.request)
        if room == 0:
            raise InputError(self.no_room_message())
        count = self.request.count or room
        if count > room:
            log.warning("The Ray cluster has room for %d of %d actors.", room, count)
        return count

    def no_room_message(self) -> str:
        """Return what a user is told if no node has room for an actor."""
        needs = f"num_cpus={self.request.num_cpus:g}, num_gpus={self.request.num_gpus:g}"
        return (
            f"No node of the Ray cluster has room for an actor of {needs}: add a node, or ask for "
            "less in the setting workers."
        )

    @cached_property
    def actor_class(self) -> Any:
        """Return the class of the actors, with what each reserves."""
        options = self.ray.remote(
            num_cpus=self.request.num_cpus,
            num_gpus=self.request.num_gpus,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        return options(Desk)

    @cached_property
    def kept(self) -> tuple[Any, Any]:
        """Return what actors keep, in Ray's store, as it is when the first work comes.

        By then a run that is resumed has got back its weights that are not trained.
        """
        block = ArrayBlock()
        message = pickle_for_workers((self.federation, self.data), block)
        return self.ray.put(message), self.ray.put(block.content)

    def share(self, tensors: Vectors) -> None:
        """Put the tensors into Ray's store as one object."""
        self.locations, content = pack(tensors)
        self.shared = self.ray.put(content)
        for actor in self.workers:
            actor.start()

    def free_worker(self) -> "Actor | None":
        """Return an actor that has started and does nothing, if there is one."""
        free = (actor for actor in self.workers if actor.is_ready and actor.errand is None)
        return next(free, None)

    def wait_for_workers(self) -> Sequence["Actor"]:
        """Wait for a reply, or until an actor has started.

        Raise InputError if nothing comes, and no node is left that has room for an actor.
        """
        expected = {actor.answer: actor for actor in self.workers if actor.answer is not None}
        answers, _ = self.ray.wait([*expected], timeout=PATIENCE)
        if not answers and not self.busy_workers() and not count_room(self.ray, self.request):
            raise InputError(self.no_room_message())
        actors = [expected[answer] for answer in answers]
        for actor in actors:
            if not actor.is_ready:
                self.finish_start(actor)
        return [actor for actor in actors if actor.errand]

    def finish_start(self, actor: "Actor") -> None:
        """Let an actor work that has received what it keeps, and replace one that is lost.

        Raise InputError if actors are lost again and again, or cannot use what they are sent.
        """
        try:
            error = actor.take_answer()
        except WorkerLost as reason:
            self.failed_starts += 1
            if self.failed_starts > MAX_CRASHES * len(self.workers):
                raise InputError(f"The Ray actors do not start: {reason}") from reason
            self.replace_worker(actor)
            return
        if error is not None:
            raise InputError(
                f"An actor of Ray cannot use what it is sent ({error}); every node needs the same "
                "versions of fedwmsam and PyTorch, and the modules of model, loss and data."
            )
        self.failed_starts = 0
        actor.is_ready = True

    def replace_worker(self, worker: "Actor") -> None:
        """End an actor and ask for another, which starts where there is room."""
        new_actor = Actor(self)
        self.workers[self.workers.index(worker)] = new_actor
        new_actor.start()
        worker.end()


class Actor(CrewMember):
    """An actor, and the answer that is expected of it."""

    def __init__(self, crew: RayCrew) -> None:
        self.crew = crew
        self.handle = crew.actor_class.remote()
        self.answer: Any = None
        """The object that will be its answer; None: nothing was asked."""
        self.is_ready = False
        """Whether it has what it keeps."""
        self.reason = ""
        """Why it was lost."""

    def start(self) -> None:
        """Send the actor what it keeps, unless that was done before."""
        if self.answer is None and not self.is_ready:
            self.answer = self.handle.keep.remote(current_versions(), *self.crew.kept)

    def send_work(self, work: Work, shared: Vectors) -> None:
        """Let the actor do a piece of work."""
        same, own = split_shared(work.tensors, shared)
        self.answer = self.handle.perform.remote(
            work.function,
            work.arguments,
            tuple(work.tensors),
            {name: self.crew.locations[name] for name in same},
            self.crew.shared,
            *pack(own),
        )

    def receive_reply(self) -> WorkAnswer:
        """Return the actor's answer, or raise WorkerLost."""
        names, content, rest, seconds, error = self.take_answer()
        tensors = unpack(Parcel(names, content))
        moved = {name: value.to(self.crew.device) for name, value in tensors.items()}
        return WorkAnswer(moved, rest, seconds, error)

    def take_answer(self) -> Any:
        """Return the answer, which has come; raise WorkerLost if the actor or its node is lost."""
        exceptions = self.crew.ray.exceptions
        answer = self.answer
        self.answer = None
        try:
            return self.crew.ray.get(answer)
        except (
            exceptions.RayActorError,
            exceptions.ObjectLostError,
            exceptions.WorkerCrashedError,
            exceptions.OutOfMemoryError,
            exceptions.NodeDiedError,
        ) as reason:
            self.reason = str(reason).strip().partition("\n")[0]
            raise WorkerLost(self.reason) from reason

    def end(self) -> None:
        """End the actor, whatever it is doing."""
        with contextlib.suppress(Exception):  # it may be lost, and the cluster with it
            self.crew.ray.kill(self.handle)

    def crash_message(self, work: Work) -> str:
        """Return what a user is told about actors that are lost on a piece of work."""
        return (
            f"{MAX_CRASHES} actors of Ray were lost on {work.name}, one after another; Ray says of "
            f"the last one: {self.reason} Its messages above or in its logs say more."
        )


# What runs in an actor


def current_versions() -> dict[str, str]:
    """Return the versions that must be the same on all nodes for results to be."""
    return {"fedwmsam": __version__, "PyTorch": str(torch.__version__)}


class Desk:
    """Where an actor works. One thread, whatever it reserves, keeps sums in one order."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.workplace: Workplace | None = None

    def keep(
        self, versions: dict[str, str], message: bytes, memory: NDArray[np.uint8]
    ) -> Exception | None:
        """Receive what is kept for all work; return the reason if that is impossible."""
        if versions != current_versions():
            return RuntimeError(f"it has {current_versions()}, and the program {versions}")
        try:
            self.workplace = Workplace(*unpickle_in_worker(message, ArrayBlock(memory)))
        except Exception as error:
            return make_picklable(error)
        return None

    def perform(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        names: Sequence[str],
        shared: dict[str, TensorLocation],
        shared_content: NDArray[np.uint8],
        own: dict[str, TensorLocation],
        own_content: NDArray[np.uint8],
    ) -> tuple[Any, ...]:
        """Do a piece of work, whose tensors come under these names, and return the answer."""
        assert self.workplace is not None
        device = self.workplace.federation.task.device
        sent = unpack(Parcel(shared, shared_content)) | unpack(Parcel(own, own_content))
        tensors = {name: sent[name].to(device) for name in names}
        reply = do_work(self.workplace, function, arguments, tensors)
        return *pack(reply.tensors), reply.rest, reply.seconds, reply.error
