"""The local loop reuses memory; no method may notice."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedwmsam.data.clients import TensorSamples
from fedwmsam.methods import FedAvg
from fedwmsam.methods.base import Info
from fedwmsam.methods.vectors import clip
from fedwmsam.training.local import LocalRules, Step, train_locally
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task

LR = 0.1
STEPS = 4
INPUTS = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
SAMPLES = TensorSamples(INPUTS, torch.ones(8, 1))
START = torch.tensor([0.5, -1.0, 2.0])
PLAIN = LocalRules(0.0, "objective", None)


def make_info(task, lr=LR, steps=STEPS):
    """Return the facts about a round of one client with eight samples."""
    return Info(
        round=0,
        lr=lr,
        clients=1,
        cohort=1,
        share=1.0,
        steps=steps,
        samples=8,
        layout=task.layout,
    )


@dataclass(frozen=True)
class KeepsItsDirection(FedAvg):
    name: ClassVar[str] = "keeps"

    def begin(self, down, full_gradient, info):
        return {"last": torch.zeros_like(down["w"])}

    def direction(self, w, grad, down, scratch):
        v = grad(w) + 0.5 * scratch["last"]
        return v, {"last": v}


@dataclass(frozen=True)
class KeepsAView(KeepsItsDirection):
    def direction(self, w, grad, down, scratch):
        v, _ = super().direction(w, grad, down, scratch)
        return v, {"last": v.view(-1)}


@dataclass(frozen=True)
class ReturnsWhatItWasSent(FedAvg):
    name: ClassVar[str] = "returns"

    def direction(self, w, grad, down, scratch):
        return down["m"], scratch


@dataclass(frozen=True)
class ReturnsThePosition(FedAvg):
    name: ClassVar[str] = "position"

    def direction(self, w, grad, down, scratch):
        return w, scratch


def train_weights(method, rules=PLAIN, **vectors):
    """Return the weights after a round of local steps that starts at START.

    `vectors` are sent down with the model; nothing that was sent may be changed.
    """
    task = Task(lambda: nn.Linear(3, 1, bias=False), OBJECTIVES["regression"])
    steps = [Step(torch.arange(8), seed=0)] * STEPS
    down = {"w": START.clone(), **vectors}
    before = {name: value.clone() for name, value in down.items()}
    result = train_locally(
        task, method, down, {}, SAMPLES, steps, make_info(task), rules, steps_per_epoch=1
    )
    assert all(torch.equal(down[name], value) for name, value in before.items())
    return START + result.up["delta"]


def gradient(w):
    residuals = INPUTS @ w[:, None] - SAMPLES.targets
    return (2 * residuals * INPUTS).mean(dim=0)


def test_a_direction_kept_for_the_next_step_is_not_overwritten():
    w = START.clone()
    last = torch.zeros(3)
    for _ in range(STEPS):
        last = gradient(w) + 0.5 * last
        w = w - LR * last
    assert torch.allclose(train_weights(KeepsItsDirection()), w, atol=1e-6)
    assert torch.allclose(train_weights(KeepsAView()), w, atol=1e-6)


def test_a_direction_that_was_sent_down_is_not_overwritten():
    m = torch.tensor([1.0, 2.0, 3.0])
    weights = train_weights(ReturnsWhatItWasSent(), m=m)
    assert torch.allclose(weights, START - STEPS * LR * m, atol=1e-6)


def test_a_position_returned_as_direction_is_not_overwritten():
    weights = train_weights(ReturnsThePosition())
    assert torch.allclose(weights, START * (1 - LR) ** STEPS, atol=1e-6)


def test_a_position_returned_as_direction_survives_a_proximal_term_and_decay():
    @dataclass(frozen=True)
    class Pulled(ReturnsThePosition):
        def pull(self, w, down):
            return 0.5 * w

    weights = train_weights(Pulled(), rules=LocalRules(0.25, "sgd", None))
    assert torch.allclose(weights, START * (1 - LR * (1 + 0.5 + 0.25)) ** STEPS, atol=1e-6)


def test_the_reported_loss_is_the_mean_of_the_losses_at_the_start_of_each_step():
    """It has the model's precision, and counts each step once, however many gradients it takes."""
    x = INPUTS.double()
    y = SAMPLES.targets.double()
    losses = []

    @dataclass(frozen=True)
    class TakesTwoGradients(FedAvg):
        def direction(self, w, grad, down, scratch):
            losses.append(float(((x @ w[:, None] - y) ** 2).mean()))
            v = grad(w)
            grad(w + v)
            return v, scratch

    task = Task(lambda: nn.Linear(3, 1, bias=False).double(), OBJECTIVES["regression"])
    result = train_locally(
        task,
        TakesTwoGradients(),
        {"w": START.double()},
        {},
        TensorSamples(x, y),
        [Step(torch.arange(8), seed=0)] * STEPS,
        make_info(task),
        PLAIN,
        steps_per_epoch=1,
    )
    assert result.loss == pytest.approx(sum(losses) / STEPS, rel=1e-13)
    assert losses[0] > 2 * losses[-1]
    assert result.backprops == 2 * STEPS


class NoisySamples(TensorSamples):
    """Samples whose inputs have noise that depends on the seed."""

    def batch(self, index, seed):
        inputs, targets = super().batch(index, seed)
        noise = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(seed))
        return inputs + noise, targets


@dataclass(frozen=True)
class TakesTheFullGradient(FedAvg):
    def begin(self, down, full_gradient, info):
        return {"full": full_gradient(down["w"])}


def test_the_full_gradient_has_the_batches_noise_and_dropout_of_the_steps():
    """The batches differ in size. The step size is 0, so that all gradients are at one point."""
    gradients = []

    @dataclass(frozen=True)
    class RecordsGradients(TakesTheFullGradient):
        def direction(self, w, grad, down, scratch):
            gradients.append(grad(w))
            return gradients[-1].clone(), scratch

        def uplink(self, delta, down, scratch, info):
            return {"delta": delta, "from": down["w"], **scratch}

    task = Task(
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1, bias=False)),
        OBJECTIVES["regression"],
    )
    steps = [
        Step(torch.arange(5), seed=3),
        Step(torch.arange(5, 8), seed=4),
        Step(torch.arange(5), seed=5),
    ]
    result = train_locally(
        task,
        RecordsGradients(),
        {"w": START},
        {},
        NoisySamples(INPUTS, SAMPLES.targets),
        steps,
        make_info(task, lr=0.0, steps=3),
        LocalRules(0.1, "objective", None),
        steps_per_epoch=2,
    )
    mean = (5 * gradients[0] + 3 * gradients[1]) / 8
    assert torch.allclose(result.up["full"], mean, atol=1e-6)
    assert not torch.allclose(gradients[0], gradients[2])
    assert torch.equal(result.up["from"], START)
    assert result.backprops == 2 + 3


def buffers_after_training(method):
    """Return the buffers after one step of a model with BatchNorm."""
    task = Task(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)), OBJECTIVES["regression"])
    result = train_locally(
        task,
        method,
        {"w": task.initial_weights},
        task.initial_buffers,
        SAMPLES,
        [Step(torch.arange(8), seed=0)],
        make_info(task, steps=1),
        PLAIN,
        steps_per_epoch=1,
    )
    return result.buffers


def test_taking_the_full_gradient_changes_no_statistics():
    plain = buffers_after_training(FedAvg())
    surveyed = buffers_after_training(TakesTheFullGradient())
    assert surveyed["0.running_mean"].any() and int(surveyed["0.num_batches_tracked"]) == 1
    assert surveyed.keys() == plain.keys()
    assert all(torch.equal(surveyed[name], plain[name]) for name in plain)


def test_clip_decides_exactly_near_its_limit():
    for length in (9.98, 9.9899, 9.99, 9.9999985, 10.0, 10.1, 1e30, float("inf")):
        v = torch.tensor([length, 0.0])
        assert float(clip(v, 10.0).norm()) <= 10.0 or length == float("inf")
        if length < 9.999:
            assert clip(v, 10.0) is v
    # For tiny limits the guard against 0/0 counts.
    assert float(clip(torch.tensor([5e-7, 0.0]), 1e-6)[0]) < 5e-7
