"""What `fit` takes as data is taken on both ends of the wire, with the numbers of the simulator."""

from operator import itemgetter
from types import SimpleNamespace

import pytest
import torch
from helpers.flower_in_process import CLIENTS, SETTINGS, FakeGrid, load_data, load_test
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import fedwmsam
from fedwmsam.flower import FlowerStrategy, exchange, make_client_app
from fedwmsam.methods import FedWMSAM


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.01)


class TwoInputs(nn.Module):
    """A model of two inputs, which are also the names of a mapping."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(5, 6)
        self.right = nn.Linear(3, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, left, right):
        return self.head(functional.relu(self.left(left) + self.right(right)))


class Nested(TwoInputs):
    """A model of a mapping with a tuple in it."""

    def forward(self, left, others):
        return super().forward(left, others[0]) + others[1].mean(1, keepdim=True)


class Labelled(TwoInputs):
    """A model that computes its loss itself, as those of transformers do."""

    def forward(self, left, right, labels=None):
        logits = super().forward(left, right)
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


class Single(nn.Linear):
    """A model of a single tensor, with dropout, which training mode alone has."""

    def __init__(self):
        super().__init__(8, 3)

    def forward(self, x):
        return super().forward(functional.dropout(x, 0.3, self.training))


class Table:
    """A table with named columns, of which pandas' DataFrame has the same functions."""

    def __init__(self, columns):
        self.values = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return SimpleNamespace(to_numpy=self.values[name].numpy)

    def to_numpy(self):
        return torch.stack(list(self.values.values()), 1).numpy()


def as_tuple(x, y):
    return (x[:, :5], x[:, 5:]), y


def as_mapping(x, y):
    return {"left": x[:, :5], "right": x[:, 5:]}, y


def as_nested(x, y):
    return {"left": x[:, :5], "others": (x[:, 5:], x)}, y


def with_labels(x, y):
    return {"left": x[:, :5], "right": x[:, 5:], "labels": y}


def as_loader(x, y):
    return DataLoader(TensorDataset(x, y), batch_size=4)


def as_dataset_of_mappings(x, y):
    return [with_labels(x, y) for x, y in zip(x[:, None], y[:, None], strict=True)]


def join(batch):
    return {name: torch.cat(list(map(itemgetter(name), batch))) for name in batch[0]}


def as_table(x, y):
    columns = {f"x{number}": x[:, number] for number in range(8)}
    return Table(columns | {"class": y})


STRUCTURES = {
    "tuple": (TwoInputs, as_tuple, {}),
    "mapping": (TwoInputs, as_mapping, {}),
    "nested": (Nested, as_nested, {}),
    "labels": (Labelled, with_labels, {}),
    "samples with labels": (Labelled, as_dataset_of_mappings, {"collate": join}),
    "loader": (Single, as_loader, {}),
    "table": (Single, as_table, {"target": "class"}),
}
"""Names → the model, a function that makes the data, and how they are read."""


@pytest.mark.parametrize("structure", STRUCTURES)
def test_any_structure_gives_the_simulator_s_numbers(structure):
    model, arrange, reading = STRUCTURES[structure]
    test = arrange(*load_test(0, {}))

    def load(partition, node_config):
        return arrange(*load_data(partition, node_config))

    def load_own_test(partition, node_config):
        return arrange(*load_test(partition, node_config))

    ours = FlowerStrategy(
        FedWMSAM(),
        model,
        clients=CLIENTS,
        test=test,
        evaluate_clients=True,
        wait=0.05,
        **SETTINGS | reading,
    )
    ours.start(FakeGrid(make_client_app(model, load, load_test=load_own_test, **reading)))
    clients = [load(client, {}) for client in range(CLIENTS)]
    theirs = fedwmsam.fit(model, clients, FedWMSAM(), test=test, **SETTINGS | reading)
    for name, value in theirs.model.items():
        assert torch.equal(ours.result.model[name], value)
    assert ours.result.last("loss") == theirs.last("loss")
    losses = [theirs.evaluate(load_own_test(client, {}))["loss"] for client in range(CLIENTS)]
    assert ours.result.last("clients_loss") == pytest.approx(sum(losses) / CLIENTS)


def test_columns_of_test_tables_are_matched_by_name_with_the_training_tables():
    def load_reversed(partition, node_config):
        return reverse_columns(as_table(*load_test(partition, node_config)))

    results = []
    for load_own_test in (lambda *args: as_table(*load_test(*args)), load_reversed):
        app = make_client_app(
            Single,
            lambda *args: as_table(*load_data(*args)),
            load_test=load_own_test,
            target="class",
        )
        strategy = FlowerStrategy(
            FedWMSAM(),
            Single,
            clients=CLIENTS,
            evaluate_clients=True,
            wait=0.05,
            target="class",
            **SETTINGS,
        )
        strategy.start(FakeGrid(app))
        results.append(strategy.result.last("clients_loss"))
    assert results[0] == results[1]


def reverse_columns(table):
    return Table(dict(reversed(list(table.values.items()))))


def test_a_table_without_its_column_is_refused_on_the_client(caplog):
    app = make_client_app(Single, lambda *_: as_table(*load_data(0, {})))
    strategy = FlowerStrategy(FedWMSAM(), Single, clients=1, wait=0.05, **SETTINGS)
    with pytest.raises(fedwmsam.InputError, match="0 usable answers"):
        strategy.start(FakeGrid(app, clients=1))
    assert "name the one to predict with target=" in caplog.text


def test_a_device_may_be_one_of_pytorch():
    device = torch.device("cpu")
    data = load_data(0, {})
    app = make_client_app(Single, lambda *_: data, device=device)
    ours = FlowerStrategy(FedWMSAM(), Single, clients=1, device=device, wait=0.05, **SETTINGS)
    ours.start(FakeGrid(app, clients=1))
    theirs = fedwmsam.fit(Single, [data], FedWMSAM(), **SETTINGS)
    assert torch.equal(ours.result.model["weight"], theirs.model["weight"])
