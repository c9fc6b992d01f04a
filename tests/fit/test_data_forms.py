"""`fit` takes clients' data in many forms, and all give the same model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    FULL_PARTICIPATION,
    QUICK,
    TEST,
    ArrayDataset,
    Arrays,
    are_equal,
    linear_model,
    stateful_model,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from fedwmsam import InputError, Result, fit


class DictDataset(ArrayDataset):
    """A dataset whose samples need a collate function of their own."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": self.x[index].tolist(), "label": int(self.y[index])}


def collate_dicts(samples: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    features = torch.tensor([sample["features"] for sample in samples])
    labels = torch.tensor([sample["label"] for sample in samples])
    return features, labels


FORMS: dict[str, dict[str, Any]] = {
    "tensors": {"clients": [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in CLIENTS]},
    "lists of two": {"clients": [[x, y] for x, y in CLIENTS]},
    "float64 and int32": {
        "clients": [(x.astype(np.float64), y.astype(np.int32)) for x, y in CLIENTS]
    },
    "datasets": {"clients": [ArrayDataset(x, y) for x, y in CLIENTS]},
    "own collate": {
        "clients": [DictDataset(x, y) for x, y in CLIENTS],
        "collate": collate_dicts,
    },
    "lists of samples": {"clients": [list(zip(x, y, strict=True)) for x, y in CLIENTS]},
    "lazy pairs": {"clients": lambda client: CLIENTS[client], "client_count": 4},
    "lazy datasets": {"clients": lambda client: ArrayDataset(*CLIENTS[client]), "client_count": 4},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("test", [None, TEST], ids=["no test data", "test data"])
def test_every_form_of_the_same_data_gives_the_same_model(form: str, test: Arrays | None) -> None:
    """Without test data a client's batches are the first that the model is tried on."""
    expected = fit(stateful_model, CLIENTS, test=test, **QUICK)
    result = fit(stateful_model, test=test, **FORMS[form], **QUICK)
    assert are_equal(result.model, expected.model)
    assert result.rows == expected.rows


def test_lazy_clients_are_read_only_when_sampled() -> None:
    loaded: list[int] = []

    def load(client: int) -> Arrays:
        loaded.append(client)
        return CLIENTS[client % 4]

    fit(linear_model, load, client_count=1000, rounds=2, clients_per_round=3, local_epochs=1)
    assert 3 <= len(loaded) <= 6
    assert all(0 <= client < 1000 for client in loaded)


def test_lazy_clients_weighed_by_size_need_their_sizes() -> None:
    def fit_lazy_clients(**options: Any) -> Result:
        settings = FULL_PARTICIPATION | {"averaging": "size", "client_count": 4}
        return fit(linear_model, lambda client: CLIENTS[client], **settings, **options)

    with pytest.raises(InputError, match="client_sizes"):
        fit_lazy_clients()
    lazy = fit_lazy_clients(client_sizes=[len(y) for _, y in CLIENTS])
    eager = fit(linear_model, CLIENTS, averaging="size", **FULL_PARTICIPATION)
    assert are_equal(lazy.model, eager.model)


def test_a_model_in_double_precision_stays_in_it() -> None:
    result = fit(lambda: linear_model().double(), CLIENTS, test=TEST, **QUICK)
    assert {value.dtype for value in result.model.values()} == {torch.float64}
    assert result.predict(TEST[0]).dtype == torch.float64


def test_numbers_from_numpy_are_numbers(tmp_path: Path) -> None:
    settings = QUICK | {"lr": 0.0625, "seed": 3}
    plain = fit(linear_model, CLIENTS, **settings)
    double = settings | {"lr": np.float64(0.0625)}
    fit(linear_model, CLIENTS, run_folder=tmp_path / "double", **double)
    assert are_equal(Result.load(tmp_path / "double").model, plain.model)
    single = settings | {"lr": np.float32(0.0625), "seed": np.int64(3)}
    result = fit(linear_model, CLIENTS, run_folder=tmp_path / "single", **single)
    assert are_equal(result.model, plain.model)
    assert Result.load(tmp_path / "single").config["seed"] == 3


class TokenDataset(ArrayDataset):
    """A dataset whose samples are as rows of Hugging Face are without a format: lists."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": self.x[index].tolist(), "labels": int(self.y[index])}


class TokenModel(nn.Module):
    """A classifier of sequences of any length, which computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(20, 3, mode="sum", padding_idx=0)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.embedding(tokens)
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


class LookUp(TokenModel):
    """The classifier with the embedding that models of transformers have."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(15, 3))


def make_tokens(samples: int, length: int, seed: int) -> TokenDataset:
    rng = np.random.default_rng(seed)
    return TokenDataset(rng.integers(1, 20, (samples, length)), rng.integers(3, size=samples))


def join_padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = [torch.tensor(sample["tokens"]) for sample in samples]
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"tokens": pad_sequence(tokens, batch_first=True), "labels": labels}


LENGTHS = ((3, 5), (4, 7))
"""The lengths of two clients' texts."""


def test_a_batch_of_a_new_length_leaves_the_model_in_training_mode() -> None:
    """The model is tried on each new shape, which padded text has all the time."""
    modes: list[bool] = []

    class Spy(TokenModel):
        def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Any:
            if torch.is_grad_enabled():
                modes.append(self.training)
            return super().forward(tokens, labels)

    rows = [[*make_tokens(2, short, 0), *make_tokens(2, long, 0)] for short, long in LENGTHS]
    settings = FULL_PARTICIPATION | {"batch_size": 1, "rounds": 2}
    fit(Spy, rows, collate=join_padded, **settings)
    assert len(modes) == 16
    assert all(modes)


def test_a_number_without_a_row_in_the_embedding_is_refused_by_client() -> None:
    """The first row of a client's is tried before training; this one is not the first."""
    data = make_tokens(8, 5, 0)
    data.x[5, 2] = 20
    with pytest.raises(InputError, match=r"^Client 1 has a number for which .* tokenizer"):
        fit(LookUp, [make_tokens(8, 5, 1), data], collate=join_padded, **FULL_PARTICIPATION)


@pytest.mark.parametrize("batch_size", [6, 8])
def test_lists_are_not_trained_on_as_columns(batch_size: int) -> None:
    """Of eight lists of eight numbers the default collate makes eight columns without a word."""
    clients: list[Any] = [make_tokens(8, 8, seed) for seed in range(2)]
    settings = FULL_PARTICIPATION | {"batch_size": batch_size}
    with pytest.raises(InputError, match=r"Client 0: the field 'tokens'.*with_format.*collate="):
        fit(TokenModel, clients, **settings)
    with pytest.raises(InputError, match="Client 0: the field 'tokens'"):
        fit(TokenModel, [DataLoader(data) for data in clients], **settings)
    with pytest.raises(InputError, match="Client 0: the target"):
        fit(linear_model, [[(torch.ones(4), [1, 0]) for _ in range(2)]], **settings)
    result = fit(TokenModel, clients, collate=join_padded, **settings)
    assert result.status == "completed"


def test_samples_that_the_default_collate_cannot_join_are_refused_by_client() -> None:
    ragged = [make_tokens(1, 8, 0)[0], make_tokens(1, 5, 0)[0]]
    with pytest.raises(InputError, match="Client 0: PyTorch's default collate cannot join"):
        fit(TokenModel, [ragged], **FULL_PARTICIPATION)


def test_a_batch_has_as_many_inputs_as_targets() -> None:
    def collate_columns(samples: list[Any]) -> tuple[Tensor, Tensor]:
        features = torch.stack([torch.from_numpy(x) for x, _ in samples], dim=1)
        return features, torch.tensor([int(y) for _, y in samples])

    clients = [ArrayDataset(x, y) for x, y in CLIENTS]
    with pytest.raises(InputError, match="Client 0: 4 inputs but 12 targets"):
        fit(linear_model, clients, collate=collate_columns, **FULL_PARTICIPATION)


@pytest.mark.parametrize("labels", [["ill", "well"] * 6, [None] * 12])
def test_text_is_refused_by_client(labels: list[Any]) -> None:
    words = np.array(labels)
    with pytest.raises(InputError, match="Client 1: the targets must be numbers"):
        fit(linear_model, [CLIENTS[0], (CLIENTS[0][0], words)], **QUICK)
    with pytest.raises(InputError, match="Client 1: the inputs must be numbers"):
        fit(linear_model, [CLIENTS[0], (words, CLIENTS[0][1])], **QUICK)


def test_a_validation_share_of_padded_clients_is_padded_to_their_longest() -> None:
    clients: list[Any] = [make_tokens(10, length, length) for length in (5, 9, 7)]
    settings = FULL_PARTICIPATION | {"validation": 0.2, "collate": join_padded}
    result = fit(TokenModel, clients, **settings)
    longest = np.zeros((3, 10, 9), dtype=np.int64)
    for row, data in zip(longest, clients, strict=True):
        row[:, : data.x.shape[1]] = data.x
    padded: list[Any] = [TokenDataset(x, d.y) for x, d in zip(longest, clients, strict=True)]
    assert result.rows == fit(TokenModel, padded, **settings).rows
    assert result.rows[0]["validation_accuracy"] is not None


def test_clients_of_different_shapes_have_no_validation_share() -> None:
    def sums(length: int) -> tuple[Tensor, Tensor]:
        return torch.ones(8, length, dtype=torch.long), torch.arange(8) % 3

    bag = nn.EmbeddingBag(4, 3)
    with pytest.raises(InputError, match=r"differ in shape: \(2, 5\), \(2, 7\).*collate="):
        fit(bag, [sums(5), sums(7)], validation=0.25, **FULL_PARTICIPATION)


def test_weights_in_bfloat16_are_trained_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for model, is_warned in ((linear_model, False), (lambda: linear_model().bfloat16(), True)):
        fit(model, CLIENTS, **FULL_PARTICIPATION)
        assert ("loses small steps" in caplog.text) == is_warned
