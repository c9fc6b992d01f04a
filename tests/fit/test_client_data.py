"""Clients by name, and the fingerprint by which a resumed run knows their data again."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    QUICK,
    REGRESSION_CLIENTS,
    TEST,
    ArrayDataset,
    are_equal,
    linear_model,
    make_blobs,
    make_line,
    regression_model,
    stateful_model,
)

from fedwmsam import InputError, Result, fit
from fedwmsam.data.clients import LazyClients, TensorSamples
from fedwmsam.data.fingerprint import fingerprint
from fedwmsam.page.clients import accuracy_by_name
from fedwmsam.report.runs import read_run

NAMES = ("hospital a", "hospital b", "clinic", "surgery")
NAMED = dict(zip(NAMES, CLIENTS, strict=True))
ALL: dict[str, Any] = QUICK | {"participation": 1.0}


# Names


def test_names_change_no_number() -> None:
    named = fit(linear_model, NAMED, test=TEST, **QUICK)
    listed = fit(linear_model, CLIENTS, test=TEST, **QUICK)
    assert are_equal(named.model, listed.model)
    for row, same in zip(named.rows, listed.rows, strict=True):
        assert same.items() <= row.items()
    assert named.client_names == NAMES and listed.client_names == ()
    assert listed.client_accuracies == {}


def test_the_accuracy_is_known_by_name(tmp_path: Path) -> None:
    """It is the accuracy of each class, weighed as often as the client has it."""
    run = tmp_path / "run"
    result = fit(linear_model, NAMED, test=TEST, validation=0.2, run_folder=run, **QUICK)
    right = (result.predict(TEST[0]).argmax(1).numpy() == TEST[1]).astype(float)
    by_class = np.array([right[TEST[1] == label].mean() for label in range(3)])
    for name, (_, labels) in NAMED.items():
        assert result.client_accuracies[name] == pytest.approx(by_class[labels].mean())
    assert result.last("worst_client_accuracy") == min(result.client_accuracies.values())
    loaded = Result.load(run)
    assert loaded.client_names == NAMES
    assert loaded.client_accuracies == result.client_accuracies
    assert accuracy_by_name(read_run(run)) == result.client_accuracies


def test_recordings_are_by_name() -> None:
    settings = ALL | {"record": "drift,alignment", "record_every": 1}
    record = fit(linear_model, NAMED, **settings).recordings[0]
    assert set(record["drift"]["norm"]["clients"]) == set(NAMES)
    measured = record["alignment"]["radius"]["clients"]  # a few of them
    assert measured and set(measured) < set(NAMES)


@pytest.mark.parametrize("workers", [1, 2])
def test_messages_name_the_client(workers: int) -> None:
    class Broken(ArrayDataset):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[0][:3], 0

    clients = NAMED | {"clinic": Broken(*CLIENTS[2])}
    with pytest.raises(InputError, match="Client 'clinic': "):
        fit(linear_model, clients, workers=workers, **ALL)


def test_mistakes_are_told_by_name() -> None:
    with pytest.raises(InputError, match="Client 'clinic': label 7 is out of range"):
        fit(linear_model, NAMED | {"clinic": (CLIENTS[0][0], CLIENTS[0][1] + 5)}, **QUICK)
    one_left = NAMED | {"clinic": make_blobs(7, 3)}
    with pytest.raises(InputError, match="Client 'clinic' has 7 samples"):
        fit(stateful_model, one_left, **QUICK)


def test_a_client_that_is_left_out_is_named(caplog: pytest.LogCaptureFixture) -> None:
    fit(linear_model, NAMED, corrupt="nan:0.3", **ALL)
    assert caplog.messages[0] == "Round 1: left out client 'surgery', update not finite."


@pytest.mark.parametrize(
    ("clients", "reason"),
    [
        ({}, "no clients"),
        ({"x": CLIENTS[0][0], "labels": CLIENTS[0][1]}, "one mapping with 'labels'"),
        ({1: CLIENTS[0], "1": CLIENTS[1]}, "same name"),
        ({"a": CLIENTS[0][0]}, "Client 'a': "),
    ],
)
def test_wrong_mappings_are_refused(clients: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        fit(linear_model, clients, **QUICK)
    with pytest.raises(InputError, match="client_count is 3 but there are 4"):
        fit(linear_model, NAMED, client_count=3, **QUICK)


def test_names_need_no_class_labels() -> None:
    names = dict(zip("abc", REGRESSION_CLIENTS, strict=True))
    result = fit(regression_model, names, test=make_line(9, 9), loss="regression", **QUICK)
    assert result.client_names == ("a", "b", "c") and result.client_accuracies == {}
    datasets = {name: ArrayDataset(*data) for name, data in NAMED.items()}
    assert fit(linear_model, datasets, test=TEST, **QUICK).client_accuracies == {}


def test_a_client_whose_classes_are_not_tested_has_no_accuracy(tmp_path: Path) -> None:
    only_two = (TEST[0][TEST[1] == 2], TEST[1][TEST[1] == 2])
    never_two = {"a": (CLIENTS[0][0], CLIENTS[0][1] % 2)}
    run = tmp_path / "run"
    result = fit(linear_model, never_two, test=only_two, run_folder=run, **ALL)
    assert result.client_accuracies == {"a": None}
    assert read_run(run).status_message == "" and not (run / "clients.json").exists()


# Fingerprints


def changed(client: int, value: Any) -> list[Any]:
    """Return the clients with the data of one replaced."""
    return [value if k == client else data for k, data in enumerate(CLIENTS)]


def with_one_label_changed() -> tuple[np.ndarray, np.ndarray]:
    x, y = CLIENTS[2]
    y = y.copy()
    y[3] = (y[3] + 1) % 3
    return x, y


@pytest.mark.parametrize(
    ("clients", "reason"),
    [
        (changed(2, with_one_label_changed()), "client 2 has other data"),
        (changed(1, (CLIENTS[1][0] + np.float32(1e-6), CLIENTS[1][1])), "client 1 has other data"),
        (changed(3, make_blobs(12, 3)), "client 3 has samples 12, not 11"),
        ([CLIENTS[1], CLIENTS[0], *CLIENTS[2:]], "client 0 has samples 8, not 12"),
    ],
)
def test_other_data_are_noticed(tmp_path: Path, clients: Any, reason: str) -> None:
    settings = QUICK | {"run_folder": tmp_path / "run", "resume": True}
    fit(linear_model, CLIENTS, **settings)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=f"other data: {reason}; put the old ones back"):
        fit(linear_model, clients, **settings | {"rounds": 5})
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    same = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in CLIENTS]
    assert fit(linear_model, same, **settings | {"rounds": 5}).rounds == 5


def test_other_names_are_noticed_and_named(tmp_path: Path) -> None:
    settings = QUICK | {"run_folder": tmp_path / "run", "resume": True}
    fit(linear_model, NAMED, **settings)
    renamed = dict(zip(("hospital a", "hospital z", *NAMES[2:]), CLIENTS, strict=True))
    with pytest.raises(
        InputError, match="client 'hospital z' is called hospital z, not hospital b"
    ):
        fit(linear_model, renamed, **settings)
    with pytest.raises(InputError, match="client 'clinic' has other data"):
        fit(linear_model, NAMED | {"clinic": with_one_label_changed()}, **settings)
    assert fit(linear_model, NAMED, **settings).status == "completed"


def test_what_is_not_known_is_not_compared(tmp_path: Path) -> None:
    settings = QUICK | {"resume": True, "client_count": 4}
    lazy = settings | {"run_folder": tmp_path / "lazy"}
    for rounds in (2, 4):
        fit(linear_model, lambda k: CLIENTS[k], **lazy | {"rounds": rounds})
    datasets = [ArrayDataset(*data) for data in CLIENTS]
    fit(linear_model, datasets, run_folder=tmp_path / "sets", **settings)
    shorter = [ArrayDataset(*make_blobs(7, 0)), *datasets[1:]]
    with pytest.raises(InputError, match="client 0 has samples 7, not 12"):
        fit(linear_model, shorter, run_folder=tmp_path / "sets", **settings)


def test_a_folder_without_a_fingerprint_goes_on(tmp_path: Path) -> None:
    settings = QUICK | {"run_folder": tmp_path / "run", "resume": True}
    fit(linear_model, CLIENTS, **settings)
    (tmp_path / "run" / "fingerprint.json").unlink()
    assert fit(linear_model, CLIENTS, **settings | {"rounds": 5}).rounds == 5


def test_a_private_run_keeps_no_fingerprint(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {"dp_noise": 1.0, "dp_clip": 0.5, "dp_delta": 1e-3, "sampling": "bernoulli"}
    run = tmp_path / "run"
    result = fit(linear_model, NAMED, "fedavg", test=TEST, run_folder=run, **QUICK, **private)
    assert not (run / "fingerprint.json").exists() and result.client_accuracies == {}


def test_the_order_of_named_inputs_does_not_matter() -> None:
    a = torch.arange(6.0)
    b = torch.arange(6.0).flip(0)
    labels = torch.zeros(6).long()
    first = fingerprint([TensorSamples({"a": a, "b": b}, labels)])
    assert fingerprint([TensorSamples({"b": b, "a": a}, labels)]) == first
    assert fingerprint([TensorSamples({"a": b, "b": a}, labels)]) != first


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.float64, torch.int8])
def test_tensors_of_any_type_have_a_digest(dtype: torch.dtype) -> None:
    inputs = torch.arange(12).view(4, 3).to(dtype)
    labels = torch.zeros(4).long()
    digests = {fingerprint([TensorSamples(x, labels)])["digests"][0] for x in (inputs, inputs[:3])}
    assert len(digests) == 2
    assert json.dumps(fingerprint([TensorSamples(inputs.T.contiguous().T, labels)])) == json.dumps(
        fingerprint([TensorSamples(inputs, labels)])
    )


def test_much_data_cost_a_bounded_time() -> None:
    large = TensorSamples(torch.zeros(1).expand(2**24, 512), torch.zeros(2**24, dtype=torch.int8))
    start = time.perf_counter()
    assert fingerprint([large])["samples"] == [2**24]  # 34 GB
    assert time.perf_counter() - start < 10


def test_lazy_clients_are_known_by_what_the_user_says() -> None:
    def load(client: int) -> TensorSamples:
        raise AssertionError("a client was loaded")

    clients = LazyClients(load, 3)
    assert fingerprint(clients)["samples"] == []
    assert fingerprint(clients, [4, 5, 6])["samples"] == [4, 5, 6]
