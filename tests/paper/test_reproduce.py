"""The command: checklist, dry run, a real recipe of tiny runs, mistakes."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedwmsam.comparison.grid import config_fingerprint
from fedwmsam.data.mnist import MNIST_VARIANTS, missing_files
from fedwmsam.data.paths import candidate_folders
from fedwmsam.experiment.experiment import prepare
from fedwmsam.paper.recipe import Plan
from fedwmsam.paper.reproduction import RECIPES

Cli = Callable[..., Any]
TINY = [
    "--rounds",
    "3",
    "--set",
    "dataset=digits",
    "--set",
    "model=linear",
    "--set",
    "clients=5",
    "--set",
    "participation=0.4",
    "--set",
    "local_epochs=1",
    "--jobs",
    "1",
]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedwmsam.commands.output.console", Console(width=300, markup=False, highlight=False)
    )


@pytest.fixture(scope="module")
def out(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reproduce Table 5 by seven tiny runs."""
    out = tmp_path_factory.mktemp("reproduction")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fedwmsam.commands.output.console", Console(width=300, markup=False, highlight=False)
        )
        outcome = cli("reproduce", "table-5", *TINY, "--out", out)
    assert outcome.code == 0, outcome.err
    (out / "printed").write_text(outcome.out)
    return out


def tiny_plan() -> Plan:
    settings = {
        "rounds": 3,
        "dataset": "digits",
        "model": "linear",
        "clients": 5,
        "participation": 0.4,
    }
    return Plan(RECIPES["table-5"], "small", overrides=settings | {"local_epochs": 1})


def statuses(text: str) -> dict[str, list[str]]:
    """Return the last columns of a printed checklist by label, or by recipe if there is none."""
    result = {}
    for line in text.splitlines():
        if "│" in line:
            recipe, label, _, *status = (cell.strip() for cell in line.strip("│ ").split("│"))
            result[label or recipe] = status
    return result


def test_a_recipe_says_what_it_will_take_and_what_came_of_it(out: Path) -> None:
    text = (out / "printed").read_text()
    assert text.startswith(
        "table-5 at scale small: 7 runs × 3 rounds on digits, 0 of them done before"
    )
    rows = [line for line in text.splitlines() if line.startswith("│ ")]
    assert len(rows) == 7 and "0.7664" in rows[0] and rows[0].startswith("│ ✓✓✓")
    metrics = out / "runs" / tiny_plan().run_specs()[0].folder_name / "metrics.jsonl"
    accuracies = [json.loads(line)["accuracy"] for line in metrics.read_text().splitlines()]
    assert f"{sum(accuracies) / 3:.4f}" in rows[0] and f"{max(accuracies):.4f}" in rows[0]
    assert "dataset digits instead of cifar-10" in text and "rounds 3 instead of 500" in text
    assert "Written: " in text and "0.7664" in (out / "table-5-small" / "table.md").read_text()


def test_what_is_done_is_not_done_again(cli: Cli, out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/metrics.jsonl")}
    outcome = cli("reproduce", "table-5", *TINY, "--out", out)
    assert outcome.code == 0 and "7 of them done before" in outcome.out
    assert before == {
        path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/metrics.jsonl")
    }


def test_a_run_of_the_same_configuration_counts_whatever_it_is_called(
    cli: Cli, out: Path, tmp_path: Path
) -> None:
    shutil.copytree(out / "runs", tmp_path / "runs")
    for run in (tmp_path / "runs").glob("*-seed0-*"):
        run.rename(run.with_name(f"mine-{run.name[-8:]}"))
    outcome = cli("reproduce", "table-5", *TINY, "--out", tmp_path)
    assert "7 of them done before" in outcome.out and outcome.code == 0
    assert not list((tmp_path / "runs").glob("*-seed0-*")), "none was made beside them"
    assert outcome.out.count("│ 1     │") == 7, "their numbers are in the table"


def test_some_columns_can_be_chosen(cli: Cli) -> None:
    chosen = cli(
        "reproduce", "table-1", "--column", "β = 0.1", "--column", "γ = 3", "--dry-run"
    ).out
    assert "22 runs" in chosen and "pathological:3" in chosen and "dirichlet:0.6" not in chosen
    wrong = cli("reproduce", "table-1", "--column", "beta", "--dry-run")
    assert wrong.code and "'beta'" in wrong.err and "Fashion-MNIST β = 0.6" in wrong.err


def test_the_checklist_knows_what_was_run(cli: Cli, out: Path) -> None:
    found = statuses(cli("reproduce", *TINY, "--scale", "small", "--out", out).out)
    assert found["tab:ablation"] == ["run (7 runs)"]
    assert found["fig:coisin"] == ["partly run (1 of 2 runs)"], "it shares FedWMSAM as it is"
    assert found["fig:core"] == ["not runnable: a drawing, nothing is measured"]
    assert found["claim-similarity"] == ["not run (6 runs)"]
    assert found["tab:performance_comparison"] == [
        "not runnable: table-1 itself sets dataset; leave it out."
    ]
    as_published = statuses(cli("reproduce", "--out", out).out)
    assert as_published["tab:ablation"] == ["not run (7 runs)", "not run (7 runs)"], (
        "tiny runs are not the recipe's"
    )
    assert as_published["tab:performance_comparison"] == ["not run (44 runs)", "not run (132 runs)"]
    assert as_published["fig:sensitivity"] == ["not run (60 runs)", "not run (55 runs)"]
    labels = (Path(__file__).parents[1] / "data" / "paper_labels.txt").read_text().split()
    assert [label for label in as_published if ":" in label] == sorted(
        labels, key=list(as_published).index
    )
    assert set(labels) <= set(as_published)


def test_the_checklist_counts_an_interrupted_recipe_in_part(cli: Cli, out: Path) -> None:
    summary = out / "runs" / tiny_plan().run_specs()[3].folder_name / "summary.json"
    hidden = summary.rename(summary.with_name("hidden"))
    try:
        assert statuses(cli("reproduce", *TINY, "--scale", "small", "--out", out).out)[
            "tab:ablation"
        ] == ["partly run (6 of 7 runs)"]
    finally:
        hidden.rename(summary)


def test_a_recipe_whose_data_cannot_be_had_is_not_runnable(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDWMSAM_DATA", raising=False)
    small, paper = statuses(cli("reproduce", "--out", tmp_path).out)["tab:comparison_domains"]
    assert (
        small.startswith("not runnable: the data set office-caltech10") and "office-home" in paper
    )
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        (tmp_path / "office_caltech10" / domain).mkdir(parents=True)
    found = statuses(cli("reproduce", "--data-dir", tmp_path, "--out", tmp_path).out)[
        "tab:comparison_domains"
    ]
    assert found[0] == "not run (9 runs)"


@pytest.mark.parametrize("name", ["table-5", "table-6", "figure-6-clients"])
def test_a_dry_runs_commands_are_the_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    outcome = cli(
        "reproduce", name, "--scale", "paper", "--seeds", "4,7", "--dry-run", "--out", tmp_path
    )
    lines = [line for line in outcome.out.splitlines() if line.startswith("fedwmsam ")]
    specs = Plan(RECIPES[name], "paper", (4, 7)).run_specs()
    assert len(lines) == len(specs) and not list(tmp_path.iterdir())
    started: list[Any] = []
    monkeypatch.setattr(
        "fedwmsam.commands.run.start_run", lambda *arguments: started.append(arguments)
    )
    for line in lines[:3] + lines[-3:]:
        assert cli(*shlex.split(line)[1:]).code == 0
    for (config, parent, folder, _), spec in zip(started, specs[:3] + specs[-3:], strict=True):
        assert (
            config_fingerprint(config) == config_fingerprint(spec.config)
            and config.seed == spec.config.seed
        )
        assert (parent, folder) == (tmp_path / "runs", spec.folder_name)


@pytest.mark.slow
def test_a_figure_of_embeddings_comes_with_its_numbers(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("reproduce", "figure-12", *TINY[:1], "1", *TINY[2:], "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "figure-12-small" / "embeddings.png").exists()
    rows = [
        line
        for line in outcome.out.partition("Clusters by class")[2].splitlines()
        if line.startswith("│ ")
    ]
    assert len(rows) == 10 and rows[-1].startswith("│ FedWMSAM")
    folder = (
        Plan(RECIPES["figure-12"], "small", overrides=tiny_plan().overrides | {"rounds": 1})
        .run_specs()[-1]
        .folder_name
    )
    (found,) = json.loads((tmp_path / "runs" / folder / "analysis" / "embedding.json").read_text())[
        "rounds"
    ]
    assert f"{found['scores'][0]['silhouette']:.4f}" in rows[-1] and found["clients"] is None, (
        "of test samples"
    )


def test_a_figure_names_its_plots(cli: Cli, tmp_path: Path) -> None:
    assert (
        "; draws accuracy-over-clients"
        in cli("reproduce", "figure-6-clients", "--dry-run", "--out", tmp_path).out
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tabel-5"], "Unknown recipe 'tabel-5'. Did you mean 'table-5'?"),
        (["table-5", "--scale", "papr"], "Unknown scale 'papr'. Did you mean 'paper'?"),
        (["--scale", "big"], "Unknown scale 'big'."),
        (["figure-1"], "figure-1 cannot be run: a drawing, nothing is measured."),
        (["table-6", "--set", "rho=0.1"], "table-6 itself sets rho"),
        (["table-5", "--set", "rhoo=0.1"], "Did you mean 'rho'?"),
        (["table-5", "--seeds", "0"], "seeds must be"),
        (
            ["table-2", "--data-dir", "."],
            "office-caltech10 was not found, and has no public address",
        ),
    ],
)
def test_mistakes(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDWMSAM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    outcome = cli("reproduce", *arguments)
    assert (
        outcome.code == 2
        and words in " ".join(outcome.err.split())
        and not outcome.err.count("Traceback")
    )


@pytest.mark.slow
def test_two_rounds_of_the_papers_own_setting(tmp_path: Path) -> None:
    """The run is FedWMSAM's in Table 1 on Fashion-MNIST, or on digits if that is not installed."""
    folders = candidate_folders(None, (MNIST_VARIANTS["fashion-mnist"].folder,))
    installed = any(not missing_files(folder) for folder in folders)
    plan = Plan(RECIPES["table-1"], "paper", overrides={"rounds": 2})
    column = next(column for column in plan.columns if column.name == "Fashion-MNIST β = 0.1")
    spec = plan.run_spec(plan.recipe.contender("FedWMSAM"), column, seed=0)
    config = spec.config
    if not installed:
        config = replace(config, dataset="digits")
    experiment = prepare(config)
    result = experiment.run(experiment.create(tmp_path / "run"))
    assert result.status == "completed" and result.rounds == 2
    steps = 5 * (12 if installed else 1)  # 600 samples per client in batches of 50, or 14
    for row in result.rows:
        assert row["cohort"] == 10 and row["backprops"] == 10 * steps
    assert result.columns["lr"] == [0.1, pytest.approx(0.0998)] and result.columns["alpha"][
        0
    ] == pytest.approx(0.1)
    assert re.fullmatch(r"[0-9a-f]+", experiment.partition.hash)
