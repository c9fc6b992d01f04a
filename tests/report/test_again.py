"""The one command of a page makes just the runs of the page again."""

import re
import shlex
from html import unescape
from pathlib import Path

import pytest
from helpers.run_folders import write_run

from fedwmsam.page.again import compare_command
from fedwmsam.page.page import render_page
from fedwmsam.report.runs import find_runs
from fedwmsam.report.summary import Comparison, summarise


def comparison_of(folder: Path) -> Comparison:
    return summarise(find_runs([folder])[0])


def fingerprints(folder: Path) -> set[str]:
    return {path.parent.name[-8:] for path in folder.glob("*/config.toml")}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--methods", "fedavg,fedcm", "--seeds", "2", "--lr", "0.2"),
        pytest.param(
            ("--methods", "fedavg,fedsam", "--seed", "7", "--grid", "rho=0.01,0.1"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("--methods", "fedsam", "--seeds", "2", "--set", "rho=0.2"), marks=pytest.mark.slow
        ),
    ],
)
def test_the_command_makes_the_same_runs(cli, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    made = cli("compare", *arguments, "--rounds", "1", "--out", "first", "-q")
    assert made.code == 0, made.err
    page = render_page(comparison_of(tmp_path / "first"))
    block = unescape(re.search(r"<code>(.*?)</code>", page, re.DOTALL)[1])
    command = block.removeprefix("# All runs together:\n").split("\n\n# ")[0]
    if command.startswith("cat"):
        file, _, command = command.partition("\nEND\n")
        (tmp_path / "again.toml").write_text(file.partition("\n")[2] + "\n")
    again = cli(*shlex.split(command)[1:], "-q")
    assert again.code == 0, again.err
    assert fingerprints(tmp_path / "again") == fingerprints(tmp_path / "first")


def test_runs_that_no_single_comparison_makes_have_no_such_command(tmp_path):
    write_run(tmp_path / "a", [0.5] * 3, method="fedavg", seed=0)
    write_run(tmp_path / "b", [0.6] * 3, method="fedavg", seed=1)
    write_run(tmp_path / "c", [0.6] * 3, method="fedcm", seed=1)
    assert compare_command(comparison_of(tmp_path)) == ""


def test_no_method_is_imported_for_the_command(tmp_path, monkeypatch):
    (tmp_path / "mischief.py").write_text("open('imported', 'w')\n")
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(tmp_path / f"r{seed}", [0.5] * 3, method="fedavg", seed=seed)
        config = tmp_path / f"r{seed}" / "config.toml"
        config.write_text(config.read_text().replace('"fedavg"', '"mischief:Method"'))
    assert compare_command(comparison_of(tmp_path)) == ""
    assert not (tmp_path / "imported").exists()


def test_a_pivot_is_on_the_page_with_its_best_marked(tmp_path):
    for method, level in (("fedavg", 0.5), ("fedcm", 0.7)):
        for partition in ("iid", "dirichlet:0.1"):
            for seed in (0, 1):
                name = f"{method}-{partition[0]}-{seed}"
                write_run(
                    tmp_path / name,
                    [level] * 3,
                    method=method,
                    partition=partition,
                    seed=seed,
                    partition_hash=f"{partition}{seed}",
                )
    page = render_page(comparison_of(tmp_path))
    section = page.partition('id="pivot"')[2].partition("</section>")[0]
    assert "FedCM" in section and section.count('class="best"') >= 2
