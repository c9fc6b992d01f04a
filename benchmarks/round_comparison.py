"""The comparison of rounds: contenders whose processes are started, paused and checked."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from contenders import workload
from contenders.protocol import ContenderProcess, Failed
from environments import FOLDER, ROOT, VARIABLES, python_of
from measuring import Sample, Samples, interleave, log_progress
from torch import Tensor, nn
from torch.nn import functional

from fedwmsam.data import load_dataset, make_partition
from fedwmsam.models import model_factory
from fedwmsam.models.convolution import Convolution

IMAGE_TESTS = 2000
"""Test images of the convolutional networks."""
WAKE_SECONDS = 0.5
"""Seconds from waking a contender to its turn: Ray's processes have events to catch up with."""


@dataclass(frozen=True)
class ContenderSpec:
    """A contender: its title in the table, and how it is started."""

    title: str
    command: str
    """Script in the folder contenders, with its arguments."""
    processes: int
    environment: str | None = None
    """The environment that it needs, if it is another library."""

    @property
    def base(self) -> str:
        """Return the contender that it is compared with: this library on as many processes."""
        return f"fedwmsam-{self.processes}"


CONTENDERS: dict[str, ContenderSpec] = {
    "fedwmsam-1": ContenderSpec("**fedwmsam, 1 worker**", "ours.py", 1),
    "plain": ContenderSpec("plain PyTorch loop", "plain.py", 1),
    "pfl-1": ContenderSpec("pfl-research", "pfl_research.py", 1, "pfl"),
    "bare-1": ContenderSpec("limit: bare loop", "bare.py", 1),
    "bare-by-hand": ContenderSpec("limit: bare loop, gradient by hand", "bare.py --by-hand", 1),
    "fedwmsam-2": ContenderSpec("**fedwmsam, 2 workers**", "ours.py --workers 2", 2),
    "pfl-2": ContenderSpec("pfl-research, 2 processes", "together.py 2 pfl_research.py", 2, "pfl"),
    "flower-resident": ContenderSpec(
        "Flower on Ray, resident data", "flower_server.py resident", 2, "flower"
    ),
    "flower-loader": ContenderSpec(
        "Flower on Ray, a DataLoader a call", "flower_server.py loader", 2, "flower"
    ),
    "bare-2": ContenderSpec("limit: two bare loops at once", "together.py 2 bare.py --share 2", 2),
}


class Contender:
    """A contender that takes turns: it is paused while others run, and its work is checked."""

    def __init__(self, name: str, model: str) -> None:
        self.name = name
        self.size = workload.ROUND_SIZES[model]
        self.process = start_process(name, model)
        try:
            self.process.receive()
        except BaseException:
            # Also when the benchmark is told to end: nothing else knows of the process yet.
            self.process.close(timeout=0)
            raise
        self.process.signal(signal.SIGSTOP)

    def turn(self) -> Sample:
        """Train some rounds and return the time per round; raise Failed for too few local steps."""
        with self.awake():
            reply = self.process.ask(f"go {self.size.rounds}")
        expected = self.size.rounds * self.size.steps
        if reply["steps"] != expected:
            raise Failed(f"took {reply['steps']:.0f} local steps instead of {expected}")
        return Sample(reply["wall"] / self.size.rounds, reply["cpu"] / self.size.rounds)

    def accuracy(self) -> float:
        """Return the test accuracy of its model; raise Failed if it is not the expected one."""
        with self.awake():
            accuracy = self.process.ask("accuracy")["accuracy"]
        lowest, highest = self.size.accuracy
        if not lowest <= accuracy <= highest:
            raise Failed(
                f"reached a test accuracy of {accuracy:.4f}, expected {lowest} to {highest}"
            )
        return accuracy

    def close(self) -> None:
        """End its processes."""
        self.process.signal(signal.SIGCONT)
        self.process.close()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let its processes run while the block is executed."""
        self.process.signal(signal.SIGCONT)
        time.sleep(WAKE_SECONDS)
        yield
        self.process.signal(signal.SIGSTOP)


def start_process(name: str, model: str) -> ContenderProcess:
    """Start the process of a contender on the workload of a model; its messages go to a file."""
    spec = CONTENDERS[name]
    python = python_of(spec.environment) if spec.environment else sys.executable
    script, *arguments = spec.command.split()
    variables = dict(os.environ) | VARIABLES | {"OMP_NUM_THREADS": "1"}
    variables["BENCH_MODEL"] = model
    if spec.environment:
        variables.pop("PYTHONPATH", None)  # packages of this project are not for other libraries
    log = FOLDER / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        command = [python, ROOT / "benchmarks" / "contenders" / script, *arguments]
        return ContenderProcess(command, variables, file)


def compare(
    model: str, names: Sequence[str], repeats: int
) -> tuple[Samples, dict[str, float], dict[str, str]]:
    """Return the times and accuracies of all that did their work, and why the others did not.

    All of them train this model.
    """
    write_workload(model)
    failures = install(names)
    contenders: dict[str, Contender] = {}
    accuracies: dict[str, float] = {}
    try:
        for name in names:
            if name not in failures:
                log_progress(f"starting {name}")
                with collect_failure(failures, name):
                    contenders[name] = Contender(name, model)
        turns = {name: contender.turn for name, contender in contenders.items()}
        samples, turn_failures = interleave(f"rounds, {model}", turns, repeats)
        failures |= turn_failures
        for name in samples:
            with collect_failure(failures, name):
                accuracies[name] = contenders[name].accuracy()
    finally:
        for contender in contenders.values():
            contender.close()
    return samples, accuracies, failures


def install(names: Sequence[str]) -> dict[str, str]:
    """Install the environments before anything is timed; return who cannot take part, and why."""
    failures: dict[str, str] = {}
    for environment in {CONTENDERS[name].environment for name in names} - {None}:
        try:
            python_of(environment)
        except Failed as reason:
            for name in names:
                if CONTENDERS[name].environment == environment:
                    failures[name] = str(reason)
    return failures


@contextlib.contextmanager
def collect_failure(failures: dict[str, str], name: str) -> Iterator[None]:
    """Add the reason to `failures`, and print it, if the block raises Failed."""
    try:
        yield
    except Failed as reason:
        failures[name] = str(reason)
        log_progress(f"{name} {reason}")


def write_workload(model: str) -> None:
    """Write the file that all contenders read; the data set or the model may have changed."""
    data = load_dataset("fashion-mnist")
    inputs, labels = data.transform_split(data.train)
    test_inputs, test_labels = data.transform_split(data.test)
    clients = workload.ROUND_SIZES[model].clients
    inputs = inputs[: clients * workload.SAMPLES]
    labels = labels[: clients * workload.SAMPLES]
    if model != "mlp":
        inputs = to_cifar_shape(inputs)
        test_inputs = to_cifar_shape(test_inputs[:IMAGE_TESTS])
        test_labels = test_labels[:IMAGE_TESTS]
    partition = make_partition("iid", labels.numpy(), clients, 0, data.num_classes, None)
    rows = torch.stack([torch.from_numpy(rows) for rows in partition.client_indices])
    assert rows.shape == (clients, workload.SAMPLES)
    torch.manual_seed(0)
    network = model_factory(model, tuple(inputs.shape[1:]), data.num_classes)()
    for module in network.modules():
        if isinstance(module, Convolution):
            module.__class__ = nn.Conv2d  # as everybody else has it
    content = workload.Workload(inputs[rows], labels[rows], test_inputs, test_labels, network)
    file = workload.workload_file(model)
    file.parent.mkdir(exist_ok=True)
    torch.save(vars(content), file)


def to_cifar_shape(images: Tensor) -> Tensor:
    """Return grey images of 28 × 28 pixels as three equal channels of 32 × 32, with a margin."""
    return functional.pad(images, (2, 2, 2, 2)).expand(-1, 3, -1, -1).contiguous()
