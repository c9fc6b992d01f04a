"""Run folders of strangers: whatever their text files hold, a report says it or refuses it."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.run_folders import write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedwmsam import toml
from fedwmsam.engine.records import read_json, read_lines
from fedwmsam.errors import InputError
from fedwmsam.page.page import render_page
from fedwmsam.report.latex import latex_text, paper_tables
from fedwmsam.report.percent import in_percent
from fedwmsam.report.pivot import pivot_text_tables
from fedwmsam.report.plots import save_comparison_plots
from fedwmsam.report.runs import add_averaged_model_runs, find_runs
from fedwmsam.report.summary import ACCURACY, Goal, summarise
from fedwmsam.report.text_tables import (
    TextTable,
    csv_curves,
    csv_rows,
    csv_runs,
    make_text_tables,
    markdown_text,
)
from fedwmsam.report.varied_settings import place_rows, varied_settings

MAX_PIVOTS = 3
"""Settings by which the tables are turned; any of them would take long."""
HUGE = 10**400
NASTY_TEXTS = (
    "\x1b]0;owned\x07",
    "a\n\\input{/etc/passwd}\n%",
    "=cmd|'/c calc'!A1",
    "@SUM(1)",
    "$\\frac{$",
    "| a |\r\n<script>alert(1)</script>",
    "\ud800",
    "x" * 100_000,
    "",
    "\u202e",
    "[1cm] & \\\\",
)
NASTY = (
    HUGE,
    -HUGE,
    1e308,
    -1e308,
    2**63,
    -1,
    0,
    float("nan"),
    float("inf"),
    None,
    True,
    [],
    {},
    [[[[[1]]]]],
    [HUGE],
    [1e308] * 3,
    {"a": {"b": [None]}},
    *NASTY_TEXTS,
)
ANYTHING = st.recursive(
    st.sampled_from(NASTY) | st.integers() | st.floats() | st.text(max_size=20) | st.booleans(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values),
    max_leaves=5,
)
FILES = ("config.toml", "data.json", "metrics.jsonl", "timings.jsonl", "summary.json")
GOALS = (ACCURACY, Goal("accuracy", True, (0.2,)), Goal("loss", False), Goal("custom", None))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two methods, with all that a report shows."""
    folder = tmp_path_factory.mktemp("template")
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("fedwmsam", 0)):
        write_run(
            folder / f"{method}-{seed}",
            [0.1, 0.2, 0.3],
            method=method,
            seed=seed,
            best_round=2,
            validation=0.1,
            columns={"alpha": [0.1, 0.2, 0.3], "epsilon": [1.0, 2.0, 3.0], "rejected": [[1]] * 3},
            data={"class_counts": [[3, 0], [1, 2]], "class_names": ["cat", "dog"]},
            client_accuracy=[0.5, None],
        )
    return folder


@pytest.fixture(scope="module")
def keys(template: Path) -> list[tuple[str, str]]:
    """Every key of every text file of a run."""
    run = template / "fedwmsam-0"
    contents = {
        "config.toml": toml.load(run / "config.toml"),
        "data.json": read_json(run / "data.json"),
        "metrics.jsonl": read_lines(run / "metrics.jsonl")[0],
        "timings.jsonl": read_lines(run / "timings.jsonl")[0],
        "summary.json": read_json(run / "summary.json"),
        "clients.json": read_json(run / "clients.json"),
    }
    pairs = []
    for name, content in contents.items():
        pairs += [(name, key) for key in (*content, "custom")]
    return pairs


def forge(run: Path, name: str, key: str, value: Any) -> None:
    """Give a key of a file another value; TOML is written by hand, for it has other types."""
    path = run / name
    if name == "config.toml":
        lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} =")]
        path.write_text("\n".join([f"{json.dumps(key)} = {toml_value(value)}", *lines]) + "\n")
    elif name.endswith(".jsonl"):
        records = read_lines(path)
        records[-1][key] = value
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        path.write_text(json.dumps(read_json(path) | {key: value}))


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)} = {toml_value(entry)}" for key, entry in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value) if isinstance(value, str | bool) else str(value or 0)


def every_output(folder: Path, goals: Sequence[Goal] = GOALS) -> Iterator[str]:
    """Yield all that a report writes, as text."""
    runs = add_averaged_model_runs(find_runs([folder])[0])
    for goal in goals:
        try:
            comparison = summarise(runs, goal, "fedavg")
        except InputError:
            comparison = summarise(runs)
        with suppress(InputError):
            in_percent(runs, goal)
        tables = make_text_tables(comparison, paper_columns=True)
        for key in varied_settings(place_rows(comparison))[:MAX_PIVOTS]:
            tables += pivot_text_tables(comparison, key)
        yield from (csv_rows(comparison), csv_runs(comparison), csv_curves(comparison))
        yield from (markdown_text(tables), latex_text(tables))
        yield latex_text(paper_tables(comparison), "page")
        for table in tables:
            yield from texts_of_table(table)
    yield render_page(comparison)


def texts_of_table(table: TextTable) -> Iterator[str]:
    for cells in (table.header, *table.rows, table.notes, (table.title,)):
        for cell in cells:
            assert cell.isprintable()
            yield cell


def test_no_constant_in_any_key_trips_a_report(
    template: Path, keys: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Each constant in each key; runs are read one by one and shown together."""
    for number, value in enumerate(NASTY):
        folder = tmp_path / str(number)
        for name, key in keys:
            run = folder / f"{name}-{key}"
            shutil.copytree(template / "fedwmsam-0", run)
            forge(run, name, key, value)
        shutil.copytree(template / "fedavg-0", folder / "honest")
        for text in every_output(folder, [ACCURACY]):
            assert "\x1b" not in text and "\u202e" not in text
            text.encode()


def test_no_text_in_a_label_trips_a_picture(template: Path, tmp_path: Path) -> None:
    for number, text in enumerate(NASTY_TEXTS):
        shutil.copytree(template / "fedwmsam-0", tmp_path / "runs" / str(number))
        forge(tmp_path / "runs" / str(number), "config.toml", "method", text)
    forge(tmp_path / "runs" / "0", "metrics.jsonl", "loss", 1e149)
    comparison = summarise(find_runs([tmp_path / "runs"])[0])
    assert save_comparison_plots(comparison, tmp_path / "plots")


def test_a_list_in_place_of_a_hash_is_damage(template: Path, tmp_path: Path) -> None:
    """Runs are paired by the hash of their partition, so that it must be a key."""
    for run in template.iterdir():
        shutil.copytree(run, tmp_path / run.name)
    forge(tmp_path / "fedwmsam-0", "data.json", "partition_hash", [])
    runs = find_runs([tmp_path])[0]
    assert [run.path.name for run in runs if not run.is_usable] == ["fedwmsam-0"]
    summarise(runs, ACCURACY, "fedavg")


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_nothing_in_several_keys_trips_a_report(
    template: Path, keys: list[tuple[str, str]], data: st.DataObject
) -> None:
    folder = template.parent / "forged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    for _ in range(data.draw(st.integers(1, 4))):
        name, key = data.draw(st.sampled_from(keys))
        run = data.draw(st.sampled_from(sorted(folder.iterdir())))
        try:
            forge(run, name, key, data.draw(ANYTHING))
        except (InputError, IndexError):  # an earlier forgery made the file unreadable
            continue
    for text in every_output(folder):
        text.encode()
