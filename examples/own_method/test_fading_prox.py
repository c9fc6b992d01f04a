"""The method's tests: the library's, in one line, and what only its author knows."""

import torch
from fading_prox import FadingProx

import fedwmsam
from fedwmsam.testing import check_method, make_federation, run_rounds


def test_keeps_the_contract():
    check_method(FadingProx)


def test_without_a_pull_it_is_fedavg():
    faded = run_rounds(make_federation(FadingProx(lam=0.0)))[0][-1]
    plain = run_rounds(make_federation(fedwmsam.FedAvg()))[0][-1]
    assert torch.equal(faded.server["w"], plain.server["w"])


def test_the_pull_halves():
    states, _ = run_rounds(make_federation(FadingProx(lam=0.8, half_life=3)), 6)
    assert torch.isclose(states[6].server["lam"], torch.tensor(0.2, dtype=torch.float64))
