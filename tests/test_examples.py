"""The examples run as the guides say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.flower_deployment import all_processes, wait_until

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(text: str) -> list[list[str]]:
    """The body of the table that was printed: rows of cells."""
    return [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in text.splitlines()
        if line.startswith("│")
    ]


def numbers(rows: list[list[str]], first: int) -> list[list[float]]:
    return [[float(cell) for cell in row[first:]] for row in rows]


def test_every_example_is_listed_and_tested():
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    listed = (EXAMPLES / "README.md").read_text() + (EXAMPLES / "flower" / "README.md").read_text()
    tested = Path(__file__).read_text()
    assert {
        name
        for name in files
        if f"({Path(name).name})" not in listed or f'run("{name}"' not in tested
    } == set()


def test_the_method_of_the_guide_trains():
    assert float(re.search(r"last accuracy ([\d.]+)", run("fading_prox.py"))[1]) > 0.7


def test_other_losses_learn():
    printed = run("own_loss.py")
    error, labels, largest = (
        float(re.search(pattern, printed)[1])
        for pattern in (
            r"absolute error ([\d.]+)",
            r"multi-label: ([\d.]+)",
            r"largest error ([\d.]+)",
        )
    )
    assert error < 0.5 and labels > 0.8 and largest < 2


def test_a_table_with_quantity_skew_is_learned():
    printed = run("tabular_quantity_skew.py")
    sizes = [int(size) for size in re.search(r"clients: (.*)", printed)[1].split(", ")]
    assert len(sizes) == 20 and sizes == sorted(sizes) and sizes[-1] > 20 * sizes[0]
    rows = table(printed)
    assert [row[:2] for row in rows] == [
        [a, b] for a in ("fedavg", "fedwmsam") for b in ("uniform", "size")
    ]
    assert all(figures[0] > 0.35 for figures in numbers(rows, 2))


@pytest.mark.slow
def test_an_own_table_is_taken(tmp_path: Path):
    lines = [f"{k % 7},{k % 5},{'ill' if k % 7 > 3 else 'well'}" for k in range(200)]
    (tmp_path / "visits.csv").write_text("\n".join(["a,b,label", *lines]))
    printed = run("tabular_quantity_skew.py", "--file", tmp_path / "visits.csv")
    assert printed.startswith("160 rows") and len(table(printed)) == 4


@pytest.mark.slow
def test_pictures_by_domain_are_learned():
    rows = table(run("images_by_domain.py"))
    assert [row[0] for row in rows] == ["fedavg", "fedwmsam"]
    assert all(len(figures) == 5 and min(figures[:4]) > 0.3 for figures in numbers(rows, 1))


@pytest.mark.slow
def test_text_by_speaker_is_learned():
    *speakers, everybody = table(run("text_by_speaker.py"))
    assert {row[0] for row in speakers} == {"Miller", "Captain", "Clerk", "Fool"} and everybody[
        0
    ] == "all"
    constant, *methods = numbers([everybody], 1)[0]
    assert all(right > 1.5 * constant for right in methods)


@pytest.mark.slow
def test_a_flower_deployment_on_this_machine_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rows = table(run("flower/loopback.py"))
    assert [row[:2] for row in rows] == [["1", "3"], ["2", "3"], ["3", "3"]]
    assert float(rows[-1][-1]) > 0.5
    assert list(tmp_path.iterdir()) == []
    mark = os.fsencode(tmp_path)  # in the environment of all that was started
    wait_until(
        lambda: not any(mark in known for known, _, _ in all_processes().values()),
        "all programs have ended",
    )


def test_the_guide_quotes_the_example():
    example = (EXAMPLES / "fading_prox.py").read_text()
    quoted = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "add-a-method.md").read_text(), re.DOTALL
    )
    assert any(block.strip() in example for block in quoted)
