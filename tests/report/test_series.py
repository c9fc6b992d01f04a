"""Curves, sweeps and ablations: the data of plots."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.run_folders import write_run

from fedwmsam.report.plots import table_plots
from fedwmsam.report.runs import add_averaged_model_runs, find_runs
from fedwmsam.report.series import compute_curve, find_ablations, find_sweeps
from fedwmsam.report.summary import ACCURACY, ResultTable, summarise


def table_of(folder: Path, runs: list[dict[str, Any]]) -> ResultTable:
    for number, settings in enumerate(runs):
        write_run(folder / f"{number:02}", **({"accuracy": [0.5]} | settings))
    (table,) = summarise(find_runs([folder])[0]).tables
    return table


def test_a_curve_is_the_mean_over_the_rounds_that_all_seeds_have(tmp_path: Path) -> None:
    seeds = [[0.1, 0.2, ..., 0.6], [0.3, 0.2, 0.9, 0.4]]
    row = table_of(
        tmp_path, [{"accuracy": values, "seed": seed} for seed, values in enumerate(seeds)]
    ).rows[0]
    curve = compute_curve(row, "accuracy")
    assert curve is not None and curve.x.tolist() == [1, 2, 4]
    assert curve.mean == pytest.approx([0.2, 0.2, 0.5])
    assert curve.deviation == pytest.approx([0.02**0.5, 0, 0.02**0.5])
    by_bytes = compute_curve(row, "accuracy", "bytes")
    by_seconds = compute_curve(row, "accuracy", "seconds")
    assert by_bytes is not None and by_bytes.x.tolist() == [150, 300, 600]
    assert by_seconds is not None and by_seconds.x.tolist() == [2, 4, 8]


def test_a_curve_can_be_a_running_mean_of_each_seed(tmp_path: Path) -> None:
    (row,) = table_of(tmp_path, [{"accuracy": [0.1, 0.3, 0.8, 0.1]}]).rows
    curve = compute_curve(row, "accuracy", window=2)
    assert curve is not None and curve.mean == pytest.approx([0.1, 0.2, 0.55, 0.45])
    assert np.isnan(curve.deviation).all()


def test_a_column_that_is_not_there_has_no_curve(tmp_path: Path) -> None:
    assert compute_curve(table_of(tmp_path, [{}]).rows[0], "alpha") is None


def test_a_sweep_is_an_option_with_three_values_and_all_else_equal(tmp_path: Path) -> None:
    runs = [{"method": "fedsam", "rho": rho, "accuracy": [rho]} for rho in (0.5, 0.1, 0.2)]
    runs += [{"method": "fedwmsam", "rho": rho, "accuracy": [0.4]} for rho in (0.1, 0.2, 0.3)]
    runs += [{"method": "mofedsam", "rho": rho} for rho in (0.1, 0.2)]  # two values are no sweep
    runs += [{"method": "fedsam", "rho": 0.7, "lr": 0.3}]  # differs in something else too
    (sweep,) = find_sweeps(table_of(tmp_path, runs))
    assert sweep.option == "rho"
    assert [line.label for line in sweep.lines] == ["fedsam", "fedwmsam"]
    assert sweep.lines[0].x == (0.1, 0.2, 0.5)
    assert [spread.mean for spread in sweep.lines[0].spreads] == [0.1, 0.2, 0.5]


def test_an_ablation_is_what_each_change_does_to_the_full_method(tmp_path: Path) -> None:
    full: dict[str, Any] = {"method": "fedwmsam"}
    runs = []
    for seed in (0, 1):
        runs += [
            full | {"seed": seed, "accuracy": [0.8 + seed / 100]},
            full | {"seed": seed, "accuracy": [0.7], "correction": "none"},
            full | {"seed": seed, "accuracy": [0.6], "perturbation": "none"},
            full | {"seed": seed, "accuracy": [0.5], "correction": "none", "perturbation": "none"},
            {"seed": seed},
        ]
    (ablation,) = find_ablations(table_of(tmp_path, runs), ACCURACY)
    config = ablation.reference.config
    assert (config["correction"], config["perturbation"]) == ("scaffold", "trajectory")
    differences = dict(zip(ablation.changes, ablation.differences, strict=True))
    assert set(differences) == {
        "correction=none",
        "perturbation=none",
        "perturbation=none, correction=none",
    }
    assert differences["correction=none"].values == pytest.approx([-0.1, -0.11])


def test_averaged_models_have_an_ablation_of_their_own(tmp_path: Path) -> None:
    for number, (correction, averaged) in enumerate((("scaffold", 0.9), ("none", 0.6))):
        columns = {"averaged_accuracy": [averaged]}
        write_run(
            tmp_path / f"{number}",
            [averaged - 0.1 * number],
            method="fedwmsam",
            correction=correction,
            twin=8.0,
            columns=columns,
        )
    (table,) = summarise(add_averaged_model_runs(find_runs([tmp_path])[0])).tables
    trained, averages = find_ablations(table, ACCURACY)
    assert trained.changes == averages.changes == ("correction=none",)
    assert trained.differences[0].mean == pytest.approx(-0.4)
    assert averages.differences[0].mean == pytest.approx(-0.3)
    names = [name for name, *_ in table_plots(table, ACCURACY) if name.startswith("ablation")]
    assert names == ["ablation-fedwmsam", "ablation-fedwmsam-averaged-twin-8"]


def test_the_full_method_of_two_rows_is_the_one_with_the_defaults(tmp_path: Path) -> None:
    runs = [{"method": "fedwmsam", "correction": "none"}, {"method": "fedwmsam"}]
    (ablation,) = find_ablations(table_of(tmp_path, runs), ACCURACY)
    assert ablation.changes == ("correction=none",)


def test_a_sweep_alone_is_no_ablation_and_lends_it_only_its_nearest_row(tmp_path: Path) -> None:
    sweep = [{"method": "fedwmsam", "rho": rho} for rho in (0.01, 0.1, 0.2)]
    table = table_of(tmp_path / "a", sweep)
    assert find_ablations(table, ACCURACY) == [] and len(find_sweeps(table)) == 1
    table = table_of(tmp_path / "b", [*sweep, {"method": "fedwmsam", "correction": "none"}])
    (ablation,) = find_ablations(table, ACCURACY)
    assert ablation.changes == ("correction=none",)


def test_variants_without_a_common_seed_are_not_drawn(tmp_path: Path) -> None:
    runs = [{"method": "fedwmsam", "correction": "none", "seed": 1}, {"method": "fedwmsam"}]
    assert find_ablations(table_of(tmp_path, runs), ACCURACY) == []
