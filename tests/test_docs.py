"""Commands and programs in the documentation do what they say.

A comment before a block says what becomes of it: `<!-- run -->` (here), `<!-- slow -->` (by `make test-slow`),
`<!-- not run: why -->`, or `<!-- file NAME -->` (written, for the commands that follow). `<!-- run after COMMAND -->`
and `<!-- slow after COMMAND -->` first carry out a command that the page does not show, usually a smaller training than
the one it speaks of. The blocks of a page run in order in one folder; Python blocks share their names. A command whose
block shows an error must end with that error.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.loose_modules import module_of
from helpers.markdown_pages import CODE, ROOT, Block, blocks, pages

MARKS = re.compile(r"run|slow|not run: .+|file [\w.-]+")
SHELL = re.compile(r"[|&;<>*?$`(){}~]")
Cli = Callable[..., Any]


def having(*marks: str) -> list[Any]:
    """The pages with such a block, for parametrize."""
    found = [page for page in pages() if any(block.mark in marks for block in blocks(page))]
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in found]


def test_every_block_says_what_becomes_of_it():
    template = (
        ROOT / "src" / "fedwmsam" / "flower" / "template"
    )  # its README is the user's; docs/flower.md has its commands
    unmarked = [
        f"{page.relative_to(ROOT)}:{block.line}"
        for page in pages()
        for block in blocks(page)
        if template not in page.parents
        and block.language in CODE
        and not MARKS.fullmatch(block.mark)
    ]
    assert unmarked == []


def test_an_unmarked_block_would_be_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\npass\n```\n\n    $ fedwmsam run\n\n<!-- run after fedwmsam run -->\n```console\n$ ls\n```\n"
    )
    found = [(block.language, block.mark, block.before) for block in blocks(page)]
    assert found == [("python", "", ""), ("console", "", ""), ("console", "run", "fedwmsam run")]


@pytest.mark.parametrize("page", having("run"))
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli):
    in_a_folder_of_its_own(tmp_path, monkeypatch)
    play(page, cli, "run")


@pytest.mark.slow
@pytest.mark.parametrize("page", having("slow"))
def test_slow_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli):
    in_a_folder_of_its_own(tmp_path, monkeypatch)
    play(page, cli, "run", "slow")  # also the quick ones: a slow one may go on from what they left


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
        play(Path("page.md"), cli, "run")


def in_a_folder_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")  # scripts are called as from a clone
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # decoded pictures stay here


def play(page: Path, cli: Cli, *marks: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.before and block.mark in marks:
            carry_out(block.before, "", cli)
        if block.mark.startswith("file "):
            Path(block.mark[5:]).write_text(block.text)
        elif block.mark in marks and block.language == "python":
            exec(compile(block.text, f"{page}:{block.line}", "exec"), names)
        elif block.mark in marks:
            for command, shown in commands(block):
                carry_out(command, shown, cli)


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """(command, what the block shows of its output), in a console behind the prompt, else line by line."""
    prompt = r"^\$ " if block.language == "console" else r"^(?=\S)"
    for part in re.split(prompt, block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = re.sub(r"\\\n(> )?", "", part).partition("\n")
        yield command, shown


def carry_out(command: str, shown: str, cli: Cli) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "fedwmsam" and not SHELL.search(" ".join(words)):
        done = cli(*words[1:])
        code, printed = done.code, done.out + done.err
    else:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src"),
        }
        ran = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=environment
        )
        code, printed = ran.returncode, ran.stdout + ran.stderr
    expected = shown.splitlines()[0] if shown.startswith("Error: ") else ""
    assert (code == 2) == bool(expected) and code in (0, 2), f"{command}\n{printed}"
    assert " ".join(expected.split()) in " ".join(printed.split()), f"{command}\n{printed}"


def test_the_badges_say_what_the_project_s_files_say() -> None:
    for name, text in module_of(ROOT / "docs" / "pictures" / "badges.py").badges().items():
        assert (ROOT / "docs" / "pictures" / f"badge-{name}.svg").read_text() == text
