"""Work that others do for a run: clients to train and batches to evaluate.

A crew is a number of workers, be they processes of this machine (`workers.py`) or actors of Ray
(`ray_workers.py`), that keep the clients, the model, the method and the data that models are
evaluated on. A piece of work goes to a free worker, and its result comes back: both are tensors and
a short message. Tensors that all pieces have in common, such as a round's weights, are shared out
once. Results are handed on in the order of the work, whichever is ready first. A worker that is
lost is replaced and its work is done again, by whoever is free: each piece is a pure function, so
nothing else changes.
"""

import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, tee
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from fedwmsam.data.clients import client_label
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation, Job, train_client
from fedwmsam.errors import InputError
from fedwmsam.methods.base import Info
from fedwmsam.methods.vectors import Vectors
from fedwmsam.training.local import LocalResult
from fedwmsam.training.objectives import Predictions
from fedwmsam.training.task import Samples, evaluation_batches

MAX_CRASHES = 3
"""A piece of work on which so many workers are lost one after the other is given up."""


# Work, and how a worker does it


class Workplace(NamedTuple):
    """What a worker has at hand for all of its work."""

    federation: Federation
    data: dict[str, Samples]
    """The data that models are evaluated on, by name."""


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


def evaluate_batch(workplace: Workplace, tensors: Vectors, name: str, batch: int) -> WorkResult:
    """Compute the outputs of the model for one batch of the data of that name."""
    task = workplace.federation.task
    samples = workplace.data[name]
    task.start_evaluation(tensors["w"], select_prefix("buffers", tensors))
    outputs, targets, loss = task.predict_batch(samples, evaluation_batches(samples)[batch])
    return {"outputs": outputs, "targets": targets}, loss


class WorkAnswer(NamedTuple):
    """What a worker answers: what came of its work, or the error that ended it."""

    tensors: Vectors
    rest: Any
    seconds: float
    """CPU seconds that it took."""
    error: Exception | None


def do_work(
    workplace: Workplace,
    function: Callable[..., WorkResult],
    arguments: tuple[Any, ...],
    tensors: Vectors,
) -> WorkAnswer:
    """Do a piece of work in this process and return the answer to it."""
    start = time.process_time()
    try:
        results, rest = function(workplace, tensors, *arguments)
    except Exception as error:
        return WorkAnswer({}, None, 0.0, make_picklable(error))
    return WorkAnswer(results, rest, time.process_time() - start, None)


def make_picklable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with its message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__} in a worker: {error}")


# Work, as it is handed out


@dataclass
class Errand:
    """A piece of work that is being done, or waits to be done again."""

    number: int
    """Its place in the order of the results."""
    work: Work
    crashes: int = 0
    """Workers that were lost while they did it."""


@dataclass
class Backlog:
    """The work that nobody does yet: that of lost workers first, then what comes from outside."""

    fresh: Iterator[Errand]
    returned: list[Errand] = field(default_factory=list)

    def has_more(self) -> bool:
        """Return whether there is work left, and fetch it if it must be asked for."""
        if not self.returned:
            self.returned.extend(islice(self.fresh, 1))
        return bool(self.returned)

    def take(self) -> Errand:
        """Return the next piece; `has_more` has said that there is one."""
        return self.returned.pop(0)


class WorkerLost(Exception):
    """A worker is gone, and with it the work that it was doing."""


class CrewMember(ABC):
    """A worker, as the main process sees it."""

    errand: Errand | None = None
    """What it is doing."""

    @abstractmethod
    def send_work(self, work: Work, shared: Vectors) -> None:
        """Let the worker do a piece of work; the crew has shared out the `shared` tensors."""

    @abstractmethod
    def receive_reply(self) -> WorkAnswer:
        """Return the answer, which has come; raise WorkerLost if none ever will."""

    @abstractmethod
    def crash_message(self, work: Work) -> str:
        """Return what a user is told about workers that are lost on a piece of work."""


Member = TypeVar("Member", bound=CrewMember)


class Crew(ABC, Generic[Member]):
    """Workers that train clients and evaluate models: `with Pool(federation, 2) as crew:`.

    Inside, crew.train is the trainer to give to the federation, and crew.compute_outputs takes the
    place of that of the task. `data` are the data sets that models are evaluated on, by what
    messages call them; those of a single batch stay with the main process, because there is nothing
    to share out.
    """

    def __init__(self, federation: Federation, data: Mapping[str, Samples] | None = None) -> None:
        self.federation = replace(federation, trainer=None)
        self.data = {
            name: samples
            for name, samples in (data or {}).items()
            if len(evaluation_batches(samples)) > 1
        }
        self.workers: list[Member] = []
        self.cpu_seconds = 0.0

    @abstractmethod
    def share(self, tensors: Vectors) -> None:
        """Give all workers the tensors that the work to come has in common."""

    @abstractmethod
    def free_worker(self) -> Member | None:
        """Return a worker that could begin at once, or None."""

    @abstractmethod
    def wait_for_workers(self) -> Sequence[Member]:
        """Wait until something happens, and return the busy workers that can be asked for a reply.

        There may be none among them, if a worker became free that had been starting.
        """

    @abstractmethod
    def replace_worker(self, worker: Member) -> None:
        """End a worker, if it has not ended, and put a new one in its place."""

    def describe(self) -> Record:
        """Return what provenance.json says of the workers."""
        return {"workers": len(self.workers)}

    @property
    def packages(self) -> dict[str, str]:
        """Return the versions of further packages that they need."""
        return {}

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
        model = {"w": w} | add_prefix("buffers", buffers)
        works = [
            Work(f"samples {index[0]} to {index[-1]} of {name}", evaluate_batch, (name, i), model)
            for i, index in enumerate(evaluation_batches(samples))
        ]
        return task.join_predictions(
            Predictions(tensors["outputs"], tensors["targets"], loss)
            for tensors, loss in self.perform(works)
        )

    def perform(self, works: Iterable[Work]) -> Iterator[WorkResult]:
        """Let the workers do all the work, and yield the results in its order.

        At most two pieces per worker are being done or wait for the results before them.
        """
        shared, works = find_shared_tensors(works)
        self.share(shared)
        backlog = Backlog(Errand(number, work) for number, work in enumerate(works))
        ready: dict[int, WorkResult] = {}
        next_number = 0
        try:
            while True:
                while (
                    len(self.busy_workers()) + len(ready) < 2 * len(self.workers)
                    and (worker := self.free_worker())
                    and backlog.has_more()
                ):
                    worker.errand = backlog.take()
                    worker.send_work(worker.errand.work, shared)
                if next_number in ready:
                    yield ready.pop(next_number)
                    next_number += 1
                elif self.busy_workers() or backlog.has_more():
                    self.receive_replies(backlog, ready)
                else:
                    return
        finally:
            # If the work was given up half-way (an error, Ctrl-C), nobody may later take its
            # replies for those of other work, nor overwrite a model that is still being read.
            for worker in self.busy_workers():
                self.replace_worker(worker)

    def busy_workers(self) -> list[Member]:
        """Return the workers that are doing something."""
        return [worker for worker in self.workers if worker.errand]

    def receive_replies(self, backlog: Backlog, ready: dict[int, WorkResult]) -> None:
        """Wait for workers and move the results of those that are done to `ready`.

        The work of one that is lost goes back to the backlog. Raise InputError if that was in vain
        too often.
        """
        for worker in self.wait_for_workers():
            errand = worker.errand
            assert errand is not None
            try:
                reply = worker.receive_reply()
            except WorkerLost:
                errand.crashes += 1
                if errand.crashes >= MAX_CRASHES:
                    raise InputError(worker.crash_message(errand.work)) from None
                self.replace_worker(worker)
                backlog.returned.insert(0, errand)
                continue
            worker.errand = None
            if reply.error is not None:
                raise reply.error
            self.cpu_seconds += reply.seconds
            ready[errand.number] = reply.tensors, reply.rest


def find_shared_tensors(works: Iterable[Work]) -> tuple[Vectors, Iterator[Work]]:
    """Return the tensors that the work has in common, and the same work.

    They are those that the first two pieces have under the same name: not equal ones, but the same.
    """
    works = iter(works)
    first = list(islice(works, 2))
    shared: Vectors = {}
    if len(first) == 2:
        shared, _ = split_shared(first[0].tensors, first[1].tensors)
    return shared, chain(first, works)


def split_shared(tensors: Vectors, shared: Vectors) -> tuple[Vectors, Vectors]:
    """Return those of the tensors that are the shared ones of their names, and all others."""
    same = {name: value for name, value in tensors.items() if shared.get(name) is value}
    return same, {name: value for name, value in tensors.items() if name not in same}


def add_prefix(prefix: str, tensors: Vectors) -> Vectors:
    """Return the tensors under names that begin with the prefix."""
    return {f"{prefix} {name}": value for name, value in tensors.items()}


def select_prefix(prefix: str, tensors: Vectors) -> Vectors:
    """Return the tensors whose names begin with the prefix, under their names without it."""
    return {
        k.removeprefix(f"{prefix} "): v for k, v in tensors.items() if k.startswith(f"{prefix} ")
    }
