"""Commands and programs in the documentation do what they say.

A comment before a block says how it is tested: `<!-- run -->` (here), `<!-- slow -->` (by
`make test-slow`), `<!-- not run: why -->`, or `<!-- file NAME -->` (written, for the commands that
follow). `<!-- run after COMMAND -->` and `<!-- slow after COMMAND -->` first execute a command that
the page does not show, usually a smaller training than the one the page describes. The blocks of a
page run in order in one folder, and its Python blocks share their names. A command whose block
shows an error must end with that error.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.loose_modules import load_module
from helpers.markdown_pages import CODE, ROOT, Block, find_pages, read_blocks
from helpers.reductions import REDUCTIONS

from fedwmsam.report.terminal import describe_costs
from fedwmsam.settings.method_table import METHOD_TABLE, method_title

MARKS = re.compile(r"run|slow|not run: .+|file [\w.-]+")
SHELL_SYNTAX = re.compile(r"[|&;<>*?$`(){}~]")
TEMPLATE = ROOT / "src" / "fedwmsam" / "flower" / "template"
"""A template whose README will be the user's; docs/flower.md has its commands."""
Cli = Callable[..., Any]


def pages_with(mark: str) -> list[Any]:
    """Return the pages with a block of that mark, for parametrize."""
    parameters = []
    for page in find_pages():
        if any(block.mark == mark for block in read_blocks(page)):
            parameters.append(pytest.param(page, id=str(page.relative_to(ROOT))))
    return parameters


def test_every_block_says_how_it_is_tested():
    unmarked = []
    for page in find_pages():
        if TEMPLATE in page.parents:
            continue
        for block in read_blocks(page):
            if block.language in CODE and not MARKS.fullmatch(block.mark):
                unmarked.append(f"{page.relative_to(ROOT)}:{block.line}")
    assert unmarked == []


def test_an_unmarked_block_would_be_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\npass\n```\n\n    $ fedwmsam run\n\n"
        "<!-- run after fedwmsam run -->\n```console\n$ ls\n```\n"
    )
    blocks = [(block.language, block.mark, block.setup) for block in read_blocks(page)]
    assert blocks == [("python", "", ""), ("console", "", ""), ("console", "run", "fedwmsam run")]


@pytest.mark.parametrize("page", pages_with("run"))
def test_blocks_do_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    enter_folder(tmp_path, monkeypatch)
    execute_blocks(page, cli, "run")


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("slow"))
def test_slow_blocks_do_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    enter_folder(tmp_path, monkeypatch)
    execute_blocks(page, cli, "run", "slow")  # a slow block may use what a quick one wrote


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ fedwmsam run --set local_epochs=0.5\n```",
        "```console\n$ fedwmsam run --set local_epochs=0.5\nError: another sentence.\n```",
        "```console\n$ fedwmsam methods fedavg\nError: it does not fail.\n```",
        "```console\n$ cmp page.md missing\n```",
        "```python\nassert False\n```",
    ],
    ids=["error not shown", "another error", "no error", "shell", "python"],
)
def test_a_block_that_lies_would_be_found(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text(f"<!-- run -->\n{text}\n")
    with pytest.raises(AssertionError):
        execute_blocks(Path("page.md"), cli, "run")


def enter_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the folder the current one and give it what commands in a clone would find."""
    monkeypatch.chdir(folder)
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")  # scripts are called as from a clone
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # decoded images stay here


def execute_blocks(page: Path, cli: Cli, *marks: str) -> None:
    """Execute the page's blocks of these marks in order, and write its files."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in read_blocks(page):
        if block.setup and block.mark in marks:
            execute_command(block.setup, "", cli)
        if block.mark.startswith("file "):
            Path(block.mark.removeprefix("file ")).write_text(block.text)
        elif block.mark in marks and block.language == "python":
            exec(compile(block.text, f"{page}:{block.line}", "exec"), names)
        elif block.mark in marks:
            for command, output in split_commands(block):
                execute_command(command, output, cli)


def split_commands(block: Block) -> Iterator[tuple[str, str]]:
    """Yield every command of a block with the output that the block shows of it.

    In a console block commands follow the prompt; in others each line is a command.
    """
    prompt = r"^\$ " if block.language == "console" else r"^(?=\S)"
    for part in re.split(prompt, block.text, flags=re.MULTILINE)[1:]:
        command, _, output = re.sub(r"\\\n(> )?", "", part).partition("\n")
        yield command, output


def execute_command(command: str, shown: str, cli: Cli) -> None:
    """Execute a command; fail unless it succeeds, or ends with the error that is shown."""
    words = shlex.split(command, comments=True)
    if words[0] == "fedwmsam" and not SHELL_SYNTAX.search(" ".join(words)):
        outcome = cli(*words[1:])
        code = outcome.code
        printed = outcome.out + outcome.err
    else:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src"),
        }
        process = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=environment
        )
        code = process.returncode
        printed = process.stdout + process.stderr
    expected = shown.splitlines()[0] if shown.startswith("Error: ") else ""
    assert code == (2 if expected else 0), f"{command}\n{printed}"
    assert " ".join(expected.split()) in " ".join(printed.split()), f"{command}\n{printed}"


def test_the_badges_say_what_the_project_s_files_say() -> None:
    badges = load_module(ROOT / "docs" / "pictures" / "badges.py").make_badges()
    for name, text in badges.items():
        assert (ROOT / "docs" / "pictures" / f"badge-{name}.svg").read_text() == text


@pytest.mark.parametrize("method", METHOD_TABLE)
def test_every_method_has_its_page_and_its_costs(method: str):
    docs = ROOT / "docs"
    assert (docs / "methods" / f"{method}.md").exists()
    assert f"({method}.md)" in (docs / "methods" / "costs.md").read_text()


def test_the_page_of_methods_says_what_the_library_says():
    sections = re.split(
        r"^## ", (ROOT / "docs" / "methods" / "README.md").read_text(), flags=re.MULTILINE
    )
    shown = []
    for section in sections:
        idea = section.partition("\n")[0].lower()
        for row in re.findall(r"^\| \[.+?\]\((.+?)\.md\) \| (.+) \|$", section, re.MULTILINE):
            name, cells = row
            _, use, paper, *costs = cells.split(" | ")
            shown.append((idea, name, use, *costs, paper))
    expected = []
    for name, entry in METHOD_TABLE.items():
        expected.append((entry.idea.lower(), name, entry.use, *describe_costs(name)))
    assert shown == expected


def test_the_family_tree_has_every_method_and_every_tested_reduction():
    svg = (ROOT / "docs" / "pictures" / "family.svg").read_text()
    assert svg == load_module(ROOT / "docs" / "pictures" / "family.py").draw_family()
    shown = re.findall(r'class="name"[^>]*>(.+?)<', svg)
    assert sorted(shown) == sorted(map(method_title, METHOD_TABLE))
    edges = re.findall(r'data-ends="(\S+) (\S+)"', svg)
    tested = [(reduction.method.name, reduction.becomes.name) for reduction in REDUCTIONS]
    assert sorted(edges) == sorted(tested)
