"""Workers change how long a run takes and nothing else."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import killed_run
from helpers.small_federation import Broken, largest_file, make, run

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.engine.workers import Pool, SharedMemoryBlock
from fedwmsam.methods import METHODS, FedWMSAM
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task


def workers_of(process: int) -> list[int]:
    """The worker processes a process has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [
        int(c) for c in children if b"engine.workers" in Path(f"/proc/{c}/cmdline").read_bytes()
    ]


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def eventually(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def federation(method, kind="batchnorm"):
    """Networks are pickled as they are: no lambda reaches the workers."""
    return replace(
        make(method, sizes=(8, 14, 6, 11, 7)),
        task=Task(networks(kind), OBJECTIVES["classification"]),
    )


def networks(kind):
    torch.manual_seed(0)
    hidden = torch.nn.BatchNorm1d(6) if kind == "batchnorm" else torch.nn.Dropout(0.4)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6), hidden, torch.nn.ReLU(), torch.nn.Linear(6, 3)
    ).double()


def states_with(pool, federation, rounds):
    state, records = first_state(federation), []
    for _ in range(rounds):
        state, record = run_round(replace(federation, trainer=pool.train), state)
        records.append(record)
    return state, records


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("kind", ["batchnorm", "dropout"])
def test_the_same_numbers_and_a_dead_worker_changes_nothing(kind):
    one = federation(FedWMSAM(), kind)
    expected, records = run(one, 4)
    with Pool(one, 2) as pool:
        state, found = states_with(pool, one, 2)
        os.kill(pool.workers[0].process.pid, signal.SIGKILL)
        for _ in range(2):
            state, record = run_round(replace(one, trainer=pool.train), state)
            found.append(record)
        assert pool.cpu_seconds > 0
    assert same(state.server, expected[-1].server) and same(state.buffers, expected[-1].buffers)
    assert all(same(state.memory.get(k), row) for k, row in expected[-1].memory.items())
    assert found == records


def test_methods_that_send_more_than_one_vector():
    """Two vectors up, a full gradient, several vectors of memory."""
    for name in ("fedsmoo", "mimelite"):
        one = federation(METHODS[name](), "dropout")
        with Pool(one, 2) as pool:
            state, _ = states_with(pool, one, 2)
        assert same(state.server, run(one, 2)[0][-1].server), name


def test_a_round_given_up_half_way_leaves_no_answer_behind():
    one = federation(FedWMSAM())
    with Pool(one, 2) as pool:
        state = first_state(one)
        with pytest.raises(ZeroDivisionError):
            run_round(replace(one, trainer=pool.train), state, lambda *_: 1 / 0)
        again, _ = run_round(replace(one, trainer=pool.train), state)
    assert same(again.server, run(one, 1)[0][-1].server)


def test_an_error_in_a_worker_is_the_users_error():
    data = list(killed_run.clients())
    with pytest.raises(InputError, match="Client 7"):
        fedwmsam.fit(
            torch.nn.Linear(8, 3), [*data[:7], Broken()], rounds=2, participation=1.0, workers=2
        )


def test_what_cannot_be_sent_is_explained():
    data = list(killed_run.clients())
    loss = lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets)  # noqa: E731
    with pytest.raises(InputError, match="importable module"):
        fedwmsam.fit(torch.nn.Linear(8, 3), data, loss=loss, rounds=1, workers=2)


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(tmp_path, blow):
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
        assert eventually(lambda: metrics.exists() and metrics.stat().st_size > 0, 90)
        workers = workers_of(process.pid)
        assert len(workers) == 2
        process.send_signal(blow)
        process.wait(timeout=60)
    finally:
        process.kill()
    assert eventually(lambda: all(map(gone, workers)))


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
        assert len({(tmp_path / workers / name).read_bytes() for workers in ("1", "3")}) == 1
    assert cli("run", "--workers", "many").code == 2
    assert cli("run", "--workers", "-1").code == 2


def test_a_block_grows_and_is_seen_from_the_other_side():
    here = SharedMemoryBlock()
    there = SharedMemoryBlock(os.dup(here.descriptor))
    for size in (3, 5000, 7):
        sent = {
            "a": torch.arange(size, dtype=torch.float32),
            "b": torch.tensor(size),
            "none": torch.empty(0, 4),
        }
        assert same(there.read(here.write(sent)), sent)
        assert there.view(here.write(sent)["a"]).data_ptr() % 64 == 0
    here.close()
    there.close()


def test_shared_memory_is_taken_when_it_is_asked_for():
    """Otherwise a full /dev/shm would end the process by a signal, at the first write."""
    block = SharedMemoryBlock()
    block.reach(1 << 20)
    assert os.fstat(block.descriptor).st_blocks * 512 >= 1 << 20
    with largest_file(1 << 20), pytest.raises(OSError, match="File too large: '/dev/shm'"):
        block.reach(1 << 21)
    block.close()
