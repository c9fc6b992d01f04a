"""The strategy on a Flower without processes.

It gives the results of the simulator, and survives every fault.
"""

import logging
import pickle
import threading
from dataclasses import replace
from importlib import import_module

import flwr
import pytest
import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from helpers.flower_in_process import (
    CLIENTS,
    SETTINGS,
    FakeGrid,
    error_reply,
    load_data,
    load_test,
    network,
    no_reply,
    with_entries,
    with_vectors,
)
from torch import nn

import fedwmsam
from fedwmsam.engine.provenance import read_sessions
from fedwmsam.engine.rounds import ClientFailure, train_client
from fedwmsam.errors import InputError
from fedwmsam.flower import (
    FlowerStrategy,
    TooFewReplies,
    exchange,
    from_run_config,
    make_client_app,
)
from fedwmsam.flower import client as client_side
from fedwmsam.methods import METHODS, FedAvg, FedWMSAM, make_method

TEST = load_test(0, {})


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(exchange, "TTL_MARGIN", 0.2)


@pytest.fixture
def flower_log(caplog):
    caplog.set_level(logging.INFO, logger="flwr.fedwmsam")
    return caplog


def make_strategy(method=None, model=network, **keywords):
    defaults = {"clients": CLIENTS, "test": TEST, "wait": 0.05, "timeout": 0.2} | SETTINGS
    return FlowerStrategy(method or FedWMSAM(), model, **defaults | keywords)


def fit(method=None, model=network, **keywords):
    data = [load_data(client, {}) for client in range(CLIENTS)]
    return fedwmsam.fit(model, data, method or FedWMSAM(), test=TEST, **SETTINGS | keywords)


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def simulate_without(missing, method=None):
    """Return the simulator's run in which these results, {(round, client)}, never came."""
    reference = make_strategy(method)
    run = reference.run
    data = [load_data(client, {}) for client in range(CLIENTS)]
    clients = reference.adapter.to_clients(data, None)

    def trainer(federation, jobs):
        for job in jobs:
            if (job.info.round + 1, job.client) in missing:
                yield job, ClientFailure("", rejected=False)
            else:
                yield job, train_client(federation, job)

    run.federation = replace(run.federation, clients=clients, trainer=trainer)
    run.extra_columns = None
    run.execute()
    return run


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_simulator_s_numbers(name):
    ours = make_strategy(make_method(name))
    ours.start(FakeGrid())
    theirs = fit(make_method(name))
    assert_same(ours.result.model, theirs.model)
    assert ours.result.rows == theirs.rows


def test_buffers_and_sizes_count_as_in_the_simulator():
    def model():
        return nn.Sequential(
            nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, 3)
        )

    settings = {"averaging": "size", "last_batch": "merge"}  # one sample would be left over
    ours = make_strategy(FedAvg(), model, sizes="reported", **settings)
    ours.start(FakeGrid(make_client_app(model, load_data)))
    assert_same(ours.result.model, fit(FedAvg(), model, **settings).model)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "lr": 0.01, "lr_schedule": "cosine", "lr_warmup": 1},
        {"momentum": 0.9, "local_steps": 3, "last_batch": "drop"},
        {"optimizer": "nesterov", "momentum": 0.5, "micro_batch": 4, "precision": "bf16"},
    ],
    ids=str,
)
def test_local_training_is_that_of_the_simulator(settings):
    ours = make_strategy(**settings)
    ours.start(FakeGrid())
    theirs = fit(**settings)
    assert_same(ours.result.model, theirs.model)
    assert ours.result.rows == theirs.rows


def test_the_averaged_twin_is_that_of_the_simulator():
    ours = make_strategy(twin=8.0)
    ours.start(FakeGrid())
    theirs = fit(twin=8.0)
    assert_same(ours.result.averaged_model, theirs.averaged_model)
    assert ours.result.last("averaged_accuracy") == theirs.last("averaged_accuracy")


def test_robust_aggregation_counts_as_in_the_simulator():
    ours = make_strategy(FedAvg(), aggregation="median")
    ours.start(FakeGrid())
    assert_same(ours.result.model, fit(FedAvg(), aggregation="median").model)


def test_an_app_that_was_sent_to_another_process_answers_the_same():
    grid = FakeGrid(pickle.loads(pickle.dumps(make_client_app(network, load_data))))
    ours = make_strategy()
    ours.start(grid)
    assert_same(ours.result.model, fit().model)


def test_flower_s_own_loop_drives_it_too():
    ours = make_strategy()
    result = Strategy.start(ours, FakeGrid(), ArrayRecord(network().state_dict()), num_rounds=3)
    assert_same(result.arrays.to_torch_state_dict(), fit().model)
    assert result.train_metrics_clientapp[3]["accuracy"] == fit().last("accuracy")


def with_length(count):
    return with_vectors(lambda up: {"delta": torch.zeros(count)})


def with_a_nan(up):
    up["delta"][5] = torch.nan
    return up


def empty_reply(message, honest_reply):
    return Message(RecordDict(), reply_to=message)


def reply_without_arrays(message, honest_reply):
    reply = honest_reply()
    del reply.content["vectors"]
    return reply


FAULTS = {
    "wrong length": (with_length(7), True),
    "no length": (with_length(0), True),
    "NaN": (with_vectors(with_a_nan), True),
    "infinite": (with_vectors(lambda up: {"delta": up["delta"] / 0}), True),
    "stale round": (with_entries(round=0), True),
    "another client": (with_entries(client=0), True),
    "another version": (with_entries(version=99), True),
    "text for a number": (with_entries(loss="small"), True),
    "unknown vector": (with_vectors(lambda up: up | {"more": up["delta"]}), True),
    "empty": (empty_reply, True),
    "without arrays": (reply_without_arrays, True),
    "client raises": (error_reply, False),
    "no answer": (no_reply, False),
}
"""Names of faults → the fault, and whether the reply is rejected (otherwise it is missing)."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_left_out_and_counted(fault, flower_log):
    function, is_rejected = FAULTS[fault]
    grid = FakeGrid()
    ours = make_strategy()
    victim = ours.run.federation.schedule.cohort(1)[1]
    grid.faults[2, victim] = function
    ours.start(grid)
    row = ours.result.rows[1]
    assert row["cohort"] == 2 and row["rejected" if is_rejected else "missing"] == [victim]
    assert f"Round 2 goes on without client {victim}: " in flower_log.text
    expected = simulate_without({(2, victim)})
    assert_same(ours.result.model, expected.model())
    assert_memory(ours.run, expected)


def assert_memory(ours, theirs):
    """Assert that both servers remember the same of each client."""
    assert set(ours.state.memory) == set(theirs.state.memory)
    for client in ours.state.memory:
        assert_same(ours.state.memory[client], theirs.state.memory[client])


def test_a_reply_after_its_deadline_is_named_and_not_used(flower_log):
    grid = FakeGrid()
    ours = make_strategy()
    victim = ours.run.federation.schedule.cohort(0)[0]
    late_replies = []

    def reply_late(message, honest_reply):
        late_replies.append((message.metadata.message_id, honest_reply()))

    def push_after_late_replies(messages, push=grid.push_messages):
        if late_replies and messages[0].metadata.group_id == "2":
            grid.replies.update([late_replies.pop()])
        return push(messages)

    grid.faults[1, victim] = reply_late
    grid.push_messages = push_after_late_replies
    ours.start(grid)
    assert f"not used: client {victim}, round 1" in flower_log.text
    assert_same(ours.result.model, simulate_without({(1, victim)}).model())


def test_with_a_grace_the_quorum_does_not_wait_for_the_deadline():
    grid = FakeGrid()
    ours = make_strategy(timeout=1e6, grace=0.05)
    victim = ours.run.federation.schedule.cohort(0)[2]
    grid.faults[1, victim] = no_reply
    ours.start(grid)
    assert ours.result.rows[0]["missing"] == [victim]


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"timeout": 0.15}, "timeout = 0.15 s"),
        ({"timeout": 20, "grace": 0.05}, "grace = 0.05 s after the quorum"),
        ({"timeout": 0.15, "grace": 20}, "timeout = 0.15 s"),
        ({"timeout": 0.15, "grace": 0.05, "quorum": 1.0}, "timeout = 0.15 s"),
    ],
    ids=str,
)
def test_a_missing_reply_names_the_limit_that_applied(limits, named, flower_log):
    grid = FakeGrid()
    ours = make_strategy(**limits)
    victim = ours.run.federation.schedule.cohort(0)[2]
    grid.faults[1, victim] = lambda *_: grid.faults.clear()  # no answer, once
    ours.start(grid)
    assert f"client {victim}: no answer within {named}" in flower_log.text


def test_flower_s_own_loop_names_its_limit(flower_log):
    grid = FakeGrid()
    ours = make_strategy()
    victim = ours.run.federation.schedule.cohort(0)[2]
    grid.faults[1, victim] = no_reply
    Strategy.start(ours, grid, ArrayRecord(network().state_dict()), num_rounds=1)
    assert f"client {victim}: no answer within the timeout of Flower's loop" in flower_log.text


def test_a_message_that_outlived_its_ttl_says_so(flower_log):
    grid = FakeGrid()
    grid.node_faults["query.whoami", 1002] = lambda message, _: Message(
        Error(3, "Error: Message Unavailable - The requested …"), reply_to=message
    )
    make_strategy().start(grid)
    reason = "error 3: no answer within the ttl of the message"
    assert f"Node 1002 cannot take part: {reason}" in flower_log.text


IMPORT_ERROR = "import error: the module 'scans.readers' is missing on this client"


def test_a_module_that_a_client_lacks_is_named(flower_log):
    def load_with_import(partition, node_config):
        if partition == 2:
            import_module("scans.readers")
        return load_data(partition, node_config)

    def deny(message, honest_reply):
        text = "<class 'ModuleNotFoundError'>:<'No module named 'scans.readers''>"
        return Message(Error(2, text), reply_to=message)

    grid = FakeGrid()
    grid.node_faults["query.whoami", 1002] = deny
    ours = make_strategy(participation=1.0)
    ours.start(grid)
    assert f"Node 1002 cannot take part: {IMPORT_ERROR}" in flower_log.text
    absence = "not connected, but a node cannot take part"
    assert f"client 2: {absence}: {IMPORT_ERROR}; install it" in flower_log.text

    flower_log.clear()
    with pytest.raises(TooFewReplies):
        make_strategy(quorum=1.0, participation=1.0).start(
            FakeGrid(make_client_app(network, load_with_import))
        )
    assert "Node 1002 cannot take part: import error: the module 'scans' is" in flower_log.text


def test_a_client_that_fails_to_import_in_a_round_is_told_from_one_that_raises(flower_log):
    grid = FakeGrid()
    ours = make_strategy()
    first, second, _ = ours.run.federation.schedule.cohort(1)
    reasons = {
        first: "<class 'ModuleNotFoundError'>:<'No module named 'scans.readers''>",
        second: "<class 'ImportError'>:<'cannot import name 'x' from 'scans''>",
    }
    for client, text in reasons.items():
        grid.faults[2, client] = lambda message, _, text=text: Message(
            Error(2, text), reply_to=message
        )
    ours = make_strategy(quorum=0.3)
    ours.start(grid)
    assert f"without client {first}: {IMPORT_ERROR}" in flower_log.text
    expected = f"without client {second}: import error: cannot import name 'x' from 'scans'"
    assert expected in flower_log.text


def test_a_message_that_a_restarted_node_has_lost_is_not_waited_for(flower_log, monkeypatch):
    monkeypatch.setattr(exchange, "SILENCE_SECONDS", 0.1)
    grid = FakeGrid()
    ours = make_strategy(timeout=15)
    victim = ours.run.federation.schedule.cohort(1)[0]

    def restart(message, honest_reply):
        monkeypatch.setattr(client_side, "launcher_process_id", lambda: "another process")

    grid.faults[2, victim] = restart
    ours.start(grid)
    assert ours.result.rows[1]["missing"] == [victim]
    failure = f"Round 2 goes on without client {victim}: "
    assert failure + "its node was restarted and has lost the order" in flower_log.text
    assert_same(ours.result.model, simulate_without({(2, victim)}).model())


def test_a_message_or_reply_that_is_lost_on_the_way_is_not_waited_for(flower_log, monkeypatch):
    monkeypatch.setattr(exchange, "SILENCE_SECONDS", 0.1)
    grid = FakeGrid()
    ours = make_strategy(timeout=15)
    victim = ours.run.federation.schedule.cohort(1)[0]
    grid.faults[2, victim] = no_reply
    ours.start(grid)
    assert ours.result.rows[1]["missing"] == [victim]
    failure = f"Round 2 goes on without client {victim}: "
    assert failure + "the order or its answer was lost on the way" in flower_log.text
    assert_same(ours.result.model, simulate_without({(2, victim)}).model())


def test_a_reply_that_arrives_together_with_the_next_one_is_used(monkeypatch):
    monkeypatch.setattr(exchange, "SILENCE_SECONDS", 0.05)
    grid = FakeGrid()
    ours = make_strategy(timeout=15)
    victim = ours.run.federation.schedule.cohort(1)[0]
    held_back = {}

    def hold_back(message, honest_reply):
        held_back[message.metadata.message_id] = honest_reply()

    def reply_to_both(message, honest_reply):
        grid.replies.update(held_back)
        return honest_reply()

    grid.faults[2, victim] = hold_back
    grid.node_faults["query.whoami", 1000 + victim] = reply_to_both
    ours.start(grid)
    assert held_back
    assert_same(ours.result.model, fit().model)


def test_a_slow_node_is_waited_for_where_replies_have_no_order(monkeypatch):
    monkeypatch.setattr(exchange, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(client_side, "launcher_process_id", lambda: "")  # as in a simulation
    grid = FakeGrid()
    ours = make_strategy(timeout=15)
    victim = ours.run.federation.schedule.cohort(1)[0]

    def reply_slowly(message, honest_reply):
        reply = {message.metadata.message_id: honest_reply()}
        threading.Timer(0.5, grid.replies.update, [reply]).start()

    grid.faults[2, victim] = reply_slowly
    ours.start(grid)
    types = [message.metadata.message_type for message in grid.sent]
    assert types.count("query.whoami") == CLIENTS + 1
    assert_same(ours.result.model, fit().model)


def test_below_the_quorum_clients_are_asked_again():
    grid = FakeGrid()
    ours = make_strategy(quorum=1.0)
    cohort = ours.run.federation.schedule.cohort(1)
    victim = cohort[0]

    def no_reply_once(message, honest_reply):
        del grid.faults[2, victim]

    grid.faults[2, victim] = no_reply_once
    ours.start(grid)
    assert sorted(grid.asked_clients(2)) == sorted([*cohort, victim])
    assert_same(ours.result.model, fit().model)


def test_without_a_quorum_the_run_stops_and_a_new_one_goes_on(tmp_path):
    grid = FakeGrid()
    first = make_strategy(quorum=1.0, run_folder=tmp_path / "run")
    grid.faults[3, first.run.federation.schedule.cohort(2)[0]] = error_reply
    reason = "Round 3 got 2 usable answers of 3 clients and needs 3"
    with pytest.raises(TooFewReplies, match=reason):
        first.start(grid)
    second = make_strategy(quorum=1.0, run_folder=tmp_path / "run")
    grid = FakeGrid()
    second.start(grid)
    assert grid.asked_clients(1) == grid.asked_clients(2) == [] and len(grid.asked_clients(3)) == 3
    assert_same(second.result.model, fit().model)
    assert second.result.rows == fit().rows
    sessions = read_sessions(tmp_path / "run")
    assert [session["last_round"] for session in sessions] == [2, second.result.rounds]
    assert sessions[0]["command"][0] == "flower"
    assert sessions[0]["versions"]["Flower"] == flwr.__version__


def test_another_run_s_folder_is_refused(tmp_path):
    make_strategy(run_folder=tmp_path / "run").start(FakeGrid())
    with pytest.raises(InputError, match=r"was run with lr = 0\.1, not 0\.2"):
        make_strategy(run_folder=tmp_path / "run", lr=0.2).start(FakeGrid())


def test_a_node_that_comes_back_under_another_number_is_the_same_client(flower_log):
    grid = FakeGrid()

    def restart(progress):
        grid.nodes = {number + 1000: config for number, config in grid.nodes.items()}

    ours = make_strategy(callbacks=[restart])
    ours.start(grid)
    assert_same(ours.result.model, fit().model)
    assert "Client 0 is no longer connected." in flower_log.text


def test_absent_clients_are_missing_and_nothing_is_sent_to_them():
    grid = FakeGrid()
    ours = make_strategy()
    absent = ours.run.federation.schedule.cohort(0)[0]
    del grid.nodes[1000 + absent]
    ours.start(grid)
    assert ours.result.rows[0]["missing"] == [absent] and absent not in grid.asked_clients(1)
    rounds = [r for r in (1, 2, 3) if absent in ours.run.federation.schedule.cohort(r - 1)]
    assert_same(ours.result.model, simulate_without({(r, absent) for r in rounds}).model())


def test_nodes_that_cannot_take_part_are_told_apart(flower_log):
    grid = FakeGrid()
    grid.nodes |= {
        7: {"partition-id": 0},
        8: {"partition-id": CLIENTS},
        9: {},
        10: {"partition-id": "two"},
    }
    make_strategy(wait=0.5).start(grid)
    assert "Node 1000 cannot take part: node 7 is client 0 already." in flower_log.text
    assert f"it says it is client {CLIENTS}" in flower_log.text
    assert flower_log.text.count("partition-id is") == 2


def test_another_model_is_refused(flower_log):
    def other():
        return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))

    with pytest.raises(TooFewReplies):
        make_strategy().start(FakeGrid(make_client_app(other, load_data)))
    assert "differ from the server's" in flower_log.text


def test_a_client_whose_data_changed_is_asked_again_who_it_is(flower_log, monkeypatch):
    sizes = {}
    # On Flower every message has a process of its own, so that the data are read again.
    monkeypatch.setattr(client_side, "read_samples", client_side.read_samples.__wrapped__)

    def load_current_data(partition, node_config):
        inputs, targets = load_data(partition, node_config)
        return inputs[: sizes.get(partition)], targets[: sizes.get(partition)]

    grid = FakeGrid()
    ours = make_strategy(participation=1.0, callbacks=[lambda progress: sizes.update({3: 20})])
    grid.app = make_client_app(network, load_current_data)
    ours.start(grid)
    assert [row.get("missing") for row in ours.result.rows] == [None, [3], None]
    assert "it is client 3 with 20" in flower_log.text and "with 20 samples" in flower_log.text


def test_clients_evaluate_on_their_own_data():
    ours = make_strategy(evaluate_clients=True)
    ours.start(FakeGrid())
    data = [load_test(client, {}) for client in range(CLIENTS)]
    accuracies = [ours.result.evaluate(samples)["accuracy"] for samples in data]
    assert ours.result.last("clients_accuracy") == pytest.approx(sum(accuracies) / CLIENTS)
    assert ours.result.last("clients_evaluated") == CLIENTS
    assert_same(ours.result.model, fit().model)


def largest_output(outputs, targets):
    return outputs.max()


OWN = {"largest": largest_output}


def test_an_own_metric_is_reported_for_the_server_s_and_the_clients_data(flower_log):
    ours = make_strategy(
        metrics=OWN, evaluate_clients=True, validation=load_test(1, {}), monitor="-largest"
    )
    app = make_client_app(network, load_data, load_test=load_test, metrics=OWN)
    result = ours.start(FakeGrid(app))
    row = ours.result.rows[-1]
    data = [load_test(client, {}) for client in range(CLIENTS)]
    values = [ours.result.evaluate(samples)["largest"] for samples in data]
    assert row["largest"] == values[0] and row["validation_largest"] == values[1]
    assert row["clients_largest"] == pytest.approx(sum(values) / CLIENTS)
    by_server = result.evaluate_metrics_serverapp[3]
    assert set(by_server) == {"loss", "largest", "validation_loss", "validation_largest"}
    assert by_server["largest"] == row["largest"]
    by_clients = result.evaluate_metrics_clientapp[3]
    assert set(by_clients) == {"clients_loss", "clients_largest"}
    assert by_clients["clients_largest"] == row["clients_largest"]
    for name in ("loss", "largest", "validation_largest", "clients_loss", "clients_largest"):
        assert flower_log.text.count(f", {name} {row[name]:.4f}") == 2  # the round, and the end
    assert "The run is over: completed after 3 rounds: train_loss " in flower_log.text


def test_flower_s_own_loop_reports_an_own_metric_of_the_clients():
    ours = make_strategy(metrics=OWN, evaluate_clients=True)
    app = make_client_app(network, load_data, load_test=load_test, metrics=OWN)
    start = ArrayRecord(network().state_dict())
    result = Strategy.start(ours, FakeGrid(app), start, num_rounds=1)
    assert "clients_largest" in result.evaluate_metrics_clientapp[1]
    assert "largest" in result.train_metrics_clientapp[1]


def test_a_metric_that_the_clients_do_not_know_is_named(flower_log):
    make_strategy(metrics=OWN, evaluate_clients=True).start(FakeGrid())
    assert "The clients report no 'largest'; give make_client_app" in flower_log.text


def test_a_score_of_zero_is_logged(flower_log):
    make_strategy(metrics={"nothing": lambda outputs, targets: outputs.sum() * 0}).start(FakeGrid())
    assert ", nothing 0.0000" in flower_log.text


def test_an_evaluation_that_does_not_come_names_its_limit(flower_log):
    grid = FakeGrid()
    grid.node_faults["evaluate", 1004] = no_reply
    ours = make_strategy(evaluate_clients=True, timeout=0.1)
    ours.start(grid)
    assert ours.result.last("clients_evaluated") == CLIENTS - 1
    assert "Client 4 sent no evaluation within timeout = 0.1 s." in flower_log.text


def test_half_precision_halves_the_traffic_and_reports_its_error():
    ours = make_strategy(transport="float16")
    ours.start(FakeGrid())
    exact = fit()
    row = ours.result.rows[-1]
    assert row["bytes_down"] < 0.52 * exact.rows[-1]["bytes_down"]
    assert row["bytes_up"] < 0.52 * exact.rows[-1]["bytes_up"]
    assert 0 < row["transport_error_up"] < 1e-3 and 0 < row["transport_error_down"] < 1e-3
    for name, value in exact.model.items():
        assert torch.allclose(ours.result.model[name], value, atol=5e-3)


def test_the_initial_arrays_and_the_evaluation_function_of_flower_are_used():
    start = {name: torch.full_like(value, 0.1) for name, value in network().state_dict().items()}
    ours = make_strategy()
    ours.start(
        FakeGrid(),
        ArrayRecord(start),
        num_rounds=1,
        evaluate_fn=lambda number, arrays: MetricRecord({"own": float(len(arrays)) * number}),
    )
    assert ours.result.rounds == 1 and ours.result.last("own") == 4
    assert_same(ours.result.model, fit(initial_weights=start, rounds=1).model)


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"quorum": 0}, "quorum must be"),
        ({"transport": "int8"}, "Unknown transport"),
        ({"clients": 0}, "clients must"),
        ({"run_folder": "here"}, "must be an absolute path"),
        ({"local_epoch": 2}, "Did you mean 'local_epochs'"),
        ({"method": "fedavg"}, "method must be a method"),
        ({"lr": -1}, "lr must be"),
        ({"dropout": 0.3}, "dropout does not apply"),
        ({"dp_noise": 1.0, "dp_clip": 1.0}, "for the simulator"),
        ({"record": "drift"}, "record does not apply"),
        ({"authenticated": "yes"}, "authenticated must be true or false"),
    ],
)
def test_mistakes_are_named(keywords, reason):
    method = keywords.pop("method", FedAvg())
    with pytest.raises(InputError, match=reason):
        make_strategy(method, **keywords)


def test_averaging_by_size_needs_every_client():
    grid = FakeGrid()
    del grid.nodes[1003]
    with pytest.raises(InputError, match="client 3 is missing"):
        make_strategy(averaging="size", sizes="reported").start(grid)


def test_a_run_config_is_read_as_written():
    method, values = from_run_config(
        {"method": "fedwmsam", "rho": 0.05, "local-epochs": 2, "clip-norm": "none"}
    )
    assert method == FedWMSAM(rho=0.05) and values == {"local_epochs": 2, "clip_norm": None}
    with pytest.raises(InputError, match="Did you mean 'fedavg'"):
        from_run_config({"method": "fedavgg"})
