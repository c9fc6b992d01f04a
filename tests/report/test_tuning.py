"""What a report says about values that were tuned."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedwmsam.errors import InputError
from fedwmsam.page.page import render_page
from fedwmsam.report.latex import latex_text
from fedwmsam.report.runs import add_averaged_model_runs, find_runs
from fedwmsam.report.summary import Comparison, summarise
from fedwmsam.report.text_tables import csv_rows, csv_tuning, make_text_tables

ENTRY = {
    "row": "fedsam",
    "method": "fedsam",
    "rounds": 3,
    "validation": 0.1,
    "seeds": [0, 1],
    "candidates": [
        {"values": {"rho": 0.1}, "scores": [0.6, 0.7]},
        {"values": {"rho": 0.2}, "scores": [0.7, 0.8]},
        {"values": {"rho": 0.3}, "scores": [0.5, None]},
    ],
    "chosen": {"rho": 0.2},
    "runs": ["fedsam-seed0-01234567"],
}
NASTY = (None, -1, 10**400, float("nan"), 1e308, "", "\x1b[2J\n", [], {}, [[1]], {"a": []}, True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A comparison of two methods, of which one was tuned, with a tuning run below it."""
    write_run(tmp_path / "fedavg-seed0-76543210", [0.5, 0.6])
    write_run(tmp_path / "another-name-01234567", [0.5, 0.7], method="fedsam", rho=0.2)
    write_run(tmp_path / "tuning" / "fedsam-seed0-aaaaaaaa", [0.5, 0.9], method="fedsam", rho=0.3)
    write_choices(tmp_path, ENTRY)
    return tmp_path


def write_choices(folder: Path, *entries: dict[str, Any]) -> None:
    (folder / "tuning.json").write_text(json.dumps({"rows": entries}))


def comparison(folder: Path) -> Comparison:
    return summarise(find_runs([folder])[0])


def test_tuning_runs_are_not_runs_of_the_comparison_but_can_be_looked_at(folder: Path):
    assert {run.path.name for run in find_runs([folder])[0]} == {
        "fedavg-seed0-76543210",
        "another-name-01234567",
    }
    assert len(find_runs([folder / "tuning"])[0]) == 1
    (folder / "tuning.json").unlink()  # then the folder is one like any other
    assert len(find_runs([folder])[0]) == 3


def test_a_table_says_what_was_tried_and_the_rows_which_value_they_have(folder: Path):
    results, tuning = make_text_tables(comparison(folder))
    assert tuning.title.startswith("How the values were chosen: digits")
    assert tuning.rows == (
        ("fedsam", "rho=0.1", "2", "0.6500 ± 0.0707", ""),
        ("fedsam", "rho=0.2", "2", "0.7500 ± 0.0707", "chosen"),
        ("fedsam", "rho=0.3", "2", "not finite", "diverged or failed"),
    )
    assert "runs of 3 rounds, on a share of 0.1 of the training data" in tuning.notes[0]
    assert "at most one standard error" in tuning.notes[1]
    note = "Tuned on validation data: fedsam: rho=0.2 of 3 tried. Not tuned: fedavg."
    assert note in results.notes


def test_a_larger_grid_replaces_the_choice_of_a_smaller_one(folder: Path):
    larger = {
        "candidates": [*ENTRY["candidates"], {"values": {"rho": 0.4}, "scores": [0.9, 0.9]}],
        "chosen": {"rho": 0.4},
        "runs": ["fedsam-seed0-89abcdef"],
    }
    write_run(folder / "fedsam-seed0-89abcdef", [0.5, 0.8], method="fedsam", rho=0.4)
    write_choices(folder, ENTRY, ENTRY | larger)
    assert len(find_runs([folder])[0]) == 3, "without a fingerprint nobody knows of one question"
    write_choices(folder, ENTRY | {"asked": "row"}, ENTRY | larger | {"asked": "row"})
    results, tuning = make_text_tables(comparison(folder))
    assert [row[0] for row in results.rows] == ["fedavg", "fedsam"]
    assert [row[-1] for row in tuning.rows] == [
        "",
        "",
        "diverged or failed",
        "chosen, rho at the edge",
    ]
    note = "Chosen by an earlier tuning, no longer counted: fedsam rho=0.2."
    assert note in results.notes
    write_choices(folder, ENTRY | larger | {"asked": "row"}, ENTRY | {"asked": "other row"})
    assert len(find_runs([folder])[0]) == 3


def test_a_folder_with_tuning_runs_only_says_how_it_goes_on(folder: Path):
    for name in ("fedavg-seed0-76543210", "another-name-01234567"):
        shutil.rmtree(folder / name)
    with pytest.raises(InputError, match="has tuning runs only so far: give the command"):
        find_runs([folder])


def test_edges_ties_and_a_single_seed_are_said(folder: Path):
    candidates = [{"values": {"rho": rho}, "scores": [0.7]} for rho in (0.2, 0.3)]
    write_choices(folder, ENTRY | {"seeds": [0], "candidates": candidates})
    results, tuning = make_text_tables(comparison(folder))
    assert [row[-1] for row in tuning.rows] == ["chosen, rho at the edge", "equal"]
    assert "a better one may lie beyond" in tuning.notes[1]
    assert "With one tuning seed the noise is not known" in tuning.notes[2]
    words = "fedsam: rho=0.2 of 2 tried, rho at the edge of the grid, equal to rho=0.3."
    assert any(words in note for note in results.notes)


def test_every_format_has_the_choice(folder: Path, cli: Any):
    outcome = cli(
        "report",
        folder,
        "--csv",
        folder / "t.csv",
        "--markdown",
        folder / "t.md",
        "--latex",
        folder / "t.tex",
        "--html",
        folder / "t.html",
    )
    assert outcome.code == 0, outcome.err
    assert "How the values were chosen" in outcome.out
    for name in ("t.md", "t.tex", "t.html"):
        text = (folder / name).read_text()
        assert "How the values were chosen" in text and "diverged or failed" in text, name
    rows = list(csv.DictReader((folder / "t.csv").open()))
    assert [row["tuned"] for row in rows] == ["rho=0.2", ""]
    tried = list(csv.DictReader((folder / "t-tuning.csv").open()))
    assert [row["tried_rho"] for row in tried] == ["0.1", "0.2", "0.3"]
    assert [row["choice"] for row in tried] == ["", "chosen", "diverged or failed"]
    assert float(tried[0]["validation_accuracy_mean"]) == pytest.approx(0.65)


def test_a_paper_has_its_names_and_percent_in_the_choice_too(folder: Path, cli: Any):
    outcome = cli("report", folder, "--latex", folder / "t.tex", "--percent")
    assert outcome.code == 0, outcome.err
    text = (folder / "t.tex").read_text()
    assert "validation accuracy (\\%)" in text
    assert "FedSAM & rho=0.2 & 2 & 75.00 $\\pm$ 7.07 & chosen" in text
    assert "fedsam" not in text


def test_a_choice_is_said_once_for_all_rows_that_have_it(tmp_path: Path):
    entries = []
    candidates = [{"values": {"lr": lr}, "scores": [0.7 - lr]} for lr in (0.1, 0.2)]
    for method, fingerprint in (("fedcm", "0" * 8), ("fedsam", "1" * 8), ("fedavg", "")):
        name = f"{method}-seed0-{fingerprint or '2' * 8}"
        columns = {"averaged_accuracy": [0.6]}
        write_run(tmp_path / name, [0.5], columns=columns, method=method, twin=8.0)
        if fingerprint:
            values = {"row": method, "method": method, "runs": [name], "chosen": {"lr": 0.1}}
            entries.append(ENTRY | values | {"seeds": [0], "candidates": candidates})
    write_choices(tmp_path, *entries)
    runs = add_averaged_model_runs(find_runs([tmp_path])[0])
    results, _ = make_text_tables(summarise(runs))
    (note,) = (note for note in results.notes if note.startswith("Tuned"))
    assert note == (
        "Tuned on validation data: fedcm, fedsam: lr=0.1 of 2 tried, lr at the edge of the grid. "
        "Not tuned: fedavg."
    )


def test_without_tuning_there_is_no_trace_of_it(folder: Path, cli: Any):
    (folder / "tuning.json").write_text('{"rows": []}')
    cli("report", folder, "--csv", folder / "t.csv")
    assert "tuned" not in (folder / "t.csv").read_text()
    assert not (folder / "t-tuning.csv").exists()
    assert [table.kind for table in make_text_tables(comparison(folder))] == ["results"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chosen": {"rho": 0.1}}, "chosen must be the values with the best score"),
        ({"seeds": [0]}, "scores must be a score for each seed"),
        ({"rounds": "3"}, "rounds must be a whole number"),
        ({"candidates": []}, "candidates must be"),
    ],
)
def test_a_damaged_file_is_said_and_the_results_still_stand(
    folder: Path, change: dict[str, Any], words: str
):
    write_choices(folder, ENTRY | change)
    (results,) = make_text_tables(comparison(folder))
    assert any("cannot be read" in note and words in note for note in results.notes)
    assert len(results.rows) == 2


def test_a_link_is_not_followed(folder: Path):
    (folder / "tuning.json").rename(folder / "elsewhere")
    (folder / "tuning.json").symlink_to(folder / "elsewhere")
    (results,) = make_text_tables(comparison(folder))
    assert any("is a link" in note for note in results.notes)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    key=st.sampled_from([*ENTRY, "values", "scores"]),
    value=st.sampled_from(NASTY) | st.lists(st.sampled_from(NASTY), max_size=3),
)
def test_whatever_the_file_holds_a_report_is_made(folder: Path, key: str, value: Any):
    entry = json.loads(json.dumps(ENTRY))
    target = entry["candidates"][0] if key in ("values", "scores") else entry
    target[key] = value
    write_choices(folder, entry)
    summary = comparison(folder)
    tables = make_text_tables(summary)
    assert "\x1b" not in latex_text(tables) + csv_rows(summary) + csv_tuning(summary)
    assert tables[0].kind == "results" and "<html" in render_page(summary)
