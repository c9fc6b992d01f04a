"""Rules of style that neither the formatter nor the linter checks.

python tools/style.py lists every offence as FILE:LINE. tests/test_style.py fails on them, and
tools/shape.py counts them.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("src",)
TESTS = ("tests",)
ALL_CODE = ("src", "tests", "results", "benchmarks", "tools", "examples", "docs", "notebooks")
ANYWHERE = ("src", "examples")
"""What people run on systems of their own; the rest is tried on Linux only."""
COLUMNS = 100
"""The longest line, as in pyproject.toml; the formatter leaves comments and strings longer."""

FILE_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "open"}
"""Methods of Path that open a file, whatever it is."""
TEXT_METHODS = {"read_text": 1, "write_text": 2}
"""Methods of Path for texts → how many arguments there are with the encoding."""
OPENING_FILES = ("files.py", "machine.py", "data/*", "page/page.py", "page/provenance.py")
OPENING_FILES += (
    "report/output_files.py",
    "flower/keys.py",
    "flower/new.py",
    "flower/check.py",
    "flower/client.py",
)
"""Files of the library that may use these methods: what they open is no file of a run folder."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FORMATTER_SWITCH = re.compile(r"#\s*fmt:\s*(skip|off)\b")
TYPE_NAME = re.compile(r"_?[A-Z]\w*[a-z]\w*")
PARTICIPLE = re.compile(r"\w+(ed|ing)")
VERBS_LIKE_PARTICIPLES = {"Need", "Feed", "Embed", "Bring", "Proceed", "Speed"}
ARTICLES = {"The", "A", "An", "This", "That", "These", "Those", "Such"}
PRONOUNS = {"It", "Its", "Their", "Our", "His", "Her", "One", "Each", "Every", "Another", "Other"}
PRONOUNS |= {"Nothing", "Something", "Anything", "Everything", "Everyone", "Everybody"}
QUANTITIES = {"All", "None", "No", "Not", "Only", "More", "Most", "Two", "Both", "Either"}
PREPOSITIONS = {"Of", "For", "With", "Without", "As", "In", "To", "From", "By", "At", "On"}
PREPOSITIONS |= {"Like", "Than", "Till", "Until", "After", "Before"}
CONJUNCTIONS = {"Or", "And", "Also", "So", "If", "Whether", "Is", "Are", "Here", "There"}
QUESTION_WORDS = {"What", "Who", "Whose", "Where", "When", "Which", "How", "Why"}
NOT_IMPERATIVE = ARTICLES | PRONOUNS | QUANTITIES | PREPOSITIONS | CONJUNCTIONS | QUESTION_WORDS
"""First words of docstrings that do not say what a function does."""
SHORTEST_SENTENCE = 4
"""Words that the first paragraph of a docstring has at least."""


@dataclass(frozen=True)
class SourceFile:
    """A Python file with its syntax tree."""

    path: Path
    """Relative to the repository."""
    text: str
    tree: ast.Module

    @staticmethod
    def parse(path: Path, text: str) -> "SourceFile":
        """Return the file with this text; its path is only reported, never opened."""
        return SourceFile(path, text, ast.parse(text))


@dataclass(frozen=True)
class Offence:
    """A place in the code that breaks a rule."""

    path: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


@dataclass(frozen=True)
class Rule:
    """A check of all files in some folders of the repository."""

    check: Callable[[Sequence[SourceFile]], Iterable[Offence]]
    folders: tuple[str, ...]

    def find_offences(self) -> list[Offence]:
        """Check the repository's files and return the offences in the order of the files."""
        return list(self.check(read_files(self.folders)))


def read_files(folders: Iterable[str]) -> list[SourceFile]:
    """Return the Python files in these folders of the repository, hidden folders left out."""
    files = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if not any(part.startswith(".") for part in relative.parts):
                files.append(SourceFile.parse(relative, path.read_text("utf-8")))
    return files


def find_repeated_types(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield the classes and type aliases whose name another file has defined before."""
    first_files: dict[str, Path] = {}
    for file in files:
        for name, line in defined_types(file.tree):
            first = first_files.setdefault(name, file.path)
            if first != file.path:
                yield Offence(file.path, line, f"{name} is defined in {first}, too")


def defined_types(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the name and line of every class and type alias at the top level of a module.

    A name in CapWords that is assigned to is taken for a type alias.
    """
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and TYPE_NAME.fullmatch(target.id):
                yield target.id, node.lineno


def find_long_lines(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield the lines that are longer than COLUMNS."""
    for file in files:
        for number, line in enumerate(file.text.split("\n"), start=1):
            if len(line) > COLUMNS:
                yield Offence(file.path, number, f"{len(line)} columns")


def find_formatter_switches(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield the comments that turn the formatter off."""
    for file in files:
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            if token.type == tokenize.COMMENT and FORMATTER_SWITCH.search(token.string):
                yield Offence(file.path, token.start[0], token.string)


def find_parallel_assignments(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield assignments of several values at once, and of one value to several targets.

    A swap and the unpacking of one value are no offence.
    """
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.Assign):
                continue
            if len(node.targets) > 1:
                yield Offence(file.path, node.lineno, "chained assignment")
            elif is_parallel(node.targets[0], node.value):
                yield Offence(file.path, node.lineno, "parallel assignment")


def is_parallel(target: ast.expr, value: ast.expr) -> bool:
    """Return whether an assignment pairs several targets with several values, and is no swap."""
    sequence = (ast.Tuple, ast.List)
    if not isinstance(target, sequence) or not isinstance(value, sequence):
        return False
    targets = {ast.unparse(element) for element in target.elts}
    values = {ast.unparse(element) for element in value.elts}
    return targets != values


def find_nested_comprehensions(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield comprehensions with a second `for`, or with another comprehension inside."""
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, COMPREHENSIONS):
                continue
            if len(node.generators) > 1 or has_inside(node, COMPREHENSIONS):
                yield Offence(file.path, node.lineno, "comprehension of two levels")


def find_long_conditionals(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield conditional expressions on several lines, or with another one inside."""
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.IfExp):
                continue
            if node.lineno != node.end_lineno:
                yield Offence(file.path, node.lineno, "conditional expression on several lines")
            if has_inside(node, (ast.IfExp,)):
                yield Offence(file.path, node.lineno, "nested conditional expression")


def has_inside(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    """Return whether a node of one of these kinds is anywhere below the given node."""
    return any(isinstance(inner, kinds) for inner in ast.walk(node) if inner is not node)


def find_docstring_fragments(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield the docstrings of functions that do not begin with a sentence in the imperative.

    The docstring of a command is its help text, which is written for users, and not checked.
    """
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, FUNCTIONS) or is_command(node):
                continue
            for problem in sentence_problems(ast.get_docstring(node)):
                yield Offence(file.path, node.lineno, f"docstring of {node.name}: {problem}")


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator makes the function a command of the command line."""
    return any(ast.unparse(node).endswith(".command()") for node in function.decorator_list)


def sentence_problems(docstring: str | None) -> Iterator[str]:
    """Yield what keeps a docstring's first paragraph from being a sentence in the imperative."""
    if not docstring:
        return
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    match = re.match(r"[\w’'-]+", paragraph)
    word = match[0] if match else ""
    if not paragraph.endswith("."):
        yield f"no period ends {paragraph!r}"
    if len(paragraph.split()) < SHORTEST_SENTENCE:
        yield f"{paragraph!r} is too short"
    elif not is_imperative(word):
        yield f"{word!r} is no verb in the imperative"


def is_imperative(word: str) -> bool:
    """Return False for words that surely are no verb in the imperative, True for all others."""
    if word in VERBS_LIKE_PARTICIPLES:
        return True
    if word in NOT_IMPERATIVE or word.endswith(("’s", "'s")):
        return False
    return PARTICIPLE.fullmatch(word) is None


def find_undocumented_classes(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield the public classes without a docstring."""
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                yield Offence(file.path, node.lineno, f"class {node.name} has no docstring")


def find_private_uses(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield imports of private names of the library, and uses of them through its modules."""
    for file in files:
        modules = imported_modules(file.tree)
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ImportFrom) and is_library(node.module or ""):
                for alias in node.names:
                    if is_private(alias.name):
                        yield Offence(file.path, node.lineno, f"imports {alias.name}")
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                owner = ast.unparse(node.value)
                if owner in modules or is_module(owner):
                    yield Offence(file.path, node.lineno, f"uses {owner}.{node.attr}")


def find_opened_files(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield the calls that open files of run folders in another way than through files.py."""
    for file in files:
        if any(file.path.match(f"src/fedwmsam/{pattern}") for pattern in OPENING_FILES):
            continue
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Call) and opens_file(node):
                yield Offence(file.path, node.lineno, f"{ast.unparse(node.func)} opens a file")


def opens_file(call: ast.Call) -> bool:
    """Return whether a call is one of Path's methods that open a file.

    What is called `open` opens a file if it is given a mode or nothing at all.
    """
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in FILE_METHODS:
        return False
    if ast.unparse(function.value) == "files":
        return False
    has_mode = all(isinstance(argument, ast.Constant) for argument in call.args)
    return function.attr != "open" or has_mode


def find_unnamed_encodings(files: Sequence[SourceFile]) -> Iterator[Offence]:
    """Yield the calls that read or write a text in whatever encoding the system prefers."""
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Call) and needs_encoding(node):
                name = ast.unparse(node.func)
                yield Offence(file.path, node.lineno, f"{name} names no encoding")


def needs_encoding(call: ast.Call) -> bool:
    """Return whether a call of a method of Path is for a text, and has no encoding."""
    if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value) == "files":
        return False
    has_encoding = any(keyword.arg == "encoding" for keyword in call.keywords)
    if call.func.attr in TEXT_METHODS:
        return not has_encoding and len(call.args) < TEXT_METHODS[call.func.attr]
    return call.func.attr == "open" and opens_file(call) and not has_encoding and is_text(call)


def is_text(call: ast.Call) -> bool:
    """Return whether the mode that a call of `open` names, if it does, is for a text."""
    return not any(isinstance(mode, ast.Constant) and "b" in str(mode.value) for mode in call.args)


def imported_modules(module: ast.Module) -> set[str]:
    """Return the names by which a file refers to modules of the library."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_library(alias.name):
                    names.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom) and is_library(node.module or ""):
            for alias in node.names:
                if is_module(f"{node.module}.{alias.name}"):
                    names.add(alias.asname or alias.name)
    return names


def is_library(module: str) -> bool:
    """Return whether a dotted name is the library or something in it."""
    return module.split(".")[0] == "fedwmsam"


def is_module(name: str) -> bool:
    """Return whether a dotted name is that of a module or package of the library."""
    if not is_library(name):
        return False
    path = ROOT / "src" / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def is_private(name: str) -> bool:
    """Return whether a name has one underscore in front; `__version__` and the like are public."""
    return name.startswith("_") and not name.startswith("__")


RULES = {
    "types have one definition": Rule(find_repeated_types, SOURCE),
    "lines fit in the columns": Rule(find_long_lines, ALL_CODE),
    "the formatter is never turned off": Rule(find_formatter_switches, ALL_CODE),
    "an assignment sets one name": Rule(find_parallel_assignments, ALL_CODE),
    "comprehensions have one level": Rule(find_nested_comprehensions, ALL_CODE),
    "conditional expressions fit on a line": Rule(find_long_conditionals, ALL_CODE),
    "docstrings begin with an imperative sentence": Rule(find_docstring_fragments, SOURCE),
    "public classes have a docstring": Rule(find_undocumented_classes, SOURCE),
    "tests use no private names": Rule(find_private_uses, TESTS),
    "run folders have one door": Rule(find_opened_files, SOURCE),
    "texts have a named encoding": Rule(find_unnamed_encodings, ANYWHERE),
}


def main() -> None:
    """Print the offences against every rule."""
    for name, rule in RULES.items():
        for offence in rule.find_offences():
            print(f"{offence} ({name})")


if __name__ == "__main__":
    main()
