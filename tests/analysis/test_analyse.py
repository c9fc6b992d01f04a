"""`fedwmsam analyse` on a real small run: every command, what it writes, what it refuses."""

import csv
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run
from rich.console import Console

from fedwmsam.analysis.flatness import measure_flatness
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.page.page import render_page
from fedwmsam.report.runs import find_runs
from fedwmsam.report.summary import ACCURACY, summarise

Cli = Callable[..., Any]
FEW = [
    "--samples",
    "60",
    "--eigenvalues",
    "2",
    "--probes",
    "2",
    "--rho",
    "0.05",
    "--adaptive-rho",
    "0.5",
    "--steps",
    "2",
    "--directions",
    "2",
    "--clients",
    "2",
]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedwmsam.commands.output.console", Console(width=250, markup=False, highlight=False)
    )


@pytest.fixture(scope="module")
def trained_runs(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train FedAvg, with kept states after 0, 2 and 4 rounds, and FedProx, five rounds each."""
    out = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedprox"):
        settings = [
            "--rounds",
            "5",
            "--clients",
            "4",
            "--set",
            "local_epochs=1",
            "--model",
            "linear",
        ]
        settings += ["--partition", "shards:2"]  # every sample belongs to exactly one client
        settings += ["--set", "keep_states=2"] if method == "fedavg" else []
        outcome = cli(
            "run", "--method", method, *settings, "--out", out, "--name", method, "--quiet"
        )
        assert outcome.code == 0, outcome.err
    return out


@pytest.fixture
def runs(trained_runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_runs, tmp_path / "runs"))


def rounds_of(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(path.read_text())["rounds"]
    return records


def test_flatness_over_rounds_is_written_beside_the_run_and_shown(cli: Cli, runs: Path) -> None:
    outcome = cli("analyse", "flatness", runs / "fedavg", "--rounds", "2,5", *FEW)
    assert outcome.code == 0, outcome.err
    found = rounds_of(runs / "fedavg" / "analysis" / "flatness.json")
    assert [record["round"] for record in found] == [2, 5] and found[0]["global"] != found[1][
        "global"
    ]
    assert len(found[0]["clients"]) == 2 and len(found[0]["global"]["eigenvalues"]) == 2
    assert "60 of " in outcome.out and "batches of 1,000" in outcome.out and "seed 0" in outcome.out
    assert f"{found[1]['global']['eigenvalues'][0]:.4g}" in outcome.out
    assert (runs / "fedavg" / "analysis" / "largest-eigenvalue-over-rounds.png").exists()


def test_without_radii_only_curvature_is_measured_and_plotted(cli: Cli, runs: Path) -> None:
    outcome = cli(
        "analyse",
        "flatness",
        runs / "fedavg",
        "--rounds",
        "2,5",
        *FEW,
        "--rho",
        "",
        "--adaptive-rho",
        "",
    )
    assert (
        outcome.code == 0 and "Curvature" in outcome.out and "Rise of the loss" not in outcome.out
    )
    assert [path.name for path in (runs / "fedavg" / "analysis").glob("*.png")] == [
        "largest-eigenvalue-over-rounds.png"
    ]


def test_the_runs_own_model_and_data_are_what_is_measured(cli: Cli, runs: Path) -> None:
    cli(
        "analyse",
        "flatness",
        runs / "fedavg",
        *FEW,
        "--samples",
        "all",
        "--clients",
        "all",
        "--quiet",
    )
    (found,) = rounds_of(runs / "fedavg" / "analysis" / "flatness.json")
    saved = SavedRun(runs / "fedavg")
    saved.load(5)
    data = saved.experiment.dataset.transform_split(saved.experiment.dataset.train)
    expected = measure_flatness(
        saved.task.model, *data, samples=None, eigenvalues=2, probes=2, rho=(), adaptive_rho=()
    )
    assert found["global"]["samples"] == found["global"]["of"] == len(data[1])
    assert found["global"]["eigenvalues"] == pytest.approx(expected.eigenvalues, rel=1e-3)
    assert found["global"]["loss"] == pytest.approx(expected.loss, rel=1e-6)
    sizes = [client["samples"] for client in found["clients"]]
    assert sum(sizes) == len(data[1]) and len(sizes) == 4
    values = [client["eigenvalues"][0] for client in found["clients"]]
    weighted = sum(size * value for size, value in zip(sizes, values, strict=True)) / sum(sizes)
    assert weighted >= found["global"]["eigenvalues"][0], (
        "the largest eigenvalue is convex in the loss"
    )


def test_what_was_measured_is_not_measured_again_unless_asked_otherwise(
    cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = runs / "fedavg" / "analysis" / "flatness.json"
    cli("analyse", "flatness", runs / "fedavg", "--rounds", "2", *FEW, "--quiet")
    before = rounds_of(path)
    cli("analyse", "flatness", runs / "fedavg", "--rounds", "4", *FEW, "--quiet")
    assert [record["round"] for record in rounds_of(path)] == [2, 4] and rounds_of(path)[
        0
    ] == before[0]
    with monkeypatch.context() as patch:
        patch.setattr("fedwmsam.analysis.flatness.measure_round", None)
        assert cli("analyse", "flatness", runs / "fedavg", "--rounds", "2,4", *FEW).code == 0
    cli("analyse", "flatness", runs / "fedavg", "--rounds", "2", *FEW, "--seed", "1", "--quiet")
    assert [record["round"] for record in rounds_of(path)] == [2] and rounds_of(path) != before


def test_several_runs_go_to_out_and_leave_their_folders_alone(
    cli: Cli, runs: Path, tmp_path: Path
) -> None:
    outcome = cli(
        "analyse",
        "embedding",
        runs,
        "--samples",
        "50",
        "--perplexity",
        "5",
        "--out",
        tmp_path / "out",
    )
    assert outcome.code == 0, outcome.err
    assert "silhouette" in outcome.out and "before layer" in outcome.out
    for name in ("fedavg", "fedprox"):
        (found,) = rounds_of(tmp_path / "out" / name / "embedding.json")
        assert (
            len(found["points"])
            == len(found["classes"])
            == len(found["clients"])
            == found["samples"]
            == 50
        )
        assert {(score["of"], score["by"]) for score in found["scores"]} == set(
            itertools.product(("features", "picture"), ("class", "client"))
        )
        assert (tmp_path / "out" / name / "embedding-round-5.png").exists() and not (
            runs / name / "analysis"
        ).exists()


def test_landscapes_around_a_model_and_between_two_are_written(cli: Cli, runs: Path) -> None:
    folder = runs / "fedavg" / "analysis"
    outcome = cli(
        "analyse",
        "landscape",
        runs / "fedavg",
        "--to",
        runs / "fedprox",
        "--points",
        "5",
        "--clients",
        "2",
    )
    assert outcome.code == 0 and "rises by at most" in outcome.out, outcome.err
    between = json.loads((folder / "landscape-to-fedprox-round-5.json").read_text())
    assert len(between["losses"]) == 3 and between["x"] == pytest.approx(
        [-0.25, 0.125, 0.5, 0.875, 1.25]
    )
    outcome = cli(
        "analyse",
        "landscape",
        runs / "fedavg",
        "--plane",
        "--points",
        "3",
        "--round",
        "2",
        "--samples",
        "50",
    )
    assert outcome.code == 0, outcome.err
    rows = list(csv.DictReader((folder / "landscape-plane-round-2.csv").open()))
    assert len(rows) == 9 and {row["loss_of"] for row in rows} == {"all clients"}
    assert all(
        (folder / f"landscape-plane-round-2-{kind}.png").exists()
        for kind in ("contours", "surface")
    )


def test_the_page_shows_flatness_over_the_seeds_when_it_was_measured(tmp_path: Path) -> None:
    def comparison() -> str:
        return render_page(summarise(find_runs([tmp_path])[0], ACCURACY))

    def flatness(value: float) -> dict[str, Any]:
        increase = {"rho": 0.05, "worst": value / 100, "average": 0.0, "average_error": 0.0}
        return {
            "loss": 0.5,
            "gradient_norm": 0.1,
            "eigenvalues": [value, 1.0],
            "residuals": [0.0, 0.0],
            "converged": True,
            "trace": {"value": 10 * value, "error": 1.0},
            "trace_is_exact": False,
            "sharpness": [increase],
            "adaptive": [increase | {"rho": 0.5}],
            "samples": 100,
            "of": 200,
            "batch_size": 50,
            "parameters": 9,
        }

    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", [0.5, 0.6], seed=seed)
    assert 'id="flatness-1"' not in comparison()
    for seed, value in ((0, 4.0), (1, 6.0)):
        path = tmp_path / f"a{seed}" / "analysis" / "flatness.json"
        path.parent.mkdir()
        record = {
            "round": 2,
            "global": flatness(value),
            "clients": [{"client": 3} | flatness(2 * value)],
        }
        path.write_text(json.dumps({"settings": {"seed": 0, "clients": 1}, "rounds": [record]}))
    page = comparison()
    assert 'id="flatness-1"' in page and "5.0000 ± 1.4142" in page and "10.00 ± 2.83" in page
    assert "0.0500 ± 0.0141" in page and "50.00 ± 14.14" in page
    (tmp_path / "a1" / "analysis" / "flatness.json").write_text("{}")
    assert "is damaged" in comparison()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["flatness", "fedavg", "--rounds", "3"], "has no model of round 3; it has 0, 2, 4, 5."),
        (
            ["flatness", "fedavg", "--rounds", "soon"],
            "--rounds must be last, all or rounds such as 10,100, not 'soon'.",
        ),
        (
            ["flatness", "fedavg", "--rho", "0.1,x"],
            "--rho must be numbers such as 0.01,0.05, not '0.1,x'.",
        ),
        (["flatness", "fedavg", "--rho", "0"], "rho holds 0.0; a radius must be a number above 0."),
        (
            ["flatness", "fedavg", "--clients", "-1"],
            "--clients must be all or a whole number of at least 0",
        ),
        (["flatness", "nowhere"], "There is no run folder nowhere."),
        (
            ["landscape", "fedavg", "--round", "all"],
            "--round must be last or one round, not 'all'.",
        ),
        (["landscape", "fedavg", "--format", "gif"], "'gif' is not one of"),
        (["embedding", "fedavg", "--data", "tset"], "The data must be train or test, not 'tset'."),
        (["embedding", "fedavg", "--layer", "foo"], "The model has no layer 'foo'; it has"),
        (
            ["embedding", "fedavg", "--samples", "20"],
            "The perplexity must be above 1 and below the 20 samples, not 30.",
        ),
    ],
)
def test_a_mistake_ends_with_a_message(
    cli: Cli, trained_runs: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(trained_runs)
    outcome = cli("analyse", *arguments)
    assert (
        outcome.code == 2
        and words in " ".join(outcome.err.split())
        and "Traceback" not in outcome.err
    )


def test_no_line_leads_to_a_model_of_another_shape(cli: Cli, runs: Path) -> None:
    outcome = cli(
        "run", "--rounds", "1", "--clients", "4", "--out", runs, "--name", "mlp", "--quiet"
    )
    assert outcome.code == 0
    outcome = cli("analyse", "landscape", runs / "fedavg", "--to", runs / "mlp")
    assert outcome.code == 2 and "has another model than" in " ".join(outcome.err.split())


def test_changed_data_are_noticed(cli: Cli, runs: Path) -> None:
    path = runs / "fedavg" / "data.json"
    path.write_text(path.read_text().replace('"partition_hash": "', '"partition_hash": "x'))
    outcome = cli("analyse", "flatness", runs / "fedavg")
    assert outcome.code == 2 and "The data have changed since" in outcome.err
