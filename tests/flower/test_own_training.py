"""A training loop of one's own on Flower: an app of the quickstart's shape keeps its loop."""

import json
import logging
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from helpers.flower_in_process import SETTINGS, FakeGrid, load_data, load_test, network
from helpers.markdown_pages import ROOT, read_blocks
from torch import nn
from torch.utils.data import DataLoader

from fedwmsam.errors import InputError
from fedwmsam.flower import FlowerStrategy, exchange, make_client_app
from fedwmsam.flower.own_training import check_metrics, count_samples
from fedwmsam.methods import METHODS, FedAvg, FedAvgM, FedProx, FedWMSAM, Info, make_method

CLIENTS = 3
PAGE = ROOT / "docs" / "flower.md"
FILES = ("task.py", "client_app.py", "server_app.py")
ALLOWED = {"fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedexp", "fedprox", "fedacg"}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(exchange, "TTL_MARGIN", 0.2)


def one_step(model, data, config):
    """A loop: one step of plain gradient descent on all data."""
    x, y = data
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= config["lr"] * parameter.grad
    return {"train_loss": loss.item(), "num-examples": len(y)}


def start(loop, method=None, tmp_path=None, **keywords):
    app = make_client_app(network, load_data, train=loop)
    defaults = SETTINGS | {"clients": CLIENTS, "participation": 1.0, "wait": 0.05, "timeout": 0.2}
    strategy = FlowerStrategy(
        method or FedAvg(), network, test=load_test(0, {}), **defaults | keywords
    )
    strategy.start(FakeGrid(app, CLIENTS))
    return strategy.result


# Flower's quickstart, before and after


def run_app(folder, monkeypatch):
    """Run the app in this folder, as the SuperLink does, and return its model."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in ("task", "client_app", "server_app"):
        sys.modules.pop(name, None)
    torch.manual_seed(3)  # the initial model of the app is random
    server = import_module("server_app")
    grid = FakeGrid(import_module("client_app").app, CLIENTS)
    for node in grid.nodes.values():
        node["num-partitions"] = CLIENTS
    server.app(grid, Context(1, 1, {}, RecordDict(), {}))
    return torch.load(folder / "final_model.pt")


def test_the_page_changes_an_app_and_its_model_stays_the_same(tmp_path, monkeypatch):
    blocks = read_blocks(PAGE)
    programs = [block.text for block in blocks if "test_own_training.py" in block.mark]
    for name, text in zip(FILES, programs, strict=True):
        (tmp_path / name).write_text(text)
    before = run_app(tmp_path, monkeypatch)
    change = next(block.text for block in blocks if block.language == "diff")
    command = ["git", "apply", "--verbose", "-"]
    outcome = subprocess.run(command, cwd=tmp_path, input=change, text=True, capture_output=True)
    assert outcome.returncode == 0 and "Applied" in outcome.stderr, outcome.stderr
    after = run_app(tmp_path, monkeypatch)
    assert "fedwmsam" in (tmp_path / "client_app.py").read_text()
    assert before.keys() == after.keys()
    torch.manual_seed(3)
    first = sys.modules["task"].Net().state_dict()
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-6)
        assert (before[name] - first[name]).abs().max() > 0.01


# What a loop gets and returns


def test_one_step_of_a_loop_is_one_step_of_the_library():
    """With FedAvg and FedAvgM a loop's gradient steps are those of the engine, to rounding."""
    plain = {"clip_norm": None, "weight_decay": 0.0, "local_steps": 1, "batch_size": 1000}
    for method in (FedAvg(), FedAvgM()):
        ours = start(one_step, method, **plain)
        theirs = start(None, method, **plain)
        for name, value in theirs.model.items():
            torch.testing.assert_close(ours.model[name], value, rtol=1e-5, atol=1e-6)
        losses = [row["train_loss"] for row in ours.rows]
        assert losses == pytest.approx([row["train_loss"] for row in theirs.rows], rel=1e-5)


def test_a_loop_is_told_what_the_server_decided():
    seen = []

    def loop(model, data, config):
        seen.append(config | {"random": float(torch.rand(()))})
        return {"train_loss": 0.5}

    start(loop, FedProx(lam=0.3), lr=0.2, lr_decay=0.5, local_epochs=4, batch_size=7)
    assert {config["partition-id"] for config in seen} == set(range(CLIENTS))
    assert [config["server-round"] for config in seen] == [1] * 3 + [2] * 3 + [3] * 3
    assert [config["lr"] for config in seen[::3]] == [0.2, 0.1, 0.05]
    assert {(c["local-epochs"], c["batch-size"], c["lam"]) for c in seen} == {(4, 7, 0.3)}
    assert len({config["seed"] for config in seen}) == len({c["random"] for c in seen}) == 9
    first = [config["random"] for config in seen]
    seen.clear()
    start(loop, FedProx(lam=0.3))
    assert [config["random"] for config in seen] == first


def test_metrics_of_a_loop_are_columns_and_its_data_may_be_anything_with_a_length():
    class Data(list):
        """Data that the library cannot read."""

    def loop(model, data, config):
        assert isinstance(data, Data)
        if len(data) == 3 and config["server-round"] == 2:
            raise RuntimeError("out of memory")
        return {"loss": 1.5, "train_f1": len(data) / 10}

    app = make_client_app(network, lambda partition, _: Data([None] * (partition + 1)), train=loop)
    strategy = FlowerStrategy(FedAvg(), network, clients=CLIENTS, **SETTINGS | {"participation": 1})
    strategy.start(FakeGrid(app, CLIENTS))
    assert [row["train_loss"] for row in strategy.result.rows] == [1.5] * 3
    assert [row["clients_train_f1"] for row in strategy.result.rows] == pytest.approx(
        [0.2, 0.15, 0.2]
    )


def test_metrics_of_a_loop_are_not_those_of_the_clients_evaluation():
    def loop(model, data, config):
        return {"train_loss": 0.5, "accuracy": 0.98}

    app = make_client_app(network, load_data, load_test=load_test, train=loop)
    settings = SETTINGS | {"evaluate_every": 2, "rounds": 2}
    strategy = FlowerStrategy(FedAvg(), network, clients=CLIENTS, evaluate_clients=True, **settings)
    strategy.start(FakeGrid(app, CLIENTS))
    first, second = strategy.result.rows
    assert first["clients_train_accuracy"] == second["clients_train_accuracy"] == 0.98
    assert "clients_accuracy" not in first and second["clients_accuracy"] < 0.98


def test_a_check_before_the_run_counts_the_samples_and_leaves_the_loop_alone():
    app = make_client_app(network, load_data, train=lambda *_: pytest.fail("it was called"))
    assert app.client.try_training({"partition-id": 1}) == 28
    empty = make_client_app(network, lambda *_: iter([]), train=one_step)
    with pytest.raises(InputError, match="Client 1: the number of samples in a list_iterator"):
        empty.client.try_training({"partition-id": 1})


def test_buffers_are_averaged_and_frozen_weights_stay():
    def model():
        made = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 3))
        made[0].requires_grad_(False)
        return made

    def loop(module, data, config):
        assert module.training and not module[0].weight.requires_grad
        module(data[0])
        return {"train_loss": 0.0}

    app = make_client_app(model, load_data, train=loop)
    keywords = SETTINGS | {"clients": CLIENTS, "participation": 1.0, "rounds": 1}
    strategy = FlowerStrategy(FedAvg(), model, **keywords)
    strategy.start(FakeGrid(app, CLIENTS))
    trained = strategy.result.model
    assert trained["1.num_batches_tracked"] == 1
    means = [trained["0.weight"] @ load_data(client, {})[0].mean(0) for client in range(CLIENTS)]
    expected = 0.1 * (torch.stack(means).mean(0) + trained["0.bias"])
    torch.testing.assert_close(trained["1.running_mean"], expected)


@pytest.mark.parametrize("loss", [torch.tensor(0.5), np.float32(0.5)])
def test_a_loss_may_be_a_number_of_pytorch_or_numpy(loss):
    assert check_metrics({"train_loss": loss, "num-examples": 7}, 7) == (0.5, {"num-examples": 7})


def test_two_loaders_are_not_inputs_and_targets():
    loaders = (DataLoader(range(320), 32), DataLoader(range(80), 32))
    with pytest.raises(InputError, match="Client 3: load_data returned two loaders"):
        count_samples(loaders, "Client 3")


def spoil_frozen(model, data, config):
    with torch.no_grad():
        model[0].weight += 1
    return {"train_loss": 0.0}


def diverge(model, data, config):
    with torch.no_grad():
        model[2].weight.fill_(torch.nan)
    return {"train_loss": 0.0}


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (lambda *_: None, "returned NoneType, not its metrics"),
        (lambda *_: {"f1": 1.0}, "returned no 'train_loss', but f1"),
        (lambda *_: {"train_loss": torch.zeros(2)}, "no finite number"),
        (lambda *_: {"train_loss": float("nan")}, "no finite number"),
        (lambda *_: {"train_loss": 0.0, "num-examples": 7}, "'num-examples' = 7, but"),
        (diverge, "hold NaN or infinity at '2.weight'"),
        (spoil_frozen, "changed '0.weight', which is frozen"),
    ],
)
def test_a_loop_that_returns_nonsense_is_a_client_that_failed(loop, words, caplog):
    caplog.set_level(logging.INFO, logger="flwr.fedwmsam")

    def mostly_good(model, data, config):
        if config["partition-id"] == 1 and config["server-round"] == 2:
            return loop(model, data, config)
        return {"train_loss": 1.0}

    def model():
        made = network()
        made[0].requires_grad_(False)
        return made

    app = make_client_app(model, load_data, train=mostly_good)
    defaults = SETTINGS | {"clients": CLIENTS, "participation": 1.0, "wait": 0.05}
    strategy = FlowerStrategy(FedAvg(), model, **defaults)
    strategy.start(FakeGrid(app, CLIENTS))
    assert [row.get("missing") for row in strategy.result.rows] == [None, [1], None]
    assert any(words in line for line in caplog.messages), caplog.messages


# Which methods, and which arguments


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_allow_a_loop_send_a_model_and_take_an_update(name):
    """Those that do not differ from that in what they send, in a step, or in what comes back."""
    method = make_method(name)
    w = torch.linspace(-1, 1, 5)
    info = Info(round=2, lr=0.1, clients=4, cohort=2, share=0.5, steps=3, samples=10)
    server = {key: value + 0.1 for key, value in method.server_init(w).items()}
    down = method.downlink(server, method.memory_init(w), info)
    scratch = method.begin(down, torch.sin, info)
    v, _ = method.direction(w, torch.sin, down, scratch)
    up = method.uplink(w, down, scratch, info)
    is_plain = (
        [*down] == ["w"] and not scratch and torch.equal(v, torch.sin(w)) and [*up] == ["delta"]
    )
    assert (method.needs_own_steps == "") == (name in ALLOWED)
    assert is_plain == (name in ALLOWED or name == "fednova")  # it divides by the steps taken


def test_a_method_with_steps_of_its_own_refuses_the_client_and_says_why(caplog):
    with pytest.raises(InputError, match="usable answers"):
        start(one_step, FedWMSAM())
    refusal = "which fedwmsam does not allow: what its clients compute in each step is part of"
    assert any("cannot take part" in line and refusal in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fraction_train": 0.5}, "fraction_train of Flower's strategies: write participation"),
        ({"min_train_nodes": 2}, "write quorum"),
        ({"proximal_mu": 0.1}, r"write FedProx\(lam=…\)"),
        ({"server_momentum": 0.9}, r"write FedAvgM\(beta=…\)"),
    ],
)
def test_arguments_of_flowers_strategies_are_refused_by_name(arguments, words):
    with pytest.raises(InputError, match=words):
        FlowerStrategy(FedAvg(), network, clients=CLIENTS, **arguments)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"lr": 0.01}, r"train_config has 'lr': write FlowerStrategy\(…, lr=0.01\)"),
        ({"local-epochs": 2}, r"write FlowerStrategy\(…, local_epochs=2\)"),
        ({"epochs": 2}, r"write FlowerStrategy\(…, local_epochs=2\)"),
        ({"mixup": True}, "train_config has 'mixup': it is no setting"),
    ],
)
def test_train_config_is_refused_by_name(config, words):
    strategy = FlowerStrategy(FedAvg(), network, clients=CLIENTS)
    with pytest.raises(InputError, match=words):
        strategy.start(FakeGrid(), train_config=ConfigRecord(config))
    with pytest.raises(InputError, match="evaluate_config has"):
        strategy.start(FakeGrid(), evaluate_config=ConfigRecord(config))


def test_every_argument_of_flowers_strategies_has_an_answer():
    """Those of the strategies whose methods are here, as the installed Flower has them."""
    import inspect

    from flwr.serverapp import strategy

    from fedwmsam.flower.strategy import FLOWER_ARGUMENTS

    page = PAGE.read_text()
    for name in ("FedAvg", "FedAvgM", "FedAdam", "FedProx"):
        for argument in inspect.signature(getattr(strategy, name)).parameters:
            assert argument in FLOWER_ARGUMENTS and f"`{argument}`" in page, argument


def test_a_run_with_a_loop_has_its_metrics_in_the_folder(tmp_path):
    start(one_step, run_folder=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["cohort"] for line in lines] == [CLIENTS] * 3
