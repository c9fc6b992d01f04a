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

LR, STEPS = 0.1, 4
SAMPLES = TensorSamples(
    torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.ones(8, 1)
)
START = torch.tensor([0.5, -1.0, 2.0])
PLAIN = LocalRules(0.0, "objective", None)


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


def trained(method, rules=PLAIN, **more):
    task = Task(lambda: nn.Linear(3, 1, bias=False), OBJECTIVES["regression"])
    steps = [Step(torch.arange(8), seed=0)] * STEPS
    info = Info(
        round=0, lr=LR, clients=1, cohort=1, share=1.0, steps=STEPS, samples=8, layout=task.layout
    )
    down = {"w": START.clone(), **more}
    sent = {name: value.clone() for name, value in down.items()}
    result = train_locally(task, method, down, {}, SAMPLES, steps, info, rules, epoch=1)
    assert all(torch.equal(down[name], value) for name, value in sent.items())
    return START + result.up["delta"]


def gradient(w):
    inputs, targets = SAMPLES.inputs, SAMPLES.targets
    return (2 * (inputs @ w[:, None] - targets) * inputs).mean(dim=0)


def test_a_direction_kept_for_the_next_step_is_not_overwritten():
    w, last = START.clone(), torch.zeros(3)
    for _ in range(STEPS):
        last = gradient(w) + 0.5 * last
        w = w - LR * last
    assert torch.allclose(trained(KeepsItsDirection()), w, atol=1e-6)
    assert torch.allclose(trained(KeepsAView()), w, atol=1e-6)


def test_a_direction_that_was_sent_down_is_not_overwritten():
    m = torch.tensor([1.0, 2.0, 3.0])
    assert torch.allclose(trained(ReturnsWhatItWasSent(), m=m), START - STEPS * LR * m, atol=1e-6)


def test_a_position_returned_as_direction_is_not_overwritten():
    assert torch.allclose(trained(ReturnsThePosition()), START * (1 - LR) ** STEPS, atol=1e-6)


def test_a_position_returned_as_direction_is_whole_when_a_force_and_decay_are_added_to_it():
    @dataclass(frozen=True)
    class Pulled(ReturnsThePosition):
        def pull(self, w, down):
            return 0.5 * w

    found = trained(Pulled(), rules=LocalRules(0.25, "sgd", None))
    assert torch.allclose(found, START * (1 - LR * (1 + 0.5 + 0.25)) ** STEPS, atol=1e-6)


def test_the_loss_told_is_the_mean_of_what_each_step_began_with():
    """In the model's own precision, and once a step however often the method looks."""
    x, y = SAMPLES.inputs.double(), SAMPLES.targets.double()
    losses = []

    @dataclass(frozen=True)
    class LooksTwice(FedAvg):
        def direction(self, w, grad, down, scratch):
            losses.append(float(((x @ w[:, None] - y) ** 2).mean()))
            v = grad(w)
            grad(w + v)
            return v, scratch

    task = Task(lambda: nn.Linear(3, 1, bias=False).double(), OBJECTIVES["regression"])
    steps = [Step(torch.arange(8), seed=0)] * STEPS
    info = Info(
        round=0, lr=LR, clients=1, cohort=1, share=1.0, steps=STEPS, samples=8, layout=task.layout
    )
    down = {"w": START.double()}
    result = train_locally(
        task, LooksTwice(), down, {}, TensorSamples(x, y), steps, info, PLAIN, epoch=1
    )
    assert (
        result.loss == pytest.approx(sum(losses) / STEPS, rel=1e-13) and losses[0] > 2 * losses[-1]
    )
    assert result.backprops == 2 * STEPS


class Augmented(TensorSamples):
    """Samples that come with other noise at every draw."""

    def batch(self, index, seed):
        inputs, targets = super().batch(index, seed)
        return inputs + torch.randn(
            inputs.shape, generator=torch.Generator().manual_seed(seed)
        ), targets


def test_the_whole_gradient_is_that_of_the_steps_and_draws_what_they_draw():
    """Batches of unlike sizes, noise and dropout; nobody moves, so that all steps look from the same place."""
    seen = []

    @dataclass(frozen=True)
    class Compares(FedAvg):
        def begin(self, down, full_gradient, info):
            return {"whole": full_gradient(down["w"])}

        def direction(self, w, grad, down, scratch):
            seen.append(grad(w))
            return seen[-1].clone(), scratch

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
    info = Info(
        round=0, lr=0.0, clients=1, cohort=1, share=1.0, steps=3, samples=8, layout=task.layout
    )
    samples, rules = Augmented(SAMPLES.inputs, SAMPLES.targets), LocalRules(0.1, "objective", None)
    result = train_locally(task, Compares(), {"w": START}, {}, samples, steps, info, rules, epoch=2)
    assert torch.allclose(result.up["whole"], (5 * seen[0] + 3 * seen[1]) / 8, atol=1e-6)
    assert not torch.allclose(seen[0], seen[2]) and torch.equal(result.up["from"], START)
    assert result.backprops == 2 + 3


def test_a_look_at_the_whole_gradient_moves_no_statistics():
    @dataclass(frozen=True)
    class Surveys(FedAvg):
        def begin(self, down, full_gradient, info):
            return {"whole": full_gradient(down["w"])}

    found = []
    for method in (Surveys(), FedAvg()):
        task = Task(
            lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)), OBJECTIVES["regression"]
        )
        info = Info(
            round=0, lr=LR, clients=1, cohort=1, share=1.0, steps=1, samples=8, layout=task.layout
        )
        down, steps = {"w": task.initial_weights}, [Step(torch.arange(8), seed=0)]
        found.append(
            train_locally(
                task, method, down, task.initial_buffers, SAMPLES, steps, info, PLAIN, epoch=1
            ).buffers
        )
    assert found[0]["0.running_mean"].any() and int(found[0]["0.num_batches_tracked"]) == 1
    assert found[0].keys() == found[1].keys() and all(
        torch.equal(found[0][name], found[1][name]) for name in found[0]
    )


def test_clip_decides_exactly_near_its_limit():
    for length in (9.98, 9.9899, 9.99, 9.9999985, 10.0, 10.1, 1e30, float("inf")):
        v = torch.tensor([length, 0.0])
        assert float(clip(v, 10.0).norm()) <= 10.0 or length == float("inf")
        if length < 9.999:
            assert clip(v, 10.0) is v
    assert (
        float(clip(torch.tensor([5e-7, 0.0]), 1e-6)[0]) < 5e-7
    )  # the guard against 0/0 counts for tiny limits
