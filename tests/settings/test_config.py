"""Settings: which layer wins, what a preset holds, what is refused, and what config.toml holds."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwmsam import METHODS, InputError, toml
from fedwmsam.settings.config import (
    RunConfig,
    Settings,
    identifying_settings,
    parse_assignments,
    resolve_config,
)
from fedwmsam.settings.options import field_types, option
from fedwmsam.settings.parsers import RayWorkers, parse_workers

PAPER = {
    "clients": 100,
    "participation": 0.1,
    "partition": "dirichlet:0.1",
    "rounds": 500,
    "local_epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "lr_decay": 0.998,
    "weight_decay": 1e-3,
    "weight_decay_mode": "sgd",
    "clip_norm": 10.0,
}


def refusal(*layers: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        resolve_config(*layers)
    return str(caught.value)


# Layers


def test_each_layer_wins_over_the_one_below() -> None:
    defaults = resolve_config()
    assert (defaults.rounds, defaults.clients, defaults.participation) == (50, 20, 0.25)
    assert (defaults.batch_size, defaults.lr) == (50, 0.1)
    preset = resolve_config({"preset": "paper"})
    assert (preset.rounds, preset.clients, preset.participation) == (500, 100, 0.1)
    file = resolve_config({"preset": "paper", "rounds": 7, "clients": 30})
    assert (file.rounds, file.clients, file.participation) == (7, 30, 0.1)
    line = resolve_config({"preset": "paper", "rounds": 7, "clients": 30}, {"rounds": 9})
    assert (line.rounds, line.clients, line.participation) == (9, 30, 0.1)


def test_a_preset_named_on_the_command_line_stays_below_the_file() -> None:
    config = resolve_config({"rounds": 7}, {"preset": "paper"})
    assert (config.rounds, config.clients) == (7, 100)


def test_method_options_are_layered_like_settings() -> None:
    config = resolve_config({"preset": "paper", "rho": 0.2, "alpha": 0.3}, {"rho": 0.05})
    assert config.options["rho"] == 0.05 and config.to_flat_dict()["alpha"] == 0.3
    assert config.make_method() == METHODS["fedwmsam"](rho=0.05, alpha=0.3)


@pytest.mark.parametrize("method", METHODS)
def test_the_paper_preset_holds_the_papers_values(method: str) -> None:
    values = resolve_config({"preset": "paper", "method": method}).to_flat_dict()
    assert {key: values[key] for key in PAPER} == PAPER
    if method in ("fedavg", "fedcm", "scaffold", "fedwmsam"):
        assert values["global_lr"] == 1.0
    if method == "fedcm":
        assert values["alpha"] == 0.1
    if method == "fedwmsam":
        options = {
            "alpha": 0.1,
            "adapt_rate": 0.01,
            "rho": 0.01,
            "alpha_min": 0.1,
            "alpha_max": 0.9,
            "perturbation": "trajectory",
            "similarity": "personalized",
            "correction": "scaffold",
        }
        assert {key: values[key] for key in options} == options


@pytest.mark.parametrize("method", METHODS)
def test_every_method_resolves_with_and_without_the_preset(method: str) -> None:
    for preset in (None, "paper"):
        assert resolve_config({"method": method, "preset": preset}).make_method().name == method


# Refusals


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"roundz": 3}, ["roundz", "'rounds'"]),
        ({"learning_rate": 3}, ["learning_rate", "lr"]),
        ({"rhoo": 0.1}, ["rhoo", "'rho'"]),
        ({"method": "fedavg", "rho": 0.1}, ["rho", "fedavg"]),
        ({"method": "fedwsam"}, ["fedwsam", "'fedwmsam'"]),
        ({"preset": "papers"}, ["papers", "'paper'"]),
        ({"options": {"rho": 0.1}}, ["options"]),
        ({"rounds": "many"}, ["rounds", "'many'", "whole number"]),
        ({"rounds": 2.5}, ["rounds", "2.5"]),
        ({"rounds": True}, ["rounds", "True"]),
        ({"rounds": 0}, ["rounds", "0", "1"]),
        ({"lr": 0}, ["lr", "above 0"]),
        ({"lr": -0.1}, ["lr", "-0.1"]),
        ({"lr": float("nan")}, ["lr", "nan"]),
        ({"lr": float("inf")}, ["lr", "inf"]),
        ({"lr_decay": 1.1}, ["lr_decay", "1.1"]),
        ({"participation": 0}, ["participation", "above 0"]),
        ({"participation": 1.01}, ["participation", "at most 1"]),
        ({"clients": 5, "clients_per_round": 6}, ["clients_per_round", "6", "5"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"seed": 2**31}, ["seed", str(2**31)]),
        ({"averaging": "weighted"}, ["averaging", "uniform", "size"]),
        ({"sampling": 1}, ["sampling", "bernoulli"]),
        ({"dataset": 3}, ["dataset", "3"]),
        ({"validation": 1.0}, ["validation", "1.0"]),
        ({"alpha": 1.5}, ["fedwmsam", "alpha", "1.5"]),
        ({"rho": -0.1}, ["fedwmsam", "rho", "-0.1"]),
        ({"similarity": "cosine"}, ["similarity", "personalized"]),
        pytest.param({"rounds": 10**400}, ["rounds"], id="rounds of 401 digits"),
        ({"preset": 3}, ["preset", "3"]),
        ({"preset": ["paper"]}, ["preset"]),
        ({"method": 3}, ["method", "3"]),
        ({"method": ["fedavg"]}, ["method"]),
        ({"alpha_min": 0.8, "alpha_max": 0.2}, ["alpha_min", "alpha_max"]),
    ],
    ids=str,
)
def test_a_bad_value_is_named_with_what_was_expected(
    layer: dict[str, Any], words: list[str]
) -> None:
    message = refusal(layer)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_the_ends_of_a_range_are_inside_it() -> None:
    config = resolve_config(
        {"participation": 1, "lr_decay": 1, "weight_decay": 0, "validation": 0.9, "seed": 2**31 - 1}
    )
    assert config.participation == 1
    assert resolve_config({"method": "fedcm", "alpha": 1}).make_method().alpha == 1


# Clients per round


WHOLE_NUMBERS = [name for name, types in field_types(RunConfig).items() if types[0] is int]


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
@pytest.mark.parametrize("value", [2**31, 2**63 - 1, 2**63, 10**30, 10**400])
def test_no_whole_number_is_larger_than_a_run_can_use(name: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{name} must be a whole number between"):
        resolve_config({name: value})


@pytest.mark.parametrize("value", [1e308, math.inf, 10**400])
def test_a_number_beyond_all_ranges_is_told_the_largest(value: float) -> None:
    with pytest.raises(InputError, match=r"lr must be a number above 0 and at most 1e\+30, not"):
        resolve_config({"lr": value})


@pytest.mark.parametrize(
    ("participation", "clients", "expected"),
    [(0.25, 20, 5), (0.1, 100, 10), (0.1, 5, 1), (0.01, 10, 1), (0.25, 10, 3)],
)
def test_participation_rounds_half_up_and_never_to_nobody(
    participation: float, clients: int, expected: int
) -> None:
    assert Settings(participation=participation).cohort_size(clients) == expected


def test_the_number_of_clients_goes_before_their_share() -> None:
    assert Settings(participation=0.5, clients_per_round=2).cohort_size(10) == 2
    assert Settings(participation=0.01, sampling="bernoulli").cohort_size(10) == pytest.approx(0.1)


# key=value


def test_assignments_take_the_type_of_their_field() -> None:
    values = parse_assignments(
        ["rounds=7", "lr = 1e-2", "rho=1", "clip-norm=3", "partition=iid", "data_dir=a=b"],
        "fedwmsam",
    )
    assert values == {
        "rounds": 7,
        "lr": 0.01,
        "rho": 1.0,
        "clip_norm": 3.0,
        "partition": "iid",
        "data_dir": "a=b",
    }
    assert type(values["rounds"]) is int and type(values["rho"]) is float


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds", ["key=value", "'rounds'"]),
        ("rounds=2.5", ["rounds", "whole", "2.5"]),
        ("lr=fast", ["lr", "number", "fast"]),
        ("lr=", ["lr", "number"]),
        ("rhoo=1", ["rhoo", "'rho'"]),
        ("=1", ["''"]),
        ("options=1", ["options"]),
    ],
)
def test_a_bad_assignment_is_explained(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_assignments([text], "fedwmsam")
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("layers_below", [[], [{"clip_norm": 5.0}], [{"preset": "paper"}]], ids=str)
def test_none_removes_the_limit(layers_below: list[dict[str, Any]]) -> None:
    """The help of `clip_norm` says "none: no limit"."""
    config = resolve_config(*layers_below, parse_assignments(["clip_norm=none"], "fedwmsam"))
    assert config.clip_norm is None


# config.toml


def write_and_read(config: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration that config.toml gives back."""
    path = folder / "config.toml"
    path.write_text(toml.dump(config.to_flat_dict()))
    return resolve_config(toml.load(path))


def test_the_number_of_clients_is_20_or_what_was_given_or_left_to_the_data() -> None:
    assert resolve_config({}).clients == 20
    assert resolve_config({"partition": "natural"}).clients is None
    assert resolve_config({"partition": "natural", "clients": 20}).clients == 20
    assert resolve_config({"partition": "natural", "preset": "paper"}).clients is None
    assert resolve_config({"partition": "natural", "preset": "paper", "clients": 7}).clients == 7


def test_no_limit_survives_the_file(tmp_path: Path) -> None:
    assert write_and_read(RunConfig(clip_norm=None), tmp_path).clip_norm is None


def test_any_setting_that_is_switched_off_is_written_as_none() -> None:
    """Only those are written whose default is a value: left out, they would be read as that."""

    @dataclasses.dataclass(frozen=True)
    class LargerConfig(RunConfig):
        limit: float | None = option(2.0, "a limit (none: no limit)")
        other: float | None = option(None, "another limit (none: no limit)")

    values = LargerConfig(limit=None).to_flat_dict()
    assert values["limit"] == "none" and values["clip_norm"] == 10.0
    assert values["other"] is None and "other" not in toml.dump(values)
    assert LargerConfig(clip_norm=None).to_flat_dict()["clip_norm"] == "none"


def test_the_file_holds_every_key_that_has_a_value() -> None:
    config = RunConfig(
        method="fedwmsam",
        patience=3,
        validation=0.1,
        data_dir="x",
        preset="paper",
        sampling="bernoulli",
        dropout=0.3,
        stragglers="0.3:4",
        deadline=2.0,
        corrupt="nan:0.1",
        dp_epsilon=3.0,
        dp_clip=1.0,
        twin=8.0,
    )
    lines = toml.dump(config.to_flat_dict()).splitlines()
    keys = [line.partition(" = ")[0] for line in lines]
    fields = {f.name for f in dataclasses.fields(RunConfig)} - {"options"}
    options = {f.name for f in dataclasses.fields(METHODS["fedwmsam"])}
    empty = {
        "clients_per_round",
        "target_accuracy",
        "time_budget",
        "keep_states",
        "record",
        "track",
        "aggregation",
        "dp_noise",
        "local_steps",
        "micro_batch",
        "lr_schedule",
    }
    assert set(keys) >= fields - empty | options
    assert len(keys) == len(set(keys))


def numbers(low: float, high: float, *, open_low: bool = False) -> st.SearchStrategy[float]:
    return st.floats(low, high, exclude_min=open_low, allow_nan=False, allow_infinity=False)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


words = st.text(
    st.characters(exclude_categories=["Cs"])
    | st.sampled_from("\"'\\\n\r\t\x00\x1b\x7f\u2028é😀[]#=")
)
SETTINGS = {
    "rounds": st.integers(1, 10**9),
    "participation": numbers(0.1, 1),
    "clients_per_round": maybe(st.integers(1, 5)),
    "sampling": st.sampled_from(["fixed", "bernoulli"]),
    "local_epochs": st.integers(1, 10**6),
    "batch_size": st.integers(1, 10**6),
    "lr": numbers(0, 1e30, open_low=True),
    "lr_decay": numbers(0, 1, open_low=True),
    "weight_decay": numbers(0, 1e30),
    "weight_decay_mode": st.sampled_from(["objective", "sgd"]),
    "local_steps": maybe(st.integers(1, 10**6)),
    "last_batch": st.sampled_from(["keep", "drop", "merge"]),
    "lr_schedule": st.sampled_from([None, "cosine", "cosine:9:0.1", "step:3:0.5"]),
    "lr_warmup": st.integers(0, 10**9),
    "optimizer": st.sampled_from(["sgd", "adam", "adamw"]),
    "momentum": st.just(0.0),  # that of adam is refused
    "adam_beta1": numbers(0, 0.99),
    "adam_beta2": numbers(0, 0.99),
    "adam_epsilon": numbers(1e-30, 1),
    "micro_batch": maybe(st.integers(1, 10**9)),
    "precision": st.sampled_from(["float32", "bf16"]),
    "clip_norm": numbers(0, 1e30, open_low=True),
    "averaging": st.sampled_from(["uniform", "size"]),
    "twin": maybe(numbers(0, 1e9)),
    "seed": st.integers(0, 2**31 - 1),
    "evaluate_every": st.integers(1, 100),
    "checkpoint_every": st.integers(1, 100),
    "target_accuracy": maybe(numbers(0, 1, open_low=True)),
    "patience": maybe(st.integers(1, 100)),
    "time_budget": maybe(numbers(0, 1e30, open_low=True)),
    "device": st.sampled_from(["cpu", "cuda", "cuda:1", "mps"]),
    "dataset": st.sampled_from(["digits", "fashion-mnist"]),
    "model": st.sampled_from(["mlp", "linear"]),
    "partition": st.sampled_from(["iid", "dirichlet:0.1", "pathological:3"]),
    "augmentation": st.sampled_from(["none", "paper"]),
    "workers": st.integers(0, 64) | st.sampled_from(["ray", "ray:4", "ray:4,num_cpus=2"]),
    "memory_budget": numbers(0, 1e30),
    "keep_states": maybe(st.integers(1, 100)),
    "record": st.sampled_from([None, "echo", "alignment,drift"]),
    "record_every": st.integers(1, 100),
    "record_host": st.booleans(),
    "clients": st.integers(5, 10**6),
    "validation": numbers(0, 0.9),
    "data_dir": maybe(words),
    "track": st.sampled_from([None, "tensorboard", "wandb", "tensorboard,wandb:mine"]),
    "preset": st.sampled_from([None, "paper"]),
    "dropout": maybe(numbers(0, 1)),
    "stragglers": st.sampled_from([None, "0.3:4", "1:1.5:drop"]),
    "deadline": maybe(numbers(0, 1e30, open_low=True)),
    "corrupt": st.sampled_from([None, "nan:0.1", "sign_flip:0.2:3"]),
    "dp_clip": maybe(numbers(0, 1e30, open_low=True)),
    "aggregation": st.sampled_from([None, "mean", "median", "trimmed:0.1", "norm_bound:2"]),
    "dp_noise": st.none(),
    "dp_epsilon": st.none(),
    "dp_delta": maybe(numbers(0, 0.1, open_low=True)),
}
OPTIONS = {
    "global_lr": numbers(0, 1e30),
    "rho": numbers(0, 1e30),
    "alpha": numbers(0.001, 0.999),
    "alpha_min": numbers(0.001, 0.1),
    "alpha_max": numbers(0.2, 0.999),
    "adapt_rate": numbers(0, 1),
    "perturbation": st.sampled_from(["trajectory", "literal", "momentum", "none"]),
    "similarity": st.sampled_from(["personalized", "update", "disagreement", "fixed"]),
}


def test_the_strategies_below_cover_every_setting() -> None:
    assert set(field_types(RunConfig)) - {"options", "method"} == set(SETTINGS)


@given(st.fixed_dictionaries({}, optional=SETTINGS), st.fixed_dictionaries({}, optional=OPTIONS))
def test_what_is_written_resolves_to_the_same_run(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    config = RunConfig(**settings, options=options)
    read_back = write_and_read(config, tmp_path_factory.getbasetemp())
    assert read_back.to_flat_dict() == config.to_flat_dict()
    assert read_back.make_method() == config.make_method()


@given(words)
def test_any_text_survives_the_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    values = {"before": 1, "text": text, "list": [text, 2.5, True], "after": False}
    path.write_text(toml.dump(values | {"left_out": None}))
    assert toml.load(path) == values


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | words
    | st.sampled_from(
        ["none", "nan", "-1", "paper", "median", "0.3:4", "natural", "fedavg", "auto"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from([*SETTINGS, *OPTIONS, "method", "options", "rounds ", "self"]) | words


@given(st.dictionaries(keys, anything, max_size=4), st.dictionaries(keys, anything, max_size=2))
def test_any_keys_and_values_are_a_run_or_one_sentence(
    file: dict[str, Any], command_line: dict[str, Any]
) -> None:
    try:
        config = resolve_config(file, command_line)
    except InputError as refusal:
        assert str(refusal)
    else:
        assert resolve_config(config.to_flat_dict()).to_flat_dict() == config.to_flat_dict()


@given(st.dictionaries(st.sampled_from(list(field_types(Settings))), anything, max_size=3))
def test_any_arguments_are_settings_or_one_sentence(arguments: dict[str, Any]) -> None:
    try:
        Settings(**arguments)
    except InputError as refusal:
        assert str(refusal)


assignments = st.lists(words | st.tuples(keys, words).map("=".join), max_size=3)


@given(assignments, st.sampled_from(["fedavg", "fedwmsam"]))
def test_any_assignments_are_values_or_one_sentence(texts: list[str], method: str) -> None:
    try:
        resolve_config({"method": method}, parse_assignments(texts, method))
    except InputError as refusal:
        assert str(refusal)


@given(
    st.binary(max_size=40)
    | words.map(str.encode)
    | st.sampled_from([b"a = " + b"[" * 5000, b"a" * 99 + b"=1"])
)
def test_any_file_is_toml_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    try:
        toml.load(path)
    except InputError as refusal:
        assert "any.toml" in str(refusal)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("auto", 0),
        ("3", 3),
        ("ray", RayWorkers()),
        ("ray:4", RayWorkers(4)),
        ("ray:4,num_cpus=2", RayWorkers(4, 2.0)),
        ("ray,num_gpus=0.25,num_cpus=0.5", RayWorkers(None, 0.5, 0.25)),
    ],
)
def test_workers_are_a_number_of_processes_or_actors_of_ray(
    text: str, meaning: int | RayWorkers
) -> None:
    assert parse_workers(text) == meaning
    assert RunConfig(workers=text).workers == (text if text.startswith("ray") else meaning)


@pytest.mark.parametrize(
    "text",
    [
        *("many", "-1", "1025", "1.5", "dask:4", "ray:", "ray:0", "ray:2.5", "ray:2000", "ray:nan"),
        *("ray:2,cpus=1", "ray:2,num_cpus=0", "ray:2,num_gpus=-1", "ray:2,num_cpus"),
        *("ray:2,num_cpus=1,num_cpus=2", "ray:2,count=3"),
    ],
)
def test_workers_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"workers must be auto, .* ray:ACTORS"):
        RunConfig(workers=text)


def test_workers_name_no_run() -> None:
    configs = [RunConfig(), RunConfig(workers="ray:4")]
    here, there = (identifying_settings(config.to_flat_dict()) for config in configs)
    assert here == there
