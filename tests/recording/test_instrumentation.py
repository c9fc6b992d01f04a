"""Observed steps and alignment, compared with formulas worked out here."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from helpers.small_federation import FULL_RULES, PLAIN_RULES, make_federation, run_rounds
from torch import nn

from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.methods import METHODS, make_method
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.vectors import cosine
from fedwmsam.recording.alignment import Alignment, RecordingConfig
from fedwmsam.recording.instrumentation import make_observing_trainer, step_positions
from fedwmsam.recording.training_surface import global_surface, local_surface, worst_perturbation
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task

ALL = RecordingConfig(sample=1000, ascents=0, clients=None)


def observe_steps(federation, state):
    """Return every observed step of the round after `state`, with copies of its tensors."""
    observed = []

    def observe(step):
        copies = {
            name: getattr(step, name).clone()
            for name in ("w", "perturbation", "direction", "gradient_free_part")
        }
        observed.append(replace(step, **copies))

    run_round(replace(federation, trainer=make_observing_trainer(observe, range(1000))), state)
    return observed


def record_alignment(federation):
    """Return the record of the alignment in the first round."""
    alignment = Alignment(federation, 0, ALL)
    trainer = make_observing_trainer(alignment.observe_step, range(5))
    run_round(replace(federation, trainer=trainer), first_state(federation))
    return alignment.to_record()


def state_after(federation, rounds):
    return run_rounds(federation, rounds)[0][-1]


def control_variate(step, state):
    """Return the c_k of the step's client before the round."""
    zero = torch.zeros_like(state.server["c"])
    return state.memory.get(step.client, {"c_k": zero})["c_k"]


def test_the_first_the_middle_and_the_last_step_have_names():
    assert step_positions(1) == {0: "first"}
    assert step_positions(2) == {0: "first", 1: "last"}
    assert step_positions(60) == {0: "first", 29: "middle", 59: "last"}


def test_fedsam_perturbs_along_the_clients_own_gradient():
    federation = make_federation(make_method("fedsam", rho=0.05), batch_size=100, epochs=3)
    found = record_alignment(federation)
    assert found["local"]["mean"] == pytest.approx(1, abs=1e-9)
    assert found["radius"]["mean"] == pytest.approx(0.05, rel=1e-6)
    assert found["global"]["mean"] < 0.9  # the others' data differ
    assert found["gradients"]["first"] == pytest.approx(found["global"]["first"], abs=1e-9)
    assert found["received"]["first"] == found["global"]["first"]
    assert found["received"]["last"] != found["global"]["last"]


def test_the_loss_of_a_single_client_is_that_of_the_federation():
    federation = make_federation(
        make_method("fedsam", rho=0.05), sizes=(9,), per_round=1, batch_size=100, epochs=3
    )
    found = record_alignment(federation)
    for name in ("global", "worst", "local", "gradients"):
        assert found[name]["mean"] == pytest.approx(1)


def test_without_a_perturbation_there_is_no_cosine():
    found = record_alignment(make_federation(make_method("fedavg")))
    assert found["global"]["mean"] is None and found["worst"]["first"] is None
    assert -1 < found["gradients"]["mean"] < 1


def test_fedwmsam_with_momentum_perturbs_along_the_servers_delta():
    federation = make_federation(make_method("fedwmsam", perturbation="momentum", rho=0.02))
    state = state_after(federation, 3)
    Delta = state.server["Delta"]
    expected = 0.02 * Delta / Delta.norm()
    for step in observe_steps(federation, state):
        torch.testing.assert_close(step.perturbation, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("reading", "sign"), [("trajectory", -1), ("literal", 1)])
def test_fedwmsam_perturbs_towards_its_target(reading, sign):
    """The target t_b is w_0 − η b m for trajectory, w_0 + b m for literal.

    ε = ρ (t_b − w_b)/‖t_b − w_b‖, and there is none at b = 0.
    """
    federation = make_federation(make_method("fedwmsam", perturbation=reading, rho=0.02))
    state = state_after(federation, 3)
    server = state.server
    pace = sign * (federation.schedule.lr(3) if reading == "trajectory" else 1)
    steps = observe_steps(federation, state)
    assert {step.step for step in steps} > {0}
    for step in steps:
        ratio = server["alpha"] / (1 - server["alpha"])
        m = server["Delta"] + ratio * (server["c"] - control_variate(step, state))
        ahead = server["w"] + pace * step.step * m - step.w
        expected = 0.02 * ahead / ahead.norm() if step.step else torch.zeros_like(ahead)
        torch.testing.assert_close(step.perturbation, expected, rtol=1e-6, atol=1e-9)


def test_the_gradient_free_part_is_the_momentum_or_the_correction():
    federation = make_federation(make_method("fedcm", alpha=0.2), PLAIN_RULES)
    state = state_after(federation, 2)
    for step in observe_steps(federation, state):
        torch.testing.assert_close(step.gradient_free_part, 0.8 * state.server["Delta"])
    federation = make_federation(make_method("scaffold"), PLAIN_RULES)
    state = state_after(federation, 4)
    for step in observe_steps(federation, state):
        correction = state.server["c"] - control_variate(step, state)
        torch.testing.assert_close(step.gradient_free_part, correction)
    federation = make_federation(FedAvg())
    for step in observe_steps(federation, first_state(federation)):
        assert not step.gradient_free_part.any()


@dataclass(frozen=True)
class Sideways(FedAvg):
    """A method that is not in the library: its gradients are taken at a point to the side."""

    name: ClassVar[str] = "sideways"

    def direction(self, w, grad, down, scratch):
        return grad(w + 0.25 * torch.eye(len(w), dtype=w.dtype)[3]), scratch


def test_a_method_of_ones_own_is_observed():
    federation = make_federation(Sideways())
    for step in observe_steps(federation, first_state(federation)):
        assert step.perturbation.count_nonzero() == 1
        assert float(step.perturbation[3]) == pytest.approx(0.25)


def noisy_network():
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3)
    ).double()


@pytest.mark.parametrize("method", METHODS)
def test_observing_changes_nothing(method):
    plain = make_federation(make_method(method), FULL_RULES, sizes=(8, 12, 4, 12, 8))
    federation = replace(plain, task=Task(noisy_network, OBJECTIVES["classification"], seed=3))
    state = state_after(federation, 2)
    alignment = Alignment(federation, 0, RecordingConfig(sample=20, ascents=2, clients=None))
    trainer = make_observing_trainer(alignment.observe_step, range(5))
    observed, record = run_round(replace(federation, trainer=trainer), state)
    expected, expected_record = run_round(federation, state)
    assert alignment.to_record()["gradients"]["mean"] is not None
    assert record == expected_record
    for bundle, other in ((observed.server, expected.server), (observed.buffers, expected.buffers)):
        assert all(torch.equal(bundle[name], other[name]) for name in bundle)


def test_surfaces_are_the_losses_of_all_data():
    """Clients have equal weights: the mean of their mean gradients, with weight decay."""
    federation = make_federation(make_method("fedavg"), sizes=(6, 6, 6))
    w = federation.task.initial_weights
    federation.task.start_training({})
    gradients = [local_surface(federation, client, 0, 100).gradient(w) for client in range(3)]
    torch.testing.assert_close(global_surface(federation, 0, 18).gradient(w), sum(gradients) / 3)
    inputs, targets = federation.clients[0].batch(torch.arange(6))
    federation.task.load_weights(w)
    loss = nn.functional.cross_entropy(federation.task.model(inputs), targets) + 5e-4 * w @ w
    assert local_surface(federation, 0, 0, 100).loss(w) == pytest.approx(loss.item())


def test_averaging_by_size_weighs_by_size():
    federation = replace(make_federation(make_method("fedavg"), sizes=(1, 99)), averaging="size")
    surface = global_surface(federation, 0, 50)
    inputs = torch.cat([batch for batch, _ in surface.batches])
    from_second_client = inputs.mean(dim=1) > 0.5  # its inputs are about 1, the first one's 0
    assert float(from_second_client.double().mean()) > 0.5


def test_ascents_find_the_highest_point_of_the_sphere():
    """There ε is parallel to the gradient, and no other direction of that length leads higher."""
    federation = make_federation(make_method("fedavg"), sizes=(9, 14))
    w = federation.task.initial_weights
    radius = 0.3
    federation.task.start_training({})
    surface = global_surface(federation, 0, 30)
    gradient = surface.gradient(w)
    found = [worst_perturbation(surface, w, gradient, radius, ascents) for ascents in (0, 1, 50)]
    losses = [surface.loss(w + epsilon) for epsilon in found]
    assert losses[0] < losses[1] < losses[2]
    assert float(cosine(found[2], surface.gradient(w + found[2]))) == pytest.approx(1, abs=1e-6)
    random = torch.Generator().manual_seed(1)
    for _ in range(300):
        other = torch.randn(len(w), generator=random, dtype=w.dtype)
        assert surface.loss(w + radius * other / other.norm()) < losses[2]
