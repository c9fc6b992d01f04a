"""Edge cases of methods: other number types, tiny federations and models, options at bounds."""

from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from helpers.small_federation import (
    FULL_RULES,
    PLAIN_RULES,
    make_federation,
    run_rounds,
    train_weights,
)
from torch import nn

import fedwmsam
from fedwmsam import InputError
from fedwmsam.methods import (
    METHODS,
    FedAvg,
    FedCM,
    FedLESAM,
    FedLESAMD,
    FedLESAMS,
    FedSAM,
    FedSMOO,
    FedWMSAM,
)
from fedwmsam.settings.config import option_names

SAM = [name for name in METHODS if "rho" in option_names(name)]
"""The methods with a perturbation."""


def network(dtype):
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def data(*sizes, classes=2):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 3, generator=generator) + k, torch.arange(n) % classes)
        for k, n in enumerate(sizes)
    ]


NETWORK = partial(network, torch.float32)


def fit_checked(method, clients, model=NETWORK, **settings):
    """Return the result of a run of three rounds, which must be complete and finite."""
    defaults = {"rounds": 3, "participation": 1.0, "local_epochs": 2, "batch_size": 4}
    result = fedwmsam.fit(model, clients, method, **defaults | settings)
    assert result.status == "completed"
    assert all(torch.isfinite(value).all() for value in result.model.values())
    return result


@pytest.fixture(params=METHODS)
def method(request):
    return METHODS[request.param]()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_models_of_other_types_train_in_their_type(method, dtype, tmp_path):
    """Data are converted to the model's type; the run, its checkpoint and its model have it too."""
    model = partial(network, dtype)
    settings = {"test": data(20)[0], "checkpoint_every": 1, "run_folder": tmp_path / "run"}
    result = fit_checked(method, data(6, 9), model, rounds=2, **settings)
    assert all(value.dtype == dtype for value in result.model.values())
    resumed = fit_checked(method, data(6, 9), model, **settings, resume=True)
    uncut = fit_checked(method, data(6, 9), model, test=data(20)[0])
    for name, value in uncut.model.items():
        assert torch.equal(resumed.model[name], value) and value.dtype == dtype
    assert result.columns["train_loss"][0] > 0 and result.columns["accuracy"][0] is not None


def test_float64_and_float32_learn_the_same(method):
    """Up to rounding: nothing on the way is computed in less than the model's type."""
    torch.manual_seed(0)
    start = network(torch.float64)
    wide = fit_checked(method, data(6, 9), start).model
    result = fit_checked(
        method, data(6, 9), network(torch.float32), initial_weights=start.state_dict()
    )
    narrow = result.model
    assert all(torch.allclose(narrow[k].double(), wide[k], atol=2e-4) for k in wide)


def test_clients_of_one_sample(method):
    result = fit_checked(method, data(1, 1, 1), batch_size=50)
    assert result.columns["cohort"] == [3, 3, 3]


def test_one_client_alone(method):
    """With one client the mean is its own update; FedAvg is then ordinary SGD."""
    result = fit_checked(method, data(9))
    assert result.columns["cohort"] == [1, 1, 1]


def test_a_single_client_under_fedavg_is_sgd():
    federation = make_federation(
        FedAvg(), PLAIN_RULES, sizes=(8,), per_round=1, batch_size=4, epochs=1
    )
    state = run_rounds(federation, 1)[0][-1]
    w = federation.task.initial_weights
    samples = federation.clients[0]
    for step in federation.schedule.steps(0, 0, 8):
        gradient, _ = federation.task.compute_gradient(
            w, samples.batch(step.index), seed=0, update_buffers=True
        )
        w = w - 0.1 * gradient
    assert torch.allclose(state.server["w"], w, atol=1e-15)


def test_one_round(method):
    result = fit_checked(method, data(6, 9), rounds=1)
    assert result.rounds == 1 and len(result.rows) == 1


def test_one_class(method):
    """Softmax over a single output has loss and gradient 0, so that without decay nothing moves."""
    model = partial(nn.Linear, 3, 1)
    result = fit_checked(
        method, data(6, 9, classes=1), model, weight_decay=0.0, test=data(5, classes=1)[0]
    )
    assert result.columns["accuracy"] == [1.0] * 3 and set(result.columns["train_loss"]) == {0.0}
    start = fedwmsam.fit(model, data(6, classes=1), FedAvg(global_lr=0.0), rounds=1).model
    assert all(torch.allclose(result.model[k], v, atol=1e-7) for k, v in start.items())


def test_every_client_with_one_class_of_its_own(method):
    clients = [(x, torch.full_like(y, k)) for k, (x, y) in enumerate(data(6, 6))]
    fit_checked(method, clients)


def test_a_model_of_one_parameter(method):
    """d = 1: every direction is +1 or −1, norms and cosines included."""
    clients = [(torch.full((6, 1), 1.0 + k), torch.full((6, 1), 2.0 + 2 * k)) for k in range(2)]
    model = partial(nn.Linear, 1, 1, bias=False)
    result = fit_checked(
        method,
        clients,
        model,
        loss="regression",
        rounds=150 if method.name == "fedadagrad" else 30,  # its steps shrink as 1/√r
        lr=0.03,
        weight_decay=0.0,
        clip_norm=None,
    )
    (weight,) = result.model.values()
    assert weight.shape == (1, 1) and float(weight) == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize("name", SAM)
def test_no_perturbation_at_rho_zero(name):
    """ρ = 0 is exact: the gradient is taken at w itself, not near it."""
    taken_at_w = []

    class Recorded(METHODS[name]):
        def direction(self, w, grad, down, scratch):
            def recorded_grad(at):
                taken_at_w.append(torch.equal(at, w))
                return grad(at)

            return super().direction(w, recorded_grad, down, scratch)

    run_rounds(make_federation(Recorded(rho=0.0)), 3)
    assert taken_at_w and all(taken_at_w)


@pytest.mark.parametrize("name", SAM)
@pytest.mark.parametrize("rho", [1e3, 1e30])
def test_a_huge_rho_ends_finite_or_says_that_it_diverged(name, rho):
    """Gradients far away are finite or not; a global model that is not is never kept."""
    result = fedwmsam.fit(
        NETWORK, data(6, 9, 5), METHODS[name](rho=rho), rounds=4, participation=1.0
    )
    assert result.status == "completed" or result.status.startswith("diverged at round")
    assert all(torch.isfinite(value).all() for value in result.model.values())


@pytest.mark.parametrize("option", ["alpha", "alpha_min", "alpha_max", "adapt_rate"])
def test_alpha_at_its_bounds(option):
    limits = next(f.metadata for f in fields(FedWMSAM) if f.name == option)
    for value in (limits["low"], limits["high"]):
        method = replace(FedWMSAM(alpha_min=0.001, alpha_max=0.999), **{option: value})
        states, _ = run_rounds(make_federation(method), 8)
        for state in states:
            assert 0.001 - 1e-9 <= float(state.server["alpha"]) <= 0.999 + 1e-9
            assert all(torch.isfinite(v).all() for v in state.server.values())
        outside = value + 0.001 if value == limits["high"] else value - 0.001
        with pytest.raises(InputError, match=option):
            replace(method, **{option: outside})


def test_alpha_of_equal_bounds_stays_there():
    method = FedWMSAM(alpha=0.4, alpha_min=0.4, alpha_max=0.4, adapt_rate=1.0)
    states, _ = run_rounds(make_federation(method), 4)
    assert {float(state.server["alpha"]) for state in states} == {0.4}


def test_only_the_fresh_gradient_counts_at_alpha_one():
    without_momentum = train_weights(FedCM(alpha=1.0), FULL_RULES)
    assert torch.equal(without_momentum, train_weights(FedAvg(), FULL_RULES))
    with pytest.raises(InputError, match="alpha"):
        FedCM(alpha=0.0)


@pytest.mark.parametrize(
    "method", [FedSAM(), FedSMOO(), FedLESAM(), FedLESAMS(), FedLESAMD(), FedWMSAM()], ids=repr
)
def test_a_gradient_of_zero_gives_no_perturbation_and_no_nan(method):
    """All inputs zero and no bias: nothing to learn, no direction to ascend."""
    clients = [(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))] * 2
    model = partial(nn.Linear, 3, 2, bias=False)
    result = fit_checked(method, clients, model, weight_decay=0.0)
    start = fedwmsam.fit(model, clients, FedAvg(global_lr=0.0), rounds=1).model
    assert all(torch.equal(result.model[k], v) for k, v in start.items())
