"""With averaging by size the operator says whose numbers count, and no node can take over."""

import logging

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from helpers.flower_in_process import CLIENTS, SETTINGS, FakeGrid, load_data, load_test, network
from hypothesis import given
from hypothesis import strategies as st

import fedwmsam
from fedwmsam import toml
from fedwmsam.errors import InputError
from fedwmsam.flower import FlowerStrategy, exchange, wire
from fedwmsam.flower.replies import Evaluation
from fedwmsam.flower.sizes import SizeRule, mean_evaluation
from fedwmsam.methods import FedAvg, FedWMSAM
from fedwmsam.training.local import LocalResult

TRUE_SIZES = [25 + 3 * client for client in range(CLIENTS)]
WANTED = 7.0
"""What the liar wants every weight of the model to be."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(exchange, "TTL_MARGIN", 0.1)


@pytest.fixture
def flower_log(caplog):
    caplog.set_level(logging.INFO, logger="flwr.fedwmsam")
    return caplog


def make_strategy(method=None, **keywords):
    defaults = {"clients": CLIENTS, "test": load_test(0, {}), "wait": 0.05, "timeout": 0.2}
    return FlowerStrategy(method or FedAvg(), network, **defaults | SETTINGS | keywords)


def fit(method=None, **keywords):
    data = [load_data(client, {}) for client in range(CLIENTS)]
    return fedwmsam.fit(
        network, data, method or FedAvg(), test=load_test(0, {}), **SETTINGS | keywords
    )


def assert_same(ours, theirs):
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


class Liar:
    """The node of client 0, which claims 2^40 samples and always sends the model it wants."""

    def __init__(self, strategy):
        self.task = strategy.run.federation.task

    def introduce(self, message, honest_reply):
        reply = honest_reply()
        record = {**reply.content[wire.CONFIG_KEY], "samples": 2**40}
        return Message(RecordDict({wire.CONFIG_KEY: ConfigRecord(record)}), reply_to=message)

    def train(self, message, honest_reply):
        job = wire.unpack_job(message.content, self.task)
        result = LocalResult({"delta": WANTED - job.down["w"]}, {}, loss=1.0, backprops=1)
        return Message(wire.pack_result(job, result, "float32"), reply_to=message)


def weights_after_a_lie(**keywords):
    """Return the model's weights after a round with the liar among all clients."""
    ours = make_strategy(rounds=1, participation=1.0, averaging="size", **keywords)
    grid = FakeGrid()
    liar = Liar(ours)
    grid.node_faults = {
        ("query.whoami", 1000): liar.introduce,
        ("train", 1000): liar.train,
    }
    ours.start(grid)
    return ours.run.state.server["w"]


def test_a_node_takes_over_only_where_the_operator_believes_it(flower_log):
    assert weights_after_a_lie(sizes="reported").sub(WANTED).abs().max() < 1e-4
    assert "a node that reports many samples can take over the model" in flower_log.text
    # Its share is at most 0.25, and the others' weights are below 1.
    assert weights_after_a_lie(largest_share=0.25).max() < 0.25 * WANTED + 0.75
    assert weights_after_a_lie(client_sizes=TRUE_SIZES).max() < 0.2 * WANTED + 0.8
    assert "Client 0 reports 1099511627776 samples; it counts with 25." in flower_log.text


@pytest.mark.parametrize(
    "keywords",
    [
        {"client_sizes": TRUE_SIZES},
        {"client_sizes": ",".join(map(str, TRUE_SIZES))},
        {"largest_share": 0.9},
        {"sizes": "reported"},
    ],
)
def test_honest_clients_count_as_in_the_simulator(keywords):
    ours = make_strategy(FedWMSAM(), averaging="size", **keywords)
    ours.start(FakeGrid())
    theirs = fit(FedWMSAM(), averaging="size")
    assert_same(ours.result.model, theirs.model)
    assert ours.result.rows == theirs.rows


def test_with_the_operator_s_sizes_a_client_may_be_absent_at_the_start():
    grid = FakeGrid()
    del grid.nodes[1003]
    ours = make_strategy(averaging="size", client_sizes=TRUE_SIZES, participation=1.0)
    ours.start(grid)
    assert ours.result.rows[0]["missing"] == [3]
    assert ours.run.federation.total_samples == sum(TRUE_SIZES)


def test_the_operator_s_sizes_count_also_where_a_node_says_otherwise():
    sizes = [1, 1, 1, 1, 1, 1000]
    ours = make_strategy(averaging="size", client_sizes=sizes, participation=1.0, rounds=1)
    ours.start(FakeGrid())
    alone = make_strategy(averaging="size", client_sizes=sizes, participation=1.0, rounds=1)
    grid = FakeGrid()
    for client in range(CLIENTS - 1):
        del grid.nodes[1000 + client]
    alone.training.quorum = 0.1
    alone.start(grid)
    for name, value in alone.result.model.items():
        assert torch.allclose(ours.result.model[name], value, atol=0.01)


SIZES = st.lists(st.integers(1, 100) | st.sampled_from([10**6, 2**40]), min_size=1, max_size=12)


@given(sizes=SIZES, share=st.floats(0.01, 1.0))
def test_no_client_has_more_than_the_largest_share(sizes, share):
    weights = SizeRule("size", largest_share=share).weigh(dict(enumerate(sizes)))
    assert min(weights.values()) >= 1
    if len(sizes) * share <= 1:
        assert len(set(weights.values())) == 1
        return
    assert max(weights.values()) <= share * sum(weights.values()) * (1 + 1e-9)
    limit = max(weights.values())
    assert all(weights[client] == min(size, limit) for client, size in enumerate(sizes))
    # The limit is as large as it may be, up to rounding down.
    above = [size for size in sizes if size > limit]
    if above:
        total = sum(min(size, limit + 1) for size in sizes)
        assert limit + 1 > share * total * (1 - 1e-9)


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"averaging": "size"}, r"needs one of client_sizes .*; given: none\."),
        (
            {"averaging": "size", "largest_share": 0.5, "sizes": "reported"},
            "given: largest_share, sizes",
        ),
        ({"averaging": "size", "sizes": "true"}, "sizes must be 'reported', not 'true'"),
        ({"averaging": "size", "largest_share": 0}, "largest_share must be a share"),
        ({"averaging": "size", "largest_share": "much"}, "largest_share must be a share"),
        ({"averaging": "size", "client_sizes": [1, 2]}, "names 2 clients, but there are 6"),
        ({"averaging": "size", "client_sizes": "1,2,x"}, "client_sizes must be numbers"),
        ({"averaging": "size", "client_sizes": 7}, "client_sizes must be numbers"),
        ({"averaging": "size", "client_sizes": [1, 2, 3, 0, 5, 6]}, "gives client 3 0 samples"),
        ({"averaging": "size", "client_sizes": [2**63] * 6}, "not 1 to 1099511627776"),
        ({"client_sizes": [1] * 6}, "client_sizes has no effect without averaging='size'"),
    ],
)
def test_mistakes_are_named(keywords, reason):
    with pytest.raises(InputError, match=reason):
        make_strategy(**keywords)


def test_only_what_the_operator_gives_is_part_of_the_configuration(tmp_path):
    reported = make_strategy(averaging="size", sizes="reported")
    assert not {"client_sizes", "largest_share"} & toml_keys(reported.config)
    given = make_strategy(averaging="size", client_sizes=TRUE_SIZES, run_folder=tmp_path / "run")
    given.start(FakeGrid())
    other = make_strategy(averaging="size", client_sizes=[9] * 6, run_folder=tmp_path / "run")
    with pytest.raises(InputError, match="was run with client_sizes"):
        other.start(FakeGrid())


def toml_keys(config):
    return {line.split(" = ")[0] for line in toml.dump(config).splitlines()}


# Evaluations


def evaluate_with(change, **keywords):
    """Return the means of one round, in which `change` alters client 0's metrics."""
    ours = make_strategy(evaluate_clients=True, rounds=1, **keywords)
    grid = FakeGrid()

    def alter(message, honest_reply):
        metrics = dict(honest_reply().content["metrics"])
        change(metrics)
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    grid.node_faults["evaluate", 1000] = alter
    ours.start(grid)
    return {key: value for key, value in ours.result.rows[0].items() if "clients_" in key}


def test_a_node_counts_once_whatever_number_of_samples_it_claims():
    honest = evaluate_with(lambda metrics: None)
    assert evaluate_with(lambda metrics: metrics.update({"num-examples": 2**40})) == honest
    changed = evaluate_with(lambda metrics: metrics.update({"num-examples": 10**300, "loss": 1e9}))
    assert changed["clients_evaluated"] == CLIENTS - 1 and changed["clients_loss"] < 10


def test_a_metric_left_out_by_one_is_the_mean_of_the_others_and_one_added_has_no_column():
    means = evaluate_with(lambda metrics: metrics.pop("accuracy"))
    assert 0 < means["clients_accuracy"] < 1 and means["clients_evaluated"] == CLIENTS
    more = evaluate_with(lambda metrics: metrics.update({"mine": 1.0}))
    assert set(more) == {"clients_loss", "clients_accuracy", "clients_evaluated"}


def test_evaluations_are_weighed_by_the_sizes_of_training():
    evaluations = {0: Evaluation(5, {"loss": 1.0}), 1: Evaluation(5, {"loss": 4.0, "f1": 0.5})}
    rule = SizeRule("size", client_sizes=(30, 10))
    means = mean_evaluation(evaluations, rule.weigh({0: 1, 1: 1}))
    assert means == {"clients_loss": pytest.approx(1.75), "clients_f1": 0.5}
    equal = mean_evaluation(evaluations, SizeRule().weigh({0: 1, 1: 1}))
    assert equal["clients_loss"] == 2.5


def test_flower_s_own_loop_uses_only_evaluations_that_were_asked_for(flower_log):
    ours = make_strategy(evaluate_clients=True)
    grid = FakeGrid()
    ours.training.connect(grid)
    messages = list(ours.configure_evaluate(1, None, None, grid))
    replies = grid.send_and_receive(messages)
    stranger = Message(RecordDict(), 1, "evaluate")
    stranger.metadata.__dict__["_message_id"] = "a stranger's"
    metrics = MetricRecord({"num-examples": 3, "loss": 2.0})
    unasked = Message(RecordDict({"metrics": metrics}), reply_to=stranger)
    empty = Message(RecordDict(), reply_to=messages[0])
    assert ours.aggregate_evaluate(1, [*replies, unasked])["clients_evaluated"] == CLIENTS
    assert "An evaluation that was not asked for is not used." in flower_log.text
    assert ours.aggregate_evaluate(1, [empty, unasked]) is None
    assert "The evaluation of client 0 is not used: it carries no metrics." in flower_log.text
