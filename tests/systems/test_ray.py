"""One round over a Ray cluster of three nodes: the bytes of one process, whatever is lost."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.ray_problem import CLIENTS, Watched, make_clients, make_data
from helpers.small_federation import MislabelledDataset

import fedwmsam
from fedwmsam import InputError

pytestmark = pytest.mark.systems
FILES = ("metrics.jsonl", "clients.json", "model.safetensors", "averaged.safetensors")
STORE = 80_000_000
"""Bytes of a node's object store: the smallest that Ray allows, nearly."""


@pytest.fixture(scope="module")
def cluster():
    """A cluster of three nodes with a core each, two of them without this process."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        node = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        patch.setenv("RAY_ADDRESS", cluster.address)
        cluster.wait_for_nodes()
        yield cluster
        cluster.shutdown()


def run(folder, workers, model, **options):
    """Carry out three rounds of all clients, with evaluation of several batches."""
    settings = {
        "rounds": 3,
        "local_steps": 4,
        "participation": 1.0,
        "twin": 8.0,
        "test": make_data(),
    }
    return fedwmsam.fit(
        model,
        make_clients(),
        workers=workers,
        run_folder=folder,
        progress=False,
        **settings | options,
    )


def assert_same_bytes(folder, other):
    for name in FILES:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The folder of a run in one process."""
    folder = tmp_path_factory.mktemp("expected") / "run"
    run(folder, 1, Watched())
    return folder


def actors():
    """Return the processes of this machine that are our actors."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and b"ray::Desk" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=60.0):
    """Wait until the condition is true, but not for longer; return whether it is."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_three_nodes_leave_the_bytes_of_one_process(cluster, expected, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    run(tmp_path / "run", "ray", Watched(marks, pause=0.15))
    assert_same_bytes(tmp_path / "run", expected)
    assert len({mark.name.split()[0] for mark in marks.iterdir()}) == 3
    (session,) = json.loads((tmp_path / "run" / "provenance.json").read_text())["sessions"]
    assert session["workers"] == 3 and session["nodes"] == 3
    assert session["versions"]["Ray"]
    assert 'workers = "ray"' in (tmp_path / "run" / "config.toml").read_text()
    assert wait_until(lambda: not actors())


def test_an_actor_that_dies_changes_nothing(cluster, expected, tmp_path):
    once = tmp_path / "once"
    once.touch()
    run(tmp_path / "run", "ray:2", Watched(deadly=3, once=once))
    assert not once.exists()
    assert_same_bytes(tmp_path / "run", expected)


def test_a_client_that_kills_every_actor_is_named_and_no_actor_is_left(cluster, tmp_path):
    with pytest.raises(InputError, match="3 actors of Ray were lost on client 'c3'"):
        run(tmp_path / "run", "ray:2", Watched(deadly=3))
    assert wait_until(lambda: not actors())


def test_an_error_in_an_actor_is_the_users_error_and_no_actor_is_left(cluster):
    clients = [*make_clients().values(), MislabelledDataset()]
    model = Watched()
    with pytest.raises(InputError, match=f"Client {CLIENTS}"):
        fedwmsam.fit(model, clients, rounds=2, participation=1.0, workers="ray:2", progress=False)
    assert wait_until(lambda: not actors())


def test_what_no_node_has_room_for_is_refused(cluster):
    with pytest.raises(InputError, match="room for an actor of num_cpus=2"):
        run(None, "ray:2,num_cpus=2", Watched())


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_actor_and_goes_on_elsewhere(cluster, sent, tmp_path):
    program = [sys.executable, "-m", "fedwmsam"]
    options = ["--rounds", "400", "--checkpoint-every", "5", "--out", tmp_path, "--name", "r", "-q"]
    process = subprocess.Popen([*program, "run", "--workers", "ray:2", *options])
    metrics = tmp_path / "r" / "metrics.jsonl"

    def has_begun():
        assert process.poll() is None
        return metrics.exists() and metrics.stat().st_size > 0

    try:
        assert wait_until(has_begun, 90)
        assert actors()
        process.send_signal(sent)
        assert process.wait(timeout=60) == (-9 if sent == signal.SIGKILL else 130)
    finally:
        process.kill()
    assert wait_until(lambda: not actors())
    if sent == signal.SIGINT:
        done = len(metrics.read_text().splitlines())
        resume = [*program, "resume", tmp_path / "r", "--rounds", str(done + 2), "-q"]
        assert subprocess.run([*resume, "--workers", "1"]).returncode == 0
        whole = ["--rounds", str(done + 2), "--out", tmp_path, "--name", "whole", "-q"]
        assert subprocess.run([*program, "run", *whole]).returncode == 0
        assert metrics.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_node_that_is_lost_in_mid_round_changes_nothing(cluster, expected, tmp_path):
    """Last, because one node is missing afterwards."""
    marks = tmp_path / "marks"
    marks.mkdir()
    doomed = list(cluster.worker_nodes)[-1]
    before = []

    def kill_node():
        wait_until(lambda: any(doomed.node_id in mark.name for mark in marks.iterdir()))
        before.extend(marks.iterdir())
        cluster.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=kill_node)
    killer.start()
    run(tmp_path / "run", "ray:3", Watched(marks, pause=0.2))
    killer.join()
    assert_same_bytes(tmp_path / "run", expected)
    lost = {mark.name.split()[1] for mark in before if doomed.node_id in mark.name}
    places = {mark.name.split()[0] for mark in marks.iterdir() if mark.name.split()[1] in lost}
    assert lost and len(places - {doomed.node_id}) > 0
    assert wait_until(lambda: not actors())


def test_without_a_cluster_one_is_started_and_ends_with_the_run(expected, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment |= {"RAY_ADDRESS": "local", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = (
        "import sys; from pathlib import Path; from test_ray import run, Watched; "
        "run(Path(sys.argv[1]), 'ray:2', Watched())"
    )
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    assert subprocess.run(command, env=environment, timeout=120).returncode == 0
    assert_same_bytes(tmp_path / "run", expected)
    assert wait_until(lambda: not actors())


def test_an_address_where_nobody_answers_is_named(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"RAY_ADDRESS=127\.0\.0\.1:1"):
        run(None, "ray:2", Watched())
