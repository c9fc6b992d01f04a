"""The paper's numbers beside those of runs that were written by hand."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run

from fedwmsam.errors import InputError
from fedwmsam.experiment.experiment import prepare
from fedwmsam.paper.recipe import Column, Contender, Plan
from fedwmsam.paper.reproduction import RECIPES
from fedwmsam.paper.results import Results
from fedwmsam.report.text_tables import TextTable

Curve = Callable[[Contender, Column, int], Sequence[float]]


def write_results(
    out: Path,
    name: str,
    curve: Curve,
    columns: Callable[[Contender, Column], dict[str, Any]] | None = None,
    **options: Any,
) -> Results:
    """Write the recipe's runs with these accuracies and further columns of the metrics."""
    plan = Plan(RECIPES[name], options.pop("scale", "small"), **options)
    for seed in plan.seeds:
        for contender, column in plan.cells():
            spec = plan.run_spec(contender, column, seed)
            folder = out / spec.folder_name
            if not folder.exists():
                values = spec.config.to_flat_dict()
                settings = {key: value for key, value in values.items() if value is not None}
                extra = columns(contender, column) if columns else {}
                write_run(folder, curve(contender, column, seed), columns=extra, **settings)
    return Results(plan, out)


def cells(table: TextTable, *row: str) -> dict[str, str]:
    """Return the only line that begins with these cells, by column."""
    (line,) = [line for line in table.rows if line[: len(row)] == row]
    return dict(zip(table.header, line, strict=True))


METHODS = [contender.name for contender in RECIPES["table-1"].contenders if not contender.best_of]


def by_method(contender: Contender, column: Column, seed: int) -> list[float]:
    """Return 20 accuracies.

    They rise by 0.01 from method to method and by 0.001 from seed to seed; the last one is 0.1
    above the others.
    """
    level = 0.5 + METHODS.index(contender.name) / 100 + seed / 1000
    return [level] * 19 + [level + 0.1]


def test_ours_stands_beside_the_papers_number(tmp_path: Path) -> None:
    results = write_results(tmp_path, "table-1", by_method, seeds=(0, 1), overrides={"rounds": 20})
    runs, nine = results.tables()
    line = cells(runs, "FedWMSAM", "Fashion-MNIST β = 0.1")
    assert line["paper"] == "0.8464" and line["seeds"] == "2"
    assert line["last"] == "0.7005 ± 0.0007" and line["mean of last 10"] == "0.6105 ± 0.0007"
    assert line["best on test (selected on test)"] == "0.7005 ± 0.0007"
    assert line["ours − paper"] == "-0.2359"  # 0.6105 − 0.8464
    assert line["paper vs FedAvg"] == "+0.0238" and line["ours vs FedAvg"] == "+0.1000"
    assert [line[0] for line in runs.rows[:11]] == METHODS and len(runs.rows) == 4 * 11
    assert cells(runs, "FedLESAM-S", "Fashion-MNIST β = 0.1")["paper"] == "–"
    assert "Not the paper's setting: rounds 20 instead of 500." in runs.notes, (
        "each column against its own"
    )
    assert len(nine.rows) == 4 * 9 and any("selection" in note for note in nine.notes)


def test_the_nine_rows_have_the_best_of_three_in_each_column(tmp_path: Path) -> None:
    def curve(contender: Contender, column: Column, seed: int) -> list[float]:
        best = {"Fashion-MNIST β = 0.6": "FedLESAM", "Fashion-MNIST γ = 3": "FedLESAM-S"}.get(
            column.name, "FedLESAM-D"
        )
        return [0.8 if contender.name == best else 0.7] * 2

    _, nine = write_results(tmp_path, "table-1", curve, overrides={"rounds": 2}).tables()
    chosen = {line[1]: line[0] for line in nine.rows if line[0].startswith("FedLESAM")}
    assert chosen == {
        "Fashion-MNIST β = 0.6": "FedLESAM(-S/-D): FedLESAM",
        "Fashion-MNIST β = 0.1": "FedLESAM(-S/-D): FedLESAM-D",
        "Fashion-MNIST γ = 6": "FedLESAM(-S/-D): FedLESAM-D",
        "Fashion-MNIST γ = 3": "FedLESAM(-S/-D): FedLESAM-S",
    }
    line = cells(nine, "FedLESAM(-S/-D): FedLESAM-S")
    assert (
        line["paper"] == "0.8209"
        and line["mean of last 10"] == "0.8000"
        and line["ours − paper"] == "-0.0209"
    )
    assert any("fewer than 10 evaluations" in note for note in nine.notes)


def test_rounds_and_seconds_are_set_against_the_reference_by_ratio(tmp_path: Path) -> None:
    def curve(contender: Contender, column: Column, seed: int) -> list[float]:
        reached = {"FedAvg": 8, "FedWMSAM": 4 + 2 * seed}.get(contender.name, 99)
        return [0.73 if round >= reached else 0.1 for round in range(1, 11)]

    rounds, seconds = write_results(
        tmp_path, "table-3", curve, seeds=(0, 1), overrides={"rounds": 10}
    ).tables()
    line = cells(rounds, "FedWMSAM", "0.72")
    assert (line["paper"], line["ours"], line["reached by"]) == (
        "114",
        "5.00 ± 1.41",
        "2 of 2 seeds",
    )
    assert (line["ours − paper"], line["paper vs FedAvg"], line["ours vs FedAvg"]) == (
        "-109",
        "× 0.33",
        "× 0.62",
    )
    line = cells(rounds, "FedCM", "0.78")
    assert (line["paper"], line["ours"], line["reached by"]) == (
        "not reached",
        "not reached",
        "0 of 2 seeds",
    )
    assert line["ours − paper"] == line["paper vs FedAvg"] == line["ours vs FedAvg"] == "–"
    line = cells(seconds, "FedSAM", "Time(s)")
    assert (line["paper"], line["ours"], line["paper vs FedAvg"], line["ours vs FedAvg"]) == (
        "26.90",
        "2",
        "× 1.85",
        "× 1.00",
    )
    assert any("dataset fashion-mnist instead of cifar-10" in note for note in rounds.notes)


def test_gains_are_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    def curve(contender: Contender, column: Column, seed: int) -> list[float]:
        return [0.5 + 0.2 * seed + 0.01 * (contender.name == "✓✓✓")] * 2

    results = write_results(tmp_path, "table-5", curve, seeds=(0, 1), overrides={"rounds": 2})
    fedcm = results.plan.run_spec(results.recipe.contender("×××"), results.plan.columns[0], 1)
    (tmp_path / fedcm.folder_name / "summary.json").unlink()
    (table,) = results.tables()
    assert cells(table, "✓✓✓")["ours vs ×××"] == "+0.0100"
    assert cells(table, "×××")["seeds"] == "1 of 2 (1 not finished)"
    assert any(fedcm.folder_name in note and "not counted" in note for note in table.notes)


def test_scale_paper_has_no_note_on_the_setting(tmp_path: Path) -> None:
    (table,) = Results(Plan(RECIPES["table-5"], "paper"), tmp_path).tables()
    assert not any("Not the paper's setting" in note for note in table.notes)
    assert cells(table, "✓✓✓")["paper"] == "0.7664" and cells(table, "✓✓✓")["seeds"] == "0"
    assert cells(table, "✓✓✓")["paper vs ×××"] == "+0.0435", "the paper's Imp."
    (changed,) = Results(
        Plan(RECIPES["table-5"], "paper", overrides={"lr": 0.2}), tmp_path
    ).tables()
    assert "Not the paper's setting: lr 0.2 instead of 0.1." in changed.notes


def test_a_run_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    results = write_results(tmp_path, "table-5", lambda *_: [0.5, 0.5], overrides={"rounds": 2})
    folder = results.plan.run_specs()[0].folder_name
    (tmp_path / folder / "config.toml").write_text("what = [")
    (table,) = results.tables()
    assert cells(table, "✓✓✓")["seeds"] == "0" and any(
        folder in note and "not counted" in note for note in table.notes
    )


def test_what_a_recipe_varies_cannot_be_overridden() -> None:
    with pytest.raises(InputError, match="table-4 itself sets local_epochs"):
        Plan(RECIPES["table-4"], "small", overrides={"local_epochs": 3})


def test_an_override_reaches_the_methods_that_have_it() -> None:
    specs = Plan(RECIPES["table-4"], "small", overrides={"rho": 0.3}).run_specs()
    assert [spec.config.options.get("rho") for spec in specs] == [None, 0.3, 0.3, 0.3, 0.3] * 4


def test_the_proxy_is_correlated_with_what_it_stands_for(tmp_path: Path) -> None:
    def columns(contender: Contender, column: Column) -> dict[str, Any]:
        proxy = [0.0, 0.1, 0.2, 0.3, 0.9]
        other = {
            "α=0.1": [9.0, 1, 2, 3, 4],
            "α=0.5": [9.0, 4, 3, 2, 1],
            "α=0.9": [9.0, 5, 5, 5, 5],
        }[contender.name]
        return {"similarity": proxy if column.name == "Eq. 3" else other}

    results = write_results(
        tmp_path, "claim-similarity", lambda *_: [0.5] * 5, columns, overrides={"rounds": 5}
    )
    recorded, correlation = results.tables()
    assert cells(recorded, "α=0.1", "update")["last"] == "4.0000"
    line = cells(correlation, "α=0.1")
    assert (
        float(line["Pearson"]) == pytest.approx(0.8980, abs=1e-4)
        and line["rank (Spearman)"] == "1.0000"
    )
    assert line["same models in every round"] == "yes"
    assert cells(correlation, "α=0.5")["rank (Spearman)"] == "-1.0000"
    assert cells(correlation, "α=0.9")["Pearson"] == "not finite", (
        "a constant is correlated with nothing"
    )


def test_one_column_of_the_proxy_alone_has_nothing_to_be_correlated_with(tmp_path: Path) -> None:
    results = write_results(
        tmp_path,
        "claim-similarity",
        lambda *_: [0.5, 0.6],
        lambda *_: {"similarity": [0.0, 0.1]},
        overrides={"rounds": 2},
        parts=("Eq. 3",),
    )
    assert cells(results.tables()[-1], "α=0.1")["pairs of runs"] == "0"


def test_domains_are_read_off_the_saved_model(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number, domain in enumerate(("amazon", "caltech", "dslr", "webcam")):
        for label in "ab":
            folder = tmp_path / "office_caltech10" / domain / label
            folder.mkdir(parents=True)
            for index in range(5 * (number + 1)):
                image.new(
                    "RGB", (4, 4), (40 * index % 256, 255 * (label == "a"), 80 * number)
                ).save(folder / f"{index:02d}.png")
    overrides = {"rounds": 1, "model": "linear", "data_dir": str(tmp_path), "local_epochs": 1}
    plan = Plan(RECIPES["table-2"], "small", overrides=overrides)
    spec = plan.run_specs()[0]
    experiment = prepare(spec.config)
    overall = experiment.run(experiment.create(tmp_path / "runs" / spec.folder_name)).last()
    (table,) = Results(plan, tmp_path / "runs").tables()
    found = [float(cells(table, "FedAvg", domain)["last"]) for domain in experiment.client_names]
    sizes = experiment.dataset.test.groups.bincount().tolist()
    assert sizes == [2, 4, 6, 8] and len(found) == 4
    assert sum(n * value for n, value in zip(sizes, found, strict=True)) / 20 == pytest.approx(
        overall, abs=1e-4
    )


# Plots


def plots_of(results: Results) -> dict[str, Any]:
    """Return the functions that draw the recipe's plots, by name."""
    functions = {}
    for kind in results.recipe.plots:
        for name, _, draw in kind.plots(results):
            functions[name] = draw
    return functions


def draw_axes(draw: Callable[[Any], None]) -> Any:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    draw(figure)
    return figure.axes[0]


def test_a_figure_over_a_setting_has_a_line_for_each_method(tmp_path: Path) -> None:
    def curve(contender: Contender, column: Column, seed: int) -> list[float]:
        return [column.values["clients"] / 1000 + 0.1 * (contender.name == "FedWMSAM")] * 2

    found = plots_of(write_results(tmp_path, "figure-6-clients", curve, overrides={"rounds": 2}))
    assert list(found) == ["accuracy-over-clients"]
    axes = draw_axes(found["accuracy-over-clients"])
    lines = {handle.get_label(): handle for handle in axes.containers}
    assert list(lines) == ["FedAvg", "MoFedSAM", "FedSAM", "FedSMOO", "FedWMSAM"]
    assert [round(y, 3) for y in lines["FedWMSAM"][0].get_ydata()] == [
        0.12,
        0.15,
        0.175,
        0.2,
        0.25,
        0.3,
    ]


def test_a_figure_over_rounds_has_a_plot_for_each_setting(tmp_path: Path) -> None:
    results = write_results(
        tmp_path, "figure-4", lambda *_: [0.1, 0.2], scale="paper", overrides={"rounds": 2}
    )
    found = plots_of(results)
    assert list(found) == [
        "accuracy-over-rounds-CIFAR-10-0.1",
        "accuracy-over-rounds-CIFAR-100-0.1",
    ]
    axes = draw_axes(found["accuracy-over-rounds-CIFAR-10-0.1"])
    assert [line.get_label() for line in axes.lines] == METHODS


def test_one_minus_the_similarity_is_drawn(tmp_path: Path) -> None:
    results = write_results(
        tmp_path,
        "figure-9",
        lambda *_: [0.1, 0.2],
        lambda *_: {"similarity": [0.0, 0.25]},
        overrides={"rounds": 2},
    )
    found = plots_of(results)
    assert list(found) == ["one-minus-similarity-over-rounds"]
    axes = draw_axes(found["one-minus-similarity-over-rounds"])
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.0, 0.75]] * 2
    assert re.search("one minus similarity", axes.get_ylabel())
