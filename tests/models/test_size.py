"""A model that the machine cannot hold is refused as a number, before any memory is taken."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_files import catch_refusal

from fedwmsam.data import load_dataset, make_partition
from fedwmsam.experiment.experiment import prepare
from fedwmsam.models import MODELS, model_factory
from fedwmsam.models.size import count_weights, most_weights
from fedwmsam.settings.config import resolve_config


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("mlp", (64,), 500_000_000),  # a forged data.json
        ("linear", (3, 100_000, 100_000), 10**6),
        ("char", (40,), 500_000_000),
        ("lenet", (3, 2**31, 2**31), 10),
        ("cnn", (2**40, 32, 32), 10),
        ("mlp", (10**30,), 10),
        ("mlp", (8, 8), 10**400),
    ],
)
def test_claims_of_any_size_are_refused_with_the_number(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    message = catch_refusal(lambda: model_factory(name, shape, classes))
    assert f"model {name!r}" in message and "would need" in message
    assert "this machine has" in message and "GB" in message


def test_the_number_is_that_of_the_weights_and_as_much_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedwmsam.models.size.machine_memory", lambda: 24 * 10**9)
    message = catch_refusal(lambda: model_factory("linear", (10**6,), 16_384))
    assert "would need 131 GB, this machine has 24 GB" in message
    assert model_factory("linear", (10**6,), 100)


@pytest.mark.parametrize(
    ("shape", "classes"), [((64,), "ten"), (("a\n",), 10), ((64,), 0), ((-1,), 10), ((64,), True)]
)
def test_what_is_no_size_is_refused(shape: tuple[int, ...], classes: int) -> None:
    assert "whole numbers" in catch_refusal(lambda: model_factory("mlp", shape, classes))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("classes", [1, 10, 30_000])
def test_no_model_has_more_weights_than_the_bound(name: str, classes: int) -> None:
    for shape in ((40,),) if name == "char" else ((3, 32, 32), (1, 16, 400), (50, 64, 64)):
        assert count_weights(MODELS[name], shape, classes) <= most_weights(shape, classes)


def test_counting_takes_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert count_weights(MODELS["resnet18"], (3, 32, 32), 10) == 11_181_642
    assert torch.equal(torch.get_rng_state(), before)


def test_a_small_archive_cannot_ask_for_a_large_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwmsam.models.size.machine_memory", lambda: 24 * 10**9)
    path = tmp_path / "small.npz"
    labels = np.tile([0, 65_535], 5)
    np.savez_compressed(path, x=np.zeros((10, 300_000), np.uint8), y=labels)
    assert path.stat().st_size < 40_000
    assert load_dataset(str(path)).num_classes == 65_536
    config = resolve_config({"dataset": str(path), "model": "linear", "clients": 2})
    assert "would need 157 GB" in catch_refusal(lambda: prepare(config))


def test_a_table_of_clients_and_classes_is_refused_with_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedwmsam.data.partitions.registry.machine_memory", lambda: 24 * 10**9)
    labels = np.zeros(10**6, np.int64)
    message = catch_refusal(lambda: make_partition("iid", labels, 10**6, seed=0, classes=65_536))
    assert "would need 1,573 GB, this machine has 24 GB" in message
