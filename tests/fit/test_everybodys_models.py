"""The table "Everybody's model" of docs/your-model-and-data.md, against plain PyTorch."""

import copy
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.model_table import fit_row, read_rows
from helpers.plain_training import (
    PLAIN,
    assert_same_weights,
    cross_entropy,
    full_batches,
    pair_loss,
    train_plainly,
)
from sklearn.metrics import f1_score
from torch import nn
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from fedwmsam import InputError, fit

TESTS = Path(__file__).parents[1]
GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def same_weights_every_time():
    torch.manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def random_integers(high, *shape):
    return torch.randint(high, shape, generator=GENERATOR)


def label(x):
    return (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def with_labels(batches):
    return [(x, label(x)) for x in batches]


X = random(40, 4)
Y = label(X)
TEST = (X, Y)
CLIENTS = [(X[:17], Y[:17]), (X[17:], Y[17:])]


def small_network():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def load_trained(model, result):
    """Return the model with the weights of the result, to predict with."""
    trained = copy.deepcopy(model)
    trained.load_state_dict(result.model)
    return trained.eval().requires_grad_(False)


def test_the_tests_execute_every_row():
    sources = [path.read_text() for path in sorted(TESTS.glob("*/test_everybodys_models.py"))]
    executed = re.findall(r"fit_row\(\s*\"([^\"]+)\"", "".join(sources))
    assert sorted(executed) == sorted(read_rows())
    assert len(executed) == 21


# Models


class Recorded(nn.Module):
    """Keeps the batches that pass in training, also through copies of it."""

    def __init__(self, batches):
        super().__init__()
        self.keep = batches.append

    def forward(self, x):
        if self.training:
            self.keep(x.clone())
        return x


class MaskedDropout(nn.Module):
    """A dropout whose masks a function draws."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x * self.draw(torch.ones_like(x)) if self.training else x


def test_batch_norm_and_dropout():
    seen = []
    masks = []

    def draw(ones):
        masks.append(functional.dropout(ones, 0.4))
        return masks[-1]

    layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), MaskedDropout(draw), nn.Linear(8, 3))
    net = nn.Sequential(Recorded(seen), *layers)
    result = fit_row("BatchNorm and dropout", PLAIN, net=net, clients=CLIENTS[:1], test=TEST)
    batches = with_labels(seen[-6:])
    drawn = iter(masks[-6:])
    assert not torch.equal(masks[-1], masks[-2])
    net[4].draw = lambda ones: next(drawn)
    first_round = train_plainly(net, [batches[:3]], rates=(0.1,))
    expected = train_plainly(first_round, [batches[3:]], rates=(0.1,))
    assert_same_weights(result.model, expected)
    outputs = expected.eval()(X).detach()
    assert result.last("loss") == pytest.approx(float(functional.cross_entropy(outputs, Y)))


class Reader(nn.Module):
    """Says the class of a sequence after its last step."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True, num_layers=2)
        self.classes = nn.Linear(6, 3)

    def forward(self, x):
        return self.classes(self.lstm(x)[0][:, -1])


def test_lstm():
    x = random(30, 7, 4)
    y = (x[:, -1, 0] > 0).long()
    clients = [(x[:11], y[:11]), (x[11:], y[11:])]
    lstm = Reader()
    result = fit_row("LSTM", PLAIN, lstm=lstm, clients=clients, test=(x, y))
    assert_same_weights(result.model, train_plainly(lstm, full_batches(clients)))
    right = (load_trained(lstm, result)(x).argmax(1) == y).double().mean()
    assert result.last("accuracy") == pytest.approx(float(right))


class Tied(nn.Module):
    """Says the next of ten words by their embeddings."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 5)
        self.scores = nn.Linear(5, 10, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, word):
        return self.scores(self.words(word))


def test_tied_weights():
    words = random_integers(10, 30)
    clients = [(words[:12], (words[:12] + 1) % 10), (words[12:], (words[12:] + 1) % 10)]
    net = Tied()
    result = fit_row("tied weights", PLAIN, net=net, clients=clients)
    assert_same_weights(result.model, train_plainly(net, full_batches(clients)))
    assert torch.equal(result.model["words.weight"], result.model["scores.weight"])
    assert not torch.equal(result.model["words.weight"], net.words.weight)


def test_frozen_backbone():
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    backbone.requires_grad_(False).eval()
    net = nn.Sequential(backbone, nn.Linear(6, 3))
    before = copy.deepcopy(net.state_dict())
    result = fit_row("frozen backbone", PLAIN, net=net, clients=CLIENTS, test=TEST)
    features = [(backbone(x), y) for x, y in CLIENTS]
    head = train_plainly(net[1], full_batches(features)).state_dict()
    for name, value in result.model.items():
        if name.startswith("0."):
            assert torch.equal(value, before[name]), name
        else:
            torch.testing.assert_close(value, head[name.removeprefix("1.")], rtol=0, atol=1e-6)


# Inputs and outputs


def test_segmentation():
    images = random(20, 3, 6, 9)
    masks = (images.mean(1) > 0).long()
    masks[:, 0] = 3
    clients = [(images[:8], masks[:8]), (images[8:], masks[8:])]
    net = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 1))
    result = fit_row("segmentation", PLAIN, net=net, clients=clients, images=images, masks=masks)
    assert_same_weights(result.model, train_plainly(net, full_batches(clients)))
    outputs = load_trained(net, result)(images)
    right = 0
    for output, mask in zip(outputs, masks, strict=True):
        right += int((output.argmax(0) == mask).sum())
    assert result.last("accuracy") == pytest.approx(right / (20 * 6 * 9))


class Tagger(nn.Module):
    """Says the tag of each word of a sentence."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 6, batch_first=True)
        self.tags = nn.Linear(6, 4)

    def forward(self, words):
        return self.tags(self.lstm(self.words(words))[0]).movedim(-1, 1)


def test_token_prediction():
    tokens = random_integers(20, 24, 9)
    tags = tokens % 4
    tags[random(24, 9) > 1] = -100
    clients = [(tokens[:10], tags[:10]), (tokens[10:], tags[10:])]
    tagger = Tagger()
    names = {"tagger": tagger, "clients": clients, "tokens": tokens, "tags": tags}
    result = fit_row("token prediction", PLAIN, **names)
    assert_same_weights(result.model, train_plainly(tagger, full_batches(clients)))
    outputs = load_trained(tagger, result)(tokens)
    counted = tags != -100
    assert 0 < counted.sum() < counted.numel()
    losses = functional.cross_entropy(outputs.movedim(1, -1)[counted], tags[counted])
    assert result.last("loss") == pytest.approx(float(losses), abs=1e-6)
    right = (outputs.argmax(1) == tags)[counted].double().mean()
    assert result.last("accuracy") == pytest.approx(float(right))


class Patients(nn.Module):
    """Takes a picture and an age."""

    def __init__(self):
        super().__init__()
        self.picture = nn.Linear(6, 3)
        self.years = nn.Linear(1, 3)

    def forward(self, image, age):
        return self.picture(image.flatten(1)) + self.years(age)


PICTURES = random(25, 2, 3)
AGES = random(25, 1)
HEALTH = (AGES[:, 0] > 0).long()
PATIENTS = [(PICTURES[:9], AGES[:9], HEALTH[:9]), (PICTURES[9:], AGES[9:], HEALTH[9:])]


def test_two_inputs():
    net = Patients()
    result = fit_row("two inputs", PLAIN, net=net, clients=PATIENTS)
    pairs = [((image, age), y) for image, age, y in PATIENTS]
    assert_same_weights(result.model, train_plainly(net, full_batches(pairs)))


def test_inputs_by_name():
    net = Patients()
    result = fit_row("inputs by name", PLAIN, net=net, clients=PATIENTS)
    pairs = [({"age": age, "image": image}, y) for image, age, y in PATIENTS]
    assert_same_weights(result.model, train_plainly(net, full_batches(pairs)))


# Losses


def test_regression():
    slope = torch.tensor([[1.0], [-2.0], [0.0], [0.5]])
    y = X @ slope + 0.1 * random(40, 1)
    clients = [(X[:17], y[:17]), (X[17:], y[17:])]
    net = nn.Linear(4, 1)
    result = fit_row("regression", PLAIN, net=net, clients=clients, test=(X, y))
    loss = partial(pair_loss, functional.mse_loss)
    assert_same_weights(result.model, train_plainly(net, full_batches(clients), loss))
    errors = (load_trained(net, result)(X) - y).abs()
    assert result.last("mae") == pytest.approx(float(errors.mean()), rel=1e-5)


def test_several_labels_at_once():
    y = (X[:, :3] > 0).float()
    clients = [(X[:17], y[:17]), (X[17:], y[17:])]
    net = nn.Linear(4, 3)
    result = fit_row("several labels at once", PLAIN, net=net, clients=clients, test=(X, y))
    loss = partial(pair_loss, functional.binary_cross_entropy_with_logits)
    assert_same_weights(result.model, train_plainly(net, full_batches(clients), loss))
    right = (load_trained(net, result)(X).sigmoid() > 0.5) == y.bool()
    assert result.last("label_accuracy") == pytest.approx(float(right.double().mean()))


def focal(outputs, targets):
    """Return a cross-entropy that weighs hard samples more."""
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).mean()


def f1(outputs, targets):
    """Return the mean over three classes of their F1."""
    found = functional.one_hot(outputs.argmax(1), 3).double()
    true = functional.one_hot(targets, 3).double()
    return (2 * (found * true).sum(0) / (found.sum(0) + true.sum(0)).clamp(min=1)).mean()


def test_own_loss_and_f1():
    net = small_network()
    names = {"net": net, "clients": CLIENTS, "test": TEST, "focal": focal, "f1": f1}
    result = fit_row("own loss and F1", PLAIN, **names)
    loss = partial(pair_loss, focal)
    assert_same_weights(result.model, train_plainly(net, full_batches(CLIENTS), loss))
    answers = load_trained(net, result)(X).argmax(1)
    expected = f1_score(Y, answers, average="macro", zero_division=0.0)
    assert result.last("f1") == pytest.approx(expected)


# Forms of data


def test_loaders():
    samples = list(zip(X, Y, strict=True))

    def doubled(batch):
        return 2 * torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])

    loaders = [DataLoader(samples[:17], 4, collate_fn=doubled), DataLoader(samples[17:], 4)]
    net = small_network()
    result = fit_row("DataLoader", PLAIN, net=net, loaders=loaders, loader=DataLoader(samples))
    clients = [(2 * X[:17], Y[:17]), (X[17:], Y[17:])]
    assert_same_weights(result.model, train_plainly(net, full_batches(clients)))
    right = (load_trained(net, result)(X).argmax(1) == Y).double().mean()
    assert result.last("accuracy") == pytest.approx(float(right))


def test_a_thousand_lazy_clients():
    read = []

    def read_client(client):
        read.append(client)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(client))
        return x, (x[:, 0] > 0).long()

    net = small_network()
    names = {"net": net, "read_client": read_client}
    result = fit_row("1,000 clients, read when needed", PLAIN, **names)
    cohorts = [read[-10:-5], read[-5:]]
    assert len(set(read)) <= 11  # one may be looked at before training begins
    expected = net
    for cohort in cohorts:
        batches = full_batches([read_client(client) for client in cohort])
        expected = train_plainly(expected, batches, rates=(0.1,))
    assert_same_weights(result.model, expected)


# Local training


def test_batch_norm_with_one_sample_left_over():
    seen = []
    layers = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    net = nn.Sequential(Recorded(seen), *layers)
    clients = [(X[:13], Y[:13])]
    with pytest.raises(InputError, match="Client 0 has 13 samples"):
        fit(net, clients, **PLAIN | {"batch_size": 4})
    seen.clear()
    settings = PLAIN | {"rounds": 1, "local_epochs": 2}
    result = fit_row("BatchNorm, one sample left over", settings, net=net, clients=clients)
    assert [len(x) for x in seen[-6:]] == [4, 4, 5, 4, 4, 5]
    expected = train_plainly(net, [with_labels(seen[-6:])], rates=(0.1,))
    assert_same_weights(result.model, expected)


def test_adamw_clients():
    net = small_network()
    result = fit_row("AdamW on the clients", PLAIN, net=net, clients=CLIENTS)
    optimizer = partial(AdamW, weight_decay=0.01)
    batches = full_batches(CLIENTS)
    expected = train_plainly(net, batches, cross_entropy, optimizer, rates=(0.003, 0.003))
    assert_same_weights(result.model, expected)


def test_cosine_step_size():
    net = small_network()
    result = fit_row("cosine step size", PLAIN, net=net, clients=CLIENTS)
    optimizer = SGD(net.parameters(), lr=0.2)
    schedule = CosineAnnealingLR(optimizer, 5)
    rates = []
    for _ in range(5):
        rates += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    assert result.columns["lr"] == pytest.approx(rates)
    assert_same_weights(result.model, train_plainly(net, full_batches(CLIENTS), rates=rates))


def test_bfloat16():
    def autocast_loss(model, pair):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(pair[0])
        return functional.cross_entropy(outputs.float(), pair[1])

    net = small_network()
    result = fit_row("bfloat16", PLAIN, net=net, clients=CLIENTS)
    batches = full_batches(CLIENTS)
    assert_same_weights(result.model, train_plainly(net, batches, autocast_loss))
    assert {value.dtype for value in result.model.values()} == {torch.float32}
    in_float32 = train_plainly(net, batches)
    assert not torch.allclose(result.model["0.weight"], in_float32[0].weight, rtol=0, atol=1e-5)


def test_accumulated_gradients():
    seen = []
    net = nn.Sequential(Recorded(seen), small_network())
    result = fit_row("accumulated gradients", PLAIN, net=net, clients=CLIENTS)
    assert max(len(x) for x in seen[-12:]) <= 4
    assert_same_weights(result.model, train_plainly(net, full_batches(CLIENTS)))
