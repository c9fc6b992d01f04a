"""Workers change how long a run takes and nothing else."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import killed_run
from helpers.small_federation import (
    MislabelledDataset,
    limit_file_size,
    make_federation,
    run_rounds,
)

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.engine.shared_memory import SharedMemoryBlock
from fedwmsam.engine.workers import Pool
from fedwmsam.methods import METHODS, FedWMSAM
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task


def workers_of(process: int) -> list[int]:
    """Return the worker processes that a process has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [
        int(c) for c in children if b"engine.workers" in Path(f"/proc/{c}/cmdline").read_bytes()
    ]


def has_ended(process: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition, seconds=20.0):
    """Wait until the condition is true, but not for longer; return whether it is."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def make_picklable_federation(method, kind="batchnorm"):
    """Return a federation whose network is pickled as it is: no lambda reaches the workers."""
    task = Task(make_network(kind), OBJECTIVES["classification"])
    return replace(make_federation(method, sizes=(8, 14, 6, 11, 7)), task=task)


def make_network(kind):
    torch.manual_seed(0)
    hidden = torch.nn.BatchNorm1d(6) if kind == "batchnorm" else torch.nn.Dropout(0.4)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6), hidden, torch.nn.ReLU(), torch.nn.Linear(6, 3)
    ).double()


def run_on_workers(pool, federation, rounds):
    """Return the state after so many rounds on the pool, and their records."""
    state = first_state(federation)
    records = []
    for _ in range(rounds):
        state, record = run_round(replace(federation, trainer=pool.train), state)
        records.append(record)
    return state, records


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("kind", ["batchnorm", "dropout"])
def test_results_are_identical_and_a_dead_worker_changes_nothing(kind):
    federation = make_picklable_federation(FedWMSAM(), kind)
    states, expected_records = run_rounds(federation, 4)
    expected = states[-1]
    with Pool(federation, 2) as pool:
        state, records = run_on_workers(pool, federation, 2)
        os.kill(pool.workers[0].process.pid, signal.SIGKILL)
        for _ in range(2):
            state, record = run_round(replace(federation, trainer=pool.train), state)
            records.append(record)
        assert pool.cpu_seconds > 0
    assert same(state.server, expected.server) and same(state.buffers, expected.buffers)
    assert all(same(state.memory.get(k), row) for k, row in expected.memory.items())
    assert records == expected_records


def test_methods_that_send_more_than_one_vector_have_identical_results():
    """FedSMOO keeps several vectors, MimeLite sends two vectors up and needs a full gradient."""
    for name in ("fedsmoo", "mimelite"):
        federation = make_picklable_federation(METHODS[name](), "dropout")
        with Pool(federation, 2) as pool:
            state, _ = run_on_workers(pool, federation, 2)
        assert same(state.server, run_rounds(federation, 2)[0][-1].server), name


def test_a_round_given_up_half_way_leaves_no_result_behind():
    federation = make_picklable_federation(FedWMSAM())
    with Pool(federation, 2) as pool:
        on_workers = replace(federation, trainer=pool.train)
        state = first_state(federation)
        with pytest.raises(ZeroDivisionError):
            run_round(on_workers, state, lambda *_: 1 / 0)
        again, _ = run_round(on_workers, state)
    assert same(again.server, run_rounds(federation, 1)[0][-1].server)


def test_an_error_in_a_worker_is_the_users_error():
    clients = [*list(killed_run.make_clients())[:7], MislabelledDataset()]
    with pytest.raises(InputError, match="Client 7"):
        fedwmsam.fit(torch.nn.Linear(8, 3), clients, rounds=2, participation=1.0, workers=2)


def test_what_cannot_be_sent_is_refused_before_a_process_starts():
    data = list(killed_run.make_clients())
    lock = threading.Lock()

    def loss(outputs, targets):
        with lock:
            return torch.nn.functional.cross_entropy(outputs, targets)

    before = workers_of(os.getpid())
    with pytest.raises(InputError, match=r"another process \(.*lock.*\); .*workers=1"):
        fedwmsam.fit(torch.nn.Linear(8, 3), data, loss=loss, rounds=1, workers=2)
    assert workers_of(os.getpid()) == before


SCRIPT = """
import torch
from torch import nn
import fedwmsam

print("once")
generator = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=generator)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return scale(self.layer(x))


def scale(outputs):
    return 2 * outputs


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, row):
        return X[row], int(X[row, 0] > 0)


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def load(client):
    return X[20 * client : 20 * client + 20], (X[20 * client : 20 * client + 20, 0] > 0).long()


settings = dict(loss=loss, metrics={"right": lambda o, t: (o.argmax(1) == t).float().mean()})
settings |= dict(rounds=2, participation=1.0, test=load(0))
for clients in (dict(clients=load, client_count=3), dict(clients=[Rows(), load(1)])):
    for workers in (1, 2):
        result = fedwmsam.fit(Model, **clients, workers=workers, **settings)
        print(workers, result.rows)
"""


def test_a_script_needs_neither_modules_nor_a_guard(tmp_path):
    """Its classes, functions and lambdas reach the workers, which do not run the script again."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == "once" and done.stderr == ""
    numbers = [line.partition(" ")[2] for line in lines]
    assert [line[0] for line in lines] == ["1", "2", "1", "2"]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(tmp_path, sent):
    arguments = [
        "run",
        "--rounds",
        "5000",
        "--workers",
        "2",
        "--out",
        tmp_path,
        "--name",
        "r",
        "-q",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedwmsam", *arguments], stderr=subprocess.DEVNULL
    )
    try:
        metrics = tmp_path / "r" / "metrics.jsonl"
        assert wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, 90)
        workers = workers_of(process.pid)
        assert len(workers) == 2
        process.send_signal(sent)
        process.wait(timeout=60)
    finally:
        process.kill()
    assert wait_until(lambda: all(map(has_ended, workers)))


def test_the_command_line_gives_the_same_bytes_with_any_number_of_workers(cli, tmp_path):
    for workers in ("1", "3"):
        arguments = [
            "--rounds",
            "4",
            "--workers",
            workers,
            "--out",
            tmp_path,
            "--name",
            workers,
            "-q",
        ]
        assert cli("run", *arguments).code == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        contents = [(tmp_path / workers / name).read_bytes() for workers in ("1", "3")]
        assert contents[0] == contents[1]
    assert cli("run", "--workers", "many").code == 2
    assert cli("run", "--workers", "-1").code == 2


def test_a_block_grows_and_is_seen_from_the_other_side():
    writer = SharedMemoryBlock()
    reader = SharedMemoryBlock(os.dup(writer.descriptor))
    for size in (3, 5000, 7):
        sent = {
            "a": torch.arange(size, dtype=torch.float32),
            "b": torch.tensor(size),
            "none": torch.empty(0, 4),
        }
        assert same(reader.read(writer.write(sent)), sent)
        assert reader.view(writer.write(sent)["a"]).data_ptr() % 64 == 0
    writer.close()
    reader.close()


def test_shared_memory_is_allocated_when_it_is_mapped():
    """Otherwise a full /dev/shm would end the process by a signal, at the first write."""
    block = SharedMemoryBlock()
    block.map_bytes(1 << 20)
    assert os.fstat(block.descriptor).st_blocks * 512 >= 1 << 20
    with limit_file_size(1 << 20), pytest.raises(OSError, match="File too large: '/dev/shm'"):
        block.map_bytes(1 << 21)
    block.close()
