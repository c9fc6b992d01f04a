"""The verdict on top of a page says no more than the paired differences do."""

from pathlib import Path

import pytest
from helpers.run_folders import write_run

from fedwmsam.engine.run_folder import RunFolder
from fedwmsam.errors import InputError
from fedwmsam.page.page import render_page
from fedwmsam.page.verdict import best_cells, forest_plot, verdict
from fedwmsam.page.watch import watch_page
from fedwmsam.report.runs import add_averaged_model_runs, find_runs
from fedwmsam.report.summary import Comparison, make_goal, summarise
from fedwmsam.report.text_tables import TextTable


def compare(folder: Path, levels: dict[str, list[float]], metric: str = "accuracy") -> Comparison:
    """Return a comparison of runs whose metric stays at one level for each seed."""
    for method, values in levels.items():
        for seed, value in enumerate(values):
            write_run(
                folder / f"{method}-{seed}",
                [value] * 12,
                columns={"loss": [value] * 12},
                method=method,
                seed=seed,
                partition_hash=f"p{seed}",
            )
    return summarise(find_runs([folder])[0], make_goal(metric))


def verdict_of(comparison: Comparison) -> str:
    return verdict(comparison.tables[0], comparison.goal)


ENOUGH = [0.80, 0.81, 0.825, 0.80, 0.81, 0.825, 0.82]
"""Levels of as many seeds as three rows take to be told apart."""


def lower(levels: list[float], distance: float) -> list[float]:
    """Return levels that are about so much lower, not at every seed by the same."""
    return [level - distance - seed / 1000 for seed, level in enumerate(levels)]


def test_who_leads_by_how_much_and_on_how_many_seeds(tmp_path):
    levels = {"fedavg": lower(ENOUGH, 0.1), "fedcm": ENOUGH, "fedsam": lower(ENOUGH, 0.5)}
    text = verdict_of(compare(tmp_path, levels))
    assert text.startswith("fedcm leads fedavg by 0.1030 on 7 seeds (95% interval 0.1010 to")
    assert "for as many backprops" in text


def test_a_difference_within_noise_is_called_that(tmp_path):
    swings = [level + 0.1 * (-1) ** seed for seed, level in enumerate(ENOUGH)]
    text = verdict_of(compare(tmp_path, {"fedavg": ENOUGH, "fedcm": swings}))
    assert text.startswith("fedcm and fedavg cannot be told apart on 7 seeds: 0.0143 is between")


@pytest.mark.parametrize("baseline", [None, "fedavg"])
def test_too_few_seeds_settle_nothing_however_narrow_the_interval(tmp_path, baseline):
    levels = {"fedavg": lower(ENOUGH, 0.1), "fedcm": ENOUGH, "fedsam": lower(ENOUGH, 0.5)}
    few = compare(tmp_path, {method: values[:6] for method, values in levels.items()})
    text = verdict_of(summarise(find_runs([tmp_path])[0], few.goal, baseline))
    ahead = "fedcm is ahead of fedavg by 0.1025 on 6 seeds, too few to settle it (that takes 7)"
    assert text.startswith(ahead)


def test_with_a_baseline_the_best_other_row_is_compared_with_it(tmp_path):
    levels = {"fedavg": lower(ENOUGH, 0.1), "fedcm": ENOUGH, "fedsam": lower(ENOUGH, 0.01)}
    goal = compare(tmp_path, levels).goal
    for baseline, words in (("fedavg", "fedcm leads fedavg"), ("fedcm", "fedcm leads fedsam")):
        comparison = summarise(find_runs([tmp_path])[0], goal, baseline)
        assert verdict_of(comparison).startswith(words)


def verdict_with_twins(
    folder: Path, levels: dict[str, tuple[float, float]], baseline: str | None = None
) -> str:
    """Return the verdict on methods whose trained and averaged models stay at two levels."""
    for method, (trained, averaged) in levels.items():
        columns = {"averaged_accuracy": [averaged] * 12}
        write_run(folder / method, [trained] * 12, columns=columns, method=method, twin=8.0)
    runs = add_averaged_model_runs(find_runs([folder])[0])
    return verdict_of(summarise(runs, make_goal("accuracy"), baseline))


@pytest.mark.parametrize(
    ("levels", "baseline", "words"),
    [
        # Next is the leader's own trained model, then a trained model of another method.
        (
            {"fedcm": (0.8, 0.9), "fedavg": (0.75, 0.7)},
            None,
            "fedcm averaged twin=8 is ahead of fedavg averaged twin=8 by 0.2000",
        ),
        # FedWMSAM-plus is an average by itself.
        (
            {"fedwmsam-plus": (0.9, 0.6), "fedavg": (0.8, 0.7)},
            None,
            "fedwmsam-plus is ahead of fedavg averaged twin=8 by 0.2000",
        ),
        (
            {"fedcm": (0.8, 0.9), "fedwmsam-plus": (0.7, 0.6)},
            None,
            "fedcm averaged twin=8 is ahead of fedwmsam-plus by 0.2000",
        ),
        ({"fedcm": (0.8, 0.9), "fedavg": (0.5, 0.7)}, "fedavg", "fedcm is ahead of fedavg by 0.3"),
        (
            {"fedcm": (0.8, 0.9), "fedavg": (0.5, 0.7)},
            "fedavg averaged",
            "fedcm averaged twin=8 is ahead of fedavg averaged twin=8 by 0.2000",
        ),
    ],
)
def test_averages_are_compared_with_averages_of_other_methods(tmp_path, levels, baseline, words):
    assert verdict_with_twins(tmp_path, levels, baseline).startswith(words)


def test_a_method_and_its_own_average_are_no_comparison(tmp_path):
    assert verdict_with_twins(tmp_path, {"fedcm": (0.8, 0.9)}) == ""


def test_variants_of_the_only_method_are_compared(tmp_path):
    write_run(tmp_path / "a", [0.8] * 12, method="fedsam", rho=0.1)
    write_run(tmp_path / "b", [0.7] * 12, method="fedsam", rho=0.2)
    runs = find_runs([tmp_path])[0]
    text = verdict_of(summarise(runs, make_goal("accuracy")))
    assert text.startswith("fedsam rho=0.1 is ahead of fedsam rho=0.2 by 0.1000")


def test_one_seed_and_no_common_seed_have_their_own_words(tmp_path):
    one = verdict_of(compare(tmp_path / "one", {"fedavg": [0.7], "fedcm": [0.8]}))
    assert "by 0.1000 on the one seed that both have" in one and "leads" not in one
    write_run(tmp_path / "a", [0.7] * 12, method="fedavg", seed=0, partition_hash="x")
    write_run(tmp_path / "b", [0.8] * 12, method="fedcm", seed=1, partition_hash="y")
    runs = find_runs([tmp_path / "a", tmp_path / "b"])[0]
    assert "no seed in common" in verdict_of(summarise(runs, make_goal("accuracy")))


def test_for_a_loss_the_lower_one_leads(tmp_path):
    comparison = compare(tmp_path, {"fedavg": lower(ENOUGH, 0.1), "fedcm": ENOUGH}, "loss")
    assert verdict_of(comparison).startswith("fedavg leads fedcm by 0.1030")


def test_the_picture_has_the_differences_to_the_baseline_or_to_the_leader(tmp_path):
    levels = {"fedavg": [0.70, 0.71, 0.72], "fedcm": [0.80, 0.81, 0.825], "fedsam": [0.1, 0.2, 0.1]}
    comparison = compare(tmp_path, levels)
    plot = forest_plot(comparison.tables[0], comparison.goal)
    assert plot is not None and plot.reference == "fedcm"
    by_label = {row.label: row for row in plot.rows}
    assert set(by_label) == {"fedavg", "fedsam"}
    assert 0 < by_label["fedsam"].x < by_label["fedavg"].x < plot.zero == 98
    assert plot.zero_anchor == "end"
    assert by_label["fedavg"].text.startswith("−0.1017 (−0.")
    with_baseline = summarise(find_runs([tmp_path])[0], comparison.goal, "fedavg")
    plot = forest_plot(with_baseline.tables[0], comparison.goal)
    assert plot is not None and plot.reference == "fedavg"
    assert {row.label: row.x > plot.zero for row in plot.rows} == {"fedcm": True, "fedsam": False}


def test_a_table_of_one_row_has_neither(tmp_path):
    comparison = compare(tmp_path, {"fedavg": [0.7, 0.8]})
    assert verdict_of(comparison) == ""
    assert forest_plot(comparison.tables[0], comparison.goal) is None
    assert 'class="verdict"' not in render_page(comparison)


def test_the_best_of_each_column_of_results_is_marked():
    header = ("method", "seeds", "last", "mean of last 10", "backprops")
    rows = (
        ("a", "3", "0.8 ± 0.1", "0.7", "10"),
        ("b", "3", "0.8 ± 0.2", "0.9", "5"),
        ("c", "0", "–", "–", "–"),
    )
    table = TextTable("t", header, rows)
    assert best_cells(table, make_goal("accuracy")) == {(0, 2), (1, 2), (1, 3)}
    assert best_cells(table, make_goal("loss")) == {(0, 2), (1, 2), (0, 3)}


def test_a_page_is_watched_until_nobody_works_on_its_runs(tmp_path):
    comparison = compare(tmp_path / "runs", {"fedavg": [0.7], "fedcm": [0.8]})
    page = tmp_path / "page.html"
    folder = RunFolder.open(tmp_path / "runs" / "fedavg-0")
    seen: list[str] = []

    def load() -> Comparison:
        if page.exists():
            seen.append(page.read_text())
        if len(seen) == 2:
            folder.close()
        return comparison

    assert watch_page(page, load, [tmp_path / "runs"], 0.05) == 3
    assert all("data-watch" in text for text in seen)
    assert "data-watch" not in page.read_text() and len(seen) == 2


def test_without_a_page_there_is_nothing_to_watch(cli, tmp_path):
    compare(tmp_path / "runs", {"fedavg": [0.7]})
    outcome = cli("report", tmp_path / "runs", "--watch")
    assert outcome.code == 2 and "--html PAGE" in outcome.err


def test_a_folder_without_runs_is_an_error_unless_a_comparison_has_begun(tmp_path):
    def load() -> Comparison:
        raise InputError("There is no run.")

    with pytest.raises(InputError, match="no run"):
        watch_page(tmp_path / "page.html", load, [tmp_path], 0.01)
