"""Real Flower: a SuperLink and SuperNodes as processes on this machine.

Each client process takes seconds to start.
"""

import json
import ssl
import sys
import time
import tomllib
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from helpers import flower_task
from helpers.flower_deployment import HOST, Deployment, Simulation, UnitDeployment, wait_until
from helpers.flower_parity import SETTINGS, assert_same, client_data, model_of, simulate
from helpers.loose_modules import load_module

import fedwmsam
from fedwmsam.flower.exchange import REFUSED_RETRY_SECONDS
from fedwmsam.flower.keys import fingerprint_of, make_keys
from fedwmsam.report.flower_status import read_status

pytestmark = pytest.mark.slow
SIMULATION = Path(sys.prefix) / "simulation" / "bin"
GRACE = 30
"""Seconds to wait after the quorum; an honest client needs a few to start."""


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


def test_a_registered_node_with_another_key_cannot_be_a_client(tmp_path):
    with Deployment(tmp_path, nodes=3, secure=True, spare_keys=1) as deployment:
        settings = {"method": "fedwmsam", **SETTINGS}
        log = run_with_an_impostor(deployment, settings)
        assert log.count(REFUSED.format(0, fingerprint(tmp_path, 0), fingerprint(tmp_path, 3))) >= 2
        rows = deployment.metrics("bound")
        assert [row.get("missing") for row in rows[:3]] == [None] * 3
        assert [row.get("missing") for row in rows[3:6]] == [[0]] * 3
        assert rows[-1]["cohort"] == 3 and not any("rejected" in row for row in rows)
        assert_same(model_of(tmp_path / "bound"), simulate("fedwmsam", rows))
        keys = json.loads((tmp_path / "bound" / "identities.json").read_text())
        assert keys == {str(node): fingerprint(tmp_path, node) for node in range(3)}
        # The impostor is there from the beginning, but the place is given to another key.
        deployment.kill_node(0)
        identities = tomllib.loads((tmp_path / "keys" / "identities.toml").read_text())
        identities["identities"] = identities["identities"].rpartition(",")[0]
        run = deployment.run("given", rounds=1, **settings | {"wait": 90, **identities})
        deployment.finish("given", run)
        assert deployment.metrics("given")[0]["missing"] == [0]
        assert count_refusals(deployment, run) >= 1
        # A SuperLink that starts anew gives all nodes other numbers, but the keys are the same.
        deployment.start_link_anew()
        for node, claim in ((3, 0), (0, 0), (1, 1), (2, 2)):
            deployment.start_node(node, claim)
        run = deployment.run("bound", rounds=9, authenticated=True, **settings)
        deployment.finish("bound", run)
        rows = deployment.metrics("bound")
        assert len(rows) == 9 and rows[8]["cohort"] == 3
        assert_same(model_of(tmp_path / "bound"), simulate("fedwmsam", rows))


REFUSED = "cannot take part: client {} belongs to the key {}, its own is {}."


def fingerprint(folder, node):
    return fingerprint_of((folder / "keys" / f"node-{node}.pub").read_bytes())


def run_with_an_impostor(deployment, settings):
    """Let node 3 claim to be client 0 while that is there and after it was killed.

    Client 0 is started again for the last rounds. Return the log.
    """
    deployment.misbehave(3, dict.fromkeys(range(1, 9), "NaN"))  # would show if it were asked
    deployment.misbehave(0, {2: "hold"})
    run = deployment.run("bound", rounds=8, authenticated=True, **settings)
    deployment.wait_for_hold(0)
    deployment.start_node(3, claim=0)
    wait_until(lambda: "SuperNode ID" in deployment.log("node-3"), "node 3 is connected")
    deployment.misbehave(1, {3: "hold"})
    deployment.behave(0)
    deployment.wait_for_hold(1)
    wait_until(lambda: "Sent successfully" in deployment.log("node-3"), "node 3 says who it is")
    deployment.forget_hold(0)
    deployment.misbehave(0, {4: "hold"})
    deployment.behave(1)
    deployment.wait_for_hold(0)
    wait_until(lambda: count_refusals(deployment, run) == 1, "node 3 is refused")
    asked_again = time.monotonic() + REFUSED_RETRY_SECONDS
    deployment.forget_hold(1)
    deployment.misbehave(1, {6: "hold"})
    deployment.misbehave(2, {5: "hold"})
    deployment.kill_node(0)
    deployment.behave(0)
    deployment.wait_for_hold(2)
    wait_until(lambda: time.monotonic() > asked_again, "node 3 is asked again")
    deployment.behave(2)
    deployment.wait_for_hold(1)
    wait_until(lambda: count_refusals(deployment, run) >= 2, "node 3 is refused again")
    deployment.restart_node(0)
    deployment.behave(1)
    deployment.finish("bound", run)
    return deployment.flwr("log", run, "test", "--show")


def count_refusals(deployment, run):
    log = deployment.flwr("log", run, "test", "--show")
    return log.count("cannot take part: client 0 belongs to the key")


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


def test_the_units_of_a_new_app_deploy_it_and_its_status_is_shown(tmp_path, cli):
    folder = tmp_path / "flower-runs" / "app"
    with UnitDeployment(tmp_path, nodes=3) as deployment:
        deployment.misbehave(1, {3: "hold"})
        run = deployment.run_unit()
        deployment.wait_for_hold(1)
        shown = read_status(folder)
        assert shown.is_going_on and (shown.round, shown.activity) == (3, "training")
        assert shown.clients[1].answered_round == 2
        assert shown.clients[1].is_training and all(known.node for known in shown.clients.values())
        deployment.behave(1)
        deployment.finish("flower-runs/app", run)
    assert json.loads((folder / "identities.json").read_text()).keys() == {"0", "1", "2"}
    assert "5 of 5 rounds done, completed" in cli("flower", "status", folder).out


@pytest.mark.skipif(not UnitDeployment.nginx, reason="needs nginx")
def test_only_who_is_on_the_server_s_machine_starts_code_and_registers_keys(tmp_path):
    """With the certificate that every node has, and nothing else."""
    with UnitDeployment(tmp_path, nodes=1) as deployment:
        wait_until(lambda: "SuperNode ID" in deployment.log("node-0"), "the node is connected")
        make_keys(tmp_path / "others", ["example.org"], 1)
        for arguments in (
            ["run", tmp_path / "app", "outside"],
            ["supernode", "register", tmp_path / "others" / "node-0.pub", "outside"],
            ["ls", "outside"],
        ):
            with pytest.raises(AssertionError, match="403"):
                deployment.flwr(*arguments)
        authority = ssl.create_default_context(cafile=tmp_path / "keys" / "ca.crt")
        answers = {}
        for path in PATHS:
            connection = HTTPSConnection(HOST, deployment.gate_port, context=authority)
            connection.request("POST", path, b"", {"Content-Type": "application/protobuf"})
            answers[path] = connection.getresponse().status
            connection.close()
        assert answers == PATHS
        assert json.loads(deployment.flwr("ls", "tls", "--format", "json"))["runs"] == []


PATHS = {
    "/v1/fleet/get-run": 401,
    "/v1/control/../fleet/get-run": 401,
    "/v1/control/list-runs": 403,
    "//v1/control/list-runs": 403,
    "/v1/fleet/../control/list-runs": 403,
    "/v1/fleet/..%2fcontrol/list-runs": 403,
    "/v1/fleet/..%252fcontrol/list-runs": 403,
    "/v1/runtime/acquire-task": 403,
    "/docs": 403,
}
"""Paths at the gate → answers to somebody without a key; only nodes' paths reach the SuperLink."""


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
