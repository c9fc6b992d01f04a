"""With authentication a client belongs to one key, whatever happens to its node."""

import json
import logging
import shutil
import subprocess

import pytest
from helpers.flower_in_process import (
    CLIENTS,
    SETTINGS,
    FakeGrid,
    authenticated_grid,
    error_reply,
    load_test,
    network,
    public_key,
)

from fedwmsam.errors import InputError
from fedwmsam.flower import FlowerStrategy, exchange, from_run_config
from fedwmsam.flower.identities import fingerprint, parse_identities
from fedwmsam.flower.keys import make_keys
from fedwmsam.methods import FedWMSAM

WRONG = 500
"""A node that says it is client 0, and is asked before the others."""
KEYS = {client: fingerprint(public_key(client)) for client in range(CLIENTS)}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(exchange, "TTL_MARGIN", 0.1)
    monkeypatch.setattr(exchange, "REFUSED_RETRY_SECONDS", 0.0)


@pytest.fixture
def flower_log(caplog):
    caplog.set_level(logging.INFO, logger="flwr.fedwmsam")
    return caplog


def make_strategy(**keywords):
    defaults = {"clients": CLIENTS, "test": load_test(0, {}), "wait": 0.05, "timeout": 0.2}
    settings = SETTINGS | {"participation": 1.0, "rounds": 4}
    return FlowerStrategy(FedWMSAM(), network, **defaults | settings | keywords)


def let_in_wrong_node(grid, after_round, leaving=()):
    """Return a callback after which the wrong node is there, and these nodes are not."""

    def change(progress):
        if progress.record["round"] == after_round:
            grid.nodes = {WRONG: {"partition-id": 0}, **grid.nodes}
            grid.public_keys[WRONG] = public_key(WRONG)
            for node in leaving:
                del grid.nodes[node]

    return change


def rounds_sent_to(grid, node):
    messages = [m for m in grid.sent if m.metadata.message_type == "train"]
    return [int(m.metadata.group_id) for m in messages if m.metadata.dst_node_id == node]


def test_another_key_is_refused_beside_the_true_node_after_its_error_and_without_it(flower_log):
    grid = authenticated_grid()
    grid.faults[2, 0] = error_reply
    callbacks = [let_in_wrong_node(grid, 1), remove_node(grid, 1000, after_round=3)]
    ours = make_strategy(authenticated=True, callbacks=callbacks)
    ours.start(grid)
    assert rounds_sent_to(grid, WRONG) == [] and rounds_sent_to(grid, 1000) == [1, 2, 3]
    assert [row.get("missing") for row in ours.result.rows] == [None, [0], None, [0]]
    reason = f"client 0 belongs to the key {KEYS[0]}, its own is {fingerprint(public_key(WRONG))}."
    assert f"Node {WRONG} cannot take part: {reason}" in flower_log.text


def remove_node(grid, node, after_round):
    def remove(progress):
        if progress.record["round"] == after_round:
            del grid.nodes[node]

    return remove


def test_the_true_key_comes_back_under_another_number(flower_log):
    grid = authenticated_grid()

    def restart(progress):
        if progress.record["round"] == 2:
            grid.nodes = {n + 7: config for n, config in grid.nodes.items()}
            grid.public_keys = {n + 7: key for n, key in grid.public_keys.items()}

    ours = make_strategy(authenticated=True, callbacks=[restart])
    ours.start(grid)
    assert not any("missing" in row for row in ours.result.rows)


def test_keys_given_beforehand_hold_from_the_first_round(flower_log):
    grid = authenticated_grid()
    grid.nodes = {WRONG: {"partition-id": 0}, **grid.nodes}
    grid.public_keys[WRONG] = public_key(WRONG)
    ours = make_strategy(identities={0: KEYS[0]})
    ours.start(grid)
    assert rounds_sent_to(grid, WRONG) == [] and rounds_sent_to(grid, 1000) == [1, 2, 3, 4]
    assert "any node can say" not in flower_log.text


def test_a_key_is_one_client_only(flower_log):
    grid = authenticated_grid()
    del grid.nodes[1005]

    def take_another_place(progress):
        grid.nodes[1000] = {"partition-id": 5}
        grid.faults[2, 5] = error_reply

    grid.faults[1, 0] = error_reply
    ours = make_strategy(authenticated=True, callbacks=[take_another_place])
    ours.start(grid)
    reason = f"its key {KEYS[0]} is client 0's, so it is not client 5."
    assert f"Node 1000 cannot take part: {reason}" in flower_log.text


def test_a_node_without_a_key_is_refused(flower_log):
    grid = authenticated_grid()
    del grid.public_keys[1003]
    ours = make_strategy(authenticated=True)
    ours.start(grid)
    assert ours.result.rows[0]["missing"] == [3]
    assert "Node 1003 cannot take part: Flower names no key of it" in flower_log.text


def test_the_run_folder_keeps_the_keys_until_one_is_released(tmp_path, cli, flower_log):
    folder = tmp_path / "run"
    make_strategy(authenticated=True, rounds=2, run_folder=folder).start(authenticated_grid())
    file = folder / "identities.json"
    assert json.loads(file.read_text()) == {str(client): key for client, key in KEYS.items()}
    with pytest.raises(InputError, match="set authenticated=true"):
        make_strategy(rounds=2, run_folder=folder).start(authenticated_grid())
    other = {0: fingerprint(public_key(WRONG))}
    with pytest.raises(InputError, match=r"release it first: fedwmsam flower release .*run 0"):
        make_strategy(identities=other, rounds=2, run_folder=folder).start(authenticated_grid())

    grid = authenticated_grid()
    grid.public_keys[1000] = public_key(WRONG)
    second = make_strategy(authenticated=True, rounds=3, run_folder=folder)
    second.start(grid)
    assert second.result.rows[2]["missing"] == [0]
    assert "client 0 belongs to the key" in flower_log.text

    assert "is not bound to a key" in cli("flower", "release", folder, 77).err
    result = cli("flower", "release", folder, 0)
    assert result.code == 0 and KEYS[0] in result.out
    third = make_strategy(authenticated=True, rounds=4, run_folder=folder)
    third.start(grid)
    assert "missing" not in third.result.rows[3]
    assert json.loads(file.read_text())["0"] == other[0]


def test_a_damaged_file_of_keys_is_named(tmp_path):
    folder = tmp_path / "run"
    make_strategy(authenticated=True, rounds=1, run_folder=folder).start(authenticated_grid())
    (folder / "identities.json").write_text('{"0": "mine"}')
    with pytest.raises(InputError, match="identities must be"):
        make_strategy(authenticated=True, rounds=1, run_folder=folder).start(authenticated_grid())


def test_without_authentication_the_log_says_so_and_places_stay_with_connected_nodes(flower_log):
    grid = FakeGrid()
    grid.faults[2, 0] = error_reply
    ours = make_strategy(callbacks=[let_in_wrong_node(grid, 1)])
    ours.start(grid)
    assert rounds_sent_to(grid, WRONG) == [] and rounds_sent_to(grid, 1000) == [1, 2, 3, 4]
    assert "authenticated=false): any node can say that it is any client." in flower_log.text
    # Once the node has left, nothing tells a restarted node from a wrong one.
    grid = FakeGrid()
    ours = make_strategy(callbacks=[let_in_wrong_node(grid, 1, leaving=[1000])])
    ours.start(grid)
    assert rounds_sent_to(grid, WRONG) == [2, 3, 4]


@pytest.mark.parametrize(
    ("identities", "reason"),
    [
        ("0", "identities must be"),
        ({0: "SHA256:short"}, "identities must be"),
        (7, "identities must be"),
        ({-1: KEYS[0]}, "identities must be"),
        (f"0={KEYS[0]},1={KEYS[0]}", "twice"),
        (f"{CLIENTS}={KEYS[0]}", f"names client {CLIENTS}, but"),
    ],
    ids=["no key", "a short key", "a number", "a negative client", "a key twice", "no such client"],
)
def test_mistakes_in_the_keys_are_named(identities, reason):
    with pytest.raises(InputError, match=reason):
        make_strategy(identities=identities)


def test_keys_are_read_from_every_form_of_a_run_config():
    text = f"0={KEYS[0]}, 1={KEYS[1]}"
    expected = {0: KEYS[0], 1: KEYS[1]}
    assert parse_identities(from_run_config({"identities": text})[1]["identities"]) == expected
    table = {"identities.0": KEYS[0], "identities.1": KEYS[1]}
    assert parse_identities(from_run_config(table)[1]["identities"]) == expected
    assert from_run_config({"identities": "none"})[1] == {"identities": None}


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_fingerprints_are_those_of_ssh_keygen(tmp_path):
    make_keys(tmp_path, ["127.0.0.1"], 2)
    for node, key in parse_identities(identities_in(tmp_path)).items():
        command = ["ssh-keygen", "-lf", tmp_path / f"node-{node}.pub"]
        assert key in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def identities_in(folder):
    return (folder / "identities.toml").read_text().split('"')[1]
