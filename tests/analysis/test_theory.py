"""The theorem's bound, lemmas and estimators.

The bound is checked against its formula, the lemmas against enumeration, and the estimators against
known losses.
"""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.small_federation import PLAIN_RULES, make_federation
from torch import nn

from fedwmsam.analysis.theory import (
    PROPERTIES,
    RATES,
    BoundParameters,
    analyse_theory,
    batch_variance,
    check_lemma_3,
    check_lemma_4,
    check_step_sizes,
    compute_bound,
    largest_absolute_eigenvalue,
)
from fedwmsam.data.clients import TensorSamples
from fedwmsam.engine.rounds import first_state
from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import prepare
from fedwmsam.methods import METHODS, make_method
from fedwmsam.recording.training_surface import global_surface
from fedwmsam.settings.config import resolve_config
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task

PARAMETERS = BoundParameters(
    smoothness=5, gap=2, sigma=3, rho=0.1, cohort=10, steps=50, rounds=500, clients=1000
)


def test_the_bound_is_the_formula_of_the_theorem():
    terms = compute_bound(PARAMETERS)
    assert terms.noise == pytest.approx(math.sqrt(5 * 2 * (9 + 0.25) / (10 * 50 * 500)))
    assert terms.rounds == pytest.approx(10 / 500 * (1 + 100 / 10))
    assert terms.printed == pytest.approx(terms.noise + terms.rounds)
    assert terms.with_bias == pytest.approx(math.sqrt(90 / 250_000) + terms.rounds + 0.25)


def test_after_many_rounds_only_the_bias_stays():
    longer = compute_bound(replace(PARAMETERS, rounds=10**12))
    assert longer.printed == pytest.approx(0, abs=1e-5)
    assert longer.with_bias == pytest.approx(0.25, abs=1e-5)
    assert (
        compute_bound(replace(PARAMETERS, rho=0.0)).with_bias
        == compute_bound(replace(PARAMETERS, rho=0.0)).printed
    )


def test_impossible_parameters_are_refused():
    with pytest.raises(InputError, match="cohort is 10, but there are only 5"):
        replace(PARAMETERS, clients=5)
    with pytest.raises(InputError, match="rho must be"):
        replace(PARAMETERS, rho=-1.0)


def test_the_tables_name_methods_that_exist():
    assert {row.method for row in RATES} == {row.method for row in PROPERTIES} <= set(METHODS)


def test_lemma_3_is_the_mean_over_all_subsets_and_sampling_comes_near_it():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(6, 2)) + random.normal(size=2)
    subsets = [vectors[list(chosen)].mean(axis=0) for chosen in itertools.combinations(range(6), 2)]
    (check,) = check_lemma_3(clients=6, cohort=2, dimensions=2, draws=40_000)
    assert check.claimed == pytest.approx(np.mean([v @ v for v in subsets]))
    assert abs(check.measured - check.claimed) < 4 * check.error


def test_lemma_4_and_what_the_proof_makes_of_it():
    for number, (check, right) in enumerate(check_lemma_4(smoothness=3, rho=0.2, sigma=0.7)):
        count = (1, 10, 100)[number]
        assert right == pytest.approx(0.49 / count + 0.36)
        assert abs(check.measured - right) < 4 * check.error
        assert (abs(check.measured - check.claimed) < 4 * check.error) == (count == 1)


def regression(*clients):
    """Return a federation with a linear model without bias, whose Hessian is 2 XᵀX/n."""
    task = Task(lambda: nn.Linear(3, 1, bias=False).double(), OBJECTIVES["regression"], seed=0)
    data = [TensorSamples(x, x.sum(dim=1, keepdim=True)) for x in clients]
    return replace(
        make_federation(make_method("fedavg"), PLAIN_RULES, sizes=[len(x) for x in clients]),
        task=task,
        clients=data,
    )


def test_curvature_is_the_largest_eigenvalue():
    x = torch.randn(
        40, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ) * torch.tensor([3.0, 1, 1])
    federation = regression(x)
    federation.task.start_training({})
    expected = float(torch.linalg.eigvalsh(2 * x.T @ x / 40)[-1])
    surface = global_surface(federation, 0, 40)
    assert largest_absolute_eigenvalue(
        surface, federation.task.initial_weights, 40
    ) == pytest.approx(expected, rel=1e-6)


def test_the_variance_of_batches_is_that_of_their_gradients():
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    federation = regression(x)
    state = first_state(federation)
    w = state.server["w"]
    federation.task.start_training({})
    steps = federation.schedule.steps(0, 0, 16)
    gradients = [2 * x[s.index].T @ (x[s.index] @ w - x[s.index].sum(dim=1)) / 4 for s in steps]
    mean = sum(gradients) / 8
    expected = sum(float(((g - mean) ** 2).sum()) for g in gradients) / 7
    assert batch_variance(federation, state, 0) == pytest.approx(expected)


def verdicts(record):
    return {(row["where"], row["text"]): row["verdict"] for row in record["conditions"]}


def run(tmp_path, name, **settings):
    config = resolve_config({"rounds": 3, "local_epochs": 1, "keep_states": 1} | settings)
    experiment = prepare(config)
    experiment.run(experiment.create(tmp_path / name))
    return analyse_theory(tmp_path / name, states=3, sample=200)


def test_a_run_has_its_constants_and_the_verdict_on_each_condition(tmp_path):
    usual = run(tmp_path, "usual")
    setting = usual["setting"]
    points = usual["points"]
    assert (setting["clients"], setting["cohort"], setting["rounds"], setting["rho"]) == (
        20,
        5,
        3,
        0.01,
    )
    assert setting["gap"] == pytest.approx(
        points[0]["loss"] - min(point["loss"] for point in points)
    )
    assert setting["smoothness"] == max(
        max(point["global_curvature"], *point["client_curvatures"]) for point in points
    )
    assert usual["measured"] == pytest.approx(
        sum(point["squared_gradient"] for point in points) / 3
    )
    found = verdicts(usual)
    assert found["Lemma 1", "γ L ≤ 1/24"] == "fails"
    assert found["Theorem", "α is one number"] == "fails"
    assert found["Lemma 2", "gradients have no common bias: (L ρ)² = 0"] == "fails"
    careful = {
        "rho": 0.0,
        "lr": 1e-7,
        "lr_decay": 1.0,
        "clip_norm": "none",
        "correction": "mean_gradient",
        "adapt_rate": 0.0,
    }
    found = verdicts(run(tmp_path, "careful", **careful))
    assert found["Lemma 1", "γ L ≤ 1/24"] == "holds"
    assert found["Theorem", "α is one number"] == "holds"
    assert found["Algorithm", "no clipping"] == "holds"
    assert found["Lemma 7", "c_i is the mean local gradient"] == "holds"
    assert found["Lemma 2", "gradients have no common bias: (L ρ)² = 0"] == "holds"


def test_conditions_hold_for_every_alpha_of_a_run():
    points = [{"client_squared_gradients": [1.0]}]
    described = SimpleNamespace(
        config=SimpleNamespace(lr=2e-4),
        federation=SimpleNamespace(method=make_method("fedwmsam")),
        round_records=[{"alpha": 0.1}, {"alpha": 0.5}],
    )
    found = {row.text: row for row in check_step_sizes(described, PARAMETERS, points)}
    # γ = η K = 0.01 and γ L = 0.05.
    assert found["γ L ≤ α/6, as its proof uses"].found == "0.05 against 0.0167"
    assert found["γ ≤ α/L"].found == "0.01 against 0.02"
    assert found["γ L ≤ √(1/(2 α))"].found == "0.05 against 1"
    assert found["η K L ≤ 1/α"].found == "0.05 against 2"
    assert found["α ≤ √(L Δ S²)/(G₀ N), as printed"].found == "0.5 against 0.0316"
    assert found["α ≤ √(L Δ S²/(G₀ N)), as its units ask"].found == "0.5 against 1"


def test_the_theorem_does_not_apply_to_other_methods(tmp_path):
    found = verdicts(run(tmp_path, "fedavg", method="fedavg"))
    assert found["Theorem", "its method"] == "fails"
    assert found["Lemma 1", "γ L ≤ 1/24"] == "does not apply"
