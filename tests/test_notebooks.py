"""The notebooks run from top to bottom, and what they show comes from such a run."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.markdown_pages import ROOT

EXECUTE = ROOT / "notebooks" / "execute.py"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SIZE_LIMIT = 300_000
"""Bytes that a notebook with its outputs may have."""
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read_cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the notebook's cells of a kind, code or markdown."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def output_kinds(outputs: list[Any]) -> list[tuple[str, list[str]]]:
    """Return for each output of a cell its type and formats, such as text, a table or a plot."""
    return [(output["output_type"], sorted(output.get("data", {}))) for output in outputs]


def test_the_notebooks_are_these():
    assert [path.stem for path in NOTEBOOKS] == [
        "flatness_and_diagnosis",
        "own_model_and_data",
        "tour",
    ]


@every_notebook
def test_the_outputs_come_from_one_run_without_errors(path: Path):
    cells = read_cells(path, "code")
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = []
    for cell in cells:
        outputs += cell["outputs"]
    assert outputs and all(output["output_type"] != "error" for output in outputs)
    assert not re.search(r"Warning|Traceback|/home/|/tmp/", json.dumps(outputs))
    assert path.stat().st_size < SIZE_LIMIT


@every_notebook
def test_the_links_of_a_notebook_lead_somewhere(path: Path):
    text = "".join("".join(cell["source"]) for cell in read_cells(path, "markdown"))
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    targets += ["../" + page for page in re.findall(r"`(docs/[\w/-]+\.md)`", text)]
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "nbformat", None)
    with pytest.raises(SystemExit, match=r"nbformat.*pip install .*'\.\[notebooks\]'"):
        runpy.run_path(str(EXECUTE))


@pytest.mark.slow
def test_a_notebook_is_named_by_its_path_and_runs_in_its_folder(tmp_path: Path):
    nbformat = pytest.importorskip("nbformat", reason="needs fedwmsam[notebooks]")
    path = tmp_path / "mine" / "small.ipynb"
    path.parent.mkdir()
    cell = nbformat.v4.new_code_cell("from pathlib import Path; Path.cwd().name")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    subprocess.run([sys.executable, EXECUTE, "mine/small.ipynb"], cwd=tmp_path, check=True)
    assert read_cells(path, "code")[0]["outputs"][0]["data"] == {"text/plain": ["'mine'"]}


@pytest.mark.slow
@every_notebook
def test_executed_again_a_notebook_shows_the_same_kinds_of_output(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    pytest.importorskip("nbclient", reason="needs fedwmsam[notebooks]")
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # run folders
    from execute import execute

    cells = [cell for cell in execute(path).cells if cell["cell_type"] == "code"]
    monkeypatch.delitem(sys.modules, "execute")
    kinds = [output_kinds(cell["outputs"]) for cell in cells]
    assert kinds == [output_kinds(cell["outputs"]) for cell in read_cells(path, "code")]
