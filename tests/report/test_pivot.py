"""Method × setting tables, on run folders whose numbers are known."""

import csv
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run

from fedwmsam.errors import InputError
from fedwmsam.report.pivot import pivot_text_tables
from fedwmsam.report.runs import add_averaged_model_runs, find_runs
from fedwmsam.report.summary import make_goal, summarise
from fedwmsam.report.text_tables import TextTable, markdown_text
from fedwmsam.settings.method_table import METHOD_TABLE, method_title

Cli = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., None]:
    """Writes runs of one round, a seed for each value."""

    def runs(values: Sequence[float], **settings: Any) -> None:
        for seed, value in enumerate(values):
            folder = tmp_path / f"run{len(list(tmp_path.iterdir())):02}"
            write_run(folder, [value], **({"seed": seed} | settings))

    return runs


def pivots(folder: Path, keys: str | None = None, metric: str = "accuracy") -> list[TextTable]:
    return pivot_text_tables(summarise(find_runs([folder])[0], make_goal(metric)), keys)


def notes(table: TextTable) -> str:
    return "\n".join(table.notes)


@pytest.fixture
def partitions(make: Callable[..., None]) -> None:
    """Three methods on two partitions: scaffold is sometimes better than fedsam, fedavg never."""
    make([0.8, 0.82, 0.84], partition="iid")
    make([0.5, 0.52, 0.54], partition="dirichlet:0.1")
    make([0.9, 0.92, 0.95], partition="iid", method="fedsam")
    make([0.6, 0.62, 0.64], partition="dirichlet:0.1", method="fedsam")
    make([0.91, 0.9, 0.95], partition="iid", method="scaffold")
    make([0.7, 0.71, 0.75], partition="dirichlet:0.1", method="scaffold")


def test_the_setting_that_varies_gives_the_columns(partitions: None, tmp_path: Path) -> None:
    (table,) = pivots(tmp_path)
    assert table.title == "accuracy by partition: digits, mlp, 20 clients, 1 round"
    assert table.header == ("method", "dirichlet:0.1", "iid", "mean rank")
    assert table.rows == (
        ("FedAvg", "0.5200 ± 0.0200", "0.8200 ± 0.0200", "3.00"),
        ("FedSAM", "0.6200 ± 0.0200", "0.9233 ± 0.0252", "1.50"),
        ("SCAFFOLD", "0.7200 ± 0.0265", "0.9200 ± 0.0265 †", "1.50"),
    )
    assert table.bold_cells == {(2, 1), (1, 2)}
    assert "over 3 seeds." in notes(table) and "cannot be told from the best" in notes(table)
    assert pivots(tmp_path, "partition") == [table]
    assert "| FedSAM | 0.6200 ± 0.0200 | **0.9233 ± 0.0252** | 1.50 |" in markdown_text([table])


def test_a_lower_loss_is_better(make: Callable[..., None], tmp_path: Path) -> None:
    for method, loss in (("fedavg", 1.0), ("scaffold", 0.5)):
        for lr in (0.1, 0.2):
            make([0.1, 0.1], method=method, lr=lr, columns={"loss": [loss + lr]})
    (table,) = pivots(tmp_path, metric="loss")
    assert table.header == ("method", "lr=0.1", "lr=0.2", "mean rank")
    assert table.rows[1] == ("SCAFFOLD", "0.6000 ± 0.0000", "0.7000 ± 0.0000", "1.00")
    assert table.bold_cells == {(1, 1), (1, 2)} and "†" not in str(table.rows)


def test_what_is_better_may_be_unknown(make: Callable[..., None], tmp_path: Path) -> None:
    for method in ("fedavg", "scaffold"):
        for lr in (0.1, 0.2):
            make([0.1], method=method, lr=lr, columns={"f1": [lr]})
    (table,) = pivots(tmp_path, metric="f1")
    assert table.rows[0] == ("FedAvg", "0.1000", "0.2000", "–")
    assert not table.bold_cells and "--better" in notes(table)


def test_with_one_seed_nothing_can_be_told(make: Callable[..., None], tmp_path: Path) -> None:
    for method, value in (("fedavg", 0.1), ("scaffold", 0.9)):
        for lr in (0.1, 0.2):
            make([value], method=method, lr=lr)
    (table,) = pivots(tmp_path)
    assert table.rows[0][1:3] == ("0.1000 †", "0.1000 †") and "one seed" in notes(table)


def test_rows_that_differ_in_more_are_told_apart_and_gaps_are_not_ranked(
    make: Callable[..., None], tmp_path: Path
) -> None:
    make([0.5], partition="iid")
    make([0.5], partition="dirichlet:0.1")
    make([0.6], partition="iid", method="fedsam", rho=0.1)
    make([0.7], partition="iid", method="fedsam", rho=0.2)
    make([0.7], partition="dirichlet:0.1", method="fedsam", rho=0.2)
    assert pivots(tmp_path) == [], "two settings vary: which is meant is not known"
    (table,) = pivots(tmp_path, "partition")
    assert [row[0] for row in table.rows] == ["FedAvg", "FedSAM rho=0.1", "FedSAM rho=0.2"]
    assert table.rows[1][1:] == ("–", "0.6000 †", "2.00")
    assert [row[-1] for row in table.rows] == ["3.00", "2.00", "1.00"]
    assert "over the 1 of 2 columns" in notes(table)
    (both,) = pivots(tmp_path, "partition,rho")
    assert both.header[1] == "dirichlet:0.1, rho=0.2"


def test_a_method_without_the_option_stands_in_every_column(
    make: Callable[..., None], tmp_path: Path
) -> None:
    make([0.5, 0.6])
    for rho in (0.2, 0.1):
        make([0.6, 0.7], method="fedsam", rho=rho)
        make([0.7, 0.8], method="fedwmsam", rho=rho)
    (table,) = pivots(tmp_path)
    assert table.header == ("method", "rho=0.1", "rho=0.2", "mean rank")
    assert table.rows[0][1] == table.rows[0][2] == "0.5500 ± 0.0707"
    assert "FedAvg has no rho" in notes(table)


def test_a_single_row_that_varies_is_no_comparison(
    make: Callable[..., None], tmp_path: Path
) -> None:
    make([0.5])
    for rho in (0.1, 0.2):
        make([0.6], method="fedsam", rho=rho)
    assert pivots(tmp_path) == []
    assert len(pivots(tmp_path, "rho")) == 1


def test_what_else_differs_from_column_to_column_is_said(
    make: Callable[..., None], tmp_path: Path
) -> None:
    for method in ("fedavg", "scaffold"):
        make([0.5], method=method, dataset="digits", model="mlp", data={"data_hash": "a"})
        make([0.5], method=method, dataset="mnist", model="linear", data={"data_hash": "b"})
    (table,) = pivots(tmp_path, "dataset")
    assert table.header[1:3] == ("digits", "mnist")
    assert "digits: model=mlp; mnist: model=linear" in notes(table)
    assert "data_hash" not in notes(table)


def test_what_cannot_be_compared_is_a_table_of_its_own(
    make: Callable[..., None], tmp_path: Path
) -> None:
    for model in ("mlp", "linear"):
        for partition in ("iid", "dirichlet:0.1"):
            make([0.5], model=model, partition=partition)
    first, second = pivots(tmp_path, "partition")
    assert "mlp" in first.title and "linear" in second.title


def test_seeds_that_do_not_count_are_named(make: Callable[..., None], tmp_path: Path) -> None:
    for method in ("fedavg", "scaffold"):
        for lr in (0.1, 0.2):
            make([0.5, 0.6], method=method, lr=lr)
    make([0.9], lr=0.1, seed=2, status="diverged at round 1: not finite")
    make([0.9], lr=0.3, status="diverged at round 1: not finite")
    (table,) = pivots(tmp_path)
    assert "FedAvg, lr=0.1: 2 of 3 (1 diverged); FedAvg, lr=0.3: 0 of 1" in notes(table)
    assert table.rows[0][3] == "–"


def test_averaged_twins_are_rows(make: Callable[..., None], tmp_path: Path) -> None:
    for method in ("fedavg", "scaffold"):
        for lr in (0.1, 0.2):
            columns = {"averaged_accuracy": [0.9]}
            make([0.5], method=method, lr=lr, twin=8.0, columns=columns)
    runs = add_averaged_model_runs(find_runs([tmp_path])[0])
    (table,) = pivot_text_tables(summarise(runs), None)
    assert [row[0].split()[0] for row in table.rows] == ["FedAvg"] * 2 + ["SCAFFOLD"] * 2
    assert [row[0].endswith(" twin=8") for row in table.rows] == [False, True] * 2
    assert [row[1].split()[0] for row in table.rows] == ["0.5000", "0.9000"] * 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("partitoin", "Unknown setting to pivot by 'partitoin'. Did you mean 'partition'"),
        ("lr", "Known: partition"),
        (",", "that varies: partition"),
    ],
)
def test_what_does_not_vary_is_refused(
    partitions: None, tmp_path: Path, keys: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        pivots(tmp_path, keys)


def test_runs_without_any_difference_have_no_pivot(
    make: Callable[..., None], tmp_path: Path
) -> None:
    make([0.5, 0.6])
    with pytest.raises(InputError, match="differ in none"):
        pivots(tmp_path, "lr")


# Readable names


def test_every_method_has_a_title() -> None:
    titles = {name: method_title(name) for name in METHOD_TABLE}
    assert titles["fedavg"] == "FedAvg" and titles["fedlesam-s"] == "FedLESAM-S"
    assert titles["scaffold-m"] == "SCAFFOLD-M" and titles["mimelite"] == "MimeLite"
    assert {title.lower() for title in titles.values()} == set(titles)
    assert method_title("package.module:MyMethod") == "MyMethod"
    assert method_title("stranger") == "stranger" and method_title("a:") == "a:"


# The command


def test_the_command_shows_percent_and_leaves_the_files_in_shares(
    cli: Cli, partitions: None, tmp_path: Path
) -> None:
    files = [tmp_path / "t.csv", tmp_path / "curves.csv", tmp_path / "t.tex"]
    options = ["--csv", files[0], "--curves", files[1], "--latex", files[2], "--percent"]
    done = cli("report", tmp_path, "--targets", "0.8", "--baseline", "fedavg", *options)
    assert done.code == 0, done.err
    assert "accuracy (%) by partition" in done.out and "92.33 ± 2.52" in done.out
    assert r"\textbf{92.33 $\pm$ 2.52}" in files[2].read_text()
    assert "│ 80 " in done.out, "the target, too"
    rows = list(csv.DictReader(files[0].open()))
    assert rows[0]["partition"] == "iid" and float(rows[0]["last_mean"]) < 1
    runs = list(csv.DictReader((tmp_path / "t-runs.csv").open()))
    combinations = product(("fedavg", "fedsam", "scaffold"), ("iid", "dirichlet:0.1"))
    assert {(run["method"], run["partition"]) for run in runs} == set(combinations)


def test_a_comparison_over_a_setting_ends_with_the_table(cli: Cli, tmp_path: Path) -> None:
    methods = ("--methods", "fedavg,fedsam", "--seeds", "1", "--jobs", "1", "--out", tmp_path)
    small = ("--rounds", "1", "--local-epochs", "1", "--model", "linear", "--clients", "4")
    done = cli("compare", *methods, *small, "--grid", "partition=iid,dirichlet:0.1")
    assert done.code == 0, done.err
    assert "accuracy by partition: digits, linear, 4 clients, 1 round" in done.out


def test_percentages_have_two_decimals_whatever_their_size(cli: Cli, tmp_path: Path) -> None:
    for method, value in {"fedavg": 0.0925, "fedsam": 0.0512}.items():
        for seed in (0, 1):
            accuracies = [value + seed / 100]
            write_run(tmp_path / f"{method}{seed}", accuracies, method=method, seed=seed)
    done = cli("report", tmp_path, "--baseline", "fedavg", "--percent")
    assert done.code == 0, done.err
    assert "9.75 ± 0.71" in done.out and "│ -4.13 " in done.out
    assert "-4.13 to -4.13" in done.out


def test_percent_is_for_shares(cli: Cli, tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5], columns={"loss": [1.5]})
    done = cli("report", tmp_path, "--metric", "loss", "--percent")
    assert done.code == 2 and "loss is 1.5 in round 1" in done.err
    assert cli("report", tmp_path, "--percent").code == 0


def test_curves_have_a_line_for_each_round_of_each_run(cli: Cli, tmp_path: Path) -> None:
    columns = {"lr": [0.1, 0.09], "rejected": [[], [3]]}
    write_run(tmp_path / "runs" / "a", [0.5, 0.6], columns=columns)
    write_run(tmp_path / "runs" / "b", [0.7, ...], lr=0.2, status=None)
    (tmp_path / "runs" / "c").mkdir()
    (tmp_path / "runs" / "c" / "config.toml").write_text("= =")
    assert cli("report", tmp_path / "runs", "--curves", tmp_path / "c.csv").code == 0
    lines = list(csv.DictReader((tmp_path / "c.csv").open()))
    assert [(line["row"], line["counted"], line["round"], line["accuracy"]) for line in lines] == [
        ("fedavg lr=0.1", "True", "1", "0.5"),
        ("fedavg lr=0.1", "True", "2", "0.6"),
        ("fedavg lr=0.2", "False", "1", "0.7"),
        ("fedavg lr=0.2", "False", "2", ""),
    ]
    assert (lines[1]["lr"], lines[1]["round_lr"]) == ("0.1", "0.09")
    assert lines[0]["train_seconds"] == "2.0" and "rejected" not in lines[0]
