"""Real Flower: a SuperLink and SuperNodes as processes on this machine.

Each client process takes seconds to start.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers import flower_task
from helpers.flower_deployment import Deployment, Simulation, wait_until
from helpers.loose_modules import load_module

import fedwmsam
from fedwmsam import rng
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.rounds import ClientFailure, train_client
from fedwmsam.experiment.assembly import make_run
from fedwmsam.methods import make_method
from fedwmsam.settings.config import Settings
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task, deterministic_torch

pytestmark = pytest.mark.slow
SIMULATION = Path(sys.prefix) / "simulation" / "bin"
SETTINGS = {"participation": 1.0, "local_epochs": 2, "batch_size": 16, "lr": 0.1, "seed": 5}
GRACE = 30
"""Seconds to wait after the quorum; an honest client needs a few to start."""


def client_data(count=3):
    return [flower_task.load_data(client, {}) for client in range(count)]


def model_of(folder: Path):
    return safetensors.torch.load_file(folder / "model.safetensors")


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def simulate(method, rows):
    """Return the simulator's model after the same rounds, with the same clients missing."""
    with deterministic_torch():
        task = Task(
            flower_task.make_model,
            OBJECTIVES["classification"],
            seed=rng.derive_seed(SETTINGS["seed"], "init"),
        )
        clients = make_data_adapter(task).to_clients(client_data(), None)
        settings = Settings(rounds=len(rows), **SETTINGS)
        run = make_run(settings, make_method(method), task, clients, None, None)

        def trainer(federation, jobs):
            for job in jobs:
                if job.client in left_out(rows[job.info.round]):
                    yield job, ClientFailure("", rejected=False)
                else:
                    yield job, train_client(federation, job)

        run.federation = replace(run.federation, trainer=trainer)
        run.execute()
        return run.model()


def left_out(row):
    return [*row.get("missing", []), *row.get("rejected", [])]


def test_a_secure_deployment_trains_as_the_simulator_and_survives_a_killed_node(tmp_path):
    with Deployment(tmp_path, nodes=3, secure=True) as deployment:
        for method in ("fedavg", "fedwmsam"):
            deployment.finish(method, deployment.run(method, method=method, rounds=3, **SETTINGS))
            fit = fedwmsam.fit(
                flower_task.make_model,
                client_data(),
                method,
                test=flower_task.load_test(),
                rounds=3,
                **SETTINGS,
            )
            assert_same(model_of(tmp_path / method), fit.model)
            assert deployment.metrics(method) == fit.rows
        kill_and_restart(deployment)
        rows = deployment.metrics("killed")
        assert rows[0]["cohort"] == 3 and rows[1]["missing"] == [2] and rows[1]["cohort"] == 2
        assert rows[-1]["cohort"] == 3 and "missing" not in rows[-1]
        assert_same(model_of(tmp_path / "killed"), simulate("fedwmsam", rows))


def kill_and_restart(deployment):
    """Kill client 2 in the middle of round 2, and start it again before the last round."""
    deployment.misbehave(2, {2: "hold"})
    deployment.misbehave(0, {3: "hold"})  # round 3 waits for the restart
    run = deployment.run("killed", method="fedwmsam", rounds=4, **SETTINGS)
    deployment.wait_for_hold(2)
    deployment.kill_node(2)
    deployment.behave(2)
    deployment.restart_node(2)
    deployment.behave(0)
    deployment.finish("killed", run)
    log = deployment.flwr("log", run, "test", "--show")
    # Flower notices that the node is gone, or the node is back before it does and has lost the
    # message.
    failure = "Round 2 goes on without client 2: "
    assert failure + "error 5" in log or failure + "its node was restarted" in log
    assert "Client 2 is connected" in log


def test_a_run_cut_off_by_its_superlink_goes_on_in_a_new_one_and_bad_answers_are_left_out(tmp_path):
    with Deployment(tmp_path, nodes=3) as deployment:
        run_through_a_killed_link(deployment)
        run_with_bad_replies(deployment)


def run_through_a_killed_link(deployment):
    """Let client 1 raise in round 2, and kill the SuperLink in round 3."""
    deployment.misbehave(1, {2: "raise"})
    deployment.misbehave(0, {3: "hold"})
    first = deployment.run("cut", rounds=4, **SETTINGS)
    deployment.wait_for_hold(0)
    assert "the scanner is switched off" in deployment.flwr("log", first, "test", "--show")
    deployment.kill_link()
    deployment.behave(0)
    deployment.start_link()
    deployment.finish("cut", deployment.run("cut", rounds=4, **SETTINGS))
    rows = deployment.metrics("cut")
    assert [row["round"] for row in rows] == [1, 2, 3, 4] and rows[1]["missing"] == [1]
    assert_same(model_of(deployment.folder / "cut"), simulate("fedwmsam", rows))


def run_with_bad_replies(deployment):
    """Let clients send a short, a spoilt and a stale reply, and one after its deadline."""
    deployment.misbehave(0, {1: "short"})
    deployment.misbehave(1, {2: "NaN", 4: "hold"})
    deployment.misbehave(2, {3: "stale"})
    run = deployment.run("bad", rounds=5, grace=GRACE, **SETTINGS)
    wait_until(
        lambda: len(deployment.metrics("bad")) == 4,
        "round 4 does without client 1",
        deployment.assert_running,
    )
    deployment.behave(1)
    deployment.finish("bad", run)
    rows = deployment.metrics("bad")
    assert [row.get("rejected", []) for row in rows] == [[0], [1], [2], [], []]
    assert 1 in rows[3].get("missing", [])
    log = deployment.flwr("log", run, "test", "--show")
    for reason in (
        "'delta' is float32",
        "the update is not finite",
        "it is client 2's for round 2",
        "not used: client 1, round 4",
    ):
        assert reason in log
    assert_same(model_of(deployment.folder / "bad"), simulate("fedwmsam", rows))


@pytest.mark.skipif(
    not SIMULATION.exists(), reason="Ray is in an environment that `make test-slow` makes"
)
def test_the_new_app_is_simulated_by_flower_with_the_same_numbers(tmp_path):
    if not Simulation.is_possible():
        pytest.skip("needs a network of its own: unshare --net --map-root-user")
    with Simulation(tmp_path, nodes=3, programs=SIMULATION) as simulation:
        simulation.finish("run", simulation.run("run", rounds=3, **SETTINGS))
        task = load_module(tmp_path / "app" / "app" / "task.py")
    data = [task.load_data(client, {"num-partitions": 3}) for client in range(3)]
    fit = fedwmsam.fit(task.make_model, data, test=task.load_test(), rounds=3, **SETTINGS)
    assert_same(model_of(tmp_path / "run"), fit.model)


def test_messages_as_large_as_a_resnet_pass(tmp_path, capsys):
    with Deployment(tmp_path, nodes=2) as deployment:
        task = tmp_path / "app" / "app" / "task.py"
        task.write_text(task.read_text().replace("LARGE = False", "LARGE = True"))
        deployment.finish("run", deployment.run("run", rounds=2, local_epochs=1, batch_size=8))
        rows = deployment.metrics("run")
        size = sum(value.numel() * 4 for value in model_of(tmp_path / "run").values())
    assert size > 44_000_000
    assert [row["bytes_down"] for row in rows] == [2 * (2 * size + 4)] * 2
    assert [row["bytes_up"] for row in rows] == [2 * size] * 2
    with capsys.disabled():
        print((tmp_path / "run" / "timings.jsonl").read_text(), "peak MB:", deployment.peaks)
