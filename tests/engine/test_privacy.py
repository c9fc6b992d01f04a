"""Differential privacy: what is released, how much noise it has, and what the accountant says."""

import logging
import math
import sys
from dataclasses import replace
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
import torch
from helpers.small_federation import FULL_RULES, make_federation, run_rounds

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine import rounds
from fedwmsam.engine.privacy import Accountant, Privacy, calibrate_noise, check_privacy_support
from fedwmsam.engine.records import read_lines
from fedwmsam.engine.rounds import first_state, run_round
from fedwmsam.methods import (
    METHODS,
    MFL,
    FedAvg,
    FedExP,
    FedLESAM,
    FedNova,
    FedWMSAM,
    Info,
    MimeLite,
)
from fedwmsam.settings.config import Settings
from fedwmsam.training.local import LocalResult

ALLOWED = [
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fednova",
    "fedexp",
    "fedacg",
    "fedcm",
    "fedadc",
    "mfl",
    "mimelite",
    "mime",
    "ghbm",
    "fedsam",
    "mofedsam",
]
BESIDE_THE_UPDATE = {"mimelite": ["F_k"], "mime": ["F_k"], "mfl": ["m_k"]}
"""What methods upload beside the update, by name."""
SIZES = (8, 8, 8, 8, 8)


def make_private_federation(method, noise=0.0, clip=1e9, per_round=5, sampling="fixed", **settings):
    """Return a federation of five equal clients with differential privacy."""
    federation = make_federation(method, FULL_RULES, sizes=SIZES, per_round=per_round, **settings)
    schedule = replace(federation.schedule, sampling=sampling, empty_rounds=True)
    steps = schedule.step_count(0, 0, 8)
    privacy = Privacy(method, 7, noise, clip, 1e-5, per_round / 5, steps=steps, samples=8)
    return replace(federation, schedule=schedule, privacy=privacy)


@pytest.mark.parametrize("name", [name for name in ALLOWED if name != "fedexp"])
def test_without_noise_and_clip_it_is_the_method_itself(name):
    """All clients are equal and take part.

    So the mean upload, settled once, is the mean of what each client's upload would give.
    """
    method = METHODS[name]()
    plain = run_rounds(make_federation(method, FULL_RULES, sizes=SIZES, per_round=5), 4)[0][-1]
    quiet = run_rounds(make_private_federation(method), 4)[0][-1]
    assert all(torch.allclose(plain.server[k], quiet.server[k], atol=1e-12) for k in plain.server)
    noisy = run_rounds(make_private_federation(method, noise=1.0, clip=1.0), 4)[0][-1]
    assert not torch.allclose(noisy.server["w"], quiet.server["w"], atol=1e-3)
    assert not quiet.memory


def test_fedexp_and_fednova_are_fedavg_where_the_server_sees_the_sum_alone():
    """How far updates disagree, and who took how many steps, is what it does not see."""
    weights = {}
    for method in (FedAvg(), FedExP(epsilon=0.0), FedNova()):
        private = make_private_federation(method, noise=0.1, clip=1.0)
        weights[method.name] = run_rounds(private, 4)[0][-1].server["w"]
    assert torch.equal(weights["fedexp"], weights["fedavg"])
    assert torch.allclose(weights["fednova"], weights["fedavg"], atol=1e-15)
    plain = run_rounds(make_federation(FedExP(epsilon=0.0), FULL_RULES, per_round=5), 4)[0][-1]
    fedavg = run_rounds(make_federation(FedAvg(), FULL_RULES, per_round=5), 4)[0][-1]
    assert not torch.allclose(plain.server["w"], fedavg.server["w"], atol=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_keep_something_per_client_are_refused(name):
    method = METHODS[name]()
    w = make_federation(method).task.initial_weights
    if name in ALLOWED:
        check_privacy_support(method, w, {})
    else:
        with pytest.raises(InputError, match=f"does not go with {name}: it keeps"):
            check_privacy_support(method, w, {})


def test_options_and_buffers_decide_too():
    w = make_federation(FedAvg()).task.initial_weights
    check_privacy_support(FedLESAM(reference="last_round"), w, {})
    check_privacy_support(FedWMSAM(correction="none"), w, {})
    with pytest.raises(InputError, match="BatchNorm"):
        check_privacy_support(FedAvg(), w, {"running_mean": w})


def make_uploading_trainer(uploads):
    """Return a trainer whose clients upload these vectors."""

    def train(federation, jobs):
        for job in jobs:
            up = {name: value.clone() for name, value in uploads[job.client].items()}
            yield job, LocalResult(up, {}, 0.3, 1)

    return train


@pytest.mark.parametrize("name", ALLOWED)
def test_the_next_state_is_a_function_of_the_sum_alone(name):
    """Other uploads with the same sum, even of fewer clients, give the same state and metrics."""
    federation = make_private_federation(METHODS[name](), noise=0.5, clip=8.0)
    size = federation.task.parameter_count
    state = first_state(federation)
    names = ["delta", *BESIDE_THE_UPDATE.get(name, [])]
    base = torch.arange(size, dtype=torch.float64).remainder(7) / 64  # sums of these are exact
    some = [dict.fromkeys(names, base * factor) for factor in (1, 2, 0, 3, 2)]
    other = [dict.fromkeys(names, base * factor) for factor in (0, 8, 0, 0, 0)]
    results = []
    for uploads in (some, other):
        trainer = make_uploading_trainer(uploads)
        results.append(run_round(replace(federation, trainer=trainer), state))
    (a, first), (b, second) = results
    assert a.server.keys() == b.server.keys()
    assert all(torch.allclose(a.server[k], b.server[k], atol=1e-15) for k in a.server)
    columns = {column for column in first if not column.startswith("bytes")}
    assert columns == {"round", "lr", "cohort", "backprops"}
    assert first["cohort"] == second["cohort"]


def test_nobody_counts_more_than_the_clip_however_long_the_upload():
    federation = make_private_federation(MimeLite(), clip=0.5, per_round=2, sampling="bernoulli")
    size = federation.task.parameter_count
    state = first_state(federation)
    one_client = replace(federation.schedule)
    object.__setattr__(one_client, "cohort", lambda round: [3])
    huge = {
        "delta": torch.full((size,), 1e200, dtype=torch.float64),
        "F_k": torch.ones(size, dtype=torch.float64),
    }
    trainer = make_uploading_trainer({3: huge})
    after, _ = run_round(replace(federation, schedule=one_client, trainer=trainer), state)
    moved = float((after.server["w"] - state.server["w"]).norm())
    # The fixed denominator is q·N = 2, though only one client came.
    assert moved == pytest.approx(0.5 / 2)
    up = {"delta": torch.tensor([3.0]), "F_k": torch.tensor([4.0])}
    _, clipped = federation.privacy.settle({}, {}, up, None)
    assert [float(v) for v in clipped.values()] == pytest.approx([0.3, 0.4])  # both as one vector


def test_noise_has_the_stated_size_and_is_fresh_in_every_round():
    federation = make_private_federation(
        FedAvg(), noise=2.0, clip=0.5, per_round=2, sampling="bernoulli"
    )
    quiet = replace(federation, privacy=replace(federation.privacy, noise_multiplier=0.0))
    differences = []
    state = first_state(federation)
    for round in range(40):
        state = replace(state, round=round)
        noisy_w = run_round(federation, state)[0].server["w"]
        quiet_w = run_round(quiet, state)[0].server["w"]
        differences.append(noisy_w - quiet_w)
    noise = torch.stack(differences)
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 2, rel=0.05)
    assert abs(float(noise.mean())) < 0.05
    correlation = np.corrcoef(noise.numpy())
    assert np.abs(correlation - np.eye(40)).max() < 0.7
    assert torch.equal(noisy_w, run_round(federation, state)[0].server["w"])


@pytest.mark.parametrize("method", [MimeLite(), MFL()], ids=repr)
def test_a_round_of_nobody_adds_noise_all_the_same(method):
    federation = make_private_federation(
        method, noise=1.0, clip=0.5, per_round=0.05, sampling="bernoulli"
    )
    empty = next(r for r in range(100) if not federation.schedule.cohort(r))
    state = replace(first_state(federation), round=empty)
    after, record = run_round(federation, state)
    assert record["cohort"] == 0 and not torch.equal(after.server["w"], state.server["w"])
    assert set(after.server) == set(state.server) and after.round == empty + 1


def test_a_round_of_nobody_sends_nothing_else_than_zeros():
    """MFL's clients begin with the server's momentum; where none came there is none to average."""
    private = make_private_federation(MFL()).privacy
    server = {"w": torch.ones(3), "m": torch.ones(3)}
    info = Info(round=1, lr=0.1, clients=5, cohort=0, share=0.2)
    assert not any(value.any() for value in private.zero_upload(server, info).values())


def test_a_private_line_tells_nothing_of_what_clients_computed():
    plain = make_federation(FedAvg(), FULL_RULES, sizes=SIZES, per_round=5)
    private = make_private_federation(FedAvg(), noise=1.0, clip=0.5)
    _, plain_record = run_round(plain, first_state(plain))
    _, private_record = run_round(private, first_state(private))
    hidden = {"train_loss", "update_norm", "update_norm_spread"}
    assert plain_record.keys() - private_record.keys() == hidden
    assert not private_record.keys() - plain_record.keys()


def test_an_update_that_is_not_finite_counts_as_none():
    federation = make_private_federation(FedAvg(), clip=1.0)
    delta = torch.full((federation.task.parameter_count,), math.nan, dtype=torch.float64)
    trainer = make_uploading_trainer([{"delta": delta}] * 5)
    state = first_state(federation)
    after, record = run_round(replace(federation, trainer=trainer), state)
    assert record["rejected"] == 5, "how many, not which"
    assert torch.equal(after.server["w"], state.server["w"])


def test_bernoulli_draws_stand_even_if_empty():
    kept = make_private_federation(FedAvg(), per_round=0.5, sampling="bernoulli").schedule
    repeated = replace(kept, empty_rounds=False)
    sizes = [len(kept.cohort(r)) for r in range(400)]
    assert sum(sizes) / 400 == pytest.approx(0.5, abs=0.1) and 0 in sizes
    assert all(repeated.cohort(r) for r in range(400))


# From here on the accountant is needed.


@pytest.fixture
def accounting():
    return pytest.importorskip(
        "dp_accounting", reason="the accountant is not installed: pip install fedwmsam[privacy]"
    )


def gaussian_delta(epsilon, noise):
    """Return the exact δ of the Gaussian mechanism.

    Balle & Wang, Improving the Gaussian Mechanism (ICML 2018), Theorem 8.
    """
    normal = NormalDist().cdf
    above = normal(0.5 / noise - epsilon * noise)
    below = normal(-0.5 / noise - epsilon * noise)
    return above - math.exp(epsilon) * below


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 50)])
def test_the_accountant_without_sampling_bounds_the_exact_value_closely(accounting, noise, rounds):
    epsilon = Accountant(noise, 1.0, 1e-5)(rounds)
    composed = noise / math.sqrt(rounds)
    assert gaussian_delta(epsilon, composed) <= 1e-5  # never too small …
    assert gaussian_delta(0.9 * epsilon, composed) > 1e-5  # … and not much too large


def test_the_accountant_agrees_with_published_values(accounting):
    """q = 0.01, σ = 4, 10,000 steps, δ = 1e-5.

    Abadi et al., Deep Learning with Differential Privacy (CCS 2016), section 3.2, state ε = 1.26 by
    the first moments accountant. Newer conversions find a little less.
    """
    epsilon = Accountant(4.0, 0.01, 1e-5)(10_000)
    assert 0.9 < epsilon < 1.26
    exact = accounting.pld.PLDAccountant(accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    exact.compose(accounting.PoissonSampledDpEvent(0.01, accounting.GaussianDpEvent(4.0)), 10_000)
    assert exact.get_epsilon(1e-5) <= epsilon < 1.15 * exact.get_epsilon(1e-5)


def test_epsilon_grows_with_rounds_and_sampling_and_falls_with_noise(accounting):
    some = Accountant(1.0, 0.1, 1e-5)
    assert Accountant(2.0, 0.1, 1e-5)(10) < some(10) < some(20) < Accountant(1.0, 0.2, 1e-5)(20)
    assert Accountant(0.0, 0.1, 1e-5)(10) == math.inf


def test_the_noise_for_a_target_is_the_least_that_keeps_it(accounting):
    noise = calibrate_noise(3.0, 1e-5, 0.2, 30)
    assert Accountant(noise, 0.2, 1e-5)(30) <= 3.0
    assert Accountant(noise - 0.01, 0.2, 1e-5)(30) > 3.0


def fit(rounds=4, method="fedavg", **settings):
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(8, 4, generator=generator), torch.arange(8) % 3) for _ in range(10)]
    settings = {"dp_noise": 1.0, "dp_clip": 0.5, "sampling": "bernoulli"} | settings
    return fedwmsam.fit(
        partial(torch.nn.Linear, 4, 3),
        clients,
        method,
        rounds=rounds,
        participation=0.3,
        batch_size=4,
        **settings,
    )


def test_a_private_run_tells_its_epsilon_and_resumes_exactly(accounting, tmp_path):
    whole = fit(run_folder=tmp_path / "whole")
    fit(run_folder=tmp_path / "cut", rounds=2)
    fit(run_folder=tmp_path / "cut", resume=True, workers=2)
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut")]
    assert lines[0] == lines[1]
    assert whole.columns["epsilon"] == [Accountant(1.0, 0.3, 1e-5)(r) for r in (1, 2, 3, 4)]
    assert not {"train_loss", "update_norm"} & set(whole.columns)
    assert "dp_delta = 1e-05" in (tmp_path / "whole" / "config.toml").read_text()


def test_a_target_is_kept_and_its_noise_does_not_change_half_way(accounting, tmp_path):
    target = {"dp_noise": None, "dp_epsilon": 5.0}
    result = fit(run_folder=tmp_path / "run", **target)
    assert 4.8 < result.last("epsilon") <= 5.0
    with pytest.raises(InputError, match="same number of rounds"):
        fit(rounds=6, run_folder=tmp_path / "run", resume=True, **target)


def test_the_command_line_and_the_report_tell_a_private_runs_epsilon(accounting, cli, tmp_path):
    outcome = cli(
        "run",
        "--method",
        "fedcm",
        "--model",
        "linear",
        "--rounds",
        2,
        "--local-epochs",
        1,
        "--sampling",
        "bernoulli",
        "--dp-noise",
        1,
        "--dp-clip",
        0.5,
        "--out",
        tmp_path,
        "--name",
        "private",
    )
    assert outcome.code == 0, outcome.err
    last = read_lines(tmp_path / "private" / "metrics.jsonl")[-1]
    promise = f"ε = {last['epsilon']:.4g} at δ = 1e-05"
    assert promise in outcome.out and promise in cli("report", tmp_path).out


def test_a_private_run_writes_no_number_of_a_single_client(accounting, cli, tmp_path):
    private = ["--sampling", "bernoulli", "--dp-noise", "1", "--dp-clip", "0.5"]
    faults = ["--corrupt", "nan:0.5", "--dropout", "0.3", "--twin", "8", "--keep-states", "1"]
    settings = ["--rounds", "2", "--method", "fedavg", "--model", "linear"]
    outcome = cli("run", *settings, *private, *faults, "--out", tmp_path, "--name", "a")
    assert outcome.code == 0, outcome.err
    assert not list(tmp_path.glob("a/clients.json")) + list(tmp_path.glob("a/recordings.jsonl"))
    for record in read_lines(tmp_path / "a" / "metrics.jsonl"):
        assert not any(isinstance(value, list) for value in record.values())
        assert not record.keys() & {"train_loss", "update_norm", "worst_client_accuracy"}
        assert "tenth_percentile_accuracy" not in record


def test_the_accountant_is_silent_about_orders_it_leaves_out(accounting, caplog):
    with caplog.at_level("WARNING"):
        calibrate_noise(8.0, 1e-5, 0.2, 10)
        logging.getLogger("absl").warning("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_without_the_accountant_a_private_run_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"fedwmsam\[privacy\]"):
        fit()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dp_noise": 1.0, "sampling": "bernoulli"}, "dp_clip"),
        (
            {"dp_noise": 1.0, "dp_epsilon": 2.0, "dp_clip": 1.0, "sampling": "bernoulli"},
            "either dp_noise or",
        ),
        ({"dp_noise": 1.0, "dp_clip": 1.0}, "sampling=bernoulli, not fixed"),
        (
            {"dp_noise": 1.0, "dp_clip": 1.0, "sampling": "bernoulli", "averaging": "size"},
            "averaging=uniform",
        ),
        (
            {"dp_noise": 1.0, "dp_clip": 1.0, "sampling": "bernoulli", "aggregation": "median"},
            "aggregation=mean",
        ),
        (
            {"dp_noise": 1.0, "dp_clip": 1.0, "sampling": "bernoulli", "record": "echo,drift"},
            "record=echo,drift: recordings hold numbers of single clients",
        ),
        ({"dp_noise": -1.0}, "dp_noise"),
        ({"dp_epsilon": 0.0}, "dp_epsilon"),
        ({"dp_delta": 1.0}, "dp_delta"),
    ],
)
def test_settings_that_promise_nothing_are_refused(settings, reason):
    with pytest.raises(InputError, match=reason):
        Settings(**settings)


def test_a_method_with_memory_is_refused_before_it_trains(monkeypatch):
    monkeypatch.setattr(rounds, "train_client", None)
    with pytest.raises(InputError, match="c_k for each client"):
        fit(method="fedwmsam")
    with pytest.raises(InputError, match="client_sizes"):
        fedwmsam.fit(
            torch.nn.Linear(2, 2),
            lambda k: (torch.randn(4, 2), torch.tensor([0, 1, 0, 1])),
            "fedcm",
            client_count=50,
            dp_noise=1.0,
            dp_clip=1.0,
            sampling="bernoulli",
        )
