"""One hostile input in a process of its own: limited, watched and judged.

Each input has a stage: a folder with what the stranger sent, a folder that a command works in, and
a foreign one that no command has any business in. The kernel reports whatever is opened there.
"""

import contextlib
import csv
import ctypes
import os
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import unicodedata
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Never

from campaign.processes import ForkedProcess
from fedwmsam import cli

TAKEN = "taken"
REFUSED = "refused"
BAD = "bad"
Verdict = tuple[str, str]
"""TAKEN, REFUSED or BAD, and the reason if it is bad."""

SECONDS = 30.0
"""Time limit of an input; an honest one takes one second."""
ALLOWANCE = 1 << 30
"""Bytes of memory that any input may cost."""
ALLOWANCE_BY_SIZE = 4
"""Further bytes of memory for each byte that the stranger sent."""
SAFETY_NET = 3 << 30
"""Bytes that the system gives at most, so that a bomb harms nobody else on the machine."""
LONGEST_REFUSAL = 2000
"""Characters of a sentence that a person may still read."""
FORGED = "FORGED"
"""A word that hostile texts put behind their line breaks: no line may begin with it."""


@dataclass(frozen=True)
class Stage:
    """The folders of one input."""

    folder: Path
    references: Path
    """Runs without a fault, which are copied from here."""
    turn: int = 0
    """How many inputs of this kind came before; kinds of few variations take them in turn."""

    @property
    def input(self) -> Path:
        """Return the folder with what the stranger sent."""
        return self.folder / "input"

    @property
    def work(self) -> Path:
        """Return the folder in which the command is called and writes its results."""
        return self.folder / "work"

    @property
    def foreign(self) -> Path:
        """Return the folder that no command may read from or write to."""
        return self.folder / "foreign"

    def set_up(self) -> None:
        """Make the folders; the foreign one holds a letter and a whole run."""
        for folder in (self.input, self.work / "home", self.work / "tmp", self.foreign):
            folder.mkdir(parents=True)
        (self.foreign / "letter.txt").write_text("not for strangers\n")
        shutil.copytree(self.references / "fedwmsam", self.foreign / "run")

    def copy_reference(self, name: str) -> Path:
        """Copy one of the undisturbed runs to the input and return its path."""
        return Path(shutil.copytree(self.references / name, self.input / name))

    def foreign_files(self) -> dict[str, tuple[int, int, bytes]]:
        """Return what there is besides input and work: mode, time of change and content."""
        files = {}
        for path in [*self.folder.iterdir(), *self.foreign.rglob("*")]:
            if path in (self.input, self.work) or path.name in ("stdout", "stderr"):
                continue
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            files[str(path)] = status.st_mode, status.st_mtime_ns, content
        return files

    def input_size(self) -> int:
        """Return the bytes of the input on the disk; the holes of sparse files do not count."""
        return sum(path.lstat().st_blocks * 512 for path in self.input.rglob("*"))


@dataclass(frozen=True)
class Attack:
    """A hostile input that lies on its stage, and the function that reads it."""

    description: str
    target: Callable[[], None]


def command(*arguments: object) -> Callable[[], None]:
    """Return a function that runs a command of `fedwmsam` in this process."""

    def run() -> None:
        sys.argv = ["fedwmsam", *map(str, arguments)]
        cli.main()

    return run


class Watch:
    """The events on the files of a folder, as Linux reports them (inotify)."""

    OPENED = 0x20
    CHANGED = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200
    IS_FOLDER = 0x40000000

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.folders = {}
        for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
            mask = self.OPENED | self.CHANGED
            number = libc.inotify_add_watch(self.descriptor, os.fsencode(path), mask)
            if number < 0:
                raise OSError(ctypes.get_errno(), "the foreign folder cannot be watched")
            self.folders[number] = path

    def close(self) -> list[str]:
        """End the watch and return which files were opened or changed, in words.

        That somebody listed a folder does not count.
        """
        content = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.descriptor, 1 << 16):
                content += chunk
        os.close(self.descriptor)
        return list(dict.fromkeys(self.describe(content)))

    def describe(self, content: bytes) -> Iterator[str]:
        """Yield each event in words."""
        while content:
            number, mask, _, length = struct.unpack_from("iIII", content)
            name = content[16 : 16 + length].rstrip(b"\0").decode(errors="replace")
            content = content[16 + length :]
            if mask & self.CHANGED:
                yield f"{self.folders[number].name}/{name} changed"
            elif not mask & self.IS_FOLDER:
                yield f"{self.folders[number].name}/{name} opened"


@dataclass(frozen=True)
class Observation:
    """What was seen of a process."""

    code: int
    """Its exit code, negative: the signal that ended it."""
    timed_out: bool
    seconds: float
    memory: int
    """Bytes that it had at its peak beyond those it was forked with."""
    memory_limit: int
    output: str = ""
    errors: str = ""
    foreign: list[str] = field(default_factory=list)
    """What happened to foreign files, in words."""
    live_markup: str = ""
    """A table or page in which the stranger's text is more than text."""


class SandboxedProcess(ForkedProcess):
    """An attack in a forked process with limits, from its start to its observation."""

    def __init__(self, attack: Attack, stage: Stage, seconds: float = SECONDS) -> None:
        self.stage = stage
        self.memory_before = status_bytes("RssAnon")
        self.started = time.monotonic()
        self.limit = ALLOWANCE + ALLOWANCE_BY_SIZE * stage.input_size()
        self.files_before = stage.foreign_files()
        self.watch = Watch(stage.foreign)
        self.deadline = self.started + seconds
        self.timed_out = False
        self.peak = 0
        sys.stdout.flush()
        super().__init__(lambda: self.run_limited(attack))

    def run_limited(self, attack: Attack) -> None:
        """Enter the sandbox, in the forked process, and read the input."""
        enter(self.stage)
        try:
            attack.target()
        finally:
            sys.stdout.flush()

    def poll(self) -> int | None:
        """Return the exit code, or None if the process is running; end it after its deadline."""
        if self.returncode is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                self.peak = usage.ru_maxrss * 1024
            elif time.monotonic() > self.deadline and not self.timed_out:
                self.timed_out = True
                kill_all(self.pid)
        return self.returncode

    def observe(self) -> Observation:
        """Wait for the end and return what was seen."""
        code = self.wait()
        foreign = self.watch.close()
        files = self.stage.foreign_files()
        before = self.files_before
        different = [name for name in files | before if files.get(name) != before.get(name)]
        return Observation(
            code,
            self.timed_out,
            time.monotonic() - self.started,
            self.peak - self.memory_before,
            self.limit,
            (self.stage.folder / "stdout").read_text(errors="replace"),
            (self.stage.folder / "stderr").read_text(errors="replace"),
            foreign or [f"{name} is different" for name in different],
            find_live_markup(self.stage.work),
        )


def enter(stage: Stage) -> None:
    """Confine this process: its folders, its output, its memory and the size of its files."""
    os.setsid()
    os.chdir(stage.work)
    streams = ["/dev/null", stage.folder / "stdout", stage.folder / "stderr"]
    for descriptor, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    # Anew, because a test replaces what Python prints to; a half character is an error as always.
    sys.stdout = os.fdopen(1, "w", closefd=False, encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", 1, closefd=False, encoding="utf-8", errors="backslashreplace")
    os.environ |= {"HOME": str(stage.work / "home"), "TMPDIR": str(stage.work / "tmp")}
    os.environ["XDG_CACHE_HOME"] = str(stage.work / "home")
    os.environ.pop("FEDWMSAM_DATA", None)
    tempfile.tempdir = None
    urllib.request.urlopen = refuse_network
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (SAFETY_NET, SAFETY_NET))
    # Private memory only: a file that is mapped for reading takes none.
    limit = status_bytes("VmData") + SAFETY_NET
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def refuse_network(*_: object, **__: object) -> Never:
    """Stand for a machine without a network: what is missing must not be waited for."""
    raise OSError("no network here")


def status_bytes(name: str) -> int:
    """Return a number from what Linux says about the memory of this process."""
    (line,) = re.findall(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(line) * 1024


def kill_all(pid: int) -> None:
    """Kill a process and all that it started, those in sessions of their own included."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            kill_all(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def judge(seen: Observation, good_codes: tuple[int, ...] = (0, 1)) -> Verdict:
    """Return what became of an input: taken, refused in one sentence, or bad and why."""
    reason = find_fault(seen)
    if reason:
        return BAD, reason
    if seen.code in good_codes:
        return TAKEN, ""
    if seen.code != 2:
        return BAD, f"exit code {seen.code}: {seen.errors[-300:]!r}"
    reason = fault_of_refusal(seen.errors)
    return (BAD, reason) if reason else (REFUSED, "")


def find_fault(seen: Observation) -> str:
    """Return what no outcome excuses, and an empty text if there is nothing."""
    text = seen.output + "\n" + seen.errors
    if seen.foreign:
        return f"foreign files: {', '.join(seen.foreign[:3])}"
    if seen.timed_out:
        return "no end within the time limit"
    if "Traceback (most recent call last)" in text:
        return f"a traceback: {last_line(seen.errors)[:300]}"
    if seen.code < 0:
        return f"ended by {signal.Signals(-seen.code).name}"
    if seen.memory > seen.memory_limit:
        return f"{seen.memory >> 20} MB of memory, {seen.memory_limit >> 20} are allowed"
    if control := next(filter(is_control_character, text), None):
        return f"the control character {control!r} in the output"
    if any(line.startswith(FORGED) for line in text.splitlines()):
        return "a line of output that the stranger wrote"
    if warning := re.search(r"^.*\.py:\d+: \w*Warning: .*$", text, re.MULTILINE):
        return f"a warning of Python: {warning[0][-200:]}"
    return seen.live_markup


def fault_of_refusal(errors: str) -> str:
    """Return why this is not a refusal in one sentence, and an empty text if it is."""
    lines = errors.splitlines()
    refusals = [line for line in lines if line.startswith("Error: ")]
    if len(refusals) != 1 or lines[-1] != refusals[0]:
        return f"a refusal that is not one line: {errors[-300:]!r}"
    if len(lines[-1]) > LONGEST_REFUSAL:
        return f"a refusal of {len(lines[-1])} characters"
    return ""


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def is_control_character(character: str) -> bool:
    return unicodedata.category(character) == "Cc" and character not in "\n\t"


def find_live_markup(folder: Path) -> str:
    """Return in which written file a stranger's formula, LaTeX or script would be executed."""
    for path in sorted(folder.glob("*.tex")):
        for line in path.read_text().splitlines():
            if r"\input{" in re.split(r"(?<!\\)%", line)[0]:
                return f"live LaTeX in {path.name}: {line[:100]!r}"
    csv.field_size_limit(1 << 30)
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            cells = chain.from_iterable(csv.reader(file))
            has_formula = any(cell.startswith("=STRANGER") for cell in cells)
        if has_formula:
            return f"a formula in {path.name}"
    for path in sorted(folder.glob("*.html")):
        if "<script>stranger" in path.read_text():
            return f"a script in {path.name}"
    return ""
