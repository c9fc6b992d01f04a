"""The code keeps the rules of tools/style.py, and each rule finds what it forbids."""

from pathlib import Path

import pytest
import style


@pytest.mark.parametrize("name", style.RULES)
def test_the_code_keeps_the_rule(name: str):
    offences = style.RULES[name].find_offences()
    if offences:
        pytest.fail("\n".join(map(str, offences)), pytrace=False)


OTHER_FILE = style.SourceFile.parse(Path("other.py"), "class Batch:\n    '''Some samples.'''")
"""A file that keeps all rules, checked together with each of the snippets below."""


def offending_lines(name: str, snippet: str) -> list[int]:
    """Return the lines of a made-up file that break a rule."""
    file = style.SourceFile.parse(Path("snippet.py"), snippet)
    return [offence.line for offence in style.RULES[name].check([OTHER_FILE, file])]


OFFENCES = {
    "types have one definition": [
        "\nBatch = tuple[int, int]",
        "\nBatch: TypeAlias = list[int]",
        "\nclass Batch: ...",
    ],
    "lines fit in the columns": ["\nx = 1  # " + 92 * "x"],
    "the formatter is never turned off": ["\nx = 1  # fmt: skip", "\n# fmt: off"],
    "an assignment sets one name": [
        "\na, b = 1, 2",
        "\na = b = 0",
        "\nself.a, b = b, a",
        "\n(a, *b) = [1, 2]",
    ],
    "comprehensions have one level": [
        "\n[x for row in rows for x in row]",
        "\n{name: [x + 1 for x in row] for name, row in rows}",
        "\nsum(len([x for x in row if x]) for row in rows)",
        "\n[x for x in (y for y in rows)]",
    ],
    "conditional expressions fit on a line": [
        "\nx = (1 if a\n    else 2)",
        "\nx = 1 if a else 2 if b else 3",
        "\nx = f(1 if a else 2) if b else 3",
    ],
    "docstrings begin with an imperative sentence": [
        "\ndef f():\n    '''The number of rounds that count.'''",
        "\ndef f():\n    '''Whether the run is over now.'''",
        "\ndef f():\n    '''What is kept of a run.'''",
        "\ndef f():\n    '''Sampled from all the clients.'''",
        "\ndef f():\n    '''A client's own data and labels.'''",
        "\nasync def f():\n    '''Return it.'''",
        "\ndef f():\n    '''Return the number of rounds\n\n    that count.'''",
        "\ndef f():\n    '''Run’s settings as they were.'''",
    ],
    "public classes have a docstring": ["\nclass A:\n    x = 1"],
    "run folders have one door": [
        "\n(run / 'config.toml').read_text()",
        "\npath.write_bytes(b'')",
        "\npath.open('a')",
        "\npath.open()",
    ],
    "texts have a named encoding": [
        "\npath.read_text()",
        "\n(run / 'a').write_text(text, newline='')",
        "\npath.open('a')",
        "\npath.open()",
        "\npath.open(mode='w')",
    ],
    "tests use no private names": [
        "\nfrom fedwmsam.engine.run import _loop",
        "\nfrom fedwmsam.engine import _loop as loop",
        "from fedwmsam.engine import run\nrun._loop()",
        "from fedwmsam.engine import run as engine\nmonkeypatch.setattr(engine._loop, 'x', 1)",
        "import fedwmsam\nfedwmsam._names",
        "import fedwmsam.engine.run\nfedwmsam.engine.run._loop()",
    ],
}
"""By rule: snippets whose second line breaks it."""

FOLLOWED = {
    "types have one definition": [
        "def f():\n    Batch = 1",
        "BATCH = 1\nbatch = 2",
        "if TYPE_CHECKING:\n    class Own: ...\nclass Own: ...",
    ],
    "lines fit in the columns": ["x = 1  # " + 91 * "x"],
    "the formatter is never turned off": ["x = '# fmt: skip'\ny = 2  # the format: skipped"],
    "an assignment sets one name": [
        "a, b = b, a",
        "x[i], x[j] = x[j], x[i]",
        "a, b = f()",
        "(a,) = rows",
        "pair = 1, 2",
        "a, *b = row",
    ],
    "comprehensions have one level": ["[x for x in row]", "sum(x for x in map(len, rows) if x)"],
    "conditional expressions fit on a line": ["x = (\n    1 if a else 2\n)"],
    "docstrings begin with an imperative sentence": [
        "def f():\n    '''Return the number of rounds\n    that count.\n\n    More'''",
        "def f():\n    '''Feed the model with samples.'''",
        "def f(): ...",
        "class A:\n    '''The settings of a run.'''",
        "@app.command()\ndef f():\n    '''The theory'''",
    ],
    "public classes have a docstring": ["class _A: ...", "class A:\n    '''Of some use.'''"],
    "tests use no private names": [
        "import fedwmsam\nfedwmsam.__version__",
        "from fedwmsam.engine import run\nrun.run_rounds\nself._run",
        "from helpers import _x",
    ],
    "run folders have one door": ["files.read_bytes(path, 9)\nRunFolder.open(path)"],
    "texts have a named encoding": [
        "path.read_text('utf-8')\npath.write_text(text, encoding='utf-8')",
        "path.open('rb')\npath.open('w', encoding='utf-8')\npath.read_bytes()",
        "files.write_text(path, text)\nRunFolder.open(path)",
    ],
}
"""By rule: snippets that do not break it."""


def pairs(snippets: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return every snippet with the name of its rule."""
    result = []
    for name, texts in snippets.items():
        result += [(name, text) for text in texts]
    return result


def test_every_rule_has_snippets():
    assert OFFENCES.keys() == FOLLOWED.keys() == style.RULES.keys()


@pytest.mark.parametrize(("name", "snippet"), pairs(OFFENCES))
def test_a_rule_finds_what_it_forbids(name: str, snippet: str):
    assert offending_lines(name, snippet) == [2]


@pytest.mark.parametrize(("name", "snippet"), pairs(FOLLOWED))
def test_a_rule_leaves_other_code_alone(name: str, snippet: str):
    assert offending_lines(name, snippet) == []


def test_an_offence_is_reported_with_its_file_and_line():
    offence = style.Offence(Path("src", "a.py"), 7, "chained assignment")
    assert str(offence) == "src/a.py:7: chained assignment"
