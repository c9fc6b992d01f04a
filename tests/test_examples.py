"""The examples run as the guides say."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.flower_deployment import all_processes, wait_until

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str | Path) -> str:
    """Run an example and return what it prints."""
    command = [sys.executable, EXAMPLES / name, *arguments]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout


def read_table(text: str) -> list[list[str]]:
    """Return the body of the printed table as rows of cells."""
    lines = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    return [list(map(str.strip, cells)) for cells in lines]


def numbers_from(column: int, rows: list[list[str]]) -> list[list[float]]:
    """Return the cells of every row from a column on, as numbers."""
    return [list(map(float, row[column:])) for row in rows]


def find_number(pattern: str, text: str) -> float:
    """Return the number that the pattern's group matches."""
    match = re.search(pattern, text)
    assert match, text
    return float(match[1])


def test_every_example_is_listed_and_tested():
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    # tests/methods/test_own_methods.py and tests/systems have these.
    files -= {str(path.relative_to(EXAMPLES)) for path in (EXAMPLES / "own_method").iterdir()}
    files -= {"hugging_face.py"}
    listed = (EXAMPLES / "README.md").read_text() + (EXAMPLES / "flower" / "README.md").read_text()
    tests = Path(__file__).read_text()
    assert [name for name in files if f"({Path(name).name})" not in listed] == []
    assert [name for name in files if f'run("{name}"' not in tests] == []


def test_a_regression_a_multi_label_and_an_own_loss_learn():
    printed = run("own_loss.py")
    assert find_number(r"absolute error ([\d.]+)", printed) < 0.5
    assert find_number(r"multi-label: ([\d.]+)", printed) > 0.8
    assert find_number(r"largest error ([\d.]+)", printed) < 2


def test_a_table_with_quantity_skew_is_learned():
    printed = run("tabular_quantity_skew.py")
    sizes = [int(size) for size in re.search(r"clients: (.*)", printed)[1].split(", ")]
    assert len(sizes) == 20 and sizes == sorted(sizes) and sizes[-1] > 20 * sizes[0]
    rows = read_table(printed)
    assert [row[:2] for row in rows] == [
        ["fedavg", "uniform"],
        ["fedavg", "size"],
        ["fedwmsam", "uniform"],
        ["fedwmsam", "size"],
    ]
    assert all(numbers[0] > 0.35 for numbers in numbers_from(2, rows))


@pytest.mark.slow
def test_the_table_example_reads_a_file_of_the_user(tmp_path: Path):
    lines = [f"{k % 7},{k % 5},{'ill' if k % 7 > 3 else 'well'}" for k in range(200)]
    (tmp_path / "visits.csv").write_text("\n".join(["a,b,label", *lines]))
    printed = run("tabular_quantity_skew.py", "--file", tmp_path / "visits.csv")
    assert printed.startswith("160 rows") and len(read_table(printed)) == 4


def test_without_peft_the_example_of_hugging_face_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(SystemExit, match=r"peft.*pip install transformers peft"):
        runpy.run_path(str(EXAMPLES / "hugging_face.py"))


@pytest.mark.slow
def test_images_by_domain_are_learned():
    rows = read_table(run("images_by_domain.py"))
    assert [row[0] for row in rows] == ["fedavg", "fedwmsam"]
    for accuracies in numbers_from(1, rows):
        assert len(accuracies) == 5 and min(accuracies[:4]) > 0.3


@pytest.mark.slow
def test_text_by_speaker_is_learned():
    *speakers, overall = read_table(run("text_by_speaker.py"))
    assert {row[0] for row in speakers} == {"Miller", "Captain", "Clerk", "Fool"}
    assert overall[0] == "all"
    constant, *methods = numbers_from(1, [overall])[0]
    assert all(accuracy > 1.5 * constant for accuracy in methods)


@pytest.mark.slow
def test_a_flower_deployment_on_this_machine_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rows = read_table(run("flower/loopback.py"))
    assert [row[:2] for row in rows] == [["1", "3"], ["2", "3"], ["3", "3"]]
    assert float(rows[-1][-1]) > 0.5
    assert list(tmp_path.iterdir()) == []
    mark = os.fsencode(tmp_path)  # in the environment of every process that was started

    def have_ended() -> bool:
        return not any(mark in environment for environment, _, _ in all_processes().values())

    wait_until(have_ended, "all programs have ended")


def test_the_guide_quotes_the_example():
    example = (EXAMPLES / "own_method" / "fading_prox.py").read_text()
    guide = (ROOT / "docs" / "add-a-method.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert any(block.strip() in example for block in blocks)
