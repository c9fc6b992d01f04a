"""`fit` takes clients' data in many forms, and all give the same model."""

from pathlib import Path
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
from torch import Tensor

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
def test_every_form_of_the_same_data_gives_the_same_model(form: str) -> None:
    expected = fit(stateful_model, CLIENTS, test=TEST, **QUICK)
    result = fit(stateful_model, test=TEST, **FORMS[form], **QUICK)
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
