"""Rows, tables, targets and differences, on run folders whose numbers are known."""

import csv
import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.run_folders import write_run

from fedwmsam.errors import InputError
from fedwmsam.report.runs import RunStatus, add_averaged_model_runs, find_runs
from fedwmsam.report.series import find_sweeps
from fedwmsam.report.summary import Comparison, make_goal, parse_targets, summarise
from fedwmsam.report.text_tables import make_text_tables
from fedwmsam.settings import config
from fedwmsam.statistics import t_interval

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes runs, each into a folder of its own."""

    def run(accuracy: list[Any], **settings: Any) -> Path:
        return write_run(tmp_path / f"run{len(list(tmp_path.iterdir())):02}", accuracy, **settings)

    return run


def comparison(
    folder: Path, metric: str = "accuracy", baseline: str | None = None, **goal: Any
) -> Comparison:
    return summarise(find_runs([folder])[0], make_goal(metric, **goal), baseline)


def rows_of(folder: Path) -> dict[str, list[int]]:
    (table,) = comparison(folder).tables
    return {row.label: row.seeds for row in table.rows}


# Which runs stand together


def test_seeds_of_one_configuration_are_one_row(make: Make, tmp_path: Path) -> None:
    for seed in (2, 0, 1):
        make([0.1 * seed, 0.2], seed=seed)
    make([0.5, 0.5], method="scaffold", seed=1)
    assert rows_of(tmp_path) == {"fedavg": [0, 1, 2], "scaffold": [1]}
    row = comparison(tmp_path).tables[0].rows[0]
    values = [0.1, 0.15, 0.2]  # means of both rounds
    assert row.spread("tail") == pytest.approx((np.mean(values), np.std(values, ddof=1), 3))
    assert row.spread("last") == pytest.approx((0.2, 0.0, 3))


def test_what_changes_no_number_makes_no_row(make: Make, tmp_path: Path) -> None:
    make([0.1], seed=0)
    make([0.1], seed=1, workers=2)
    make([0.1], seed=2, checkpoint_every=3, data_dir="/elsewhere")
    make([0.1], seed=3, device="cuda")
    assert rows_of(tmp_path) == {"fedavg": [0, 1, 2, 3]}


def test_labels_name_what_differs_and_nothing_else(make: Make, tmp_path: Path) -> None:
    make([0.1], method="fedwmsam", rho=0.1, correction="none")
    make([0.1], method="fedwmsam", rho=0.05, correction="none")
    make([0.1], method="fedsam", rho=0.2)
    make([0.1])
    assert list(rows_of(tmp_path)) == ["fedwmsam rho=0.05", "fedwmsam rho=0.1", "fedsam", "fedavg"]


def test_what_most_rows_share_goes_without_saying_and_is_said_once(
    make: Make, tmp_path: Path
) -> None:
    make([0.1], method="fedwmsam", correction="none", rho=0.05)
    make([0.1], method="fedwmsam", rho=0.05)
    make([0.1], method="fedwmsam")
    make([0.1], weight_decay_mode="sgd")
    make([0.1])
    (table,) = comparison(tmp_path).tables
    assert [row.label for row in table.rows] == [
        "fedwmsam",
        "fedwmsam correction=none",
        "fedwmsam rho=0.01",
        "fedavg",
        "fedavg weight_decay_mode=sgd",
    ]
    assert table.omitted_values == (
        "weight_decay_mode=objective",
        "fedwmsam rho=0.05 correction=scaffold",
    )


def test_a_setting_that_differs_is_named_in_every_row(make: Make, tmp_path: Path) -> None:
    """Two methods with different step sizes: the reader must see it."""
    make([0.1], lr=0.1)
    make([0.1], method="fedsam", lr=0.5)
    assert list(rows_of(tmp_path)) == ["fedavg lr=0.1", "fedsam lr=0.5"]


@pytest.mark.parametrize(
    "other",
    [
        {"dataset": "mnist"},
        {"partition": "iid"},
        {"clients": 30},
        {"model": "linear"},
        {"rounds": 3},
        {"validation": 0.1},
        {"evaluate_every": 2},
        {"target_accuracy": 0.9},
        {"time_budget": 60.0},
    ],
)
def test_what_cannot_be_compared_is_not_in_one_table(
    make: Make, tmp_path: Path, other: dict[str, Any]
) -> None:
    make([0.1, 0.2])
    make([0.1, 0.2, 0.3][: other.get("rounds", 2)], seed=1, **other)
    first, second = comparison(tmp_path).tables
    assert [row.seeds for row in first.rows] == [[0]]
    assert [row.seeds for row in second.rows] == [[1]]
    assert first.title != second.title


def test_other_data_under_the_same_name_are_told_apart(make: Make, tmp_path: Path) -> None:
    make([0.1])
    path = make([0.1], seed=1)
    (path / "data.json").write_text('{"data_hash": "e", "partition_hash": "p"}')
    assert [table.title.split(", ")[-1] for table in comparison(tmp_path).tables] == [
        "data_hash d",
        "data_hash e",
    ]


def test_a_setting_newer_than_a_run_does_not_split_its_row(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs of fit() one says nothing of lr_decay, the other has its default.

    They are one row if lr_decay was added between the two.
    """
    for seed, line in enumerate(("", "lr_decay = 0.998\n")):
        path = make([0.1], seed=seed)
        (path / "config.toml").write_text(
            f'method = "fedavg"\nclients = 3\nrounds = 1\nseed = {seed}\n{line}'
        )
    assert [row.seeds for row in comparison(tmp_path).tables[0].rows] == [[0], [1]]
    monkeypatch.setattr(config, "ALWAYS_IDENTIFYING", config.ALWAYS_IDENTIFYING - {"lr_decay"})
    assert rows_of(tmp_path) == {"fedavg": [0, 1]}


def test_seeds_of_one_configuration_are_pooled_over_folders_and_count_once(
    make: Make, tmp_path: Path
) -> None:
    """Two comparisons share a seed and a method; together they are one row with all seeds."""
    for folder, seeds in (("first", (0, 1)), ("second", (1, 2))):
        for seed in seeds:
            write_run(tmp_path / folder / f"a{seed}", [0.5 + seed / 10], seed=seed)
            write_run(tmp_path / folder / f"b{seed}", [0.6 + seed / 5], seed=seed, method="fedsam")
    folders = [tmp_path / "first", tmp_path / "second"]
    for ordered in (folders, folders[::-1]):
        (table,) = summarise(find_runs(ordered)[0], baseline="fedavg").tables
        assert {row.label: row.seeds for row in table.rows} == {
            "fedavg": [0, 1, 2],
            "fedsam": [0, 1, 2],
        }
        assert [len(row.duplicate_runs) for row in table.rows] == [1, 1]
        assert table.differences[0].seeds == (0, 1, 2)
        assert table.differences[0].values == pytest.approx([0.1, 0.2, 0.3])


# Averaged twins


@pytest.fixture
def twins(make: Make, tmp_path: Path) -> Path:
    for seed in (0, 1):
        averaged = {
            "averaged_accuracy": [0.5, 0.7 + seed / 10],
            "averaged_loss": [2.0, 3.0],
            "alpha": [0.1, 0.2],
        }
        make([0.1, 0.6], seed=seed, columns=averaged, twin=8.0)
        make(
            [0.2, 0.8],
            seed=seed,
            twin=8.0,
            method="scaffold",
            columns=averaged | {"averaged_accuracy": [0.5, 0.9]},
        )
    unfinished = {"averaged_accuracy": [0.5]}
    make([0.3], seed=2, twin=8.0, method="scaffold", status=None, rounds=2, columns=unfinished)
    make([0.2, 0.4], seed=0, method="fedsam", twin=8.0)
    return tmp_path


def test_averaged_twins_are_rows(twins: Path) -> None:
    runs = add_averaged_model_runs(find_runs([twins])[0])
    assert add_averaged_model_runs(runs) == runs, "a twin has no twin"
    result = summarise(runs, make_goal("accuracy", [0.65]), "scaffold averaged twin=8")
    (table,) = result.tables
    assert [row.label for row in table.rows] == [
        "fedavg",
        "fedavg averaged twin=8",
        "scaffold",
        "scaffold averaged twin=8",
        "fedsam",
    ]
    assert table.omitted_values == (), "that most rows are no averages goes without saying"
    averaged = table.rows[1]
    assert [score.tail for score in averaged.scores] == pytest.approx([0.6, 0.65])
    losses = [score.run.values_by_round("loss") for score in averaged.scores]
    assert losses == [{1: 2.0, 2: 3.0}] * 2
    assert averaged.scores[0].run.values_by_round("alpha") == {}, "the twin has no such thing"
    assert averaged.reached(0.65, "rounds").mean == 2 and averaged.total("bytes").mean == 300
    assert averaged.reached(0.65, "rounds").n == 1
    for score in table.scores:
        assert not any("averaged" in column for column in score.run.round_records[0])
    assert table.differences[0].label == "fedavg"
    assert table.differences[0].values == pytest.approx([-0.35, -0.35])
    assert len(table.rows[2].excluded_runs) == 1 and not table.rows[3].excluded_runs, "said once"
    notes = make_text_tables(result)[0].notes
    assert any(note.startswith("averaged twin=…: an average") for note in notes)
    assert len([note for note in notes if "not finished" in note]) == 1


def test_a_report_shows_twins_unless_told_not_to(
    cli: Callable[..., Any], twins: Path, tmp_path: Path
) -> None:
    shown = cli("report", twins, "--csv", tmp_path / "rows.csv", "--plots", tmp_path / "plots")
    assert shown.code == 0, shown.err
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    runs = list(csv.DictReader((tmp_path / "rows-runs.csv").open()))
    for texts in (shown.out, [row["row"] for row in rows], [run["row"] for run in runs]):
        assert "scaffold averaged twin=8" in texts
    assert not list((tmp_path / "plots").glob("ablation*")), "averaging is no change to a method"
    hidden = cli("report", twins, "--no-twins")
    assert hidden.code == 0 and "averaged" not in hidden.out
    by_column = cli("report", twins, "--metric", "averaged_accuracy")
    assert by_column.code == 0 and "0.7500 ± 0.0707" in by_column.out


def test_a_comparison_shows_twins_and_takes_one_as_the_baseline(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    small = ("--methods", "fedavg", "--model", "linear", "--clients", "5", "--rounds", "1")
    averaged = ("--baseline", "fedavg averaged", "--out", tmp_path / "c")
    refused = cli("compare", *small, *averaged)
    assert (refused.code, (tmp_path / "c").exists()) == (2, False), "there is no twin"
    outcome = cli("compare", *small, *averaged, "--twin", "8", "--jobs", "1")
    assert outcome.code == 0, outcome.err
    assert "difference to fedavg averaged twin=8" in outcome.out


def test_each_average_stands_after_its_row_and_a_method_names_its_trained_model(
    make: Make, tmp_path: Path
) -> None:
    for lr in (0.1, 0.2, 0.5):
        make([0.5], lr=lr, twin=8.0, columns={"averaged_accuracy": [0.6 + lr / 10]})
    make([0.4], method="fedsam", lr=0.1, twin=8.0, columns={"averaged_accuracy": [0.7]})
    runs = add_averaged_model_runs(find_runs([tmp_path])[0])
    (table,) = summarise(runs, baseline="fedsam").tables
    assert [row.label for row in table.rows] == [
        "fedavg lr=0.1",
        "fedavg averaged twin=8 lr=0.1",
        "fedavg lr=0.2",
        "fedavg averaged twin=8 lr=0.2",
        "fedavg lr=0.5",
        "fedavg averaged twin=8 lr=0.5",
        "fedsam lr=0.1",
        "fedsam averaged twin=8 lr=0.1",
    ]
    assert table.baseline == "fedsam lr=0.1"
    for name in ("FedSAM averaged", "twin=8 fedsam", "averaged lr=0.1 fedsam"):
        (table,) = summarise(runs, baseline=name).tables
        assert table.baseline == "fedsam averaged twin=8 lr=0.1"
    with pytest.raises(InputError, match="could be any of"):
        summarise(runs, baseline="fedavg averaged")
    (sweep,) = find_sweeps(table)
    assert [line.label for line in sweep.lines] == ["fedavg", "fedavg averaged twin=8"]


def test_a_run_with_a_twin_is_the_same_row_as_one_without_and_counts_instead_of_it(
    make: Make, tmp_path: Path
) -> None:
    make([0.1, 0.6])
    make([0.1, 0.6], twin=8.0, columns={"averaged_accuracy": [0.5, 0.9]})
    make([0.1, 0.7], seed=1)
    result = summarise(add_averaged_model_runs(find_runs([tmp_path])[0]))
    row, averaged = result.tables[0].rows
    assert (row.label, row.seeds) == ("fedavg", [0, 1])
    assert (averaged.seeds, averaged.scores[0].last) == ([0], 0.9)
    assert row.scores[0].run.config["twin"] == 8.0
    notes = make_text_tables(result)[0].notes
    assert any("and the same numbers; not counted" in note for note in notes)


# What does not count is shown


def test_runs_that_do_not_count_are_kept_with_their_row(make: Make, tmp_path: Path) -> None:
    make([0.1, 0.2], seed=0)
    make([0.9, 0.9], seed=1, status="diverged at round 3: the model is not finite", rounds=2)
    make([0.9], seed=2, status=None, rounds=2)
    make([], seed=3, status=None, rounds=2)
    damaged = make([0.9, 0.9], seed=4)
    (damaged / "metrics.jsonl").write_text("{\n")
    (table,) = comparison(tmp_path).tables
    (row,) = table.rows
    assert row.seeds == [0] and row.spread("last") == pytest.approx((0.2, math.nan, 1), nan_ok=True)
    assert [run.status for run in row.excluded_runs] == [
        RunStatus.DIVERGED,
        RunStatus.UNFINISHED,
        RunStatus.EMPTY,
        RunStatus.DAMAGED,
    ]


def test_a_run_without_a_readable_configuration_is_listed_apart(make: Make, tmp_path: Path) -> None:
    make([0.1])
    (make([0.1], seed=1) / "config.toml").write_text("= =")
    result = comparison(tmp_path)
    assert [run.path.name for run in result.unreadable_runs] == ["run01"]
    assert rows_of(tmp_path) == {"fedavg": [0]}


def test_a_seed_that_was_run_twice_counts_once(make: Make, tmp_path: Path) -> None:
    make([0.1])
    make([0.1])
    row = comparison(tmp_path).tables[0].rows[0]
    assert row.seeds == [0] and [run.path.name for run in row.duplicate_runs] == ["run01"]


def test_a_run_without_the_metric_does_not_count(make: Make, tmp_path: Path) -> None:
    make([0.1], columns={"f1": [0.5]})
    make([0.1], seed=1)
    row = comparison(tmp_path, "f1").tables[0].rows[0]
    assert row.seeds == [0]
    assert [run.status for run in row.excluded_runs] == [RunStatus.UNMEASURED]


# Numbers of one run


def test_the_tail_is_the_last_ten_evaluations_wherever_they_are(make: Make, tmp_path: Path) -> None:
    values = [number / 100 for number in range(30)]
    make([value if number % 2 else ... for number, value in enumerate(values)], evaluate_every=2)
    score = comparison(tmp_path).tables[0].scores[0]
    assert score.last == 0.29 and score.tail == pytest.approx(np.mean(values[11::2]))
    assert score.evaluations == 10


def test_the_best_is_chosen_by_validation_and_only_there(make: Make, tmp_path: Path) -> None:
    make([0.3, 0.9, 0.5], validation=0.1, best_round=3)
    make([0.3, 0.9, 0.5], method="scaffold", validation=0.1, best_round=1)
    scores = comparison(tmp_path).tables[0].scores
    assert [score.best for score in scores] == [0.5, 0.3]
    assert [score.best_on_test for score in scores] == [0.9, 0.9]


def test_without_validation_there_is_no_best(make: Make, tmp_path: Path) -> None:
    make([0.3, 0.9])
    assert comparison(tmp_path).tables[0].scores[0].best is None


def test_a_value_that_is_not_finite_is_not_passed_over(make: Make, tmp_path: Path) -> None:
    make([0.3, 0.4], columns={"loss": [0.5, None]})
    score = comparison(tmp_path, "loss").tables[0].scores[0]
    assert math.isnan(score.last) and math.isnan(score.tail) and score.best_on_test == 0.5


# Targets


def test_a_target_is_reached_by_the_mean_of_ten_evaluations(make: Make, tmp_path: Path) -> None:
    """The spike in round 2 reaches nothing; rounds 8 to 17 are the first ten above 0.61."""
    noisy = [0.1, 0.9, *[0.5] * 9, *[0.7] * 9]
    make(noisy, seed=0)
    make([0.5] * 20, seed=1)
    (row,) = comparison(tmp_path, targets=(0.61, 0.7)).tables[0].rows
    by_hand = next(end for end in range(10, 21) if np.mean(noisy[end - 10 : end]) >= 0.61)
    assert by_hand == 17
    assert row.scores[0].reached[0.61] == (17, 34.0, 17 * 150, 17 * 7)
    assert row.scores[0].reached[0.7] is None and row.scores[1].reached[0.61] is None
    first = comparison(tmp_path, targets=(0.61, 0.7), first_crossing=True).tables[0].scores[0]
    assert first.reached[0.61] == first.reached[0.7] == (2, 4.0, 300, 14)


def test_ten_evaluations_are_counted_where_they_are_and_a_short_run_has_fewer(
    make: Make, tmp_path: Path
) -> None:
    make([... if number % 2 else 0.8 for number in range(30)], evaluate_every=2)
    make([0.1, 0.9, 0.8], rounds=3)
    long, short = comparison(tmp_path, targets=(0.6, 0.8)).tables
    assert long.scores[0].reached[0.8] == (19, 38.0, 19 * 150, 19 * 7)
    assert short.scores[0].reached[0.6] == (3, 6.0, 450, 21)
    assert short.scores[0].reached[0.8] is None


def test_the_first_crossing_costs_what_was_spent_up_to_its_evaluated_round(
    make: Make, tmp_path: Path
) -> None:
    make([0.1, 0.6, ..., 0.7, 0.5], seed=0)
    make([0.1, 0.2, 0.2, 0.2, 0.7], seed=1)
    make([0.1, 0.2, 0.2, 0.2, 0.2], seed=2)
    (table,) = comparison(tmp_path, targets=(0.6, 0.7, 0.8), first_crossing=True).tables
    row = table.rows[0]
    assert [score.reached[0.7] for score in row.scores] == [
        (4, 8.0, 600, 28),
        (5, 10.0, 750, 35),
        None,
    ]
    assert row.reached(0.7, "rounds") == pytest.approx((4.5, math.sqrt(0.5), 2))
    assert row.reached(0.6, "bytes") == pytest.approx(((300 + 750) / 2, 225 * math.sqrt(2), 2))
    assert row.reached(0.8, "rounds").n == 0


def test_a_target_of_a_loss_is_reached_from_above(make: Make, tmp_path: Path) -> None:
    make([0.1] * 3, columns={"loss": [2.0, 1.0, 0.5]})
    (table,) = comparison(tmp_path, "loss", targets=(1.0, 0.1), first_crossing=True).tables
    score = table.scores[0]
    assert score.reached[1.0] is not None and score.reached[1.0].rounds == 2
    assert score.reached[0.1] is None
    (table,) = comparison(tmp_path, "loss", targets=(1.2, 1.1)).tables
    assert table.scores[0].reached == {1.2: (3, 6.0, 450, 21), 1.1: None}
    assert score.best_on_test == 0.5


def test_targets_are_numbers() -> None:
    assert parse_targets(" 0.7, .8,0.7,") == (0.7, 0.8)
    for text in ("0.7;0.8", "high", "nan"):
        with pytest.raises(InputError, match=text.split(";")[0]):
            parse_targets(text)


def test_an_unknown_metric_lists_what_there_is(make: Make, tmp_path: Path) -> None:
    make([0.1])
    with pytest.raises(
        InputError,
        match=r"Unknown metric 'acuracy'. Did you mean 'accuracy'\? Known: accuracy, .*loss",
    ):
        comparison(tmp_path, "acuracy")


def test_which_way_is_better_must_be_known_for_a_target(make: Make, tmp_path: Path) -> None:
    make([0.1], columns={"f1": [0.5]})
    assert comparison(tmp_path, "f1").tables[0].scores[0].best_on_test is None
    with pytest.raises(InputError, match=r"f1 .*--better"):
        comparison(tmp_path, "f1", targets=(0.5,))
    (table,) = comparison(tmp_path, "f1", targets=(0.6,), better="lower").tables
    assert table.scores[0].reached[0.6] is not None


# Differences


def test_differences_are_paired_by_seed(make: Make, tmp_path: Path) -> None:
    baseline = {1: 0.5, 2: 0.6, 3: 0.1}
    method = {2: 0.65, 1: 0.6, 4: 0.9}
    for seed, value in baseline.items():
        make([value], seed=seed)
    for seed, value in method.items():
        make([value], method="scaffold", seed=seed)
    (table,) = comparison(tmp_path, baseline="fedavg").tables
    (difference,) = table.differences
    assert table.baseline == "fedavg" and difference.label == "scaffold"
    assert difference.seeds == (1, 2)
    assert difference.values == pytest.approx([0.1, 0.05])
    assert difference.mean == pytest.approx(0.075)
    assert difference.interval == t_interval(difference.values)
    assert difference.interval == pytest.approx((0.075 - 12.7062 * 0.025, 0.075 + 12.7062 * 0.025))
    assert (difference.wins, difference.p, difference.p_holm) == (2, 0.5, 0.5)


def test_how_the_order_depends_on_where_one_stops(make: Make, tmp_path: Path) -> None:
    """Of 80 rounds the last 20 hold 11 windows of ten.

    Scaffold is ahead of fedavg by 0.2 but for the last three rounds of seed 1, where it is behind
    by 1: there the means of windows that hold all three, or two, are behind.
    """
    for seed in (0, 1):
        make([0.5] * 80, seed=seed)
        dip = [0.7] * 77 + ([-0.5] * 3 if seed else [0.7] * 3)
        make(dip, method="scaffold", seed=seed)
        make([0.5] * 60 + [0.4] * 20, method="fedsam", seed=seed)
    scaffold, fedsam = comparison(tmp_path, baseline="fedavg").tables[0].differences
    # Sums over ten rounds: 2, then 2 - 1.2 = 0.8, 2 - 2.4 = -0.4 and 2 - 3.6 = -1.6.
    assert scaffold.window_shares == pytest.approx((9 / 11, 0.0, 11))
    assert fedsam.window_shares == (0.0, 1.0, 11)
    texts = make_text_tables(comparison(tmp_path, baseline="fedavg"))[-1]
    index = texts.header.index("windows better / worse")
    assert [row[index] for row in texts.rows] == ["82% / 0%", "0% / 100%"]
    assert any("the 11 windows of 10 consecutive evaluations" in note for note in texts.notes)


def test_windows_of_a_loss_are_better_below_and_short_runs_have_none(
    make: Make, tmp_path: Path
) -> None:
    for rounds in (36, 40):
        for method, loss in (("fedavg", 1.0), ("scaffold", 0.5)):
            make([0.1] * rounds, method=method, columns={"loss": [loss] * rounds})
    short, long = comparison(tmp_path, "loss", baseline="fedavg").tables
    assert short.differences[0].window_shares is None
    assert long.differences[0].window_shares == (1.0, 0.0, 1)
    texts = make_text_tables(comparison(tmp_path, "loss", baseline="fedavg"))
    assert texts[1].rows[0][5] == "–" and not any("Windows" in note for note in texts[1].notes)


def test_lower_is_better_for_a_loss(make: Make, tmp_path: Path) -> None:
    for method, loss in (("fedavg", 1.0), ("scaffold", 0.5)):
        make([0.1], method=method, columns={"loss": [loss]})
    (difference,) = comparison(tmp_path, "loss", baseline="fedavg").tables[0].differences
    assert difference.mean == -0.5 and difference.wins == 1


def test_holm_corrects_over_the_rows_of_a_table(make: Make, tmp_path: Path) -> None:
    for seed in range(4):
        make([0.5], seed=seed)
        make([0.6 + seed / 100], method="scaffold", seed=seed)  # better on all four: p = 1/8
        make([0.5 + (seed - 1.2) / 10], method="fedsam", seed=seed)
    first, second = comparison(tmp_path, baseline="fedavg").tables[0].differences
    assert first.p == 0.125 and first.p_holm == 0.25
    assert second.p_holm == second.p > 0.25


def test_runs_on_another_partition_are_no_pair(make: Make, tmp_path: Path) -> None:
    for seed in (0, 1):
        make([0.5], seed=seed)
        make([0.6], method="scaffold", seed=seed, partition_hash="p" if seed else "q")
    assert comparison(tmp_path, baseline="fedavg").tables[0].differences[0].seeds == (1,)


def test_an_unknown_baseline_lists_the_rows(make: Make, tmp_path: Path) -> None:
    make([0.1])
    with pytest.raises(InputError, match=r"Unknown baseline 'fedavgg'.*'fedavg'\?"):
        comparison(tmp_path, baseline="fedavgg")


def test_a_baseline_that_could_be_several_rows_must_be_named_in_full(
    make: Make, tmp_path: Path
) -> None:
    for rho in (0.1, 0.2):
        make([rho], method="fedsam", rho=rho)
    with pytest.raises(InputError, match=r"'fedsam rho=0.1', 'fedsam rho=0.2'"):
        comparison(tmp_path, baseline="fedsam")
    (difference,) = comparison(tmp_path, baseline="fedsam rho=0.2").tables[0].differences
    assert difference.mean == pytest.approx(-0.1)


def test_a_baseline_without_a_common_seed_is_refused(make: Make, tmp_path: Path) -> None:
    make([0.1], seed=3)
    make([0.1], method="scaffold", seed=1)
    with pytest.raises(InputError, match=r"'fedavg' \(seeds 3\).*no seed in common"):
        comparison(tmp_path, baseline="fedavg")


def test_a_row_without_a_common_seed_is_shown_without_a_difference(
    make: Make, tmp_path: Path
) -> None:
    make([0.1], seed=1)
    make([0.2], method="scaffold", seed=1)
    make([0.3], method="fedsam", seed=2)
    first, second = comparison(tmp_path, baseline="fedavg").tables[0].differences
    assert first.seeds == (1,) and second.seeds == ()
    assert math.isnan(second.p_holm)


# Independently


def test_the_table_over_three_seeds_is_what_numpy_makes_of_the_metrics(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    small = [
        "--model",
        "linear",
        "--clients",
        "5",
        "--local-epochs",
        "1",
        "--rounds",
        "12",
        "--validation",
        "0.1",
        "-q",
    ]
    for method in ("fedavg", "fedwmsam"):
        for seed in ("1", "2", "3"):
            done = cli(
                "run", *small, "--method", method, "--seed", seed, "--out", tmp_path / "runs"
            )
            assert done.code == 0, done.err
    file = tmp_path / "tables" / "new" / "rows.csv"
    outcome = cli(
        "report", tmp_path / "runs", "--baseline", "fedavg", "--paper-columns", "--csv", file
    )
    assert outcome.code == 0, outcome.err
    lines = {line["row"]: line for line in csv.DictReader(file.open())}
    tails = {}
    for method in ("fedavg", "fedwmsam"):
        runs = []
        for path in sorted((tmp_path / "runs").glob(f"{method}-*")):
            rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
            runs.append([[row["accuracy"], row["validation_accuracy"]] for row in rows])
        test, validation = np.moveaxis(np.array(runs), -1, 0)
        assert test.shape == (3, 12)
        tails[method] = test[:, 2:].mean(axis=1)
        best_rounds = validation.argmax(axis=1)
        best = np.array([row[round] for row, round in zip(test, best_rounds, strict=True)])
        expected = {
            "last": test[:, -1],
            "tail": tails[method],
            "best": best,
            "best_on_test": test.max(axis=1),
        }
        for name, values in expected.items():
            assert float(lines[method][f"{name}_mean"]) == pytest.approx(values.mean(), rel=1e-14)
            assert float(lines[method][f"{name}_deviation"]) == pytest.approx(
                values.std(ddof=1), rel=1e-12
            )
            assert f"{values.mean():.4f} ± {values.std(ddof=1):.4f}" in outcome.out
    difference = (tails["fedwmsam"] - tails["fedavg"]).mean()
    assert float(lines["fedwmsam"]["difference"]) == pytest.approx(difference, rel=1e-12)
    assert f"{difference:+.4f}" in outcome.out


def test_a_baselines_words_may_stand_in_any_order(make: Make, tmp_path: Path) -> None:
    for rho, lr in product((0.1, 0.2), (0.1, 0.5)):
        make([rho + lr], method="fedsam", rho=rho, lr=lr)
    (table,) = comparison(tmp_path, baseline="fedsam rho=0.2 lr=0.1").tables
    assert table.baseline and sorted(table.baseline.split()) == ["fedsam", "lr=0.1", "rho=0.2"]
    (other,) = comparison(tmp_path, baseline="fedsam lr=0.1 rho=0.2").tables
    assert table.baseline == other.baseline
