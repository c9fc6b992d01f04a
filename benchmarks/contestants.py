"""Who takes part in the comparison of rounds, and how their processes are started, rested and judged."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from contenders import workload
from contenders.protocol import Contender, Failed
from environments import FOLDER, ROOT, VARIABLES, python_of
from measuring import Sample, Samples, interleave, progress

from fedwmsam.data import load_dataset, make_partition
from fedwmsam.models import model_factory

ROUNDS = 2
"""In one turn."""
SETTLING = 0.5
"""Seconds from waking a contender to its turn: Ray's processes have missed things to catch up with."""
ACCURACY = (0.75, 0.92)
"""After six rounds and more everyone is well inside; who trains less or wrongly is not."""


@dataclass(frozen=True)
class Entry:
    title: str
    command: str
    processes: int
    peer: str | None = None
    """Whose environment it needs."""

    @property
    def base(self) -> str:
        """What it is compared with: this library on as many processes."""
        return f"fedwmsam-{self.processes}"


ENTRIES: dict[str, Entry] = {
    "fedwmsam-1": Entry("**fedwmsam, 1 worker**", "ours.py", 1),
    "plain": Entry("plain PyTorch loop", "plain.py", 1),
    "pfl-1": Entry("pfl-research", "pfl_research.py", 1, "pfl"),
    "bare-1": Entry("limit: bare loop", "bare.py", 1),
    "bare-by-hand": Entry("limit: bare loop, gradient by hand", "bare.py --by-hand", 1),
    "fedwmsam-2": Entry("**fedwmsam, 2 workers**", "ours.py --workers 2", 2),
    "pfl-2": Entry("pfl-research, 2 processes", "together.py 2 pfl_research.py", 2, "pfl"),
    "flower-resident": Entry(
        "Flower on Ray, resident data", "flower_server.py resident", 2, "flower"
    ),
    "flower-loader": Entry(
        "Flower on Ray, a DataLoader a call", "flower_server.py loader", 2, "flower"
    ),
    "bare-2": Entry("limit: two bare loops at once", "together.py 2 bare.py --share 2", 2),
}


class Contestant:
    """A contender that takes turns: it is stopped while others run, and what it did is checked."""

    def __init__(self, name: str) -> None:
        self.name, entry = name, ENTRIES[name]
        python = python_of(entry.peer) if entry.peer else sys.executable
        script, *rest = entry.command.split()
        environment = dict(os.environ) | VARIABLES | {"OMP_NUM_THREADS": "1"}
        if entry.peer:
            environment.pop("PYTHONPATH", None)  # this project's packages are not theirs
        log = FOLDER / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            self.contender = Contender(
                [python, ROOT / "benchmarks" / "contenders" / script, *rest], environment, file
            )
        try:
            self.contender.receive()
        except (
            BaseException
        ):  # also when the benchmark itself is told to end: nobody else knows of the process yet
            self.contender.close(patience=0)
            raise
        self.contender.signal(signal.SIGSTOP)

    def turn(self) -> Sample:
        with self.awake():
            answer = self.contender.ask(f"go {ROUNDS}")
        expected = ROUNDS * workload.COHORT * workload.STEPS
        if answer["steps"] != expected:
            raise Failed(f"took {answer['steps']:.0f} local steps instead of {expected}")
        return Sample(answer["wall"] / ROUNDS, answer["cpu"] / ROUNDS)

    def accuracy(self) -> float:
        with self.awake():
            found = self.contender.ask("accuracy")["accuracy"]
        if not ACCURACY[0] <= found <= ACCURACY[1]:
            raise Failed(
                f"reached a test accuracy of {found:.4f}, expected {ACCURACY[0]} to {ACCURACY[1]}"
            )
        return found

    def close(self) -> None:
        self.contender.signal(signal.SIGCONT)
        self.contender.close()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        self.contender.signal(signal.SIGCONT)
        time.sleep(SETTLING)
        yield
        self.contender.signal(signal.SIGSTOP)


def compare(names: Sequence[str], repeats: int) -> tuple[Samples, dict[str, float], dict[str, str]]:
    """Times and accuracies of all who did their work, and why the others did not."""
    write_workload()
    failures = install(names)
    contestants: dict[str, Contestant] = {}
    accuracies: dict[str, float] = {}
    try:
        for name in (name for name in names if name not in failures):
            progress(f"starting {name}")
            with noting(failures, name):
                contestants[name] = Contestant(name)
        turns = {name: contestant.turn for name, contestant in contestants.items()}
        samples, wrong = interleave("rounds", turns, repeats)
        for name in samples:
            with noting(wrong, name):
                accuracies[name] = contestants[name].accuracy()
    finally:
        for contestant in contestants.values():
            contestant.close()
    return samples, accuracies, failures | wrong


def install(names: Sequence[str]) -> dict[str, str]:
    """The peers' environments, before anything is timed; who cannot take part, and why."""
    failures: dict[str, str] = {}
    for peer in {ENTRIES[name].peer for name in names} - {None}:
        try:
            python_of(peer)
        except Failed as reason:
            failures |= {name: str(reason) for name in names if ENTRIES[name].peer == peer}
    return failures


@contextlib.contextmanager
def noting(failures: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except Failed as reason:
        failures[name] = str(reason)
        progress(f"{name} {reason}")


def write_workload() -> None:
    """Written anew each time: the data set or the model may have changed."""
    data = load_dataset("fashion-mnist")
    inputs, labels = data.prepared(data.train)
    dealt = make_partition("iid", labels.numpy(), workload.CLIENTS, 0, data.classes, None)
    rows = torch.stack([torch.from_numpy(rows) for rows in dealt.clients])
    assert rows.shape == (workload.CLIENTS, workload.SAMPLES)
    test_inputs, test_labels = data.prepared(data.test)
    torch.manual_seed(0)
    model = model_factory("mlp", data.input_shape, data.classes)()
    workload.FILE.parent.mkdir(exist_ok=True)
    content = workload.Workload(inputs[rows], labels[rows], test_inputs, test_labels, model)
    torch.save(vars(content), workload.FILE)
