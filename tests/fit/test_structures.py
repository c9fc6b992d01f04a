"""Inputs and outputs of any structure, compared with plain PyTorch."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import fedwmsam
from fedwmsam import FedAvg, InputError, fit

GENERATOR = torch.Generator().manual_seed(0)
PLAIN = {"rounds": 2, "participation": 1.0, "local_epochs": 1, "batch_size": 100, "lr": 0.1}
PLAIN |= {"weight_decay": 0.0, "clip_norm": None, "lr_decay": 1.0}


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def train_plainly(model, clients, loss, rounds=2, lr=0.1):
    """Return the model after rounds of FedAvg in which each client takes one full step."""
    model = copy.deepcopy(model)
    for _ in range(rounds):
        trained = []
        for x, y in clients:
            local = copy.deepcopy(model)
            local.train()
            loss(call(local, x), y).backward()
            with torch.no_grad():
                for p in local.parameters():
                    p -= lr * p.grad
            trained.append(local.state_dict())
        mean = {}
        for name in trained[0]:
            mean[name] = sum(weights[name] for weights in trained) / len(trained)
        model.load_state_dict(mean)
    return model


def call(model, x):
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def assert_as_plain(result, model, clients, loss=functional.cross_entropy):
    expected = train_plainly(model, clients, loss).state_dict()
    for name, value in result.model.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)


# Outputs


class Tagger(nn.Module):
    """Says a class for each token, classes on the second axis as cross-entropy has them."""

    def __init__(self, words=20, classes=5):
        super().__init__()
        self.words = nn.Embedding(words, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.classes = nn.Linear(8, classes)

    def forward(self, tokens):
        return self.classes(self.lstm(self.words(tokens))[0]).movedim(-1, 1)


def test_segmentation_has_the_accuracy_of_its_pixels():
    """Every pixel's class is its largest channel, which the identity says: accuracy 1.0."""
    model = nn.Conv2d(8, 8, 1)
    with torch.no_grad():
        model.weight.copy_(torch.eye(8)[:, :, None, None])
        model.bias.zero_()
    x = random(30, 8, 8, 8)
    y = x.argmax(1)
    clients = [(x[:15], y[:15]), (x[15:], y[15:])]
    result = fit(model, clients, FedAvg(), test=(x, y), **PLAIN | {"lr": 1e-6})
    assert result.last("accuracy") == 1.0
    assert_as_plain(fit(model, clients, FedAvg(), **PLAIN), model, clients)


def test_classes_that_are_fewer_than_columns():
    x = random(12, 3, 6, 9)
    y = torch.randint(4, (12, 6, 9), generator=GENERATOR)
    model = nn.Conv2d(3, 4, 3, padding=1)
    result = fit(model, [(x[:5], y[:5]), (x[5:], y[5:])], FedAvg(), test=(x, y), **PLAIN)
    trained = copy.deepcopy(model)
    trained.load_state_dict(result.model)
    with torch.no_grad():
        expected = (trained(x).argmax(1) == y).double().mean()
    assert result.last("accuracy") == pytest.approx(float(expected))


def test_tokens_that_are_ignored_count_neither_for_loss_nor_accuracy():
    x = torch.randint(20, (16, 7), generator=GENERATOR)
    y = x % 5
    y[:, 5:] = -100
    model = Tagger()
    clients = [(x[:8], y[:8]), (x[8:], y[8:])]
    result = fit(model, clients, FedAvg(), test=(x, y), **PLAIN)
    assert_as_plain(result, model, clients)
    trained = copy.deepcopy(model)
    trained.load_state_dict(result.model)
    trained.eval()
    with torch.no_grad():
        outputs = trained(x)
    assert result.last("loss") == pytest.approx(float(functional.cross_entropy(outputs, y)))
    right = (outputs.argmax(1) == y)[y != -100].double().mean()
    assert result.last("accuracy") == pytest.approx(float(right))


@pytest.mark.parametrize(
    ("model", "y", "words"),
    [
        (nn.Conv2d(3, 4, 1), torch.zeros(6, 4, 4).long(), r"expected labels of shape \(n, 5, 5\)"),
        (nn.Conv2d(3, 4, 1), torch.full((6, 5, 5), 4), "label 4 is out of range"),
        (nn.Conv2d(3, 4, 1), torch.full((6, 5, 5), -1), "label -1 is out of range"),
        (nn.Linear(5, 4), torch.zeros(6, 3, 5).long(), r"outputs\.movedim\(-1, 1\)"),
        (nn.Flatten(), torch.zeros(6, 75).long(), "one-hot"),
    ],
)
def test_labels_that_do_not_fit_are_refused_with_the_right_words(model, y, words):
    with pytest.raises(InputError, match=words):
        fit(nn.Sequential(model, nn.Identity()), [(random(6, 3, 5, 5), y)], trainable(model))


def trainable(model):
    """Return a method; a model without parameters gets one."""
    if not list(model.parameters()):
        model.scale = nn.Parameter(torch.ones(()))
    return FedAvg()


def test_the_cross_entropy_of_pytorch_keeps_its_accuracy():
    x = random(20, 4)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(4, 3)
    named = fit(model, [(x, y)], FedAvg(), test=(x, y), **PLAIN)
    given = fit(model, [(x, y)], FedAvg(), test=(x, y), loss=nn.CrossEntropyLoss(), **PLAIN)
    assert given.columns["accuracy"] == named.columns["accuracy"]
    y[0] = 7
    loss = nn.CrossEntropyLoss(ignore_index=7, label_smoothing=0.1)
    assert fit(model, [(x, y)], FedAvg(), test=(x, y), loss=loss, **PLAIN).last("accuracy") <= 1
    probabilities = functional.one_hot(y % 3, 3).float()
    soft = fit(model, [(x, probabilities)], loss=nn.CrossEntropyLoss(), test=(x, probabilities))
    assert 0 <= soft.last("accuracy") <= 1


# Inputs


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 3)
        self.right = nn.Linear(2, 3)

    def forward(self, a, b):
        return self.left(a) + self.right(b)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = TwoInputs()

    def forward(self, pair, scale):
        return self.inner(*pair) * scale


A = random(24, 4)
B = random(24, 2)
Y = (A[:, 0] > 0).long()
STRUCTURES = {
    "tuple": (TwoInputs, (A, B)),
    "mapping": (TwoInputs, {"a": A, "b": B}),
    "nested": (Nested, {"pair": (A, B), "scale": torch.ones(24, 1)}),
}


def rows_of(x, rows):
    if isinstance(x, dict):
        return {name: rows_of(part, rows) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(rows_of(part, rows) for part in x)
    return x[rows]


@pytest.mark.parametrize("name", STRUCTURES)
def test_inputs_of_any_structure_everywhere(name, tmp_path):
    make, x = STRUCTURES[name]
    model = make()
    clients = [(rows_of(x, slice(0, 9)), Y[:9]), (rows_of(x, slice(9, 24)), Y[9:])]
    result = fit(model, clients, FedAvg(), test=(x, Y), run_folder=tmp_path / "run", **PLAIN)
    assert_as_plain(result, model, clients)
    outputs = result.predict(x, batch_size=5)
    trained = copy.deepcopy(model)
    trained.load_state_dict(result.model)
    torch.testing.assert_close(outputs, call(trained, x).detach())
    assert result.evaluate((x, Y))["accuracy"] == pytest.approx(result.last("accuracy"))
    loaded = fedwmsam.Result.load(tmp_path / "run", model=model)
    torch.testing.assert_close(loaded.predict(x), outputs)
    fit(model, clients, validation=0.25, **PLAIN)
    parallel = fit(model, clients, FedAvg(), test=(x, Y), workers=2, **PLAIN)
    assert parallel.rows == result.rows


def test_datasets_of_structures():
    samples = [({"a": A[i], "b": B[i]}, Y[i]) for i in range(24)]
    from_dataset = fit(TwoInputs, [samples[:9], samples[9:]], FedAvg(), **PLAIN)
    x = {"a": A, "b": B}
    clients = [(rows_of(x, slice(0, 9)), Y[:9]), (rows_of(x, slice(9, 24)), Y[9:])]
    assert from_dataset.rows == fit(TwoInputs, clients, FedAvg(), **PLAIN).rows
    pairs = [((A[i], B[i]), Y[i]) for i in range(24)]
    assert fit(TwoInputs, [pairs[:9], pairs[9:]], FedAvg(), **PLAIN).rows == from_dataset.rows


def test_loaders_give_their_dataset_and_collate():
    samples = [(A[i], Y[i]) for i in range(24)]

    def doubled(batch):
        return 2 * torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])

    loaders = [DataLoader(samples[:9], 4, collate_fn=doubled), DataLoader(samples[9:], 4)]
    result = fit(nn.Linear(4, 3), loaders, FedAvg(), test=DataLoader(samples), **PLAIN)
    clients = [(2 * A[:9], Y[:9]), (A[9:], Y[9:])]
    model = nn.Linear(4, 3)
    result = fit(model, loaders, FedAvg(), **PLAIN)
    assert_as_plain(result, model, clients)


class Frame:
    """A table as pandas has it, as far as it is used; tests/systems has the real one."""

    def __init__(self, columns):
        self.values = columns
        self.columns = list(columns)

    def to_numpy(self):
        raise NotImplementedError("columns are read one by one")

    def __getitem__(self, name):
        return SimpleNamespace(to_numpy=lambda: np.asarray(self.values[name]))


def test_tables_with_a_target_column():
    table = Frame({"u": A[:, 0], "class": Y, "v": A[:, 1]})
    model = nn.Linear(2, 2)
    result = fit(model, [table], FedAvg(), target="class", test=table, **PLAIN)
    pair = (A[:, :2], Y)
    assert result.rows == fit(model, [pair], FedAvg(), test=pair, **PLAIN).rows
    assert result.predict(table).shape == (24, 2)
    with pytest.raises(InputError, match="columns u, class, v; name the one to predict"):
        fit(model, [table], target="klass", **PLAIN)


def test_columns_of_tables_are_matched_by_name():
    """Every table is brought into the order of the first one, whoever reads it first."""
    table = Frame({"u": A[:, 0], "class": Y, "v": A[:, 1]})
    other = Frame({"v": A[:, 1], "u": A[:, 0], "class": Y})
    model = nn.Linear(2, 2)
    settings = {"target": "class", "participation": 1.0} | PLAIN
    expected = fit(model, [table, table], FedAvg(), test=table, validation=table, **settings)
    result = fit(model, [table, other], FedAvg(), test=other, validation=other, **settings)
    assert result.rows == expected.rows
    assert torch.equal(result.predict(other), expected.predict(table))
    assert result.evaluate(other) == expected.evaluate(table)
    lazy = fit(model, [table, other].__getitem__, FedAvg(), client_count=2, **settings)
    assert torch.equal(lazy.model["weight"], result.model["weight"])


def test_columns_of_inputs_in_pairs_are_matched_by_name_too():
    def pair(*names):
        return Frame({name: A[:, "uv".index(name)] for name in names}), Y

    table = pair("u", "v")
    other = pair("v", "u")
    model = nn.Linear(2, 2)
    settings = {"participation": 1.0} | PLAIN
    expected = fit(model, [table, table], FedAvg(), test=table, **settings)
    result = fit(model, [table, other], FedAvg(), test=other, **settings)
    assert result.rows == expected.rows
    assert torch.equal(result.predict(other[0]), expected.predict(table[0]))
    one_client = settings | {"participation": 0.5, "rounds": 1}
    for seed in (0, 1, 2):  # of these seeds not all begin with client 0
        eager = fit(model, [other, table], FedAvg(), seed=seed, **one_client)
        lazy = fit(
            model, [other, table].__getitem__, FedAvg(), client_count=2, seed=seed, **one_client
        )
        assert torch.equal(lazy.model["weight"], eager.model["weight"])


def test_numbers_as_objects_and_columns_with_numbers_for_names():
    table = Frame({0: A[:, 0].numpy().astype(object), 1: A[:, 1], 2: Y})
    model = nn.Linear(2, 2)
    result = fit(model, [table], FedAvg(), target=2, **PLAIN)
    expected = fit(model, [(A[:, :2], Y)], FedAvg(), **PLAIN)
    assert torch.equal(result.model["weight"], expected.model["weight"])


WRONG_COLUMNS = {
    "renamed": ({"u": A[:, 0], "w": A[:, 1]}, ["no column 'v'", "'w'", "same columns"]),
    "missing": ({"v": A[:, 1]}, ["no column 'u'", "same columns"]),
    "one more": ({"u": A[:, 0], "v": A[:, 1], "w": A[:, 1]}, ["has column 'w'", "leave it out"]),
    "text": ({"u": A[:, 0], "v": ["old"] * 24}, ["'v'", "'old'", "numbers"]),
    "text somewhere": (
        {"u": A[:, 0], "v": np.array([1.5] * 23 + ["old"], dtype=object)},
        ["'v'", "'old'"],
    ),
}


@pytest.mark.parametrize("mistake", WRONG_COLUMNS)
def test_other_columns_are_refused_by_client_and_name(mistake):
    table = Frame({"u": A[:, 0], "class": Y, "v": A[:, 1]})
    columns, words = WRONG_COLUMNS[mistake]
    wrong = Frame(columns | {"class": Y})
    model = nn.Linear(2, 2)

    def expect(name, action):
        with pytest.raises(InputError) as caught:
            action()
        for word in (name, *words):
            assert word in str(caught.value)

    settings = {"target": "class"} | PLAIN
    expect("Client 1", lambda: fit(model, [table, wrong], **settings))
    expect("Client 'b'", lambda: fit(model, {"a": table, "b": wrong}, **settings))
    expect("The test data", lambda: fit(model, [table], test=wrong, **settings))
    expect("The validation data", lambda: fit(model, [table], validation=wrong, **settings))
    result = fit(model, [table], **settings)
    expect("The data", lambda: result.evaluate(wrong))
    expect("The data", lambda: result.predict(wrong))


def test_a_table_needs_numbers_in_its_target_and_each_column_once():
    words = Frame({"u": A[:, 0], "class": ["ill", "well"] * 12})
    with pytest.raises(InputError, match="Client 0: the column 'class' holds 'ill'"):
        fit(nn.Linear(1, 2), [words], target="class", **PLAIN)
    twice = Frame({"1": A[:, 0], 1: A[:, 1], "class": Y})
    with pytest.raises(InputError, match="Client 0: the table has two columns '1'"):
        fit(nn.Linear(2, 2), [twice], target="class", **PLAIN)
    alone = Frame({"class": Y})
    with pytest.raises(InputError, match="no columns to predict from"):
        fit(nn.Linear(1, 2), [alone], target="class", **PLAIN)


def test_whole_numbers_and_truth_values_are_columns_too():
    table = Frame({"u": A[:, 0], "class": Y, "old": np.array([True, False] * 12)})
    result = fit(nn.Linear(2, 2), [table], target="class", **PLAIN)
    assert result.predict(table).shape == (24, 2)


class Huggable(nn.Module):
    """A classifier that speaks as those of transformers do; tests/systems has real ones."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, values, labels=None):
        logits = self.layer(values)
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


def test_outputs_of_transformers_are_understood():
    model = Huggable()
    with_labels = [{"values": A[:9], "labels": Y[:9]}, {"values": A[9:], "labels": Y[9:]}]
    own = fit(model, with_labels, FedAvg(), test={"values": A, "labels": Y}, **PLAIN)
    pairs = [({"values": A[:9]}, Y[:9]), ({"values": A[9:]}, Y[9:])]
    ours = fit(model, pairs, FedAvg(), test=({"values": A}, Y), **PLAIN)
    for name, value in own.model.items():
        torch.testing.assert_close(value, ours.model[name])
    assert own.last("accuracy") == ours.last("accuracy")
    assert own.last("loss") == pytest.approx(ours.last("loss"))
    samples = [{"values": A[i], "labels": Y[i]} for i in range(24)]
    rows = fit(model, [samples[:9], samples[9:]], FedAvg(), **PLAIN).rows
    assert rows[-1]["train_loss"] == pytest.approx(own.rows[-1]["train_loss"])


def test_the_models_own_loss_is_minimised():
    """A loss that is none of ours: the labels are shifted, as in a causal language model."""

    class Shifted(Huggable):
        def forward(self, values, labels=None):
            output = super().forward(values)
            if labels is not None:
                output.loss = 3 * functional.cross_entropy(output.logits, 1 - labels)
            return output

    model = Shifted()
    data = {"values": A, "labels": Y}
    result = fit(model, [data], FedAvg(), test=data, **PLAIN | {"rounds": 30})
    assert result.rows[-1]["train_loss"] < result.rows[0]["train_loss"]
    assert result.last("accuracy") < 0.5
    assert result.last("loss") == pytest.approx(
        3 * float(functional.cross_entropy(result.predict({"values": A}), 1 - Y)), rel=1e-5
    )


def test_a_loss_of_the_users_replaces_the_models():
    model = Huggable()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([5.0, 1.0]))
    batches = [{"values": A[:9], "labels": Y[:9]}, {"values": A[9:], "labels": Y[9:]}]
    rows = [{"values": A[i], "labels": Y[i]} for i in range(24)]
    pairs = [({"values": A[:9]}, Y[:9]), ({"values": A[9:]}, Y[9:])]
    expected = fit(model, pairs, test=({"values": A}, Y), loss=loss, **PLAIN)
    for clients in (batches, [rows[:9], rows[9:]]):
        result = fit(model, clients, test={"values": A, "labels": Y}, loss=loss, **PLAIN)
        for name, value in result.model.items():
            torch.testing.assert_close(value, expected.model[name])
        assert result.last("loss") == pytest.approx(expected.last("loss"))


# Parts in evaluation mode


def test_parts_in_evaluation_mode_stay_there():
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).eval()
    model = nn.Sequential(backbone, nn.Linear(6, 2))
    assert model.training
    for p in backbone.parameters():
        p.requires_grad_(False)
    clients = [(A[:9], Y[:9]), (A[9:], Y[9:])]
    result = fit(model, clients, FedAvg(), test=(A, Y), **PLAIN)
    assert_as_plain_frozen(result, model, clients)
    assert fit(model, clients, FedAvg(), test=(A, Y), workers=2, **PLAIN).rows == result.rows
    assert torch.equal(result.model["0.1.running_mean"], backbone[1].running_mean)
    whole = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).eval()
    trained = fit(whole, clients, FedAvg(), **PLAIN)
    assert not torch.equal(trained.model["1.running_mean"], whole[1].running_mean)


def assert_as_plain_frozen(result, model, clients):
    features = [(model[0](x), y) for x, y in clients]
    expected = train_plainly(model[1], features, functional.cross_entropy)
    torch.testing.assert_close(result.model["1.weight"], expected.weight.detach())


# Mistakes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "reduction='none'"),
        (
            {"metrics": {"each": lambda outputs, targets: outputs.argmax(1) == targets}},
            "The each must be one number",
        ),
        ({"clients": [({"a": A, "b": B[:3]}, Y)], "model": TwoInputs()}, "3 inputs but 24"),
        ({"clients": [({"a": A}, Y)], "model": TwoInputs()}, "cannot take inputs of shape {a"),
        ({"clients": [{"a": A, "b": B}], "model": TwoInputs()}, "no 'labels'"),
        ({"clients": [(A, (Y, Y))]}, "Client 0: the targets are a tuple"),
        ({"clients": [(A, {"y": Y})]}, "Client 0: the targets are a dict"),
        ({"model": nn.Linear(4, 2).half()}, "loses small steps"),
        ({"model": nn.LazyLinear(2)}, "lazy modules"),
        (
            {"model": nn.Sequential(nn.EmbeddingBag(9, 4, sparse=True), nn.Linear(4, 2))},
            "sparse gradients",
        ),
        ({"device": torch.device("meta")}, "meta"),
    ],
)
def test_mistakes_are_named(values, words):
    arguments = {"model": nn.Linear(4, 2), "clients": [(A, Y)], "test": (A, Y)} | PLAIN
    if "clients" in values:
        arguments.pop("test")
    with pytest.raises(InputError, match=words):
        fit(**arguments | values)


def test_a_device_of_torch_is_taken():
    result = fit(nn.Linear(4, 2), [(A, Y)], device=torch.device("cpu"), **PLAIN)
    assert result.config["device"] == "cpu"
