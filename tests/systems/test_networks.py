"""Flower on hosts with addresses of their own, and what happens when the network between fails."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import network_namespaces
from helpers.flower_deployment import wait_until
from helpers.flower_network import HOSTS, SLOW_NODE, NetworkDeployment
from helpers.flower_parity import SETTINGS, assert_same, model_of, simulate
from helpers.network_namespaces import Network

from fedwmsam.report.flower_status import read_status

pytestmark = [
    pytest.mark.systems,
    pytest.mark.skipif(
        bool(network_namespaces.why_not()),
        reason=network_namespaces.why_not() or "namespaces can be made",
    ),
]
RUN = {"method": "fedwmsam", "rounds": 4, "quorum": 0.3, "authenticated": True, **SETTINGS}
SLOW = (0.25, 0.25)
"""Seconds to the SuperLink and back on a slow link: answers come in time."""
SLOW_BACK = (0.0, 4.0)
"""The same on a link that holds the SuperLink's answers long enough to cut one off."""
TOO_SLOW = (4.0, 0.5)
"""The same on a link where an answer, which is several requests, takes longer than the grace. A
request of more than five seconds would be no sign of life to Flower."""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[NetworkDeployment]:
    with (
        Network(HOSTS) as network,
        NetworkDeployment(tmp_path, network, bare_nodes=[1]) as deployment,
    ):
        yield deployment


def test_a_run_outlives_broken_slow_and_moved_links_and_trains_as_the_simulator(deployment):
    """One run of four rounds; each function has a fault or two."""
    run = break_a_link_for_seconds(deployment)
    break_a_link_for_a_minute_and_lose_an_order(deployment, run)
    move_the_superlink(deployment)
    lose_the_database(deployment)
    cut_handshakes(deployment)
    rows = deployment.metrics("run")
    assert [row.get("missing") for row in rows] == [None, [1, 2], [1, 2], None]
    assert_same(model_of(deployment.folder / "run"), simulate("fedwmsam", rows))


def break_a_link_for_seconds(deployment):
    """Break the link of node 1 in round 1, while node 2 is slow: all answers come."""
    deployment.set_delay(*SLOW)
    deployment.misbehave(1, {1: "hold"})
    deployment.misbehave(0, {2: "hold"})
    run = deployment.run("run", **RUN)
    deployment.wait_for_hold(1)
    wait_until(lambda: has_answered(deployment, SLOW_NODE, 1), "the slow node answers")
    deployment.set_delay(*SLOW_BACK)
    deployment.network.unplug("node-1")
    deployment.behave(1)
    wait_until(lambda: "attempt failed" in deployment.log("node-1"), "node 1 cannot answer")
    deployment.forget_hold(1)
    deployment.misbehave(1, {2: "hold"})
    deployment.network.plug_in("node-1")
    return run


def break_a_link_for_a_minute_and_lose_an_order(deployment, run):
    """Break the link of node 1 until Flower gives it up, and cut off what node 2 is sent."""
    wait_until(lambda: deployment.has_fetched(SLOW_NODE, round=2), "node 2 is sent its order")
    deployment.stop_gateway()  # the order is in it
    deployment.set_delay(*SLOW)
    deployment.start_gateway()
    deployment.wait_for_hold(1)
    deployment.network.unplug("node-1")
    deployment.behave(1)
    wait_until(lambda: not deployment.is_online(1), "node 1 is given up")
    time.sleep(5)  # the server app asks twice a second
    deployment.network.plug_in("node-1")
    wait_until(lambda: deployment.is_online(1), "node 1 is back")
    deployment.forget_hold(1)
    deployment.misbehave(1, {3: "hold"})
    deployment.behave(0)
    deployment.wait_for_hold(1)  # it takes part again
    log = read_log(deployment, run)
    assert "Round 2 goes on without client 1: error 5" in log
    assert "Round 2 goes on without client 2: the order or its answer was lost on the way" in log


def move_the_superlink(deployment):
    """Let the SuperLink's machine go in round 3, and go on with its database on another.

    Node 1 has the old address, the others the name. Node 2 is slower than the deadline.
    """
    processes = {node: deployment.nodes[node] for node in (0, SLOW_NODE)}
    deployment.kill_link()
    deployment.network.unplug("server")
    deployment.behave(1)
    deployment.server = "new-server"
    deployment.start_link()
    deployment.name_server()
    deployment.misbehave(SLOW_NODE, {3: "hold"})
    deployment.forget_hold(0)
    deployment.misbehave(0, {4: "hold"})
    started = time.time()
    run = deployment.run("run", **RUN | {"wait": 5, "grace": 6})
    deployment.wait_for_hold(SLOW_NODE)
    wait_until(lambda: has_answered(deployment, 0, 3, since=started), "the quorum has answered")
    deployment.set_delay(*TOO_SLOW)
    deployment.behave(SLOW_NODE)
    deployment.wait_for_hold(0)
    assert deployment.nodes.items() >= processes.items()
    late = "An answer came after its deadline and is not used: client 2, round 3."
    wait_until(lambda: late in read_log(deployment, run), "the slow node's answer comes too late")
    log = read_log(deployment, run)
    assert "Round 3 goes on without client 2: no answer within grace = 6 s after the quorum" in log
    assert "Round 3 goes on without client 1: " in log
    assert "Client 1 is connected" not in log


def lose_the_database(deployment):
    """Start the SuperLink without what it knew in round 4: its nodes end, and are started again."""
    deployment.set_delay(*SLOW)
    deployment.kill_link()
    deployment.database = False
    deployment.start_link()
    connected = [deployment.nodes[node] for node in (0, SLOW_NODE)]
    wait_until(lambda: None not in [node.poll() for node in connected], "the nodes end")
    assert deployment.nodes[1].poll() is None, "it tries the old address for ever"
    deployment.kill_node(1)
    deployment.behave(0)
    deployment.bare_addresses.clear()
    deployment.register_keys()
    for node in range(deployment.count):
        deployment.start_node(node)
    deployment.finish("run", deployment.run("run", **RUN))


def cut_handshakes(deployment):
    """Let a gateway close connections in their handshake: Flower takes it for a wrong certificate.

    So the SuperNode does nothing any more, but goes on running.
    """
    deployment.close_handshakes()
    log = f"node-{SLOW_NODE}"
    wait_until(lambda: "SSL/TLS handshake error" in deployment.log(log), "node 2 gives up")
    time.sleep(2)
    assert deployment.nodes[SLOW_NODE].poll() is None


def has_answered(deployment, client, round, since=0.0):
    """Return whether a client has answered a round, in a run of Flower that started since then."""
    status = read_status(deployment.folder / "run").clients.get(client)
    return status and status.answered_round == round and (status.answered_at or 0) > since


def read_log(deployment, run):
    return deployment.flwr("log", run, "test", "--show")
