"""`fedwmsam.fit` from a user's side: what goes in, what comes out, what is refused."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import fedwmsam
from fedwmsam import SCAFFOLD, FedAvg, FedCM, FedWMSAM, InputError, Result, fit
from fedwmsam.engine import checkpoint
from fedwmsam.engine.client_state import Store, index_of
from fedwmsam.methods import Gradient, Info, make_method
from fedwmsam.methods.vectors import Vectors

Pair = tuple[np.ndarray, np.ndarray]
CENTRES = np.random.default_rng(1).normal(size=(3, 4)) * 1.5


def blobs(samples: int, seed: int) -> Pair:
    """Three classes around three centres in four dimensions."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=samples)
    return (CENTRES[labels] + rng.normal(size=(samples, 4))).astype(np.float32), labels


def line(samples: int, seed: int) -> Pair:
    """y = x₁ − 2 x₂ + 0.5, exactly."""
    x = np.random.default_rng(seed).normal(size=(samples, 4)).astype(np.float32)
    return x, x[:, :1] - 2 * x[:, 1:2] + np.float32(0.5)


CLIENTS = [blobs(samples, seed) for seed, samples in enumerate((12, 8, 14, 11))]
TEST, VALIDATION = blobs(40, 100), blobs(40, 101)
LINES = [line(12, seed) for seed in range(3)]
QUICK: dict[str, Any] = {"rounds": 3, "local_epochs": 2, "batch_size": 6, "participation": 0.5}
EVERYONE: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "batch_size": 100, "participation": 1.0}
PLAIN: dict[str, Any] = {"weight_decay": 0.0, "clip_norm": None}


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def rich() -> nn.Module:
    """Everything with a state of its own: BatchNorm's statistics and dropout's masks."""
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3)
    )


def equal(a: Vectors, b: Vectors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def state_of(model: nn.Module) -> Vectors:
    return {name: value.clone() for name, value in model.state_dict().items()}


def finite(state: Vectors) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in state.values())


# Forms of data


class Items(Dataset[Any]):
    """A map-style dataset whose samples need a collate of their own."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": self.x[index].tolist(), "label": int(self.y[index])}


class Plain(Items):
    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def stack(items: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([i["features"] for i in items]), torch.tensor([i["label"] for i in items])


FORMS: dict[str, dict[str, Any]] = {
    "tensors": {"clients": [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in CLIENTS]},
    "lists of two": {"clients": [[x, y] for x, y in CLIENTS]},
    "float64 and int32": {
        "clients": [(x.astype(np.float64), y.astype(np.int32)) for x, y in CLIENTS]
    },
    "datasets": {"clients": [Plain(x, y) for x, y in CLIENTS]},
    "own collate": {"clients": [Items(x, y) for x, y in CLIENTS], "collate": stack},
    "lists of samples": {"clients": [list(zip(x, y, strict=True)) for x, y in CLIENTS]},
    "lazy pairs": {"clients": lambda k: CLIENTS[k], "client_count": 4},
    "lazy datasets": {"clients": lambda k: Plain(*CLIENTS[k]), "client_count": 4},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_data_gives_the_same_model(form: str) -> None:
    expected = fit(rich, CLIENTS, test=TEST, **QUICK)
    result = fit(rich, test=TEST, **FORMS[form], **QUICK)
    assert equal(result.model, expected.model)
    assert result.rows == expected.rows


def test_lazy_clients_are_read_only_when_sampled() -> None:
    asked: list[int] = []

    def load(client: int) -> Pair:
        asked.append(client)
        return CLIENTS[client % 4]

    fit(linear, load, client_count=1000, rounds=2, clients_per_round=3, local_epochs=1)
    assert 3 <= len(asked) <= 6
    assert all(0 <= client < 1000 for client in asked)


def test_lazy_clients_weighed_by_size_need_their_sizes() -> None:
    settings = EVERYONE | {"averaging": "size"}
    with pytest.raises(InputError, match="client_sizes"):
        fit(linear, lambda k: CLIENTS[k], client_count=4, **settings)
    sizes = [len(y) for _, y in CLIENTS]
    lazy = fit(linear, lambda k: CLIENTS[k], client_count=4, client_sizes=sizes, **settings)
    assert equal(lazy.model, fit(linear, CLIENTS, **settings).model)


def test_a_model_in_double_precision_stays_in_it() -> None:
    result = fit(lambda: linear().double(), CLIENTS, test=TEST, **QUICK)
    assert {value.dtype for value in result.model.values()} == {torch.float64}
    assert result.predict(TEST[0]).dtype == torch.float64


# The user's model and PyTorch's state


def test_the_given_module_is_left_alone() -> None:
    model = seeded(rich)
    model.eval()
    model[0].bias.requires_grad_(False)
    before, pointers = state_of(model), [p.data_ptr() for p in model.parameters()]
    flags = [p.requires_grad for p in model.parameters()]
    result = fit(model, CLIENTS, test=TEST, validation=0.2, **QUICK)
    result.predict(TEST[0])
    assert equal(state_of(model), before)
    assert not equal(result.model, before)
    assert not any(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == flags
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert all(p.grad is None for p in model.parameters())


def test_a_factorys_weights_depend_on_the_seed_alone() -> None:
    made: list[Vectors] = []

    def factory() -> nn.Module:
        model = rich()
        made.append(state_of(model))
        return model

    for seed in (0, 0, 1):
        torch.manual_seed(len(made))
        fit(factory, CLIENTS, seed=seed, **EVERYONE)
    assert len(made) == 3
    assert equal(made[0], made[1])
    assert not equal(made[0], made[2])


def test_the_callers_random_numbers_go_on_as_if_nothing_had_happened() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        fit(rich, CLIENTS, test=TEST, validation=0.2, **QUICK)
        with pytest.raises(InputError):
            fit(rich, CLIENTS, patience=2, **QUICK)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.random.get_state()[1].tolist() == before[1]
        assert random.getstate() == before[2]


def test_the_callers_random_state_does_not_matter() -> None:
    models = []
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            models.append(fit(rich, CLIENTS, **QUICK).model)
    assert equal(*models)


def test_the_callers_thread_count_comes_back() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        seen: list[int] = []
        fit(linear, CLIENTS, callbacks=[lambda _: seen.append(torch.get_num_threads())], **EVERYONE)
        with pytest.raises(InputError):
            fit(linear, CLIENTS, patience=2, **QUICK)
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_seed_changes_the_run_and_the_same_seed_does_not() -> None:
    model = seeded(rich)
    first, again, other = (fit(model, CLIENTS, seed=seed, **QUICK) for seed in (0, 0, 1))
    assert equal(first.model, again.model) and first.rows == again.rows
    assert not equal(first.model, other.model)


# The result


def test_rows_and_columns() -> None:
    result = fit(
        linear, CLIENTS, test=TEST, validation=VALIDATION, evaluate_every=3, **QUICK | {"rounds": 7}
    )
    assert result.status == "completed" and result.rounds == 7
    assert [row["round"] for row in result.rows] == list(range(1, 8))
    columns = result.columns
    for name in ("accuracy", "loss", "validation_accuracy", "validation_loss"):
        assert [value is not None for value in columns[name]] == [
            False,
            False,
            True,
            False,
            False,
            True,
            True,
        ]
    for name in (
        "train_loss",
        "lr",
        "alpha",
        "similarity",
        "update_norm",
        "bytes_up",
        "bytes_down",
        "backprops",
    ):
        assert None not in columns[name]
    assert columns["lr"] == pytest.approx([0.1 * 0.998**r for r in range(7)])
    assert result.last() == columns["accuracy"][6] and result.last("alpha") == columns["alpha"][6]
    assert result.last("no such column") is None
    assert result.best_round in (3, 6, 7)


def test_last_skips_rounds_that_were_not_evaluated(tmp_path: Path) -> None:
    fit(
        linear,
        CLIENTS,
        test=TEST,
        run_folder=tmp_path / "run",
        evaluate_every=2,
        **QUICK | {"rounds": 4},
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n")
    loaded = Result.load(tmp_path / "run")
    assert loaded.columns["accuracy"][2] is None
    assert loaded.last("accuracy") == loaded.columns["accuracy"][1] is not None


def test_without_test_data_nothing_is_evaluated() -> None:
    result = fit(linear, CLIENTS, **QUICK)
    assert "accuracy" not in result.columns and "loss" not in result.columns
    assert result.last() is None and result.best_model is None and result.best_round is None
    with pytest.raises(InputError, match="validation"):
        result.predict(TEST[0], best=True)


def test_the_models_fit_the_users_own() -> None:
    result = fit(rich, CLIENTS, test=TEST, validation=VALIDATION, **QUICK | {"rounds": 6})
    own = rich()
    for state, best in ((result.model, False), (result.best_model, True)):
        own.load_state_dict(state)
        own.eval()
        with torch.no_grad():
            expected = own(torch.from_numpy(TEST[0]))
        torch.testing.assert_close(
            result.predict(TEST[0], best=best), expected, rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(
            result.predict(TEST[0], best=best, batch_size=7), expected, rtol=1e-5, atol=1e-6
        )
        accuracy = float((expected.argmax(1).numpy() == TEST[1]).mean())
        measured = result.evaluate(TEST, best=best)
        assert measured["accuracy"] == pytest.approx(accuracy)
        loss = functional.cross_entropy(expected, torch.from_numpy(TEST[1]))
        assert measured["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert result.evaluate(TEST)["accuracy"] == result.last("accuracy")
    assert result.evaluate(Plain(*TEST)) == pytest.approx(result.evaluate(TEST))


def test_predicting_does_not_change_the_result() -> None:
    result = fit(rich, CLIENTS, validation=VALIDATION, **QUICK)
    before = {name: value.clone() for name, value in result.model.items()}
    first = result.predict(TEST[0])
    result.predict(VALIDATION[0], best=True)
    result.evaluate(VALIDATION, best=True)
    assert torch.equal(result.predict(TEST[0]), first)
    assert equal(result.model, before)


def test_timings() -> None:
    result = fit(linear, CLIENTS, test=TEST, **QUICK)
    assert [t["round"] for t in result.timings] == [1, 2, 3]
    assert all(
        t["train_seconds"] > 0 and t["evaluate_seconds"] > 0 and t["cpu_seconds"] > 0
        for t in result.timings
    )
    assert result.seconds == pytest.approx(
        sum(t["train_seconds"] + t["evaluate_seconds"] for t in result.timings)
    )


def test_a_run_folder_loads_as_the_result_it_came_from(tmp_path: Path) -> None:
    result = fit(
        rich,
        CLIENTS,
        FedWMSAM(rho=0.02),
        test=TEST,
        validation=0.3,
        run_folder=tmp_path / "run",
        **QUICK,
    )
    assert result.folder == tmp_path / "run"
    loaded = Result.load(tmp_path / "run", model=rich)
    assert (loaded.status, loaded.best_round, loaded.rounds) == (
        result.status,
        result.best_round,
        result.rounds,
    )
    assert loaded.rows == result.rows and loaded.timings == result.timings
    assert equal(loaded.model, result.model) and equal(loaded.best_model, result.best_model)
    assert {k: v for k, v in result.config.items() if v is not None} == loaded.config
    assert loaded.config["rho"] == 0.02
    for best in (False, True):
        assert torch.equal(loaded.predict(TEST[0], best=best), result.predict(TEST[0], best=best))
        assert loaded.evaluate(TEST, best=best) == result.evaluate(TEST, best=best)


def test_a_loaded_run_without_its_model_says_what_it_needs(tmp_path: Path) -> None:
    fit(linear, CLIENTS, run_folder=tmp_path / "run", **QUICK)
    with pytest.raises(InputError, match="model="):
        Result.load(tmp_path / "run").predict(TEST[0])
    with pytest.raises(InputError, match="do not fit"):
        Result.load(tmp_path / "run", model=rich).predict(TEST[0])
    with pytest.raises(InputError, match="no run folder"):
        Result.load(tmp_path / "elsewhere")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no finished model"):
        Result.load(tmp_path / "run")


def test_a_loaded_run_evaluates_by_its_own_loss(tmp_path: Path) -> None:
    def factory() -> nn.Module:
        return nn.Linear(4, 1)

    result = fit(factory, LINES, loss="regression", run_folder=tmp_path / "run", **QUICK)
    loaded = Result.load(tmp_path / "run", model=factory)
    assert loaded.evaluate(line(20, 9)) == result.evaluate(line(20, 9))


def test_a_metric_that_is_not_a_number_is_the_same_in_memory_and_on_disk(tmp_path: Path) -> None:
    def undefined(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.tensor(torch.nan)

    result = fit(
        linear, CLIENTS, test=TEST, metrics={"auc": undefined}, run_folder=tmp_path / "run", **QUICK
    )
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert result.rows == Result.load(tmp_path / "run").rows
    assert result.last("auc") is None


# Validation and the best model


def flipped(data: Pair) -> Pair:
    return data[0], 1 - data[1]


def two_classes(samples: int, seed: int) -> Pair:
    x = np.random.default_rng(seed).normal(size=(samples, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


PAIRS = [two_classes(20, seed) for seed in range(4)]
WRONG_AT_FIRST = {"weight": torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]), "bias": torch.zeros(2)}


def test_the_best_model_is_chosen_on_validation_and_never_on_test() -> None:
    """The test labels are the wrong way round: the better on validation, the worse on test."""
    held, states = two_classes(50, 9), []
    result = fit(
        lambda: nn.Linear(4, 2),
        PAIRS,
        "fedavg",
        test=flipped(held),
        validation=held,
        rounds=25,
        lr=0.3,
        participation=1.0,
        local_epochs=1,
        initial_weights=WRONG_AT_FIRST,
        callbacks=[lambda progress: states.append(progress.state_dict())],
    )
    scores, tests = result.columns["validation_accuracy"], result.columns["accuracy"]
    assert tests == pytest.approx([1 - score for score in scores])
    assert max(scores) - scores[0] > 0.5
    assert result.best_round == 1 + scores.index(max(scores)) != 1 + tests.index(max(tests))
    assert equal(result.best_model, states[result.best_round - 1])
    assert result.evaluate(held, best=True)["accuracy"] == max(scores)


class Echo(nn.Module):
    """Outputs its input beside a trained number, and notes which samples it trained on and which it was tested on."""

    trained: ClassVar[set[int]] = set()
    tested: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.trained if self.training else self.tested
        seen.update(x[:, 0].long().tolist())
        return torch.cat([x, self.weight * x], dim=1)


def misplaced(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, :1] != targets).sum()


@pytest.mark.parametrize("form", ["pairs", "datasets"])
def test_a_validation_share_is_cut_from_every_client_and_trained_on_by_none(form: str) -> None:
    sizes, start, clients = (10, 20, 5, 1), 0, []
    for size in sizes:
        ids = np.arange(start, start + size, dtype=np.float32)[:, None]
        clients.append((ids, ids) if form == "pairs" else Plain(ids, ids))
        start += size
    Echo.trained.clear()
    Echo.tested.clear()
    result = fit(
        Echo,
        clients,
        "fedavg",
        validation=0.2,
        loss=lambda outputs, targets: outputs.square().mean() * 1e-6,
        metrics={"misplaced": misplaced},
        participation=1.0,
        rounds=2,
        local_epochs=1,
        batch_size=4,
    )
    held = Echo.tested - Echo.trained  # without what only a look at the input's shape has touched
    assert held | Echo.trained == set(range(36))
    owner = np.repeat(np.arange(4), sizes)
    assert np.bincount(owner[sorted(held)], minlength=4).tolist() == [2, 4, 1, 0]
    assert result.columns["validation_misplaced"] == [0, 0]


def test_a_validation_share_moves_with_the_seed() -> None:
    runs = [fit(linear, CLIENTS, validation=0.3, seed=seed, **EVERYONE) for seed in (0, 0, 1)]
    losses = [run.last("validation_loss") for run in runs]
    assert losses[0] == losses[1] != losses[2]


# Stopping


def test_patience_ends_a_run_that_no_longer_improves() -> None:
    settings = QUICK | {"rounds": 50, "lr": 1e-9, "weight_decay": 0.0}
    result = fit(linear, CLIENTS, validation=VALIDATION, patience=4, **settings)
    assert result.best_round == 1 and result.rounds == 5
    assert "no better validation score" in result.status


def test_patience_counts_only_what_was_evaluated() -> None:
    """Every evaluation is better than the one before; between two there is nothing to be impatient about."""
    result = fit(
        lambda: nn.Linear(4, 1),
        LINES,
        "fedavg",
        loss="regression",
        validation=line(30, 5),
        evaluate_every=4,
        patience=2,
        rounds=12,
        lr=0.01,
        local_epochs=1,
        participation=1.0,
    )
    scores = [score for score in result.columns["validation_loss"] if score is not None]
    assert scores == sorted(scores, reverse=True)
    assert result.status == "completed" and result.rounds == 12


def test_the_target_ends_the_run_when_it_is_first_reached() -> None:
    settings: dict[str, Any] = {"rounds": 60, "lr": 0.3, "participation": 1.0, "local_epochs": 1}
    held = two_classes(50, 9)
    result = fit(
        lambda: nn.Linear(4, 2),
        PAIRS,
        "fedavg",
        test=held,
        target_accuracy=0.8,
        initial_weights=WRONG_AT_FIRST,
        **settings,
    )
    accuracies = result.columns["accuracy"]
    assert accuracies[-1] >= 0.8 > max(accuracies[:-1])
    assert result.status == "reached accuracy 0.8"


def test_the_target_is_judged_on_validation_where_there_is_any() -> None:
    held = two_classes(50, 9)
    settings: dict[str, Any] = {"rounds": 40, "lr": 0.3, "participation": 1.0, "local_epochs": 1}
    result = fit(
        lambda: nn.Linear(4, 2),
        PAIRS,
        "fedavg",
        test=flipped(held),
        validation=held,
        target_accuracy=0.8,
        initial_weights=WRONG_AT_FIRST,
        **settings,
    )
    scores = result.columns["validation_accuracy"]
    assert scores[-1] >= 0.8 > max(scores[:-1])
    assert result.columns["accuracy"][0] >= 0.8  # the test data would have ended it at once


def test_the_time_budget_ends_the_run() -> None:
    result = fit(linear, CLIENTS, time_budget=1e-9, **QUICK)
    assert result.rounds == 1 and "time budget" in result.status
    assert fit(linear, CLIENTS, time_budget=1e9, **QUICK).status == "completed"


def test_callbacks_see_every_round_and_can_end_the_run() -> None:
    seen, lengths, states = [], [], []

    def watch(progress: Any) -> None:
        seen.append(progress.record)
        lengths.append(len(progress.history))
        states.append(progress.state_dict())
        if progress.record["round"] == 2:
            progress.stop("enough for today")

    result = fit(linear, CLIENTS, test=TEST, callbacks=[watch], **QUICK | {"rounds": 9})
    assert result.status == "enough for today" and result.rounds == 2
    assert seen == result.rows and lengths == [1, 2]
    assert equal(states[1], result.model) and not equal(states[0], states[1])
    assert equal(result.model, fit(linear, CLIENTS, test=TEST, **QUICK | {"rounds": 2}).model)


def test_the_round_a_run_is_stopped_at_is_evaluated() -> None:
    """`evaluate_every`: the last is always evaluated."""

    def stop(progress: Any) -> None:
        if progress.record["round"] == 4:
            progress.stop()

    result = fit(
        linear, CLIENTS, test=TEST, evaluate_every=3, callbacks=[stop], **QUICK | {"rounds": 9}
    )
    assert result.rounds == 4
    assert result.columns["accuracy"][3] is not None


# Warm start


def test_a_warm_start_begins_at_the_given_weights() -> None:
    given = seeded(rich, 7)
    given.train()
    given(torch.from_numpy(TEST[0]))  # so that its BatchNorm statistics are not the initial ones
    own = seeded(rich, 8)
    result = fit(
        own, CLIENTS, "fedavg", initial_weights=given.state_dict(), **EVERYONE | {"lr": 1e-9}
    )
    for name, parameter in given.named_parameters():
        torch.testing.assert_close(result.model[name], parameter.detach(), rtol=0, atol=1e-6)
    # BatchNorm moves by a tenth towards the clients' batches, from the given statistics and not from zero.
    tracked = "1.num_batches_tracked"
    assert int(result.model[tracked]) == int(given.state_dict()[tracked]) + 1 == 2
    with torch.no_grad():
        batches = torch.stack([given[0](torch.from_numpy(x)).mean(dim=0) for x, _ in CLIENTS]).mean(
            dim=0
        )
    expected = 0.9 * given.state_dict()["1.running_mean"] + 0.1 * batches
    torch.testing.assert_close(result.model["1.running_mean"], expected, rtol=1e-4, atol=1e-5)


def test_a_warm_start_from_the_models_own_weights_changes_nothing() -> None:
    model = seeded(rich)
    result = fit(model, CLIENTS, initial_weights=model.state_dict(), **QUICK)
    assert equal(result.model, fit(model, CLIENTS, **QUICK).model)


def test_a_warm_start_takes_frozen_weights_too() -> None:
    def frozen_first(seed: int) -> nn.Module:
        model = seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), seed)
        model[0].requires_grad_(False)
        return model

    given = frozen_first(1)
    result = fit(frozen_first(0), CLIENTS, initial_weights=given.state_dict(), **EVERYONE)
    assert torch.equal(result.model["0.weight"], given.state_dict()["0.weight"])


# Run folders


SETTING_OUT: dict[str, Any] = {
    "method": FedWMSAM(),
    "test": TEST,
    "validation": 0.2,
    "participation": 0.5,
    "local_epochs": 2,
    "batch_size": 6,
    "checkpoint_every": 2,
}


def numbers_of(folder: Path) -> dict[str, bytes]:
    """All that a rerun must reproduce byte for byte."""
    names = ("metrics.jsonl", "model.safetensors", "best.safetensors")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rounds without a pause."""
    folder = tmp_path_factory.mktemp("eight") / "run"
    fit(rich, CLIENTS, rounds=8, run_folder=folder, **SETTING_OUT)
    return folder


def test_going_on_from_five_to_eight_is_eight_at_once(tmp_path: Path, eight: Path) -> None:
    folder = tmp_path / "run"
    first = fit(rich, CLIENTS, rounds=5, run_folder=folder, resume=True, **SETTING_OUT)
    assert first.rounds == 5
    second = fit(rich, CLIENTS, rounds=8, run_folder=folder, resume=True, **SETTING_OUT)
    assert numbers_of(folder) == numbers_of(eight) and len(numbers_of(folder)) == 3
    whole = Result.load(eight)
    assert second.rows == whole.rows and equal(second.model, whole.model)
    assert equal(second.best_model, whole.best_model) and second.best_round == whole.best_round
    assert len((folder / "timings.jsonl").read_text().splitlines()) == 8 == len(second.timings)
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 8


def test_the_folder_says_how_many_rounds_it_went_on_to(tmp_path: Path) -> None:
    for rounds in (1, 3):
        fit(linear, CLIENTS, run_folder=tmp_path / "run", resume=True, **QUICK | {"rounds": rounds})
    assert Result.load(tmp_path / "run").config["rounds"] == 3


@pytest.mark.parametrize(
    ("method", "error"),
    [
        (FedAvg(), RuntimeError),
        *((method, KeyboardInterrupt) for method in (FedCM(), SCAFFOLD(), FedWMSAM())),
    ],
)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, method: fedwmsam.Method, error: type[BaseException]
) -> None:
    def interrupt(progress: Any) -> None:
        if progress.record["round"] == 3:
            raise error

    settings = SETTING_OUT | {"method": method, "rounds": 5, "checkpoint_every": 4}
    with pytest.raises(error):
        fit(rich, CLIENTS, run_folder=tmp_path / "run", callbacks=[interrupt], **settings)
    result = fit(rich, CLIENTS, run_folder=tmp_path / "run", resume=True, **settings)
    assert [t["round"] for t in result.timings] == [1, 2, 3, 4, 5]
    fit(rich, CLIENTS, run_folder=tmp_path / "whole", **settings)
    assert numbers_of(tmp_path / "run") == numbers_of(tmp_path / "whole")


def test_an_interruption_during_evaluation_leaves_no_trace_in_the_clients_memory(
    tmp_path: Path,
) -> None:
    """Ctrl-C after the clients' answers were settled but before the round counts."""
    calls: list[int] = []

    def interrupted(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return outputs.mean()

    settings = QUICK | {"method": SCAFFOLD(), "test": TEST, "rounds": 5, "participation": 1.0}
    with pytest.raises(KeyboardInterrupt):
        fit(linear, CLIENTS, run_folder=tmp_path / "run", metrics={"mean": interrupted}, **settings)
    for folder in ("run", "whole"):
        fit(
            linear,
            CLIENTS,
            run_folder=tmp_path / folder,
            resume=True,
            metrics={"mean": interrupted},
            **settings,
        )
    assert numbers_of(tmp_path / "run") == numbers_of(tmp_path / "whole")


def test_a_modules_name_may_hold_a_slash(tmp_path: Path) -> None:
    def factory() -> nn.Module:
        model = rich()
        model.add_module("in/out", nn.BatchNorm1d(3))
        return model

    for rounds in (1, 2):
        result = fit(
            factory, CLIENTS, run_folder=tmp_path / "run", resume=True, **QUICK | {"rounds": rounds}
        )
    assert equal(result.model, fit(factory, CLIENTS, **QUICK | {"rounds": 2}).model)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, eight: Path) -> None:
    folder = tmp_path / "run"
    fit(rich, CLIENTS, rounds=5, run_folder=folder, **SETTING_OUT)
    newest = checkpoint.path_of(folder / "checkpoints", 5)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    fit(rich, CLIENTS, rounds=8, run_folder=folder, resume=True, **SETTING_OUT)
    assert numbers_of(folder) == numbers_of(eight)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.05},
        {"batch_size": 7},
        {"seed": 1},
        {"participation": 1.0},
        {"averaging": "size"},
        {"method": FedAvg()},
        {"method": FedWMSAM(rho=0.02)},
        {"clip_norm": None},
        {"evaluate_every": 2},
        {"validation": 0.4},
        {"validation": None},
        {"clients": CLIENTS[:3]},
        {"loss": "multilabel"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_run_does_not_go_on_with_other_settings(tmp_path: Path, change: dict[str, Any]) -> None:
    settings = {
        "model": linear,
        "clients": CLIENTS,
        "run_folder": tmp_path / "run",
        "rounds": 2,
    } | SETTING_OUT
    fit(**settings)
    before = numbers_of(tmp_path / "run")
    if change.get("loss") == "multilabel":
        change = change | {
            "clients": [(x, np.eye(3)[y]) for x, y in CLIENTS],
            "test": (TEST[0], np.eye(3)[TEST[1]]),
        }
    with pytest.raises(InputError) as caught:
        fit(**settings | change | {"rounds": 4, "resume": True})
    assert "\n" not in str(caught.value)
    assert next(iter(change)) in str(caught.value) or "rho" in str(caught.value)
    assert numbers_of(tmp_path / "run") == before
    fit(**settings | {"rounds": 3, "resume": True})  # the refusal has not locked the folder


def test_stopping_rules_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    fit(linear, CLIENTS, rounds=2, run_folder=tmp_path / "run", **SETTING_OUT)
    changed = SETTING_OUT | {
        "patience": 50,
        "time_budget": 1e6,
        "target_accuracy": 1.0,
        "checkpoint_every": 1,
    }
    result = fit(linear, CLIENTS, rounds=4, run_folder=tmp_path / "run", resume=True, **changed)
    whole = fit(linear, CLIENTS, rounds=4, **SETTING_OUT)
    assert result.rows[:3] == whole.rows[:3]


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    fit(linear, CLIENTS, run_folder=tmp_path / "run", **QUICK)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="already holds a run") as caught:
        fit(linear, CLIENTS, run_folder=tmp_path / "run", **QUICK)
    assert "resume=True" in str(caught.value)  # `fedwmsam resume` refuses a folder that fit() made
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_two_runs_cannot_share_a_folder_at_the_same_time(tmp_path: Path) -> None:
    refusals: list[str] = []

    def intrude(progress: Any) -> None:
        try:
            fit(linear, CLIENTS, run_folder=tmp_path / "run", resume=True, **QUICK)
        except InputError as error:
            refusals.append(str(error))

    fit(linear, CLIENTS, run_folder=tmp_path / "run", callbacks=[intrude], **QUICK)
    assert len(refusals) == 3 and "nother process" in refusals[0]


@pytest.mark.parametrize(
    "mistake",
    [{"patience": 2}, {"target_accuracy": 0.5}, {"initial_weights": {"weight": torch.zeros(3, 4)}}],
    ids=lambda mistake: next(iter(mistake)),
)
def test_a_mistake_does_not_use_up_the_folder(tmp_path: Path, mistake: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        fit(linear, CLIENTS, run_folder=tmp_path / "run", **mistake, **QUICK)
    assert fit(linear, CLIENTS, run_folder=tmp_path / "run", **QUICK).status == "completed"


def test_numbers_from_numpy_are_numbers(tmp_path: Path) -> None:
    settings = QUICK | {"lr": 0.0625, "seed": 3}
    plain = fit(linear, CLIENTS, **settings)
    fit(linear, CLIENTS, run_folder=tmp_path / "run", **settings | {"lr": np.float64(0.0625)})
    assert equal(Result.load(tmp_path / "run").model, plain.model)
    settings |= {"lr": np.float32(0.0625), "seed": np.int64(3)}
    other = fit(linear, CLIENTS, run_folder=tmp_path / "b", **settings)
    assert equal(other.model, plain.model)
    assert Result.load(tmp_path / "b").config["seed"] == 3


# Losses and metrics


def test_regression_learns_the_line() -> None:
    result = fit(
        lambda: nn.Linear(4, 1),
        LINES,
        "fedavg",
        loss="regression",
        test=line(30, 5),
        rounds=40,
        lr=0.1,
        participation=1.0,
        local_epochs=2,
        weight_decay=0.0,
    )
    assert result.last("loss") < 1e-3 < result.columns["loss"][0]
    torch.testing.assert_close(
        result.model["weight"], torch.tensor([[1.0, -2, 0, 0]]), rtol=0, atol=0.05
    )
    errors = result.predict(line(30, 5)[0]).numpy() - line(30, 5)[1]
    assert result.last("mae") == pytest.approx(float(np.abs(errors).mean()), rel=1e-4)


def test_regression_takes_whole_number_targets() -> None:
    clients = [(x, np.round(10 * y).astype(np.int64)) for x, y in LINES]
    as_floats = [(x, y.astype(np.float32)) for x, y in clients]
    results = [
        fit(lambda: nn.Linear(4, 1), c, loss="regression", **QUICK) for c in (clients, as_floats)
    ]
    assert equal(results[0].model, results[1].model)


@pytest.mark.parametrize(
    ("monitor", "choose"), [("-mae", min), ("mae", max), ("loss", min), (None, min)]
)
def test_the_monitor_says_what_is_better(
    monitor: str | None, choose: Callable[[list[float]], float]
) -> None:
    result = fit(
        lambda: nn.Linear(4, 1),
        LINES,
        "fedavg",
        loss="regression",
        monitor=monitor,
        validation=line(30, 5),
        lr=0.1,
        **QUICK | {"rounds": 6},
    )
    scores = result.columns["validation_" + (monitor or "loss").removeprefix("-")]
    assert result.best_round == 1 + scores.index(choose(scores))
    assert min(scores) != max(scores)


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.float64])
def test_multilabel(kind: type) -> None:
    def labelled(seed: int, samples: int = 30) -> Pair:
        x = np.random.default_rng(seed).normal(size=(samples, 4)).astype(np.float32)
        return x, (x[:, :3] > 0).astype(kind)

    result = fit(
        linear,
        [labelled(k) for k in range(3)],
        "fedavg",
        loss="multilabel",
        test=labelled(9),
        validation=labelled(8),
        rounds=20,
        lr=0.5,
        participation=1.0,
        local_epochs=5,
    )
    right = (result.predict(labelled(9)[0]).numpy() > 0) == labelled(9)[1].astype(bool)
    assert result.last("label_accuracy") == pytest.approx(right.mean()) and right.mean() > 0.9
    scores = result.columns["validation_label_accuracy"]
    assert result.best_round == 1 + scores.index(max(scores))


def test_an_own_loss_and_an_own_metric_see_all_outputs_at_once() -> None:
    sizes: list[int] = []

    def median_error(outputs: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(outputs))
        return (outputs - targets).abs().median()

    data = line(1203, 5)
    result = fit(
        lambda: nn.Linear(4, 1),
        LINES,
        loss=functional.huber_loss,
        metrics={"median": median_error},
        monitor="-median",
        test=data,
        validation=line(20, 6),
        **QUICK,
    )
    assert sizes == [20, 1203] * 3
    errors = np.abs(result.predict(data[0]).numpy() - data[1])
    assert result.last("median") == pytest.approx(float(np.sort(errors.ravel())[601]), rel=1e-5)
    assert result.best_round == 1 + int(np.argmin(result.columns["validation_median"]))


def test_the_own_loss_is_what_is_minimised() -> None:
    model = seeded(lambda: nn.Linear(4, 1))
    runs = [
        fit(model, LINES, "fedavg", loss=loss, **QUICK).model
        for loss in ("regression", functional.mse_loss)
    ]
    assert equal(*runs)
    assert not equal(runs[0], fit(model, LINES, "fedavg", loss=functional.l1_loss, **QUICK).model)


# Parameters and buffers


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decode(torch.tanh(self.encode(x))))


def test_tied_parameters_are_trained_as_one_and_stay_tied(tmp_path: Path) -> None:
    model = seeded(Tied)
    result = fit(model, CLIENTS, "fedavg", run_folder=tmp_path / "run", **EVERYONE)
    assert set(result.model) == set(model.state_dict())
    assert torch.equal(result.model["encode.weight"], result.model["decode.weight"])
    assert not torch.equal(result.model["encode.weight"], model.encode.weight.detach())
    parameters = 4 * 4 + 4 * 3 + 3
    assert result.rows[0]["bytes_up"] == result.rows[0]["bytes_down"] == 4 * 4 * parameters
    own = Tied()
    own.load_state_dict(result.model)
    assert own.encode.weight is own.decode.weight
    assert equal(Result.load(tmp_path / "run", model=Tied).model, result.model)
    assert torch.equal(
        Result.load(tmp_path / "run", model=Tied).predict(TEST[0]), result.predict(TEST[0])
    )


def test_a_tied_parameters_gradient_has_both_paths() -> None:
    model = seeded(Tied).double()
    x, y = CLIENTS[0][0].astype(np.float64), CLIENTS[0][1]
    result = fit(model, [(x, y)], "fedavg", lr=0.1, **EVERYONE, **PLAIN)
    own = copy.deepcopy(model)
    functional.cross_entropy(own(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    expected = own.encode.weight - 0.1 * own.encode.weight.grad
    torch.testing.assert_close(
        result.model["decode.weight"], expected.detach(), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD(), FedWMSAM()], ids=lambda m: m.name)
def test_frozen_parameters_stay_as_they_are(method: fedwmsam.Method) -> None:
    model = seeded(rich)
    model[0].requires_grad_(False)
    result = fit(model, CLIENTS, method, weight_decay=0.1, **QUICK)
    for name in ("0.weight", "0.bias"):
        assert torch.equal(result.model[name], model.state_dict()[name])
    assert not torch.equal(result.model["4.weight"], model.state_dict()["4.weight"])
    trained = 6 + 6 + 6 * 3 + 3
    buffers = 4 * 6 + 4 * 6 + 8
    assert result.rows[0]["bytes_up"] == 2 * (4 * trained + buffers)


def test_a_loaded_run_predicts_with_its_own_frozen_weights(tmp_path: Path) -> None:
    def frozen_first() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
        model[0].requires_grad_(False)
        return model

    result = fit(seeded(frozen_first, 1), CLIENTS, run_folder=tmp_path / "run", **QUICK)
    loaded = Result.load(tmp_path / "run", model=seeded(frozen_first, 2))
    assert torch.equal(loaded.predict(TEST[0]), result.predict(TEST[0]))


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


@pytest.mark.parametrize("averaging", ["uniform", "size"])
def test_batchnorm_statistics_are_averaged_over_the_clients(averaging: str) -> None:
    clients = [CLIENTS[0], CLIENTS[1]]
    result = fit(seeded(normed), clients, "fedavg", averaging=averaging, **EVERYONE)
    weights = np.array([0.5, 0.5] if averaging == "uniform" else [12 / 20, 8 / 20])
    means = np.stack([0.1 * x.astype(np.float64).mean(axis=0) for x, _ in clients])
    variances = np.stack([0.9 + 0.1 * x.astype(np.float64).var(axis=0, ddof=1) for x, _ in clients])
    np.testing.assert_allclose(result.model["0.running_mean"].numpy(), weights @ means, rtol=1e-12)
    np.testing.assert_allclose(
        result.model["0.running_var"].numpy(), weights @ variances, rtol=1e-12
    )
    parameters, statistics = 4 + 4 + 4 * 3 + 3, 4 + 4
    assert result.rows[0]["bytes_up"] == 2 * (8 * (parameters + statistics) + 8)
    assert result.rows[0]["bytes_down"] == result.rows[0]["bytes_up"]


def test_batchnorm_counts_the_batches_of_the_client_that_had_most() -> None:
    clients = [blobs(4, 0), blobs(12, 1), blobs(8, 2)]  # 1, 3 and 2 steps
    result = fit(seeded(normed), clients, "fedavg", **EVERYONE | {"batch_size": 4, "rounds": 2})
    assert int(result.model["0.num_batches_tracked"]) == 6


def test_a_last_batch_of_one_sample_does_not_crash_batchnorm() -> None:
    """13 samples in batches of 6: PyTorch's BatchNorm cannot train on the last one."""
    try:
        result = fit(rich, [blobs(13, 0)] * 2, **QUICK)
    except InputError as error:
        assert "batch_size" in str(error) and "Client" in str(error)
    else:
        assert result.status == "completed" and finite(result.model)


class Counting(nn.Module):
    """Replaces its buffer instead of changing it in place, as many modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes = self.passes + 1
        return self.linear(x)


def test_a_buffer_that_its_module_replaces_is_averaged_like_any_other() -> None:
    result = fit(Counting, CLIENTS, "fedavg", **EVERYONE | {"rounds": 3})
    assert float(result.model["passes"]) == 3


def test_a_client_whose_statistics_overflow_does_not_spoil_the_model() -> None:
    """Values whose square is beyond float32: the update is finite, BatchNorm's running variance is not."""
    huge = (CLIENTS[1][0] * np.float32(1e30), CLIENTS[1][1])
    result = fit(
        seeded(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))),
        [CLIENTS[0], huge, CLIENTS[2]],
        "fedavg",
        test=TEST,
        **EVERYONE | {"rounds": 3},
    )
    assert finite(result.model)
    assert all(row.get("rejected") == [1] for row in result.rows) or result.status.startswith(
        "diverged"
    )


SEEN: list[tuple[Tensor, Tensor]] = []


@dataclass(frozen=True)
class Twice(FedAvg):
    """Asks for the gradient twice at the same point, as SAM does at two points."""

    name = "twice"

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        first, second = grad(w), grad(w)
        SEEN.append((first, second.clone()))  # the loop goes on with the memory of what is returned
        return second, scratch


def test_a_second_gradient_sees_the_same_dropout_and_moves_no_statistics() -> None:
    SEEN.clear()
    twice, once = (fit(rich, CLIENTS, method, **QUICK) for method in (Twice(), FedAvg()))
    assert len(SEEN) > 10 and all(torch.equal(first, second) for first, second in SEEN)
    assert equal(twice.model, once.model)
    assert [row["backprops"] for row in twice.rows] == [2 * row["backprops"] for row in once.rows]
    assert twice.columns["train_loss"] == once.columns["train_loss"]


def test_dropout_draws_anew_in_every_step_of_every_client() -> None:
    SEEN.clear()
    model = seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 2)))
    same = (np.ones((4, 40), np.float32), np.zeros(4, np.int64))
    settings = EVERYONE | {"rounds": 2, "local_epochs": 2, "batch_size": 2}
    fit(model, [same, same], Twice(), lr=1e-12, **settings, **PLAIN)
    masks = {tuple((first[:40] != 0).tolist()) for first, _ in SEEN}
    assert len(masks) == len(SEEN) == 16


FULL: list[tuple[Tensor, Tensor]] = []


@dataclass(frozen=True)
class Surveying(FedAvg):
    """Looks at the whole local gradient before it trains."""

    name = "surveying"

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        FULL.append((down["w"], full_gradient(down["w"])))
        return {}


@pytest.mark.parametrize("mode", ["objective", "sgd"])
def test_the_full_gradient_is_that_of_all_local_data(mode: str) -> None:
    FULL.clear()
    model = seeded(linear).double()
    settings = EVERYONE | {
        "batch_size": 5,
        "local_epochs": 2,
        "weight_decay": 0.1,
        "weight_decay_mode": mode,
    }
    survey, plain = (
        fit(model, CLIENTS[:1], method, **settings) for method in (Surveying(), FedAvg())
    )
    own = copy.deepcopy(model)
    x, y = torch.from_numpy(CLIENTS[0][0]).double(), torch.from_numpy(CLIENTS[0][1])
    functional.cross_entropy(own(x), y).backward()
    w, full = FULL[0]
    expected = torch.cat([p.grad.reshape(-1) for p in own.parameters()])
    torch.testing.assert_close(
        full, expected + (0.1 * w if mode == "objective" else 0), rtol=1e-12, atol=1e-12
    )
    assert survey.rows[0]["backprops"] == plain.rows[0]["backprops"] + 3
    assert equal(survey.model, plain.model)


def test_the_full_gradient_moves_no_statistics() -> None:
    survey, plain = (fit(rich, CLIENTS, method, **QUICK) for method in (Surveying(), FedAvg()))
    assert equal(survey.model, plain.model)


# The round


def gradient_of(model: nn.Module, data: Pair) -> Vectors:
    own = copy.deepcopy(model)
    functional.cross_entropy(
        own(torch.from_numpy(data[0]).double()), torch.from_numpy(data[1])
    ).backward()
    return {name: p.grad for name, p in own.named_parameters()}


@pytest.mark.parametrize("averaging", ["uniform", "size"])
@pytest.mark.parametrize("global_lr", [1.0, 0.5])
def test_clients_are_weighed_alike_or_by_their_samples(averaging: str, global_lr: float) -> None:
    clients = [blobs(3, 0), blobs(9, 1)]
    model = seeded(linear).double()
    method = FedAvg(global_lr=global_lr)
    result = fit(model, clients, method, averaging=averaging, lr=0.2, **EVERYONE, **PLAIN)
    weights = (0.5, 0.5) if averaging == "uniform" else (0.25, 0.75)
    gradients = [gradient_of(model, data) for data in clients]
    for name, start in model.state_dict().items():
        mean = sum(
            weight * gradient[name] for weight, gradient in zip(weights, gradients, strict=True)
        )
        torch.testing.assert_close(
            result.model[name], start - global_lr * 0.2 * mean, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("mode", ["objective", "sgd"])
def test_one_step_clips_and_decays_as_its_mode_says(mode: str) -> None:
    model = seeded(linear).double()
    result = fit(
        model,
        [CLIENTS[0]],
        "fedavg",
        lr=0.2,
        weight_decay=0.3,
        weight_decay_mode=mode,
        clip_norm=0.1,
        **EVERYONE,
    )
    w = torch.cat([value.reshape(-1) for value in model.state_dict().values()])
    g = torch.cat([value.reshape(-1) for value in gradient_of(model, CLIENTS[0]).values()])
    inside, beside = (g + 0.3 * w, 0) if mode == "objective" else (g, 0.3 * w)
    assert inside.norm() > 0.1
    expected = w - 0.2 * (inside * 0.1 / inside.norm() + beside)
    found = torch.cat([value.reshape(-1) for value in result.model.values()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_a_gradient_whose_norm_overflows_is_clipped_and_not_erased() -> None:
    """Each component fits in float32, its square does not."""
    result = fit(
        linear,
        CLIENTS[:1],
        "fedavg",
        loss=lambda outputs, targets: outputs.sum() * 1e25,
        lr=1.0,
        clip_norm=10.0,
        **EVERYONE,
    )
    assert result.rows[0]["update_norm"] == pytest.approx(10.0, rel=1e-3)


def test_bernoulli_sampling_draws_cohorts_of_many_sizes_but_never_an_empty_one() -> None:
    clients = [CLIENTS[k % 4] for k in range(6)]
    settings: dict[str, Any] = {"rounds": 40, "local_epochs": 1, "participation": 0.2}
    cohorts = fit(linear, clients, "fedavg", sampling="bernoulli", **settings).columns["cohort"]
    assert min(cohorts) >= 1 and len(set(cohorts)) >= 3
    assert 1.1 < np.mean(cohorts) < 2.2  # 1.2 on average, 1.63 where the empty draws are repeated
    assert set(fit(linear, clients, "fedavg", **settings).columns["cohort"]) == {1}


# Clients that fail, runs that diverge


MARK = 99.0


def fails_on_the_mark(outputs: Tensor, targets: Tensor) -> Tensor:
    loss = functional.mse_loss(outputs, targets)
    return loss * torch.nan if bool((targets == MARK).any()) else loss


class Turncoat(Plain):
    """A client whose targets become the mark when it is told to."""

    bad = False

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x, np.full_like(y, MARK) if self.bad else y


def turn(*clients: Turncoat, after: int) -> Callable[[Any], None]:
    def callback(progress: Any) -> None:
        for client in clients:
            client.bad = progress.record["round"] >= after

    return callback


@pytest.mark.parametrize("averaging", ["uniform", "size"])
def test_a_client_without_a_finite_update_is_left_out_and_named(
    averaging: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = (LINES[2][0], np.full_like(LINES[2][1], MARK))
    settings = EVERYONE | {
        "rounds": 3,
        "batch_size": 5,
        "loss": fails_on_the_mark,
        "averaging": averaging,
    }
    result = fit(lambda: nn.Linear(4, 1), [*LINES[:2], bad], "fedavg", test=line(20, 9), **settings)
    without = fit(lambda: nn.Linear(4, 1), LINES[:2], "fedavg", test=line(20, 9), **settings)
    assert result.status == "completed"
    assert result.columns["rejected"] == [[2]] * 3 and result.columns["cohort"] == [2] * 3
    assert "rejected" not in without.columns
    assert equal(result.model, without.model) and finite(result.model)
    assert result.columns["train_loss"] == without.columns["train_loss"]
    assert "left out client 2, update not finite" in caplog.text


def remembered(folder: Path, round: int) -> dict[int, Vectors]:
    """The clients' rows that a checkpoint names."""
    found = checkpoint.read_checkpoint(checkpoint.path_of(folder / "checkpoints", round))
    store = Store(folder / "checkpoints" / "memory.rows")
    store.check(found)
    rows = {client: store.read(slot) for client, slot, _ in index_of(found)}
    store.close()
    return rows


@pytest.mark.parametrize("method", [SCAFFOLD(), FedWMSAM()], ids=lambda m: m.name)
def test_a_client_that_fails_keeps_the_memory_it_had(
    tmp_path: Path, method: fedwmsam.Method
) -> None:
    clients = [Turncoat(*data) for data in LINES]
    result = fit(
        lambda: nn.Linear(4, 1),
        clients,
        method,
        loss=fails_on_the_mark,
        run_folder=tmp_path / "run",
        checkpoint_every=1,
        callbacks=[turn(clients[1], after=2)],
        **EVERYONE | {"rounds": 3},
    )
    assert result.columns["rejected"] == [None, None, [1]]
    before, after = (remembered(tmp_path / "run", round) for round in (2, 3))
    assert equal(before[1], after[1])
    assert before[1]["c_k"].norm() > 0
    assert not equal(before[0], after[0])
    assert finite(result.model)


def test_a_client_that_never_succeeded_has_no_memory(tmp_path: Path) -> None:
    bad = (LINES[2][0], np.full_like(LINES[2][1], MARK))
    fit(
        lambda: nn.Linear(4, 1),
        [*LINES[:2], bad],
        SCAFFOLD(),
        loss=fails_on_the_mark,
        run_folder=tmp_path / "run",
        **EVERYONE,
    )
    assert remembered(tmp_path / "run", 1).keys() == {0, 1}


def test_a_run_that_diverges_keeps_its_last_good_model(tmp_path: Path) -> None:
    clients = [Turncoat(*data) for data in LINES]
    settings = EVERYONE | {"loss": fails_on_the_mark, "validation": line(20, 9)}
    result = fit(
        lambda: nn.Linear(4, 1),
        clients,
        callbacks=[turn(*clients, after=2)],
        run_folder=tmp_path / "run",
        **settings | {"rounds": 9},
    )
    assert result.status.startswith("diverged at round 3") and result.rounds == 2
    good = fit(lambda: nn.Linear(4, 1), LINES, **settings | {"rounds": 2})
    assert equal(result.model, good.model) and result.rows == good.rows
    loaded = Result.load(tmp_path / "run")
    assert loaded.status == result.status and equal(loaded.model, good.model)


@pytest.mark.parametrize("method", ["fedavg", "fedcm", "scaffold", "fedwmsam"])
def test_an_absurd_step_size_ends_as_diverged_with_a_finite_model(method: str) -> None:
    result = fit(
        linear, CLIENTS, method, lr=1e30, clip_norm=None, test=TEST, **QUICK | {"rounds": 20}
    )
    assert result.status.startswith("diverged at round")
    assert finite(result.model) and result.rounds < 20


# Mistakes


class Untrainable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def with_client(**changes: Any) -> dict[str, Any]:
    """All is well but for the third client's x or y."""
    x, y = CLIENTS[2]
    return {"clients": [*CLIENTS[:2], (changes.get("x", x), changes.get("y", y))]}


def frozen() -> nn.Module:
    return linear().requires_grad_(False)


WITH_NAN = np.where(np.arange(56).reshape(14, 4) == 7, np.nan, CLIENTS[2][0])
MISTAKES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no clients": ({"clients": []}, ["no clients"]),
    "no lazy clients": ({"clients": lambda k: CLIENTS[k], "client_count": 0}, ["client"]),
    "lazy without count": ({"clients": lambda k: CLIENTS[k]}, ["client_count"]),
    "wrong count": ({"client_count": 3}, ["client_count", "3", "4"]),
    "one pair for a list": ({"clients": CLIENTS[0]}, ["(x, y)", "each client"]),
    "a mapping": ({"clients": dict(enumerate(CLIENTS))}, ["clients", "dict"]),
    "an empty client": (
        with_client(x=np.zeros((0, 4)), y=np.zeros(0, int)),
        ["Client 2", "no data"],
    ),
    "an empty dataset": (
        {"clients": [Plain(*CLIENTS[0]), Plain(*blobs(0, 0))]},
        ["Client 1", "no data"],
    ),
    "a client of three": ({"clients": [(x, y, y) for x, y in CLIENTS]}, ["Client 0", "(x, y)"]),
    "no data at all": ({"clients": [CLIENTS[0], 5]}, ["Client 1", "int"]),
    "words": (with_client(x=np.array([["a"] * 4] * 14)), ["numbers"]),
    "label too large": (with_client(y=CLIENTS[2][1] + 1), ["Client 2", "3", "0 to 2"]),
    "negative label": (with_client(y=CLIENTS[2][1] - 1), ["Client 2", "-1", "0 to 2"]),
    "label too large, dataset": (
        {"clients": [Plain(x, y + 1) for x, y in CLIENTS]},
        ["Client", "3", "0 to 2"],
    ),
    "float labels": (with_client(y=CLIENTS[2][1].astype(float)), ["Client 2", "whole numbers"]),
    "column of labels": (with_client(y=CLIENTS[2][1][:, None]), ["Client 2", "(14, 1)"]),
    "lengths": (with_client(y=CLIENTS[2][1][:-1]), ["Client 2", "14", "13"]),
    "first client's shape": (
        {"clients": [(x[:, :3], y) for x, y in CLIENTS]},
        ["Client 0", "(1, 3)"],
    ),
    "another client's shape": (with_client(x=CLIENTS[2][0][:, :3]), ["Client 2", "3)"]),
    "the test data's shape": ({"test": (TEST[0][:, :3], TEST[1])}, ["test data", "3)"]),
    "the validation data's shape": (
        {"validation": (TEST[0][:, :3], TEST[1])},
        ["validation data", "3)"],
    ),
    "test labels": ({"test": (TEST[0], TEST[1] + 1)}, ["test data", "3", "0 to 2"]),
    "NaN": (with_client(x=WITH_NAN), ["Client 2", "NaN"]),
    "NaN in a dataset": (
        {"clients": [Plain(WITH_NAN, CLIENTS[2][1])] * 2, "participation": 1.0},
        ["Client 0", "NaN"],
    ),
    "NaN in the test data": ({"test": (WITH_NAN, CLIENTS[2][1])}, ["test data", "NaN"]),
    "infinite targets": (
        {
            "model": lambda: nn.Linear(4, 1),
            "loss": "regression",
            "clients": [(LINES[0][0], LINES[0][1] * np.inf)],
        },
        ["Client 0", "targets", "infinity"],
    ),
    "regression shapes": (
        {
            "model": lambda: nn.Linear(4, 1),
            "loss": "regression",
            "clients": [(x, y[:, 0]) for x, y in LINES],
        },
        ["y[:, None]"],
    ),
    "multilabel shapes": ({"loss": "multilabel"}, ["shape"]),
    "method": ({"method": "fedwsam"}, ["fedwsam", "'fedwmsam'"]),
    "method class": ({"method": FedAvg}, ["FedAvg"]),
    "loss": ({"loss": "regresion"}, ["regresion", "'regression'"]),
    "monitor": ({"monitor": "acuracy"}, ["acuracy", "'accuracy'"]),
    "validation share": ({"validation": 1.5}, ["validation", "1.5"]),
    "tiny validation share": ({"validation": 0.001}, ["validation", "0.001"]),
    "lazy validation share": (
        {"clients": lambda k: CLIENTS[k], "client_count": 4, "validation": 0.1},
        ["validation=(x, y)"],
    ),
    "patience": ({"patience": 3}, ["patience", "validation"]),
    "target": ({"target_accuracy": 0.9}, ["target_accuracy", "test"]),
    "target without accuracy": (
        {
            "model": lambda: nn.Linear(4, 1),
            "clients": LINES,
            "loss": "regression",
            "test": LINES[0],
            "target_accuracy": 0.9,
        },
        ["target_accuracy", "accuracy"],
    ),
    "no parameters": ({"model": Untrainable()}, ["trainable"]),
    "all frozen": ({"model": frozen}, ["trainable", "requires_grad"]),
    "a word for a model": ({"model": "mlp"}, ["nn.Module", "str"]),
    "nothing for a model": ({"model": None}, ["nn.Module", "None"]),
    "a factory of words": ({"model": lambda: "mlp"}, ["nn.Module", "str"]),
    "weights lack one": ({"initial_weights": {"weight": torch.zeros(3, 4)}}, ["bias"]),
    "weights have one more": (
        {"initial_weights": linear().state_dict() | {"x": torch.zeros(1)}},
        ["'x'"],
    ),
    "weights of another shape": ({"initial_weights": nn.Linear(3, 3).state_dict()}, ["weight"]),
    "device": ({"device": "tpuu"}, ["device", "tpuu"]),
    "rounds": ({"rounds": 0}, ["rounds", "0"]),
    "lr": ({"lr": -1.0}, ["lr", "-1.0"]),
    "participation": ({"participation": 1.5}, ["participation", "1.5"]),
    "clients per round": ({"clients_per_round": 5}, ["clients_per_round", "5", "4"]),
    "averaging": ({"averaging": "weighted"}, ["averaging", "uniform"]),
    "run folder is a file": ({"run_folder": Path(__file__)}, ["test_fit.py"]),
    "run folder below a file": ({"run_folder": Path(__file__) / "run"}, ["test_fit.py"]),
}


@pytest.fixture(autouse=True)
def no_device_but_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    yield


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str) -> None:
    change, words = MISTAKES[name]
    with pytest.raises(InputError) as caught:
        fit(**{"model": linear, "clients": CLIENTS} | QUICK | change)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedwmsan", {}, ["Unknown method 'fedwmsan'", "Did you mean 'fedwmsam'?"]),
        ("fedwmsam", {"rhoo": 0.1}, ["Unknown option of fedwmsam 'rhoo'", "Did you mean 'rho'?"]),
        ("fedwmsam", {"alpha": 1.0}, ["alpha", "1.0"]),
        ("fedwmsam", {"alpha": 0.0}, ["alpha", "0.0"]),
        ("fedcm", {"alpha": -0.1}, ["alpha", "-0.1"]),
        ("fedwmsam", {"rho": -0.1}, ["rho", "-0.1"]),
        ("fedwmsam", {"rho": float("nan")}, ["rho", "nan"]),
        ("fedwmsam", {"adapt_rate": 2}, ["adapt_rate", "2"]),
        ("fedwmsam", {"similarity": "cosine"}, ["similarity", "personalized"]),
        ("fedwmsam", {"alpha_min": 0.8, "alpha_max": 0.2}, ["alpha_min", "alpha_max"]),
        ("fedavg", {"global_lr": -1}, ["fedavg: global_lr", "-1"]),
        ("fedavg", {"rho": 0.1}, ["rho", "fedavg"]),
    ],
)
def test_a_methods_bad_option_is_explained(
    name: str, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        make_method(name, **options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_new_data_of_the_wrong_shape_are_explained() -> None:
    result = fit(linear, CLIENTS, **QUICK)
    with pytest.raises(InputError, match="3"):
        result.evaluate((TEST[0][:, :3], TEST[1]))
    with pytest.raises(InputError, match="3"):
        result.predict(TEST[0][:, :3])


# Going on with care


def test_a_killed_extension_is_not_finished(tmp_path: Path) -> None:
    """What an earlier end wrote must not pass for the outcome of rounds that came after it."""
    settings: dict[str, Any] = {"run_folder": tmp_path / "run", "seed": 1}
    fit(nn.Linear(4, 3), CLIENTS, rounds=2, **settings)

    def stop(progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(nn.Linear(4, 3), CLIENTS, rounds=9, resume=True, callbacks=[stop], **settings)
    with pytest.raises(InputError, match="resume"):
        Result.load(tmp_path / "run", nn.Linear(4, 3))


def test_going_on_to_fewer_rounds_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    network = nn.Linear(4, 3)
    fit(network, CLIENTS, rounds=4, run_folder=tmp_path / "run")
    before = {
        path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()
    }
    with pytest.raises(InputError, match="4 rounds"):
        fit(network, CLIENTS, rounds=2, run_folder=tmp_path / "run", resume=True)
    assert before == {
        path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()
    }


def test_frozen_weights_of_a_warm_start_are_in_the_checkpoint(tmp_path: Path) -> None:
    def network() -> nn.Sequential:
        made = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        made[0].requires_grad_(False)
        return made

    given = {name: value + 0.1 for name, value in network().state_dict().items()}
    whole = fit(network, CLIENTS, rounds=4, initial_weights=given)
    fit(network, CLIENTS, rounds=2, initial_weights=given, run_folder=tmp_path / "run")
    resumed = fit(network, CLIENTS, rounds=4, run_folder=tmp_path / "run", resume=True)
    assert all(torch.equal(whole.model[name], resumed.model[name]) for name in whole.model)


def test_another_architecture_does_not_go_on(tmp_path: Path) -> None:
    def network(activation: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 3))

    fit(network(nn.ReLU()), CLIENTS, rounds=2, run_folder=tmp_path / "run")
    with pytest.raises(InputError, match="architecture"):
        fit(network(nn.Tanh()), CLIENTS, rounds=4, run_folder=tmp_path / "run", resume=True)


def test_a_metric_that_would_hide_a_column_is_refused() -> None:
    for name in ("alpha", "validation_loss", "round"):
        with pytest.raises(InputError, match=name):
            fit(
                nn.Linear(4, 3),
                CLIENTS,
                rounds=1,
                test=CLIENTS[0],
                metrics={name: lambda o, t: o.mean()},
            )


def test_a_refused_worker_does_not_use_up_the_folder(tmp_path: Path) -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(InputError, match="importable"):
        fit(nn.Linear(4, 3), CLIENTS, rounds=1, loss=loss, workers=2, run_folder=tmp_path / "run")
    fit(nn.Linear(4, 3), CLIENTS, rounds=1, loss=loss, run_folder=tmp_path / "run")
