"""The notebooks run from top to bottom, and what they show comes from such a run."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.markdown_pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 300_000
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [
        cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == kind
    ]


def test_notebooks_are_found():
    assert [path.stem for path in NOTEBOOKS] == [
        "flatness_and_diagnosis",
        "own_model_and_data",
        "tour",
    ]


@notebooks
def test_what_it_shows_comes_from_one_run(path: Path):
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs and all(output["output_type"] != "error" for output in outputs)
    assert not re.search(r"Warning|Traceback|/home/|/tmp/", json.dumps(outputs))
    assert path.stat().st_size < LARGEST


@notebooks
def test_its_links_lead_somewhere(path: Path):
    text = "".join(line for cell in cells(path, "markdown") for line in cell["source"])
    targets = [
        *re.findall(r"\]\(([^)#]+)\)", text),
        *("../" + page for page in re.findall(r"`(docs/[\w/-]+\.md)`", text)),
    ]
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.slow
@notebooks
def test_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("nbclient", reason="needs fedwmsam[notebooks]")
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # run folders
    from execute import executed

    now = executed(path)
    monkeypatch.delitem(sys.modules, "execute")
    shown = [kinds(cell["outputs"]) for cell in cells(path, "code")]
    assert [kinds(cell["outputs"]) for cell in now.cells if cell["cell_type"] == "code"] == shown


def kinds(outputs: list[Any]) -> list[tuple[str, list[str]]]:
    """What sort of things a cell shows: text, a table, a picture."""
    return [(output["output_type"], sorted(output.get("data", {}))) for output in outputs]
