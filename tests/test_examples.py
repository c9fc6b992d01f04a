"""The examples run as the guides say."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_method_of_the_guide_trains():
    done = subprocess.run([sys.executable, ROOT / "examples" / "fading_prox.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"last accuracy ([\d.]+)", done.stdout)[1]) > 0.7


def test_other_losses_learn():
    done = subprocess.run([sys.executable, ROOT / "examples" / "own_loss.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    error, labels, largest = (float(re.search(pattern, done.stdout)[1]) for pattern in (
        r"absolute error ([\d.]+)", r"multi-label: ([\d.]+)", r"largest error ([\d.]+)"))  # fmt: skip
    assert error < 0.5 and labels > 0.8 and largest < 2


def test_the_guide_quotes_the_example():
    example = (ROOT / "examples" / "fading_prox.py").read_text()
    quoted = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "add-a-method.md").read_text(), re.DOTALL)
    assert any(block.strip() in example for block in quoted)


def test_the_ten_lines_of_the_readme_run():
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    namespace: dict[str, object] = {}
    exec(block, namespace)
    assert namespace["outputs"].shape == (5, 3)
