"""What a method does inside a step, seen from outside: against formulas worked out here."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from helpers.small_federation import FULL, PLAIN, make, run
from torch import nn

from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.methods import METHODS, make_method
from fedwmsam.methods.fedavg import FedAvg
from fedwmsam.methods.vectors import cosine
from fedwmsam.recording.alignment import Alignment, RecordingConfig
from fedwmsam.recording.instrumentation import make_observing_trainer, step_positions
from fedwmsam.recording.training_surface import global_surface, local_surface, worst_direction
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task

ALL = RecordingConfig(sample=1000, ascents=0, clients=None)


def sights(federation, state):
    """Every sight of a round, its tensors kept."""
    found = []

    def see(sight):
        copies = {
            name: getattr(sight, name).clone()
            for name in ("w", "perturbation", "direction", "carried")
        }
        found.append(replace(sight, **copies))

    run_round(replace(federation, trainer=make_observing_trainer(see, range(1000))), state)
    return found


def after(federation, rounds):
    return run(federation, rounds)[0][-1]


def test_moments():
    assert step_positions(1) == {0: "first"}
    assert step_positions(2) == {0: "first", 1: "last"}
    assert step_positions(60) == {0: "first", 29: "middle", 59: "last"}


def test_fedsam_goes_up_its_own_gradient():
    federation = make(make_method("fedsam", rho=0.05), batch_size=100, epochs=3)
    alignment = Alignment(federation, 0, ALL)
    run_round(
        replace(federation, trainer=make_observing_trainer(alignment.see, range(5))),
        first_state(federation),
    )
    found = alignment.record()
    assert found["local"]["mean"] == pytest.approx(1, abs=1e-9)
    assert found["radius"]["mean"] == pytest.approx(0.05, rel=1e-6)
    assert found["global"]["mean"] < 0.9  # the others' data differ
    assert found["gradients"]["first"] == pytest.approx(found["global"]["first"], abs=1e-9)
    assert found["received"]["first"] == found["global"]["first"]
    assert found["received"]["last"] != found["global"]["last"]


def test_alone_a_client_is_the_federation():
    federation = make(
        make_method("fedsam", rho=0.05), sizes=(9,), per_round=1, batch_size=100, epochs=3
    )
    alignment = Alignment(federation, 0, ALL)
    run_round(
        replace(federation, trainer=make_observing_trainer(alignment.see, [0])),
        first_state(federation),
    )
    found = alignment.record()
    assert [
        found[name]["mean"] for name in ("global", "worst", "local", "gradients")
    ] == pytest.approx([1] * 4)


def test_without_a_perturbation_there_is_no_cosine():
    federation = make(make_method("fedavg"))
    alignment = Alignment(federation, 0, ALL)
    run_round(
        replace(federation, trainer=make_observing_trainer(alignment.see, range(5))),
        first_state(federation),
    )
    found = alignment.record()
    assert found["global"]["mean"] is None and found["worst"]["first"] is None
    assert -1 < found["gradients"]["mean"] < 1


def test_momentum_goes_along_the_server_s_delta():
    federation = make(make_method("fedwmsam", perturbation="momentum", rho=0.02))
    state = after(federation, 3)
    for sight in sights(federation, state):
        Delta = state.server["Delta"]
        torch.testing.assert_close(
            sight.perturbation, 0.02 * Delta / Delta.norm(), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize(("reading", "pace"), [("trajectory", -1), ("literal", 1)])
def test_the_paths_of_fedwmsam(reading, pace):
    """t_b = w_0 − η b m for trajectory, w_0 + b m for literal; ε = ρ (t_b − w_b)/‖t_b − w_b‖, none at b = 0."""
    federation = make(make_method("fedwmsam", perturbation=reading, rho=0.02))
    state = after(federation, 3)
    lr, server = federation.schedule.lr(3), state.server
    seen = sights(federation, state)
    assert {sight.step for sight in seen} > {0}
    for sight in seen:
        c_k = state.memory.get(sight.client, {"c_k": torch.zeros_like(server["c"])})["c_k"]
        m = server["Delta"] + server["alpha"] / (1 - server["alpha"]) * (server["c"] - c_k)
        ahead = (
            server["w"] + pace * (lr if reading == "trajectory" else 1) * sight.step * m - sight.w
        )
        expected = 0.02 * ahead / ahead.norm() if sight.step else torch.zeros_like(ahead)
        torch.testing.assert_close(sight.perturbation, expected, rtol=1e-6, atol=1e-9)


def test_what_a_step_carries_along():
    federation = make(make_method("fedcm", alpha=0.2), PLAIN)
    state = after(federation, 2)
    for sight in sights(federation, state):
        torch.testing.assert_close(sight.carried, 0.8 * state.server["Delta"])
    federation = make(make_method("scaffold"), PLAIN)
    state = after(federation, 4)
    for sight in sights(federation, state):
        c_k = state.memory.get(sight.client, {"c_k": torch.zeros_like(state.server["c"])})["c_k"]
        torch.testing.assert_close(sight.carried, state.server["c"] - c_k)
    assert not any(
        sight.carried.any() for sight in sights(make(FedAvg()), first_state(make(FedAvg())))
    )


@dataclass(frozen=True)
class Sideways(FedAvg):
    """A method nobody here knows: its gradients come from a place to the side."""

    name: ClassVar[str] = "sideways"

    def direction(self, w, grad, down, scratch):
        return grad(w + 0.25 * torch.eye(len(w), dtype=w.dtype)[3]), scratch


def test_a_method_of_one_s_own_is_seen():
    federation = make(Sideways())
    for sight in sights(federation, first_state(federation)):
        assert sight.perturbation.count_nonzero() == 1
        assert float(sight.perturbation[3]) == pytest.approx(0.25)


def noisy_network():
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3)
    ).double()


@pytest.mark.parametrize("method", METHODS)
def test_looking_changes_nothing(method):
    plain = make(make_method(method), FULL, sizes=(8, 12, 4, 12, 8))
    federation = replace(plain, task=Task(noisy_network, OBJECTIVES["classification"], seed=3))
    state = after(federation, 2)
    alignment = Alignment(federation, 0, RecordingConfig(sample=20, ascents=2, clients=None))
    watched, lines = run_round(
        replace(federation, trainer=make_observing_trainer(alignment.see, range(5))), state
    )
    untouched, others = run_round(federation, state)
    assert alignment.record()["gradients"]["mean"] is not None
    assert lines == others
    for bundle, other in ((watched.server, untouched.server), (watched.buffers, untouched.buffers)):
        assert all(torch.equal(bundle[name], other[name]) for name in bundle)


def test_surfaces_are_the_losses_of_all_data():
    """Clients weigh alike: the mean of their mean gradients, with the weight penalty."""
    federation = make(make_method("fedavg"), sizes=(6, 6, 6))
    w = federation.task.initial_weights
    federation.task.start_training({})
    own = [local_surface(federation, client, 0, 100).gradient(w) for client in range(3)]
    torch.testing.assert_close(global_surface(federation, 0, 18).gradient(w), sum(own) / 3)
    inputs, targets = federation.clients[0].batch(torch.arange(6))
    federation.task.load(w)
    loss = nn.functional.cross_entropy(federation.task.model(inputs), targets) + 5e-4 * w @ w
    assert local_surface(federation, 0, 0, 100).loss(w) == pytest.approx(loss.item())


def test_averaging_by_size_weighs_by_size():
    federation = replace(make(make_method("fedavg"), sizes=(1, 99)), averaging="size")
    surface = global_surface(federation, 0, 50)
    inputs = torch.cat([batch for batch, _ in surface.batches])
    assert (
        float((inputs.mean(dim=1) > 0.5).double().mean()) > 0.5
    )  # the second client's inputs are about 1, not 0


def test_ascents_find_the_highest_point_of_the_sphere():
    """There ε is parallel to the gradient, and no other direction of that length leads higher."""
    federation = make(make_method("fedavg"), sizes=(9, 14))
    w, radius = federation.task.initial_weights, 0.3
    federation.task.start_training({})
    surface = global_surface(federation, 0, 30)
    found = [
        worst_direction(surface, w, surface.gradient(w), radius, ascents) for ascents in (0, 1, 50)
    ]
    heights = [surface.loss(w + epsilon) for epsilon in found]
    assert heights[0] < heights[1] < heights[2]
    assert float(cosine(found[2], surface.gradient(w + found[2]))) == pytest.approx(1, abs=1e-6)
    random = torch.Generator().manual_seed(1)
    for _ in range(300):
        other = torch.randn(len(w), generator=random, dtype=w.dtype)
        assert surface.loss(w + radius * other / other.norm()) < heights[2]
