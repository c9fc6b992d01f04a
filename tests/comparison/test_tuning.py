"""Which values a comparison tries before it starts, and which of them it takes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run

from fedwmsam.comparison.grid import Grid, RunSpec, config_fingerprint, make_grid
from fedwmsam.comparison.tuning import (
    TriedValues,
    TuningResult,
    count_again,
    make_plan,
    plan_trials,
    superseded_runs,
    tune,
    write_tuning_file,
)
from fedwmsam.engine.records import read_json
from fedwmsam.errors import InputError


def grid_of(**values: Any) -> Grid:
    return make_grid({}, values)


def tried(grid: Grid, table: dict[str, Any]) -> dict[str, list[str]]:
    """Return the labels of the tuning runs by the row for which they are."""
    labels = {}
    for trial in plan_trials(grid, make_plan(table, grid)):
        labels[trial.row] = [specs[0].label for _, specs in trial.candidates]
    return labels


def result(scores: dict[Any, tuple[float, ...]], key: str = "rho", **changes: Any) -> TuningResult:
    candidates = tuple(TriedValues({key: value}, tuple(row)) for value, row in scores.items())
    seeds = tuple(range(len(candidates[0].scores)))
    values: dict[str, Any] = {"row": "fedsam", "method": "fedsam", "rounds": 3, "validation": 0.1}
    return TuningResult(**(values | changes), seeds=seeds, candidates=candidates)


# What is tried


def test_tuning_tries_one_seed_on_held_out_data_and_only_methods_with_the_option():
    grid = grid_of(methods="fedavg,fedsam,fedwmsam", seeds=3)
    table = {"rho": [0.1, 0.2], "rounds": 5}
    assert tried(grid, table) == {
        "fedavg": [],
        "fedsam": ["fedsam rho=0.1", "fedsam rho=0.2"],
        "fedwmsam": ["fedwmsam rho=0.1", "fedwmsam rho=0.2"],
    }
    _, trials, _ = plan_trials(grid, make_plan(table, grid))
    configs = [specs[0].config for _, specs in trials.candidates]
    assert [len(specs) for _, specs in trials.candidates] == [1, 1]
    assert {(c.seed, c.validation, c.rounds) for c in configs} == {(0, 0.1, 5)}


def test_several_settings_are_tried_in_all_combinations_for_each_row_of_the_grid():
    grid = grid_of(methods="fedsam", grid={"batch_size": [10, 20]})
    labels = tried(grid, {"lr": [0.1, 0.2], "weight_decay": [0.0, 0.1]})
    assert labels["fedsam batch_size=20"] == [
        "fedsam batch_size=20 lr=0.1 weight_decay=0.0",
        "fedsam batch_size=20 lr=0.1 weight_decay=0.1",
        "fedsam batch_size=20 lr=0.2 weight_decay=0.0",
        "fedsam batch_size=20 lr=0.2 weight_decay=0.1",
    ]


def test_a_method_may_have_values_of_its_own():
    grid = grid_of(methods="fedsam,fedwmsam")
    assert tried(grid, {"rho": [0.1], "FedSAM": {"rho": [0.5, 1.0]}}) == {
        "fedsam": ["fedsam rho=0.5", "fedsam rho=1.0"],
        "fedwmsam": ["fedwmsam rho=0.1"],
    }


def test_an_option_that_only_an_untuned_method_has_stays_with_it():
    grid = grid_of(methods="fedprox,fedsam", lam=0.3)
    assert tried(grid, {"rho": [0.1]}) == {"fedprox": [], "fedsam": ["fedsam rho=0.1"]}


def test_a_value_that_is_written_twice_is_tried_once():
    assert tried(grid_of(methods="fedsam"), {"rho": [1, 1.0]}) == {"fedsam": ["fedsam rho=1"]}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (3, "table of lists"),
        ({"rho": 0.1}, "table of lists"),
        ({"rho": []}, "table of lists"),
        ({"rounds": 5}, "Nothing is to be tuned"),
        ({"rho": [0.1], "rounds": [5, 6]}, "rounds of tuning must be"),
        ({"rho": [0.1], "rounds": 0}, "rounds of tuning must be"),
        ({"rho": [0.1], "seeds": -1}, "seeds must be"),
        ({"lr": [0.1]}, "lr is tuned and also varied by the grid"),
        ({"batch_size": [5]}, "batch_size is tuned and also given a value"),
        ({"partition": ["iid"]}, "partition cannot be tuned"),
        ({"seed": [1]}, "seed cannot be tuned"),
        ({"mu": [1.0]}, "mu"),
        ({"fedcm": {"alpha": [0.1]}}, "'fedcm'"),
        ({"fedagv": {"lr": [0.1]}}, "'fedagv'"),
        ({"fedavg": {"rho": [0.1]}}, "rho"),
        ({"fedsam": {"rho": 0.1}}, "table of lists"),
        ({"rho": [-1.0]}, "rho"),
        ({"rho": [0.1] * 400, "seeds": 400}, "more than 100,000 runs"),
    ],
)
def test_what_cannot_be_tuned_is_refused(table: Any, words: str):
    grid = grid_of(methods="fedavg,fedsam", grid={"lr": [0.1, 0.2]}, batch_size=20)
    with pytest.raises(InputError, match=words):
        plan_trials(grid, make_plan(table, grid))


# What is chosen


def run_with(accuracies: dict[float, list[float]], folder: Path) -> Any:
    """Return a function that writes tuning runs with these accuracies by rho and seed."""

    def run(specs: list[RunSpec]) -> list[Path]:
        paths = []
        for spec in specs:
            accuracy = accuracies[spec.config.options["rho"]][spec.config.seed]
            status = "diverged at round 1" if math.isnan(accuracy) else "completed"
            path = folder / spec.folder_name
            columns = {"validation_accuracy": [None if math.isnan(accuracy) else accuracy]}
            paths.append(write_run(path, [0.5], status=status, columns=columns))
        return paths

    return run


def test_the_best_mean_over_the_tuning_seeds_is_used_for_all_seeds(tmp_path: Path):
    grid = grid_of(methods="fedavg,fedsam", seeds=3)
    plan = make_plan({"rho": [0.1, 0.2, 0.3], "seeds": 2}, grid)
    scores = {0.1: [0.9, 0.1], 0.2: [0.7, 0.6], 0.3: [0.99, math.nan]}
    tuned, (choice,) = tune(grid, plan, run_with(scores, tmp_path))
    specs = [spec for spec in tuned.run_specs() if spec.config.method == "fedsam"]
    assert [spec.config.options["rho"] for spec in specs] == [0.2] * 3
    assert choice.best.values == {"rho": 0.2} and choice.seeds == (0, 1)
    assert choice.runs == tuple(spec.folder_name for spec in specs)
    assert {spec.config.validation for spec in specs} == {0.0}


def test_a_larger_grid_asks_the_same_and_other_settings_ask_something_else(tmp_path: Path):
    asked = []
    scores = {0.1: [0.9], 0.2: [0.7]}
    for settings, rho in (({}, [0.1]), ({"seeds": 3}, [0.1, 0.2]), ({"rounds": 7}, [0.1])):
        grid = grid_of(methods="fedsam", **settings)
        _, (choice,) = tune(
            grid, make_plan({"rho": rho}, grid), run_with(scores, tmp_path / str(len(asked)))
        )
        asked.append(choice.asked)
    assert asked[0] == asked[1] != asked[2]


def test_a_row_whose_tuning_runs_all_diverged_is_refused(tmp_path: Path):
    grid = grid_of(methods="fedsam")
    plan = make_plan({"rho": [0.1, 0.2]}, grid)
    scores = {0.1: [math.nan], 0.2: [math.nan]}
    with pytest.raises(InputError, match=r"All tuning runs of fedsam .* other values of rho"):
        tune(grid, plan, run_with(scores, tmp_path))


@pytest.mark.parametrize(
    ("scores", "key", "edges"),
    [
        ({0.1: (0.5,), 0.2: (0.9,), 0.3: (0.6,)}, "rho", []),
        ({0.1: (0.5,), 0.2: (0.6,), 0.3: (0.9,)}, "rho", ["rho"]),
        ({0.3: (0.5,), 0.2: (0.6,), 0.1: (0.9,)}, "rho", ["rho"]),
        ({0.1: (0.5,)}, "rho", []),
        ({0.0: (0.9,), 0.1: (0.6,)}, "weight_decay", []),  # none is the least there is
        ({"sgd": (0.9,), "objective": (0.6,)}, "weight_decay_mode", []),
    ],
)
def test_the_edge_of_the_grid_is_where_values_could_go_on(
    scores: dict[Any, tuple[float, ...]], key: str, edges: list[str]
):
    assert result(scores, key).edges() == edges


def test_ties_are_within_one_standard_error_of_the_paired_difference():
    # Differences to 0.2: of 0.1 they are 0.03, -0.01, 0.01 (mean 0.01, standard error 0.0115);
    # of 0.3 they are 0.02 throughout, without any noise.
    scores = {
        0.1: (0.87, 0.81, 0.69),
        0.2: (0.90, 0.80, 0.70),
        0.3: (0.88, 0.78, 0.68),
        0.4: (0.90, 0.80, math.nan),
    }
    assert [tie.values for tie in result(scores).ties()] == [{"rho": 0.1}]
    assert result(scores).remarks() == ["within noise of rho=0.1"]


def test_with_one_seed_only_equal_scores_are_ties():
    choice = result({0.1: (0.5,), 0.2: (0.9,), 0.3: (0.9,), 0.4: (0.8999,)})
    assert choice.best.values == {"rho": 0.2}
    assert choice.remarks() == ["equal to rho=0.3"]


# What is kept


def test_the_file_keeps_what_was_chosen_for_other_runs(tmp_path: Path):
    path = tmp_path / "tuning.json"
    write_tuning_file(path, [result({0.1: (0.5,)}, runs=("a-1",))])
    write_tuning_file(path, [result({0.2: (0.5,)}, row="fedwmsam", runs=("b-1",))])
    write_tuning_file(path, [result({0.1: (0.6,), 0.9: (math.nan,)}, runs=("a-1", "a-2"))])
    rows = read_json(path)["rows"]
    assert [(row["row"], row["chosen"]) for row in rows] == [
        ("fedwmsam", {"rho": 0.2}),
        ("fedsam", {"rho": 0.1}),
    ]
    assert [entry["scores"] for entry in rows[1]["candidates"]] == [[0.6], [None]]


def test_runs_that_are_asked_for_count_although_a_later_tuning_replaced_them(tmp_path: Path):
    grid = {"methods": ["fedsam"], "seeds": 1, "grid": {"rho": [0.1, 0.2, 0.3]}}
    first, second, third = make_grid(grid, {}).run_specs()
    path = tmp_path / "tuning.json"
    chosen = result({0.1: (0.5,)}, runs=(first.folder_name, second.folder_name), asked="row")
    write_tuning_file(path, [chosen])
    write_tuning_file(path, [result({0.3: (0.6,)}, runs=(third.folder_name,), asked="row")])
    assert superseded_runs(path) == {config_fingerprint(s.config) for s in (first, second)}
    count_again(path, [third])
    assert superseded_runs(path) == {config_fingerprint(s.config) for s in (first, second)}
    count_again(path, [first, third])
    assert superseded_runs(path) == {config_fingerprint(second.config)}
    count_again(path, [second])
    assert [entry["chosen"] for entry in read_json(path)["rows"]] == [{"rho": 0.3}]


@pytest.mark.parametrize("content", [{"rows": 3}, {"rows": [3]}, {"rows": [{}]}, {}])
def test_a_file_that_says_something_else_is_not_overwritten(tmp_path: Path, content: Any):
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="does not say how values were chosen"):
        write_tuning_file(path, [])
    assert json.loads(path.read_text()) == content
