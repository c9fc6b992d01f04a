"""Models evaluated on workers: the numbers of one process, bit for bit, whatever happens."""

import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers.small_federation import make_federation
from torch import nn

import fedwmsam
from fedwmsam import InputError
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.workers import Pool
from fedwmsam.methods import FedWMSAM
from fedwmsam.training.objectives import OBJECTIVES, compute_metrics
from fedwmsam.training.task import Task

TEST = "the test data"


class Eventful(nn.Module):
    """A linear model to which something happens while it is evaluated on the batch of zeros."""

    def __init__(self, event):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.event = event

    def forward(self, x):
        if not self.training and not x.any():
            self.event()
        return self.layer(x)


class Die:
    """Kills the process that calls it, once if there is a file to remove, else each time."""

    def __init__(self, file=None):
        self.file = file
        self.main_process = os.getpid()

    def __call__(self):
        if os.getpid() == self.main_process or (self.file and not self.file.exists()):
            return
        if self.file:
            self.file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def fail():
    """Raise the error of a model that was never evaluated before."""
    raise ArithmeticError("no such mode")


def linger():
    """Take longer than the batches that come after."""
    time.sleep(0.5)


def make_samples(count=3500):
    """Return samples in four batches, the second of which is the batch of zeros."""
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    inputs[1000:2000] = 0
    return TensorSamples(inputs, torch.arange(count) % 3)


def federation_of(model, loss="classification"):
    task = Task(model, OBJECTIVES[loss])
    return replace(make_federation(FedWMSAM()), task=task)


def outputs_on(place, task, samples, scale=1.0):
    """Return the predictions that a pool or a task makes with the initial weights, scaled."""
    return place.compute_outputs(scale * task.initial_weights, task.initial_buffers, samples)


def assert_same(predictions, expected):
    assert torch.equal(predictions.outputs, expected.outputs)
    assert predictions.outputs.stride() == expected.outputs.stride()
    assert torch.equal(predictions.targets, expected.targets)
    assert predictions.loss == expected.loss


def test_batches_are_joined_in_their_order_whichever_is_ready_first():
    federation = federation_of(Eventful(linger))
    samples = make_samples()
    with Pool(federation, 2, {TEST: samples}) as pool:
        for scale in (1.0, -2.0):  # another model is evaluated by the same workers
            predictions = outputs_on(pool, federation.task, samples, scale)
            assert_same(predictions, outputs_on(federation.task, federation.task, samples, scale))
        assert pool.cpu_seconds > 0
        assert all(worker.inbox.map is None for worker in pool.workers)  # weights are shared


def test_a_worker_that_dies_while_it_evaluates_changes_nothing(tmp_path):
    marker = tmp_path / "alive"
    marker.touch()
    federation = federation_of(Eventful(Die(marker)))
    samples = make_samples()
    with Pool(federation, 2, {TEST: samples}) as pool:
        predictions = outputs_on(pool, federation.task, samples)
    assert not marker.exists()
    assert_same(predictions, outputs_on(federation.task, federation.task, samples))


def test_a_batch_that_kills_every_worker_is_named_and_data_of_one_batch_stay_here():
    federation = federation_of(Eventful(Die()))
    samples = make_samples()
    few = TensorSamples(torch.zeros(1000, 4), torch.zeros(1000, dtype=torch.long))
    with Pool(federation, 1, {TEST: samples, "few": few}) as pool:
        assert outputs_on(pool, federation.task, few).outputs.shape == (1000, 3)
        with pytest.raises(InputError, match="die on samples 1000 to 1999 of the test data"):
            outputs_on(pool, federation.task, samples)


def test_an_error_in_evaluation_is_the_models_own_and_leaves_no_reply_behind():
    federation = federation_of(Eventful(fail))
    samples = make_samples()
    harmless = TensorSamples(1 + samples.inputs, samples.targets)
    with Pool(federation, 2, {TEST: samples, "others": harmless}) as pool:
        with pytest.raises(ArithmeticError, match="no such mode"):
            outputs_on(pool, federation.task, samples)
        predictions = outputs_on(pool, federation.task, harmless, 3.0)
    assert_same(predictions, outputs_on(federation.task, federation.task, harmless, 3.0))


class Tagger(nn.Module):
    """Computes its loss itself, as models of transformers do, with the classes last."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, words, labels):
        logits = self.table(words)
        loss = nn.functional.cross_entropy(logits.movedim(-1, 1), labels)
        return SimpleNamespace(logits=logits, loss=loss)


class Sentences(torch.utils.data.Dataset):
    """Sentences of equal length within a batch of the evaluation, but not of two batches."""

    def __len__(self):
        return 2100

    def __getitem__(self, index):
        words = torch.arange(4 + index // 1000) + index
        return {"words": words % 7, "labels": words % 3}


def test_models_with_a_loss_of_their_own_and_batches_of_different_lengths():
    federation = federation_of(Tagger())
    samples = make_data_adapter(federation.task).to_samples(Sentences(), "The test data")
    expected = outputs_on(federation.task, federation.task, samples)
    assert expected.outputs.shape == (4 * 1000 + 5 * 1000 + 6 * 100, 3)
    with Pool(federation, 2, {TEST: samples}) as pool:
        predictions = outputs_on(pool, federation.task, samples)
    assert_same(predictions, expected)
    assert predictions.loss == pytest.approx(
        compute_metrics(federation.task.objective, expected._replace(loss=None))["loss"]
    )


def test_a_run_leaves_the_same_bytes_with_any_number_of_workers(tmp_path):
    """Test and validation data, the averaged twin, BatchNorm and the breakdown by client."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(9000, 6, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    clients = {f"c{k}": (x[1500 * k : 1500 * k + 1500], y[1500 * k :][:1500]) for k in range(4)}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    for workers in (1, 2, 3):
        fedwmsam.fit(
            model,
            clients,
            test=(x[6000:], y[6000:]),
            validation=0.3,
            twin=8.0,
            rounds=2,
            local_steps=3,
            participation=0.5,
            workers=workers,
            run_folder=tmp_path / str(workers),
            progress=False,
        )
    for name in (
        "metrics.jsonl",
        "clients.json",
        "model.safetensors",
        "averaged.safetensors",
        "best.safetensors",
    ):
        contents = [(tmp_path / str(workers) / name).read_bytes() for workers in (1, 2, 3)]
        assert contents[0] == contents[1] == contents[2], name


def make_half_frozen():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    return model


def test_a_resumed_run_trains_and_evaluates_with_its_own_frozen_weights(tmp_path):
    """They are not those of the model that is given, and workers start before they are read."""
    samples = make_samples()
    data = (samples.inputs, samples.targets)
    clients = [(data[0][k::9], data[1][k::9]) for k in range(4)]
    weights = make_half_frozen().state_dict()
    for workers in (1, 2):
        settings = {"test": data, "local_steps": 2, "run_folder": tmp_path / str(workers)}
        settings |= {"progress": False, "participation": 0.5}
        model = make_half_frozen
        fedwmsam.fit(model, clients, rounds=1, initial_weights=weights, **settings)
        fedwmsam.fit(model, clients, rounds=2, resume=True, workers=workers, **settings)
    for name in ("metrics.jsonl", "model.safetensors"):
        one, two = ((tmp_path / workers / name).read_bytes() for workers in ("1", "2"))
        assert one == two
