"""The text tables of a report, and the files that it writes."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run

from fedwmsam.errors import InputError
from fedwmsam.report.runs import find_runs
from fedwmsam.report.summary import make_goal, summarise
from fedwmsam.report.text_tables import (
    TextTable,
    make_text_tables,
    markdown_text,
    seeds_needed,
)

Cli = Callable[..., Any]


def text_tables(
    folder: Path, *, paper_columns: bool = False, baseline: str | None = None, **goal: Any
) -> list[TextTable]:
    runs, _ = find_runs([folder])
    comparison = summarise(runs, make_goal(**({"metric": "accuracy"} | goal)), baseline)
    return make_text_tables(comparison, paper_columns)


def notes(table: TextTable) -> str:
    return "\n".join(table.notes)


@pytest.fixture
def three_seeds(tmp_path: Path) -> Path:
    """Two methods over three seeds, of which one diverges once."""
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", [0.5, 0.7 + seed / 10], seed=seed)
        status = "diverged at round 3: not finite" if seed == 2 else "completed"
        write_run(tmp_path / f"b{seed}", [0.6, 0.75], seed=seed, method="scaffold", status=status)
    return tmp_path


def test_the_first_table_has_mean_and_deviation_and_counts_what_is_missing(
    three_seeds: Path,
) -> None:
    (table,) = text_tables(three_seeds)
    assert table.header[:4] == ("method", "seeds", "last", "mean of last 2")
    assert table.rows[0][:4] == ("fedavg", "3", "0.8000 ± 0.1000", "0.6500 ± 0.0500")
    assert table.rows[1][:4] == (
        "scaffold",
        "2 of 3 (1 diverged)",
        "0.7500 ± 0.0000",
        "0.6750 ± 0.0000",
    )
    run = f"scaffold, seed 2 ({three_seeds / 'b2'})"
    status = "diverged at round 3: not finite; last accuracy 0.7500"
    assert f"{run}: {status}" in notes(table)
    assert "not over the same seeds" in notes(table)


def test_best_on_test_is_only_there_when_asked_for_and_says_what_it_is(three_seeds: Path) -> None:
    assert "test" not in " ".join(text_tables(three_seeds)[0].header)
    table = text_tables(three_seeds, paper_columns=True)[0]
    assert "best on test (selected on test)" in table.header
    assert "picked on the test data" in notes(table)


def test_one_seed_has_no_spread_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5])
    (table,) = text_tables(tmp_path)
    assert table.rows[0][1:3] == ("1", "0.5000") and "one seed" in notes(table)


def test_targets_say_which_seeds_reached_them(three_seeds: Path) -> None:
    table = text_tables(three_seeds, targets=(0.75, 0.95), first_crossing=True)[1]
    assert table.rows[0][:4] == ("fedavg", "0.75", "2 of 3 seeds", "2")
    assert table.rows[1][:4] == ("scaffold", "0.75", "2 of 2 seeds", "2")
    assert table.rows[2][1:4] == ("0.95", "0 of 3 seeds", "not reached")
    assert "too favourable" in notes(table)
    assert "First crossing" in notes(table)
    by_mean = text_tables(three_seeds, targets=(0.5,))[1]
    assert "too favourable" not in notes(by_mean) and "mean of the last 10" in notes(by_mean)


def test_a_row_without_a_finished_run_did_not_fail_to_reach_a_target(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5], status=None, rounds=2)
    results, costs = text_tables(tmp_path, targets=(0.4,))
    assert costs.rows[0][2:4] == ("0 of 0 seeds", "–")
    assert results.rows[0][1:3] == ("0 of 1 (1 not finished)", "–")
    assert "not finished after 1 of 2 rounds; last accuracy 0.5000; not counted" in notes(results)


def test_differences_say_what_so_few_seeds_cannot_show(three_seeds: Path) -> None:
    table = text_tables(three_seeds, baseline="fedavg")[1]
    # Tails: fedavg 0.60 and 0.65, scaffold 0.675 twice.
    assert table.rows == (
        ("scaffold", "2", "+0.0500", "-0.2677 to +0.3677", "2 of 2", "–", "0.5", "0.5"),
    )
    assert "p cannot fall below 0.5" in notes(table) and "at least 6 seeds" in notes(table)
    assert "Student's t" in notes(table) and "bootstrap" not in notes(table)


def test_six_seeds_may_be_significant_alone_and_seven_in_two_comparisons(tmp_path: Path) -> None:
    assert (seeds_needed(1), seeds_needed(2), seeds_needed(3)) == (6, 7, 7)
    for seed in range(6):
        write_run(tmp_path / f"a{seed}", [0.5], seed=seed)
        write_run(tmp_path / f"b{seed}", [0.6 + seed / 100], seed=seed, method="scaffold")
    table = text_tables(tmp_path, baseline="fedavg")[1]
    assert table.rows[0][-2:] == ("0.0312", "0.0312") and "cannot fall" not in notes(table)
    for seed in range(6):
        write_run(tmp_path / f"c{seed}", [0.6 + seed / 100], seed=seed, method="fedsam")
    assert "at least 7 seeds" in notes(text_tables(tmp_path, baseline="fedavg")[1])


@pytest.mark.parametrize(
    ("settings", "columns", "note"),
    [
        ({"workers": 2}, {}, "seconds do not compare"),
        ({}, {"rejected": [[4]]}, "clients left out in 1 round, "),
        (
            {"rounds": 5, "status": "reached accuracy 0.9"},
            {},
            "stopped early after 1 of 5 rounds: reached accuracy 0.9",
        ),
    ],
)
def test_what_a_reader_must_know_of_single_runs(
    tmp_path: Path, settings: dict[str, Any], columns: dict[str, Any], note: str
) -> None:
    write_run(
        tmp_path / "a",
        [0.5],
        rounds=settings.get("rounds", 1),
        status=settings.get("status", "completed"),
    )
    write_run(tmp_path / "b", [0.5], seed=1, columns=columns, **settings)
    assert note in notes(text_tables(tmp_path)[0])


def test_large_and_small_values_keep_their_digits(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5], columns={"loss": [123456.0]})
    write_run(tmp_path / "b", [0.5], method="scaffold", columns={"loss": [0.0000123456]})
    write_run(tmp_path / "c", [0.5], method="fedsam", columns={"loss": [None]})
    assert [row[2] for row in text_tables(tmp_path, metric="loss")[0].rows] == [
        "1.235e+05",
        "1.235e-05",
        "not finite",
    ]


def test_markdown_has_a_cell_for_each_column_and_no_markup_of_others() -> None:
    text = markdown_text([TextTable("a*b", ("method", "x"), (("m|n", "<b>"),), ("see_this",))])
    assert text.splitlines() == [
        r"### a\*b",
        "",
        "| method | x |",
        "| --- | ---: |",
        r"| m\|n | \<b\> |",
        "",
        r"- see\_this",
    ]


def test_markdown_has_words_on_the_left_and_numbers_on_the_right() -> None:
    rows = (("a", "holds so far", "12 of 13", "–", "not reached"), ("b", "–", "+0.1", "–", "31"))
    table = TextTable("t", ("", "verdict", "effect", "nothing", "rounds"), rows)
    assert "| --- | --- | ---: | ---: | ---: |" in markdown_text([table])
    assert "| --- | ---: |" in markdown_text([TextTable("no rows", ("method", "x"), ())])


def test_the_files_hold_every_row_and_every_run_in_full_precision(
    cli: Cli, three_seeds: Path
) -> None:
    out = three_seeds / "new" / "folder"
    done = cli(
        "report",
        three_seeds,
        "--targets",
        "0.75,0.7012345678",
        "--first-crossing",
        "--csv",
        out / "t.csv",
        "--markdown",
        out / "t.md",
        "--latex",
        out / "t.tex",
    )
    assert done.code == 0, done.err
    rows = list(csv.DictReader((out / "t.csv").open()))
    assert [(row["row"], row["seeds"], row["left_out"], row["reached_0.75"]) for row in rows] == [
        ("fedavg", "0 1 2", "0", "2"),
        ("scaffold", "0 1", "1", "2"),
    ]
    assert float(rows[0]["last_mean"]) == (0.7 + (0.7 + 1 / 10) + (0.7 + 2 / 10)) / 3
    assert rows[0]["best_mean"] == ""
    assert rows[0]["reached_0.7012345678"] == "2"
    runs = list(csv.DictReader((out / "t-runs.csv").open()))
    assert [(run["row"], run["seed"], run["state"], run["counted"]) for run in runs][3:] == [
        ("scaffold", "0", "completed", "True"),
        ("scaffold", "1", "completed", "True"),
        ("scaffold", "2", "diverged", "False"),
    ]
    assert {run["method"] for run in runs} == {"fedavg", "scaffold"}
    assert runs[1]["last"] == repr(0.7 + 1 / 10) and runs[1]["bytes_to_0.75"] == "300.0"
    assert runs[5]["last"] == ""
    assert "| fedavg | 3 |" in (out / "t.md").read_text()
    assert r"\toprule" in (out / "t.tex").read_text()
    first_bytes = (out / "t.csv").read_bytes()
    targets = ("--targets", "0.75,0.7012345678", "--first-crossing")
    done = cli("report", three_seeds, *targets, "--csv", out / "t.csv")
    assert done.code == 0
    assert (out / "t.csv").read_bytes() == first_bytes


def test_damaged_runs_are_listed_with_the_reason(cli: Cli, three_seeds: Path) -> None:
    (three_seeds / "a0" / "config.toml").write_text("= =")
    outcome = cli("report", three_seeds)
    assert outcome.code == 0 and "Runs that cannot be read" in outcome.out and "a0" in outcome.out


def test_a_regression_of_fit_is_compared_by_its_loss(cli: Cli, tmp_path: Path) -> None:
    import torch

    from fedwmsam import fit

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    clients = [(x[k::4], x[k::4].sum(1, keepdim=True)) for k in range(4)]
    for method in ("fedavg", "fedsam"):
        for seed in (1, 2):
            fit(
                lambda: torch.nn.Linear(3, 1),
                clients,
                method,
                test=clients[0],
                rounds=4,
                loss="regression",
                seed=seed,
                lr=0.05,
                run_folder=tmp_path / f"{method}{seed}",
            )
    outcome = cli("report", tmp_path)
    assert outcome.code == 2 and "loss" in outcome.err and "--metric" in outcome.err
    outcome = cli(
        "report", tmp_path, "--metric", "loss", "--baseline", "fedavg", "--targets", "100"
    )
    assert outcome.code == 0, outcome.err
    for words in ("data given to fit()", "2 of 2 seeds", "are not compared"):
        assert words in outcome.out


def test_with_one_common_seed_nothing_is_said_of_intervals_or_of_several(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5, 0.6])
    (alone,) = text_tables(tmp_path)
    assert "how far another would be from it" in notes(alone) and "order" not in notes(alone)
    write_run(tmp_path / "b", [0.5, 0.7], method="fedcm")
    results, differences = text_tables(tmp_path, baseline="fedavg")
    assert "turn the order round" in notes(results)
    assert "With one common seed a difference has no interval" in notes(differences)
    assert "1 common seeds" not in notes(differences) and "1 seeds" not in notes(differences)


def test_a_target_in_percent_is_questioned_where_the_runs_have_shares(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5, 0.9], columns={"own_accuracy": [85.0, 90.0]})
    with pytest.raises(InputError, match=r"Did you mean --targets 0\.8\?"):
        text_tables(tmp_path, targets=(0.5, 80.0))
    tables = text_tables(tmp_path, metric="own_accuracy", targets=(80.0,))
    assert tables[1].rows[0][2] == "1 of 1 seeds"
