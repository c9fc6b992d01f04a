"""A run depends on its seed alone, and leaves the caller's model and PyTorch's state alone."""

import random

import numpy as np
import pytest
import torch
from helpers.fit_problems import (
    CLIENTS,
    FULL_PARTICIPATION,
    QUICK,
    TEST,
    are_equal,
    build_seeded,
    copy_state,
    linear_model,
    stateful_model,
)
from torch import nn

from fedwmsam import InputError, fit
from fedwmsam.methods.vectors import Vectors


def test_the_given_module_is_left_alone() -> None:
    model = build_seeded(stateful_model)
    model.eval()
    model[0].bias.requires_grad_(False)
    state = copy_state(model)
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    trainable = [parameter.requires_grad for parameter in model.parameters()]
    result = fit(model, CLIENTS, test=TEST, validation=0.2, **QUICK)
    result.predict(TEST[0])
    assert are_equal(copy_state(model), state)
    assert not are_equal(result.model, state)
    assert not any(module.training for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == trainable
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_factorys_weights_depend_on_the_seed_alone() -> None:
    initial_states: list[Vectors] = []

    def factory() -> nn.Module:
        model = stateful_model()
        initial_states.append(copy_state(model))
        return model

    for seed in (0, 0, 1):
        torch.manual_seed(len(initial_states))
        fit(factory, CLIENTS, seed=seed, **FULL_PARTICIPATION)
    assert len(initial_states) == 3
    assert are_equal(initial_states[0], initial_states[1])
    assert not are_equal(initial_states[0], initial_states[2])


def test_the_callers_random_numbers_go_on_as_if_nothing_had_happened() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        torch_state = torch.get_rng_state()
        numpy_state = np.random.get_state()[1].tolist()
        python_state = random.getstate()
        fit(stateful_model, CLIENTS, test=TEST, validation=0.2, **QUICK)
        with pytest.raises(InputError):
            fit(stateful_model, CLIENTS, patience=2, **QUICK)
        assert torch.equal(torch.get_rng_state(), torch_state)
        assert np.random.get_state()[1].tolist() == numpy_state
        assert random.getstate() == python_state


def test_the_callers_random_state_does_not_matter() -> None:
    models = []
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            models.append(fit(stateful_model, CLIENTS, **QUICK).model)
    assert are_equal(*models)


def test_the_callers_thread_count_comes_back() -> None:
    before = torch.get_num_threads()
    counts: list[int] = []

    def record_threads(progress: object) -> None:
        counts.append(torch.get_num_threads())

    try:
        torch.set_num_threads(2)
        fit(linear_model, CLIENTS, callbacks=[record_threads], **FULL_PARTICIPATION)
        with pytest.raises(InputError):
            fit(linear_model, CLIENTS, patience=2, **QUICK)
        assert counts == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_seed_changes_the_run_and_the_same_seed_does_not() -> None:
    model = build_seeded(stateful_model)
    first, again, other = (fit(model, CLIENTS, seed=seed, **QUICK) for seed in (0, 0, 1))
    assert are_equal(first.model, again.model)
    assert first.rows == again.rows
    assert not are_equal(first.model, other.model)
